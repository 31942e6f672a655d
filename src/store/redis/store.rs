//! [`RedisStore`]: a store for one limiter.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::batch::RedisClaim;
use super::connection::Redis;
use super::key::Names;
use super::leases::{LeaseReceipt, Leases};
use super::negative_cache::NegativeCache;
use super::query::{KeyQuery, StoreInner};
use super::script::Scripted;
use super::single_flight::SingleFlight;
use crate::store::{MemoryStore, Stats, Store};
use crate::values::{
    Ask, Batching, Check, Claim, Description, Heritage, Inheritance, Mode, PartitionKey, Quota, Receipt,
};

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
/// One round trip per decision, also of cost 0: one script, which reads the server's clock, decides, and sets the
/// expiry to when the key owes nothing any more. Requests for one key that come while a call for it is in flight on
/// their runtime share the next call: they may wait for the time of two, and no longer than the timeout. A key that is
/// used up costs one call per advertised wait, or per half a second if the wait is longer, and otherwise nothing but a
/// look at a table in this process, of 0.8 MiB.
///
/// # Accuracy
///
/// That of the algorithm, to the microsecond of the server's clock: exact over all processes. A refund or a reset by
/// another process is noticed here within half a second and the time of one call, if the key is known here as used up:
/// until then, its requests are rejected although a unit is free.
///
/// Only the server's clock counts. When it is set forward by a step (by an administrator, or by an `ntpd` that may
/// step), that pays off debts: up to min(burst, rate × step) per key is admitted twice, and windows that it skips are
/// over. When it is set back, a key counts as owing a full bucket at most. Let the server's clock be slewed, not
/// stepped.
///
/// Windows of the calendar begin by the server's clock, too, and their bounds come with the call. A process whose own
/// clock is wrong by more than half a window makes a second call when it begins a key's window. Processes that share
/// such a limit should have the same version of the time zone database.
///
/// # Another quota
///
/// A store with another quota may have the same name: processes with the old one and with the new one share the state,
/// as while a change is rolled out. A bucket's debt is kept as the time at which it will be paid, and is a full bucket
/// at most: so the same share of the bucket is used up, no client gets more than the new burst, and none waits for
/// longer than the new bucket takes to fill. A window continues to count under the new limit; with another period, what
/// was used may count until the end of the next window. A window of the calendar counts until the end of the present
/// one, also in another zone or with another anchor.
///
/// # Quotas of the keys' own
///
/// From the first question [under a quota](Ask::under) on, or once a policy has a
/// [`quota_fn`](crate::Policy::quota_fn), each key is stored with its quota, some 25 bytes more. A key whose quota changes
/// keeps what it has used, as in memory, and also what it owes beyond a smaller bucket: the first charge under the other
/// quota converts it, also if it is rejected, and costs a second round trip. Until then the debt shrinks at the old rate; a
/// peek, a cost of 0 and one that can never be admitted convert nothing. A conversion rounds what a bucket owes up, by less
/// than a microsecond, and cuts it at 71 years. Keys from before are converted in the same way, from the limiter's own
/// quota. [`RateLimitLayer::peek`](crate::RateLimitLayer::peek) shows the quota of the key's last charge while it owes
/// something, and the limiter's own after that.
///
/// A charge is refunded if the key has the same rate by then, or windows of the same period; otherwise it stays. A window's
/// count that was brought into a shorter period ends with that: give all quotas of a limiter with windows one period. A
/// quota that Redis [cannot keep](Scripted::fits) is an error of the decision.
///
/// While a new plan is rolled out, processes may disagree on the quota of a key. Each charge that finds the other's quota
/// then costs a second round trip, and further ones if another process changes the key in between, until the timeout. In
/// all, a bucket admits no more than one with the greater burst and the greater rate of the two, and windows of one period
/// no more than the greater limit.
///
/// # When Redis is out of reach
///
/// A [decision](crate::Limiter::decide) fails within the [timeout](super::RedisBuilder::timeout), also if it shares a
/// call, refunds a lease first, or needs several nodes: one deadline holds for all that a decision does. While the
/// circuit breaker of the node is open it fails at once. The policy [says](crate::FailureMode) what happens to the
/// request then. For the [local fallback](crate::FailureMode::LocalFallback) this store also counts what Redis admits
/// in a [`MemoryStore`] for 65,536 keys. The fallback only counts up: what is refunded on Redis stays charged there,
/// until time has paid it off. What fallbacks admit is not reported to Redis: over an outage and the recovery, *n*
/// processes admit up to *n* + 1 times the quota.
///
/// If a key of ours holds something else, of another type or another format, its requests fail, and the value is left
/// as it is: its writer may need it. [Reset](crate::Mode::Reset) removes it.
///
/// A call whose answer got lost is not repeated, so what it may have charged stays charged. When a primary fails and a
/// replica takes over, what was not replicated is forgotten: up to burst + rate × lag per key is admitted twice.
///
/// # Cancel safety
///
/// A request that is dropped while it is being decided may have been charged. A lease that its call takes is kept all
/// the same, and the circuit breaker counts the outcome of the call all the same.
pub struct RedisStore<S> {
    name: Box<str>,
    coalesces: bool,
    inner: Arc<StoreInner<S>>,
}

/// What a store of the same name inherits.
struct Namesake<S> {
    name: Box<str>,
    inner: Arc<StoreInner<S>>,
}

impl<S: Copy> RedisStore<S> {
    /// Creates a store for the one limiter that is called `name`: limiters that share `redis` need different names, and
    /// those of several processes that are to share their budgets need the same.
    #[must_use]
    pub fn new(redis: &Redis, name: &str) -> Self {
        Self { name: name.into(), coalesces: true, inner: Self::build(redis, name, None) }
    }

    fn build(redis: &Redis, name: &str, leases: Option<Leases>) -> Arc<StoreInner<S>> {
        Arc::new(StoreInner {
            redis: redis.clone(),
            names: Names::new(redis.prefix(), name, redis.secret()),
            fallback: MemoryStore::default(),
            negative_cache: NegativeCache::new(),
            single_flight: Arc::new(SingleFlight::new()),
            leases,
            has_quotas: AtomicBool::new(false),
        })
    }

    /// Takes units in advance (a lease) from keys in demand, and spends them without calls: for up to `most` requests
    /// at a time, within `lifetime`. A second is a good lifetime.
    ///
    /// How many are taken follows the demand of this process: none from a key with less than one request per
    /// `lifetime`, then twice as many each time that they were spent, and never more than half of what is left. Where a
    /// layer charges several policies in one call, a key in demand is charged by itself: from its lease, or in a call
    /// that takes one.
    ///
    /// # Accuracy
    ///
    /// Units are charged when they are taken, so no more than the limit is ever spent in all. But what was charged
    /// earlier may be spent later: in an interval of length *t*, up to burst + rate × (*t* + `lifetime`) is admitted.
    /// And what one process has taken others cannot spend: up to `most` requests per process and key lie idle for up to
    /// `lifetime`. The next call of that process refunds them; without one, they are forfeited. Do not use leases for
    /// policies whose charges depend on the [response](crate::Policy::charge_when): a leased charge is refunded whole,
    /// and to the lease that it came from, or not at all.
    ///
    /// # Memory
    ///
    /// 1.1 MiB, for the leases of 8,192 keys. Beyond, the leases that end first are forfeited.
    ///
    /// # Panics
    ///
    /// If `most` or `lifetime` is zero, or `most` is greater than 1,024.
    #[must_use]
    #[track_caller]
    pub fn leasing(self, most: u32, lifetime: Duration) -> Self {
        assert!((1..=Leases::MOST).contains(&most), "a lease must be for 1 to {} requests, not {most}", Leases::MOST);
        assert!(!lifetime.is_zero(), "a lease must be for some time");
        let inner = Self::build(&self.inner.redis, &self.name, Some(Leases::new(most, lifetime)));
        Self { inner, ..self }
    }

    /// Makes a call of its own for every request that is not decided without one. Concurrent requests for one key are
    /// then decided side by side, instead of one batch after the other: sooner by up to a round trip, and at the cost
    /// of the server.
    #[must_use]
    pub fn without_coalescing(mut self) -> Self {
        self.coalesces = false;
        self
    }
}

impl<S: Copy + Send + 'static> RedisStore<S> {
    #[cfg(test)]
    pub(super) fn query<A: Scripted<State = S>>(&self, algorithm: &A, key: &PartitionKey) -> KeyQuery<A> {
        KeyQuery::of(&self.inner, algorithm, &Ask::charge(key, 1)).expect("Redis can keep the quota")
    }

    fn charge<A: Scripted<State = S>>(&self, query: KeyQuery<A>, cost: u32) -> Check {
        match query.spend_lease(cost).or_else(|| query.cached_rejection(cost)) {
            Some(decision) => decision.into(),
            None if self.coalesces => Check::Pending(Box::pin(query.decide_coalesced(cost))),
            None => Check::Pending(Box::pin(async move { query.decide_alone(cost).await })),
        }
    }

    /// Refunds a charge, under the quota of the question that made it, in the background.
    fn refund_charge<A: Scripted<State = S>>(&self, algorithm: &A, charged: &Ask<'_>, receipt: Receipt) {
        let cost = charged.cost();
        // What Redis cannot keep was not charged there.
        let Some(query) = KeyQuery::of(&self.inner, algorithm, charged).ok().filter(|_| !receipt.is_none()) else {
            return;
        };
        match receipt.read::<LeaseReceipt>() {
            Some(lease) => query.return_to_lease(cost, lease),
            None => query.refund_in_background(cost, receipt),
        }
    }

    /// Without a call, only a rejection can be known, and what a lease admits.
    fn peek<A: Scripted<State = S>>(query: KeyQuery<A>, cost: u32) -> Check {
        let known = query.peek_lease(cost).or_else(|| query.peek_rejection(cost));
        known.map_or_else(|| Check::Pending(Box::pin(query.peek(cost))), Check::from)
    }
}

/// Charges together with other limiters, in one call.
struct Batcher<A: Scripted> {
    inner: Arc<StoreInner<A::State>>,
    algorithm: A,
}

impl<A: Scripted> Batching for Batcher<A> {
    /// Returns `None` if a lease pays, or if a call of the key's own would take one, which a call for several keys does
    /// not.
    /// Nor for a quota that Redis cannot keep, which is then reported as the error of a call of its own.
    fn claim(&self, ask: &Ask<'_>) -> Option<Box<dyn Claim>> {
        let (query, cost) = (KeyQuery::of(&self.inner, &self.algorithm, ask).ok()?, ask.cost());
        if query.is_in_demand(cost) { None } else { Some(Box::new(RedisClaim::new(query, cost))) }
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
        self.inner.fallback.prepare(algorithm);
    }

    fn decide(&self, algorithm: &A, ask: &Ask<'_>) -> Check {
        if ask.mode() == Mode::Fallback {
            let decision = self.inner.charge_fallback(algorithm, ask);
            return decision.with_receipt(decision.receipt().mark_fallback()).into();
        }
        let (query, cost) = match KeyQuery::of(&self.inner, algorithm, ask) {
            Ok(query) => (query, ask.cost()),
            Err(error) => return Check::Ready(Err(error)),
        };
        match ask.mode() {
            Mode::UpTo => query.charge_up_to(cost),
            // One round trip. Other processes notice within half a second and one call of theirs.
            Mode::Reset => Check::Pending(Box::pin(query.reset())),
            Mode::Peek => Self::peek(query, cost),
            // It reports what is left of a key, and charges nothing.
            Mode::Charge if ask.keeps_quota() && cost == 0 => Check::Pending(Box::pin(query.look())),
            Mode::Charge | Mode::Shadow | Mode::Fallback => self.charge(query, cost),
        }
    }

    /// Refunds in the background, by one call: if that fails, the charge stays.
    fn refund(&self, algorithm: &A, key: &PartitionKey, receipt: Receipt, cost: u32) {
        if let Some(receipt) = receipt.unmark_fallback() {
            return self.inner.fallback.refund(algorithm, key, receipt, cost);
        }
        self.refund_charge(algorithm, &Ask::charge(key, cost), receipt);
    }

    fn refund_under(&self, algorithm: &A, quota: Quota, key: &PartitionKey, receipt: Receipt, cost: u32) {
        if let Some(receipt) = receipt.unmark_fallback() {
            return self.inner.fallback.refund_under(algorithm, quota, key, receipt, cost);
        }
        self.refund_charge(algorithm, &Ask::charge(key, cost).under(Some(quota)), receipt);
    }

    fn take_quotas(&self, algorithm: &A) -> bool {
        self.inner.note_quotas();
        self.inner.fallback.take_quotas(algorithm)
    }

    fn describe(&self, algorithm: &A) -> Description {
        let batcher = Batcher { inner: Arc::clone(&self.inner), algorithm: algorithm.clone() };
        Description::new().answering_all().batching(batcher)
    }

    /// Inherits from a store of this name on the same [`Redis`]: the server keeps what it has, see
    /// [above](Self#another-quota). Leases are forfeited.
    fn inherit(&self, algorithm: &Arc<A>, heritage: &Heritage) -> Option<Inheritance<Self>> {
        let predecessor: Arc<Namesake<A::State>> = heritage.downcast()?;
        if self.inner.redis.id() != predecessor.inner.redis.id() || self.name != predecessor.name {
            return None;
        }
        // A fallback that cannot inherit in place fills up by what is admitted from now on.
        let fallback = Store::heritage(&predecessor.inner.fallback, &**algorithm);
        let fallback = fallback.and_then(|heritage| self.inner.fallback.inherit(algorithm, &heritage));
        Some(Inheritance::in_place().and_then(fallback.and_then(|fallback| fallback.finish)))
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
        f.debug_struct("RedisStore").field("redis", &self.inner.redis).field("name", &self.name).finish_non_exhaustive()
    }
}
