//! The scripts against the algorithms in Rust, on a server.

mod hostile;
mod lives;
mod traces;

use ::redis::{Connection, Pipeline, Value, cmd};

use super::manual_server::{ManualServer, Random, START, at, key};
use super::sealed::Steps;
use super::{BUCKET, FIXED_WINDOW, REFUND, RESET, SEVERAL, SLIDING_WINDOW, ScriptReply};
use crate::algorithm::{Algorithm, FixedWindow, GcraState, LeakyBucket, SlidingWindow, TokenBucket};
use crate::store::redis::connection::evalsha;
use crate::store::redis::key::Key;
use crate::store::redis::script_call::{Call, Script};
use crate::store::redis::servers::RedisServer;
use crate::values::time::Timestamp;

const ALL: [&Script; 6] = [&BUCKET, &FIXED_WINDOW, &SLIDING_WINDOW, &SEVERAL, &REFUND, &RESET];

fn load(connection: &mut Connection) {
    for script in ALL {
        let hash: String = cmd("SCRIPT").arg("LOAD").arg(script.source).query(connection).unwrap();
        assert_eq!(hash, script.hash(), "{}", script.source);
    }
}

fn run(connection: &mut Connection, call: &Call) -> ScriptReply {
    ScriptReply::read(evalsha(call, call.script.hash()).query(connection).unwrap()).unwrap()
}

/// What a model over a plain map must do as the scripts do, and the algorithms in memory do not.
trait Model: Steps {
    /// Corrects a state from the future.
    fn clamped(&self, state: Self::State, now: Timestamp) -> Self::State;

    fn is_same(a: &Self::State, b: &Self::State) -> bool;

    fn is_nothing(state: &Self::State, now: Timestamp, limit: u32) -> bool;

    /// Whether the window has ended: then nothing is owed for a charge, and a clock that is set back does not revive
    /// it.
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
