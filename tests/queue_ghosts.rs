//! Clients that are gone and whose server does not notice. hyper does not look at the socket of an HTTP/1
//! connection while a request waits, if there is a byte more in its buffer than the request has, or a body that
//! nobody reads. So such requests wait on, for nobody: what bounds them is the longest wait.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::any;
use tokio::net::TcpListener;
use tower_sluice::key::HeaderKey;
use tower_sluice::{LeakyQueue, Policy, Quota, RateLimitLayer};

const GHOSTS: usize = 1_000;

/// Sends a request and is gone.
fn haunt(server: SocketAddr, number: usize) {
    let mut socket = TcpStream::connect(server).unwrap();
    let request = if number % 2 == 0 {
        "GET / HTTP/1.1\r\nhost: test\r\nx-key: hot\r\n\r\nG"
    } else {
        "POST / HTTP/1.1\r\nhost: test\r\nx-key: hot\r\ncontent-length: 100\r\n\r\npart"
    };
    socket.write_all(request.as_bytes()).unwrap();
}

/// The status that one who waits for its answer gets.
fn ask(server: SocketAddr, key: usize) -> String {
    let mut socket = TcpStream::connect(server).unwrap();
    write!(socket, "GET / HTTP/1.1\r\nhost: test\r\nx-key: {key}\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer.lines().next().unwrap().to_owned()
}

/// How many files and sockets this process has open, where the system tells.
fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

/// Waits until this holds. The bound is one on the test, and not on the queue, whose times are tested where time stands
/// still.
async fn until(holds: impl Fn() -> bool, otherwise: &str) {
    let held = async {
        while !holds() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), held).await.expect(otherwise);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_dead_clients_are_gone_when_the_longest_wait_is_over() {
    let queue = Arc::new(LeakyQueue::new(Quota::per_second(1_000)).max_wait(Duration::from_secs(1)));
    let policy = Policy::new("queue", Arc::clone(&queue)).key(HeaderKey::from_static("x-key"));
    let app = Router::new().route("/", any(|| async { "hello" })).layer(RateLimitLayer::new(policy));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = listener.local_addr().unwrap();
    let serving = tokio::spawn(async move { axum::serve(listener, app).await });

    let open_before = open_files();
    let haunted = tokio::task::spawn_blocking(move || {
        for number in 0..GHOSTS {
            haunt(server, number);
            if number % 50 == 49 {
                // Others are served meanwhile.
                assert_eq!(ask(server, number), "HTTP/1.1 200 OK");
            }
        }
    });
    haunted.await.unwrap();
    until(|| queue.waiting() == 0, "ghosts wait for ever").await;
    until(|| open_files() <= open_before, "connections of ghosts stay open").await;
    serving.abort();
}
