//! [`RemoteStore`]: a store for one limiter, over a [`Backend`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::backend::{Backend, Transition};
use super::leases::{LeaseReceipt, Leases};
use super::negative_cache::NegativeCache;
use super::query::{KeyQuery, StoreInner};
use super::single_flight::SingleFlight;
use super::tag::Tags;
use crate::algorithm::Algorithm;
use crate::store::{MemoryStore, SharingStats, Stats, Store, next_table_number};
use crate::values::{
    Ask, Check, Description, Heritage, Inheritance, KeepsStanding, LimiterError, Mode, PartitionKey, Pending, Quota,
    Receipt,
};

/// Keeps the budgets of one limiter on a server, where all processes that name it alike share them.
///
/// The [`Backend`] knows the server. The rest is here, and is the same for all of them.
///
/// # Cost
///
/// One call per decision, also of cost 0. Requests for one key that come while a call for it is in flight on their
/// runtime share the next call: they may wait for the time of two, and no longer than the timeout. A key that is used up
/// costs one call per advertised wait, or per half a second if the wait is longer, and otherwise nothing but a look at a
/// table in this process, of 1 MiB.
///
/// # Accuracy
///
/// That of the algorithm, by the clock of the backend. A refund or a reset by another process is noticed here within half
/// a second and the time of one call, if the key is known here as used up: until then, its requests are rejected although
/// a unit is free.
///
/// # When the server is out of reach
///
/// A [decision](crate::Limiter::decide) fails within the [timeout](Backend::timeout). The policy
/// [says](crate::FailureMode) what happens to the request then. For the [local
/// fallback](crate::FailureMode::LocalFallback) this store also counts what the server admits in a [`MemoryStore`] for
/// 65,536 keys. The fallback only counts up: what is refunded on the server stays charged there, until time has paid it
/// off. What fallbacks admit is not reported to the server: over an outage and the recovery, *n* processes admit up to
/// *n* + 1 times the quota.
///
/// # Cancel safety
///
/// A request that is dropped while it is being decided may have been charged. A lease that its call takes is kept all
/// the same.
pub struct RemoteStore<S, B> {
    coalesces: bool,
    inner: Arc<StoreInner<S, B>>,
}

impl<S: Copy + Send + 'static, B> RemoteStore<S, B> {
    /// Creates a store for one limiter, whose keys `backend` keeps.
    #[must_use]
    pub fn new(backend: B) -> Self {
        Self::tagged(backend, Tags::new(b""))
    }

    /// Keeps [names](super::Target::name) of keys from being guessed by who can read them on the server. Processes that
    /// share budgets must agree on it.
    ///
    /// # Panics
    ///
    /// If the store is used already.
    #[must_use]
    #[track_caller]
    pub fn secret(mut self, secret: &[u8]) -> Self {
        self.inner_mut().tags = Tags::new(secret);
        self
    }

    pub(crate) fn tagged(backend: B, tags: Tags) -> Self {
        let inner = StoreInner {
            backend,
            tags,
            fallback: MemoryStore::default(),
            negative_cache: NegativeCache::new(),
            single_flight: Arc::new(SingleFlight::new()),
            leases: None,
            number: next_table_number(),
        };
        Self { coalesces: true, inner: Arc::new(inner) }
    }

    /// Takes units in advance (a lease) from keys in demand, and spends them without calls: for up to `most` requests
    /// at a time, within `lifetime`. A second is a good lifetime.
    ///
    /// How many are taken follows the demand of this process: none from a key with less than one request per
    /// `lifetime`, at first as many as there are requests that wait for the call, then twice as many each time that they
    /// were spent, and never more than half of what is left. Where a
    /// layer charges several policies in one call, a key in demand is charged by itself: from its lease, or in a call
    /// that takes one.
    ///
    /// # Accuracy
    ///
    /// Units are charged when they are taken, so no more than the limit is ever spent in all. But what was charged
    /// earlier may be spent later: in an interval of length *t*, up to burst + rate × (*t* + `lifetime`) is admitted.
    /// Leases of several processes that end unspent can add to that once their refunds come out of order: up to what these
    /// leases were for. Time for which a machine is suspended adds to its `lifetime`.
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
    /// If `most` or `lifetime` is zero, or `most` is greater than 1,024; or if the store is used already.
    #[must_use]
    #[track_caller]
    pub fn leasing(mut self, most: u32, lifetime: Duration) -> Self {
        assert!((1..=Leases::MOST).contains(&most), "a lease must be for 1 to {} requests, not {most}", Leases::MOST);
        assert!(!lifetime.is_zero(), "a lease must be for some time");
        self.inner_mut().leases = Some(Leases::new(most, lifetime));
        self
    }

    /// Lets no request wait for another one's call for the same key: requests that come while a call for it is in flight
    /// are decided side by side, instead of one batch after the other. That is sooner by up to a round trip, and at the
    /// cost of the server.
    #[must_use]
    pub fn without_coalescing(mut self) -> Self {
        self.coalesces = false;
        self
    }

    #[track_caller]
    fn inner_mut(&mut self) -> &mut StoreInner<S, B> {
        Arc::get_mut(&mut self.inner).expect("a store is set up before it is used")
    }

    pub(crate) const fn inner(&self) -> &Arc<StoreInner<S, B>> {
        &self.inner
    }

    /// The backend.
    #[must_use]
    pub fn backend(&self) -> &B {
        &self.inner.backend
    }

    pub(crate) fn query<A: Algorithm<State = S> + Clone>(
        &self,
        algorithm: &A,
        ask: &Ask<'_>,
    ) -> Result<KeyQuery<A, B>, LimiterError>
    where
        B: Backend<A>,
    {
        KeyQuery::of(&self.inner, algorithm, ask)
    }

    fn charge<A: Algorithm<State = S> + Clone>(&self, query: KeyQuery<A, B>, cost: u64) -> Check
    where
        B: Backend<A>,
    {
        match query.spend_lease(cost).or_else(|| query.cached_rejection(cost)) {
            Some(decision) => decision.into(),
            None if self.coalesces => Check::Pending(Box::pin(query.decide_coalesced(cost))),
            None => Check::Pending(Box::pin(async move { query.decide_alone(cost).await })),
        }
    }

    /// Refunds a charge, under the quota of the question that made it, in the background.
    fn refund_charge<A: Algorithm<State = S> + Clone>(&self, algorithm: &A, charged: &Ask<'_>, receipt: Receipt)
    where
        B: Backend<A>,
    {
        let cost = charged.cost();
        // What the server cannot keep was not charged there.
        let Some(query) = self.query(algorithm, charged).ok().filter(|_| !receipt.is_none()) else { return };
        match receipt.read::<LeaseReceipt>() {
            Some(lease) => query.return_to_lease(cost, lease),
            None => query.refund_in_background(cost, receipt),
        }
    }
}

/// Without a call, only a rejection can be known, and what a lease admits.
fn peek<A: Algorithm + Clone, B: Backend<A>>(query: KeyQuery<A, B>, cost: u64) -> Check {
    let known = query.peek_lease(cost).or_else(|| query.peek_rejection(cost));
    known.map_or_else(|| Check::Pending(Box::pin(query.peek(cost))), Check::from)
}

/// Changes the standings of the keys of one limiter.
struct StandingKeeper<A: Algorithm, B> {
    inner: Arc<StoreInner<A::State, B>>,
    algorithm: A,
}

impl<A: Algorithm + Clone, B: Backend<A>> StandingKeeper<A, B> {
    fn change(&self, ask: &Ask<'_>, change: Transition) -> Pending {
        let query = KeyQuery::of(&self.inner, &self.algorithm, ask);
        Box::pin(async move { query?.change_standing(change).await })
    }
}

impl<A: Algorithm + Clone, B: Backend<A>> KeepsStanding for StandingKeeper<A, B> {
    fn ban(&self, key: &PartitionKey, span: Duration) -> Pending {
        self.change(&Ask::peek(key, 1), Transition::Ban { span })
    }

    /// The fallback counts it, too, as far as units are left there.
    fn owe(&self, ask: &Ask<'_>) -> Pending {
        let _ = self.inner.fallback.charge_up_to(&self.algorithm, ask);
        self.change(ask, Transition::Owe { units: ask.cost() })
    }
}

impl<A: Algorithm + Clone, B: Backend<A>> Store<A> for RemoteStore<A::State, B> {
    /// # Panics
    ///
    /// If the backend cannot keep this quota.
    #[track_caller]
    fn prepare(&self, algorithm: &A) {
        if let Err(problem) = self.inner.backend.check_fit(algorithm) {
            panic!("{problem}");
        }
        self.inner.fallback.prepare(algorithm);
    }

    fn decide(&self, algorithm: &A, ask: &Ask<'_>) -> Check {
        if ask.mode() == Mode::Fallback {
            let decision = self.inner.charge_fallback(algorithm, ask);
            return decision.with_receipt(decision.receipt().mark_fallback()).into();
        }
        let (query, cost) = match self.query(algorithm, ask) {
            Ok(query) => (query, ask.cost()),
            Err(error) => return Check::Ready(Err(error)),
        };
        match ask.mode() {
            Mode::UpTo => query.charge_up_to(cost),
            // One round trip. Other processes notice within half a second and one call of theirs.
            Mode::Reset => Check::Pending(Box::pin(query.reset())),
            Mode::Peek => peek(query, cost),
            // It reports what is left of a key, and charges nothing.
            Mode::Charge if ask.keeps_quota() && cost == 0 => Check::Pending(Box::pin(query.look())),
            Mode::Charge | Mode::Shadow | Mode::Fallback => self.charge(query, cost),
        }
    }

    /// Refunds in the background, by one call: if that fails, the charge stays.
    fn refund(&self, algorithm: &A, key: &PartitionKey, receipt: Receipt, cost: u64) {
        if let Some(receipt) = receipt.unmark_fallback() {
            return self.inner.fallback.refund(algorithm, key, receipt, cost);
        }
        self.refund_charge(algorithm, &Ask::charge(key, cost), receipt);
    }

    fn refund_under(&self, algorithm: &A, quota: Quota, key: &PartitionKey, receipt: Receipt, cost: u64) {
        if let Some(receipt) = receipt.unmark_fallback() {
            return self.inner.fallback.refund_under(algorithm, quota, key, receipt, cost);
        }
        self.refund_charge(algorithm, &Ask::charge(key, cost).under(Some(quota)), receipt);
    }

    fn take_quotas(&self, algorithm: &A) -> bool {
        self.inner.fallback.take_quotas(algorithm)
    }

    fn describe(&self, algorithm: &A) -> Description {
        let description = Description::new().answering_all();
        if !self.inner.backend.keeps_standing(algorithm) {
            return description;
        }
        description.keeping_standing(StandingKeeper { inner: Arc::clone(&self.inner), algorithm: algorithm.clone() })
    }

    /// Inherits from a store whose backend [keeps the same keys](Backend::shares_keys_with): the server keeps what it
    /// has. Leases are forfeited.
    fn inherit(&self, algorithm: &Arc<A>, heritage: &Heritage) -> Option<Inheritance<Self>> {
        let predecessor: Arc<Arc<StoreInner<A::State, B>>> = heritage.downcast()?;
        if !self.inner.backend.shares_keys_with(&predecessor.backend) {
            return None;
        }
        // A fallback that cannot inherit in place fills up by what is admitted from now on.
        let fallback = Store::heritage(&predecessor.fallback, &**algorithm);
        let fallback = fallback.and_then(|heritage| self.inner.fallback.inherit(algorithm, &heritage));
        Some(Inheritance::in_place().and_then(fallback.and_then(|fallback| fallback.finish)))
    }

    fn heritage(&self, _: &A) -> Option<Heritage> {
        Some(Heritage::new(Arc::new(Arc::clone(&self.inner))))
    }

    fn stats(&self, _: &A) -> Stats {
        let sharing = SharingStats { number: Some(self.inner.number), ..self.inner.backend.stats() };
        Stats { sharing: Some(sharing), ..Stats::default() }
    }
}

impl<S, B: fmt::Debug> fmt::Debug for RemoteStore<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteStore").field("backend", &self.inner.backend).finish_non_exhaustive()
    }
}
