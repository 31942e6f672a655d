//! Dead clients that the server does not notice. While a request waits, hyper does not read an HTTP/1 connection's
//! socket if its buffer has a byte beyond the request, or an unread body. So such requests keep waiting, and only the
//! longest wait bounds them.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::any;
use tokio::net::TcpListener;
use tower_sluice::key::HeaderKey;
use tower_sluice::{LeakyQueue, Policy, Quota, RateLimitLayer};

const DEAD_CLIENTS: usize = 1_000;

/// Sends a request and disconnects.
fn send_and_disconnect(server: SocketAddr, number: usize) {
    let mut socket = TcpStream::connect(server).unwrap();
    let request = if number % 2 == 0 {
        "GET / HTTP/1.1\r\nhost: test\r\nx-key: hot\r\n\r\nG"
    } else {
        "POST / HTTP/1.1\r\nhost: test\r\nx-key: hot\r\ncontent-length: 100\r\n\r\npart"
    };
    socket.write_all(request.as_bytes()).unwrap();
}

/// Sends a request. Returns the status line from its response.
fn ask(server: SocketAddr, key: usize) -> String {
    let mut socket = TcpStream::connect(server).unwrap();
    write!(socket, "GET / HTTP/1.1\r\nhost: test\r\nx-key: {key}\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer.lines().next().unwrap().to_owned()
}

/// How many files and sockets this process has open; zero if the system does not report it.
fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

/// Waits until the condition holds. The bound is for the test, not for the queue, whose times are tested with paused
/// time.
async fn until(holds: impl Fn() -> bool, otherwise: &str) {
    let held = async {
        while !holds() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), held).await.expect(otherwise);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_clients_leave_at_max_wait() {
    let queue = Arc::new(LeakyQueue::new(Quota::per_second(1_000)).max_wait(Duration::from_secs(1)));
    let policy = Policy::new("queue", Arc::clone(&queue)).key(HeaderKey::from_static("x-key"));
    let app = Router::new().route("/", any(|| async { "hello" })).layer(RateLimitLayer::new(policy));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = listener.local_addr().unwrap();
    let serving = tokio::spawn(async move { axum::serve(listener, app).await });

    let open_before = open_files();
    let sent = tokio::task::spawn_blocking(move || {
        for number in 0..DEAD_CLIENTS {
            send_and_disconnect(server, number);
            if number % 50 == 49 {
                // Live clients are served meanwhile.
                assert_eq!(ask(server, number), "HTTP/1.1 200 OK");
            }
        }
    });
    sent.await.unwrap();
    until(|| queue.waiting() == 0, "dead clients wait for ever").await;
    until(|| open_files() <= open_before, "connections of dead clients stay open").await;
    serving.abort();
}
