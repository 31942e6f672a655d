//! An axum app under load: how many requests per second it answers with a layer, and how long each keeps its processor
//! busy. The server is a process with one worker on one processor; this one makes the requests, on another.

use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::get;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tower::layer::layer_fn;

use crate::Figures;
use crate::floor::{Minimal, Pass};
use crate::layer::{ALL, ONE, Time, limiter, ours, theirs};
use crate::machine;
use crate::measure::{Scale, median};
use crate::ours::Adds;

/// The app without a layer: what the others are compared to.
pub const BARE: &str = "no layer";
pub const PASS: &str = "a layer that does nothing";
pub const MINIMAL: &str = "a minimal layer around ours: one decision";
pub const SILENT: &str = "ours, admitted, no fields";
pub const FIELDS: &str = "ours, admitted, RateLimit-Policy and RateLimit";
pub const REJECTED: &str = "ours, rejected with body and all fields";
pub const ROWS: [&str; 8] = [
    BARE,
    PASS,
    MINIMAL,
    SILENT,
    FIELDS,
    REJECTED,
    "tower_governor, admitted",
    "tower_governor with headers, admitted",
];

const CONNECTIONS: usize = 64;
/// How often all rows are measured in turn, within a repetition.
const TURNS: u32 = 3;

/// The process that answers, until its input ends.
pub fn serve(row: &str) {
    let app = Router::new().route("/", get(async || "hello"));
    let app = match row {
        BARE => app,
        PASS => app.layer(layer_fn(Pass)),
        MINIMAL => app.layer(layer_fn(|inner| Minimal { limiter: limiter(ALL, Time::Passes), inner })),
        SILENT => app.layer(ours(1, ALL, Adds::Nothing, Time::Passes)),
        FIELDS => app.layer(ours(1, ALL, Adds::Fields, Time::Passes)),
        REJECTED => app.layer(ours(1, ONE, Adds::Fields, Time::Passes)),
        "tower_governor, admitted" => app.layer(theirs!(ALL)),
        _ => app.layer(theirs!(ALL, use_headers)),
    };
    machine::pin(0);
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    runtime().block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port is free");
        println!("{}", listener.local_addr().expect("it is bound"));
        let app = app.into_make_service_with_connect_info::<SocketAddr>();
        axum::serve(listener, app).await.expect("it goes on");
    });
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// A server in a process of its own, stopped when dropped.
struct Server {
    process: Child,
    address: SocketAddr,
}

impl Server {
    fn start(row: &str) -> Self {
        let program = std::env::current_exe().expect("a path");
        let mut command = Command::new(program);
        command.args(["--serve", row]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("the server starts");
        let mut line = String::new();
        let out = process.stdout.take().expect("it was piped");
        BufReader::new(out).read_line(&mut line).expect("the server says where it listens");
        Self { process, address: line.trim().parse().expect("an address") }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub fn measure(scale: Scale) -> Figures {
    let mut figures = Figures::default();
    figures.set("pinned", f64::from(machine::pin(1)));
    let span = Duration::from_millis(if scale.divisor == 1 { 500 } else { 50 });
    let runtime = runtime();
    let servers = ROWS.map(|row| (row, Server::start(row)));
    let mut turns = ROWS.map(|_| Vec::new());
    for turn in 0..=TURNS {
        for ((row, server), turns) in servers.iter().zip(&mut turns) {
            let taken = runtime.block_on(load(server, *row == REJECTED, span));
            // The first turn was for warming up.
            turns.extend((turn > 0).then_some(taken));
        }
    }
    for (row, turns) in ROWS.iter().zip(turns) {
        let of = |figure: fn(&Taken) -> f64| median(turns.iter().map(figure));
        figures.set(&format!("{row}: per second"), of(|taken| taken.requests / taken.seconds));
        figures.set(&format!("{row}: processor ns"), of(|taken| taken.processor / taken.requests));
        figures.set(&format!("{row}: busy"), of(|taken| taken.processor / 1e9 / taken.seconds));
    }
    figures
}

/// What a server did in one span.
struct Taken {
    requests: f64,
    seconds: f64,
    /// For how many nanoseconds the server's thread had a processor.
    processor: f64,
}

/// Keeps a request under way on each connection for so long.
async fn load(server: &Server, rejects: bool, span: Duration) -> Taken {
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut stream = TcpStream::connect(server.address).await.expect("the server accepts");
        stream.set_nodelay(true).expect("a socket");
        // The first request of all uses up a burst of one.
        exchange(&mut stream, &mut [0; 2048], None).await;
        connections.push(stream);
    }
    let processor = || machine::process_time(server.process.id()).unwrap_or(u64::MAX);
    let (begun, before) = (Instant::now(), processor());
    let expected = if rejects { b"429" } else { b"200" };
    let clients = connections.into_iter().map(|mut stream| {
        tokio::task::spawn(async move {
            let (mut requests, mut buffer) = (0_u64, [0; 2048]);
            while begun.elapsed() < span {
                exchange(&mut stream, &mut buffer, Some(expected)).await;
                requests += 1;
            }
            requests
        })
    });
    let mut requests = 0;
    for client in clients.collect::<Vec<_>>() {
        requests += client.await.expect("the server answers");
    }
    let (seconds, after) = (begun.elapsed().as_secs_f64(), processor());
    Taken { requests: requests as f64, seconds, processor: (after - before) as f64 }
}

/// One request, and its whole response.
async fn exchange(stream: &mut TcpStream, buffer: &mut [u8; 2048], expected: Option<&[u8; 3]>) {
    stream.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.expect("the server reads");
    let mut filled = 0;
    loop {
        let read = stream.read(&mut buffer[filled..]).await.expect("the server writes");
        assert!(read > 0, "the server closed the connection");
        filled += read;
        if length(&buffer[..filled]).is_some_and(|length| filled >= length) {
            break;
        }
    }
    assert!(expected.is_none_or(|expected| buffer[9..12] == *expected), "another status than expected");
}

/// How long a response is in all, once its head is there. Any has a `content-length`.
fn length(response: &[u8]) -> Option<usize> {
    const NAME: &[u8] = b"\r\ncontent-length: ";
    let find = |what: &[u8]| response.windows(what.len()).position(|window| window == what);
    let head = find(b"\r\n\r\n")? + 4;
    let value = find(NAME)? + NAME.len();
    let digits = response[value..].iter().take_while(|byte| byte.is_ascii_digit());
    Some(head + digits.fold(0, |length, digit| 10 * length + usize::from(digit - b'0')))
}
