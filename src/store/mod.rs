//! Where state lives, and time with it.

mod memory;
#[cfg(feature = "redis")]
pub mod redis;
mod stats;

pub use self::memory::{MemoryStore, WhenFull};
#[cfg(feature = "redis")]
#[doc(no_inline)]
pub use self::redis::{Redis, RedisStore};
#[cfg(feature = "queue")]
pub(crate) use self::stats::next_table_number;
pub use self::stats::{Stats, TableStats};

use std::sync::Arc;

use crate::algorithm::Algorithm;
use crate::values::{Ask, Check, Description, Heritage, Inheritance, PartitionKey, Receipt};

/// Runs an algorithm over the states that it keeps.
///
/// A store owns time as well as state, so that all who share the state agree on the time.
///
/// # Contract
///
/// `testing::store` (feature `test-util`) checks these for any store in memory:
///
/// - A decision is one atomic step: with a frozen clock and any number of threads, exactly as much
///   is admitted as the algorithm admits.
/// - A rejection changes nothing.
/// - A key's state survives for as long as it owes anything, unless the store is full and says so.
/// - What goes wrong is an error, never a rejection.
pub trait Store<A: Algorithm>: Send + Sync + 'static {
    /// Told once, before anything else, which algorithm will be run. By default nothing is prepared.
    fn prepare(&self, algorithm: &A) {
        let _ = algorithm;
    }

    /// Decides as the [mode](Ask::mode) of the question says, by the time on this store's own clock: see [`Ask::now`].
    fn decide(&self, algorithm: &A, ask: &Ask<'_>) -> Check;

    /// Refunds what is still owed for a charge of `cost` that was answered with `receipt`.
    fn refund(&self, algorithm: &A, key: &PartitionKey, receipt: Receipt, cost: u32) {
        let _ = (algorithm, key, receipt, cost);
    }

    /// In which modes it can be asked. The limiter adds what its algorithm says.
    fn describe(&self, algorithm: &A) -> Description {
        let _ = algorithm;
        Description::new()
    }

    /// Goes on from what another limiter's store [hands on](Self::heritage), judging by `algorithm`; `None` if it does not, by
    /// default. See [`Limiter::inherit`](crate::Limiter::inherit).
    fn inherit(&self, algorithm: &Arc<A>, heritage: &Heritage) -> Option<Inheritance<Self>>
    where
        Self: Sized,
    {
        let _ = (algorithm, heritage);
        None
    }

    /// What stores of its kind inherit from it; by default nothing.
    fn heritage(&self, algorithm: &A) -> Option<Heritage> {
        let _ = algorithm;
        None
    }

    /// How it is doing; by default, nothing is told. Asked now and then, by whoever fills gauges.
    fn stats(&self, algorithm: &A) -> Stats {
        let _ = algorithm;
        Stats::default()
    }
}
