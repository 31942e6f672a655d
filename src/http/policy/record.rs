//! The record of a policy: what a policy that replaces it continues to count.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::Policy;
use super::debts::Debts;
use super::expiring::CAPACITY;
use super::open_charges::OpenCharges;
use crate::limiter::{Health, Transition};
use crate::util::log;
use crate::values::time::{Clock, Monotonic};
use crate::values::{FailureMode, LimiterError, Mode};

/// The counters of a policy, the health of its limiter, its open charges, and what its keys owe. Shared with the policy of
/// its name that replaces it.
///
/// Counters are relaxed: nothing is published through them.
#[derive(Default)]
pub(super) struct Record {
    shadow_rejected: AtomicU64,
    failures: AtomicU64,
    health: Health,
    /// Made when it is first needed: the charges of most policies await no response.
    open_charges: OnceLock<Box<OpenCharges>>,
    /// Made for the first debt.
    debts: OnceLock<Box<Debts>>,
}

impl Record {
    /// What keys owe, if one has ever owed something.
    pub(super) fn debts(&self) -> Option<&Debts> {
        self.debts.get().map(|debts| &**debts)
    }

    /// What keys owe, by this clock if none has owed anything yet.
    pub(super) fn debts_by(&self, clock: impl FnOnce() -> Arc<dyn Clock>) -> &Debts {
        self.debts.get_or_init(|| Box::new(Debts::new(CAPACITY, clock())))
    }
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

    pub(crate) fn failures(&self) -> u64 {
        self.record.failures.load(Ordering::Relaxed)
    }

    /// Records a success or a failure of the limiter. Counts failures, and logs when the limiter begins to fail and
    /// when it has recovered.
    #[inline]
    pub(crate) fn report_health(&self, failure: Option<&LimiterError>) {
        if let Some(error) = failure {
            self.report_failure(error);
        } else if self.record.health.worked(|| Monotonic.now()) == Some(Transition::Recovered) {
            log::limiter_recovered(&self.name);
        }
    }

    #[cold]
    fn report_failure(&self, error: &LimiterError) {
        self.record.failures.fetch_add(1, Ordering::Relaxed);
        self.meter.failed();
        if self.record.health.failed(Monotonic.now()) == Some(Transition::Failed) {
            log::limiter_failed(&self.name, error, self.fate_on_failure());
        }
    }

    /// What becomes of requests while the limiter fails, for the log.
    fn fate_on_failure(&self) -> &'static str {
        match self.on_failure {
            _ if self.is_shadow() => "pass uncounted",
            FailureMode::LocalFallback if self.description.answers(Mode::Fallback) => {
                "are decided by the local fallback"
            }
            FailureMode::LocalFallback | FailureMode::Reject => "are answered 503",
            FailureMode::Allow => "pass uncounted",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::{Limiter, RateLimiter};
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
    fn the_log_says_what_becomes_of_requests_while_the_limiter_fails() {
        let custom = |description| Policy::new("p", Arc::new(Custom(description)));
        for (mode, without, with) in [
            (FailureMode::LocalFallback, "are answered 503", "are decided by the local fallback"),
            (FailureMode::Reject, "are answered 503", "are answered 503"),
            (FailureMode::Allow, "pass uncounted", "pass uncounted"),
        ] {
            assert_eq!(custom(Description::new()).on_failure(mode).fate_on_failure(), without);
            let fallback = Description::new().answering(Mode::Fallback);
            assert_eq!(custom(fallback.clone()).on_failure(mode).fate_on_failure(), with);
            assert_eq!(custom(fallback).on_failure(mode).shadow().fate_on_failure(), "pass uncounted");
        }
    }

    #[test]
    fn failures_are_counted_and_successes_are_not() {
        let bucket = RateLimiter::in_memory(crate::algorithm::TokenBucket::new(Quota::per_second(1)));
        let policy = Policy::new("p", bucket);
        policy.report_health(None);
        policy.report_health(Some(&LimiterError::new("the store is out of reach")));
        policy.report_health(Some(&LimiterError::new("the store is out of reach")));
        policy.report_health(None);
        assert_eq!(policy.failures(), 2);
    }
}
