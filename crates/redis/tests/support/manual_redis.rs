//! A Redis server whose scripts run by a clock that the test sets.
//!
//! A server's clock cannot be set. So the scripts' sources differ in one place: instead of calling `TIME`, they read
//! two keys.

use ::redis::{Cmd, Connection, cmd};

use super::servers::RedisServer;

/// The first time on the clock, in microseconds. It is late enough (2041) that no key expires by the server's own
/// clock.
pub(crate) const START: u64 = 1 << 51;

pub(crate) struct ManualRedis {
    pub(crate) connection: Connection,
    _server: RedisServer,
}

/// A script's hashes, which the server has cached.
pub(crate) struct Loaded {
    /// As it is.
    pub(crate) unchanged: String,
    /// With the other clock.
    pub(crate) manual: String,
}

impl ManualRedis {
    pub(crate) fn start() -> Self {
        let server = RedisServer::start();
        Self { connection: server.connection(), _server: server }
    }

    /// Lets the server compile and cache a script, as it is and with the other clock.
    pub(crate) fn load(&mut self, source: &str) -> Loaded {
        let parts: Vec<_> = source.split("call('TIME')").collect();
        assert!(parts.len() <= 2, "this asks for the time more than once: {source}");
        let manual = parts.join("call('MGET', 'seconds', 'micros')");
        let mut load =
            |source: &str| -> String { cmd("SCRIPT").arg("LOAD").arg(source).query(&mut self.connection).unwrap() };
        Loaded { unchanged: load(source), manual: load(&manual) }
    }
}

/// Makes the command that sets the time for the scripts which run from now on.
pub(crate) fn time(micros: u64) -> Cmd {
    let mut command = cmd("MSET");
    command.arg("seconds").arg(micros / 1_000_000).arg("micros").arg(micros % 1_000_000);
    command
}
