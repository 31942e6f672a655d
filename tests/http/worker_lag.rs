//! A server whose handlers compute on its worker: requests wait in the run queue, before the layer sees them.

use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::get;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tower_sluice::{Overload, Policy, RateLimitLayer};

const CLIENTS: usize = 60;

/// Serves on its own thread, which is the only worker. A request occupies it for 5 ms.
fn serve(layer: RateLimitLayer) -> SocketAddr {
    let (bound, is_bound) = mpsc::channel();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let compute = || async {
                let begun = Instant::now();
                while begun.elapsed() < Duration::from_millis(5) {
                    std::hint::spin_loop();
                }
            };
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            bound.send(listener.local_addr().unwrap()).unwrap();
            axum::serve(listener, Router::new().route("/", get(compute)).layer(layer)).await
        })
    });
    is_bound.recv().unwrap()
}

/// Sends one request after the other until `is_enough` accepts the statuses.
async fn ask(server: SocketAddr, mut is_enough: impl FnMut(&[u16]) -> bool) -> Vec<u16> {
    let mut connection = TcpStream::connect(server).await.unwrap();
    let mut statuses = Vec::new();
    while !is_enough(&statuses) {
        connection.write_all(b"GET / HTTP/1.1\r\nhost: test\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        loop {
            assert_ne!(connection.read_buf(&mut answer).await.unwrap(), 0, "the server closes");
            let text = String::from_utf8_lossy(&answer);
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
            if body.len() == length.parse::<usize>().unwrap() {
                statuses.push(head[9..12].parse().unwrap());
                break;
            }
        }
    }
    statuses
}

/// The test asserts no time, because a slower machine has a greater lag.
#[tokio::test]
async fn a_handler_that_computes_is_protected() {
    let layer = RateLimitLayer::new(Policy::new("overload", Overload::new()));
    let handle = layer.handle();
    let overload = || handle.policies()[0].stats().overload.unwrap();
    let server = serve(layer);
    let alone = ask(server, |statuses| statuses.len() == 5).await;
    assert_eq!((alone, overload().shed), (vec![200; 5], [0; 4]));
    // Each client stops once it was shed, or after computing for some seconds.
    let clients = (0..CLIENTS).map(|_| {
        let is_enough = |statuses: &[u16]| statuses.last() == Some(&503) || statuses.len() == 50;
        tokio::spawn(ask(server, is_enough))
    });
    let mut all = Vec::new();
    for client in clients.collect::<Vec<_>>() {
        all.extend(client.await.unwrap());
    }
    let count = |status| all.iter().filter(|it| **it == status).count() as u64;
    let (served, shed) = (count(200), count(503));
    assert!(served > 0 && shed > 0, "{served} served, {shed} shed");
    assert_eq!(served + shed, all.len() as u64);
    assert_eq!((overload().shed, overload().shed_over_share), ([0, shed, 0, 0], [0; 4]));
    // No request waits any more.
    let alone = ask(server, |statuses| statuses.ends_with(&[200; 5]) || statuses.len() == 1_000).await;
    assert!(alone.ends_with(&[200; 5]), "{alone:?}");
}
