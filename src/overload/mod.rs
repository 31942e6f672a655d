//! Protection from overload: [`Overload`] bounds the requests in flight of a server by a limit that it finds itself.
//!
//! `gate` has the units in flight, in one `word`, and under a lock the requests that wait: in classes, and fairly by
//! key (`fair_queue`). `controlled_delay` decides when waiters are shed, `worker_lag` when arrivals are, and
//! `limit_search` finds the limit. `waiting` is the future of a request that waits, and `limiter` puts them together.

mod controlled_delay;
mod fair_queue;
mod gate;
mod limit_search;
mod limiter;
#[cfg(all(test, sluice_loom))]
mod models;
#[cfg(all(test, not(sluice_loom)))]
mod tests;
mod waiting;
mod word;
mod worker_lag;

use std::time::Duration;

use self::gate::{Gate, Turn};
pub use self::limiter::Overload;
use self::word::GateWord;
use crate::values::{Decision, Issuer, LimiterError, Proof, Receipt};

/// The receipt of units in flight. They are all of one kind, so there is nothing to tell apart.
struct InFlight;

impl Proof for InFlight {
    const ISSUER: Issuer = Issuer::Overload;

    fn into_value(self) -> u128 {
        0
    }

    fn from_value(_: u128) -> Self {
        Self
    }
}

/// The decision on a request that has its units.
#[inline(always)]
fn admitted(word: GateWord) -> Decision {
    let left = word.limit().saturating_sub(word.units());
    Decision::allow(word.limit(), left).with_receipt(Receipt::from_proof(InFlight))
}

/// The decision on a request that was shed. `hint` is the estimate after which it may come back.
fn shed(word: GateWord, hint: Option<Duration>) -> Decision {
    match hint {
        Some(_) => Decision::reject(word.limit(), 0, hint),
        None => Decision::reject_until_released(word.limit(), 0),
    }
}

/// The answer to a request whose turn is decided.
fn decided(gate: &Gate, turn: Turn) -> Result<Decision, LimiterError> {
    match turn {
        Turn::Granted => Ok(admitted(gate.word())),
        Turn::Shed(hint) => Ok(shed(gate.word(), hint)),
        Turn::Closed => Err(LimiterError::closed("the limiter was closed, and no request waits any more")),
    }
}
