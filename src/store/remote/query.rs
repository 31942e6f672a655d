//! One limiter's requests to its server: decided without a call, in a shared call, or in their own call.
//!
//! A request is decided by the first step that has an answer:
//!
//! 1. [`spend_lease`](KeyQuery::spend_lease): units that were taken in advance pay for it.
//! 2. [`cached_rejection`](KeyQuery::cached_rejection): the negative cache knows that its key is used up, banned or in
//!    debt.
//! 3. [`decide_coalesced`](KeyQuery::decide_coalesced): its own call, or, while a call for the key is in flight, the
//!    next call, which all requests share that come meanwhile. (`decide_alone`, if the store is set to share no calls.)
//!
//! A decision by a call goes through these functions, from the outside in:
//!
//! | function | concern |
//! |---|---|
//! | `decide_batch` | the lease that the call may take or refund, and the task that makes such a call |
//! | `decide_with_lease` | the units for waiting requests and for the lease, in one charge |
//! | `charge_or_read` | a read, if it is enough, or a charge |
//! | `apply` | one call of the [`Backend`] |
//! | [`record_charge`](KeyQuery::record_charge) | the decisions from the answer, and the records in this process |
//!
//! Async functions make calls, and `charge_up_to` and `refund_in_background` spawn theirs. Functions named `record_…`
//! take the answer to a call, update the records in this process, and may return decisions. Functions named
//! `decision_…` record nothing.
//!
//! The *query's quota* is the quota under which a request is decided: the key's own, or the limiter's. The server may
//! have kept the key under another one, if the quota was changed and some processes do not have the new one yet.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;

use super::backend::{Applied, Backend, CallLimits, Decisions, GaveUp, Target, Transition, deadline_in};
use super::leases::{Lease, LeaseAction, LeaseReceipt, Leases, Price, Unspent};
use super::negative_cache::{NegativeCache, Observation};
use super::single_flight::{BATCH, Collector, FlightKey, FollowerOutcome, Group, Join, PendingFollower, SingleFlight};
use super::standing::Standing;
use super::tag::{KeyTag, Tags};
use crate::algorithm::Algorithm;
use crate::store::{MemoryTable, quota_change};
use crate::values::time::{Clock, Monotonic, Timestamp};
use crate::values::{Answer, Ask, Decision, LimiterError, PartitionKey, Quota, Receipt};

/// The parts of a table that one limiter's requests share.
pub(crate) struct StoreInner<S, B> {
    /// The code that knows the server.
    pub(crate) backend: B,
    pub(super) tags: Tags,
    pub(super) fallback: MemoryTable<S>,
    pub(super) negative_cache: NegativeCache<CachedState<S>>,
    pub(super) single_flight: Arc<SingleFlight<Answered>>,
    pub(super) leases: Option<Leases>,
    /// The table's number in [`SharingStats`](crate::store::SharingStats).
    pub(super) number: u64,
}

/// A key's entry in the negative cache: its state and standing when it last rejected a request.
#[derive(Clone, Copy)]
pub(crate) struct CachedState<S> {
    /// The state. If the key has a standing, this is the state that it will have at the end.
    state: Option<S>,
    /// The quota under which the state was read. A bucket's state is in units of its rate.
    quota: Quota,
    standing: Standing,
}

/// The answer to one request.
pub(crate) type Answered = Result<Decision, LimiterError>;

/// A request about one key, with everything that a task needs to make calls for it.
pub(crate) struct KeyQuery<A: Algorithm, B> {
    /// The parts that the limiter's requests share.
    pub(crate) inner: Arc<StoreInner<A::State, B>>,
    /// The algorithm, under the query's quota.
    pub(crate) algorithm: A,
    /// `None` if the key has the limiter's quota.
    own_quota: Option<Quota>,
    limiter_quota: Quota,
    pub(crate) key: PartitionKey,
    /// The hash that stands for the key.
    pub(crate) tag: KeyTag,
}

impl<A: Algorithm + Clone, B> Clone for KeyQuery<A, B> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            algorithm: self.algorithm.clone(),
            own_quota: self.own_quota,
            limiter_quota: self.limiter_quota,
            key: self.key.clone(),
            tag: self.tag,
        }
    }
}

impl<A: Algorithm + Clone, B: Backend<A>> KeyQuery<A, B> {
    /// Creates the query for a request: under the key's own quota, if `ask` has one that is not suspended.
    ///
    /// # Errors
    ///
    /// If the server cannot keep that quota.
    pub(crate) fn for_ask(
        inner: &Arc<StoreInner<A::State, B>>,
        algorithm: &A,
        ask: &Ask<'_>,
    ) -> Result<Self, LimiterError> {
        let key = ask.key();
        let own_quota = ask.quota().filter(|quota| !quota.is_suspended());
        let limiter_quota = algorithm.quota();
        let algorithm = match own_quota.and_then(|quota| algorithm.under(quota)) {
            Some(algorithm) => {
                // The limiter's quota was checked when the limiter was made.
                let fits = inner.backend.check_fit(&algorithm);
                fits.map_err(|unfit| LimiterError::new(unfit.to_string()).with_source(unfit))?;
                algorithm
            }
            None => algorithm.clone(),
        };
        let tag = inner.tags.of(key);
        Ok(Self { inner: Arc::clone(inner), algorithm, own_quota, limiter_quota, key: key.clone(), tag })
    }

    /// Returns this query under another quota, if the algorithm can have it.
    fn with_quota(&self, quota: Quota) -> Self {
        let algorithm = self.algorithm.under(quota).unwrap_or_else(|| self.algorithm.clone());
        Self { algorithm, ..self.clone() }
    }

    /// Returns the price of a request of `cost` units under the query's quota.
    fn price(&self, cost: u64) -> Price {
        Price { cost, quota: self.algorithm.quota() }
    }

    /// Returns the rejection that the server would answer, if the negative cache implies it. If the entry must be
    /// verified, one request gets `None`, and verifies it by its call.
    pub(crate) fn cached_rejection(&self, cost: u64) -> Option<Decision> {
        if cost == 0 {
            return None;
        }
        let cache = &self.inner.negative_cache;
        cache.rejection(self.tag, Monotonic.now(), |cached, at| self.implied_rejection(cached, at, cost))
    }

    /// Like `cached_rejection`, but uses an entry even when it is due for verification, because this caller will not
    /// call the server.
    pub(crate) fn peek_rejection(&self, cost: u64) -> Option<Decision> {
        if cost == 0 {
            return None;
        }
        let cache = &self.inner.negative_cache;
        cache.peek(self.tag, Monotonic.now(), |cached, at| self.implied_rejection(cached, at, cost))
    }

    /// Returns the rejection that an entry in the negative cache implies: by its standing, or by its state. A state
    /// that was read under another quota implies no rejection, because the server converts it.
    fn implied_rejection(&self, cached: CachedState<A::State>, at: Timestamp, cost: u64) -> Option<Decision> {
        let state = cached.state.filter(|_| cached.quota == self.algorithm.quota());
        match cached.standing.decide(&self.algorithm, state, at, cost) {
            Some(decision) => Some(decision).filter(|decision| !decision.is_allowed()),
            None => self.rejection(state?, at, cost),
        }
    }

    /// Returns the decision by a state, if it is a rejection.
    fn rejection(&self, state: A::State, at: Timestamp, cost: u64) -> Option<Decision> {
        Some(self.algorithm.decide(Some(state), at, cost).0).filter(|decision| !decision.is_allowed())
    }

    /// Admits a request from a lease, if one pays for it.
    pub(crate) fn spend_lease(&self, cost: u64) -> Option<Decision> {
        self.inner.leases.as_ref()?.spend(self.tag, self.price(cost), Monotonic.now())
    }

    /// Returns the decision that [`spend_lease`](Self::spend_lease) would make, and spends nothing.
    pub(crate) fn peek_lease(&self, cost: u64) -> Option<Decision> {
        self.inner.leases.as_ref()?.peek(self.tag, self.price(cost), Monotonic.now())
    }

    /// Whether a lease pays for the request, or its own call would take a lease.
    pub(crate) fn is_in_demand(&self, cost: u64) -> bool {
        self.inner
            .leases
            .as_ref()
            .is_some_and(|leases| leases.is_in_demand(self.tag, self.price(cost), Monotonic.now()))
    }

    /// Stores a lease after a call that has asked for units for `extra` further requests, and was granted units for
    /// `left` of them; `last` is its last decision. An empty lease (`left` is zero) records the demand, so if another
    /// request comes soon, its call may take a lease.
    pub(crate) fn hold_lease(&self, cost: u64, left: u32, extra: u32, last: Decision, since: Timestamp) {
        if let Some(leases) = &self.inner.leases {
            let lease = Lease::new(self.price(cost), left, extra, last, since);
            leases.hold(self.tag, lease.taken_from(self.algorithm.kind()));
        }
    }

    /// Decides in its own call.
    pub(super) async fn decide_alone(&self, cost: u64, deadline: Instant) -> Answered {
        Ok(self.decide_batch(cost, 1, deadline).await?[0])
    }

    /// Decides in its own call if no call for this key is in flight. Otherwise shares the next call with all requests
    /// that come meanwhile.
    pub(crate) async fn decide_coalesced(self, cost: u64) -> Answered {
        let deadline = self.deadline();
        if self.inner.backend.is_failing(&self.target()) {
            // While calls fail, no request waits for another one's call. The backend lets one request probe the server,
            // and answers the others without a call.
            return self.decide_alone(cost, deadline).await;
        }
        let single_flight = Arc::clone(&self.inner.single_flight);
        match single_flight.join(FlightKey::on_this_runtime(self.tag, self.algorithm.quota()), cost, deadline) {
            Join::Leader(leader) => {
                let answer = self.decide_alone(cost, deadline).await;
                // Dropped only now, because a rejection is in the negative cache, where the followers find it.
                drop(leader);
                answer
            }
            Join::Follower(follower, collector) => {
                let handle = Handle::try_current().map_err(|_| self.gave_up(GaveUp::NoRuntime))?;
                if let Some(collector) = collector {
                    handle.spawn(self.clone().collect(collector));
                }
                match follower.answer().await {
                    FollowerOutcome::Answered(answer) => answer,
                    FollowerOutcome::Lost => Err(self.gave_up(GaveUp::Cancelled)),
                    FollowerOutcome::Late(collector) => {
                        let late = self.gave_up(GaveUp::TimedOut);
                        if let Some(collector) = collector {
                            handle.spawn(self.collect(collector));
                        }
                        Err(late)
                    }
                }
            }
            Join::Full => Err(self.gave_up(GaveUp::TooManyInFlight)),
        }
    }

    /// Runs as the task that answers the key's followers, until all are answered.
    async fn collect(self, mut collector: Collector<Answered>) {
        // If the leader's future is not polled, its call does not end. Then half the timeout is left for a call.
        collector.await_leader(self.timeout() / 2).await;
        loop {
            let mut groups = collector.groups();
            let Some(last) = groups.pop() else { return };
            // One group for each cost. They are answered concurrently, because otherwise a client that chooses unusual
            // costs would delay the others.
            let others: Vec<_> = groups.into_iter().map(|group| tokio::spawn(self.clone().answer(group))).collect();
            self.clone().answer(last).await;
            for other in others {
                // A task that panicked has dropped its followers without an answer.
                let _ = other.await;
            }
        }
    }

    /// Answers followers with one cost, in as few calls as possible.
    async fn answer(self, Group { cost, followers }: Group<Answered>) {
        // Requests that were cancelled by now are dropped, so they are not charged, to a lease or on the server.
        let mut followers = followers.into_iter().filter(|follower| !follower.answer.is_closed()).peekable();
        while followers.peek().is_some() {
            if let Some(decision) = self.spend_lease(cost).or_else(|| self.peek_rejection(cost)) {
                answer_all(followers.next(), [Ok(decision)]);
                continue;
            }
            let batch: Vec<_> = followers.by_ref().take(BATCH).collect();
            // Followers with an earlier deadline give up by themselves.
            let deadline = batch.iter().map(|follower| follower.deadline).max().expect("one was peeked at");
            match self.decide_batch(cost, u32::try_from(batch.len()).expect("a batch is small"), deadline).await {
                Ok(decisions) => answer_all(batch, decisions.into_iter().map(Ok)),
                Err(error) => answer_all(batch, std::iter::repeat(Err(error))),
            }
        }
    }

    /// Returns the key as the backend knows it.
    pub(crate) fn target(&self) -> Target<'_, A> {
        Target::new(&self.algorithm, self.own_quota, self.limiter_quota, self.tag)
    }

    /// Returns the deadline of a decision that begins now.
    pub(super) fn deadline(&self) -> Instant {
        deadline_in(self.timeout())
    }

    fn timeout(&self) -> Duration {
        self.inner.backend.timeout()
    }

    /// Returns the error for a request that this process gave up.
    fn gave_up(&self, reason: GaveUp) -> LimiterError {
        self.inner.backend.gave_up(reason)
    }

    /// Applies a transition by one call. Returns its outcome, and the readings of both clocks.
    async fn apply(
        &self,
        transition: Transition,
        limits: CallLimits,
    ) -> Result<(Applied<A::State>, Observation), LimiterError> {
        let sent = Monotonic.now();
        let applied = self.inner.backend.apply(&self.target(), transition, limits).await?;
        Ok((applied, Observation { server: applied.now, sent, answered: Monotonic.now() }))
    }

    /// Applies a transition for one request.
    async fn apply_one(&self, transition: Transition) -> Result<(Applied<A::State>, Observation), LimiterError> {
        self.apply(transition, CallLimits { deadline: self.deadline(), requests: 1 }).await
    }

    /// Decides on `count` requests with the same cost, one after the other, in one round trip. If the key is in demand,
    /// the same round trip takes a lease, or refunds one.
    async fn decide_batch(&self, cost: u64, count: u32, deadline: Instant) -> Result<Decisions, LimiterError> {
        let Some(leases) = self.inner.leases.as_ref().filter(|_| cost > 0) else {
            return self.charge_or_read(cost, count, count, deadline).await.map(|(decisions, _)| decisions);
        };
        let runtime = Handle::try_current().map_err(|_| self.gave_up(GaveUp::NoRuntime))?;
        let action = leases.next_action(self.tag, self.price(cost), count, Monotonic.now());
        if action == LeaseAction::More(0) {
            // Takes and refunds no units beside its own charge, so it needs no task.
            return self.clone().decide_with_lease(cost, count, action, deadline).await;
        }
        // In a task, so that a lease, or a lease's refund, is not lost if this request is cancelled. The caller does
        // not poll the call itself, because others wait for this call too, and a caller may hold its future without
        // polling it.
        let task = runtime.spawn(self.clone().decide_with_lease(cost, count, action, deadline));
        task.await.unwrap_or_else(|_| Err(self.gave_up(GaveUp::Cancelled)))
    }

    /// Decides on `count` requests, carries out `action`, and records the lease or the demand.
    async fn decide_with_lease(
        self,
        cost: u64,
        count: u32,
        action: LeaseAction,
        deadline: Instant,
    ) -> Result<Decisions, LimiterError> {
        // Read before the call, so that a lease ends no later than the window that it was taken from.
        let since = Monotonic.now();
        let extra = if let LeaseAction::More(extra) = action { extra } else { 0 };
        let call = self.charge_or_read(cost, count + extra, count, deadline);
        let (mut decisions, is_own_quota) = match action {
            LeaseAction::More(0) => call.await?,
            // If this call fails, the next call may ask for the lease.
            LeaseAction::More(_) => call.await.inspect_err(|_| {
                self.inner.leases.iter().for_each(|leases| leases.ask_again(self.tag));
            })?,
            LeaseAction::Refund(Unspent { requests, price, receipt }) => {
                let taken_by = self.with_quota(price.quota);
                let units = price.cost.saturating_mul(requests.into());
                // Polled first, so that it is sent first on the same connection; otherwise the units would be missing
                // when the server decides.
                tokio::join!(biased; taken_by.refund(units, receipt, deadline), call).1?
            }
        };
        // How many requests were admitted, and the decision on the last of them.
        let granted = decisions.iter().rposition(Decision::is_allowed).map(|last| (last + 1, decisions[last]));
        // A charge under another quota was for the waiting requests only, so no lease is left.
        if let Some((admitted, last)) = granted.filter(|_| is_own_quota) {
            let left = u32::try_from(admitted).expect("as many as were asked for").saturating_sub(count);
            self.hold_lease(cost, left, extra, last, since);
        }
        decisions.truncate(count as usize);
        Ok(decisions)
    }

    /// Decides on `count` requests. The first `waiting` requests wait for the answer; the others are for a lease. Also
    /// returns whether the decisions were made under the query's quota. If not, there are decisions on the waiting
    /// requests only.
    async fn charge_or_read(
        &self,
        cost: u64,
        count: u32,
        waiting: u32,
        deadline: Instant,
    ) -> Result<(Decisions, bool), LimiterError> {
        let limits = CallLimits { deadline, requests: waiting };
        if !(1..=self.algorithm.max_cost()).contains(&cost) {
            // Requests with cost 0, or above the maximum, charge nothing.
            let decision = self.decide_by_read(cost, limits).await?;
            return Ok(((0..count).map(|_| decision).collect(), true));
        }
        if let Some(rejection) = self.reject_by_read(cost, limits).await? {
            return Ok(((0..count).map(|_| rejection).collect(), true));
        }
        let (applied, seen) = self.apply(Transition::Charge { cost, count }, limits).await?;
        // Under another quota, only the waiting requests were charged.
        let count = if applied.kept.is_some() { waiting.min(count) } else { count };
        self.record_charge(&applied, seen, cost, count).map_err(|disagreement| self.gave_up(disagreement))
    }

    /// Records the outcome when `count` requests were charged. Returns the decisions on them, and whether they were
    /// made under the query's quota.
    pub(crate) fn record_charge(
        &self,
        applied: &Applied<A::State>,
        seen: Observation,
        cost: u64,
        count: u32,
    ) -> Result<(Decisions, bool), GaveUp> {
        if let Some(decision) = self.record_if_in_force(applied, seen, cost) {
            return Ok(((0..count).map(|_| decision).collect(), true));
        }
        // The algorithm under the quota that the key kept, if the charge was not made under the query's quota.
        let kept_algorithm = applied.kept.and_then(|quota| self.algorithm.under(quota));
        let is_own_quota = kept_algorithm.is_none();
        let (mut decisions, state) = applied.replay(kept_algorithm.as_ref().unwrap_or(&self.algorithm), cost, count)?;
        if kept_algorithm.is_some_and(|kept| !quota_change::has_units_of(&self.algorithm, &kept.quota())) {
            // A refund would be made under the query's quota, whose units differ. So these decisions get no receipt,
            // and cannot be refunded.
            decisions.iter_mut().for_each(|decision| *decision = decision.with_receipt(Receipt::NONE));
        }
        self.record_state(state.filter(|_| is_own_quota), seen, cost);
        // The local fallback counts the admitted units too, as far as they fit, so that it has the right counts when
        // the server fails.
        let admitted = decisions.iter().filter(|decision| decision.is_allowed()).count() as u64;
        if admitted > 0 {
            self.charge_fallback(cost.saturating_mul(admitted));
        }
        Ok((decisions, is_own_quota))
    }

    /// Charges the local fallback units that the server was charged, as far as it has them left.
    pub(crate) fn charge_fallback(&self, units: u64) {
        let ask = Ask::charge(&self.key, units).under(self.own_quota);
        let _ = self.inner.fallback.charge_up_to(&self.algorithm, &ask);
    }

    /// Returns the decision on one request after a call, and records nothing.
    pub(crate) fn decision_after(&self, applied: &Applied<A::State>, cost: u64) -> Decision {
        let Applied { now, old, standing, kept, .. } = applied;
        if let Some(decision) = standing.decide(&self.algorithm, *old, *now, cost) {
            return decision;
        }
        let kept_algorithm = kept.and_then(|quota| self.algorithm.under(quota));
        kept_algorithm.as_ref().unwrap_or(&self.algorithm).decide(*old, *now, cost).0
    }

    /// Records the outcome of a call that has charged nothing. Returns the decision on a request with cost 0, with the
    /// key's numbers. If the key `is_foreign`, it stays under another quota and pays its debt at that quota's rate, so
    /// its state is not recorded.
    pub(crate) fn record_unchanged(
        &self,
        applied: &Applied<A::State>,
        is_foreign: bool,
        seen: Observation,
        cost: u64,
    ) -> Decision {
        if applied.standing.is_some() {
            self.record_standing(applied.standing, applied.old, seen);
        } else if applied.kept.is_none() && !is_foreign {
            self.record_state(applied.old, seen, cost);
        }
        self.decision_after(applied, 0)
    }

    /// Verifies a rejection that the negative cache implies, by a read, if a read is cheaper than a rejected charge.
    /// Returns `None` if the key must be charged.
    async fn reject_by_read(&self, cost: u64, limits: CallLimits) -> Result<Option<Decision>, LimiterError> {
        if !self.inner.backend.reads_are_cheaper() || self.peek_rejection(cost).is_none() {
            return Ok(None);
        }
        let (applied, seen) = self.apply(Transition::Read, limits).await?;
        let Applied { now, old, kept, .. } = applied;
        if let Some(decision) = self.record_if_in_force(&applied, seen, cost) {
            return Ok(Some(decision));
        }
        // A state under another quota implies no rejection, because the charge converts it.
        let state = old.filter(|_| kept.is_none());
        let rejection = state.and_then(|state| self.rejection(state, now, cost));
        if rejection.is_some() {
            self.record_state(state, seen, cost);
        }
        Ok(rejection)
    }

    /// Records the key's standing if it is in force, and returns the decision on a request by it.
    fn record_if_in_force(&self, applied: &Applied<A::State>, seen: Observation, cost: u64) -> Option<Decision> {
        let decision = applied.standing.decide(&self.algorithm, applied.old, applied.now, cost)?;
        self.record_standing(applied.standing, applied.old, seen);
        Some(decision)
    }

    /// Records a standing that is in force.
    pub(crate) fn record_standing(&self, standing: Standing, state: Option<A::State>, seen: Observation) {
        // A lease is dropped, because otherwise, requests would spend it although the key is banned or in debt.
        self.inner.leases.iter().for_each(|leases| leases.forget(self.tag));
        let cached = CachedState { state, quota: self.algorithm.quota(), standing };
        self.inner.negative_cache.note(self.tag, Some(cached), seen);
    }

    /// Decides by a read. Charges and records nothing.
    async fn decide_by_read(&self, cost: u64, limits: CallLimits) -> Answered {
        Ok(self.decision_after_read(&self.apply(Transition::Read, limits).await?.0, cost))
    }

    /// Returns the decision after a read. A state under another quota is converted to the query's quota. On the server,
    /// the key stays under the other quota and pays its debt at that rate, so nothing is recorded.
    fn decision_after_read(&self, read: &Applied<A::State>, cost: u64) -> Decision {
        let Applied { now, old, standing, kept, .. } = *read;
        if let Some(decision) = standing.decide(&self.algorithm, old, now, cost) {
            return decision;
        }
        let state = old.and_then(|state| match &kept {
            Some(kept) => quota_change::converted(&self.algorithm, state, kept, now),
            None => Some(state),
        });
        self.algorithm.decide(state, now, cost).0
    }

    /// Records the outcome of a read in place of a charge for `cost` units. Returns the decision on a request with cost
    /// 0, with the key's numbers.
    pub(super) fn record_read(&self, read: &Applied<A::State>, seen: Observation, cost: u64) -> Decision {
        if read.standing.is_some() {
            self.record_standing(read.standing, read.old, seen);
        } else if read.kept.is_none() {
            self.record_state(read.old, seen, cost);
        }
        self.decision_after_read(read, 0)
    }

    /// Records the key's state after the server's answer: in the negative cache if it rejects requests at this cost;
    /// otherwise, the key's entry there is removed. The entry has the state itself, which also implies the longer waits
    /// for requests at a greater cost.
    fn record_state(&self, state: Option<A::State>, seen: Observation, cost: u64) {
        let used_up = state.filter(|state| self.rejection(*state, seen.server, cost.max(1)).is_some());
        let quota = self.algorithm.quota();
        let cached = used_up.map(|state| CachedState { state: Some(state), quota, standing: Standing::default() });
        self.inner.negative_cache.note(self.tag, cached, seen);
    }

    /// Returns units to the lease that paid them. They are forfeited if the lease has ended.
    pub(crate) fn return_to_lease(&self, cost: u64, lease: LeaseReceipt) {
        if let Some(leases) = &self.inner.leases {
            leases.return_to_lease(self.tag, cost, lease, Monotonic.now());
        }
    }

    /// Refunds in the background, by one call. Outside a Tokio runtime, refunds nothing.
    pub(crate) fn refund_in_background(self, cost: u64, receipt: Receipt) {
        self.inner.negative_cache.forget(self.tag, Monotonic.now());
        if let Ok(handle) = Handle::try_current() {
            handle.spawn(async move { self.refund(cost, receipt, self.deadline()).await });
        }
    }

    /// Charges the remaining units, up to `cost`, in the background: by one call, or by two if less than `cost` is
    /// left.
    pub(crate) fn charge_up_to(self, cost: u64) -> Answer {
        let Ok(runtime) = Handle::try_current() else { return Answer::Ready(Err(self.gave_up(GaveUp::NoRuntime))) };
        let cancelled = self.gave_up(GaveUp::Cancelled);
        let task = runtime.spawn(async move {
            let decision = self.decide_alone(cost, self.deadline()).await?;
            // If the whole cost does not fit, the part that fits is charged, and the rest is forgiven.
            match decision.partial_cost(cost) {
                Some(left) => self.decide_alone(left, self.deadline()).await,
                None => Ok(decision),
            }
        });
        Answer::Pending(Box::pin(async move { task.await.unwrap_or(Err(cancelled)) }))
    }

    /// Decides by its own call, which charges nothing.
    pub(crate) async fn peek(self, cost: u64) -> Answered {
        self.decide_by_read(cost, CallLimits { deadline: self.deadline(), requests: 1 }).await
    }

    /// Returns a key's remaining units under the quota that it was last charged under. If the key owes nothing, the
    /// limiter's quota counts.
    pub(crate) async fn look(self) -> Answered {
        Ok(self.decision_after(&self.apply_one(Transition::Read).await?.0, 0))
    }

    /// Bans or allows the key, or adds to its debt. Returns the decision on a request with cost 0.
    pub(crate) async fn change_standing(self, change: Transition) -> Answered {
        let (applied, seen) = self.apply_one(change).await?;
        Ok(self.record_change(&applied, seen))
    }

    /// Records the key's standing after a change. Returns the decision on a request with cost 0.
    pub(crate) fn record_change(&self, applied: &Applied<A::State>, seen: Observation) -> Decision {
        if applied.standing.is_in_force(applied.now) {
            self.record_standing(applied.standing, applied.old, seen);
        } else {
            self.inner.negative_cache.note(self.tag, None, seen);
        }
        self.decision_after(applied, 0)
    }

    /// Deletes the key, on the server and in this process's tables.
    pub(crate) async fn reset(self) -> Answered {
        let (applied, _) = self.apply_one(Transition::Reset).await?;
        let inner = &*self.inner;
        inner.negative_cache.forget(self.tag, Monotonic.now());
        inner.leases.iter().for_each(|leases| leases.forget(self.tag));
        let _ = inner.fallback.shared().reset(&self.algorithm, &Ask::reset(&self.key));
        Ok(self.algorithm.decide(None, applied.now, 0).0)
    }

    /// Refunds on the server, by one call.
    async fn refund(&self, cost: u64, receipt: Receipt, deadline: Instant) {
        if !receipt.is_none() && cost > 0 {
            // If the call fails, the charge stays, so too little is admitted then, and never too much.
            let _ = self.apply(Transition::Refund { cost, receipt }, CallLimits { deadline, requests: 1 }).await;
        }
        // A rejection from before the refund may have been recorded meanwhile.
        self.inner.negative_cache.forget(self.tag, Monotonic.now());
    }
}

/// Answers followers, in their order. A follower that was cancelled meanwhile needs no answer.
fn answer_all(
    followers: impl IntoIterator<Item = PendingFollower<Answered>>,
    answers: impl IntoIterator<Item = Answered>,
) {
    for (follower, answer) in followers.into_iter().zip(answers) {
        let _ = follower.answer.send(answer);
    }
}
