//! An axum app under load: how many requests per second it answers with a layer, and how long each keeps its processor
//! busy. The server is a process with one worker on one processor; this one makes the requests, on another.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::get;
use tokio::net::TcpListener;
use tower::layer::layer_fn;

use crate::Figures;
use crate::floor::{Minimal, Pass, asks};
use crate::layer::{ALL, ONE, Row, Time, limiter, ours, theirs};
use crate::machine;
use crate::ours::Adds;
use crate::scale::{Scale, median};

/// The app without a layer, to which the others are compared.
pub const BARE: &str = "no layer";
const PASS: &str = "a layer that does nothing";
const MINIMAL: &str = Row::Minimal.name();
pub const SILENT: &str = Row::Silent.name();
pub const FIELDS: &str = Row::Fields.name();
pub const REJECTED: &str = Row::Rejected.name();
const GOVERNOR: &str = Row::Governor.name();
const GOVERNOR_HEADERS: &str = Row::GovernorHeaders.name();
pub const ROWS: [&str; 8] = [BARE, PASS, MINIMAL, SILENT, FIELDS, REJECTED, GOVERNOR, GOVERNOR_HEADERS];

const CONNECTIONS: usize = 64;
/// How often all rows are measured in turn, within a repetition.
const TURNS: u32 = 3;

/// The process that answers, until its input ends.
pub fn serve(row: &str) {
    let app = Router::new().route("/", get(async || "hello"));
    let app = match row {
        BARE => app,
        PASS => app.layer(layer_fn(Pass)),
        MINIMAL => app.layer(layer_fn(|inner| Minimal { admits: asks(limiter(ALL, Time::Passes)), inner })),
        SILENT => app.layer(ours(1, ALL, Adds::Nothing, Time::Passes)),
        FIELDS => app.layer(ours(1, ALL, Adds::Fields, Time::Passes)),
        REJECTED => app.layer(ours(1, ONE, Adds::Fields, Time::Passes)),
        GOVERNOR => app.layer(theirs!(ALL)),
        GOVERNOR_HEADERS => app.layer(theirs!(ALL, use_headers)),
        _ => panic!("no row is called {row}"),
    };
    let pinned = machine::pin(0);
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port is free");
        println!("{} {pinned}", listener.local_addr().expect("it is bound"));
        let app = app.into_make_service_with_connect_info::<SocketAddr>();
        axum::serve(listener, app).await.expect("it goes on");
    });
}

/// A server in its own process, stopped when dropped.
struct Server {
    process: Child,
    address: SocketAddr,
    pinned: bool,
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
        let (address, pinned) = line.trim().split_once(' ').expect("an address, and whether it is tied down");
        Self { process, address: address.parse().expect("an address"), pinned: pinned == "true" }
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
    let span = Duration::from_millis(if scale.divisor == 1 { 300 } else { 50 });
    // Before this thread is tied down. Otherwise they would be tied to its processor.
    let servers = ROWS.map(|row| (row, Server::start(row)));
    let pinned = servers.iter().all(|(_, server)| server.pinned) && machine::pin(1);
    figures.set("pinned", f64::from(pinned));
    let mut turns = ROWS.map(|_| Vec::new());
    for turn in 0..=TURNS {
        for ((row, server), turns) in servers.iter().zip(&mut turns) {
            let taken = load(server, *row == REJECTED, span);
            // The first turn was for warming up.
            turns.extend((turn > 0).then_some(taken));
        }
    }
    for (row, turns) in ROWS.iter().zip(turns) {
        let of = |figure: fn(&Taken) -> f64| median(turns.iter().map(figure));
        figures.set(&format!("{row}: per second"), of(|taken| taken.requests / taken.seconds));
        figures.set(&format!("{row}: elapsed ns"), of(|taken| 1e9 * taken.seconds / taken.requests));
        figures.set(&format!("{row}: processor ns"), of(|taken| taken.processor / taken.requests));
        figures.set(&format!("{row}: busy"), of(|taken| taken.processor / 1e9 / taken.seconds));
        figures.set(&format!("{row}: client busy"), of(|taken| taken.client / 1e9 / taken.seconds));
    }
    figures
}

/// A server's work in one span.
struct Taken {
    requests: f64,
    seconds: f64,
    /// For how many nanoseconds the server's thread had a processor.
    processor: f64,
    /// For how many nanoseconds the thread that makes the requests had one.
    client: f64,
}

/// Keeps requests under way for this span, on at least half the connections.
fn load(server: &Server, rejects: bool, span: Duration) -> Taken {
    let mut connections: Vec<_> = (0..CONNECTIONS).map(|_| Connection::open(server.address)).collect();
    let processor = || machine::process_time(server.process.id()).unwrap_or(u64::MAX);
    let client = || machine::thread_time().unwrap_or(u64::MAX);
    let (mut halves, expected) = (connections.chunks_mut(CONNECTIONS / 2).collect::<Vec<_>>(), status(rejects));
    let (begun, before, client_before) = (Instant::now(), processor(), client());
    let mut requests = 0;
    halves.iter_mut().for_each(|half| half.iter_mut().for_each(Connection::ask));
    while begun.elapsed() < span {
        for half in &mut halves {
            // The connection that was asked last is waited for first, so that this thread is woken once and not for
            // each response.
            half.iter_mut().rev().for_each(|connection| connection.read(Some(expected)));
            half.iter_mut().for_each(Connection::ask);
            requests += half.len();
        }
    }
    let (seconds, after, client_after) = (begun.elapsed().as_secs_f64(), processor(), client());
    let [processor, client] = [after - before, client_after - client_before].map(|nanos| nanos as f64);
    Taken { requests: requests as f64, seconds, processor, client }
}

const fn status(rejects: bool) -> &'static [u8; 3] {
    if rejects { b"429" } else { b"200" }
}

/// A connection that is kept, with one request under way at a time.
struct Connection {
    stream: TcpStream,
    buffer: [u8; 2048],
}

impl Connection {
    fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the server accepts");
        stream.set_nodelay(true).expect("a socket");
        let mut connection = Self { stream, buffer: [0; 2048] };
        // The very first request uses up a burst of one.
        connection.ask();
        connection.read(None);
        connection
    }

    fn ask(&mut self) {
        self.stream.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").expect("the server reads");
    }

    /// Reads a whole response.
    fn read(&mut self, expected: Option<&[u8; 3]>) {
        let mut filled = 0;
        while length(&self.buffer[..filled]).is_none_or(|length| filled < length) {
            let read = self.stream.read(&mut self.buffer[filled..]).expect("the server writes");
            assert!(read > 0, "the server closed the connection");
            filled += read;
        }
        assert!(expected.is_none_or(|expected| self.buffer[9..12] == *expected), "another status than expected");
    }
}

/// A response's full length, once its head is there. Each has a `content-length`.
fn length(response: &[u8]) -> Option<usize> {
    const NAME: &[u8] = b"\r\ncontent-length: ";
    let find = |what: &[u8]| response.windows(what.len()).position(|window| window == what);
    let head = find(b"\r\n\r\n")? + 4;
    let value = find(NAME)? + NAME.len();
    let digits = response[value..].iter().take_while(|byte| byte.is_ascii_digit());
    Some(head + digits.fold(0, |length, digit| 10 * length + usize::from(digit - b'0')))
}
