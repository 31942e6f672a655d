//! The series of a policy, in the `metrics` facade.
//!
//! The facade can create series, but not remove them. So gauges are set to zero when their policy is gone.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Label, Unit, counter, gauge, histogram};

use super::observed::{self, Observed};
use super::{Fate, Labels};
use crate::store::Stats;

const REQUESTS: &str = "tower_sluice.rate_limiting.requests";
const FAILURES: &str = "tower_sluice.rate_limiting.limiter_failures";
const QUEUED: &str = "tower_sluice.rate_limiting.queued_requests";
const TIME_IN_QUEUE: &str = "tower_sluice.rate_limiting.request.time_in_queue";

/// Shared by a policy and the policies of its name that replace it. When the last one is dropped, the gauges are set to
/// zero, unless [`retire`](Self::retire) has done so.
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
            // So that the series of an idle queue exist.
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
        if let Some(queue) = self.queue(labels) {
            queue.queued.increment(1);
        }
    }

    pub(super) fn leave_queue(&self, labels: &Labels) {
        if let Some(queue) = self.queue(labels) {
            queue.queued.decrement(1);
        }
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
        // The handles may be inherited from a policy that did not delay.
        let _ = self.queue(labels);
        // The lock is held while the stats are read. Otherwise, of two observers, the one that reads first could write
        // last, and gauges would go back to the older stats.
        let mut observed = self.observed();
        if !observed.is_retired {
            observed.is_begun = true;
            let stats = stats();
            observed.set_gauges(labels, &stats);
            observed.add_counts(labels, &stats);
        }
    }

    /// Adds what a limiter that is no longer in force has counted since the last observation. The gauges already belong
    /// to the limiter that is in force.
    pub(super) fn count_last(&self, labels: &Labels, stats: impl FnOnce() -> Stats) {
        let mut observed = self.observed();
        if observed.is_begun && !observed.is_retired {
            observed.add_counts(labels, &stats());
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
        let observed = self.observed.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Gauges that were retired are zero already, or are those of a later policy of this name: this one may be
        // dropped long after it was removed, with the last request that it decided on.
        if !observed.is_retired {
            observed.clear();
        }
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
    pub(super) fn all(&self) -> Vec<Label> {
        let route = self.route.get().map(|route| Label::new("route", Arc::clone(route)));
        route.into_iter().chain([Label::new("policy", Arc::clone(&self.policy))]).collect()
    }

    pub(super) fn and(&self, name: &'static str, value: &str) -> Vec<Label> {
        let mut labels = self.all();
        labels.push(Label::new(name, value.to_owned()));
        labels
    }
}

fn describe() {
    use metrics::{describe_counter, describe_gauge, describe_histogram};
    describe_counter!(REQUESTS, "Requests, by their result with each policy.");
    describe_counter!(FAILURES, "Requests whose limiter failed, including those that the local fallback decided.");
    describe_gauge!(QUEUED, "Requests that wait for their turn in a queue.");
    describe_histogram!(TIME_IN_QUEUE, Unit::Seconds, "Time that requests waited for their turn in a queue.");
    observed::describe();
}
