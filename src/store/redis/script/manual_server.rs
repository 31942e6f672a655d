//! A Redis server whose scripts run by a clock that the test sets.

use std::time::{SystemTime, UNIX_EPOCH};

use ::redis::{Connection, Pipeline, Value, cmd};

use super::ScriptReply;
use crate::store::redis::connection::evalsha;
use crate::store::redis::key::{Key, Names};
use crate::store::redis::script_call::{Call, Script};
use crate::store::redis::servers::RedisServer;
use crate::values::PartitionKey;
use crate::values::time::Timestamp;

pub(crate) fn key(name: impl ToString) -> Key {
    let names = Names::new("test", "limiter", b"");
    names.key(names.tag(&PartitionKey::from(name.to_string())), 'b')
}

/// Runs scripts at times that the test chooses.
///
/// A server's clock cannot be set. So the scripts have the very same sources but for one place: where they call `TIME`,
/// they read two keys.
pub(crate) struct ManualServer {
    connection: Connection,
    hashes: Vec<(&'static str, String)>,
    pipeline: Pipeline,
    _server: RedisServer,
}

impl ManualServer {
    /// Checks also that each unchanged script compiles, and that its hash is the one that calls use.
    pub(crate) fn new(scripts: &[&'static Script]) -> Self {
        let server = RedisServer::start();
        let mut connection = server.connection();
        let mut load =
            |source: &str| -> String { cmd("SCRIPT").arg("LOAD").arg(source).query(&mut connection).unwrap() };
        let hashes = scripts.iter().map(|script| {
            assert_eq!(load(script.source), script.hash(), "{}", script.source);
            let parts: Vec<_> = script.source.split("call('TIME')").collect();
            assert_eq!(parts.len(), 2, "this asks for the time more than once: {}", script.source);
            (script.source, load(&parts.join("call('MGET', 'seconds', 'micros')")))
        });
        let hashes = hashes.collect();
        Self { connection, hashes, pipeline: Pipeline::new(), _server: server }
    }

    /// Adds a call that runs at `micros` to the pipeline.
    pub(crate) fn add(&mut self, micros: u64, call: &Call) {
        let (seconds, micros) = (micros / 1_000_000, micros % 1_000_000);
        self.pipeline.cmd("MSET").arg("seconds").arg(seconds).arg("micros").arg(micros).ignore();
        let (_, hash) = self.hashes.iter().find(|(source, _)| *source == call.script.source).unwrap();
        self.pipeline.add_command(evalsha(call, hash));
    }

    /// Runs the pipeline.
    pub(crate) fn answers(&mut self) -> Vec<ScriptReply> {
        let replies: Vec<Value> = self.pipeline.query(&mut self.connection).unwrap();
        self.pipeline.clear();
        replies.into_iter().map(|reply| ScriptReply::read(reply).unwrap()).collect()
    }

    pub(crate) fn run(&mut self, micros: u64, call: &Call) -> ScriptReply {
        self.add(micros, call);
        self.answers().remove(0)
    }
}

/// Where the clock of a [`ManualServer`] begins: late enough for nothing to expire on the server's own clock (2041).
pub(crate) const START: u64 = 1 << 51;

pub(crate) const fn at(micros: u64) -> Timestamp {
    Timestamp::from_nanos(micros * 1_000)
}

/// A random number generator: xorshift (Marsaglia).
pub(crate) struct Random(u64);

impl Random {
    /// Seeds it with the time, or with `SLUICE_SEED`, and prints the seed.
    pub(crate) fn seeded() -> Self {
        let seed = std::env::var("SLUICE_SEED").ok().and_then(|seed| seed.parse().ok());
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos();
        let seed = seed.unwrap_or_else(|| u64::from(now()) + 1);
        println!("SLUICE_SEED={seed}");
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    pub(crate) fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[usize::try_from(self.below(items.len() as u64)).unwrap()]
    }
}
