//! Protection from overload: [`Overload`] bounds a server's requests in flight by a limit that it finds itself.
//!
//! `gate` has the units in flight, in one `word`, and under a lock the requests that wait: in classes, and fairly by
//! key (`fair_queue`), where no key holds more than half the `reserve`. `controlled_delay` decides when waiters are
//! shed, and `worker_lag` when arrivals are. `search` finds the limit: within a factor of two by `doubling`, from the
//! request times in a `cohort`, and then exactly by `limit_search`; a `tally` tells whether clients give up. `stalled`
//! takes units back from bodies that nobody reads. `waiting` is a waiting request's future, and `limiter` puts them
//! together.

mod cohort;
mod controlled_delay;
mod doubling;
mod fair_queue;
mod gate;
mod limit_search;
mod limiter;
#[cfg(all(test, sluice_loom))]
mod models;
mod reserve;
mod search;
mod stalled;
mod tally;
#[cfg(all(test, not(sluice_loom)))]
mod tests;
mod waiting;
mod word;
mod worker_lag;

use std::time::Duration;

use self::cohort::Followed;
use self::gate::{Gate, Turn};
pub use self::limiter::Overload;
use self::word::GateWord;
use crate::values::{Decision, Issuer, LimiterError, Proof, Receipt};

/// The receipt of units in flight: zero, unless the request is [followed](Followed) to its end, its units are from the
/// [reserve], or it is a request in a [shadow](Self::SHADOW).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct InFlight(u128);

const RESERVED: u128 = 1 << 127;

impl InFlight {
    /// For a request in a shadow, which shows nothing: no request waits for its units, so a limit that went down would
    /// stay there. Encoded as a time without a cohort, which is not followed.
    const SHADOW: Self = Self(1);

    fn new(followed: Option<Followed>, is_reserved: bool) -> Self {
        let followed = followed.map(|Followed { cohort, since }| u128::from(cohort) << 64 | u128::from(since));
        Self(followed.unwrap_or(0) | if is_reserved { RESERVED } else { 0 })
    }

    /// Whether its end matters for more than the units.
    const fn is_marked(self) -> bool {
        self.0 > Self::SHADOW.0
    }

    const fn is_reserved(self) -> bool {
        self.0 & RESERVED != 0
    }

    fn followed(self) -> Option<Followed> {
        let halves = [(self.0 & !RESERVED) >> 64, self.0 & u128::from(u64::MAX)];
        let [cohort, since] = halves.map(|half| u64::try_from(half).unwrap_or(0));
        (cohort > 0).then_some(Followed { cohort, since })
    }
}

impl Proof for InFlight {
    const ISSUER: Issuer = Issuer::Overload;

    fn into_value(self) -> u128 {
        self.0
    }

    fn from_value(value: u128) -> Self {
        Self(value)
    }
}

/// The decision on a request that has its units.
#[inline(always)]
fn admitted(word: GateWord, held: InFlight) -> Decision {
    let left = word.limit().saturating_sub(word.units());
    Decision::allow(word.limit(), left).with_receipt(Receipt::from_proof(held))
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
        Turn::Granted(held) => Ok(admitted(gate.word(), held)),
        Turn::Shed(hint) => Ok(shed(gate.word(), hint)),
        Turn::Closed => Err(LimiterError::closed("the limiter was closed, and no request waits any more")),
    }
}
