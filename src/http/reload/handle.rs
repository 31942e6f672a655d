//! `LimitsHandle`: replaces the policies of a layer, and reports what could not be inherited.

use std::fmt;
use std::sync::Arc;

use super::{Enforceable, LayerState};
use crate::http::policy::{IntoPolicies, PolicyError};

/// Replaces the policies of a layer at run time; made by
/// [`RateLimitLayer::handle`](crate::RateLimitLayer::handle).
///
/// ```
/// use tower_sluice::algorithm::TokenBucket;
/// use tower_sluice::policy::PolicyError;
/// use tower_sluice::{Policy, Quota, RateLimitLayer};
///
/// let policy = |quota| Policy::new("api", TokenBucket::new(quota));
/// let layer = RateLimitLayer::new(policy(Quota::per_second(10)));
/// let limits = layer.handle();
///
/// // Later, from any thread: a client that has used five of ten has used five of fifty now.
/// limits.replace(policy(Quota::per_second(50)))?;
///
/// // Policies that `try_new` rejects change nothing.
/// let rejected = limits.replace(policy(Quota::per_second(50)).cost(51));
/// assert!(matches!(rejected, Err(PolicyError::CostAboveBurst { .. })));
/// # Ok::<_, PolicyError>(())
/// ```
///
/// # What is kept
///
/// A policy inherits from the predecessor of the same name. Policies with new names start with full budgets.
///
/// | inherited | if |
/// |---|---|
/// | what its keys have used | its limiter [can inherit](crate::Limiter::inherit) |
/// | bans, and advertised waits | both [penalties](crate::Policy::penalty) use clocks of one type. While a policy has no penalty, they are kept, but not enforced |
/// | premature retries, which count towards a ban | also, the predecessor itself has a penalty |
/// | counts of failures and of shadow rejections, metrics, expected refunds, and whether an outage of its limiter was logged | always |
///
/// - A lowered limit never grants more than its burst. A client that has used more waits until the excess is paid at
///   the new rate; the advertised wait is exact.
/// - A raised limit takes effect at once: a key gets the difference, and its debt is paid at the new rate.
/// - Waiters in a [`LeakyQueue`](crate::LeakyQueue) keep their order. Their turns follow the new rate. A waiter that
///   would wait too long then, or exceeds the new `max_queue`, is rejected.
///
/// In memory, [`WhenFull`](crate::store::WhenFull) is that of the new limiter, and so is the capacity, unless it
/// [is kept](Replaced::kept_capacity). [`replace`](Self::replace) returns what could not be inherited.
///
/// A limiter that several layers share (an `Arc` of it) is replaced in each layer separately: the others keep it,
/// undisturbed. If two layers replace it by the same new limiter, the first change counts, and they share the new
/// limiter from then on. A limiter that was used before, here or elsewhere, may be put in force again: in a
/// [`MemoryStore`](crate::store::MemoryStore), an equal new limiter then inherits, and the layer does not ask the one in
/// the given `Arc`; a [`LeakyQueue`](crate::LeakyQueue) that was used with a schedule of its own does not inherit.
///
/// # Accuracy
///
/// A request uses the policies that were in force when it came, until it is answered. What it still asks (a charge
/// after a wait, a refund, a settlement) goes to the heir, and is converted. In memory, a concurrent decision at the
/// instant of the change may go uncounted: at most one per deciding thread. Queues count all.
///
/// Debts of a bucket are kept in tokens, and a change costs a key less than a nanosecond of the new rate, or one tick
/// if ticks become longer. What a window counts at the instant of the change stays counted, in the present window of the
/// new period: see [below](#the-period-of-a-window). A refund is lost after more than two changes of a queue, after more
/// than 256 of a bucket, and after any change of a window's period.
///
/// If a table is full at the change, and its heir at the next one, more is owed than is kept: then the keys that owe
/// least are forgotten, whatever [`WhenFull`](crate::store::WhenFull) is, and counted in
/// [`evicted_live`](crate::RateLimiter::evicted_live), which goes on from the count of the table before.
///
/// # The period of a window
///
/// A window counts in one period at a time. A count that comes into a shorter period ends with it, and is gone if the
/// period changes back: from 1,000 per day to 10 per second and back two seconds later, each key passes 1,000 more. A
/// bucket keeps the debt.
///
/// # Cost
///
/// For requests, one load of the policies in force, which writes to no memory that other threads use; and for the first
/// request of a key after a change, a lookup of its old debt, which takes some microseconds. In memory, no request waits
/// for the change, nor for another request that copies the same debts. The thread that calls `replace` copies the debts
/// before it returns, while requests go on. Both tables are in memory until then, or until the last request from before
/// the change is answered, and the copy until its last debt is paid. It has 8 bytes for each key that owes something (24
/// to 48 if the table has locks), and no more than the table that it was made from. However many changes there are, the
/// copies are of one table, or of one for each [capacity](Replaced::kept_capacity) that the limiter had meanwhile.
///
/// After a burst of more than 2^18 units, a bucket with a much slower rate keeps its debts in a table with locks, of 98
/// bytes per key, until the next change: they would not fit into words.
///
/// Requests to a [`LeakyQueue`](crate::LeakyQueue) that has waiters do wait for its change, which holds its lock: 56 ms
/// with 65,536 waiters, 1.5 s with a million.
#[derive(Clone)]
#[doc(alias("hot reload", "reload", "live change"))]
pub struct LimitsHandle {
    layer: Arc<LayerState>,
}

impl LimitsHandle {
    pub(crate) const fn new(layer: Arc<LayerState>) -> Self {
        Self { layer }
    }

    /// Replaces all policies of the layer atomically. Other settings of the layer stay.
    ///
    /// Returns once the new policies are in force, with the policies that could not inherit.
    ///
    /// # Errors
    ///
    /// If [`RateLimitLayer::try_new`](crate::RateLimitLayer::try_new) would reject the policies. Then nothing has
    /// changed.
    pub fn replace(&self, policies: impl IntoPolicies) -> Result<Replaced, PolicyError> {
        Enforceable::new(policies).map(|policies| self.layer.replace(policies))
    }

    /// Rejects, with 503, all waiters in the queues of this layer (a [`LeakyQueue`](crate::LeakyQueue), a `RedisQueue`,
    /// or a custom limiter that implements [`Limiter::close`](crate::Limiter::close)), and all requests to these queues
    /// from now on. Call it when the server shuts down, before it waits for requests in flight: otherwise it waits for
    /// the whole queue.
    ///
    /// Other policies are not affected: a bucket decides as before. Closed queues stay closed, and queues of later
    /// changes are closed as well. A queue that several layers share is closed for all of them, even if it was replaced
    /// in this one before. A second call does nothing.
    ///
    /// Such a rejection is neither counted nor logged as a failure of the limiter, and
    /// [`FailureMode`](crate::FailureMode) does not apply.
    pub fn close(&self) {
        self.layer.close();
    }

    #[cfg(feature = "config")]
    pub(crate) fn enforce(&self, policies: Enforceable) -> Replaced {
        self.layer.replace(policies)
    }
}

impl fmt::Debug for LimitsHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitsHandle").field("policies", &self.layer.load().policies).finish()
    }
}

/// The result of a replacement of policies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replaced {
    pub(super) not_inherited: Vec<String>,
    pub(super) keeping_capacity: Vec<String>,
    pub(super) removed: Vec<String>,
}

impl Replaced {
    /// The policies that had a predecessor but could not inherit from it, so that all of their keys start with full
    /// budgets; see [`Limiter::inherit`](crate::Limiter::inherit).
    #[must_use]
    pub fn not_inherited(&self) -> &[String] {
        &self.not_inherited
    }

    /// The policies whose limiters keep the previous capacity, and not the requested one: of several changes of the
    /// capacity, a fourth takes effect only once the debts from before the first are paid. The next change tries again.
    #[must_use]
    pub fn kept_capacity(&self) -> &[String] {
        &self.keeping_capacity
    }

    /// The policies that were in force before and are no longer.
    #[must_use]
    pub fn removed(&self) -> &[String] {
        &self.removed
    }
}
