//! The labels of the series of a policy.

use std::sync::{Arc, OnceLock};

#[cfg(feature = "metrics")]
use metrics::Label;

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
    pub(super) const ALL: [Self; 8] = [
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

/// The labels of a policy's series.
#[derive(Debug)]
#[cfg_attr(not(feature = "metrics"), allow(dead_code))]
pub(super) struct Labels {
    pub(super) policy: Arc<str>,
    pub(super) route: OnceLock<Arc<str>>,
    /// Whether its requests may wait in a queue. If not, it has no series of waits.
    pub(super) delays: bool,
}

#[cfg(feature = "metrics")]
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
