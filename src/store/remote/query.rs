//! The requests of one limiter to its server: decided without a call, in a shared call, or in a call of their own.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;

use super::backend::{Applied, Backend, CallLimits, Decisions, GaveUp, Target, Transition};
use super::leases::{Lease, LeaseAction, LeaseReceipt, Leases, Price, Unspent};
use super::negative_cache::{NegativeCache, Observation};
use super::single_flight::{BATCH, Collector, FlightKey, FollowerOutcome, Group, Join, PendingFollower, SingleFlight};
use super::standing::Standing;
use super::tag::{KeyTag, Tags};
use crate::algorithm::Algorithm;
use crate::store::{MemoryTable, quota_change};
use crate::values::time::{Clock, Monotonic, Timestamp};
use crate::values::{Answer, Ask, Decision, LimiterError, PartitionKey, Quota, Receipt};

/// The parts of a table that the requests of one limiter share.
#[allow(missing_debug_implementations, reason = "no public function returns it")]
pub struct StoreInner<S, B> {
    pub(crate) backend: B,
    pub(super) tags: Tags,
    pub(super) fallback: MemoryTable<S>,
    pub(super) negative_cache: NegativeCache<Known<S>>,
    pub(super) single_flight: Arc<SingleFlight<Answered>>,
    pub(super) leases: Option<Leases>,
    /// See [`SharingStats`](crate::store::SharingStats).
    pub(super) number: u64,
}

/// The last known state of a key from which nothing could be taken.
#[derive(Clone, Copy)]
pub(crate) struct Known<S> {
    /// The state at the end of the standing, if there is one.
    state: Option<S>,
    /// The quota under which the state was read. The state of a bucket is in units of its rate.
    quota: Quota,
    standing: Standing,
}

/// The answer to one request.
pub(crate) type Answered = Result<Decision, LimiterError>;

/// A request to the server about one key, with everything that a task needs to make it.
pub(crate) struct KeyQuery<A: Algorithm, B> {
    pub(crate) inner: Arc<StoreInner<A::State, B>>,
    /// With the quota of the key.
    pub(crate) algorithm: A,
    /// The quota of the key; `None` if it has the limiter's.
    quota: Option<Quota>,
    /// The quota of the limiter.
    limiter: Quota,
    pub(crate) key: PartitionKey,
    pub(crate) tag: KeyTag,
}

impl<A: Algorithm + Clone, B> Clone for KeyQuery<A, B> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            algorithm: self.algorithm.clone(),
            quota: self.quota,
            limiter: self.limiter,
            key: self.key.clone(),
            tag: self.tag,
        }
    }
}

impl<A: Algorithm + Clone, B: Backend<A>> KeyQuery<A, B> {
    /// Creates a request under the quota of this question.
    ///
    /// # Errors
    ///
    /// If the server cannot keep that quota.
    pub(crate) fn of(inner: &Arc<StoreInner<A::State, B>>, algorithm: &A, ask: &Ask<'_>) -> Result<Self, LimiterError> {
        let key = ask.key();
        let quota = ask.quota();
        let limiter = algorithm.quota();
        let algorithm = match quota.and_then(|quota| algorithm.under(quota)) {
            Some(algorithm) => {
                // The policy's own quota was checked when its limiter was made.
                let fits = inner.backend.check_fit(&algorithm);
                fits.map_err(|unfit| LimiterError::new(unfit.to_string()).with_source(unfit))?;
                algorithm
            }
            None => algorithm.clone(),
        };
        let tag = inner.tags.of(key);
        Ok(Self { inner: Arc::clone(inner), algorithm, quota, limiter, key: key.clone(), tag })
    }

    /// Returns this request under the quota that a lease was taken under.
    fn priced(&self, price: Price) -> Self {
        let algorithm = self.algorithm.under(price.quota).unwrap_or_else(|| self.algorithm.clone());
        Self { algorithm, ..self.clone() }
    }

    fn price(&self, cost: u64) -> Price {
        Price { cost, quota: self.algorithm.quota() }
    }

    /// Returns the rejection that the server would answer, if that is certain. The request that must verify the entry
    /// gets no answer.
    pub(crate) fn cached_rejection(&self, cost: u64) -> Option<Decision> {
        if cost == 0 {
            return None;
        }
        let cache = &self.inner.negative_cache;
        cache.rejection(self.tag, Monotonic.now(), |state, at| self.known_rejection(state, at, cost))
    }

    /// Returns the rejection for a caller that makes no call, and so verifies nothing.
    pub(crate) fn peek_rejection(&self, cost: u64) -> Option<Decision> {
        if cost == 0 {
            return None;
        }
        let cache = &self.inner.negative_cache;
        cache.peek(self.tag, Monotonic.now(), |state, at| self.known_rejection(state, at, cost))
    }

    /// Returns the rejection by a state that was read under the same quota, or by a standing. A state that was read
    /// under another quota implies no rejection: the server converts it.
    fn known_rejection(&self, known: Known<A::State>, at: Timestamp, cost: u64) -> Option<Decision> {
        let state = known.state.filter(|_| known.quota == self.algorithm.quota());
        match known.standing.decide(&self.algorithm, state, at, cost) {
            Some(decision) => Some(decision).filter(|decision| !decision.is_allowed()),
            None => self.rejection(state?, at, cost),
        }
    }

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

    /// Whether a lease pays for the request, or a call of its own would take a lease.
    pub(crate) fn is_in_demand(&self, cost: u64) -> bool {
        self.inner
            .leases
            .as_ref()
            .is_some_and(|leases| leases.is_in_demand(self.tag, self.price(cost), Monotonic.now()))
    }

    /// Stores a lease for the `left` of `extra` further requests that a call was granted, with its `last` decision. An
    /// empty lease records the demand: if another request comes soon, its call may take a lease.
    pub(crate) fn hold_lease(&self, cost: u64, left: u32, extra: u32, last: Decision, since: Timestamp) {
        if let Some(leases) = &self.inner.leases {
            let lease = Lease::new(self.price(cost), left, extra, last, since);
            leases.hold(self.tag, lease.taken_from(self.algorithm.kind()));
        }
    }

    /// Decides in a call of its own.
    pub(super) async fn decide_alone(&self, cost: u64, deadline: Instant) -> Answered {
        Ok(self.call(cost, 1, deadline).await?[0])
    }

    /// Decides in a call of its own if no call for this key is in flight. Otherwise shares the next call with all
    /// requests that come meanwhile.
    pub(crate) async fn decide_coalesced(self, cost: u64) -> Answered {
        let deadline = self.deadline();
        if self.inner.backend.is_failing(&self.target()) {
            // One request may probe the server without making the others wait. The others need no call.
            return self.decide_alone(cost, deadline).await;
        }
        let single_flight = Arc::clone(&self.inner.single_flight);
        match single_flight.join(FlightKey::on_this_runtime(self.tag, self.algorithm.quota()), cost, deadline) {
            Join::Leader(leader) => {
                let answer = self.decide_alone(cost, deadline).await;
                // Dropped after the answer is in the negative cache, where the followers find it.
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

    /// Runs as the task that answers all followers of the key, until all are answered.
    async fn collect(self, mut collector: Collector<Answered>) {
        // Half of the timeout is left for a call, in case the leader's future is not polled.
        collector.await_leader(self.timeout() / 2).await;
        loop {
            let mut groups = collector.groups();
            let Some(last) = groups.pop() else { return };
            // Concurrently: otherwise a client that chooses unusual costs would delay the others.
            let others: Vec<_> = groups.into_iter().map(|group| tokio::spawn(self.clone().answer(group))).collect();
            self.clone().answer(last).await;
            for other in others {
                // A task that panicked has dropped its followers without an answer.
                let _ = other.await;
            }
        }
    }

    /// Answers followers of one cost, in as few calls as possible.
    async fn answer(self, Group { cost, followers }: Group<Answered>) {
        // Requests that were cancelled by now are not charged, to a lease or on the server.
        let mut followers = followers.into_iter().filter(|follower| !follower.answer.is_closed()).peekable();
        while followers.peek().is_some() {
            if let Some(decision) = self.spend_lease(cost).or_else(|| self.peek_rejection(cost)) {
                answer_all(followers.next(), [Ok(decision)]);
                continue;
            }
            let batch: Vec<_> = followers.by_ref().take(BATCH).collect();
            // Followers with an earlier deadline give up by themselves.
            let deadline = batch.iter().map(|follower| follower.deadline).max().expect("one was peeked at");
            match self.call(cost, u32::try_from(batch.len()).expect("a batch is small"), deadline).await {
                Ok(decisions) => answer_all(batch, decisions.into_iter().map(Ok)),
                Err(error) => answer_all(batch, std::iter::repeat(Err(error))),
            }
        }
    }

    pub(crate) fn target(&self) -> Target<'_, A> {
        Target::new(&self.algorithm, self.quota, self.limiter, self.tag)
    }

    /// Returns the deadline of a decision that begins now.
    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.timeout()
    }

    fn timeout(&self) -> Duration {
        self.inner.backend.timeout()
    }

    fn gave_up(&self, reason: GaveUp) -> LimiterError {
        self.inner.backend.gave_up(reason)
    }

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

    /// Decides on `count` requests of the same cost, one after the other, in one round trip; and takes a lease with it
    /// if the key is in demand.
    async fn call(&self, cost: u64, count: u32, deadline: Instant) -> Result<Decisions, LimiterError> {
        let Some(leases) = self.inner.leases.as_ref().filter(|_| cost > 0) else {
            return self.call_for(cost, count, count, deadline).await.map(|(decisions, _)| decisions);
        };
        let runtime = Handle::try_current().map_err(|_| self.gave_up(GaveUp::NoRuntime))?;
        let action = leases.next_action(self.tag, self.price(cost), count, Monotonic.now());
        if action == LeaseAction::More(0) {
            return self.clone().call_with_lease(cost, count, action, deadline).await;
        }
        // In a task, so that a lease, or the refund of one, is not lost if this request is cancelled. And not polled by
        // the caller: others wait for this call too, and a caller may hold its future without polling it.
        let task = runtime.spawn(self.clone().call_with_lease(cost, count, action, deadline));
        task.await.unwrap_or_else(|_| Err(self.gave_up(GaveUp::Cancelled)))
    }

    /// Decides on `count` requests, and carries out `action` on the leases.
    async fn call_with_lease(
        self,
        cost: u64,
        count: u32,
        action: LeaseAction,
        deadline: Instant,
    ) -> Result<Decisions, LimiterError> {
        // Read before the call: a lease must not outlive the window that it was taken from.
        let since = Monotonic.now();
        let extra = if let LeaseAction::More(extra) = action { extra } else { 0 };
        let call = self.call_for(cost, count + extra, count, deadline);
        let (mut decisions, is_own) = match action {
            LeaseAction::More(0) => call.await?,
            // If this call fails, another one may ask for the lease.
            LeaseAction::More(_) => call.await.inspect_err(|_| {
                self.inner.leases.iter().for_each(|leases| leases.ask_again(self.tag));
            })?,
            LeaseAction::Refund(Unspent { requests, price, receipt }) => {
                let taken_by = self.priced(price);
                let units = price.cost.saturating_mul(requests.into());
                // Polled first, so that it is sent first on the same connection: otherwise the units would be missing
                // when the server decides.
                tokio::join!(biased; taken_by.refund(units, receipt, deadline), call).1?
            }
        };
        let granted = decisions.iter().rposition(Decision::is_allowed).map(|last| (last + 1, decisions[last]));
        // A charge under another quota, which the key kept, was for the waiting requests only: no lease is left.
        if let Some((allowed, last)) = granted.filter(|_| is_own) {
            let left = u32::try_from(allowed).expect("as many as were asked for").saturating_sub(count);
            self.hold_lease(cost, left, extra, last, since);
        }
        decisions.truncate(count as usize);
        Ok(decisions)
    }

    /// Decides on `count` requests; `requests` of them wait for the answer. Returns also whether the decisions were
    /// made under the quota of the question. If not, there are decisions on the waiting requests only.
    async fn call_for(
        &self,
        cost: u64,
        count: u32,
        requests: u32,
        deadline: Instant,
    ) -> Result<(Decisions, bool), LimiterError> {
        let limits = CallLimits { deadline, requests };
        if !(1..=self.algorithm.max_cost()).contains(&cost) {
            // Requests of cost 0, or above the maximum, only read.
            let decision = self.decision_by_a_read(cost, limits).await?;
            return Ok(((0..count).map(|_| decision).collect(), true));
        }
        if let Some(rejection) = self.rejection_by_a_read(cost, limits).await? {
            return Ok(((0..count).map(|_| rejection).collect(), true));
        }
        let (applied, seen) = self.apply(Transition::Charge { cost, count }, limits).await?;
        // Under another quota, only the waiting requests were charged.
        let count = if applied.kept.is_some() { requests.min(count) } else { count };
        self.conclude(&applied, seen, cost, count).map_err(|disagreement| self.gave_up(disagreement))
    }

    /// Records the outcome of a charge of `count` requests. Returns the decisions on them, and whether they were made
    /// under the quota of the question.
    pub(crate) fn conclude(
        &self,
        applied: &Applied<A::State>,
        seen: Observation,
        cost: u64,
        count: u32,
    ) -> Result<(Decisions, bool), GaveUp> {
        if let Some(rejection) = self.decision_by_standing(applied, seen, cost) {
            return Ok(((0..count).map(|_| rejection).collect(), true));
        }
        let kept = applied.kept.and_then(|kept| self.algorithm.under(kept));
        let (mut decisions, state) = applied.replay(kept.as_ref().unwrap_or(&self.algorithm), cost, count)?;
        if kept.as_ref().is_some_and(|kept| !quota_change::has_units_of(&self.algorithm, &kept.quota())) {
            // A refund would come under the quota of the question, whose units differ. So there is no receipt to refund
            // by.
            decisions.iter_mut().for_each(|decision| *decision = decision.with_receipt(Receipt::NONE));
        }
        self.learn(state.filter(|_| kept.is_none()), seen, cost);
        // The fallback counts the admitted units, as far as it has room: so it is warm when it is needed.
        let admitted = decisions.iter().filter(|decision| decision.is_allowed()).count() as u64;
        if admitted > 0 {
            let ask = Ask::charge(&self.key, cost.saturating_mul(admitted)).under(self.quota);
            let _ = self.inner.fallback.charge_up_to(&self.algorithm, &ask);
        }
        Ok((decisions, kept.is_none()))
    }

    /// Decides on one request by the outcome of a call.
    pub(crate) fn judge(&self, applied: &Applied<A::State>, cost: u64) -> Decision {
        let Applied { now, old, standing, kept, .. } = applied;
        let kept = kept.and_then(|kept| self.algorithm.under(kept));
        let by_standing = standing.decide(&self.algorithm, *old, *now, cost);
        by_standing.unwrap_or_else(|| kept.as_ref().unwrap_or(&self.algorithm).decide(*old, *now, cost).0)
    }

    /// Records the outcome of a call that has charged nothing, and returns the numbers of the key. A key that
    /// `is_foreign` stays under another quota and pays its debt at the rate of that quota, so nothing is learnt of it.
    pub(crate) fn note_unchanged(
        &self,
        applied: &Applied<A::State>,
        is_foreign: bool,
        seen: Observation,
        cost: u64,
    ) -> Decision {
        if applied.standing.is_some() {
            self.learn_standing(applied.standing, applied.old, seen);
        } else if applied.kept.is_none() && !is_foreign {
            self.learn(applied.old, seen, cost);
        }
        self.judge(applied, 0)
    }

    /// Verifies a known rejection by a read, if a read is cheaper than a charge that is rejected. `None` if the key
    /// must be charged.
    async fn rejection_by_a_read(&self, cost: u64, limits: CallLimits) -> Result<Option<Decision>, LimiterError> {
        if !self.inner.backend.reads_are_cheaper() || self.peek_rejection(cost).is_none() {
            return Ok(None);
        }
        let (applied, seen) = self.apply(Transition::Read, limits).await?;
        let Applied { now, old, kept, .. } = applied;
        if let Some(rejection) = self.decision_by_standing(&applied, seen, cost) {
            return Ok(Some(rejection));
        }
        // A state under another quota is converted by a charge.
        let used_up = old.filter(|_| kept.is_none());
        let rejection = used_up.and_then(|state| self.rejection(state, now, cost));
        if rejection.is_some() {
            self.learn(used_up, seen, cost);
        }
        Ok(rejection)
    }

    /// If the key is banned or owes something, decides on a request by that, and records the standing.
    fn decision_by_standing(&self, applied: &Applied<A::State>, seen: Observation, cost: u64) -> Option<Decision> {
        let rejection = applied.standing.decide(&self.algorithm, applied.old, applied.now, cost)?;
        self.learn_standing(applied.standing, applied.old, seen);
        Some(rejection)
    }

    /// Records a standing that is in force.
    pub(crate) fn learn_standing(&self, standing: Standing, state: Option<A::State>, seen: Observation) {
        // Requests would spend a lease before they ask the server.
        self.inner.leases.iter().for_each(|leases| leases.forget(self.tag));
        let known = Known { state, quota: self.algorithm.quota(), standing };
        self.inner.negative_cache.note(self.tag, Some(known), seen);
    }

    /// Decides by the state of the key, converted to the quota of the question. On the server, the key stays under its
    /// quota and pays its debt at that rate. So nothing is learnt of it.
    async fn decision_by_a_read(&self, cost: u64, limits: CallLimits) -> Answered {
        let Applied { now, old, standing, kept, .. } = self.apply(Transition::Read, limits).await?.0;
        if let Some(decision) = standing.decide(&self.algorithm, old, now, cost) {
            return Ok(decision);
        }
        let state = old.and_then(|state| match &kept {
            Some(kept) => quota_change::converted(&self.algorithm, state, kept, now),
            None => Some(state),
        });
        Ok(self.algorithm.decide(state, now, cost).0)
    }

    /// Records the state of the key after an answer of the server, if it is known.
    fn learn(&self, state: Option<A::State>, seen: Observation, cost: u64) {
        // Used up for requests of this cost: greater ones may be rejected for longer.
        let used_up = state.filter(|state| self.rejection(*state, seen.server, cost.max(1)).is_some());
        let quota = self.algorithm.quota();
        let known = used_up.map(|state| Known { state: Some(state), quota, standing: Standing::default() });
        self.inner.negative_cache.note(self.tag, known, seen);
    }

    /// Returns units to the lease that paid them. They are forfeited if the lease has ended.
    pub(crate) fn return_to_lease(&self, cost: u64, lease: LeaseReceipt) {
        if let Some(leases) = &self.inner.leases {
            leases.return_to_lease(self.tag, cost, lease, Monotonic.now());
        }
    }

    /// Refunds in the background, by one call.
    pub(crate) fn refund_in_background(self, cost: u64, receipt: Receipt) {
        self.inner.negative_cache.forget(self.tag, Monotonic.now());
        if let Ok(handle) = Handle::try_current() {
            handle.spawn(async move { self.refund(cost, receipt, self.deadline()).await });
        }
    }

    /// Charges the remaining units, up to `cost`, in the background: in one call, or in two if less than `cost` is
    /// left.
    pub(crate) fn charge_up_to(self, cost: u64) -> Answer {
        let Ok(runtime) = Handle::try_current() else { return Answer::Ready(Err(self.gave_up(GaveUp::NoRuntime))) };
        let cancelled = self.gave_up(GaveUp::Cancelled);
        let task = runtime.spawn(async move {
            let decision = self.decide_alone(cost, self.deadline()).await?;
            // Units that cannot be charged are forgiven.
            match decision.partial_cost(cost) {
                Some(left) => self.decide_alone(left, self.deadline()).await,
                None => Ok(decision),
            }
        });
        Answer::Pending(Box::pin(async move { task.await.unwrap_or(Err(cancelled)) }))
    }

    /// Decides in a call of its own, which charges nothing.
    pub(crate) async fn peek(self, cost: u64) -> Answered {
        self.decision_by_a_read(cost, CallLimits { deadline: self.deadline(), requests: 1 }).await
    }

    /// Returns the remaining units of a key under the quota that it was last charged under. If the key owes nothing,
    /// the limiter's quota counts.
    pub(crate) async fn look(self) -> Answered {
        Ok(self.judge(&self.apply_one(Transition::Read).await?.0, 0))
    }

    /// Bans the key, or lets it owe something. Returns the decision on a request that costs nothing.
    pub(crate) async fn change_standing(self, change: Transition) -> Answered {
        let (applied, seen) = self.apply_one(change).await?;
        if applied.standing.is_in_force(applied.now) {
            self.learn_standing(applied.standing, applied.old, seen);
        }
        Ok(self.judge(&applied, 0))
    }

    /// Deletes the key, on the server and in the tables of this process.
    pub(crate) async fn reset(self) -> Answered {
        let (applied, _) = self.apply_one(Transition::Reset).await?;
        let inner = &*self.inner;
        inner.negative_cache.forget(self.tag, Monotonic.now());
        inner.leases.iter().for_each(|leases| leases.forget(self.tag));
        let _ = inner.fallback.reset(&self.algorithm, &Ask::reset(&self.key));
        Ok(self.algorithm.decide(None, applied.now, 0).0)
    }

    /// Refunds on the server, by one call.
    async fn refund(&self, cost: u64, receipt: Receipt, deadline: Instant) {
        if !receipt.is_none() && cost > 0 {
            // If the call fails, the charge stays: too little is admitted then, and never too much.
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
