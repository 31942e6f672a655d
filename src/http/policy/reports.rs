//! What a policy counts in metrics, and logs.

use std::sync::atomic::Ordering;

use super::Policy;
use super::metrics::{Fate, Meter};
use super::penalty::Penalty;
use crate::store::Stats;
use crate::util::log;
use crate::values::{Decision, PartitionKey, Quota};

impl Policy {
    pub(crate) const fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Counts the result of a request, and logs it at `debug`.
    #[inline]
    pub(crate) fn note(&self, fate: Fate, key: Option<&PartitionKey>, decision: Option<&Decision>) {
        self.meter.count(fate);
        let route = self.meter.route().map(AsRef::as_ref);
        log::decided(route, &self.name, fate.as_str(), key, decision);
    }

    /// Logs if the first 1,000 keys are the same. Called with every key that is extracted; costs one relaxed load once
    /// that is settled.
    #[inline]
    pub(crate) fn note_key(&self, key: &PartitionKey) {
        if self.same_key.record(key) {
            log::one_key_for_all(&self.name);
        }
    }

    /// Logs if the quota of a key goes back and forth within the first 1,000 requests. Called with every quota that is looked
    /// up; costs one relaxed load once that is settled.
    #[inline]
    pub(super) fn note_quota(&self, key: &PartitionKey, quota: Option<Quota>) {
        if self.quota_check.record(key, quota) {
            log::quota_alternates(&self.name);
        }
    }

    /// Logs a configuration mistake, once.
    pub(crate) fn report_misconfigured(&self, problem: &str) {
        // Of several threads, the swap returns `false` to the first only.
        if !self.misconfiguration_logged.swap(true, Ordering::Relaxed) {
            log::misconfigured(&self.name, problem);
        }
    }

    /// Updates the metrics that are not counted per request.
    #[cfg(feature = "metrics")]
    pub(crate) fn observe(&self) {
        self.meter.observe(|| self.stats());
    }

    /// Updates the metrics for the last time, since this policy is no longer in force. `has_successor` says whether
    /// another policy of its name is.
    pub(crate) fn observe_end(&self, has_successor: bool) {
        self.meter.count_last(|| self.stats());
        if !has_successor {
            self.meter.retire();
        }
    }

    fn stats(&self) -> Stats {
        let bans = self.penalty.as_ref().map(Penalty::ban_table);
        Stats { bans, ..self.limiter.stats() }
    }
}
