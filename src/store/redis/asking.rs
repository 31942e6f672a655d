use std::future::Future;
use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::time::Instant;

use super::flights::{Boarding, Collector, Flights, Group, Outcome, Route};
use super::key::{Key, Names, Tag};
use super::leases::{Lease, Leases, OfLease, Unspent, Want};
use super::link::{Fault, Reason, Redis};
use super::mirror::{Mirror, Seen};
use super::script::{self, Answer, BadReply, Decisions, Scripted};
use crate::store::MemoryStore;
use crate::values::time::{Clock, Monotonic, Timestamp};
use crate::values::{Ask, Check, Decision, LimiterError, PartitionKey, Receipt};

/// What the requests of one limiter have in common.
pub(super) struct Inner<S> {
    pub(super) redis: Redis,
    pub(super) names: Names,
    pub(super) guard: MemoryStore<S>,
    pub(super) mirror: Mirror<S>,
    pub(super) flights: Arc<Flights<Answered>>,
    pub(super) leases: Option<Leases>,
}

/// As many requests as one call decides on.
const BATCH: usize = 256;

pub(super) type Answered = Result<Decision, LimiterError>;

impl<S: Copy + Send + 'static> Inner<S> {
    /// What this process alone decides.
    pub(super) fn guard<A: Scripted<State = S>>(&self, algorithm: &A, key: &PartitionKey, cost: u32) -> Decision {
        self.guard.charge(algorithm, &Ask::charge(key, cost))
    }
}

/// A question about one key, and all that is needed to put it to the server from anywhere.
pub(super) struct Asking<A: Scripted> {
    pub(super) inner: Arc<Inner<A::State>>,
    pub(super) algorithm: A,
    pub(super) key: PartitionKey,
    pub(super) tag: Tag,
}

impl<A: Scripted> Clone for Asking<A> {
    fn clone(&self) -> Self {
        let Self { inner, algorithm, key, tag } = self;
        Self { inner: Arc::clone(inner), algorithm: algorithm.clone(), key: key.clone(), tag: *tag }
    }
}

impl<A: Scripted> Asking<A> {
    pub(super) fn of(inner: &Arc<Inner<A::State>>, algorithm: &A, key: &PartitionKey) -> Self {
        Self { inner: Arc::clone(inner), algorithm: algorithm.clone(), key: key.clone(), tag: inner.names.tag(key) }
    }

    /// The refusal that the server would answer, if that is certain, and none that this request is to verify.
    pub(super) fn certain_refusal(&self, cost: u32) -> Option<Decision> {
        let refused = |state, at| self.refused(state, at, cost);
        (cost > 0).then(|| self.inner.mirror.refusal(self.tag, Monotonic.now(), refused)).flatten()
    }

    /// The same, for who does not ask.
    pub(super) fn known_refusal(&self, cost: u32) -> Option<Decision> {
        let refused = |state, at| self.refused(state, at, cost);
        (cost > 0).then(|| self.inner.mirror.known_refusal(self.tag, Monotonic.now(), refused)).flatten()
    }

    fn refused(&self, state: A::State, at: Timestamp, cost: u32) -> Option<Decision> {
        Some(self.algorithm.decide(Some(state), at, cost).0).filter(|decision| !decision.is_allowed())
    }

    /// Out of what this process has taken in advance.
    pub(super) fn out_of_lease(&self, cost: u32) -> Option<Decision> {
        self.inner.leases.as_ref()?.spend(self.tag, cost, Monotonic.now())
    }

    /// Whether that would admit a request.
    pub(super) fn is_leased(&self, cost: u32) -> bool {
        self.inner.leases.as_ref().is_some_and(|leases| leases.can_spend(self.tag, cost, Monotonic.now()))
    }

    /// In a call of its own.
    pub(super) async fn alone(&self, cost: u32) -> Answered {
        self.alone_by(cost, self.inner.redis.deadline()).await
    }

    async fn alone_by(&self, cost: u32, deadline: Instant) -> Answered {
        Ok(self.call(cost, 1, deadline).await?[0])
    }

    /// In a call of its own, if none for this key is under way; else in the next, with all who come meanwhile.
    pub(super) async fn in_company(self, cost: u32) -> Answered {
        let deadline = self.inner.redis.deadline();
        if self.inner.redis.is_barred(|| self.name().slot()) {
            // One of them may try, and makes nobody wait; the others need no call.
            return self.alone_by(cost, deadline).await;
        }
        let flights = Arc::clone(&self.inner.flights);
        match flights.board(Route::of(self.tag), cost, deadline) {
            Boarding::First(landing) => {
                let answer = self.alone_by(cost, deadline).await;
                // Whoever is seated finds in the mirror what this one has learnt.
                drop(landing);
                answer
            }
            Boarding::Seated(seat, collector) => {
                let handle = Handle::try_current().map_err(|_| failed(Reason::NoRuntime))?;
                if let Some(collector) = collector {
                    handle.spawn(self.clone().collect(collector));
                }
                match seat.answer().await {
                    Outcome::Answered(answer) => answer,
                    Outcome::Lost => Err(failed(Fault::new(Reason::Disconnected, "the call was given up"))),
                    Outcome::Late(collector) => {
                        if let Some(collector) = collector {
                            handle.spawn(self.collect(collector));
                        }
                        Err(failed(Reason::TimedOut))
                    }
                }
            }
            Boarding::Full => Err(failed(Reason::TooManyInFlight)),
        }
    }

    async fn collect(self, mut collector: Collector<Answered>) {
        // So that there is time left for a call, if the first one's future is not polled.
        collector.landing(self.inner.redis.timeout() / 2).await;
        loop {
            let mut groups = collector.groups();
            let Some(last) = groups.pop() else { return };
            // Side by side: who chooses what a request costs would else make the others wait.
            let others: Vec<_> = groups.into_iter().map(|group| tokio::spawn(self.clone().answer(group))).collect();
            self.clone().answer(last).await;
            for other in others {
                // One that panicked has left its seats without an answer.
                let _ = other.await;
            }
        }
    }

    async fn answer(self, Group { cost, seats }: Group<Answered>) {
        let mut seats = seats.into_iter().peekable();
        while seats.peek().is_some() {
            if let Some(decision) = self.out_of_lease(cost).or_else(|| self.known_refusal(cost)) {
                // Whoever has gone needs no answer.
                seats.next().into_iter().for_each(|(_, seat)| drop(seat.send(Ok(decision))));
                continue;
            }
            // Nobody is charged for who has given up.
            let batch: Vec<_> = seats.by_ref().filter(|(_, seat)| !seat.is_closed()).take(BATCH).collect();
            // Those who cannot wait as long give up by themselves.
            let Some(deadline) = batch.iter().map(|(deadline, _)| *deadline).max() else { return };
            match self.call(cost, u32::try_from(batch.len()).expect("a batch is small"), deadline).await {
                Ok(decisions) => {
                    batch.into_iter().zip(decisions).for_each(|((_, seat), decision)| drop(seat.send(Ok(decision))));
                }
                Err(error) => batch.into_iter().for_each(|(_, seat)| drop(seat.send(Err(error.clone())))),
            }
        }
    }

    /// What the key is called on the server.
    pub(super) fn name(&self) -> Key {
        self.inner.names.key(self.tag, A::KIND)
    }

    /// Asks for `count` requests of the same cost, one after the other, in one round trip; and for some more in
    /// advance, if there is a demand.
    async fn call(&self, cost: u32, count: u32, deadline: Instant) -> Result<Decisions, LimiterError> {
        let Some(leases) = self.inner.leases.as_ref().filter(|_| cost > 0) else {
            return self.call_for(cost, count, count, deadline).await;
        };
        let want = leases.want(self.tag, cost, Monotonic.now());
        if want == Want::More(0) {
            return self.clone().call_with_lease(cost, count, want, deadline).await;
        }
        // What others are to spend, or have not spent, must not be lost with this request.
        let task = tokio::spawn(self.clone().call_with_lease(cost, count, want, deadline));
        task.await.unwrap_or_else(|_| Err(failed(Fault::new(Reason::Disconnected, "the call was given up"))))
    }

    async fn call_with_lease(
        self,
        cost: u32,
        count: u32,
        want: Want,
        deadline: Instant,
    ) -> Result<Decisions, LimiterError> {
        // As of before the call: a lease must not outlive the window that it was taken from.
        let since = Monotonic.now();
        let extra = if let Want::More(extra) = want { extra } else { 0 };
        let call = self.call_for(cost, count + extra, count, deadline);
        let mut decisions = match want {
            Want::More(_) => call.await?,
            Want::GiveBack(Unspent { requests, cost, receipt }) => {
                // Sent first, on the same connection: or they would be missing when the server decides.
                tokio::join!(self.refund(cost.saturating_mul(requests), receipt, deadline), call).1?
            }
        };
        let granted = decisions.iter().rposition(Decision::is_allowed).map(|last| (last + 1, decisions[last]));
        if let (Some((allowed, last)), Some(leases)) = (granted, &self.inner.leases) {
            let left = u32::try_from(allowed).expect("as many as were asked for").saturating_sub(count);
            leases.hold(self.tag, Lease::new(cost, left, extra, last, since));
        }
        decisions.truncate(count as usize);
        Ok(decisions)
    }

    /// For `count` requests, of which `requests` wait.
    async fn call_for(
        &self,
        cost: u32,
        count: u32,
        requests: u32,
        deadline: Instant,
    ) -> Result<Decisions, LimiterError> {
        let inner = &*self.inner;
        let call = script::decide(&self.algorithm, self.name(), cost, count);
        let sent = Monotonic.now();
        let value = inner.redis.call_by(&call, deadline, requests).await.map_err(failed)?;
        let answered = Monotonic.now();
        let answer = Answer::read(value).map_err(failed)?;
        let (decisions, state) = answer.replay(&self.algorithm, cost, count).map_err(failed)?;
        let seen = Seen { server: answer.now, sent, answered };
        self.learn(&decisions, state, seen, cost);
        Ok(decisions)
    }

    /// Notes what the server has just said.
    pub(super) fn learn(&self, decisions: &[Decision], state: Option<A::State>, seen: Seen, cost: u32) {
        // Used up for requests such as this one: greater ones than others ask for may be refused for longer.
        let used_up = state.filter(|state| self.refused(*state, seen.server, cost.max(1)).is_some());
        self.inner.mirror.note(self.tag, used_up, seen);
        // The guard counts along, whatever it thinks of it: so it is warm when it is needed.
        for _ in decisions.iter().filter(|decision| decision.is_allowed()) {
            let _ = self.inner.guard(&self.algorithm, &self.key, cost);
        }
    }

    /// What was paid in advance, and is forfeited if that has ended.
    pub(super) fn put_back(&self, cost: u32, lease: OfLease) {
        let _ = self.inner.leases.as_ref().map(|leases| leases.put_back(self.tag, cost, lease, Monotonic.now()));
    }

    /// In the background.
    pub(super) fn give_back(self, cost: u32, receipt: Receipt) {
        self.inner.mirror.forget(self.tag, Monotonic.now());
        if let Ok(handle) = Handle::try_current() {
            handle.spawn(async move { self.refund(cost, receipt, self.inner.redis.deadline()).await });
        }
    }

    /// As much as is left, in the background: in a call of its own, or two if not all could be had.
    pub(super) fn charge_up_to(self, cost: u32) -> Check {
        in_background(async move {
            let decision = self.alone(cost).await?;
            // What cannot be charged is forgiven.
            match decision.partial_cost(cost) {
                Some(left) => self.alone(left).await,
                None => Ok(decision),
            }
        })
    }

    /// What would be decided. In a call of its own, which charges nothing.
    pub(super) async fn peek(self, cost: u32) -> Answered {
        let call = script::decide(&self.algorithm, self.name(), 0, 1);
        let value = self.inner.redis.call(&call).await.map_err(failed)?;
        let answer = Answer::read(value).map_err(failed)?;
        Ok(answer.replay(&self.algorithm, cost, 1).map_err(failed)?.0[0])
    }

    pub(super) async fn reset(self) -> Answered {
        let inner = &*self.inner;
        let value = inner.redis.call(&script::reset(self.name())).await.map_err(failed)?;
        inner.mirror.forget(self.tag, Monotonic.now());
        if let Some(leases) = &inner.leases {
            leases.forget(self.tag);
        }
        let _ = inner.guard.reset(&self.algorithm, &Ask::reset(&self.key));
        let answer = Answer::read(value).map_err(failed)?;
        Ok(answer.replay(&self.algorithm, 0, 1).map_err(failed)?.0[0])
    }

    async fn refund(&self, cost: u32, receipt: Receipt, deadline: Instant) {
        if let Some(call) = script::give_back(&self.algorithm, self.name(), cost, receipt) {
            // What cannot be given back stays charged: too little is admitted then, and never too much.
            let _ = self.inner.redis.call_by(&call, deadline, 1).await;
        }
        // A refusal may have been noted meanwhile, of before.
        self.inner.mirror.forget(self.tag, Monotonic.now());
    }
}

/// Nothing may be concluded from such an answer.
impl From<BadReply> for Fault {
    fn from(reply: BadReply) -> Self {
        Self::new(Reason::Unintelligible, reply.to_string())
    }
}

/// Goes on also if nobody waits for it.
pub(crate) fn in_background(charge: impl Future<Output = Answered> + Send + 'static) -> Check {
    let Ok(runtime) = Handle::try_current() else { return Check::Ready(Err(failed(Reason::NoRuntime))) };
    let task = runtime.spawn(charge);
    Check::Pending(Box::pin(async move {
        task.await.unwrap_or_else(|_| Err(failed(Fault::new(Reason::Disconnected, "the call was given up"))))
    }))
}

pub(super) fn failed(fault: impl Into<Fault>) -> LimiterError {
    let fault = fault.into();
    LimiterError::new(fault.to_string()).with_source(fault)
}
