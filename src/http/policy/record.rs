//! What a policy counts, and when it logs.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::metrics::{Fate, Meter};
use super::open_charges::OpenCharges;
use super::outage::{Health, Turn};
#[cfg(feature = "metrics")]
use super::penalty::Penalty;
use super::{FailureMode, Policy};
use crate::util::log;
use crate::values::time::{Clock, Monotonic};
use crate::values::{Decision, LimiterError, PartitionKey};

/// What is counted, and what was logged. Goes on when the policy is replaced by another of its name.
#[derive(Default)]
pub(super) struct Record {
    shadow_denied: AtomicU64,
    failures: AtomicU64,
    reported: AtomicBool,
    health: Health,
    /// Made when the first charge is to wait for its response.
    open_charges: OnceLock<Box<OpenCharges>>,
}

impl Policy {
    /// Charges on whose responses this policy waits.
    pub(crate) fn open_charges(&self) -> &OpenCharges {
        self.record.open_charges.get_or_init(Box::default)
    }

    pub(crate) fn count_shadow_denial(&self) {
        self.record.shadow_denied.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn shadow_denied(&self) -> u64 {
        self.record.shadow_denied.load(Ordering::Relaxed)
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

    /// Reads what is not counted as requests pass.
    #[cfg(feature = "metrics")]
    pub(crate) fn observe(&self) {
        self.meter.observe(|| self.stats());
    }

    /// To be called once this policy is in force no more; `has_successor` if another one of its name is.
    #[cfg(feature = "metrics")]
    pub(crate) fn observe_end(&self, has_successor: bool) {
        self.meter.count_last(|| self.stats());
        if !has_successor {
            self.meter.go();
        }
    }

    #[cfg(feature = "metrics")]
    fn stats(&self) -> crate::store::Stats {
        let bans = self.penalty.as_ref().map(Penalty::ban_table);
        crate::store::Stats { bans, ..self.limiter.stats() }
    }

    /// Counts what became of a request, and tells whoever listens at `debug`.
    #[inline]
    pub(crate) fn note(&self, fate: Fate, key: Option<&PartitionKey>, decision: Option<&Decision>) {
        self.meter.count(fate);
        let route = self.meter.route().map(AsRef::as_ref);
        log::judged(route, &self.name, fate.as_str(), key, decision);
    }

    /// Logs a mistake in the set-up the first time that it shows.
    pub(crate) fn report_misconfigured(&self, problem: &str) {
        if !self.record.reported.swap(true, Ordering::Relaxed) {
            log::misconfigured(&self.name, problem);
        }
    }

    /// Logs that the first thousand keys were one and the same. To be called with every key that was extracted;
    /// costs one relaxed load once it is settled.
    #[inline]
    pub(crate) fn note_key(&self, key: &PartitionKey) {
        if self.same_key.record(key) {
            log::one_key_for_all(&self.name);
        }
    }

    /// Logs when the limiter begins to fail, and when it has not failed for a while.
    #[inline]
    pub(crate) fn report_health(&self, failure: Option<&LimiterError>) {
        let turn = match failure {
            Some(_) => self.record.health.failed(Monotonic.now()),
            None => self.record.health.worked(|| Monotonic.now()),
        };
        match (turn, failure) {
            (Some(Turn::Failed), Some(error)) => {
                let requests = match self.on_failure {
                    FailureMode::LocalGuard => "are decided by this process alone, or answered 503 where it cannot",
                    FailureMode::Allow => "pass uncounted",
                    FailureMode::Deny => "are answered 503",
                };
                log::limiter_failed(&self.name, error, requests);
            }
            (Some(Turn::Recovered), _) => log::limiter_recovered(&self.name),
            _ => {}
        }
    }
}
