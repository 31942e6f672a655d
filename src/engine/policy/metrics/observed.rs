//! A policy's series that are updated by observations, and not per request: its tables, its units in flight, the
//! requests that it has shed, and the servers that it calls.
//!
//! We increment counters by differences and never set them, because a counter that is set would fall, or stand still,
//! when a table is replaced.

use std::collections::BTreeMap;

use metrics::{Counter, Gauge, Label, Unit, counter, describe_counter, describe_gauge, gauge};

use super::labels::Labels;
use crate::store::{BreakerState, NodeHealth, OverloadStats, SharingStats, Stats, TableStats};
use crate::values::Priority;

/// The names of a table's series: its capacity, its live keys, and the keys that it evicted, each with a description.
type SeriesNames = [(&'static str, &'static str); 3];

const BUDGETS: SeriesNames = [
    ("tower_sluice.rate_limiting.table.capacity", "Keys that a table holds without losing one."),
    ("tower_sluice.rate_limiting.table.live_keys", "Keys in a table with an unpaid debt, estimated."),
    ("tower_sluice.rate_limiting.table.evicted_live", "Keys that a full table evicted before their debt was paid."),
];
const BANS: SeriesNames = [
    ("tower_sluice.rate_limiting.ban_table.capacity", "Banned keys that a table holds without losing one."),
    ("tower_sluice.rate_limiting.ban_table.live_keys", "Keys that are banned now, estimated."),
    ("tower_sluice.rate_limiting.ban_table.evicted_live", "Bans that a full table evicted before they ended."),
];
const DEBTS: SeriesNames = [
    ("tower_sluice.rate_limiting.debt_table.capacity", "Keys with a debt that a table holds without losing one."),
    ("tower_sluice.rate_limiting.debt_table.live_keys", "Keys that owe something, estimated."),
    ("tower_sluice.rate_limiting.debt_table.evicted_live", "Debts that a full table forgave before they were paid."),
];
const TABLES: [SeriesNames; 3] = [BUDGETS, BANS, DEBTS];
/// Only budgets turn requests away.
const TURNED_AWAY: &str = "tower_sluice.rate_limiting.table.turned_away";

/// In the order of [`TABLES`].
const fn tables_of(stats: &Stats) -> [Option<TableStats>; 3] {
    [stats.table, stats.bans, stats.debts]
}

const BANNED: &str = "tower_sluice.rate_limiting.banned_by_hand";
const ALLOWED: &str = "tower_sluice.rate_limiting.allowed_by_hand";
const IN_FLIGHT: &str = "tower_sluice.rate_limiting.in_flight";
const OVERLOAD_LIMIT: &str = "tower_sluice.rate_limiting.overload.limit";
const OVERLOADED: &str = "tower_sluice.rate_limiting.overload.overloaded";
const WORKER_LAG: &str = "tower_sluice.rate_limiting.overload.worker_lag";
const WAITING: &str = "tower_sluice.rate_limiting.overload.waiting";
const SHED: &str = "tower_sluice.rate_limiting.overload.shed";
const CONVERSIONS: &str = "tower_sluice.rate_limiting.store.conversions";
const LOST_SWAPS: &str = "tower_sluice.rate_limiting.store.lost_swaps";
const BREAKER: &str = "tower_sluice.rate_limiting.store.breaker";

/// The series of one policy that observations update. Each is made once the limiter has its subject, which is a table,
/// a count of units in flight, or a server.
#[derive(Debug, Default)]
pub(super) struct Observed {
    /// Whether an observation was made. Without one, no series are made when a limiter is replaced.
    pub(super) is_begun: bool,
    /// Whether the policy is gone, so that its gauges stay zero.
    pub(super) is_retired: bool,
    /// In the order of [`TABLES`].
    tables: [Option<TableSeries>; 3],
    sharing: Option<Sums>,
    in_flight: Option<Gauge>,
    overload: Option<OverloadSeries>,
    /// The keys that are banned and allowed by hand.
    by_hand: Option<[Gauge; 2]>,
    /// The nodes' circuit breaker states, by node name.
    nodes: BTreeMap<String, Gauge>,
}

impl Observed {
    /// Sets the gauges to the stats from the limiter in force.
    pub(super) fn set_gauges(&mut self, labels: &Labels, stats: &Stats) {
        self.make_tables(labels, stats);
        for (table, stats) in self.tables.iter().zip(tables_of(stats)) {
            if let Some(table) = table {
                // Zero if the limiter does not have a table any more.
                table.set_gauges(&stats.unwrap_or_default());
            }
        }
        if stats.by_hand.is_some() {
            self.by_hand.get_or_insert_with(|| [gauge!(BANNED, labels.all()), gauge!(ALLOWED, labels.all())]);
        }
        if let Some([banned, allowed]) = &self.by_hand {
            let by_hand = stats.by_hand.unwrap_or_default();
            banned.set(in_gauge(by_hand.banned));
            allowed.set(in_gauge(by_hand.allowed));
        }
        if stats.in_flight.is_some() {
            self.in_flight.get_or_insert_with(|| gauge!(IN_FLIGHT, labels.all()));
        }
        if let Some(gauge) = &self.in_flight {
            // Zero if the limiter does not count units in flight any more.
            gauge.set(in_gauge(stats.in_flight.unwrap_or(0)));
        }
        if stats.overload.is_some() {
            self.overload.get_or_insert_with(|| OverloadSeries::new(labels));
        }
        if let Some(overload) = &self.overload {
            // Zero if the limiter does not shed requests any more.
            overload.set_gauges(&stats.overload.unwrap_or_default());
        }
        self.set_breakers(labels, &stats.nodes);
    }

    /// Increments the counters by a limiter's counts since the last time.
    pub(super) fn add_counts(&mut self, labels: &Labels, stats: &Stats) {
        self.make_tables(labels, stats);
        for (table, stats) in self.tables.iter_mut().zip(tables_of(stats)) {
            if let (Some(table), Some(stats)) = (table, stats) {
                table.add_counts(&stats);
            }
        }
        if let Some(SharingStats { conversions, lost_swaps, number }) = stats.sharing {
            let sharing = self.sharing.get_or_insert_with(|| {
                Sums::new([Some(counter!(CONVERSIONS, labels.all())), Some(counter!(LOST_SWAPS, labels.all()))])
            });
            sharing.add(number, [conversions, lost_swaps], [0; 2]);
        }
        if let Some(stats) = &stats.overload {
            self.overload.get_or_insert_with(|| OverloadSeries::new(labels)).add_counts(stats);
        }
    }

    /// Sets the gauges to zero.
    pub(super) fn clear(&self) {
        for table in self.tables.iter().flatten() {
            table.set_gauges(&TableStats::default());
        }
        if let Some(gauge) = &self.in_flight {
            gauge.set(0);
        }
        if let Some(overload) = &self.overload {
            overload.set_gauges(&OverloadStats::default());
        }
        self.by_hand.iter().flatten().chain(self.nodes.values()).for_each(|gauge| gauge.set(0));
    }

    /// Makes the series for the tables that a limiter has.
    fn make_tables(&mut self, labels: &Labels, stats: &Stats) {
        for ((table, names), stats) in self.tables.iter_mut().zip(TABLES).zip(tables_of(stats)) {
            if stats.is_some() {
                table.get_or_insert_with(|| TableSeries::new(names, labels));
            }
        }
    }

    fn set_breakers(&mut self, labels: &Labels, nodes: &[NodeHealth]) {
        // A node that is no longer responsible counts as closed.
        self.nodes.retain(|name, gauge| {
            let is_there = nodes.iter().any(|node| node.name() == name);
            if !is_there {
                gauge.set(0);
            }
            is_there
        });
        for node in nodes {
            let state: u8 = match node.breaker() {
                BreakerState::Closed => 0,
                BreakerState::HalfOpen => 1,
                BreakerState::Open { .. } => 2,
            };
            self.nodes
                .entry(node.name().to_owned())
                .or_insert_with(|| gauge!(BREAKER, labels.with("node", node.name())))
                .set(state);
        }
    }
}

/// A table's series.
#[derive(Debug)]
struct TableSeries {
    capacity: Gauge,
    live: Gauge,
    /// The keys that it has evicted, and the requests that it has turned away.
    lost: Sums,
}

impl TableSeries {
    fn new([(capacity, _), (live, _), (evicted, _)]: SeriesNames, labels: &Labels) -> Self {
        let turned_away = (capacity == BUDGETS[0].0).then(|| counter!(TURNED_AWAY, labels.all()));
        Self {
            capacity: gauge!(capacity, labels.all()),
            live: gauge!(live, labels.all()),
            lost: Sums::new([Some(counter!(evicted, labels.all())), turned_away]),
        }
    }

    fn set_gauges(&self, stats: &TableStats) {
        self.capacity.set(in_gauge(stats.capacity));
        self.live.set(in_gauge(stats.live_keys));
    }

    fn add_counts(&mut self, stats: &TableStats) {
        let (evicted, turned_away) = stats.inherited;
        self.lost.add(stats.number, [stats.evicted_live, stats.turned_away], [evicted, turned_away]);
    }
}

/// The series for a limiter that sheds.
#[derive(Debug)]
struct OverloadSeries {
    limit: Gauge,
    overloaded: Gauge,
    worker_lag: Gauge,
    /// By class, the lowest first.
    waiting: [Gauge; CLASSES],
    /// By class: within the key's share, and over it.
    shed: [Sums; CLASSES],
}

const CLASSES: usize = Priority::ALL.len();

impl OverloadSeries {
    fn new(labels: &Labels) -> Self {
        let of_class = |priority: Priority| labels.with("priority", priority.name());
        let shed = |priority, share: &'static str| {
            let labels = of_class(priority).into_iter().chain([Label::from_static_parts("share", share)]);
            Some(counter!(SHED, labels.collect::<Vec<_>>()))
        };
        Self {
            limit: gauge!(OVERLOAD_LIMIT, labels.all()),
            overloaded: gauge!(OVERLOADED, labels.all()),
            worker_lag: gauge!(WORKER_LAG, labels.all()),
            waiting: Priority::ALL.map(|priority| gauge!(WAITING, of_class(priority))),
            shed: Priority::ALL.map(|priority| Sums::new(["within", "over"].map(|share| shed(priority, share)))),
        }
    }

    fn set_gauges(&self, stats: &OverloadStats) {
        self.limit.set(in_gauge(stats.limit));
        self.overloaded.set(u8::from(stats.is_overloaded));
        self.worker_lag.set(stats.worker_lag.as_secs_f64());
        for (gauge, waiting) in self.waiting.iter().zip(stats.waiting) {
            gauge.set(in_gauge(waiting));
        }
    }

    fn add_counts(&mut self, stats: &OverloadStats) {
        for (sums, (within, over)) in self.shed.iter_mut().zip(stats.shed.into_iter().zip(stats.shed_over_share)) {
            sums.add(None, [within, over], [0; 2]);
        }
    }
}

/// Two counters that sum up the counts from all tables or stores that a policy had.
#[derive(Debug)]
struct Sums {
    /// A count without a counter is not reported.
    counters: [Option<Counter>; 2],
    /// The counts that were added so far, for each recent table, the latest one last.
    added: Vec<Added>,
}

/// A table's counts that were added to the counters.
#[derive(Clone, Copy, Debug, Default)]
struct Added {
    /// The table's [number](TableStats::number), if it has one.
    table: Option<u64>,
    counts: [u64; 2],
}

/// The number of tables whose counts are remembered, which bounds the memory if a policy is changed for years. A change
/// back and forth has two tables. If an older table than these is put in force again, its counts are added once more.
const REMEMBERED: usize = 8;

impl Sums {
    const fn new(counters: [Option<Counter>; 2]) -> Self {
        Self { counters, added: Vec::new() }
    }

    fn add(&mut self, table: Option<u64>, counts: [u64; 2], inherited: [u64; 2]) {
        let mut added = self.take_added(table, counts, inherited);
        added.table = table;
        for ((counter, count), added) in self.counters.iter().zip(counts).zip(&mut added.counts) {
            if let Some(counter) = counter {
                counter.increment(count.saturating_sub(*added));
            }
            *added = count.max(*added);
        }
        self.added.push(added);
        if self.added.len() > REMEMBERED {
            self.added.remove(0);
        }
    }

    /// Removes and returns the counts that were added for this table so far.
    fn take_added(&mut self, table: Option<u64>, counts: [u64; 2], inherited: [u64; 2]) -> Added {
        let Some(index) = self.added.iter().position(|added| added.table == table) else {
            // A table continues its predecessors' counts, which were added already.
            return Added { table, counts: inherited };
        };
        let added = self.added.remove(index);
        // A table's counts never fall. Tables in custom limiters have no number, so if their counts have fallen, the
        // table is another one. Another table whose counts are at least as high is taken for the same. (A store in this
        // crate has no number before its first use, either, but its counts are zero then.)
        let has_fallen = counts.iter().zip(added.counts).any(|(count, added)| *count < added);
        if table.is_none() && has_fallen { Added::default() } else { added }
    }
}

/// Exact up to 2^53, which is more keys than any machine has memory for, and more units than it has in flight.
#[allow(clippy::cast_precision_loss)]
const fn in_gauge(count: u64) -> f64 {
    count as f64
}

pub(super) fn describe() {
    for [capacity, live, evicted] in TABLES {
        describe_gauge!(capacity.0, capacity.1);
        describe_gauge!(live.0, live.1);
        describe_counter!(evicted.0, evicted.1);
    }
    describe_counter!(TURNED_AWAY, "Requests that a full table rejected, or charged to a shared budget.");
    describe_gauge!(BANNED, "Keys that an operator has banned.");
    describe_gauge!(ALLOWED, "Keys that an operator has allowed without a limit.");
    describe_gauge!(IN_FLIGHT, "Units of requests that are in flight, until their bodies have ended.");
    describe_gauge!(OVERLOAD_LIMIT, "Units that may be in flight now, as the limiter has found.");
    describe_gauge!(OVERLOADED, "Whether requests have waited for too long lately: 1, or 0.");
    describe_gauge!(
        WORKER_LAG,
        Unit::Seconds,
        "How long tasks wait for a worker of the runtime, measured while requests come."
    );
    describe_gauge!(WAITING, "Requests that wait for units in flight, by class.");
    describe_counter!(
        SHED,
        "Requests that an overloaded server has rejected, by class, and by whether their keys had more than their share."
    );
    describe_counter!(CONVERSIONS, "States on a server that were converted to another quota of their key.");
    describe_counter!(LOST_SWAPS, "Attempts to write a key on a server that were lost to another process.");
    describe_gauge!(BREAKER, "State of the circuit breaker of a store's node: 0 closed, 1 half-open, 2 open.");
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn gauges_hold_more_than_32_bits() {
        let [capacity, live] = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
        let series = TableSeries {
            capacity: Gauge::from_arc(Arc::clone(&capacity)),
            live: Gauge::from_arc(Arc::clone(&live)),
            lost: Sums::new([const { None }; 2]),
        };
        series.set_gauges(&TableStats { capacity: 1 << 33, live_keys: (1 << 32) + 1, ..TableStats::default() });
        // A gauge keeps the bits of an f64.
        let value = |gauge: &AtomicU64| f64::from_bits(gauge.load(Ordering::Relaxed)).to_string();
        assert_eq!([value(&capacity), value(&live)], ["8589934592", "4294967297"]);
    }

    #[test]
    fn inherited_counts_are_added_once() {
        let [evicted, turned_away] = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
        let mut series = TableSeries {
            capacity: Gauge::noop(),
            live: Gauge::noop(),
            lost: Sums::new([&evicted, &turned_away].map(|sum| Some(Counter::from_arc(Arc::clone(sum))))),
        };
        let mut after = |number, evicted_live, turned_away_now, inherited| {
            let number = Some(number);
            let stats =
                TableStats { number, evicted_live, turned_away: turned_away_now, inherited, ..Default::default() };
            series.add_counts(&stats);
            (evicted.load(Ordering::Relaxed), turned_away.load(Ordering::Relaxed))
        };
        assert_eq!(after(1, 10, 20, (0, 0)), (10, 20));
        assert_eq!(after(2, 13, 21, (10, 20)), (13, 21));
        assert_eq!(after(2, 14, 21, (10, 20)), (14, 21));
        assert_eq!(after(1, 11, 20, (0, 0)), (15, 21), "a request from before the change");
    }

    #[test]
    fn eight_tables_are_added_once() {
        let evicted = Arc::new(AtomicU64::new(0));
        let mut sums = Sums::new([Some(Counter::from_arc(Arc::clone(&evicted))), None]);
        let mut after = |number, evicted_live| {
            sums.add(Some(number), [evicted_live, 0], [0; 2]);
            evicted.load(Ordering::Relaxed)
        };
        let first = 1;
        let second = 2;
        let last = REMEMBERED as u64;
        for number in first..=last {
            assert_eq!(after(number, 10), number * 10);
        }
        assert_eq!(after(first, 12), 82, "remembered: two more");
        assert_eq!(after(last + 1, 10), 92, "the second table is the oldest, and forgotten");
        assert_eq!(after(first, 12), 92, "still remembered");
        assert_eq!(after(second, 10), 102, "added once more");
    }
}
