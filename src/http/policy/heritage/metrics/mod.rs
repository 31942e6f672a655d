//! The metrics of policies, counted per request in handles that are made once.
//!
//! No label contains a key: each key would be a series, and clients could create any number of them.

#[cfg(feature = "metrics")]
mod observed;
#[cfg(feature = "metrics")]
mod series;
#[cfg(not(feature = "metrics"))]
#[path = "no_series.rs"]
mod series;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use self::series::Series;
use crate::store::Stats;

/// The result of a request with one policy. A rejected request counts with the policies that reject it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Charged, and passed at once.
    Allowed,
    /// Charged, and passed after it waited for its turn.
    Delayed,
    /// Rejected.
    Rejected,
    /// Passed, although a shadow would have rejected it.
    ShadowRejected,
    /// The policy did not apply.
    Skipped,
    /// Rejected for lack of a key.
    MissingKey,
    /// The limiter could not decide, so the request passed uncounted, or was answered 503.
    LimiterFailed,
    /// The client disconnected before the decision, or before its turn.
    Cancelled,
}

impl Fate {
    /// All fates, in their order.
    const ALL: [Self; 8] = [
        Self::Allowed,
        Self::Delayed,
        Self::Rejected,
        Self::ShadowRejected,
        Self::Skipped,
        Self::MissingKey,
        Self::LimiterFailed,
        Self::Cancelled,
    ];

    /// The name in labels and events.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Delayed => "delayed",
            Self::Rejected => "rejected",
            Self::ShadowRejected => "shadow-rejected",
            Self::Skipped => "skipped",
            Self::MissingKey => "missing-key",
            Self::LimiterFailed => "limiter-failed",
            Self::Cancelled => "cancelled",
        }
    }
}

// `Series` indexes its counters by fate.
const _: () = {
    let mut index = 0;
    while index < Fate::ALL.len() {
        assert!(Fate::ALL[index] as usize == index, "`ALL` has the order of the variants");
        index += 1;
    }
};

/// The meter of one policy. Two meters with the same labels update the same series. Once the last policy that shares a
/// meter's series is gone, its gauges are zero.
#[derive(Debug)]
pub(crate) struct Meter {
    labels: Labels,
    series: Series,
}

/// The labels of a policy's series.
#[derive(Debug)]
#[cfg_attr(not(feature = "metrics"), allow(dead_code))]
struct Labels {
    policy: Arc<str>,
    route: OnceLock<Arc<str>>,
    /// Whether its requests may wait in a queue. If not, it has no series of waits.
    delays: bool,
}

impl Meter {
    pub(crate) fn new(policy: Arc<str>, delays: bool) -> Self {
        Self { labels: Labels { policy, route: OnceLock::new(), delays }, series: Series::default() }
    }

    /// Inherits the series of the policy of this name that was in force before.
    pub(crate) fn inherit(&mut self, old: &Self) {
        self.series = old.series.clone();
    }

    pub(crate) fn route(&self) -> Option<&Arc<str>> {
        self.labels.route.get()
    }

    /// Sets the label `route`. Must be called before anything is counted.
    pub(crate) fn set_route(&self, route: &Arc<str>) {
        self.labels.route.get_or_init(|| Arc::clone(route));
    }

    #[inline]
    pub(crate) fn count(&self, fate: Fate) {
        self.series.count(&self.labels, fate);
    }

    /// Counts a request whose limiter failed.
    pub(crate) fn failed(&self) {
        self.series.failed(&self.labels);
    }

    /// Counts a request that begins to wait.
    pub(crate) fn enter_queue(&self) {
        self.series.enter_queue(&self.labels);
    }

    /// Counts a request that stops waiting.
    pub(crate) fn leave_queue(&self) {
        self.series.leave_queue(&self.labels);
    }

    /// Records the wait of a request that was [`Fate::Delayed`] or [`Fate::Cancelled`].
    pub(crate) fn waited(&self, fate: Fate, time: Duration) {
        self.series.waited(&self.labels, fate, time);
    }

    /// Updates what is not counted per request.
    #[cfg(feature = "metrics")]
    pub(crate) fn observe(&self, stats: impl FnOnce() -> Stats) {
        self.series.observe(&self.labels, stats);
    }

    /// Adds the final counts of a limiter that is no longer in force.
    pub(crate) fn count_last(&self, stats: impl FnOnce() -> Stats) {
        self.series.count_last(&self.labels, stats);
    }

    /// Sets the gauges to zero for good, since no policy of this name is in force any more.
    pub(crate) fn retire(&self) {
        self.series.retire();
    }
}
