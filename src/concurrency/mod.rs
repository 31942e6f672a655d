//! Limits on requests in flight: [`Concurrency`] counts a key's requests that are not over yet.
//!
//! `counts` has the units that each key has in flight, in words (`word`) in a set-associative table (`slots`), without
//! a lock for a key that is found. `wait_lists` has the requests that wait for their key's units, each as a future from
//! `waiting`. Requests hold units by their receipt: in a layer by a `limiter::Hold`, and without one by a
//! `limiter::Permit`. `shared` counts units in flight over many processes.

mod counts;
mod limiter;
mod log;
#[cfg(all(test, sluice_loom))]
mod models;
mod shared;
mod slots;
#[cfg(all(test, not(sluice_loom)))]
mod tests;
mod wait_lists;
mod waiting;
mod word;

pub use self::limiter::Concurrency;
pub use self::shared::SharedConcurrency;

use crate::values::LimiterError;
use crate::values::{Decision, Issuer, Proof, Receipt};

/// The receipt of units in flight: their slot.
struct InFlight {
    slot: usize,
}

impl Proof for InFlight {
    const ISSUER: Issuer = Issuer::Concurrency;

    fn into_value(self) -> u128 {
        self.slot as u128
    }

    fn from_value(value: u128) -> Self {
        Self { slot: usize::try_from(value).unwrap_or(usize::MAX) }
    }
}

/// The decision on a request with which its key has `units` in flight.
fn admitted(slot: usize, units: u64, limit: u64) -> Decision {
    Decision::allow(limit, limit.saturating_sub(units)).with_receipt(Receipt::from_proof(InFlight { slot }))
}

/// The decision on a request whose cost exceeds its key's `remaining` units.
fn rejected(limit: u64, remaining: u64) -> Decision {
    Decision::reject_until_released(limit, remaining)
}

fn closed() -> LimiterError {
    LimiterError::closed("the limiter was closed, and no request waits any more")
}
