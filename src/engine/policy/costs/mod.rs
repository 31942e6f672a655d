//! The charge when a request comes: its cost, under its key's quota.

mod quota_check;

use self::quota_check::QuotaCheck;
use crate::engine::domain::{Domain, Reads};
use crate::engine::policy::log;
use crate::values::{Description, PartitionKey, Quota, Shape};

/// The cost that is charged when a request comes, and the quota under which it is charged.
pub(crate) struct Costs<D: Domain> {
    pub(super) cost: Cost<D>,
    /// The keys' own quotas, unless all keys have the limiter's quota.
    pub(super) quota: Option<QuotaFn<D>>,
}

/// The function that gives keys their own quotas.
pub(super) struct QuotaFn<D: Domain> {
    quota_of: Reads<D, Option<Quota>>,
    check: QuotaCheck,
    /// A pointer, so that a program without such quotas is not linked with the comparison.
    compare: fn(&QuotaCheck, &PartitionKey, Option<Quota>) -> bool,
}

pub(super) enum Cost<D: Domain> {
    Fixed(u64),
    PerRequest(Reads<D, u64>),
}

impl<D: Domain> Costs<D> {
    pub(super) fn new() -> Self {
        Self { cost: Cost::Fixed(1), quota: None }
    }

    #[inline]
    pub(crate) fn cost_of(&self, head: &D::Subject<'_>) -> u64 {
        match &self.cost {
            Cost::Fixed(cost) => *cost,
            Cost::PerRequest(cost) => cost(head),
        }
    }

    /// Every request's cost, if it is known in advance.
    pub(super) const fn fixed_cost(&self) -> Option<u64> {
        match self.cost {
            Cost::Fixed(cost) => Some(cost),
            Cost::PerRequest(_) => None,
        }
    }

    /// The own quota of a request's key, if it has one: `named`, if its extractor names one. Logs if a key's quota goes
    /// back and forth within the policy's first 1,000 requests. Costs one relaxed load once the check has ended.
    #[inline]
    pub(super) fn quota_of(
        &self,
        policy: &str,
        limiter: &Description,
        head: &D::Subject<'_>,
        key: &PartitionKey,
        named: Option<Quota>,
    ) -> Option<Quota> {
        let QuotaFn { quota_of, check, compare } = self.quota.as_ref()?;
        let quota = as_limited(limiter, named.or_else(|| quota_of(head)));
        // A plan may be paused and resumed at any time.
        let is_suspended = quota.is_some_and(|quota| quota.is_suspended());
        if !is_suspended && !check.is_decided() && compare(check, key, quota) {
            log::quota_alternates(policy);
        }
        quota
    }

    pub(super) fn set_quota_fn(&mut self, quota_of: impl Fn(&D::Subject<'_>) -> Option<Quota> + Send + Sync + 'static) {
        self.quota =
            Some(QuotaFn { quota_of: Box::new(quota_of), check: QuotaCheck::new(), compare: QuotaCheck::compare });
    }
}

/// The quota as the limiter applies it.
fn as_limited(limiter: &Description, quota: Option<Quota>) -> Option<Quota> {
    if quota.is_some_and(|quota| quota.is_suspended()) {
        return quota;
    }
    match limiter.terms().and_then(|terms| terms.shape()) {
        Some(Shape::FixedWindow | Shape::SlidingWindow) => quota.map(Quota::without_burst),
        #[cfg(feature = "calendar")]
        Some(Shape::CalendarWindow) if quota.is_some_and(|quota| quota.calendar().is_some()) => quota,
        // A key without its own windows has the limiter's windows.
        Some(Shape::CalendarWindow) => {
            let period = limiter.terms().and_then(|terms| terms.quota())?.period();
            Quota::try_per(quota?.limit(), period).ok()
        }
        _ => quota,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Algorithm, FixedWindow, LeakyBucket, SlidingWindow, TokenBucket};
    use crate::limiter::{IntoLimiter, RateLimiter};
    use crate::store::MemoryStore;

    /// Otherwise, responses would advertise a burst, or a period, that the limiter does not apply.
    #[test]
    fn a_keys_quota_is_the_one_applied() {
        fn check(algorithm: impl Algorithm) {
            let quota = Quota::per_hour(20).burst(50);
            let applied = algorithm.under(quota).unwrap().quota();
            let limiter = RateLimiter::new(algorithm, MemoryStore::default()).into_limiter().describe();
            assert_eq!([Some(quota), None].map(|quota| as_limited(&limiter, quota)), [Some(applied), None]);
        }
        let own = Quota::per_minute(3);
        check(TokenBucket::new(own));
        check(LeakyBucket::new(own));
        check(FixedWindow::new(own));
        check(SlidingWindow::new(own));
        #[cfg(feature = "calendar")]
        check(crate::algorithm::CalendarWindow::monthly(3));
    }
}
