//! Redis servers of our own: on free ports of the loopback, each in a folder of its own, stopped when dropped.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub struct RedisServer {
    process: Child,
    port: u16,
    folder: PathBuf,
}

impl RedisServer {
    /// A server without persistence.
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// A server with further settings, as on its command line: `["--maxmemory", "8mb"]`.
    pub fn with(settings: &[&str]) -> Self {
        let port = free_port();
        let folder = std::env::temp_dir().join(format!("sluice-redis-{}-{port}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder for a server");
        let process = spawn(port, &folder, settings);
        let server = Self { process, port, folder };
        server.await_ready();
        server
    }

    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    pub fn url(&self) -> String {
        format!("redis://{}/", self.address())
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Blocking, on a connection of its own, for looking behind the scenes.
    pub fn connection(&self) -> redis::Connection {
        redis::Client::open(self.url()).and_then(|client| client.get_connection()).expect("the server answers")
    }

    fn await_ready(&self) {
        let give_up = Instant::now() + Duration::from_secs(10);
        let client = redis::Client::open(self.url()).expect("a valid address");
        while client.get_connection().and_then(|mut it| redis::cmd("PING").query::<String>(&mut it)).is_err() {
            assert!(Instant::now() < give_up, "redis-server does not answer on port {}", self.port);
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        // One that was stopped (SIGSTOP) dies of this, too.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn spawn(port: u16, folder: &PathBuf, settings: &[&str]) -> Child {
    let log = fs::File::create(folder.join("log")).expect("a log");
    Command::new("redis-server")
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
        .args(["--enable-debug-command", "yes"])
        .args(settings)
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(log)
        .spawn()
        .expect("redis-server is missing: `scripts/test` installs it (Debian's package `redis-server`)")
}

/// A port that was free a moment ago.
pub fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|it| it.local_addr()).expect("a free port").port()
}
