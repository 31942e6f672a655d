//! Checks the example server's shutdown, its timeouts for slow clients, and its configuration reload.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use crate::client::{Answer, get};
use crate::server::{Server, output};
use crate::timing::await_until;

/// The server's timeout for a request head.
const HEAD: Duration = Duration::from_secs(10);

/// The server drains for up to ten seconds, and the machine may be busy.
const DEADLINE: Duration = Duration::from_secs(20);

/// A queue in which no turn comes during a test.
fn queue(path: &str, rest: &str) -> String {
    format!(
        "[[route]]\npath = \"{path}\"\n[[route.policy]]\nname = \"q\"\nalgorithm = \"leaky-queue\"\nlimit = 1\nper = \"1day\"\n\
         max-wait = \"99days\"\nmax-queue = 99\n{rest}\n"
    )
}

/// Sends one request that passes, and then `count` that wait.
fn wait_in_queue(server: &Server, path: &'static str, count: usize) -> Vec<JoinHandle<Answer>> {
    let address = server.address;
    assert_eq!(get(address, path).status, 200);
    let clients = (0..count).map(|_| spawn(move || get(address, path))).collect();
    let waiting = || {
        let routes = get(address, "/live").json()["routes"].clone();
        let mut routes = routes.as_array().unwrap().iter();
        routes.find(|route| route["paths"][0] == path).unwrap()["waiting"].as_u64().unwrap()
    };
    await_until("all wait", || waiting() == count as u64);
    clients
}

fn send(server: SocketAddr, text: &str) -> TcpStream {
    let mut socket = TcpStream::connect(server).unwrap();
    socket.write_all(text.as_bytes()).unwrap();
    socket
}

/// The waiters are rejected at once, and the server exits with zero.
#[test]
fn sigterm_rejects_all_waiters() {
    // This includes a policy that fails open: closing a queue is not a failure, and must not release its waiters.
    let mut server = Server::start_with(&(queue("/q", "") + &queue("/open", "on-failure = \"allow\"")));
    let mut clients = wait_in_queue(&server, "/q", 11);
    clients.extend(wait_in_queue(&server, "/open", 11));
    server.signal("-TERM");
    for client in clients {
        let answer = client.join().unwrap();
        assert_eq!((answer.status, &*answer.headers["retry-after"]), (503, "1"));
    }
    assert_eq!(server.exits_within(DEADLINE), Some(0));
}

/// The server is suspended while clients connect and send, so that all are in the kernel's queue when SIGTERM comes.
#[test]
fn sigterm_answers_the_kernels_queue() {
    let mut server = Server::start_with(&queue("/q", ""));
    assert_eq!(get(server.address, "/q").status, 200);
    server.signal("-STOP");
    let clients = ["/q", "/healthz"].map(|path| {
        let requests = (0..50).map(|_| send(server.address, &format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n")));
        requests.collect::<Vec<_>>()
    });
    server.signal("-TERM");
    server.signal("-CONT");
    for (clients, status) in clients.into_iter().zip(["503 Service Unavailable", "200 OK"]) {
        for mut client in clients {
            let mut answer = String::new();
            client.read_to_string(&mut answer).unwrap();
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{answer:?}");
            assert!(status.starts_with("200") || answer.contains("\r\nretry-after: 1\r\n"), "{answer:?}");
        }
    }
    assert_eq!(server.exits_within(DEADLINE), Some(0));
}

#[test]
fn no_connection_prevents_the_shutdown() {
    let mut server = Server::start();
    let address = server.address;
    let mut kept_alive = send(address, "GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n");
    let mut answer = [0; 12];
    kept_alive.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    kept_alive.write_all(b"GET /healthz HTTP/1.1\r\nhost:").unwrap();
    let echo = "POST /sluice.example.v1.Echo/Echo HTTP/1.1\r\nhost: x\r\ncontent-type: application/grpc-web\r\n";
    let held = [
        send(address, ""),
        send(address, "GET /healthz HTTP/1.1\r\nhost:"),
        send(address, "PRI * HTTP/2.0\r\n"),
        send(address, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"),
        send(address, &format!("{echo}content-length: 100\r\n\r\nhalf")),
        kept_alive,
    ];
    assert_eq!(get(address, "/healthz").status, 200);
    let begun = Instant::now();
    server.signal("-TERM");
    assert_eq!(server.exits_within(DEADLINE), Some(0), "{:?}", begun.elapsed());
    println!("exited {:?} after SIGTERM", begun.elapsed());
    drop(held);
}

#[test]
fn a_begun_request_outlives_sigterm() {
    let mut server = Server::start();
    let head = "POST /sluice.example.v1.Echo/Echo HTTP/1.1\r\nhost: x\r\ncontent-type: application/grpc-web\r\n";
    let mut socket = send(server.address, &format!("{head}content-length: 12\r\n\r\n\0\0\0\0\x07"));
    assert_eq!(get(server.address, "/healthz").status, 200);
    server.signal("-TERM");
    await_until("connections are no longer accepted", || TcpStream::connect(server.address).is_err());
    socket.write_all(b"\x0a\x05hello").unwrap();
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).unwrap();
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.contains("hello"), "{answer}");
    assert_eq!(server.exits_within(DEADLINE), Some(0));
}

#[test]
fn unfinished_request_heads_are_dropped() {
    let server = Server::start();
    let begun = Instant::now();
    let slow = [
        "",
        "GET /healthz HTTP/1.1\r\nhost:",
        "PRI * HTTP/2.0\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
    ];
    let slow = slow.map(|text| {
        let mut socket = send(server.address, text);
        spawn(move || {
            socket.set_read_timeout(Some(Duration::from_millis(250))).unwrap();
            // A head that was begun continues, byte by byte.
            while begun.elapsed() < Duration::from_secs(30) {
                let is_dropped = match socket.read(&mut [0; 1024]) {
                    Ok(read) => read == 0,
                    Err(error) => {
                        !matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
                    }
                };
                if is_dropped || (text.starts_with("GET") && socket.write_all(b"x").is_err()) {
                    return Some(begun.elapsed());
                }
            }
            None
        })
    });
    for (number, client) in slow.into_iter().enumerate() {
        let dropped = client.join().unwrap();
        println!("{number}: dropped after {dropped:?}");
        assert!(dropped.is_some_and(|after| after >= HEAD), "{number}: {dropped:?}");
    }
    assert_eq!(get(server.address, "/healthz").status, 200);
}

/// While the server does not run for a moment, here until all clients have connected, it rejects no connection.
#[test]
fn a_thousand_connections_may_wait() {
    let server = Server::start();
    server.signal("-STOP");
    let connect = |_| TcpStream::connect_timeout(&server.address, Duration::from_millis(900));
    let accepted: Vec<_> = (0..1_000).map_while(|number| connect(number).ok()).collect();
    server.signal("-CONT");
    let most = std::fs::read_to_string("/proc/sys/net/core/somaxconn").map_or(128, |text| text.trim().parse().unwrap());
    assert!(accepted.len() >= 1_000.min(most), "{} of 1,000 could connect", accepted.len());
    assert_eq!(get(server.address, "/healthz").status, 200);
}

/// The reload rejects it, and still works afterwards, as SIGTERM does.
#[test]
fn a_configuration_pipe_blocks_nothing() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let [file, log, pipe] =
        ["toml", "log", "pipe"].map(|ending| folder.join(format!("pipe-{}.{ending}", std::process::id())));
    let _ = std::fs::remove_file(&pipe);
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let rejected = output(&["--config", pipe.to_str().unwrap()]);
    assert_eq!(rejected.status.code(), Some(2));
    let message = String::from_utf8_lossy(&rejected.stderr).into_owned();
    assert!(message.contains(".pipe: it is no regular file; write the configuration into one"), "{message}");

    let config = |capacity: u32| queue("/q", "").replace("max-queue = 99", &format!("max-queue = {capacity}"));
    std::fs::write(&file, config(3)).unwrap();
    let mut server = Server::start_with_file(&file, &log);
    let logged = |what: &str| std::fs::read_to_string(&log).unwrap().contains(what);
    let begun = Instant::now();
    std::fs::rename(&pipe, &file).unwrap();
    await_until("the pipe is rejected", || logged("it is no regular file"));
    // The file is back.
    let other = folder.join(format!("pipe-{}.new", std::process::id()));
    std::fs::write(&other, config(4)).unwrap();
    std::fs::rename(&other, &file).unwrap();
    await_until("the change is logged", || logged("the limits were changed"));
    std::fs::remove_file(&file).unwrap();
    assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
    // The server reads the file every half second.
    sleep(Duration::from_millis(700));
    server.signal("-TERM");
    assert_eq!(server.exits_within(DEADLINE), Some(0), "{:?}", begun.elapsed());
    std::fs::remove_file(&file).unwrap();
}

/// They are logged by name, as warnings.
#[test]
fn a_reloads_removals_are_logged() {
    let policy = |name: &str, rest: &str| {
        format!("[[route.policy]]\nname = \"{name}\"\nalgorithm = \"token-bucket\"\nlimit = 3\nper = \"1s\"\n{rest}")
    };
    let whole = format!(
        "[[route]]\npath = \"/a\"\n{}{}",
        policy("everybody", "burst = 9\nkey = \"client-ip\"\n"),
        policy("per-client", "key = \"client-ip\"\n")
    );
    let (mut server, file, log) = Server::start_edited(&whole);
    let warned = |what: [&str; 2]| {
        let log = std::fs::read_to_string(&log).unwrap();
        log.lines().any(|line| line.contains("WARN") && what.iter().all(|what| line.contains(what)))
    };
    // Truncated between two policies.
    std::fs::write(&file, whole.split_at(whole.rfind("[[route.policy]]").unwrap()).0).unwrap();
    await_until("the policy is named", || warned(["a policy was removed", "\"per-client\""]));
    // Truncated within the other one.
    std::fs::write(&file, whole.split_at(whole.find("key = ").unwrap()).0).unwrap();
    await_until("the field is named", || warned(["\"everybody\"", "\"key\""]));
    server.signal("-TERM");
    assert_eq!(server.exits_within(DEADLINE), Some(0));
}

#[test]
fn no_message_shows_redis_passwords() {
    for url in ["redis://u:hunter2@", "http://u:hunter2@host", "redis://u:hunter2@host:99999", "u:hunter2@host"] {
        let rejected = output(&["--redis", url]);
        let message = String::from_utf8_lossy(&rejected.stderr).into_owned();
        assert_eq!(rejected.status.code(), Some(2), "{message}");
        assert!(message.contains("--redis: ") && !message.contains("hunter2"), "{message}");
    }
}
