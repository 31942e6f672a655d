//! The requests of one limiter to Redis: what is decided without a call, in a shared call, and in a call of one's own.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::runtime::Handle;
use tokio::time::Instant;

use super::connection::{Fault, FaultKind, Redis};
use super::key::{Key, Names, Tag};
use super::leases::{Lease, LeaseAction, LeaseReceipt, Leases, Price, Unspent};
use super::negative_cache::{NegativeCache, Observation};
use super::script::{self, BadReply, Decisions, OwnQuota, ScriptReply, Scripted, Under};
use super::single_flight::{Collector, FlightKey, FollowerOutcome, Group, Join, PendingFollower, SingleFlight};
use crate::store::MemoryStore;
use crate::values::time::{Clock, Monotonic, Timestamp};
use crate::values::{Ask, Check, Decision, LimiterError, PartitionKey, Quota, Receipt};

/// What the requests of one limiter share.
pub(super) struct StoreInner<S> {
    pub(super) redis: Redis,
    pub(super) names: Names,
    pub(super) fallback: MemoryStore<S>,
    /// With the quotas under which states were read: a bucket's is in units of its rate.
    pub(super) negative_cache: NegativeCache<(S, Quota)>,
    pub(super) single_flight: Arc<SingleFlight<Answered>>,
    pub(super) leases: Option<Leases>,
    /// Whether keys may have quotas of their own: since questions have some, or since a key was found to have one. From
    /// then on, all calls carry the quotas of their keys.
    pub(super) has_quotas: AtomicBool,
}

/// The most followers that one call decides on; a lease that is taken with it comes on top. The server decides on each
/// in turn, and nothing else meanwhile: for up to 25 µs, where a call for one request takes 7 (Redis 7, `commandstats`).
pub(super) const BATCH: usize = 256;

/// The answer to one request.
pub(super) type Answered = Result<Decision, LimiterError>;

impl<S: Copy + Send + 'static> StoreInner<S> {
    /// Lets all calls carry the quotas of their keys from now on.
    pub(super) fn note_quotas(&self) {
        // Relaxed: a call without the quota of its key is answered as one with the wrong quota, and made once more.
        self.has_quotas.store(true, Ordering::Relaxed);
    }

    /// Decides in this process alone, as the local fallback.
    pub(super) fn charge_fallback<A: Scripted<State = S>>(&self, algorithm: &A, ask: &Ask<'_>) -> Decision {
        self.fallback.charge(algorithm, ask)
    }
}

/// A request to Redis about one key, with all that is needed to make it from any task.
pub(super) struct KeyQuery<A: Scripted> {
    pub(super) inner: Arc<StoreInner<A::State>>,
    /// With the quota of the key.
    pub(super) algorithm: A,
    /// The quota of the key; `None` if it has none of its own.
    quota: Option<Quota>,
    /// The quota of the limiter.
    limiter: Quota,
    pub(super) key: PartitionKey,
    pub(super) tag: Tag,
}

impl<A: Scripted> Clone for KeyQuery<A> {
    fn clone(&self) -> Self {
        let Self { inner, algorithm, quota, limiter, key, tag } = self;
        let (inner, algorithm) = (Arc::clone(inner), algorithm.clone());
        Self { inner, algorithm, quota: *quota, limiter: *limiter, key: key.clone(), tag: *tag }
    }
}

impl<A: Scripted> KeyQuery<A> {
    /// A request under the quota of this question.
    ///
    /// # Errors
    ///
    /// If Redis cannot keep that quota.
    pub(super) fn of(inner: &Arc<StoreInner<A::State>>, algorithm: &A, ask: &Ask<'_>) -> Result<Self, LimiterError> {
        let (key, quota, limiter) = (ask.key(), ask.quota(), algorithm.quota());
        let algorithm = match quota.and_then(|quota| algorithm.under(quota)) {
            Some(algorithm) => {
                // That of the policy was checked when its limiter was made.
                algorithm.check_fit().map_err(|unfit| LimiterError::new(unfit.to_string()).with_source(unfit))?;
                inner.note_quotas();
                algorithm
            }
            None => algorithm.clone(),
        };
        let (inner, tag) = (Arc::clone(inner), inner.names.tag(key));
        Ok(Self { inner, algorithm, quota, limiter, key: key.clone(), tag })
    }

    /// The algorithm, with what it takes to read states under other quotas.
    pub(super) const fn under(&self) -> Under<'_, A> {
        Under { algorithm: &self.algorithm, limiter: self.limiter }
    }

    /// The quota that a call carries, if any. To be read once per call: another thread may note quotas meanwhile.
    pub(super) fn carried_quota(&self) -> Option<Quota> {
        self.inner.has_quotas.load(Ordering::Relaxed).then(|| self.algorithm.quota())
    }

    /// The request under whose quota a lease was taken.
    fn priced(&self, price: Price) -> Self {
        let algorithm = self.algorithm.under(price.quota).unwrap_or_else(|| self.algorithm.clone());
        Self { algorithm, ..self.clone() }
    }

    fn price(&self, cost: u32) -> Price {
        Price { cost, quota: self.algorithm.quota() }
    }

    /// Returns the rejection that the server would answer, if that is certain, and unless this request is to verify it.
    pub(super) fn cached_rejection(&self, cost: u32) -> Option<Decision> {
        let rejection = |state, at| self.known_rejection(state, at, cost);
        (cost > 0).then(|| self.inner.negative_cache.rejection(self.tag, Monotonic.now(), rejection)).flatten()
    }

    /// Returns the rejection for a caller that makes no call, and so verifies nothing.
    pub(super) fn peek_rejection(&self, cost: u32) -> Option<Decision> {
        let rejection = |state, at| self.known_rejection(state, at, cost);
        (cost > 0).then(|| self.inner.negative_cache.peek(self.tag, Monotonic.now(), rejection)).flatten()
    }

    /// Returns the rejection by a state that was read under the same quota. Of one that was read under another, nothing
    /// is concluded: the server converts it.
    fn known_rejection(&self, (state, quota): (A::State, Quota), at: Timestamp, cost: u32) -> Option<Decision> {
        if quota == self.algorithm.quota() { self.rejection(state, at, cost) } else { None }
    }

    fn rejection(&self, state: A::State, at: Timestamp, cost: u32) -> Option<Decision> {
        Some(self.algorithm.decide(Some(state), at, cost).0).filter(|decision| !decision.is_allowed())
    }

    /// Admits a request from a lease, if one pays for it.
    pub(super) fn spend_lease(&self, cost: u32) -> Option<Decision> {
        self.inner.leases.as_ref()?.spend(self.tag, self.price(cost), Monotonic.now())
    }

    /// Returns what [`spend_lease`](Self::spend_lease) would.
    pub(super) fn peek_lease(&self, cost: u32) -> Option<Decision> {
        self.inner.leases.as_ref()?.peek(self.tag, self.price(cost), Monotonic.now())
    }

    /// Whether a lease pays, or a call of its own would take one.
    pub(super) fn is_in_demand(&self, cost: u32) -> bool {
        self.inner
            .leases
            .as_ref()
            .is_some_and(|leases| leases.is_in_demand(self.tag, self.price(cost), Monotonic.now()))
    }

    /// Records the charge by a call that took no lease: if another request comes soon, its call may take one.
    pub(super) fn note_demand(&self, decision: Decision, cost: u32, since: Timestamp) {
        if let Some(leases) = self.inner.leases.as_ref().filter(|_| cost > 0) {
            leases.hold(self.tag, Lease::new(self.price(cost), 0, 0, decision, since));
        }
    }

    /// Decides in a call of its own.
    pub(super) async fn decide_alone(&self, cost: u32) -> Answered {
        self.decide_alone_by(cost, self.inner.redis.deadline()).await
    }

    async fn decide_alone_by(&self, cost: u32, deadline: Instant) -> Answered {
        Ok(self.call(cost, 1, deadline).await?[0])
    }

    /// Decides in a call of its own, if none for this key is in flight; else in the next, with all requests that come
    /// meanwhile.
    pub(super) async fn decide_coalesced(self, cost: u32) -> Answered {
        let deadline = self.inner.redis.deadline();
        if self.inner.redis.is_failing(|| self.name().slot()) {
            // One of them may probe the node, without making others wait; the others need no call.
            return self.decide_alone_by(cost, deadline).await;
        }
        let single_flight = Arc::clone(&self.inner.single_flight);
        match single_flight.join(FlightKey::of(self.tag, self.algorithm.quota()), cost, deadline) {
            Join::Leader(leader) => {
                let answer = self.decide_alone_by(cost, deadline).await;
                // Dropped after the answer is in the negative cache, where the followers find it.
                drop(leader);
                answer
            }
            Join::Follower(follower, collector) => {
                let handle = Handle::try_current().map_err(|_| failed(FaultKind::NoRuntime))?;
                if let Some(collector) = collector {
                    handle.spawn(self.clone().collect(collector));
                }
                match follower.answer().await {
                    FollowerOutcome::Answered(answer) => answer,
                    FollowerOutcome::Lost => Err(failed(FaultKind::Cancelled)),
                    FollowerOutcome::Late(collector) => {
                        if let Some(collector) = collector {
                            handle.spawn(self.collect(collector));
                        }
                        Err(failed(FaultKind::TimedOut))
                    }
                }
            }
            Join::Full => Err(failed(FaultKind::TooManyInFlight)),
        }
    }

    /// Runs as the task that answers all followers of the key, until none is left.
    async fn collect(self, mut collector: Collector<Answered>) {
        // Half of the timeout is left for a call, in case the leader's future is not polled.
        collector.await_leader(self.inner.redis.timeout() / 2).await;
        loop {
            let mut groups = collector.groups();
            let Some(last) = groups.pop() else { return };
            // Concurrently: otherwise a client that chooses unusual costs would delay the others.
            let others: Vec<_> = groups.into_iter().map(|group| tokio::spawn(self.clone().answer(group))).collect();
            self.clone().answer(last).await;
            for other in others {
                // One that panicked has dropped its followers without an answer.
                let _ = other.await;
            }
        }
    }

    /// Answers followers of one cost, in as few calls as may be.
    async fn answer(self, Group { cost, followers }: Group<Answered>) {
        // Requests that were cancelled by now are charged neither to a lease nor on the server.
        let is_waiting = |follower: &PendingFollower<Answered>| !follower.answer.is_closed();
        let mut followers = followers.into_iter().filter(is_waiting).peekable();
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

    /// Returns the name of the key on the server.
    pub(super) fn name(&self) -> Key {
        self.inner.names.key(self.tag, A::KIND)
    }

    /// Decides on `count` requests of the same cost, one after the other, in one round trip; and takes a lease with it
    /// if the key is in demand.
    async fn call(&self, cost: u32, count: u32, deadline: Instant) -> Result<Decisions, LimiterError> {
        let Some(leases) = self.inner.leases.as_ref().filter(|_| cost > 0) else {
            return self.call_for(cost, count, count, deadline).await;
        };
        let runtime = Handle::try_current().map_err(|_| failed(FaultKind::NoRuntime))?;
        let action = leases.next_action(self.tag, self.price(cost), Monotonic.now());
        if action == LeaseAction::More(0) {
            return self.clone().call_with_lease(cost, count, action, deadline).await;
        }
        // In a task, so that a lease, or the refund of one, is not lost if this request is cancelled.
        let task = runtime.spawn(self.clone().call_with_lease(cost, count, action, deadline));
        task.await.unwrap_or_else(|_| Err(failed(FaultKind::Cancelled)))
    }

    /// Decides on `count` requests, and carries out what `action` says of leases.
    async fn call_with_lease(
        self,
        cost: u32,
        count: u32,
        action: LeaseAction,
        deadline: Instant,
    ) -> Result<Decisions, LimiterError> {
        // Read before the call: a lease must not outlive the window that it was taken from.
        let since = Monotonic.now();
        let extra = if let LeaseAction::More(extra) = action { extra } else { 0 };
        let call = self.call_for(cost, count + extra, count, deadline);
        let mut decisions = match action {
            LeaseAction::More(_) => call.await?,
            LeaseAction::Refund(Unspent { requests, price, receipt }) => {
                let (taken_by, units) = (self.priced(price), price.cost.saturating_mul(requests));
                // Polled first, so that it is sent first on the same connection: otherwise the units would be missing
                // when the server decides.
                tokio::join!(biased; taken_by.refund(units, receipt, deadline), call).1?
            }
        };
        let granted = decisions.iter().rposition(Decision::is_allowed).map(|last| (last + 1, decisions[last]));
        if let (Some((allowed, last)), Some(leases)) = (granted, &self.inner.leases) {
            let left = u32::try_from(allowed).expect("as many as were asked for").saturating_sub(count);
            leases.hold(self.tag, Lease::new(self.price(cost), left, extra, last, since));
        }
        decisions.truncate(count as usize);
        Ok(decisions)
    }

    /// Decides on `count` requests, of which `requests` are waiting for the answer.
    async fn call_for(
        &self,
        cost: u32,
        count: u32,
        requests: u32,
        deadline: Instant,
    ) -> Result<Decisions, LimiterError> {
        self.call_at(Monotonic.now(), cost, count, requests, deadline).await
    }

    /// Makes a [`call_for`](Self::call_for) while our clock shows `asked`.
    async fn call_at(
        &self,
        mut asked: Timestamp,
        cost: u32,
        count: u32,
        requests: u32,
        deadline: Instant,
    ) -> Result<Decisions, LimiterError> {
        let inner = &*self.inner;
        let mut conversion = None;
        loop {
            let quota = self.carried_quota();
            let mut call = script::decide(&self.algorithm, self.name(), cost, count, asked);
            let is_charge = script::is_charge(&call, 0);
            if is_charge {
                script::add_one(&mut call, OwnQuota { quota, conversion });
            }
            let sent = Monotonic.now();
            let value = inner.redis.call_by(&call, deadline, requests).await.map_err(failed)?;
            let answered = Monotonic.now();
            let mut answer = ScriptReply::read(value).map_err(failed)?;
            conversion = self.under().convert(&mut answer, 0, quota).map_err(failed)?;
            if conversion.is_some() && is_charge {
                answer.charged_nothing().map_err(failed)?;
                // Once more, with the state that the key has under this quota; and so on, should the key
                // change in between.
                inner.note_quotas();
                continue;
            }
            let (decisions, state) = match answer.replay(&self.algorithm, cost, count) {
                // Our clock is so wrong that the call did not have the window of the server's time.
                Err(BadReply::Disagreement) if answer.is_uncovered(&self.algorithm, asked) => {
                    asked = answer.now;
                    continue;
                }
                replayed => replayed.map_err(failed)?,
            };
            if conversion.is_none() {
                let seen = Observation { server: answer.now, sent, answered };
                self.learn(&decisions, state, seen, cost);
            }
            // Of a state that stays under the other quota, nothing is learnt: what it owes shrinks at another rate.
            return Ok(decisions);
        }
    }

    /// Records an answer of the server.
    pub(super) fn learn(&self, decisions: &[Decision], state: Option<A::State>, seen: Observation, cost: u32) {
        // Used up for requests of this cost: greater ones may be rejected for longer.
        let used_up = state.filter(|state| self.rejection(*state, seen.server, cost.max(1)).is_some());
        let used_up = used_up.map(|state| (state, self.algorithm.quota()));
        self.inner.negative_cache.note(self.tag, used_up, seen);
        // The fallback counts admitted requests, whatever it decides itself: so it is warm when it is needed.
        for _ in decisions.iter().filter(|decision| decision.is_allowed()) {
            let ask = Ask::charge(&self.key, cost).under(self.quota);
            let _ = self.inner.charge_fallback(&self.algorithm, &ask);
        }
    }

    /// Returns what a lease paid to that lease. It is forfeited if the lease has ended.
    pub(super) fn return_to_lease(&self, cost: u32, lease: LeaseReceipt) {
        if let Some(leases) = &self.inner.leases {
            leases.return_to_lease(self.tag, cost, lease, Monotonic.now());
        }
    }

    /// Refunds in the background, by one call.
    pub(super) fn refund_in_background(self, cost: u32, receipt: Receipt) {
        self.inner.negative_cache.forget(self.tag, Monotonic.now());
        if let Ok(handle) = Handle::try_current() {
            handle.spawn(async move { self.refund(cost, receipt, self.inner.redis.deadline()).await });
        }
    }

    /// Charges as much as is left, in the background: in one call, or two if not all could be had.
    pub(super) fn charge_up_to(self, cost: u32) -> Check {
        in_background(async move {
            let decision = self.decide_alone(cost).await?;
            // What cannot be charged is forgiven.
            match decision.partial_cost(cost) {
                Some(left) => self.decide_alone(left).await,
                None => Ok(decision),
            }
        })
    }

    /// Decides in a call of its own, which charges nothing.
    pub(super) async fn peek(self, cost: u32) -> Answered {
        let call = script::decide(&self.algorithm, self.name(), 0, 1, Monotonic.now());
        let value = self.inner.redis.call(&call).await.map_err(failed)?;
        // The script only reads, so Rust alone decides on the cost.
        let decide = |mut answer: ScriptReply| {
            self.under().convert(&mut answer, 0, None)?;
            answer.decision(&self.algorithm, 0, cost)
        };
        ScriptReply::read(value).and_then(decide).map_err(failed)
    }

    /// Returns what is left of a key, under the quota that it was last charged under; if it owes nothing, under that of the
    /// limiter.
    pub(super) async fn look(self) -> Answered {
        let call = script::decide(&self.algorithm, self.name(), 0, 1, Monotonic.now());
        let value = self.inner.redis.call(&call).await.map_err(failed)?;
        let decide = |mut answer: ScriptReply| {
            let kept = self.under().keep(&mut answer, 0)?;
            answer.decision(&kept, 0, 0)
        };
        ScriptReply::read(value).and_then(decide).map_err(failed)
    }

    /// Deletes the key, and forgets what this process knows of it.
    pub(super) async fn reset(self) -> Answered {
        let inner = &*self.inner;
        let value = inner.redis.call(&script::reset(self.name())).await.map_err(failed)?;
        inner.negative_cache.forget(self.tag, Monotonic.now());
        if let Some(leases) = &inner.leases {
            leases.forget(self.tag);
        }
        let _ = inner.fallback.reset(&self.algorithm, &Ask::reset(&self.key));
        let answer = ScriptReply::read(value).map_err(failed)?;
        Ok(answer.replay(&self.algorithm, 0, 1).map_err(failed)?.0[0])
    }

    /// Refunds on the server, by one call.
    async fn refund(&self, cost: u32, receipt: Receipt, deadline: Instant) {
        // If a call fails, the charge stays: too little is admitted then, and never too much.
        let _ = self.refund_by_calls(cost, receipt, deadline).await;
        // A rejection from before the refund may have been recorded meanwhile.
        self.inner.negative_cache.forget(self.tag, Monotonic.now());
    }

    /// Refunds in one call, or in two if the key has another quota by now under which the receipt still holds.
    async fn refund_by_calls(&self, cost: u32, receipt: Receipt, deadline: Instant) -> Result<(), Fault> {
        let (under, mut quota) = (self.under(), self.carried_quota());
        loop {
            let (kept, asked) = (under.kept_under(quota.as_ref())?, Monotonic.now());
            let refund = script::refund(&self.algorithm, &kept, self.name(), cost, receipt, asked);
            let Some(mut call) = refund else { return Ok(()) };
            script::add_one(&mut call, OwnQuota { quota, conversion: None });
            let answer = ScriptReply::read(self.inner.redis.call_by(&call, deadline, 1).await?)?;
            match under.kept_quota(&answer, quota) {
                Some(kept) => quota = kept,
                None => return Ok(()),
            }
        }
    }
}

/// Answers followers, in their order. One that was cancelled meanwhile needs no answer.
fn answer_all(
    followers: impl IntoIterator<Item = PendingFollower<Answered>>,
    answers: impl IntoIterator<Item = Answered>,
) {
    for (follower, answer) in followers.into_iter().zip(answers) {
        let _ = follower.answer.send(answer);
    }
}

/// A reply from which nothing can be concluded.
impl From<BadReply> for Fault {
    fn from(reply: BadReply) -> Self {
        Self::new(FaultKind::Unintelligible, reply.to_string())
    }
}

/// Runs a charge in a task, so that it completes even if the caller is cancelled.
pub(crate) fn in_background(charge: impl Future<Output = Answered> + Send + 'static) -> Check {
    let Ok(runtime) = Handle::try_current() else { return Check::Ready(Err(failed(FaultKind::NoRuntime))) };
    let task = runtime.spawn(charge);
    Check::Pending(Box::pin(async move { task.await.unwrap_or_else(|_| Err(failed(FaultKind::Cancelled))) }))
}

/// Wraps a fault into the error of a limiter, with the fault as its source.
pub(crate) fn failed(fault: impl Into<Fault>) -> LimiterError {
    let fault = fault.into();
    LimiterError::new(fault.to_string()).with_source(fault)
}

#[cfg(test)]
mod tests {
    use std::error::Error;
    use std::time::Duration;

    use super::*;
    use crate::algorithm::CalendarWindow;
    use crate::store::redis::servers::RedisServer;
    use crate::values::Outcome;

    /// A process whose clock is wrong by a year charges the window of the server's time: in a second call for a new key,
    /// since the first one charged nothing, and in one call for a key whose window has begun.
    #[tokio::test]
    async fn windows_of_the_calendar_begin_by_the_server_s_clock() {
        let server = RedisServer::start();
        let redis = Redis::single(server.url()).timeout(Duration::from_secs(5)).open().unwrap();
        let window = CalendarWindow::monthly(3).in_zone("Europe/Berlin").unwrap();
        let store = crate::store::RedisStore::new(&redis, "test");
        let query = store.query(&window, &PartitionKey::from("key"));
        let year = Duration::from_secs(366 * 86_400);
        let now = Monotonic.now();
        let before = Timestamp::from_nanos(now.as_nanos() - u64::try_from(year.as_nanos()).unwrap());
        let end = window.end_of_window(now);
        let mut calls = 0;
        for (asked, extra_calls) in [(now.saturating_add(year), 2), (before, 1), (now, 1), (before, 1)] {
            let decision = query.call_at(asked, 1, 1, 1, redis.deadline()).await.unwrap()[0];
            calls += extra_calls;
            assert!(server.info("cmdstat_evalsha").starts_with(&format!("calls={calls},")), "{asked:?}");
            // Unless a month begins while this runs.
            let wait = match decision.outcome() {
                Outcome::Deny { retry_after } => retry_after.unwrap(),
                Outcome::Allow => decision.reset_after(),
            };
            let left = end.saturating_since(now);
            assert!(left.abs_diff(wait) < Duration::from_secs(60), "{wait:?} instead of {left:?}");
        }
        assert!(!query.call_at(before, 1, 1, 1, redis.deadline()).await.unwrap()[0].is_allowed());
    }

    #[tokio::test]
    async fn a_charge_whose_task_panics_is_cancelled() {
        async fn panics() -> Answered {
            panic!("on purpose")
        }
        let Check::Pending(answer) = in_background(panics()) else { unreachable!("it has a runtime") };
        let error = answer.await.unwrap_err();
        let fault = error.source().and_then(|source| source.downcast_ref::<Fault>());
        assert_eq!(fault.map(Fault::kind), Some(FaultKind::Cancelled));
    }
}
