//! Our own Redis server, and how it reports its work.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use ::redis::{Client, Connection, FromRedisValue, RedisResult, cmd};

/// On a free loopback port, without persistence; stopped when dropped.
pub struct Server {
    process: Child,
    address: SocketAddr,
    /// For questions between two measurements.
    control: Mutex<Connection>,
}

/// The server's total work since it was last reset.
#[derive(Clone, Copy)]
pub struct Usage {
    /// For how many microseconds its main thread has had a processor.
    pub processor: f64,
    /// How many of these microseconds went into client commands.
    pub commands: f64,
    /// How many commands that were.
    pub calls: f64,
}

impl Server {
    pub fn start() -> Result<Self, String> {
        let program = program().ok_or("redis-server is not installed")?;
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
        // Free a moment ago.
        let address = address.map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        command.args([
            "--port",
            &address.port().to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
        ]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut process = command.spawn().map_err(|error| format!("redis-server does not start: {error}"))?;
        for _ in 0..250 {
            if let Ok(Some(status)) = process.try_wait() {
                return Err(format!("redis-server does not start: {status}"));
            }
            if let Ok(control) = Client::open(url(address)).and_then(|client| client.get_connection()) {
                return Ok(Self { process, address, control: Mutex::new(control) });
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = process.kill();
        let _ = process.wait();
        Err("redis-server does not answer".to_owned())
    }

    pub fn id(&self) -> u32 {
        self.process.id()
    }

    pub fn url(&self) -> String {
        url(self.address)
    }

    pub fn version(&self) -> Result<String, String> {
        self.info("server", "redis_version").ok_or_else(|| "no version".to_owned())
    }

    /// Forgets all keys, but no script.
    pub fn empty(&self) -> Result<(), String> {
        self.run(&["FLUSHALL"]).map_err(|error| error.to_string())
    }

    pub fn usage(&self) -> Result<Usage, String> {
        let text: String = self.run(&["INFO", "everything"]).map_err(|error| error.to_string())?;
        let field = |name: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            value.and_then(|value| value.trim().parse::<f64>().ok()).unwrap_or(f64::NAN)
        };
        let seconds = field("used_cpu_sys_main_thread") + field("used_cpu_user_main_thread");
        let (mut calls, mut commands) = (0.0, 0.0);
        // A script's own calls are counted separately, too, and are in the script's time already.
        for line in ["evalsha", "eval", "ping", "incr"] {
            let line = text.lines().find_map(|it| it.strip_prefix(&format!("cmdstat_{line}:")));
            let of = |name: &str| {
                let value = line?.split(',').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
                value?.parse::<f64>().ok()
            };
            calls += of("calls").unwrap_or(0.0);
            commands += of("usec").unwrap_or(0.0);
        }
        Ok(Usage { processor: seconds * 1e6, commands, calls })
    }

    fn info(&self, section: &str, field: &str) -> Option<String> {
        let text: String = self.run(&["INFO", section]).ok()?;
        text.lines().find_map(|line| Some(line.strip_prefix(field)?.strip_prefix(':')?.trim().to_owned()))
    }

    fn run<T: FromRedisValue>(&self, line: &[&str]) -> RedisResult<T> {
        let mut command = cmd(line[0]);
        command.arg(&line[1..]);
        command.query(&mut *self.control.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Usage {
    pub fn since(self, before: Self) -> Self {
        Self {
            processor: self.processor - before.processor,
            commands: self.commands - before.commands,
            calls: self.calls - before.calls,
        }
    }
}

fn url(address: SocketAddr) -> String {
    format!("redis://{address}/")
}

/// The program's path: `$REDIS_SERVER`, or wherever it is installed.
fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let installed = std::env::split_paths(&path).map(|folder| folder.join("redis-server"));
    let all = std::env::var_os("REDIS_SERVER").map(PathBuf::from).into_iter().chain(installed);
    all.chain([PathBuf::from("/usr/bin/redis-server")]).find(|program| program.is_file())
}
