//! A policy's series, in the `metrics` facade.
//!
//! The facade can create series, but not remove them, so gauges are set to zero when their policy is gone.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Unit, counter, gauge, histogram};

use super::PolicyMeter;
use super::labels::{Fate, Labels};
use super::observed::{self, Observed};
use crate::engine::policy::shares::Share;
use crate::store::Stats;
use crate::util::lock::Lock;

const REQUESTS: &str = "tower_sluice.rate_limiting.requests";
const FAILURES: &str = "tower_sluice.rate_limiting.limiter_failures";
const CROSSINGS: &str = "tower_sluice.rate_limiting.crossings";
const QUEUED: &str = "tower_sluice.rate_limiting.queued_requests";
const TIME_IN_QUEUE: &str = "tower_sluice.rate_limiting.request.time_in_queue";

/// How many policies in the process have series before their first request. A counter that begins at zero shows its
/// first increment, but a service may have thousands of policies, most without requests.
const MOST_UNUSED: usize = 256;

/// How many policies got their series by an observation before their first request.
static UNUSED: AtomicUsize = AtomicUsize::new(0);

/// Shared by a policy and the policies with its name that replace it. When the last one is dropped, the gauges are set
/// to zero, unless [`retire`](PolicyMeter::retire) has done so.
///
/// Handles are made at the first request or the first observation, since a program may install its recorder after it
/// has built the layer.
#[derive(Clone, Debug, Default)]
pub(super) struct Series(Arc<SeriesInner>);

#[derive(Debug, Default)]
struct SeriesInner {
    handles: OnceLock<Handles>,
    /// The queue's series, if the policy delays.
    queue: OnceLock<Queue>,
    observed: Lock<Observed>,
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

impl PolicyMeter {
    #[inline]
    fn handles(&self) -> &Handles {
        self.series.0.handles.get_or_init(|| {
            // Makes an idle queue's series, too.
            let _ = self.queue();
            Handles::new(&self.labels)
        })
    }

    fn queue(&self) -> Option<&Queue> {
        self.labels.delays.then(|| self.series.0.queue.get_or_init(|| Queue::new(&self.labels)))
    }

    #[inline]
    pub(crate) fn count(&self, fate: Fate) {
        self.handles().requests[fate as usize].increment(1);
    }

    /// Counts a request whose limiter failed.
    pub(crate) fn failed(&self) {
        self.handles().failures.increment(1);
    }

    /// Counts a crossing. Its series is made for it, since crossings are rare.
    pub(crate) fn crossed(&self, share: Share) {
        self.handles();
        counter!(CROSSINGS, self.labels.with("warn_at", &share.to_string())).increment(1);
    }

    /// Counts a request that begins to wait.
    pub(crate) fn enter_queue(&self) {
        if let Some(queue) = self.queue() {
            queue.queued.increment(1);
        }
    }

    /// Counts a request that stops waiting.
    pub(crate) fn leave_queue(&self) {
        if let Some(queue) = self.queue() {
            queue.queued.decrement(1);
        }
    }

    /// Records the time that a [`Fate::Delayed`] or [`Fate::Cancelled`] request waited.
    pub(crate) fn waited(&self, fate: Fate, time: Duration) {
        if let Some(queue) = self.queue() {
            if fate == Fate::Delayed { &queue.delayed } else { &queue.cancelled }.record(time);
        }
    }

    /// Sets the gauges to the values that `stats` returns, and increments the counters by the differences since the
    /// last observation. Does nothing for a policy that is gone, or that [has no series](MOST_UNUSED) before its first
    /// request.
    pub(crate) fn observe(&self, stats: impl FnOnce() -> Stats) {
        if self.series.0.handles.get().is_none() && !may_begin_unused() {
            return;
        }
        self.handles();
        // The handles may be inherited from a policy that did not delay.
        let _ = self.queue();
        // Hold the lock while the stats are read. Otherwise, with two observers at once, the first reader could write
        // last, and gauges would go back to the older stats.
        let mut observed = self.series.0.observed.lock();
        if !observed.is_retired {
            observed.is_begun = true;
            let stats = stats();
            observed.set_gauges(&self.labels, &stats);
            observed.add_counts(&self.labels, &stats);
        }
    }

    /// Adds the counts since the last observation from a limiter that is no longer in force. The gauges already belong
    /// to the limiter in force.
    pub(crate) fn count_last(&self, stats: impl FnOnce() -> Stats) {
        let mut observed = self.series.0.observed.lock();
        if observed.is_begun && !observed.is_retired {
            observed.add_counts(&self.labels, &stats());
        }
    }

    /// Sets the gauges to zero for good.
    pub(crate) fn retire(&self) {
        let mut observed = self.series.0.observed.lock();
        // Set under the lock, so that an observation that waits for it does not raise the gauges again.
        observed.is_retired = true;
        observed.clear();
    }
}

/// Whether one more policy may have series before its first request.
fn may_begin_unused() -> bool {
    let one_more = |policies| (policies < MOST_UNUSED).then_some(policies + 1);
    UNUSED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
}

impl Drop for SeriesInner {
    fn drop(&mut self) {
        let observed = self.observed.lock();
        // Retired gauges are zero already, or belong to a later policy with this name, because this policy may be
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
            requests: Fate::ALL.map(|fate| counter!(REQUESTS, labels.with("result", fate.as_str()))),
            failures: counter!(FAILURES, labels.all()),
        }
    }
}

impl Queue {
    #[cold]
    fn new(labels: &Labels) -> Self {
        Self {
            queued: gauge!(QUEUED, labels.all()),
            delayed: histogram!(TIME_IN_QUEUE, labels.with("result", Fate::Delayed.as_str())),
            cancelled: histogram!(TIME_IN_QUEUE, labels.with("result", Fate::Cancelled.as_str())),
        }
    }
}

fn describe() {
    use metrics::{describe_counter, describe_gauge, describe_histogram};
    describe_counter!(REQUESTS, "Requests, by their result with each policy.");
    describe_counter!(CROSSINGS, "Times that the use of a key has passed a share of its limit.");
    describe_counter!(FAILURES, "Requests whose limiter failed, including those that the local fallback decided.");
    describe_gauge!(QUEUED, "Requests that wait for their turn in a queue.");
    describe_histogram!(TIME_IN_QUEUE, Unit::Seconds, "Time that requests waited for their turn in a queue.");
    observed::describe();
}
