//! Conformance suites for custom algorithms, limiters and backends (crate feature `test-util`).
//!
//! This crate's algorithms, limiters and backends pass the same suites. A suite panics at the step that breaks a
//! contract. All randomness comes from the given seed, so failures are reproducible.
//!
//! ```
//! use tower_sluice::algorithm::TokenBucket;
//! use tower_sluice::store::MemoryStore;
//! use tower_sluice::{Quota, RateLimiter, testing};
//!
//! let bucket = TokenBucket::new(Quota::per_minute(7).burst(3));
//! testing::check_algorithm(&bucket, 42);
//! testing::check_limiter(&bucket, 42, |clock| {
//!     RateLimiter::new(bucket, MemoryStore::with_capacity(1_000).with_clock(clock))
//! });
//! ```

mod accounts;
mod algorithm;
mod backend;
mod by_hand;
mod departures;
mod free_retries;
mod in_flight;
mod interval;
mod joint;
#[allow(dead_code, unreachable_pub, missing_debug_implementations, reason = "shared with other tests")]
mod ledger;
mod limiter;
mod random;
mod records;

pub use self::accounts::check_accounts;
pub use self::algorithm::check_algorithm;
pub use self::backend::check_backend;
pub use self::by_hand::check_charges_by_hand;
pub use self::departures::check_departures;
pub use self::free_retries::check_free_retries;
pub use self::in_flight::check_in_flight;
#[doc(hidden)]
pub use self::interval::IntervalChecker;
pub use self::joint::check_joint_backend;
#[doc(hidden)]
pub use self::limiter::admitted_by_threads;
pub use self::limiter::{check_limiter, check_modes};
#[doc(hidden)]
pub use self::random::{Random, seed, seed_of, seeds};
pub use self::records::check_records;

/// For this crate's tests: panics if the table of a limiter in memory is in disorder at `now`. The limiter must have
/// one of this crate's algorithms.
#[doc(hidden)]
pub fn check_invariants_of(limiter: &dyn crate::limiter::Limiter, now: crate::values::time::Timestamp) {
    let description = limiter.describe();
    description.keeps_states().expect("its states are in a table").check_invariants(now);
}

/// For this workspace's simulations: from now on, this thread's random numbers follow from this seed, and
/// [`Monotonic`](crate::time::Monotonic) is this clock on it. `None` ends the simulation.
#[doc(hidden)]
pub fn simulate(simulation: Option<(u64, fn() -> crate::time::Timestamp)>) {
    crate::util::random::seeded::set(simulation.map(|(seed, _)| seed));
    crate::values::time::SIMULATED.set(simulation.map(|(_, clock)| clock));
}

/// For this crate's tests: prepares a limiter to be asked under the keys' own quotas, as a policy with a `quota_fn`
/// does, and returns whether it takes them.
#[doc(hidden)]
#[must_use]
pub fn take_quotas(limiter: &dyn crate::limiter::Limiter) -> bool {
    let description = limiter.describe();
    description.prepare_for_quotas();
    description.takes_quotas()
}
