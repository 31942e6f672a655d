//! Our own `redis-server`, without persistence, which is stopped when it is dropped.

use std::error::Error;
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use redis::{Connection, FromRedisValue, cmd};

pub(crate) struct RedisServer {
    process: Child,
    port: u16,
}

/// The server's work up to some time.
#[derive(Clone, Copy)]
pub(crate) struct Usage {
    /// The main thread's time, in microseconds.
    pub(crate) processor: u64,
    /// Script calls.
    pub(crate) calls: u64,
    /// Sent and received, in bytes.
    pub(crate) network: u64,
}

impl RedisServer {
    pub(crate) fn start() -> Result<Self, Box<dyn Error>> {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let process = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| {
                format!("redis-server cannot be started ({error}): install Debian's package of that name")
            })?;
        let server = Self { process, port };
        let give_up = Instant::now() + Duration::from_secs(10);
        while let Err(error) = server.connection() {
            if Instant::now() > give_up {
                return Err(format!("redis-server does not answer on port {port}: {error}").into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    pub(crate) fn run<T: FromRedisValue>(&self, command: &[&str]) -> Result<T, Box<dyn Error>> {
        Ok(cmd(command[0]).arg(&command[1..]).query(&mut self.connection()?)?)
    }

    pub(crate) fn used_memory(&self) -> Result<u64, Box<dyn Error>> {
        Ok(number(&self.run::<String>(&["INFO", "memory"])?, "used_memory:"))
    }

    pub(crate) fn usage(&self) -> Result<Usage, Box<dyn Error>> {
        let text: String = self.run(&["INFO", "everything"])?;
        let number = |field| number(&text, field);
        let seconds = |field: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default();
            value.trim().parse::<f64>().unwrap_or_default() * 1e6
        };
        let processor = seconds("used_cpu_user_main_thread:") + seconds("used_cpu_sys_main_thread:");
        Ok(Usage {
            processor: processor as u64,
            calls: number("cmdstat_evalsha:calls="),
            network: number("total_net_input_bytes:") + number("total_net_output_bytes:"),
        })
    }

    fn connection(&self) -> Result<Connection, redis::RedisError> {
        redis::Client::open(self.url())?.get_connection()
    }
}

/// The number in an `INFO` field, such as `used_memory:`; zero if there is none.
fn number(text: &str, field: &str) -> u64 {
    let value = text.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default();
    value.split([',', '\r']).next().and_then(|number| number.parse().ok()).unwrap_or_default()
}

impl Usage {
    pub(crate) const fn since(self, before: Self) -> Self {
        Self {
            processor: self.processor - before.processor,
            calls: self.calls - before.calls,
            network: self.network - before.network,
        }
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
