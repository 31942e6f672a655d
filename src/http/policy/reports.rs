//! What a policy counts in metrics, and logs.

use std::sync::atomic::Ordering;

use super::metrics::{Fate, Meter};
use super::penalty::Penalty;
use super::{MissingKey, Policy};
use crate::http::key::{KeyError, missing_extension};
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

    /// Logs, once, that no request had the extension that the key is read from.
    ///
    /// Such a request is rejected, and enough of them in a row are a mistake. If they are skipped, they may be those of
    /// clients that have not logged in, so more are needed. Shared keys are checked by [`note_key`](Self::note_key).
    pub(crate) fn report_missing_key(&self, error: &KeyError) {
        let (enough, fate) = match self.on_missing_key {
            MissingKey::Reject if !self.shadow => (100, "were answered 400"),
            MissingKey::Reject | MissingKey::Skip => (1_000, "passed unlimited"),
            MissingKey::Share => return,
        };
        let Some(extension) = missing_extension(error) else { return };
        // Relaxed: nothing else depends on the count. Threads that have passed this check may add a few more, so that it
        // cannot wrap around; of all, one reads `enough - 1`.
        if self.same_key.has_seen_a_key() || self.without_extension.load(Ordering::Relaxed) >= enough {
            return;
        }
        if self.without_extension.fetch_add(1, Ordering::Relaxed) == enough - 1 {
            log::no_extension(&self.name, extension, enough, fate);
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
        Stats { bans, debts: self.debt_table(), ..self.limiter.stats() }
    }
}
