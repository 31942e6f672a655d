//! The one question that everything above asks: may this key have that much?

use std::sync::Arc;
use std::time::Duration;

use crate::algorithm::Algorithm;
use crate::backlog::Backlog;
use crate::claim::Claim;
use crate::decision::{Check, Decision, Receipt};
use crate::inheritance::{Heritage, Inheritance};
use crate::partition::PartitionKey;
use crate::store::{MemoryStore, Stats, Store};
use crate::terms::Terms;

/// Decides whether a key may have `cost` units, now or later.
///
/// Object safe: policies hold an `Arc<dyn Limiter>`, so algorithms, stores and queues can be mixed
/// and chosen at run time.
///
/// | limiter | a request that does not fit |
/// |---|---|
/// | [`RateLimiter`] | is refused, with the exact time to wait |
/// | [`LeakyQueue`](crate::LeakyQueue) | waits its turn, and is refused only if the queue is too long |
/// | your own | as you decide |
pub trait Limiter: Send + Sync + 'static {
    /// Decides, and charges what is admitted.
    fn check(&self, key: &PartitionKey, cost: u32) -> Check;

    /// What [`check`](Self::check) would decide, without charging; `None` if that cannot be told
    /// without waiting. Lets several policies be judged before any is charged.
    fn peek(&self, key: &PartitionKey, cost: u32) -> Option<Decision> {
        let _ = (key, cost);
        None
    }

    /// [`check`](Self::check) for a request that its client gives up after `patience` (`None`: it waits
    /// as long as the limiter lets it).
    ///
    /// A limiter that [delays](Self::delays) refuses at once, and without charging, what would wait for
    /// `patience` or longer; `retry_after` is then the wait after which the same request, as patient as
    /// now, would be accepted. A request that need not wait passes, whatever its patience. Limiters that
    /// never delay need not implement this.
    fn check_within(&self, key: &PartitionKey, cost: u32, patience: Option<Duration>) -> Check {
        let _ = patience;
        self.check(key, cost)
    }

    /// What [`check_within`](Self::check_within) would decide, without charging: see
    /// [`peek`](Self::peek).
    fn peek_within(&self, key: &PartitionKey, cost: u32, patience: Option<Duration>) -> Option<Decision> {
        let _ = patience;
        self.peek(key, cost)
    }

    /// Gives back a charge of `cost` that was answered with `receipt`, as far as it is still owed.
    fn give_back(&self, key: &PartitionKey, cost: u32, receipt: Receipt) {
        let _ = (key, cost, receipt);
    }

    /// Charges `cost` more for a request that was admitted, now that it is known what it cost; as far as there is
    /// something left, and the rest is forgiven. Nobody waits for it: a limiter elsewhere does it in the background.
    ///
    /// By default what can be had at once by [`rehearse`](Self::rehearse), and nothing if that must be waited for.
    fn surcharge(&self, key: &PartitionKey, cost: u32) {
        if let Some(rest) = self.rehearse(key, cost).left_of(cost) {
            let _ = self.rehearse(key, rest);
        }
    }

    /// Forgets what a key owes, and answers as to a request of cost 0 then. `None` if that cannot be done.
    ///
    /// In a [`MemoryStore`], what was charged before is not given back after it.
    fn reset(&self, key: &PartitionKey) -> Option<Check> {
        let _ = key;
        None
    }

    /// Decides, and charges, in place of a [`check`](Self::check) that failed, by what this process knows alone; `None`
    /// if it knows nothing. A policy that is [guarded](crate::FailureMode::LocalGuard) asks it then.
    fn guard(&self, key: &PartitionKey, cost: u32, patience: Option<Duration>) -> Option<Check> {
        let _ = (key, cost, patience);
        None
    }

    /// A [`check`](Self::check) that is still to be made, together with those of other limiters of the same store:
    /// in one round trip, and all are charged or none. `None` if that saves nothing.
    fn enlist(&self, key: &PartitionKey, cost: u32) -> Option<Claim> {
        let _ = (key, cost);
        None
    }

    /// [`check`](Self::check) on behalf of a request that passes whatever the answer: charges the
    /// same, but never makes anybody wait for a turn.
    fn rehearse(&self, key: &PartitionKey, cost: u32) -> Check {
        self.check(key, cost)
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

    /// Rejects all requests that wait for a turn, and all that come from now on, with [`LimiterError::closed`](crate::LimiterError::closed). For the end of
    /// a server, which would otherwise wait for its queue. It cannot be undone; a second call does nothing.
    ///
    /// By default it does nothing, which is right for limiters that answer at once.
    fn close(&self) {}

    /// Whether [`check`](Self::check) may hold a request back until its turn. Such limiters are
    /// asked last, so that nobody waits only to be refused by another policy.
    fn delays(&self) -> bool {
        false
    }

    /// The greatest cost that is ever admitted, if there is one.
    fn max_cost(&self) -> Option<u32> {
        None
    }

    /// What clients are told of it in advance. A limiter without terms is not advertised: the fields
    /// on what is left do not mention it. Asked once, when a layer is built.
    fn terms(&self) -> Option<Terms> {
        None
    }

    /// Who waits here for a turn, in this process; `None` if nobody ever does, or if it is not known.
    fn backlog(&self) -> Option<Backlog> {
        None
    }

    /// How full it is, and how its servers are; by default, nothing is told. For gauges: not on the path of requests.
    fn stats(&self) -> Stats {
        Stats::default()
    }
}

impl<L: Limiter + ?Sized> Limiter for Arc<L> {
    fn check(&self, key: &PartitionKey, cost: u32) -> Check {
        (**self).check(key, cost)
    }

    fn peek(&self, key: &PartitionKey, cost: u32) -> Option<Decision> {
        (**self).peek(key, cost)
    }

    fn check_within(&self, key: &PartitionKey, cost: u32, patience: Option<Duration>) -> Check {
        (**self).check_within(key, cost, patience)
    }

    fn peek_within(&self, key: &PartitionKey, cost: u32, patience: Option<Duration>) -> Option<Decision> {
        (**self).peek_within(key, cost, patience)
    }

    fn give_back(&self, key: &PartitionKey, cost: u32, receipt: Receipt) {
        (**self).give_back(key, cost, receipt);
    }

    fn surcharge(&self, key: &PartitionKey, cost: u32) {
        (**self).surcharge(key, cost);
    }

    fn reset(&self, key: &PartitionKey) -> Option<Check> {
        (**self).reset(key)
    }

    fn guard(&self, key: &PartitionKey, cost: u32, patience: Option<Duration>) -> Option<Check> {
        (**self).guard(key, cost, patience)
    }

    fn enlist(&self, key: &PartitionKey, cost: u32) -> Option<Claim> {
        (**self).enlist(key, cost)
    }

    fn rehearse(&self, key: &PartitionKey, cost: u32) -> Check {
        (**self).rehearse(key, cost)
    }

    fn inherit(&self, predecessor: &dyn Limiter) -> Option<Inheritance<Arc<dyn Limiter>>> {
        (**self).inherit(predecessor)
    }

    fn heritage(&self) -> Option<Heritage> {
        (**self).heritage()
    }

    fn close(&self) {
        (**self).close();
    }

    fn delays(&self) -> bool {
        (**self).delays()
    }

    fn max_cost(&self) -> Option<u32> {
        (**self).max_cost()
    }

    fn terms(&self) -> Option<Terms> {
        (**self).terms()
    }

    fn backlog(&self) -> Option<Backlog> {
        (**self).backlog()
    }

    fn stats(&self) -> Stats {
        (**self).stats()
    }
}

/// An [`Algorithm`] over a [`Store`].
///
/// Usable on its own, without any HTTP:
///
/// ```
/// use tower_sluice::algorithm::SlidingWindow;
/// use tower_sluice::{Check, Limiter, PartitionKey, Quota, RateLimiter};
///
/// let limiter = RateLimiter::in_memory(SlidingWindow::new(Quota::per_minute(2)));
/// let alice = PartitionKey::from("alice");
///
/// for expected in [true, true, false] {
///     let Check::Ready(Ok(decision)) = limiter.check(&alice, 1) else {
///         unreachable!("memory answers at once, and does not fail")
///     };
///     assert_eq!(decision.is_allowed(), expected);
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

impl<A: Algorithm, S: Store<A>> Limiter for RateLimiter<A, S> {
    // Inlined, all the way down: a caller that looks at the outcome alone does not pay for the rest.
    #[inline(always)]
    fn check(&self, key: &PartitionKey, cost: u32) -> Check {
        self.store.check(&self.algorithm, key, cost)
    }

    fn peek(&self, key: &PartitionKey, cost: u32) -> Option<Decision> {
        self.store.peek(&self.algorithm, key, cost)
    }

    fn give_back(&self, key: &PartitionKey, cost: u32, receipt: Receipt) {
        self.store.give_back(&self.algorithm, key, cost, receipt);
    }

    fn surcharge(&self, key: &PartitionKey, cost: u32) {
        self.store.surcharge(&self.algorithm, key, cost);
    }

    fn reset(&self, key: &PartitionKey) -> Option<Check> {
        self.store.reset(&self.algorithm, key)
    }

    fn guard(&self, key: &PartitionKey, cost: u32, _: Option<Duration>) -> Option<Check> {
        self.store.guard(&self.algorithm, key, cost).map(Check::from)
    }

    fn enlist(&self, key: &PartitionKey, cost: u32) -> Option<Claim> {
        self.store.enlist(&self.algorithm, key, cost)
    }

    fn inherit(&self, predecessor: &dyn Limiter) -> Option<Inheritance<Arc<dyn Limiter>>> {
        let inheritance = self.store.inherit(&self.algorithm, &predecessor.heritage()?)?;
        Some(inheritance.map(|store| Self { algorithm: Arc::clone(&self.algorithm), store }.into_limiter()))
    }

    fn heritage(&self) -> Option<Heritage> {
        self.store.heritage(&self.algorithm)
    }

    fn max_cost(&self) -> Option<u32> {
        Some(self.algorithm.max_cost())
    }

    fn terms(&self) -> Option<Terms> {
        Some(self.algorithm.terms())
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
