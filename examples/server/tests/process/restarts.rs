//! Checks that limits outlive the example server's restarts.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::client::get;
use crate::server::Server;
use crate::timing::await_until;

/// The server drains for up to ten seconds, and the machine may be busy.
const DEADLINE: Duration = Duration::from_secs(20);

/// For all clients together, so that a single extra unit would be seen.
const LIMIT: u64 = 1_200;

/// No budget comes back during a test.
const PATHS: [(&str, &str, &str); 3] = [
    ("/bucket", "token-bucket", "999days"),
    ("/fixed", "fixed-window", "30000days"),
    ("/sliding", "sliding-window", "30000days"),
];

fn snapshot_file(name: &str) -> PathBuf {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}.snapshot", std::process::id()));
    let _ = std::fs::remove_file(&file);
    file
}

fn config(file: &Path, every: &str) -> String {
    let routes = PATHS.map(|(path, algorithm, per)| {
        format!(
            "[[route]]\npath = \"{path}\"\n[[route.policy]]\nname = \"all\"\nalgorithm = \"{algorithm}\"\nlimit = {LIMIT}\n\
             per = \"{per}\"\n"
        )
    });
    format!("snapshot = {{ path = {:?}, every = \"{every}\" }}\n{}", file.display().to_string(), routes.concat())
}

/// Returns a request's status; `None` if there is no server at the moment.
fn status(server: SocketAddr, path: &str) -> Option<u16> {
    let mut socket = TcpStream::connect(server).ok()?;
    write!(socket, "GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer).ok()?;
    answer.split(' ').nth(1)?.parse().ok()
}

/// Clients for all paths, which continue after errors.
struct Load {
    server: Mutex<SocketAddr>,
    admitted: [AtomicU64; PATHS.len()],
    rejected: [AtomicU64; PATHS.len()],
    is_over: AtomicBool,
}

impl Load {
    fn run(&self, path: usize) {
        while !self.is_over.load(Ordering::Relaxed) {
            let server = *self.server.lock().unwrap();
            match status(server, PATHS[path].0) {
                Some(200) => self.admitted[path].fetch_add(1, Ordering::Relaxed),
                Some(503) => self.rejected[path].fetch_add(1, Ordering::Relaxed),
                _ => 0,
            };
        }
    }

    fn least(counts: &[AtomicU64]) -> u64 {
        counts.iter().map(|count| count.load(Ordering::Relaxed)).min().unwrap()
    }
}

#[test]
fn two_restarts_admit_no_request_more() {
    let text = config(&snapshot_file("load"), "100ms");
    let mut server = Server::start_with(&text);
    let load = Load {
        server: Mutex::new(server.address),
        admitted: Default::default(),
        rejected: Default::default(),
        is_over: AtomicBool::new(false),
    };
    thread::scope(|scope| {
        for client in 0..2 * PATHS.len() {
            let load = &load;
            scope.spawn(move || load.run(client % PATHS.len()));
        }
        for admitted in [LIMIT / 4, LIMIT / 2] {
            await_until("some are admitted", || Load::least(&load.admitted) >= admitted);
            server.signal("-TERM");
            assert_eq!(server.exits_within(DEADLINE), Some(0));
            server = Server::start_with(&text);
            *load.server.lock().unwrap() = server.address;
        }
        await_until("all are rejected", || Load::least(&load.rejected) >= 100);
        load.is_over.store(true, Ordering::Relaxed);
    });
    let admitted = load.admitted.map(AtomicU64::into_inner);
    println!("admitted: {admitted:?} of {LIMIT}");
    assert!(admitted.iter().all(|count| *count <= LIMIT), "{admitted:?}");
    // A response may be lost with its connection while the server stops.
    assert!(admitted.iter().all(|count| *count > LIMIT - 20), "{admitted:?}");
}

/// Killed at any instant, even while it writes: the file is whole.
#[test]
fn a_killed_server_leaves_whole_snapshots() {
    let file = snapshot_file("killed");
    let text = config(&file, "100ms");
    let mut admitted = 0;
    for round in 0..8 {
        let mut server = Server::start_with(&text);
        let left = get(server.address, "/bucket").headers["ratelimit"].clone();
        admitted += 1;
        let used = LIMIT - left.split("r=").nth(1).unwrap().split(';').next().unwrap().parse::<u64>().unwrap();
        assert!(used <= admitted && (round == 0 || used > 1), "{used} used of {admitted} admitted");
        let before = std::fs::read(&file).ok();
        let is_written = || std::fs::read(&file).ok() != before;
        await_until("it is written", || {
            admitted += u64::from(status(server.address, "/bucket") == Some(200));
            is_written()
        });
        server.signal("-KILL");
        assert_eq!(server.exits_within(DEADLINE), None);
        assert!(!file.with_extension("snapshot.refused").exists());
    }
}

/// The folder is missing: the server serves, reports it at each attempt, and says so in the end.
#[test]
fn an_unwritable_snapshot_fails_at_exit() {
    let mut server = Server::start_with(&config(Path::new("/nonexistent/f"), "1day"));
    assert_eq!(get(server.address, "/bucket").status, 200);
    server.signal("-TERM");
    assert_eq!(server.exits_within(DEADLINE), Some(1));
}
