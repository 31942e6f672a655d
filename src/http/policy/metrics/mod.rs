//! What dashboards are told of policies: counted as requests pass, in handles that are made once.
//!
//! No label holds a key: there would be a series for each, which whoever sends requests could make at will.

#![cfg_attr(not(feature = "metrics"), allow(dead_code, clippy::unused_self))]

#[cfg(feature = "metrics")]
mod series;
#[cfg(not(feature = "metrics"))]
#[path = "no_series.rs"]
mod series;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use self::series::Series;

/// What became of a request with one policy. A request that is refused counts with the policies that refuse it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Charged, and passed at once.
    Allowed,
    /// Charged, and passed after it waited for its turn.
    Delayed,
    Denied,
    /// Passed, although a policy that only watches would have refused it.
    ShadowDenied,
    /// The policy did not apply.
    Skipped,
    /// Refused, since it could not be told on whom to count it.
    NoKey,
    /// Nobody could decide, so that it passed uncounted, or was answered 503.
    StoreError,
    /// The client left while the limiter decided, or before its turn.
    Cancelled,
}

impl Fate {
    const ALL: [Self; 8] = [
        Self::Allowed,
        Self::Delayed,
        Self::Denied,
        Self::ShadowDenied,
        Self::Skipped,
        Self::NoKey,
        Self::StoreError,
        Self::Cancelled,
    ];

    /// As in labels and events.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Delayed => "delayed",
            Self::Denied => "denied",
            Self::ShadowDenied => "shadow-denied",
            Self::Skipped => "skipped",
            Self::NoKey => "no-key",
            Self::StoreError => "store-error",
            Self::Cancelled => "cancelled",
        }
    }
}

/// The meter of one policy. Two with the same labels move the same series. Once a policy has gone, with its successors,
/// its gauges are zero.
#[derive(Debug)]
pub(crate) struct Meter {
    labels: Labels,
    series: Series,
}

/// What tells the series of a policy from those of others.
#[derive(Debug)]
struct Labels {
    policy: Arc<str>,
    route: OnceLock<Arc<str>>,
    /// Whether its requests may wait. If not, it has no series of waits.
    delays: bool,
}

impl Meter {
    pub(crate) fn new(policy: Arc<str>, delays: bool) -> Self {
        Self { labels: Labels { policy, route: OnceLock::new(), delays }, series: Series::default() }
    }

    /// Goes on with the series of the policy of this name that was in force before.
    pub(crate) fn inherit(&mut self, old: &Self) {
        self.series = old.series.clone();
    }

    pub(crate) fn route(&self) -> Option<&Arc<str>> {
        self.labels.route.get()
    }

    /// To be called once, before anything is counted.
    pub(crate) fn set_route(&self, route: &Arc<str>) {
        self.labels.route.get_or_init(|| Arc::clone(route));
    }

    #[inline]
    pub(crate) fn count(&self, fate: Fate) {
        self.series.count(&self.labels, fate);
    }

    /// A request whose limiter failed, whoever decided then.
    pub(crate) fn failed(&self) {
        self.series.failed(&self.labels);
    }

    /// A request begins to wait.
    pub(crate) fn enter_queue(&self) {
        self.series.enter_queue(&self.labels);
    }

    /// A request waits no longer.
    pub(crate) fn leave_queue(&self) {
        self.series.leave_queue(&self.labels);
    }

    /// How long a request waited whose fate this is: [`Fate::Delayed`] or [`Fate::Cancelled`].
    pub(crate) fn waited(&self, fate: Fate, time: Duration) {
        self.series.waited(&self.labels, fate, time);
    }

    /// Reads what is not counted as requests pass.
    #[cfg(feature = "metrics")]
    pub(crate) fn observe(&self, stats: impl FnOnce() -> crate::store::Stats) {
        self.series.observe(&self.labels, stats);
    }

    /// Reads it for the last time: another limiter is in force under this name.
    #[cfg(feature = "metrics")]
    pub(crate) fn count_last(&self, stats: impl FnOnce() -> crate::store::Stats) {
        self.series.count_last(&self.labels, stats);
    }

    /// No policy of this name is in force any more: sets the gauges to zero, for good.
    #[cfg(feature = "metrics")]
    pub(crate) fn go(&self) {
        self.series.go();
    }
}
