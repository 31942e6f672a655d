//! [`Operate`]: an operator's calls on policies of any kind.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use super::{KeyStatus, LimitsHandle, PolicyStatus};
use crate::engine::policy::{Offender, Offenders};
use crate::engine::translate::Translate;
use crate::values::{Credit, Debit, Exception, LimiterError};

mod sealed {
    use crate::engine::reload::LimitsHandle;
    use crate::engine::translate::Translate;

    /// Sealed, so that a call can be added.
    pub trait Sealed {}

    impl<D: Translate> Sealed for LimitsHandle<D> {}
}

/// A call's future, which does not borrow anything.
type Pending<T> = Pin<Box<dyn Future<Output = Result<T, LimiterError>> + Send>>;

/// An operator's calls on policies of any kind: in a [layer](crate::RateLimitLayer::handle), or on [the program's own
/// values](crate::direct::Limits). Use it for a page or a command line that has all limits in a program in one list.
/// Each calls the [`LimitsHandle`] method with the same name, with a key as [text](crate::policy::KeyOf).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_sluice::LimiterError> {
/// use std::sync::Arc;
/// use tower_sluice::direct::Limits;
/// use tower_sluice::policy::Operate;
/// use tower_sluice::{Policy, Quota, RateLimitLayer};
///
/// let requests = RateLimitLayer::new(Policy::new("api", Quota::per_second(10))).handle();
/// let jobs = Limits::new(Policy::on("jobs", Quota::per_hour(100)).key_by(|customer: &u64| *customer));
/// let all: [Arc<dyn Operate>; 2] = [requests.into(), jobs.into()];
/// assert_eq!(all[1].peek("jobs", "17").await?.decision().remaining(), 100);
/// # Ok(())
/// # }
/// ```
///
/// Implemented for [`LimitsHandle`] only.
pub trait Operate: sealed::Sealed + Send + Sync {
    /// See [`LimitsHandle::policies`].
    fn policies(&self) -> Vec<PolicyStatus>;

    /// See [`LimitsHandle::exceptions`].
    ///
    /// # Errors
    ///
    /// If there is no policy with this name.
    fn exceptions(&self, policy: &str) -> Result<Vec<(String, Exception)>, LimiterError>;

    /// See [`LimitsHandle::offenders`].
    fn offenders(&self, policy: &str, most: usize) -> Pending<Offenders>;

    /// See [`LimitsHandle::rejections`].
    fn rejections(&self, policy: &str, key: &str) -> Pending<Option<Offender>>;

    /// See [`LimitsHandle::peek`].
    fn peek(&self, policy: &str, key: &str) -> Pending<KeyStatus>;

    /// See [`LimitsHandle::reset`].
    fn reset(&self, policy: &str, key: &str) -> Pending<KeyStatus>;

    /// See [`LimitsHandle::credit`].
    fn credit(&self, policy: &str, key: &str, credit: Credit) -> Pending<KeyStatus>;

    /// See [`LimitsHandle::charge`].
    fn charge(&self, policy: &str, key: &str, debit: Debit) -> Pending<KeyStatus>;

    /// See [`LimitsHandle::ban`].
    fn ban(&self, policy: &str, key: &str, span: Duration, reason: &str) -> Pending<KeyStatus>;

    /// See [`LimitsHandle::allow`].
    fn allow(&self, policy: &str, key: &str, span: Duration, reason: &str) -> Pending<KeyStatus>;

    /// See [`LimitsHandle::unban`].
    fn unban(&self, policy: &str, key: &str) -> Pending<KeyStatus>;
}

impl<D: Translate> Operate for LimitsHandle<D> {
    fn policies(&self) -> Vec<PolicyStatus> {
        self.policies()
    }

    fn exceptions(&self, policy: &str) -> Result<Vec<(String, Exception)>, LimiterError> {
        self.exceptions(policy)
    }

    fn offenders(&self, policy: &str, most: usize) -> Pending<Offenders> {
        let (limits, policy) = (self.clone(), policy.to_owned());
        Box::pin(async move { limits.offenders(&policy, most).await })
    }

    fn rejections(&self, policy: &str, key: &str) -> Pending<Option<Offender>> {
        let (limits, policy, key) = owned(self, policy, key);
        Box::pin(async move { limits.rejections(&policy, &key).await })
    }

    fn peek(&self, policy: &str, key: &str) -> Pending<KeyStatus> {
        let (limits, policy, key) = owned(self, policy, key);
        Box::pin(async move { limits.peek(&policy, &key).await })
    }

    fn reset(&self, policy: &str, key: &str) -> Pending<KeyStatus> {
        let (limits, policy, key) = owned(self, policy, key);
        Box::pin(async move { limits.reset(&policy, &key).await })
    }

    fn credit(&self, policy: &str, key: &str, credit: Credit) -> Pending<KeyStatus> {
        let (limits, policy, key) = owned(self, policy, key);
        Box::pin(async move { limits.credit(&policy, &key, credit).await })
    }

    fn charge(&self, policy: &str, key: &str, debit: Debit) -> Pending<KeyStatus> {
        let (limits, policy, key) = owned(self, policy, key);
        Box::pin(async move { limits.charge(&policy, &key, debit).await })
    }

    fn ban(&self, policy: &str, key: &str, span: Duration, reason: &str) -> Pending<KeyStatus> {
        let (limits, policy, key) = owned(self, policy, key);
        let reason = reason.to_owned();
        Box::pin(async move { limits.ban(&policy, &key, span, &reason).await })
    }

    fn allow(&self, policy: &str, key: &str, span: Duration, reason: &str) -> Pending<KeyStatus> {
        let (limits, policy, key) = owned(self, policy, key);
        let reason = reason.to_owned();
        Box::pin(async move { limits.allow(&policy, &key, span, &reason).await })
    }

    fn unban(&self, policy: &str, key: &str) -> Pending<KeyStatus> {
        let (limits, policy, key) = owned(self, policy, key);
        Box::pin(async move { limits.unban(&policy, &key).await })
    }
}

/// Copies the arguments for a future that does not borrow anything.
fn owned<D: Translate>(limits: &LimitsHandle<D>, policy: &str, key: &str) -> (LimitsHandle<D>, String, String) {
    (limits.clone(), policy.to_owned(), key.to_owned())
}

impl<D: Translate> From<LimitsHandle<D>> for Arc<dyn Operate> {
    fn from(limits: LimitsHandle<D>) -> Self {
        Arc::new(limits)
    }
}
