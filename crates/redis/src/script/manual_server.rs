//! A Redis server whose scripts run by a clock that the test sets.

use ::redis::{Pipeline, RedisError, Value, cmd};

use super::ScriptReply;
use super::variant::{hash_of, source_of};
use crate::connection::evalsha;
use crate::script::{Key, KeyNames, Script, ScriptCall};

pub(crate) use crate::support::manual_redis::START;
use tower_sluice::PartitionKey;
use tower_sluice::time::Timestamp;

use crate::support::manual_redis::{Loaded, ManualRedis, time};

/// Returns a budget's name on the server.
pub(crate) fn key(name: impl ToString) -> Key {
    let names = KeyNames::new("test", "limiter", b"");
    names.key(names.tag(&PartitionKey::from(name.to_string())), 'b')
}

/// Runs scripts at times that the test chooses.
pub(crate) struct ManualServer {
    redis: ManualRedis,
    hashes: Vec<(&'static str, String)>,
    pipeline: Pipeline,
    /// The number of keys in each of the pipeline's calls.
    keys: Vec<usize>,
}

impl ManualServer {
    /// Starts a server that has cached these scripts with the other clock. Checks that each unchanged script compiles,
    /// and that calls use its hash.
    pub(crate) fn new(scripts: &[&'static Script]) -> Self {
        let mut redis = ManualRedis::start();
        let hashes = scripts.iter().map(|script| {
            let source = source_of(script);
            let Loaded { unchanged, manual } = redis.load(&source);
            assert_eq!(unchanged, hash_of(script), "{source}");
            (script.source, manual)
        });
        let hashes = hashes.collect();
        Self { redis, hashes, pipeline: Pipeline::new(), keys: Vec::new() }
    }

    /// Adds a call that runs at `micros` to the pipeline.
    pub(crate) fn add(&mut self, micros: u64, call: &ScriptCall) {
        self.pipeline.add_command(time(micros)).ignore();
        let (_, hash) = self.hashes.iter().find(|(source, _)| *source == call.script.source).unwrap();
        self.pipeline.add_command(evalsha(call, hash));
        self.keys.push(call.keys.len());
    }

    /// Adds a call to a script that does not read the time. Its reply is not read.
    pub(crate) fn add_silent(&mut self, call: &ScriptCall) {
        self.pipeline.add_command(evalsha(call, &hash_of(call.script))).ignore();
    }

    /// Adds a command that [sets](Self::set) a key.
    pub(crate) fn add_set(&mut self, key: &Key, value: &str) {
        self.pipeline.cmd("SET").arg(key.as_str()).arg(value).ignore();
    }

    /// Adds a command that [reads](Self::get) a key.
    pub(crate) fn add_get(&mut self, key: &Key) {
        self.pipeline.cmd("GET").arg(key.as_str());
    }

    /// Sets a key without an expiry.
    pub(crate) fn set(&mut self, key: &Key, value: &str) {
        cmd("SET").arg(key.as_str()).arg(value).exec(&mut self.redis.connection).unwrap();
    }

    /// Returns a key's value.
    pub(crate) fn get(&mut self, key: &Key) -> Option<String> {
        cmd("GET").arg(key.as_str()).query(&mut self.redis.connection).unwrap()
    }

    /// Sets a field in a key that is a hash.
    pub(crate) fn set_field(&mut self, key: &Key, field: &str, value: &str) {
        cmd("HSET").arg(key.as_str()).arg(field).arg(value).exec(&mut self.redis.connection).unwrap();
    }

    pub(crate) fn delete(&mut self, key: &Key) {
        cmd("DEL").arg(key.as_str()).exec(&mut self.redis.connection).unwrap();
    }

    /// Runs the pipeline, which must fail, and returns the error.
    pub(crate) fn error(&mut self) -> RedisError {
        let error = self.pipeline.query::<Value>(&mut self.redis.connection).unwrap_err();
        self.pipeline.clear();
        self.keys.clear();
        error
    }

    /// Returns when a key expires, in milliseconds, or -2 if the server has no such key.
    pub(crate) fn expiry(&mut self, key: &Key) -> i64 {
        cmd("PEXPIRETIME").arg(key.as_str()).query(&mut self.redis.connection).unwrap()
    }

    /// Adds a command that reads the fields in a key that is a hash.
    pub(crate) fn add_fields(&mut self, key: &Key) {
        self.pipeline.cmd("HGETALL").arg(key.as_str());
    }

    /// Adds a command that asks when a key [expires](Self::expiry).
    pub(crate) fn add_expiry(&mut self, key: &Key) {
        self.pipeline.cmd("PEXPIRETIME").arg(key.as_str());
    }

    /// Runs the pipeline, in which an [`add_expiry`](Self::add_expiry) follows each call.
    pub(crate) fn answers_and_expiries(&mut self) -> Vec<(ScriptReply, i64)> {
        let mut replies = self.replies().into_iter();
        let pairs = std::iter::from_fn(|| {
            let answer = ScriptReply::read(replies.next()?, 1).unwrap();
            match replies.next() {
                Some(Value::Int(expiry)) => Some((answer, expiry)),
                other => panic!("{other:?} is no expiry"),
            }
        });
        pairs.collect()
    }

    /// Runs the pipeline.
    pub(crate) fn answers(&mut self) -> Vec<ScriptReply> {
        let keys = self.keys.clone();
        self.replies().into_iter().zip(keys).map(|(reply, keys)| ScriptReply::read(reply, keys).unwrap()).collect()
    }

    /// Runs the pipeline, and returns the replies unread.
    pub(crate) fn replies(&mut self) -> Vec<Value> {
        let replies = self.pipeline.query(&mut self.redis.connection).unwrap();
        self.pipeline.clear();
        self.keys.clear();
        replies
    }

    pub(crate) fn run(&mut self, micros: u64, call: &ScriptCall) -> ScriptReply {
        self.add(micros, call);
        self.answers().remove(0)
    }
}

pub(crate) const fn at(micros: u64) -> Timestamp {
    Timestamp::from_nanos(micros * 1_000)
}
