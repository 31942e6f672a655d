//! `Limiter`, the trait that policies consult, and `RateLimiter`, an algorithm over a store.

mod health;
mod hold;
mod throttle;

use std::future::Future;
use std::sync::Arc;

pub(crate) use self::health::{Health, Transition};
pub(crate) use self::hold::Hold;
pub use self::throttle::{Throttle, ThrottleError, ThrottleFuture, ThrottleLayer};

use crate::algorithm::{Algorithm, TokenBucket};
use crate::store::{MemoryStore, Stats, Store};
use crate::values::time::Clock;
use crate::values::{
    Ask, Check, Decision, Description, Heritage, Inheritance, LimiterError, PartitionKey, Quota, Receipt,
};

/// Decides whether a key may have a number of units, now or later.
///
/// Object safe: policies hold an `Arc<dyn Limiter>`, so algorithms, stores and queues can be mixed
/// and chosen at run time.
///
/// | limiter | a request that does not fit |
/// |---|---|
/// | [`RateLimiter`] | is rejected, with the exact time to wait |
/// | [`LeakyQueue`](crate::LeakyQueue) | waits its turn, and is rejected only if the queue is too long |
/// | [`Concurrency`](crate::Concurrency) | is rejected, or waits until others are over |
/// | a custom limiter | is decided by your code |
///
/// # Custom limiters
///
/// One method is required:
///
/// ```
/// use tower_sluice::{Ask, Check, Decision, Limiter, Policy, RateLimitLayer};
///
/// /// Rejects whatever costs more than ten.
/// struct NothingBig;
///
/// impl Limiter for NothingBig {
///     fn decide(&self, ask: &Ask<'_>) -> Check {
///         if ask.cost() <= 10 { Decision::allow(10, 10).into() } else { Decision::reject(10, 10, None).into() }
///     }
/// }
///
/// let layer = RateLimitLayer::new(Policy::new("small", std::sync::Arc::new(NothingBig)));
/// ```
///
/// Such a limiter is asked to [charge](crate::Mode::Charge), and nothing else. What it declares in
/// [`describe`](Self::describe) enables further modes, and fields in responses.
pub trait Limiter: Send + Sync + 'static {
    /// Decides on the request, and charges it as its [mode](Ask::mode) says.
    fn decide(&self, ask: &Ask<'_>) -> Check;

    /// Refunds `cost` units of the charge that returned `receipt`, as far as they are still owed. By default, charges
    /// stay.
    ///
    /// Of a limiter whose requests [hold](Description::holding) their units, this releases them.
    fn refund(&self, key: &PartitionKey, receipt: Receipt, cost: u32) {
        let _ = (key, receipt, cost);
    }

    /// Refunds a charge that was made [under a quota](Ask::under) of the key's own. By default as
    /// [`refund`](Self::refund).
    fn refund_under(&self, quota: Quota, key: &PartitionKey, receipt: Receipt, cost: u32) {
        let _ = quota;
        self.refund(key, receipt, cost);
    }

    /// Prepares to be asked [under quotas](Ask::under) of the keys' own, and returns whether the limiter takes them. By
    /// default it does not.
    ///
    /// A policy with a [`quota_fn`](crate::Policy::quota_fn) calls it once, before anything is asked. Call it yourself
    /// before you ask a [`MemoryStore`] under quotas without a policy: it makes the table for that, and copies the keys of a
    /// limiter that is in use already, which takes 0.1 s for a million of them, and 2.5 s for ten.
    fn take_quotas(&self) -> bool {
        false
    }

    /// The properties that layers and clients need in advance.
    fn describe(&self) -> Description {
        Description::new()
    }

    /// Inherits what the keys of `predecessor` have used, under this limiter's quota. Returns `None`, the default, if
    /// it cannot; then all keys start with a full budget.
    ///
    /// For a [live change](crate::LimitsHandle), which puts the heir in force and then finishes the [`Inheritance`].
    /// The heir is this limiter itself if it was not used yet. A limiter that holds debts of its own (it was in force
    /// before, or is in force elsewhere) cannot take on those of another as well. In a [`MemoryStore`], a new limiter
    /// with the same algorithm, capacity and clock is then the heir; a `LeakyQueue` returns `None`, unless the two share
    /// a schedule already. The two limiters must be of one kind:
    ///
    /// | limiter | inherits from | what is kept |
    /// |---|---|---|
    /// | a bucket in a [`MemoryStore`] | any such bucket | the debt of every key in tokens, to a tick of the new rate |
    /// | a window in a `MemoryStore` | one of the same type. If one of the two is staggered, so must be the other, with the same period | what counts at the moment of the change |
    /// | a bucket or a window in a `MemoryStore` whose keys have [quotas of their own](Ask::under) | one of the same kind, whether its keys have such quotas or not | each state with its quota, until the key is asked about under another. The reverse as well: then all keys are converted at the change |
    /// | a [`LeakyQueue`](crate::LeakyQueue) without a schedule of its own | any other | all waiters in their order, and what was spent |
    /// | a [`Concurrency`](crate::Concurrency) that was not used yet | any other | what is in flight, and all waiters |
    /// | a custom algorithm in a `MemoryStore` | one of the same type, if the algorithm [can](Algorithm::can_inherit) | the states that it converts |
    /// | a `RedisStore` | one of the same name on the same `Redis`: a bucket from any bucket, a window from one of the same type | the state on the server |
    /// | a `RedisQueue` | one of the same name on the same `Redis` | the reservations on the server; requests that wait depart as scheduled |
    /// | a `RedisConcurrency` that was not used yet | one of the same name on the same `Redis` | what is in flight, and all waiters |
    ///
    /// Both must use the same clock. In a `MemoryStore`, each heir has its own copy of what was used at the instant of
    /// the change; the predecessor keeps its state for other layers that use it. Heirs of a queue share the queue.
    fn inherit(&self, predecessor: &dyn Limiter) -> Option<Inheritance<Arc<dyn Limiter>>> {
        let _ = predecessor;
        None
    }

    /// The state that heirs [inherit](Self::inherit); by default none.
    fn heritage(&self) -> Option<Heritage> {
        None
    }

    /// Reports how full the table is, the waiters, and the health of the servers; by default nothing. For gauges: not
    /// on the path of requests.
    fn stats(&self) -> Stats {
        Stats::default()
    }

    /// Rejects all waiters, and all requests from now on, with [`LimiterError::closed`](crate::LimiterError::closed).
    /// For the shutdown of a server, which would otherwise wait for its queue. It cannot be undone; a second call does
    /// nothing.
    ///
    /// Does nothing by default, which is right for limiters that decide at once.
    fn close(&self) {}
}

/// Limits work that is not an HTTP request: a job, a message, a call to a partner.
pub trait LimiterExt: Limiter {
    /// Charges `cost` units to `key` if they are admitted, and waits for the decision: for a turn in a
    /// [`LeakyQueue`](crate::LeakyQueue), or for the server of a `RedisStore`. A limiter in memory decides at once: in
    /// the call itself, even if the future is never polled.
    ///
    /// ```
    /// use tower_sluice::{LeakyQueue, LimiterExt, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let partner = LeakyQueue::new(Quota::per_second(5));
    /// for invoice in ["2041", "2042"] {
    ///     let decision = partner.acquire(&"partner".into(), 1).await?;
    ///     assert!(decision.is_allowed(), "send {invoice} now");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// If the limiter cannot decide. A rejection is not an error: check the [outcome](Decision::outcome).
    ///
    /// # Units in flight
    ///
    /// A limiter that [holds](Description::holds) units keeps them until they are [refunded](Limiter::refund) by the
    /// decision's receipt. A [`Concurrency`](crate::Concurrency) has an `acquire` of its own, with a permit that does so.
    ///
    /// # Cancel safety
    ///
    /// A future that is dropped while it waits for its turn leaves the queue. A server may have charged it.
    #[doc(alias("wait", "until_ready"))]
    fn acquire(&self, key: &PartitionKey, cost: u32) -> impl Future<Output = Result<Decision, LimiterError>> + Send {
        self.decide(&Ask::charge(key, cost)).decided()
    }
}

impl<L: Limiter + ?Sized> LimiterExt for L {}

/// An [`Algorithm`] over a [`Store`].
///
/// Usable on its own, without any HTTP:
///
/// ```
/// use tower_sluice::algorithm::SlidingWindow;
/// use tower_sluice::{PartitionKey, Quota, RateLimiter};
///
/// let limiter = RateLimiter::in_memory(SlidingWindow::new(Quota::per_minute(2)));
/// let alice = PartitionKey::from("alice");
///
/// for expected in [true, true, false] {
///     assert_eq!(limiter.check(&alice).is_allowed(), expected);
/// }
/// ```
#[derive(Debug)]
#[doc(alias = "governor")]
pub struct RateLimiter<A, S> {
    /// Shared with the heirs of this limiter.
    algorithm: Arc<A>,
    store: S,
}

impl<A, S: Clone> Clone for RateLimiter<A, S> {
    fn clone(&self) -> Self {
        Self { algorithm: Arc::clone(&self.algorithm), store: self.store.clone() }
    }
}

impl<A: Algorithm> RateLimiter<A, MemoryStore<A::State>> {
    /// `algorithm` over a [`MemoryStore`] for 65,536 live keys.
    #[must_use]
    pub fn in_memory(algorithm: A) -> Self {
        Self::new(algorithm, MemoryStore::default())
    }
}

impl<A: Algorithm, S: Store<A>> RateLimiter<A, S> {
    /// `algorithm` over `store`.
    #[must_use]
    pub fn new(algorithm: A, store: S) -> Self {
        store.prepare(&algorithm);
        Self { algorithm: Arc::new(algorithm), store }
    }

    /// The algorithm.
    #[must_use]
    pub fn algorithm(&self) -> &A {
        &self.algorithm
    }

    /// The store.
    #[must_use]
    pub const fn store(&self) -> &S {
        &self.store
    }
}

impl<A: Algorithm, C: Clock> RateLimiter<A, MemoryStore<A::State, C>> {
    /// Charges one unit to `key`, if it is admitted. A limiter in memory decides at once and cannot fail.
    ///
    /// For another cost or mode, use [`decide`](Limiter::decide).
    #[inline]
    #[doc(alias = "try_acquire")]
    pub fn check(&self, key: &PartitionKey) -> Decision {
        self.store.charge(&*self.algorithm, &Ask::charge(key, 1))
    }
}

impl<A: Algorithm, S: Store<A>> Limiter for RateLimiter<A, S> {
    // Inlined down to the store, so that a caller that reads only the outcome does not pay for the rest.
    #[inline(always)]
    fn decide(&self, ask: &Ask<'_>) -> Check {
        self.store.decide(&self.algorithm, ask)
    }

    fn refund(&self, key: &PartitionKey, receipt: Receipt, cost: u32) {
        self.store.refund(&self.algorithm, key, receipt, cost);
    }

    fn refund_under(&self, quota: Quota, key: &PartitionKey, receipt: Receipt, cost: u32) {
        self.store.refund_under(&self.algorithm, quota, key, receipt, cost);
    }

    fn take_quotas(&self) -> bool {
        self.algorithm.under(self.algorithm.quota()).is_some() && self.store.take_quotas(&self.algorithm)
    }

    fn describe(&self) -> Description {
        let (terms, most) = (self.algorithm.terms(), self.algorithm.max_cost());
        self.store.describe(&self.algorithm).advertising(terms).admitting_at_most(most)
    }

    fn inherit(&self, predecessor: &dyn Limiter) -> Option<Inheritance<Arc<dyn Limiter>>> {
        let inheritance = self.store.inherit(&self.algorithm, &predecessor.heritage()?)?;
        Some(inheritance.map(|store| Self { algorithm: Arc::clone(&self.algorithm), store }.into_limiter()))
    }

    fn heritage(&self) -> Option<Heritage> {
        self.store.heritage(&self.algorithm)
    }

    fn stats(&self) -> Stats {
        self.store.stats(&self.algorithm)
    }
}

/// Conversion into a limiter: of a [`Quota`] (a [`TokenBucket`] in memory), an [`Algorithm`] (over a [`MemoryStore`] of
/// its own), a [`RateLimiter`], a [`LeakyQueue`](crate::LeakyQueue), or a shared `Arc` of any [`Limiter`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a limiter",
    note = "pass a quota, an algorithm, or `Arc::new(...)` of a limiter; to share one budget between policies, \
            clone an `Arc::new(RateLimiter::in_memory(...))`"
)]
pub trait IntoLimiter {
    /// Converts into a limiter.
    fn into_limiter(self) -> Arc<dyn Limiter>;
}

impl<A: Algorithm> IntoLimiter for A {
    fn into_limiter(self) -> Arc<dyn Limiter> {
        Arc::new(RateLimiter::in_memory(self))
    }
}

/// A [`TokenBucket`] in memory.
impl IntoLimiter for Quota {
    fn into_limiter(self) -> Arc<dyn Limiter> {
        TokenBucket::new(self).into_limiter()
    }
}

impl<A: Algorithm, S: Store<A>> IntoLimiter for RateLimiter<A, S> {
    fn into_limiter(self) -> Arc<dyn Limiter> {
        Arc::new(self)
    }
}

impl<L: Limiter> IntoLimiter for Arc<L> {
    fn into_limiter(self) -> Arc<dyn Limiter> {
        self
    }
}

impl IntoLimiter for Arc<dyn Limiter> {
    fn into_limiter(self) -> Arc<dyn Limiter> {
        self
    }
}
