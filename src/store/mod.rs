//! Stores keep each key's debt, and read the time for each decision: in memory, on Redis, or on your own server.

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

/// Settings from which [`RateLimiter::new`](crate::RateLimiter::new) makes one limiter's table: a [`MemoryStore`], a
/// `RedisStore`, a `RemoteStore`, or a wrapper around one of these.
///
/// The tables are this crate's own. To limit by state that is kept elsewhere, implement [`Limiter`](crate::Limiter)
/// itself, or `store::remote::Backend` for a server.
pub trait OpenStore<A: Algorithm> {
    /// Keeps each key's state, and decides on it by the algorithm.
    type Table: Send + Sync + 'static;

    /// Makes the table for a limiter with this algorithm.
    ///
    /// # Panics
    ///
    /// If it cannot keep this algorithm's states.
    fn open(self, algorithm: &A) -> Self::Table;
}
