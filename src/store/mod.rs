//! Stores keep what each key owes, and read the time by which it is decided: in memory, or on Redis.

mod memory;
mod quota_change;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "remote")]
pub mod remote;
mod stats;

#[cfg(feature = "test-util")]
#[doc(hidden)]
pub use self::memory::check_invariants_of;
pub use self::memory::{MemoryStore, WhenFull};
pub(crate) use self::stats::next_table_number;
pub use self::stats::{SharingStats, Stats, TableStats};

use std::sync::Arc;

use crate::algorithm::Algorithm;
use crate::values::{Ask, Check, Description, Heritage, Inheritance, PartitionKey, Quota, Receipt};

/// Keeps the state of each key, and decides on it by an algorithm.
///
/// A store owns time as well as state, so that all threads and processes that share the state agree on the time.
///
/// # Contract
///
/// - A decision is one atomic step: with a frozen clock and any number of threads, exactly as much is admitted as the
///   algorithm admits.
/// - A rejection changes nothing.
/// - A key's state survives for as long as it owes anything, unless the store is full and reports so.
/// - A failure is an error, never a rejection.
///
/// For a store in memory, `testing::check_store` (feature `test-util`) tests the first three, as far as samples can:
/// one random trace of charges, peeks and refunds over 64 keys must be decided as the algorithm decides it over a plain
/// map; and eight threads at one key must together be admitted exactly what the algorithm admits at one instant. It does
/// not fill the store, and does not make it fail.
pub trait Store<A: Algorithm>: Send + Sync + 'static {
    /// Prepares the store for its algorithm: makes its tables, say, and checks that it can keep this quota. A
    /// [`RateLimiter`](crate::RateLimiter) calls it once, when it is created and before anything else. By default does
    /// nothing.
    ///
    /// # Panics
    ///
    /// An implementation may panic if it cannot keep the states of this algorithm.
    fn prepare(&self, algorithm: &A) {
        let _ = algorithm;
    }

    /// Decides, in the [mode](Ask::mode) of the question and by the time on this store's own clock: see [`Ask::now`].
    fn decide(&self, algorithm: &A, ask: &Ask<'_>) -> Check;

    /// Refunds `cost` units of the charge that `receipt` is for, as far as they are still owed. By default does nothing,
    /// so charges stay.
    fn refund(&self, algorithm: &A, key: &PartitionKey, receipt: Receipt, cost: u64) {
        let _ = (algorithm, key, receipt, cost);
    }

    /// Refunds a charge that was made [under a quota](Ask::under) of the key's own. By default as
    /// [`refund`](Self::refund).
    fn refund_under(&self, algorithm: &A, quota: Quota, key: &PartitionKey, receipt: Receipt, cost: u64) {
        let _ = quota;
        self.refund(algorithm, key, receipt, cost);
    }

    /// Prepares to be asked [under quotas](Ask::under) of the keys' own, which the store passes to
    /// [`Algorithm::under`], and returns whether it takes them. By default it does not.
    fn take_quotas(&self, algorithm: &A) -> bool {
        let _ = algorithm;
        false
    }

    /// Returns the modes in which it decides, by default [`Mode::Charge`](crate::Mode::Charge) alone. The limiter adds
    /// what its algorithm advertises.
    fn describe(&self, algorithm: &A) -> Description {
        let _ = algorithm;
        Description::new()
    }

    /// Inherits what another limiter's store [hands on](Self::heritage), for `algorithm`; `None` if it cannot, which is
    /// the default. See [`Limiter::inherit`](crate::Limiter::inherit).
    fn inherit(&self, algorithm: &Arc<A>, heritage: &Heritage) -> Option<Inheritance<Self>>
    where
        Self: Sized,
    {
        let _ = (algorithm, heritage);
        None
    }

    /// Returns what stores of its kind inherit from it; by default nothing.
    fn heritage(&self, algorithm: &A) -> Option<Heritage> {
        let _ = algorithm;
        None
    }

    /// Returns figures for gauges; by default none. Called when metrics are collected.
    fn stats(&self, algorithm: &A) -> Stats {
        let _ = algorithm;
        Stats::default()
    }
}
