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
use crate::claim::Claim;
use crate::decision::{Check, Decision, Receipt};
use crate::inheritance::{Heritage, Inheritance};
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
/// - A refusal changes nothing.
/// - A key's state survives for as long as it owes anything, unless the store is full and says so.
/// - What goes wrong is an error, never a refusal.
pub trait Store<A: Algorithm>: Send + Sync + 'static {
    /// Told once, before anything else, which algorithm will be run. By default nothing is prepared.
    fn prepare(&self, algorithm: &A) {
        let _ = algorithm;
    }

    /// Decides on `cost` units of `key`, and charges them if they are admitted.
    fn check(&self, algorithm: &A, key: &PartitionKey, cost: u32) -> Check;

    /// What [`check`](Self::check) would decide, without charging; `None` if that cannot be told
    /// without waiting.
    fn peek(&self, algorithm: &A, key: &PartitionKey, cost: u32) -> Option<Decision> {
        let _ = (algorithm, key, cost);
        None
    }

    /// Gives back what is still owed for a charge of `cost` that was answered with `receipt`.
    fn give_back(&self, algorithm: &A, key: &PartitionKey, cost: u32, receipt: Receipt) {
        let _ = (algorithm, key, cost, receipt);
    }

    /// Charges up to `cost` more, after the fact: see [`Limiter::surcharge`](crate::Limiter::surcharge). By default
    /// what [`check`](Self::check) does at once.
    fn surcharge(&self, algorithm: &A, key: &PartitionKey, cost: u32) {
        if let Some(rest) = self.check(algorithm, key, cost).left_of(cost) {
            let _ = self.check(algorithm, key, rest);
        }
    }

    /// Forgets what a key owes, and answers as to a request of cost 0 then. `None` if that cannot be done.
    fn reset(&self, algorithm: &A, key: &PartitionKey) -> Option<Check> {
        let _ = (algorithm, key);
        None
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

    /// Decides in place of a [`check`](Self::check) that failed, by what this process knows alone; `None` if it
    /// knows nothing.
    fn guard(&self, algorithm: &A, key: &PartitionKey, cost: u32) -> Option<Decision> {
        let _ = (algorithm, key, cost);
        None
    }

    /// A check that this store can make together with others; `None` if that saves nothing.
    fn enlist(&self, algorithm: &A, key: &PartitionKey, cost: u32) -> Option<Claim> {
        let _ = (algorithm, key, cost);
        None
    }

    /// How it is doing; by default, nothing is told. Asked now and then, by whoever fills gauges.
    fn stats(&self, algorithm: &A) -> Stats {
        let _ = algorithm;
        Stats::default()
    }
}
