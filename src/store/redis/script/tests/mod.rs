//! Rust and Lua against the pure algorithms, on a server.

mod hostile;
mod lives;
mod queue;
mod traces;

use std::time::{SystemTime, UNIX_EPOCH};

use ::redis::{Cmd, Connection, Pipeline, Value, cmd};

use super::sealed::Steps;
use super::{Answer, BUCKET, FIXED_WINDOW, GIVE_BACK, QUEUE, QUEUE_GIVE_BACK, RESET, SEVERAL, SLIDING_WINDOW};
use crate::algorithm::{Algorithm, FixedWindow, GcraState, LeakyBucket, SlidingWindow, TokenBucket};
use crate::store::redis::call::{Call, Script};
use crate::store::redis::key::{Key, Names};
use crate::store::redis::servers::RedisServer;
use crate::values::PartitionKey;
use crate::values::time::Timestamp;

const ALL: [&Script; 8] =
    [&BUCKET, &FIXED_WINDOW, &SLIDING_WINDOW, &SEVERAL, &GIVE_BACK, &RESET, &QUEUE, &QUEUE_GIVE_BACK];

fn key(name: impl ToString) -> Key {
    let names = Names::new("test", "limiter", b"");
    names.key(names.tag(&PartitionKey::from(name.to_string())), 'b')
}

fn command(call: &Call, hash: &str) -> Cmd {
    let mut evalsha = cmd("EVALSHA");
    evalsha.arg(hash).arg(call.keys.len());
    for key in &call.keys {
        evalsha.arg(key.as_str());
    }
    evalsha.arg(call.args.as_slice());
    evalsha
}

fn load(connection: &mut Connection) {
    for script in ALL {
        let hash: String = cmd("SCRIPT").arg("LOAD").arg(script.source).query(connection).unwrap();
        assert_eq!(hash, script.hash(), "{}", script.source);
    }
}

fn run(connection: &mut Connection, call: &Call) -> Answer {
    Answer::read(command(call, call.script.hash()).query(connection).unwrap()).unwrap()
}

/// A server whose scripts are told the time.
///
/// A server's clock cannot be set. So these are the very same sources, but for one place, where they ask for the
/// time: there, they read two keys.
struct Told {
    connection: Connection,
    hashes: Vec<(&'static str, String)>,
    pipeline: Pipeline,
    _server: RedisServer,
}

impl Told {
    fn new() -> Self {
        let server = RedisServer::start();
        let mut connection = server.connection();
        let hashes = ALL.map(|script| {
            let parts: Vec<_> = script.source.split("call('TIME')").collect();
            assert_eq!(parts.len(), 2, "this asks for the time more than once: {}", script.source);
            let source = parts.join("call('MGET', 'seconds', 'micros')");
            (script.source, cmd("SCRIPT").arg("LOAD").arg(source).query(&mut connection).unwrap())
        });
        Self { connection, hashes: hashes.into(), pipeline: Pipeline::new(), _server: server }
    }

    /// To be run at `micros`, with others.
    fn add(&mut self, micros: u64, call: &Call) {
        let (seconds, micros) = (micros / 1_000_000, micros % 1_000_000);
        self.pipeline.cmd("MSET").arg("seconds").arg(seconds).arg("micros").arg(micros).ignore();
        let (_, hash) = self.hashes.iter().find(|(source, _)| *source == call.script.source).unwrap();
        self.pipeline.add_command(command(call, hash));
    }

    fn answers(&mut self) -> Vec<Answer> {
        let replies: Vec<Value> = self.pipeline.query(&mut self.connection).unwrap();
        self.pipeline.clear();
        replies.into_iter().map(|reply| Answer::read(reply).unwrap()).collect()
    }

    fn run(&mut self, micros: u64, call: &Call) -> Answer {
        self.add(micros, call);
        self.answers().remove(0)
    }
}

/// Where a clock that is told begins: late enough for nothing to expire on the server's own (2041).
const START: u64 = 1 << 51;

const fn at(micros: u64) -> Timestamp {
    Timestamp::from_nanos(micros * 1_000)
}

/// What a model over a plain map must do as the scripts do, and the algorithms in memory do not.
trait Model: Steps {
    /// A state from the future counts for less.
    fn clamped(&self, state: Self::State, now: Timestamp) -> Self::State;

    fn is_same(a: &Self::State, b: &Self::State) -> bool;

    fn is_nothing(state: &Self::State, now: Timestamp, limit: u32) -> bool;

    /// After its window nothing is owed for a charge, and a clock set back does not revive it.
    fn is_over(&self, state: &Self::State, now: Timestamp) -> bool;
}

macro_rules! bucket_model {
    ($name:ident) => {
        impl Model for $name {
            fn clamped(&self, state: GcraState, now: Timestamp) -> GcraState {
                let quota = self.quota();
                let full = u128::from(quota.max_burst()) * u128::from(quota.period_nanos());
                GcraState { tat: state.tat.min(u128::from(now.as_nanos()) * u128::from(quota.limit()) + full) }
            }

            fn is_same(a: &GcraState, b: &GcraState) -> bool {
                a == b
            }

            fn is_nothing(state: &GcraState, now: Timestamp, limit: u32) -> bool {
                state.tat <= u128::from(now.as_nanos()) * u128::from(limit)
            }

            fn is_over(&self, _: &GcraState, _: Timestamp) -> bool {
                false
            }
        }
    };
}

bucket_model!(TokenBucket);
bucket_model!(LeakyBucket);

macro_rules! window_model {
    ($name:ident, |$state:ident| $is_nothing:expr) => {
        impl Model for $name {
            fn clamped(&self, state: Self::State, now: Timestamp) -> Self::State {
                let next = now.as_nanos() / self.quota().period_nanos() + 1;
                Self::State { window: state.window.min(next), ..state }
            }

            fn is_same(a: &Self::State, b: &Self::State) -> bool {
                a == b
            }

            fn is_nothing($state: &Self::State, _: Timestamp, _: u32) -> bool {
                $is_nothing
            }

            fn is_over(&self, state: &Self::State, now: Timestamp) -> bool {
                self.expires_at(state) <= now
            }
        }
    };
}

window_model!(FixedWindow, |state| state.used == 0);
window_model!(SlidingWindow, |state| state.previous == 0 && state.current == 0);

/// Xorshift (Marsaglia).
struct Random(u64);

impl Random {
    /// Seeded with the time, or with `SLUICE_SEED`, and printed.
    fn seeded() -> Self {
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

    fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[usize::try_from(self.below(items.len() as u64)).unwrap()]
    }
}
