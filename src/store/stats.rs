use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(feature = "redis")]
use super::redis::NodeHealth;
use crate::values::Backlog;

/// How full a limiter is, and how the servers are that it asks; for gauges.
///
/// One of your own begins with `Stats::default()`, which tells nothing.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// The table in this process's memory that holds the budgets, if one does.
    pub table: Option<TableStats>,
    /// The table in this process's memory that holds the bans of a [penalty](crate::Policy::penalty), if there is one.
    pub bans: Option<TableStats>,
    /// Who waits in it for a turn, in this process; `None` if nobody ever does, or if it is not known.
    pub backlog: Option<Backlog>,
    /// The servers that were heard of so far, if the budgets are there.
    #[cfg(feature = "redis")]
    pub nodes: Vec<NodeHealth>,
}

/// How full a [`MemoryStore`](super::MemoryStore) is, or how many keys a `LeakyQueue` remembers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableStats {
    /// How many live keys it holds without losing one.
    pub capacity: u64,
    /// How many keys owe something now. Counted if there is room for up to 2,048 keys; else estimated from 4,096 of
    /// the slots, mostly to within 2 % of the capacity. In a queue always counted.
    pub live: u64,
    /// How many keys were forgotten while they still owed something, see [`WhenFull`](super::WhenFull).
    pub evicted_live: u64,
    /// How many requests of new keys were refused or had to share.
    pub turned_away: u64,
    /// Tells the table from others of this process, so that counts of several are added up. Zero if that is not known.
    pub(crate) number: u64,
}

/// A number for a table that no other of this process has. Not zero: that is for tables of others.
pub(crate) fn next_table_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
