//! The series of a policy, in the `metrics` facade.
//!
//! The facade can create series, but not remove them. So gauges are set to zero when their policy is gone. Counters are
//! incremented by differences and never set: a counter that is set would fall, or stand still, when a table is
//! replaced.

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

/// Shared by a policy and the policies of its name that replace it. When the last one is dropped, the gauges are set to
/// zero.
///
/// Handles are made at the first request or the first observation, since a program may install its recorder after it
/// has built the layer.
#[derive(Clone, Debug, Default)]
pub(super) struct Series(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    handles: OnceLock<Handles>,
    /// The series of the queue, of a policy that delays.
    queue: OnceLock<Queue>,
    observed: Mutex<Observed>,
}

#[derive(Debug)]
struct Handles {
    requests: [Counter; Fate::ALL.len()],
    failures: Counter,
}

#[derive(Debug)]
struct Queue {
    queued: Gauge,
    delayed: Histogram,
    cancelled: Histogram,
}

impl Series {
    #[inline]
    fn handles(&self, labels: &Labels) -> &Handles {
        self.0.handles.get_or_init(|| {
            let _ = self.queue(labels);
            Handles::new(labels)
        })
    }

    fn queue(&self, labels: &Labels) -> Option<&Queue> {
        labels.delays.then(|| self.0.queue.get_or_init(|| Queue::new(labels)))
    }

    #[inline]
    pub(super) fn count(&self, labels: &Labels, fate: Fate) {
        self.handles(labels).requests[fate as usize].increment(1);
    }

    pub(super) fn failed(&self, labels: &Labels) {
        self.handles(labels).failures.increment(1);
    }

    pub(super) fn enter_queue(&self, labels: &Labels) {
        self.queue(labels).into_iter().for_each(|queue| queue.queued.increment(1));
    }

    pub(super) fn leave_queue(&self, labels: &Labels) {
        self.queue(labels).into_iter().for_each(|queue| queue.queued.decrement(1));
    }

    pub(super) fn waited(&self, labels: &Labels, fate: Fate, time: Duration) {
        if let Some(queue) = self.queue(labels) {
            if fate == Fate::Delayed { &queue.delayed } else { &queue.cancelled }.record(time);
        }
    }

    /// Sets the gauges to what `stats` returns, and increments the counters by the difference since the last time. Does
    /// nothing for a policy that is gone.
    pub(super) fn observe(&self, labels: &Labels, stats: impl FnOnce() -> Stats) {
        self.handles(labels);
        let _ = self.queue(labels);
        // The lock is held while the stats are read. Otherwise, of two observers, the one that reads first could write
        // last, and gauges would go back to the older stats.
        let mut observed = self.observed();
        if !observed.is_retired {
            observed.is_begun = true;
            observed.record(labels, &stats(), true);
        }
    }

    /// Adds what a limiter that is no longer in force has counted since the last observation. The gauges already belong
    /// to the limiter that is in force.
    pub(super) fn count_last(&self, labels: &Labels, stats: impl FnOnce() -> Stats) {
        let mut observed = self.observed();
        if observed.is_begun && !observed.is_retired {
            observed.record(labels, &stats(), false);
        }
    }

    /// Sets the gauges to zero for good.
    pub(super) fn retire(&self) {
        let mut observed = self.observed();
        // Set under the lock, so that an observation that waits for it does not raise the gauges again.
        observed.is_retired = true;
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

/// The series that are updated by observations, and not per request.
#[derive(Debug, Default)]
struct Observed {
    is_begun: bool,
    is_retired: bool,
    budgets: Option<Table>,
    bans: Option<Table>,
    /// The states of the nodes' circuit breakers, by address.
    nodes: BTreeMap<String, Gauge>,
}

/// The series of a table.
#[derive(Debug)]
struct Table {
    capacity: Gauge,
    live: Gauge,
    evicted: Counter,
    turned_away: Option<Counter>,
    /// The counts that were added so far, for each table that the policy had, the latest one last.
    added: Vec<Added>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Added {
    table: u64,
    evicted: u64,
    turned_away: u64,
}

/// The number of tables of a policy that are remembered, in case one of their limiters is put in force again.
const TABLES: usize = 8;

impl Observed {
    fn record(&mut self, labels: &Labels, stats: &Stats, in_force: bool) {
        record_table(&mut self.budgets, stats.table.as_ref(), in_force, || Table {
            capacity: gauge!(CAPACITY, labels.all()),
            live: gauge!(LIVE, labels.all()),
            evicted: counter!(EVICTED, labels.all()),
            turned_away: Some(counter!(TURNED_AWAY, labels.all())),
            added: Vec::new(),
        });
        record_table(&mut self.bans, stats.bans.as_ref(), in_force, || Table {
            capacity: gauge!(BAN_CAPACITY, labels.all()),
            live: gauge!(BAN_LIVE, labels.all()),
            evicted: counter!(BAN_EVICTED, labels.all()),
            turned_away: None,
            added: Vec::new(),
        });
        #[cfg(feature = "redis")]
        if in_force {
            self.record_nodes(labels, &stats.nodes);
        }
    }

    #[cfg(feature = "redis")]
    fn record_nodes(&mut self, labels: &Labels, nodes: &[crate::store::redis::NodeHealth]) {
        use crate::store::redis::BreakerState::{Closed, HalfOpen, Open};
        // The breaker of a node that is no longer responsible is not of interest.
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

fn record_table(table: &mut Option<Table>, stats: Option<&TableStats>, in_force: bool, make: impl FnOnce() -> Table) {
    match (stats, table) {
        (Some(stats), table) => table.get_or_insert_with(make).record(stats, in_force),
        // The limiter has no table any more.
        (None, Some(table)) if in_force => table.clear(),
        (None, _) => {}
    }
}

impl Table {
    fn record(&mut self, stats: &TableStats, in_force: bool) {
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

    /// Removes and returns the counts that were added for this table so far.
    fn added_of(&mut self, stats: &TableStats) -> Added {
        let Some(place) = self.added.iter().position(|added| added.table == stats.number) else {
            return Added::default();
        };
        let added = self.added.remove(place);
        // The counts of a table never fall. Those of a custom limiter, which does not number its tables, fall when it
        // replaces its table.
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

impl Queue {
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

/// Saturates at `u32::MAX`, which a gauge converts without loss.
fn saturated(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn describe() {
    use metrics::{describe_counter, describe_gauge, describe_histogram};
    describe_counter!(REQUESTS, "Requests, by their result with each policy.");
    describe_counter!(FAILURES, "Requests whose limiter failed, including those that the local fallback decided.");
    describe_gauge!(QUEUED, "Requests that wait for their turn in a queue.");
    describe_histogram!(TIME_IN_QUEUE, Unit::Seconds, "Time that requests waited for their turn in a queue.");
    describe_gauge!(CAPACITY, "Keys that a table holds without losing one.");
    describe_gauge!(LIVE, "Keys in a table with an unpaid debt, estimated.");
    describe_counter!(EVICTED, "Keys that a full table evicted before their debt was paid.");
    describe_counter!(TURNED_AWAY, "Requests that a full table rejected, or charged to a shared budget.");
    describe_gauge!(BAN_CAPACITY, "Banned keys that a table holds without losing one.");
    describe_gauge!(BAN_LIVE, "Keys that are banned now, estimated.");
    describe_counter!(BAN_EVICTED, "Bans that a full table evicted before they ended.");
    #[cfg(feature = "redis")]
    describe_gauge!(BREAKER, "State of the circuit breaker of a store's node: 0 closed, 1 half-open, 2 open.");
}
