//! `Limiter`, the trait that policies consult, and `RateLimiter`, an algorithm with its table.

mod acquire;
mod health;
mod hold;
mod rate_limiter;
mod throttle;

use std::any::Any;
use std::future::Future;
use std::sync::Arc;

pub use self::acquire::Acquire;
pub(crate) use self::health::{Health, Transition};
pub(crate) use self::hold::Hold;
pub use self::hold::Permit;
pub use self::rate_limiter::RateLimiter;
pub use self::throttle::{Throttle, ThrottleError, ThrottleFuture, ThrottleLayer};

use crate::algorithm::{Algorithm, TokenBucket};
use crate::store::Stats;
use crate::values::{Ask, Check, Decision, Description, Inheritance, LimiterError, PartitionKey, Quota, Receipt};

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
pub trait Limiter: Downcast + Send + Sync + 'static {
    /// Decides on the request, and charges it as its [mode](Ask::mode) says.
    fn decide(&self, ask: &Ask<'_>) -> Check;

    /// Refunds `units` of the charge by which the question `charged` was answered with `receipt`, as far as they are still
    /// owed. By default, charges stay.
    ///
    /// Of a limiter whose requests [hold](Description::holding) their units, this releases them.
    fn refund(&self, charged: &Ask<'_>, receipt: Receipt, units: u64) {
        let _ = (charged, receipt, units);
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
    ///
    /// A limiter of your own finds its predecessor by its type:
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tower_sluice::{Ask, Check, Decision, Inheritance, Limiter};
    /// # use std::sync::Mutex;
    ///
    /// /// Admits `limit` requests in all.
    /// struct Quota {
    ///     limit: u64,
    ///     used: Arc<Mutex<u64>>,
    /// }
    ///
    /// impl Limiter for Quota {
    ///     fn decide(&self, ask: &Ask<'_>) -> Check {
    ///         let mut used = self.used.lock().unwrap();
    ///         let left = self.limit.saturating_sub(*used);
    ///         if left < ask.cost() {
    ///             return Decision::reject(self.limit, left, None).into();
    ///         }
    ///         *used += ask.cost();
    ///         Decision::allow(self.limit, left - ask.cost()).into()
    ///     }
    ///
    ///     fn inherit(&self, predecessor: &dyn Limiter) -> Option<Inheritance<Arc<dyn Limiter>>> {
    ///         let theirs = predecessor.downcast_ref::<Self>()?;
    ///         Some(Inheritance::by(Arc::new(Self { limit: self.limit, used: Arc::clone(&theirs.used) })))
    ///     }
    /// }
    /// ```
    fn inherit(&self, predecessor: &dyn Limiter) -> Option<Inheritance<Arc<dyn Limiter>>> {
        let _ = predecessor;
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

/// Lets an heir find its predecessor by its type. For all types; there is nothing to implement.
pub trait Downcast {
    #[doc(hidden)]
    fn as_any(&self) -> &dyn Any;
}

impl<T: 'static> Downcast for T {
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl dyn Limiter {
    /// Returns the limiter, if it is of this type.
    #[must_use]
    pub fn downcast_ref<L: Limiter>(&self) -> Option<&L> {
        self.as_any().downcast_ref()
    }
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
    ///     let permit = partner.acquire(&"partner".into(), 1).await?;
    ///     assert!(permit.is_allowed(), "send {invoice} now");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Units in flight
    ///
    /// If the limiter [holds](Description::holds) units, as [`Concurrency`](crate::Concurrency) does, the [permit](Permit)
    /// holds them until it is dropped: keep it until the work is over.
    ///
    /// # Errors
    ///
    /// If the limiter cannot decide. A rejection is not an error: check the [outcome](Decision::outcome).
    ///
    /// # Cancel safety
    ///
    /// A future that is dropped while it waits for its turn leaves the queue, and one that waits for units takes none. A
    /// server may have charged it.
    #[doc(alias("wait", "until_ready"))]
    fn acquire<'a>(&'a self, key: &PartitionKey, cost: u64) -> Acquire<&'a Self> {
        Acquire::new(self, key, cost)
    }

    /// Does the same as [`acquire`](Self::acquire) for a limiter in an `Arc`, which the permit keeps: it can be moved into
    /// another task.
    ///
    /// # Errors
    ///
    /// As for [`acquire`](Self::acquire).
    fn acquire_owned(self: &Arc<Self>, key: &PartitionKey, cost: u64) -> Acquire<Arc<Self>> {
        Acquire::new(Arc::clone(self), key, cost)
    }

    /// Returns what [`acquire`](Self::acquire) would be answered now, and charges nothing.
    ///
    /// # Errors
    ///
    /// If the limiter cannot decide, or [cannot be peeked at](Description::answers): [`LimiterError::unsupported`].
    fn peek(&self, key: &PartitionKey, cost: u64) -> impl Future<Output = Result<Decision, LimiterError>> + Send {
        decide_if_supported(self, &Ask::peek(key, cost))
    }

    /// Forgets what a key owes. Returns the decision on a request of cost 0 after that.
    ///
    /// # Errors
    ///
    /// If the limiter cannot decide, or [cannot be reset](Description::answers): [`LimiterError::unsupported`].
    fn reset(&self, key: &PartitionKey) -> impl Future<Output = Result<Decision, LimiterError>> + Send {
        decide_if_supported(self, &Ask::reset(key))
    }
}

/// Asks in a mode that the limiter describes. Any other is not asked: a limiter of a user's own may not look at it.
fn decide_if_supported<L: Limiter + ?Sized>(
    limiter: &L,
    ask: &Ask<'_>,
) -> impl Future<Output = Result<Decision, LimiterError>> + Send + use<L> {
    let is_supported = limiter.describe().answers(ask.mode());
    let check = if is_supported { limiter.decide(ask) } else { LimiterError::unsupported(ask.mode()).into() };
    check.decided()
}

impl<L: Limiter + ?Sized> LimiterExt for L {}

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

impl<A: Algorithm, T> IntoLimiter for RateLimiter<A, T>
where
    Self: Limiter,
{
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
