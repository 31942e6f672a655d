//! Whoever answers the question: may this key have that much?

mod throttle;

use std::future::Future;
use std::sync::Arc;

pub use self::throttle::{Throttle, ThrottleError, ThrottleFuture, ThrottleLayer};

use crate::algorithm::Algorithm;
use crate::store::{MemoryStore, Stats, Store};
use crate::values::time::Clock;
use crate::values::{Ask, Check, Decision, Description, Heritage, Inheritance, LimiterError, PartitionKey, Receipt};

/// Decides whether a key may have so many units, now or later.
///
/// Object safe: policies hold an `Arc<dyn Limiter>`, so algorithms, stores and queues can be mixed
/// and chosen at run time.
///
/// | limiter | a request that does not fit |
/// |---|---|
/// | [`RateLimiter`] | is rejected, with the exact time to wait |
/// | [`LeakyQueue`](crate::LeakyQueue) | waits its turn, and is rejected only if the queue is too long |
/// | your own | as you decide |
///
/// # One of your own
///
/// needs one method:
///
/// ```
/// use tower_sluice::{Ask, Check, Decision, Limiter, Policy, RateLimitLayer};
///
/// /// Rejects whatever costs more than ten.
/// struct NothingBig;
///
/// impl Limiter for NothingBig {
///     fn decide(&self, ask: &Ask<'_>) -> Check {
///         if ask.cost() <= 10 { Decision::allow(10, 10).into() } else { Decision::deny(10, 10, None).into() }
///     }
/// }
///
/// let layer = RateLimitLayer::new(Policy::new("small", std::sync::Arc::new(NothingBig)));
/// ```
///
/// Then it is asked to [charge](crate::Mode::Charge), and nothing else. If it says more of itself in
/// [`describe`](Self::describe), it is asked more, and clients are told more.
pub trait Limiter: Send + Sync + 'static {
    /// Decides, and charges what is admitted, as the [mode](Ask::mode) says.
    fn decide(&self, ask: &Ask<'_>) -> Check;

    /// Refunds `cost` units of a charge that was answered with `receipt`, as far as they are still owed. By default, what is
    /// charged stays charged.
    fn refund(&self, key: &PartitionKey, receipt: Receipt, cost: u32) {
        let _ = (key, receipt, cost);
    }

    /// What layers and clients need to know ahead.
    fn describe(&self) -> Description {
        Description::new()
    }

    /// Goes on from what `predecessor` knows of its keys: what was used stays used, under this limiter's quota. `None` if it does
    /// not, by default; then all keys start anew.
    ///
    /// For a [live change](crate::LimitsHandle), which puts the heir in force and then runs what the [`Inheritance`] asks for. The
    /// heir is this limiter itself if it was not asked for anything yet. A limiter in memory that has debts of its own (it was
    /// in force before, or is in force elsewhere) cannot have those of another as well: then another one that is like it
    /// inherits, with the same algorithm, capacity and clock. The two must be of one kind:
    ///
    /// | limiter | inherits from | what is kept |
    /// |---|---|---|
    /// | a bucket in a [`MemoryStore`] | any such bucket | the debt of every key in tokens, to a tick of the new rate |
    /// | a window in a `MemoryStore` | one of the same type | what counts at the moment of the change |
    /// | a [`LeakyQueue`](crate::LeakyQueue) | any other | the lines with all who wait, and what was spent |
    /// | any of them on Redis | one of the same type and name on the same `Redis` | what the server has, see `RedisStore` |
    ///
    /// Both must tell the time by the same clock. In memory, each heir has its own copy of what was used at the instant of the
    /// change; the predecessor goes on as before for those who still ask it. Queues are shared by all heirs.
    fn inherit(&self, predecessor: &dyn Limiter) -> Option<Inheritance<Arc<dyn Limiter>>> {
        let _ = predecessor;
        None
    }

    /// What heirs [inherit](Self::inherit) from; by default nothing.
    fn heritage(&self) -> Option<Heritage> {
        None
    }

    /// How full it is, who waits in it, and how its servers are; by default, nothing is reported. For gauges: not on the path
    /// of requests.
    fn stats(&self) -> Stats {
        Stats::default()
    }

    /// Rejects all requests that wait for a turn, and all that come from now on, with
    /// [`LimiterError::closed`](crate::LimiterError::closed). For the end of a server, which would otherwise wait for its queue.
    /// It cannot be undone; a second call does nothing.
    ///
    /// By default it does nothing, which is right for limiters that answer at once.
    fn close(&self) {}
}

/// Limits what is no request to a server: a job, a message, a call to a partner.
pub trait LimiterExt: Limiter {
    /// Charges `cost` units to `key` if they are admitted, and waits for the decision: for a turn in a
    /// [`LeakyQueue`](crate::LeakyQueue), for the server of a `RedisStore`, and for nothing if the budget is in memory.
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
    /// If the limiter cannot decide. A rejection is no error: look at the [outcome](Decision::outcome).
    ///
    /// # Cancel safety
    ///
    /// Dropped while it waits for a turn, it leaves the queue. A server may have charged it.
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
pub struct RateLimiter<A, S> {
    /// Shared with its heirs.
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
    /// Charges one unit to `key`, if it is admitted. Memory decides at once, and does not fail.
    ///
    /// For another cost, or without charging, [ask](Limiter::decide).
    #[inline]
    pub fn check(&self, key: &PartitionKey) -> Decision {
        self.store.charge(&*self.algorithm, &Ask::charge(key, 1))
    }
}

impl<A: Algorithm, S: Store<A>> Limiter for RateLimiter<A, S> {
    // Inlined, all the way down: a caller that looks at the outcome alone does not pay for the rest.
    #[inline(always)]
    fn decide(&self, ask: &Ask<'_>) -> Check {
        self.store.decide(&self.algorithm, ask)
    }

    fn refund(&self, key: &PartitionKey, receipt: Receipt, cost: u32) {
        self.store.refund(&self.algorithm, key, receipt, cost);
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

/// Anything that can be made into a limiter: an [`Algorithm`] (over a [`MemoryStore`] of its own),
/// a [`RateLimiter`], a [`LeakyQueue`](crate::LeakyQueue), or a shared `Arc` of any [`Limiter`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a limiter",
    note = "give an algorithm itself, or `Arc::new(...)` of a limiter; to share one budget between policies, \
            clone an `Arc::new(RateLimiter::in_memory(...))`"
)]
pub trait IntoLimiter {
    /// The limiter.
    fn into_limiter(self) -> Arc<dyn Limiter>;
}

impl<A: Algorithm> IntoLimiter for A {
    fn into_limiter(self) -> Arc<dyn Limiter> {
        Arc::new(RateLimiter::in_memory(self))
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
