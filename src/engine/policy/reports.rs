//! A policy's metrics, logs and events.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::engine::domain::Domain;
use crate::engine::key::KeyError;
use crate::engine::policy::bans::Penalty;
use crate::engine::policy::definition::Policy;
use crate::engine::policy::limited_keys::LimitedKeys;
use crate::engine::policy::log;
use crate::engine::policy::metrics::Fate;
use crate::engine::policy::overrides::Overrides;
use crate::engine::policy::shares::Crossing;
use crate::engine::policy::transitions::{Event, Hook, Transition};
use crate::store::Stats;
use crate::values::time::{Clock, Monotonic};
use crate::values::{Decision, Exception, FailureMode, LimiterError, Mode, Override, PartitionKey};

/// How long a key is not reported again if we do not know when its budget is full.
const QUIET: Duration = Duration::from_secs(60);

impl<D: Domain> Policy<D> {
    /// Counts a request's result, and logs it at `debug`. A key's first rejection is an event.
    #[inline]
    pub(crate) fn note(&self, fate: Fate, key: Option<&PartitionKey>, decision: Option<&Decision>) {
        self.lineage.meter.count(fate);
        if let (Fate::Rejected | Fate::ShadowRejected, Some(key), Some(decision)) = (fate, key, decision) {
            self.note_limited(key, decision);
        }
        if log::has_decisions() {
            self.log(fate, key, decision);
        }
    }

    #[cold]
    fn log(&self, fate: Fate, key: Option<&PartitionKey>, decision: Option<&Decision>) {
        log::decided(self.lineage.meter.route().map(AsRef::as_ref), &self.name, fate.as_str(), key, decision);
    }

    /// Notes a request's key, to detect mistakes in the key extractor.
    #[inline]
    pub(crate) fn note_key(&self, key: &PartitionKey) {
        self.selector.note_key(&self.name, key);
    }

    /// Notes that a request does not have a key.
    pub(crate) fn note_missing_key(&self, error: &KeyError) {
        self.selector.note_missing_key(&self.name, self.shadow, error);
    }

    /// Records the limiter's success or failure. Counts failures, and logs when the limiter begins to fail and when it
    /// has recovered.
    #[inline]
    pub(crate) fn report_health(&self, failure: Option<&LimiterError>) {
        if let Some(error) = failure {
            self.report_failure(error);
        } else if self.lineage.record.health.worked(|| Monotonic.now()) {
            self.report_recovery();
        }
    }

    #[cold]
    #[inline(never)]
    fn report_recovery(&self) {
        log::limiter_recovered(&self.name);
        self.tell_hook(Transition::Recovered, 0);
    }

    /// Records that a limiter that sheds has admitted a request.
    pub(crate) fn note_not_shed(&self) {
        if self.lineage.record.shedding.worked(|| Monotonic.now()) {
            self.report_end_of_shedding();
        }
    }

    #[cold]
    #[inline(never)]
    fn report_end_of_shedding(&self) {
        log::shedding_ended(&self.name, self.shadow);
        self.tell_hook(Transition::SheddingEnded, 0);
    }

    #[cold]
    fn report_failure(&self, error: &LimiterError) {
        self.lineage.record.failures.fetch_add(1, Ordering::Relaxed);
        self.lineage.meter.failed();
        if self.lineage.record.health.failed(Monotonic.now()) {
            log::limiter_failed(&self.name, error, self.fate_on_failure());
            self.tell_hook(Transition::Failing { error }, 0);
        }
    }

    /// Whether a fallback in this process decides while the limiter fails. A queue cannot be the fallback for a shadow,
    /// because a shadow must not delay requests.
    pub(crate) fn falls_back(&self) -> bool {
        let is_queue_of_shadow = self.shadow && self.description.delays();
        self.on_failure == FailureMode::LocalFallback && self.description.answers(Mode::Fallback) && !is_queue_of_shadow
    }

    /// How requests are treated while the limiter fails, for the log.
    pub(super) fn fate_on_failure(&self) -> &'static str {
        match self.on_failure {
            _ if self.falls_back() => "are decided by the local fallback",
            _ if self.shadow => "pass uncounted",
            FailureMode::LocalFallback | FailureMode::Reject => D::FAILED_CLOSED,
            FailureMode::Allow => "pass uncounted",
        }
    }

    /// Updates the metrics that are not counted per request.
    #[cfg(feature = "metrics")]
    pub(crate) fn observe(&self) {
        self.lineage.meter.observe(|| self.stats());
    }

    /// Updates the metrics for the last time, because this policy is no longer in force. `is_removed` says that no
    /// other policy with its name is in force.
    pub(crate) fn observe_end(&self, is_removed: bool) {
        self.lineage.meter.count_last(|| self.stats());
        if is_removed {
            self.lineage.meter.retire();
        }
    }

    /// The limiter's figures, and the ban and debt tables.
    pub(crate) fn stats(&self) -> Stats {
        let bans = self.lineage.penalty.as_ref().map(Penalty::ban_table);
        let by_hand = self.lineage.record.overrides().map(Overrides::counts);
        Stats { bans, by_hand, debts: self.debt_table(), ..self.limiter.stats() }
    }
}

/// Transitions are logged, and reported to the layer's hook.
impl<D: Domain> Policy<D> {
    /// Counts a request that the limiter sheds before its key is known. It is not logged.
    #[inline]
    pub(crate) fn note_anybody_shed(&self) {
        self.lineage.meter.count(Fate::Rejected);
        self.note_shed();
    }

    /// Notes that the limiter sheds. An overloaded server does this for most requests.
    #[inline]
    fn note_shed(&self) {
        if self.lineage.record.shedding.failed_often(|| Monotonic.now()) {
            self.report_shedding();
        }
    }

    #[cold]
    #[inline(never)]
    fn report_shedding(&self) {
        log::shedding(&self.name, self.shadow);
        self.tell_hook(Transition::Shedding, 0);
    }

    /// Notes that the limiter has rejected a request: that it sheds, or, for the layer's hook, a key's first rejection.
    #[cold]
    pub(super) fn note_limited(&self, key: &PartitionKey, decision: &Decision) {
        if self.description.sheds() && decision.is_shed() {
            self.note_shed();
            return;
        }
        // A ban has its own event, and a suspended quota is the operator's doing.
        if decision.ban().is_some() || decision.is_suspended() {
            return;
        }
        if let Some(hook) = &self.hook {
            (hook.note_limited)(self, key, decision);
        }
    }

    /// Reports a key's first rejection.
    fn report_limited(&self, key: &PartitionKey, decision: &Decision) {
        let record = self.limited_keys();
        let full_in = decision.reset_after().max(decision.retry_after().unwrap_or_default());
        // If `full_in` is zero, the budget is full and the cost never fits, or other requests in flight hold it for an
        // unknown time.
        let quiet = if full_in.is_zero() { QUIET } else { full_in };
        if !record.begins(key, quiet) {
            return;
        }
        if let Some(left_out) = record.admit() {
            log::key_limited(self.line(key, left_out), self.shadow, decision.retry_after());
            self.tell_hook(Transition::Limited { key, decision }, left_out);
        }
    }

    /// Notes that a penalty has banned a key.
    #[cold]
    pub(super) fn note_banned(&self, key: &PartitionKey, ban: Exception) {
        if let Some(left_out) = self.limited_keys().admit() {
            log::key_banned(self.line(key, left_out), &ban);
            self.tell_hook(Transition::Banned { key, ban }, left_out);
        }
    }

    /// Reports that a key's use has crossed a share of its limit, unless there are too many such events.
    pub(super) fn report_crossed(&self, crossing: &Crossing<'_>) {
        if let Some(left_out) = self.limited_keys().admit() {
            log::share_crossed(self.line(crossing.key(), left_out), self.shadow, &crossing.share());
            self.tell_hook(Transition::Crossed { crossing: *crossing }, left_out);
        }
    }

    /// Reports an operator's act on a key.
    pub(crate) fn report_override(&self, key: &PartitionKey, by_hand: Override) {
        let line = self.line(key, 0);
        let transition = match by_hand.exception() {
            Some(ban) if ban.is_ban => {
                log::key_banned(line, &ban);
                Transition::Banned { key, ban }
            }
            Some(allowance) => {
                log::key_allowed(line, &allowance);
                Transition::Allowed { key, allowance }
            }
            None => {
                log::key_let_in(line);
                Transition::Lifted { key }
            }
        };
        self.tell_hook(transition, 0);
    }

    /// Reports that an operator resets a key.
    pub(crate) fn report_reset(&self, key: &PartitionKey) {
        log::key_reset(self.line(key, 0));
        self.tell_hook(Transition::Reset { key }, 0);
    }

    fn line<'a>(&'a self, key: &'a PartitionKey, left_out: u64) -> log::KeyLine<'a> {
        log::KeyLine { policy: &self.name, route: self.lineage.meter.route().map(AsRef::as_ref), key, left_out }
    }

    /// Reports a transition to the layer's hook. The callers log it, so that a program is linked only with the log
    /// lines that it needs.
    fn tell_hook(&self, transition: Transition<'_>, left_out: u64) {
        let Some(hook) = &self.hook else { return };
        (hook.tell)(&Event {
            policy: &self.name,
            route: self.lineage.meter.route().map(AsRef::as_ref),
            shadow: self.shadow,
            selector: &self.selector,
            transition,
            left_out,
        });
    }

    fn limited_keys(&self) -> &LimitedKeys {
        self.lineage.record.limited_keys_by(|| self.clock())
    }
}

impl<D: Domain> Hook<Policy<D>> {
    pub(crate) fn new(tell: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Self {
        Self { tell: Arc::new(tell), note_limited: Policy::report_limited }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::limiter::{Limiter, RateLimiter};
    use crate::values::time::Timestamp;
    use crate::values::{Answer, Ask, Decision, Description, Quota};

    struct Custom(Description);

    impl Limiter for Custom {
        fn decide(&self, _: &Ask<'_>) -> Answer {
            Decision::allow(1, 1).into()
        }

        fn describe(&self) -> Description {
            self.0.clone()
        }
    }

    #[test]
    fn the_log_names_the_failure_mode() {
        let custom = |description| Policy::new("p", Arc::new(Custom(description)));
        for (mode, without, with) in [
            (FailureMode::LocalFallback, "are answered 503", "are decided by the local fallback"),
            (FailureMode::Reject, "are answered 503", "are answered 503"),
            (FailureMode::Allow, "pass uncounted", "pass uncounted"),
        ] {
            assert_eq!(custom(Description::new()).on_failure(mode).fate_on_failure(), without);
            let fallback = Description::new().answering(Mode::Fallback);
            assert_eq!(custom(fallback.clone()).on_failure(mode).fate_on_failure(), with);
            let of_shadow = if mode == FailureMode::LocalFallback { with } else { "pass uncounted" };
            assert_eq!(custom(fallback).on_failure(mode).shadow().fate_on_failure(), of_shadow);
            let queue = Description::new().answering(Mode::Fallback).delaying();
            for description in [Description::new(), queue] {
                assert_eq!(custom(description).on_failure(mode).shadow().fate_on_failure(), "pass uncounted");
            }
        }
    }

    #[test]
    fn only_failures_are_counted() {
        let bucket = RateLimiter::in_memory(crate::algorithm::TokenBucket::new(Quota::per_second(1)));
        let policy = Policy::new("p", bucket);
        policy.report_health(None);
        policy.report_health(Some(&LimiterError::new("the store is out of reach")));
        policy.report_health(Some(&LimiterError::new("the store is out of reach")));
        policy.report_health(None);
        assert_eq!(policy.lineage.record.failures.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn an_outages_end_is_an_event() {
        let events = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&events);
        let mut policy = Policy::new("p", Quota::per_second(1));
        policy.hook = Some(Hook::new(move |event| noted.lock().unwrap().push(format!("{event:?}"))));
        policy.report_health(None);
        // It failed long ago.
        assert!(policy.lineage.record.health.failed(Timestamp::from_nanos(1)));
        policy.report_health(None);
        policy.report_health(None);
        assert_eq!(*events.lock().unwrap(), ["Event { policy: \"p\", transition: \"Recovered\", .. }"]);
    }
}
