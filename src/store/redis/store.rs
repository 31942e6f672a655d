use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::asking::{Asking, Inner};
use super::flights::Flights;
use super::key::Names;
use super::leases::{Leases, OfLease};
use super::link::Redis;
use super::mirror::Mirror;
use super::script::Scripted;
use super::together::RedisClaim;
use crate::store::{MemoryStore, Stats, Store};
use crate::values::{Ask, Batching, Check, Claim, Description, Heritage, Inheritance, Mode, PartitionKey, Receipt};

/// Keeps the budgets of one limiter on Redis (6.2 or later) or Valkey, where all processes that name it alike share them.
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
/// One round trip per decision, also of cost 0: one script, which reads the server's clock, decides, and sets the time
/// after which the key is as if never seen. Requests for one key that come while a call for it is under way on their
/// runtime share the next, which may take them the time of two, and no longer than the timeout. A key that is used up costs
/// one call per wait that is told, or two per second if that is shorter, and else nothing but a look at a table in this
/// process, of 0.8 MiB.
///
/// # Accuracy
///
/// That of the algorithm, to the microsecond of the server's clock: exact over all processes. What is given back, or reset,
/// in another process is noticed here within half a second, if the key is known here as used up: until then, its requests are
/// rejected although a unit is free.
///
/// The server's clock is what counts. When it is set forward by a step (as by an administrator, or by an `ntpd` that may
/// step), that pays off debts: up to min(burst, rate × step) per key is admitted twice, and windows that it skips are over. When
/// it is set back, a key counts as owing a full bucket at most. Let the server's clock be slewed, not stepped.
///
/// # Another quota
///
/// may have the same name: processes with the old one and with the new one share what is kept, as while a change is rolled
/// out. A bucket's debt is kept as the time at which it will be paid, and is a full bucket at most: so the same share of the
/// bucket is used up, nobody gets more than the new burst, and nobody waits for longer than the new bucket takes to fill. A
/// window goes on counting under the new limit; with another period, what was used may count until the end of the next
/// window.
///
/// # When Redis is out of reach
///
/// A [decision](crate::Limiter::decide) fails within the [timeout](super::RedisBuilder::timeout), also if it shares a call,
/// gives back a lease first, or needs several nodes: one deadline holds for all that a decision does. While the breaker of the
/// node is open it fails at once. What then becomes of requests is for the policy to [say](crate::FailureMode). For the
/// [local fallback](crate::FailureMode::LocalFallback) this store counts what Redis admits along in a
/// [`MemoryStore`] for 65,536 keys. The guard only counts up: what is given back on Redis stays charged there, until time
/// has paid it off. Redis does not hear of what guards admit: over an outage and the recovery, *n* processes admit up to
/// *n* + 1 times the quota.
///
/// A key of ours that holds something else, of another type or another format, is an error for its requests, and is left
/// as it is: who wrote it may need it. [Reset](crate::Mode::Reset) removes it.
///
/// A call whose answer got lost is not repeated, so what it may have charged stays charged. When a primary fails and a
/// replica takes over, what was not replicated is forgotten: up to burst + rate × lag per key is admitted twice.
///
/// # Cancel safety
///
/// A request that is dropped while it is being decided may have been charged. What its call has leased for others is theirs
/// all the same, and whether the server answers it is noticed by the breaker all the same.
pub struct RedisStore<S> {
    name: Box<str>,
    coalesces: bool,
    inner: Arc<Inner<S>>,
}

/// What a store of the same name goes on from.
struct Namesake<S> {
    name: Box<str>,
    inner: Arc<Inner<S>>,
}

impl<S: Copy> RedisStore<S> {
    /// A store for the one limiter that is called `name`: limiters that share `redis` must be called differently, and
    /// those of several processes that are to share their budgets, alike.
    #[must_use]
    pub fn new(redis: &Redis, name: &str) -> Self {
        Self { name: name.into(), coalesces: true, inner: Self::build(redis, name, None) }
    }

    fn build(redis: &Redis, name: &str, leases: Option<Leases>) -> Arc<Inner<S>> {
        Arc::new(Inner {
            redis: redis.clone(),
            names: Names::new(redis.prefix(), name, redis.secret()),
            guard: MemoryStore::default(),
            mirror: Mirror::new(),
            flights: Arc::new(Flights::new()),
            leases,
        })
    }

    /// Takes units in advance from keys that are much asked for, and spends them without asking: for up to `most`
    /// requests at a time, within `lifetime`. A second is a good one.
    ///
    /// How many are taken follows the demand of this process: none from a key that is asked for less than once per
    /// `lifetime`, then twice as many each time that they were spent, and never more than half of what is left. What it
    /// holds it spends first, also where a layer with several policies would else ask for all of them in one call.
    ///
    /// # Accuracy
    ///
    /// Units are charged when they are taken, so no more than the limit is ever spent in all. But what was charged
    /// earlier may be spent later: in an interval of length *t*, up to burst + rate × (*t* + `lifetime`) is admitted.
    /// And what one process has taken others cannot spend: up to `most` requests per process and key lie idle for up to
    /// `lifetime`. The next call of that process gives them back; without one, they are forfeited. Not for policies on
    /// whose charges the [response](crate::Policy::charge_when) has a say: what was leased returns whole, and to the
    /// lease that it came from, or not at all.
    ///
    /// # Panics
    ///
    /// If `most` or `lifetime` is zero, or `most` is greater than 1,024.
    #[must_use]
    pub fn leasing(self, most: u32, lifetime: Duration) -> Self {
        assert!((1..=Leases::MOST).contains(&most), "a lease must be for 1 to {} requests, not {most}", Leases::MOST);
        assert!(!lifetime.is_zero(), "a lease must be for some time");
        let inner = Self::build(&self.inner.redis, &self.name, Some(Leases::new(most, lifetime)));
        Self { inner, ..self }
    }

    /// Makes a call of its own for every request. Those of one key that come at the same time are decided side by side
    /// then, instead of one batch after the other: sooner by up to a round trip, and at the server's cost.
    #[must_use]
    pub fn without_coalescing(mut self) -> Self {
        self.coalesces = false;
        self
    }
}

impl<S: Copy + Send + 'static> RedisStore<S> {
    fn charge<A: Scripted<State = S>>(&self, asking: Asking<A>, cost: u32) -> Check {
        match asking.out_of_lease(cost).or_else(|| asking.certain_refusal(cost)) {
            Some(decision) => decision.into(),
            None if self.coalesces => Check::Pending(Box::pin(asking.in_company(cost))),
            None => Check::Pending(Box::pin(async move { asking.alone(cost).await })),
        }
    }

    /// Only a rejection may be known without a call.
    fn peek<A: Scripted<State = S>>(asking: Asking<A>, cost: u32) -> Check {
        let known = if asking.is_leased(cost) { None } else { asking.known_refusal(cost) };
        known.map_or_else(|| Check::Pending(Box::pin(asking.peek(cost))), Check::from)
    }
}

/// Has charges made together with those of other limiters.
struct Batcher<A: Scripted> {
    inner: Arc<Inner<A::State>>,
    algorithm: A,
}

impl<A: Scripted> Batching for Batcher<A> {
    /// What is leased needs no call.
    fn claim(&self, key: &PartitionKey, cost: u32) -> Option<Box<dyn Claim>> {
        let asking = Asking::of(&self.inner, &self.algorithm, key);
        if asking.is_leased(cost) { None } else { Some(Box::new(RedisClaim::new(asking, cost))) }
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

    fn decide(&self, algorithm: &A, ask: &Ask<'_>) -> Check {
        let (key, cost) = (ask.key(), ask.cost());
        let asking = || Asking::of(&self.inner, algorithm, key);
        match ask.mode() {
            Mode::Fallback => {
                let decision = self.inner.guard(algorithm, key, cost);
                decision.with_receipt(decision.receipt().of_fallback()).into()
            }
            Mode::UpTo => asking().charge_up_to(cost),
            // One round trip. Other processes notice within half a second.
            Mode::Reset => Check::Pending(Box::pin(asking().reset())),
            Mode::Peek => Self::peek(asking(), cost),
            Mode::Charge | Mode::Shadow => self.charge(asking(), cost),
        }
    }

    /// In the background, once: what cannot be given back then stays charged.
    fn refund(&self, algorithm: &A, key: &PartitionKey, receipt: Receipt, cost: u32) {
        if receipt.is_none() {
            return;
        }
        if let Some(receipt) = receipt.fallback() {
            return self.inner.guard.refund(algorithm, key, receipt, cost);
        }
        let asking = Asking::of(&self.inner, algorithm, key);
        match receipt.read::<OfLease>() {
            Some(lease) => asking.put_back(cost, lease),
            None => asking.give_back(cost, receipt),
        }
    }

    fn describe(&self, algorithm: &A) -> Description {
        let batcher = Batcher { inner: Arc::clone(&self.inner), algorithm: algorithm.clone() };
        Description::new().answering_all().batching(batcher)
    }

    /// From a store of this name on the same [`Redis`]: the server keeps what it has, see
    /// [above](Self#another-quota). What was leased is forfeited.
    fn inherit(&self, algorithm: &Arc<A>, heritage: &Heritage) -> Option<Inheritance<Self>> {
        let predecessor: Arc<Namesake<A::State>> = heritage.downcast()?;
        if self.inner.redis.id() != predecessor.inner.redis.id() || self.name != predecessor.name {
            return None;
        }
        // A guard that cannot inherit in place fills up by what is admitted from now on.
        let guard = Store::heritage(&predecessor.inner.guard, &**algorithm);
        let guard = guard.and_then(|heritage| self.inner.guard.inherit(algorithm, &heritage));
        Some(Inheritance::in_place().and_then(guard.and_then(|guard| guard.finish)))
    }

    fn heritage(&self, _: &A) -> Option<Heritage> {
        Some(Heritage::new(Arc::new(Namesake { name: self.name.clone(), inner: Arc::clone(&self.inner) })))
    }

    fn stats(&self, _: &A) -> Stats {
        Stats { nodes: self.inner.redis.health(), ..Stats::default() }
    }
}

impl<S> fmt::Debug for RedisStore<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("redis", &self.inner.redis).finish_non_exhaustive()
    }
}
