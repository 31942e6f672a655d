//! The series of a policy, in the `metrics` facade.

#[cfg(feature = "redis")]
use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
#[cfg(feature = "redis")]
use std::sync::{Mutex, PoisonError};
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
#[cfg(feature = "redis")]
const BREAKER: &str = "tower_sluice.rate_limiting.store.breaker";

/// Made with the first request, or the first observation: by then a program has installed its recorder.
#[derive(Debug)]
pub(super) struct Series {
    handles: OnceLock<Handles>,
    /// Nodes whose breakers were told last.
    #[cfg(feature = "redis")]
    nodes: Mutex<BTreeSet<String>>,
}

#[derive(Debug)]
struct Handles {
    requests: [Counter; Fate::ALL.len()],
    failures: Counter,
    line: Option<Line>,
}

#[derive(Debug)]
struct Line {
    queued: Gauge,
    delayed: Histogram,
    cancelled: Histogram,
}

impl Series {
    pub(super) const fn new() -> Self {
        Self {
            handles: OnceLock::new(),
            #[cfg(feature = "redis")]
            nodes: Mutex::new(BTreeSet::new()),
        }
    }

    #[inline]
    fn handles(&self, labels: &Labels) -> &Handles {
        self.handles.get_or_init(|| Handles::new(labels))
    }

    #[inline]
    pub(super) fn count(&self, labels: &Labels, fate: Fate) {
        self.handles(labels).requests[fate as usize].increment(1);
    }

    pub(super) fn failed(&self, labels: &Labels) {
        self.handles(labels).failures.increment(1);
    }

    pub(super) fn enter_queue(&self, labels: &Labels) {
        self.handles(labels).line.iter().for_each(|line| line.queued.increment(1));
    }

    pub(super) fn leave_queue(&self, labels: &Labels) {
        self.handles(labels).line.iter().for_each(|line| line.queued.decrement(1));
    }

    pub(super) fn waited(&self, labels: &Labels, fate: Fate, time: Duration) {
        if let Some(line) = &self.handles(labels).line {
            if fate == Fate::Delayed { &line.delayed } else { &line.cancelled }.record(time);
        }
    }

    /// Rare, so that its handles are looked up each time.
    pub(super) fn observe(&self, labels: &Labels, stats: &Stats) {
        self.handles(labels);
        if let Some(TableStats { capacity, live, evicted_live, turned_away }) = stats.table {
            gauge!(CAPACITY, labels.all()).set(saturated(capacity));
            gauge!(LIVE, labels.all()).set(saturated(live));
            counter!(EVICTED, labels.all()).absolute(evicted_live);
            counter!(TURNED_AWAY, labels.all()).absolute(turned_away);
        }
        #[cfg(feature = "redis")]
        self.observe_nodes(labels, &stats.nodes);
    }

    #[cfg(feature = "redis")]
    fn observe_nodes(&self, labels: &Labels, nodes: &[crate::store::redis::NodeHealth]) {
        let mut told = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        // A node that is responsible no more is not out of order.
        for gone in told.iter().filter(|address| nodes.iter().all(|node| node.address() != **address)) {
            gauge!(BREAKER, labels.and("node", gone)).set(0);
        }
        *told = nodes.iter().map(|node| node.address().to_owned()).collect();
        for node in nodes {
            use crate::store::redis::BreakerState::{Closed, HalfOpen, Open};
            let state: u8 = match node.breaker() {
                Closed => 0,
                HalfOpen => 1,
                Open => 2,
            };
            gauge!(BREAKER, labels.and("node", node.address())).set(state);
        }
    }
}

impl Handles {
    #[cold]
    fn new(labels: &Labels) -> Self {
        describe();
        let line = || Line {
            queued: gauge!(QUEUED, labels.all()),
            delayed: histogram!(TIME_IN_QUEUE, labels.and("result", Fate::Delayed.as_str())),
            cancelled: histogram!(TIME_IN_QUEUE, labels.and("result", Fate::Cancelled.as_str())),
        };
        Self {
            requests: Fate::ALL.map(|fate| counter!(REQUESTS, labels.and("result", fate.as_str()))),
            failures: counter!(FAILURES, labels.all()),
            line: labels.delays.then(line),
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
    describe_counter!(TURNED_AWAY, "Requests that a full table refused, or had share a budget.");
    #[cfg(feature = "redis")]
    describe_gauge!(BREAKER, "Whether a store's node is asked: 0 yes, 1 by one call that tries, 2 no.");
}
