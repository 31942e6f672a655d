//! Figures about stores and queues, for gauges.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::health::NodeHealth;
use crate::values::{Backlog, Priority};

/// How full a limiter is, and how healthy its servers are; for gauges.
///
/// Your own limiter begins with `Stats::default()`, which reports nothing, and sets the figures that it knows:
///
/// ```
/// use std::collections::HashMap;
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use tower_sluice::limiter::{Answer, Ask};
/// use tower_sluice::store::{Stats, TableStats};
/// use tower_sluice::{Decision, Limiter, PartitionKey};
///
/// const UNITS: u64 = 10;
///
/// /// Admits at most ten units of each known account.
/// struct Accounts {
///     left: HashMap<PartitionKey, AtomicU64>,
/// }
///
/// impl Limiter for Accounts {
///     fn decide(&self, ask: &Ask<'_>) -> Answer {
///         let Some(left) = self.left.get(ask.key()) else { return Decision::reject(UNITS, 0, None).into() };
///         match left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(ask.cost())) {
///             Ok(before) => Decision::allow(UNITS, before - ask.cost()).into(),
///             Err(left) => Decision::reject(UNITS, left, None).into(),
///         }
///     }
///
///     fn stats(&self) -> Stats {
///         let mut table = TableStats::default();
///         table.capacity = self.left.len() as u64;
///         table.live_keys = self.left.values().filter(|left| left.load(Ordering::Relaxed) < UNITS).count() as u64;
///         let mut stats = Stats::default();
///         stats.table = Some(table);
///         stats
///     }
/// }
///
/// let accounts = Accounts { left: HashMap::from([("alice".into(), UNITS.into()), ("bob".into(), UNITS.into())]) };
/// let _ = accounts.decide(&Ask::charge(&"alice".into(), 3));
/// assert_eq!(accounts.stats().table.map(|table| (table.live_keys, table.capacity)), Some((1, 2)));
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// The table in this process's memory that holds the budgets, if one does.
    pub table: Option<TableStats>,
    /// The table in this process's memory that holds a [penalty's](crate::Policy::penalty) bans, if there is one. A
    /// policy sets it, for the gauges in its metrics; a limiter does not know it.
    pub bans: Option<TableStats>,
    /// The table in this process's memory that holds the keys' [debts](crate::Policy::owe_shortfalls), if a key ever
    /// had one.
    pub debts: Option<TableStats>,
    /// The keys that an operator has banned or allowed by hand, if one ever has: only keys that this process keeps or
    /// has seen. A policy sets it, like `bans`.
    pub by_hand: Option<ByHand>,
    /// This process's requests that wait in the limiter, if requests ever wait there, and if this is known.
    pub backlog: Option<Backlog>,
    /// All keys' units in flight, in a limiter that [counts them](crate::Concurrency).
    pub in_flight: Option<u64>,
    /// The limit that an [`Overload`](crate::Overload) has found, and the requests that it has shed.
    pub overload: Option<OverloadStats>,
    /// How often processes that share the budgets on a server interfered with each other, if that is counted.
    pub sharing: Option<SharingStats>,
    /// The nodes of the server that holds the budgets, if they are known. Empty if this process holds them.
    pub nodes: Vec<NodeHealth>,
}

/// An [`Overload`](crate::Overload)'s state, and the requests that it has shed since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OverloadStats {
    /// How many units may be in flight now.
    pub limit: u64,
    /// Whether requests have waited for too long lately, so that it sheds those that do.
    pub is_overloaded: bool,
    /// How long tasks wait for a runtime worker, measured while requests come.
    pub worker_lag: Duration,
    /// The waiting requests in each class, the lowest [`Priority`] first.
    pub waiting: [u64; Priority::ALL.len()],
    /// The requests that were shed in each class although their key had at most its share of the queue.
    pub shed: [u64; Priority::ALL.len()],
    /// The requests that were shed in each class because their key had more than its share of the queue.
    pub shed_over_share: [u64; Priority::ALL.len()],
}

/// How many keys an operator has banned or allowed by hand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ByHand {
    /// [Banned](crate::LimitsHandle::ban) keys.
    pub banned: u64,
    /// [Allowed](crate::LimitsHandle::allow) keys.
    pub allowed: u64,
}

/// How full a [`MemoryStore`](super::MemoryStore) is, or how many keys a `LeakyQueue` keeps.
#[derive(Clone, Copy, Debug, Default, Eq)]
#[non_exhaustive]
pub struct TableStats {
    /// How many live keys it holds without losing one.
    pub capacity: u64,
    /// How many keys owe something now; for a [`Balance`](crate::Balance), how many have a balance. Counted if there is
    /// room for up to 2,048 keys; otherwise estimated from 4,096 slots, mostly to within 2 % of the capacity, so a few
    /// keys in a large table may show as zero. A queue's keys are always counted.
    pub live_keys: u64,
    /// How many keys were evicted while they still owed something, see [`WhenFull`](super::WhenFull). After a [live
    /// change](crate::LimitsHandle), this includes the keys in the earlier tables.
    pub evicted_live: u64,
    /// How many requests for new keys were rejected, or had to share a budget, because the table was full. After a live
    /// change, this includes the requests to the earlier tables.
    pub turned_away: u64,
    /// The parts in these two counts that the earlier tables have counted.
    pub(crate) inherited: (u64, u64),
    /// Distinguishes the table from others in this process, so that counts from several are added up. `None` for a
    /// custom limiter's table, and for a table that was not used yet.
    pub(crate) number: Option<u64>,
}

/// Compares the figures, which different tables may have in common.
impl PartialEq for TableStats {
    fn eq(&self, other: &Self) -> bool {
        let figures = |Self { capacity, live_keys, evicted_live, turned_away, inherited: _, number: _ }: &Self| {
            (*capacity, *live_keys, *evicted_live, *turned_away)
        };
        figures(self) == figures(other)
    }
}

/// How often this process and others that share a limiter's keys on a server interfered with each other. Counted since
/// the store was made.
#[derive(Clone, Copy, Debug, Default, Eq)]
#[non_exhaustive]
pub struct SharingStats {
    /// How many states were converted to another quota. It grows with each request while two program versions have
    /// different quotas for a key.
    pub conversions: u64,
    /// How many attempts to write a key were lost, since another process had changed the key after this one had read
    /// it.
    pub lost_swaps: u64,
    /// Distinguishes the store from others in this process, as for [`TableStats`].
    pub(crate) number: Option<u64>,
}

/// Compares the counts, which different stores may have in common.
impl PartialEq for SharingStats {
    fn eq(&self, other: &Self) -> bool {
        (self.conversions, self.lost_swaps) == (other.conversions, other.lost_swaps)
    }
}

/// Returns a number for a table, or another store, that no other table or store in this process has.
pub(crate) fn next_table_number() -> u64 {
    // Starts at one, because a bucket's rule that is not numbered yet has zero.
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use crate::algorithm::TokenBucket;
    use crate::store::MemoryStore;
    use crate::values::{Ask, Quota};

    #[test]
    fn tables_with_equal_figures_are_equal() {
        let algorithm = TokenBucket::new(Quota::per_hour(1));
        let charged = |keys: &[&str]| {
            let table = MemoryStore::with_capacity(16).table();
            for key in keys {
                let _: crate::values::Decision = table.charge(&algorithm, &Ask::charge(&(*key).into(), 1));
            }
            table.shared().stats(&algorithm)
        };
        let first = charged(&["a"]);
        let second = charged(&["a"]);
        assert_ne!(first.number, second.number);
        assert_eq!(first, second);
        assert_ne!(first, charged(&["a", "b"]));
    }
}
