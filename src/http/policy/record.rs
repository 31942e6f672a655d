//! The record of a policy: its counters, and what it has logged.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::health::{Health, Transition};
use super::metrics::{Fate, Meter};
use super::open_charges::OpenCharges;
#[cfg(feature = "metrics")]
use super::penalty::Penalty;
use super::{FailureMode, Policy};
use crate::util::log;
use crate::values::time::{Clock, Monotonic};
use crate::values::{Decision, LimiterError, PartitionKey};

/// The counters of a policy, and what it has logged. Shared with the policy of its name that replaces it.
#[derive(Default)]
pub(super) struct Record {
    shadow_rejected: AtomicU64,
    failures: AtomicU64,
    health: Health,
    /// Made at the first charge that awaits its response.
    open_charges: OnceLock<Box<OpenCharges>>,
}

impl Policy {
    /// The charges that await their responses.
    pub(crate) fn open_charges(&self) -> &OpenCharges {
        self.record.open_charges.get_or_init(Box::default)
    }

    pub(crate) fn count_shadow_rejection(&self) {
        self.record.shadow_rejected.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn shadow_rejected(&self) -> u64 {
        self.record.shadow_rejected.load(Ordering::Relaxed)
    }

    pub(crate) fn count_failure(&self) {
        self.record.failures.fetch_add(1, Ordering::Relaxed);
        self.meter.failed();
    }

    pub(crate) fn failures(&self) -> u64 {
        self.record.failures.load(Ordering::Relaxed)
    }

    pub(crate) const fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Updates the metrics that are not counted per request.
    #[cfg(feature = "metrics")]
    pub(crate) fn observe(&self) {
        self.meter.observe(|| self.stats());
    }

    /// Updates the metrics for the last time, since this policy is no longer in force. `has_successor` says whether
    /// another policy of its name is.
    #[cfg(feature = "metrics")]
    pub(crate) fn observe_end(&self, has_successor: bool) {
        self.meter.count_last(|| self.stats());
        if !has_successor {
            self.meter.retire();
        }
    }

    #[cfg(feature = "metrics")]
    fn stats(&self) -> crate::store::Stats {
        let bans = self.penalty.as_ref().map(Penalty::ban_table);
        crate::store::Stats { bans, ..self.limiter.stats() }
    }

    /// Counts the result of a request, and logs it at `debug`.
    #[inline]
    pub(crate) fn note(&self, fate: Fate, key: Option<&PartitionKey>, decision: Option<&Decision>) {
        self.meter.count(fate);
        let route = self.meter.route().map(AsRef::as_ref);
        log::decided(route, &self.name, fate.as_str(), key, decision);
    }

    /// Logs a configuration mistake, once.
    pub(crate) fn report_misconfigured(&self, problem: &str) {
        // Of several threads, the swap returns `false` to the first only.
        if !self.misconfiguration_logged.swap(true, Ordering::Relaxed) {
            log::misconfigured(&self.name, problem);
        }
    }

    /// Logs if the first 1,000 keys are the same. Called with every key that is extracted;
    /// costs one relaxed load once that is settled.
    #[inline]
    pub(crate) fn note_key(&self, key: &PartitionKey) {
        if self.same_key.record(key) {
            log::one_key_for_all(&self.name);
        }
    }

    /// Records a success or a failure of the limiter. Logs when it begins to fail, and when it has recovered.
    #[inline]
    pub(crate) fn report_health(&self, failure: Option<&LimiterError>) {
        let transition = match failure {
            Some(_) => self.record.health.failed(Monotonic.now()),
            None => self.record.health.worked(|| Monotonic.now()),
        };
        match (transition, failure) {
            (Some(Transition::Failed), Some(error)) => {
                let requests = match self.on_failure {
                    FailureMode::LocalFallback => "are decided by the local fallback, or answered 503 if there is none",
                    FailureMode::Allow => "pass uncounted",
                    FailureMode::Deny => "are answered 503",
                };
                log::limiter_failed(&self.name, error, requests);
            }
            (Some(Transition::Recovered), _) => log::limiter_recovered(&self.name),
            _ => {}
        }
    }
}
