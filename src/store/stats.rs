//! Figures of stores and queues, for gauges.

use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(feature = "redis")]
use super::redis::NodeHealth;
use crate::values::Backlog;

/// How full a limiter is, and how healthy the servers are that it calls; for gauges.
///
/// A limiter of your own begins with `Stats::default()`, which reports nothing.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// The table in this process's memory that holds the budgets, if one does.
    pub table: Option<TableStats>,
    /// The table in this process's memory that holds the bans of a [penalty](crate::Policy::penalty), if there is one.
    pub bans: Option<TableStats>,
    /// The requests of this process that wait in the limiter; `None` if requests never do, or if it is not known.
    pub backlog: Option<Backlog>,
    /// The servers that hold the budgets, as far as they are known.
    #[cfg(feature = "redis")]
    pub nodes: Vec<NodeHealth>,
}

/// How full a [`MemoryStore`](super::MemoryStore) is, or how many keys a `LeakyQueue` keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableStats {
    /// How many live keys it holds without losing one.
    pub capacity: u64,
    /// How many keys owe something now. Counted if there is room for up to 2,048 keys; else estimated from 4,096 of
    /// the slots, mostly to within 2 % of the capacity. In a queue always counted.
    pub live: u64,
    /// How many keys were evicted while they still owed something, see [`WhenFull`](super::WhenFull).
    pub evicted_live: u64,
    /// How many requests of new keys were rejected, or had to share a budget, because the table was full.
    pub turned_away: u64,
    /// Distinguishes the table from others of this process, so that counts of several are added up. Zero if that is not
    /// known.
    pub(crate) number: u64,
}

/// Returns a number for a table that no other one of this process has. Not zero: that is for tables of other
/// implementations.
pub(crate) fn next_table_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
