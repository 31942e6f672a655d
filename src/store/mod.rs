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

use std::any::Any;

use crate::algorithm::Algorithm;
use crate::ask::Ask;
use crate::decision::{Check, Receipt};
use crate::description::Description;
use crate::partition::PartitionKey;

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

    /// Forgets what a key owes, and answers as to a request of cost 0 then. `None` if that cannot be done.
    fn reset(&self, algorithm: &A, key: &PartitionKey) -> Option<Check> {
        let _ = (algorithm, key);
        None
    }

    /// Takes over what `predecessor`, the store of another limiter, keeps of its keys, to judge them by `algorithm` from now
    /// on; says whether it does. By default it does not. See [`Limiter::take_over`](crate::Limiter::take_over).
    fn take_over(&self, algorithm: &A, predecessor: &dyn Any) -> bool {
        let _ = (algorithm, predecessor);
        false
    }

    /// How it is doing; by default, nothing is told. Asked now and then, by whoever fills gauges.
    fn stats(&self, algorithm: &A) -> Stats {
        let _ = algorithm;
        Stats::default()
    }
}
