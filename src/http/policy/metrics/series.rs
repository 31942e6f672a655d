//! The series of a policy, in the `metrics` facade.
//!
//! The facade can make series, and not remove them. So whatever is set here is set to zero when its policy goes, and
//! whatever is counted is added up: a counter that were set would fall, or stand still, when a table is replaced by
//! another.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Label, Unit, counter, gauge, histogram};

use super::{Fate, Labels};
use crate::store::{Stats, TableStats};

const REQUESTS: &str = "tower_sluice.rate_limiting.requests";
const FAILURES: &str = "tower_sluice.rate_limiting.limiter_failures";
const QUEUED: &str = "tower_sluice.rate_limiting.queued_requests";
const TIME_IN_QUEUE: &str = "tower_sluice.rate_limiting.request.time_in_queue";
const CAPACITY: &str = "tower_sluice.rate_limiting.table.capacity";
const LIVE: &str = "tower_sluice.rate_limiting.table.live_keys";
const EVICTED: &str = "tower_sluice.rate_limiting.table.evicted_live";
const TURNED_AWAY: &str = "tower_sluice.rate_limiting.table.turned_away";
const BAN_CAPACITY: &str = "tower_sluice.rate_limiting.ban_table.capacity";
const BAN_LIVE: &str = "tower_sluice.rate_limiting.ban_table.live_keys";
const BAN_EVICTED: &str = "tower_sluice.rate_limiting.ban_table.evicted_live";
#[cfg(feature = "redis")]
const BREAKER: &str = "tower_sluice.rate_limiting.store.breaker";

/// Shared by a policy and those of its name that replace it. When the last one is dropped, its gauges are set to zero.
///
/// Handles are made with the first request, or the first observation: by then a program has installed its recorder.
#[derive(Clone, Debug, Default)]
pub(super) struct Series(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    handles: OnceLock<Handles>,
    /// Of a policy that delays.
    line: OnceLock<Line>,
    observed: Mutex<Observed>,
}

#[derive(Debug)]
struct Handles {
    requests: [Counter; Fate::ALL.len()],
    failures: Counter,
}

#[derive(Debug)]
struct Line {
    queued: Gauge,
    delayed: Histogram,
    cancelled: Histogram,
}

impl Series {
    #[inline]
    fn handles(&self, labels: &Labels) -> &Handles {
        self.0.handles.get_or_init(|| {
            let _ = self.line(labels);
            Handles::new(labels)
        })
    }

    fn line(&self, labels: &Labels) -> Option<&Line> {
        labels.delays.then(|| self.0.line.get_or_init(|| Line::new(labels)))
    }

    #[inline]
    pub(super) fn count(&self, labels: &Labels, fate: Fate) {
        self.handles(labels).requests[fate as usize].increment(1);
    }

    pub(super) fn failed(&self, labels: &Labels) {
        self.handles(labels).failures.increment(1);
    }

    pub(super) fn enter_queue(&self, labels: &Labels) {
        self.line(labels).into_iter().for_each(|line| line.queued.increment(1));
    }

    pub(super) fn leave_queue(&self, labels: &Labels) {
        self.line(labels).into_iter().for_each(|line| line.queued.decrement(1));
    }

    pub(super) fn waited(&self, labels: &Labels, fate: Fate, time: Duration) {
        if let Some(line) = self.line(labels) {
            if fate == Fate::Delayed { &line.delayed } else { &line.cancelled }.record(time);
        }
    }

    /// Sets the gauges to what `stats` returns, and adds what was counted since it was asked last; does nothing for a
    /// policy that has gone.
    pub(super) fn observe(&self, labels: &Labels, stats: impl FnOnce() -> Stats) {
        self.handles(labels);
        let _ = self.line(labels);
        // Held while the stats are read, so that no older ones are noted after newer ones.
        let mut observed = self.observed();
        if !observed.is_gone {
            observed.is_begun = true;
            observed.note(labels, &stats(), true);
        }
    }

    /// Adds what a limiter that is no longer in force counted since it was observed last. Its gauges are its successor's.
    pub(super) fn count_last(&self, labels: &Labels, stats: impl FnOnce() -> Stats) {
        let mut observed = self.observed();
        if observed.is_begun && !observed.is_gone {
            observed.note(labels, &stats(), false);
        }
    }

    /// Sets the gauges to zero, for good.
    pub(super) fn go(&self) {
        let mut observed = self.observed();
        observed.is_gone = true;
        observed.clear();
    }

    fn observed(&self) -> MutexGuard<'_, Observed> {
        self.0.observed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.observed.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// What is read now and then, and not counted as requests pass.
#[derive(Debug, Default)]
struct Observed {
    is_begun: bool,
    is_gone: bool,
    budgets: Option<Table>,
    bans: Option<Table>,
    /// Whether a node's breaker is open, by its address.
    nodes: BTreeMap<String, Gauge>,
}

/// The series of a table.
#[derive(Debug)]
struct Table {
    capacity: Gauge,
    live: Gauge,
    evicted: Counter,
    turned_away: Option<Counter>,
    /// What was added of the tables that the policy had, by their numbers, the latest one last.
    added: Vec<Added>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Added {
    table: u64,
    evicted: u64,
    turned_away: u64,
}

/// So many tables of a policy are remembered, for limiters that are put back.
const TABLES: usize = 8;

impl Observed {
    fn note(&mut self, labels: &Labels, stats: &Stats, in_force: bool) {
        note_table(&mut self.budgets, stats.table.as_ref(), in_force, || Table {
            capacity: gauge!(CAPACITY, labels.all()),
            live: gauge!(LIVE, labels.all()),
            evicted: counter!(EVICTED, labels.all()),
            turned_away: Some(counter!(TURNED_AWAY, labels.all())),
            added: Vec::new(),
        });
        note_table(&mut self.bans, stats.bans.as_ref(), in_force, || Table {
            capacity: gauge!(BAN_CAPACITY, labels.all()),
            live: gauge!(BAN_LIVE, labels.all()),
            evicted: counter!(BAN_EVICTED, labels.all()),
            turned_away: None,
            added: Vec::new(),
        });
        #[cfg(feature = "redis")]
        if in_force {
            self.note_nodes(labels, &stats.nodes);
        }
    }

    #[cfg(feature = "redis")]
    fn note_nodes(&mut self, labels: &Labels, nodes: &[crate::store::redis::NodeHealth]) {
        use crate::store::redis::BreakerState::{Closed, HalfOpen, Open};
        // A node that is responsible no more is not out of order.
        self.nodes.retain(|address, gauge| {
            let is_there = nodes.iter().any(|node| node.address() == address);
            if !is_there {
                gauge.set(0);
            }
            is_there
        });
        for node in nodes {
            let state: u8 = match node.breaker() {
                Closed => 0,
                HalfOpen => 1,
                Open => 2,
            };
            let gauge = || gauge!(BREAKER, labels.and("node", node.address()));
            self.nodes.entry(node.address().to_owned()).or_insert_with(gauge).set(state);
        }
    }

    fn clear(&self) {
        [&self.budgets, &self.bans].into_iter().flatten().for_each(Table::clear);
        self.nodes.values().for_each(|gauge| gauge.set(0));
    }
}

fn note_table(table: &mut Option<Table>, stats: Option<&TableStats>, in_force: bool, make: impl FnOnce() -> Table) {
    match (stats, table) {
        (Some(stats), table) => table.get_or_insert_with(make).note(stats, in_force),
        // The limiter has none any more.
        (None, Some(table)) if in_force => table.clear(),
        (None, _) => {}
    }
}

impl Table {
    fn note(&mut self, stats: &TableStats, in_force: bool) {
        if in_force {
            self.capacity.set(saturated(stats.capacity));
            self.live.set(saturated(stats.live));
        }
        let added = self.added_of(stats);
        self.evicted.increment(stats.evicted_live.saturating_sub(added.evicted));
        if let Some(turned_away) = &self.turned_away {
            turned_away.increment(stats.turned_away.saturating_sub(added.turned_away));
        }
        let now = Added {
            table: stats.number,
            evicted: stats.evicted_live.max(added.evicted),
            turned_away: stats.turned_away.max(added.turned_away),
        };
        self.added.push(now);
        if self.added.len() > TABLES {
            self.added.remove(0);
        }
    }

    /// What was added of this table before, taken out of the list.
    fn added_of(&mut self, stats: &TableStats) -> Added {
        let Some(place) = self.added.iter().position(|added| added.table == stats.number) else {
            return Added::default();
        };
        let added = self.added.remove(place);
        // Counts of a table never fall. Those of a limiter that does not tell its tables apart do when it takes another.
        let has_fallen = stats.evicted_live < added.evicted || stats.turned_away < added.turned_away;
        if stats.number == 0 && has_fallen { Added::default() } else { added }
    }

    fn clear(&self) {
        self.capacity.set(0);
        self.live.set(0);
    }
}

impl Handles {
    #[cold]
    fn new(labels: &Labels) -> Self {
        describe();
        Self {
            requests: Fate::ALL.map(|fate| counter!(REQUESTS, labels.and("result", fate.as_str()))),
            failures: counter!(FAILURES, labels.all()),
        }
    }
}

impl Line {
    #[cold]
    fn new(labels: &Labels) -> Self {
        Self {
            queued: gauge!(QUEUED, labels.all()),
            delayed: histogram!(TIME_IN_QUEUE, labels.and("result", Fate::Delayed.as_str())),
            cancelled: histogram!(TIME_IN_QUEUE, labels.and("result", Fate::Cancelled.as_str())),
        }
    }
}

impl Labels {
    fn all(&self) -> Vec<Label> {
        let route = self.route.get().map(|route| Label::new("route", Arc::clone(route)));
        route.into_iter().chain([Label::new("policy", Arc::clone(&self.policy))]).collect()
    }

    fn and(&self, name: &'static str, value: &str) -> Vec<Label> {
        let mut labels = self.all();
        labels.push(Label::new(name, value.to_owned()));
        labels
    }
}

/// What a gauge cannot tell any more it has long passed.
fn saturated(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn describe() {
    use metrics::{describe_counter, describe_gauge, describe_histogram};
    describe_counter!(REQUESTS, "Requests, by what became of them with each policy.");
    describe_counter!(FAILURES, "Requests whose limiter failed, whoever decided then.");
    describe_gauge!(QUEUED, "Requests that wait for their turn now.");
    describe_histogram!(TIME_IN_QUEUE, Unit::Seconds, "Time for which requests waited for their turn.");
    describe_gauge!(CAPACITY, "Keys that a table holds without losing one.");
    describe_gauge!(LIVE, "Keys in a table that still owe something, estimated.");
    describe_counter!(EVICTED, "Keys that a full table forgot while they owed something.");
    describe_counter!(TURNED_AWAY, "Requests that a full table rejected, or had share a budget.");
    describe_gauge!(BAN_CAPACITY, "Banned keys that a policy holds without losing one.");
    describe_gauge!(BAN_LIVE, "Keys that are banned now, estimated.");
    describe_counter!(BAN_EVICTED, "Bans that a full table forgot before they ended.");
    #[cfg(feature = "redis")]
    describe_gauge!(BREAKER, "Whether a store's node is asked: 0 yes, 1 by one call that tries, 2 no.");
}
