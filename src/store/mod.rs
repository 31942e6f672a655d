//! Stores keep the debt of each key, and read the time of each decision: in memory, on Redis, or on a server of your
//! own.

mod health;
mod memory;
pub(crate) mod quota_change;
pub mod remote;
mod stats;

pub use self::health::{BreakerState, NodeHealth};
pub(crate) use self::memory::SharedTable;
pub use self::memory::{MemoryStore, MemoryTable, WhenFull};
pub(crate) use self::stats::next_table_number;
pub use self::stats::{ByHand, OverloadStats, SharingStats, Stats, TableStats};

use crate::algorithm::Algorithm;

/// Settings from which [`RateLimiter::new`](crate::RateLimiter::new) makes the table of one limiter: a [`MemoryStore`],
/// a `RedisStore`, a `RemoteStore`, or a wrapper around one of these.
///
/// The tables are this crate's own. To limit by state that is kept elsewhere, implement [`Limiter`](crate::Limiter)
/// itself, or `store::remote::Backend` for a server.
pub trait OpenStore<A: Algorithm> {
    /// Keeps the state of each key, and decides on it by the algorithm.
    type Table: Send + Sync + 'static;

    /// Makes the table of a limiter with this algorithm.
    ///
    /// # Panics
    ///
    /// If it cannot keep the states of this algorithm.
    fn open(self, algorithm: &A) -> Self::Table;
}
