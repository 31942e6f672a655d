//! Helpers for several of these files: a clock, and questions to a limiter in memory.

use tower_sluice::limiter::{Answer, Ask, Receipt};
use tower_sluice::testing::check_invariants_of;
use tower_sluice::time::{Clock, ManualClock, Timestamp};
use tower_sluice::{Decision, Limiter, PartitionKey};

/// A clock that stands still until it is set. It starts at an odd instant, so that rounding shows.
pub(crate) fn clock() -> ManualClock {
    ManualClock::starting_at(Timestamp::from_nanos(1_700_000_000_123_456_789))
}

/// A charge that may still be refunded.
#[derive(Clone, Copy)]
pub(crate) struct Charge {
    pub(crate) layer: usize,
    pub(crate) number: usize,
    pub(crate) key: u64,
    pub(crate) cost: u64,
    pub(crate) receipt: Receipt,
}

/// Returns the decision of a limiter in memory, which decides at once.
pub(crate) fn decided(check: Answer) -> Decision {
    match check {
        Answer::Ready(Ok(decision)) => decision,
        other => panic!("memory decides at once, but answered {other:?}"),
    }
}

/// Checks a memory limiter's table that is in force, or was.
pub(crate) fn check_invariants(limiter: &dyn Limiter, clock: &ManualClock) {
    check_invariants_of(limiter, clock.now());
}

/// Charges a key, if it is admitted.
pub(crate) fn charge(limiter: &impl Limiter, key: u64, cost: u64) -> Decision {
    decided(limiter.decide(&Ask::charge(&PartitionKey::from(key), cost)))
}

/// Charges one unit; returns whether it was admitted.
pub(crate) fn admits(limiter: &impl Limiter, key: u64) -> bool {
    charge(limiter, key, 1).is_allowed()
}
