//! [`PolicyStatus`]: a policy in force, as an operator sees it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::LimitsHandle;
use crate::engine::policy::Policy;
use crate::engine::translate::Translate;
use crate::store::Stats;
use crate::values::{Mode, Terms};

/// A policy in force: its terms, the form of its keys, and its limiter's and its store's health.
#[derive(Clone, Debug)]
#[must_use]
pub struct PolicyStatus {
    name: Arc<str>,
    terms: Option<Terms>,
    delays: bool,
    can_reset: bool,
    keeps_credits: bool,
    is_shadow: bool,
    tracks_offenders: bool,
    keys: String,
    failures: u64,
    shadow_rejected: u64,
    stats: Stats,
}

impl<D: Translate> LimitsHandle<D> {
    /// Returns the policies in force, in the order in which they are charged. Takes some 10 to 50 µs per policy, and
    /// does not call a server.
    ///
    /// ```
    /// use tower_sluice::key::PeerIp;
    /// use tower_sluice::{Policy, Quota, RateLimitLayer};
    ///
    /// let layer = RateLimitLayer::new(Policy::new("per-client", Quota::per_second(10)).key(PeerIp::new()));
    /// let [policy] = &layer.handle().policies()[..] else { panic!("one policy") };
    /// assert_eq!((policy.name(), policy.terms().unwrap().limit()), ("per-client", 10));
    /// assert!(policy.keys().contains("203.0.113.7"));
    /// ```
    #[must_use]
    pub fn policies(&self) -> Vec<PolicyStatus> {
        self.layer.load().policies.iter().map(PolicyStatus::of).collect()
    }
}

impl PolicyStatus {
    fn of<D: Translate>(policy: &Policy<D>) -> Self {
        let record = &policy.lineage.record;
        Self {
            name: Arc::clone(&policy.name),
            terms: policy.description.terms(),
            delays: policy.description.delays(),
            can_reset: policy.description.answers(Mode::Reset),
            keeps_credits: policy.description.keeps_credits(),
            is_shadow: policy.shadow,
            tracks_offenders: policy.lineage.offenders.is_some(),
            keys: policy.selector.keys_as_text(),
            failures: record.failures.load(Ordering::Relaxed),
            shadow_rejected: record.shadow_rejected.load(Ordering::Relaxed),
            stats: policy.stats(),
        }
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The terms that the limiter advertises, if any.
    #[must_use]
    pub const fn terms(&self) -> Option<Terms> {
        self.terms
    }

    /// Whether its limiter may delay requests, as a queue does.
    #[must_use]
    pub const fn delays(&self) -> bool {
        self.delays
    }

    /// Whether its limiter can [reset](LimitsHandle::reset) a key. A queue cannot.
    #[must_use]
    pub const fn can_reset(&self) -> bool {
        self.can_reset
    }

    /// Whether its keys have the units that are [credited](LimitsHandle::credit) to them.
    #[must_use]
    pub const fn keeps_credits(&self) -> bool {
        self.keeps_credits
    }

    /// Whether it is a [shadow](crate::Policy::shadow), which never rejects requests.
    #[must_use]
    pub const fn is_shadow(&self) -> bool {
        self.is_shadow
    }

    /// Whether it [tracks](crate::Policy::track_offenders) the keys that it rejects most.
    #[must_use]
    pub const fn tracks_offenders(&self) -> bool {
        self.tracks_offenders
    }

    /// Its keys [as text](crate::policy::KeyOf), such as "an address, such as 203.0.113.7".
    #[must_use]
    pub fn keys(&self) -> &str {
        &self.keys
    }

    /// The number of requests on which its limiter could not decide; see
    /// [`limiter_failures`](crate::RateLimitLayer::limiter_failures).
    #[must_use]
    pub const fn failures(&self) -> u64 {
        self.failures
    }

    /// The number of requests that it would have rejected as a shadow.
    #[must_use]
    pub const fn shadow_rejected(&self) -> u64 {
        self.shadow_rejected
    }

    /// How full its tables are, how many requests wait in its queue, and its store's nodes.
    pub const fn stats(&self) -> &Stats {
        &self.stats
    }
}
