//! The labels on a policy's series.

use std::sync::{Arc, OnceLock};

#[cfg(feature = "metrics")]
use metrics::Label;

use crate::engine::policy::named::named;
use crate::values::Decision;

named! {
    /// A request's result with one policy. A rejected request counts with the policies that reject it.
    pub(crate) enum Fate by
    /// The name in labels and events.
    pub(crate) as_str {
        /// Charged, and passed at once.
        Allowed = "allowed",
        /// Charged, and passed after it waited for its turn.
        Delayed = "delayed",
        /// Rejected.
        Rejected = "rejected",
        /// The policy had no room, and an alternative was charged.
        PassedOver = "passed-over",
        /// Passed, although a shadow would have rejected it.
        ShadowRejected = "shadow-rejected",
        /// The policy did not apply.
        Skipped = "skipped",
        /// Rejected for lack of a key.
        MissingKey = "missing-key",
        /// The limiter could not decide, so the request passed uncounted, or was answered 503.
        LimiterFailed = "limiter-failed",
        /// The client disconnected before the decision, or before its turn.
        Cancelled = "cancelled",
    }
}

impl Fate {
    /// The fate of a request that a policy has admitted.
    #[inline]
    pub(crate) const fn from_admission(admission: &Decision) -> Self {
        if admission.is_delayed() { Self::Delayed } else { Self::Allowed }
    }
}

/// The labels on a policy's series.
#[derive(Debug)]
pub(super) struct Labels {
    pub(super) policy: Arc<str>,
    pub(super) route: OnceLock<Arc<str>>,
    /// Whether requests may wait in a queue. If not, the policy does not have a series for waits.
    pub(super) delays: bool,
}

#[cfg(feature = "metrics")]
impl Labels {
    pub(super) fn all(&self) -> Vec<Label> {
        let route = self.route.get().map(|route| Label::new("route", Arc::clone(route)));
        route.into_iter().chain([Label::new("policy", Arc::clone(&self.policy))]).collect()
    }

    pub(super) fn with(&self, name: &'static str, value: &str) -> Vec<Label> {
        let mut labels = self.all();
        labels.push(Label::new(name, value.to_owned()));
        labels
    }
}
