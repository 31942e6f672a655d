use std::fmt;
use std::sync::Arc;

use super::asking::{Asking, Inner};
use super::flights::Flights;
use super::key::Names;
use super::link::Redis;
use super::mark::{mark, of_guard};
use super::mirror::Mirror;
use super::script::Scripted;
use super::together::RedisClaim;
use crate::claim::Claim;
use crate::decision::{Check, Decision, Receipt};
use crate::partition::PartitionKey;
use crate::store::{MemoryStore, Store};

/// Keeps the budgets of one limiter on Redis (7.0 or later) or Valkey, where all processes that name it alike share them.
///
/// ```no_run
/// use tower_sluice::algorithm::TokenBucket;
/// use tower_sluice::store::{Redis, RedisStore};
/// use tower_sluice::{Policy, Quota, RateLimiter};
///
/// let redis = Redis::open("redis://10.0.0.7:6379")?;
/// let bucket = TokenBucket::new(Quota::per_second(10).burst(20));
/// let policy = Policy::new("per-client", RateLimiter::new(bucket, RedisStore::new(&redis, "per-client")));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
///
/// # Cost
///
/// One round trip per decision: one script, which reads the server's clock, decides, and sets the time after which the key
/// is as if never seen. Requests for one key that come while a call for it is under way share the next. A key that
/// is used up costs one call per wait that is told, or per minute if that is shorter, and else nothing but a look at a table in this process, of 0.7 MiB.
///
/// # Accuracy
///
/// That of the algorithm, to the microsecond of the server's clock: exact over all processes. What is given back
/// elsewhere may be noticed up to a minute late here, by a key that was used up.
///
/// # When Redis is out of reach
///
/// A [`check`](crate::Limiter::check) fails within the [timeout](Redis::timeout), and at once while the breaker of
/// the node is open. What then becomes of requests is for the policy to [say](crate::FailureMode). For the
/// [local guard](crate::FailureMode::LocalGuard) this store counts what Redis admits along in a
/// [`MemoryStore`] for 65,536 keys.
///
/// A call whose answer got lost is not repeated, so what it may have charged stays charged. When a primary fails and a
/// replica takes over, what was not replicated is forgotten: up to burst + rate × lag per key is admitted twice.
///
/// # Cancel safety
///
/// A request that is dropped while it is being decided may have been charged.
pub struct RedisStore<S> {
    inner: Arc<Inner<S>>,
    coalesces: bool,
}

impl<S: Copy> RedisStore<S> {
    /// A store for the one limiter that is called `name`: limiters that share `redis` must be called differently, and
    /// those of several processes that are to share their budgets, alike.
    #[must_use]
    pub fn new(redis: &Redis, name: &str) -> Self {
        let inner = Inner {
            redis: redis.clone(),
            names: Names::new(redis.prefix(), name, redis.secret()),
            guard: MemoryStore::default(),
            mirror: Mirror::new(),
            flights: Arc::new(Flights::new()),
        };
        Self { inner: Arc::new(inner), coalesces: true }
    }

    /// Makes a call of its own for every request. Those of one key that come at the same time are decided side by side
    /// then, instead of one batch after the other: sooner by up to a round trip, and at the server's cost.
    #[must_use]
    pub const fn without_coalescing(mut self) -> Self {
        self.coalesces = false;
        self
    }

    fn asking<A: Scripted<State = S>>(&self, algorithm: &A, key: &PartitionKey) -> Asking<A> {
        let tag = self.inner.names.tag(key);
        Asking { inner: Arc::clone(&self.inner), algorithm: algorithm.clone(), key: key.clone(), tag }
    }
}

impl<A: Scripted> Store<A> for RedisStore<A::State> {
    /// # Panics
    ///
    /// If Redis, which counts microseconds, cannot keep this quota.
    #[track_caller]
    fn prepare(&self, algorithm: &A) {
        if let Err(problem) = algorithm.check_fit() {
            panic!("{problem}");
        }
        self.inner.guard.prepare(algorithm);
    }

    fn check(&self, algorithm: &A, key: &PartitionKey, cost: u32) -> Check {
        let asking = self.asking(algorithm, key);
        match asking.known_refusal(cost) {
            Some(decision) => decision.into(),
            None if self.coalesces => Check::Pending(Box::pin(asking.in_company(cost))),
            None => Check::Pending(Box::pin(async move { asking.alone(cost).await })),
        }
    }

    /// Only a refusal may be known without asking.
    fn peek(&self, algorithm: &A, key: &PartitionKey, cost: u32) -> Option<Decision> {
        self.asking(algorithm, key).known_refusal(cost)
    }

    /// In the background, once: what cannot be given back then stays charged.
    fn give_back(&self, algorithm: &A, key: &PartitionKey, cost: u32, receipt: Receipt) {
        if receipt == Receipt::NONE {
            return;
        }
        match of_guard(receipt) {
            Some(receipt) => self.inner.guard.give_back(algorithm, key, cost, receipt),
            None => self.asking(algorithm, key).give_back(cost, receipt),
        }
    }

    fn guard(&self, algorithm: &A, key: &PartitionKey, cost: u32) -> Option<Decision> {
        let decision = self.inner.guard(algorithm, key, cost);
        Some(decision.with_receipt(mark(decision.receipt())))
    }

    fn enlist(&self, algorithm: &A, key: &PartitionKey, cost: u32) -> Option<Claim> {
        Some(Claim::new(RedisClaim::new(self.asking(algorithm, key), cost)))
    }
}

impl<S> fmt::Debug for RedisStore<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("redis", &self.inner.redis).finish_non_exhaustive()
    }
}
