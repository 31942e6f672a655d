//! `/in-flight`: slow downloads under a limit in flight, and under tower's own.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::client::get;
use crate::server::Server;

/// Begins a download, and returns its connection once the response head begins to come.
fn begin(server: SocketAddr, path: &str) -> TcpStream {
    let mut socket = TcpStream::connect(server).unwrap();
    write!(socket, "GET {path} HTTP/1.1\r\nhost: test\r\n\r\n").unwrap();
    let mut status = [0; 12];
    socket.read_exact(&mut status).unwrap();
    assert_eq!(&status, b"HTTP/1.1 200");
    socket
}

/// The open downloads on the limited route, and under tower's limit.
fn open(server: SocketAddr) -> (u64, u64) {
    let counts = get(server, "/in-flight/open").json();
    let now = |route: &str| counts[route]["now"].as_u64().unwrap();
    (now("limited"), now("tower"))
}

/// Under tower's limit, any number of downloads runs at once.
#[test]
fn ten_downloads_are_in_flight_at_once() {
    let server = Server::start();
    let limited: Vec<_> = (0..10).map(|_| begin(server.address, "/in-flight")).collect();
    let tower: Vec<_> = (0..20).map(|_| begin(server.address, "/in-flight/tower")).collect();
    assert_eq!(open(server.address), (10, 20));
    let rejected = get(server.address, "/in-flight");
    assert_eq!((rejected.status, rejected.headers.get("retry-after")), (429, None));
    assert_eq!(rejected.headers["ratelimit"], "\"in-flight\";r=0");
    assert_eq!(rejected.headers["ratelimit-policy"], "\"in-flight\";q=10;qu=\"concurrent-requests\"");
    let gauge = |count: u32| {
        format!("tower_sluice_rate_limiting_in_flight{{route=\"/in-flight\",policy=\"in-flight\"}} {count}\n")
    };
    assert!(get(server.address, "/metrics").body.contains(&gauge(10)));

    // The clients disconnect.
    drop((limited, tower));
    let begun = Instant::now();
    while open(server.address) != (0, 0) {
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?} are open", open(server.address));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(get(server.address, "/metrics").body.contains(&gauge(0)));
    let served = get(server.address, "/in-flight");
    assert_eq!(
        (served.status, served.json()["route"].as_str(), served.json()["served"].as_u64()),
        (200, Some("/in-flight"), Some(11))
    );
}
