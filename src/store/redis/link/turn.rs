//! One call to one node, and what its outcome says of the node.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, MutexGuard};

use ::redis::{Cmd, Value};
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout_at};

use super::breaker::Leave;
use super::fault::{Fault, Reason};
use super::node::{Borrowed, Node, State, Times, send};

/// What is known of a call at its end.
#[derive(Clone, Copy)]
pub(super) enum Judged<'a> {
    Answered,
    Failed(&'a Fault),
    /// Neither.
    Unknown,
}

impl<'a> Judged<'a> {
    /// `is_connected`: whether the call came as far as a connection.
    fn of(fault: Option<&'a Fault>, is_connected: bool) -> Self {
        match fault {
            // Without a connection nothing was asked: then whatever is wrong is wrong with the node, such as a login
            // that it does not understand.
            Some(fault) if fault.counts() || !is_connected => Self::Failed(fault),
            _ => Self::Answered,
        }
    }
}

type Answer = Pin<Box<dyn Future<Output = (Borrowed, Result<Value, Fault>)> + Send>>;

/// A call under way. It ends in one of three ways: with its outcome; at the deadline of its decision; or dropped, since
/// its caller has gone. In the last two, the node may not have had the whole timeout to answer. Then the answer is awaited
/// in the background, so that the breaker hears of a node that does not answer, however impatient its callers are, and
/// nothing ill of one that does.
pub(super) struct Turn<'a> {
    node: &'a Arc<Node>,
    _slot: OwnedSemaphorePermit,
    leave: Option<Leave>,
    /// When the node has had its time.
    due: Instant,
    deadline: Instant,
    pub(super) borrowed: Option<Borrowed>,
    answer: Option<Answer>,
}

impl<'a> Turn<'a> {
    /// Waits for a slot for half of the time that is left, if all are taken: the other half is for the call.
    pub(super) async fn enter(node: &'a Arc<Node>, times: Times) -> Result<Self, Fault> {
        let runtime = Handle::try_current().map_err(|_| Reason::NoRuntime)?.id();
        let now = Instant::now();
        let slots = {
            let mut state = node.lock();
            let slots = Arc::clone(&state.local(runtime, &node.terms).slots);
            if slots.available_permits() == 0 && state.breaker.is_barred(now) {
                return Err(Fault::new(Reason::BreakerOpen, node.address().clone()));
            }
            match slots.try_acquire_owned() {
                // As a rule, this is the first node that is asked, and at once.
                Ok(slot) => return Self::begin(node, state, slot, now, times),
                Err(_) => Arc::clone(&state.local(runtime, &node.terms).slots),
            }
        };
        let patience = times.deadline.saturating_duration_since(now) / 2;
        let slot = timeout_at(now + patience, slots.acquire_owned()).await;
        let slot = slot.ok().and_then(Result::ok).ok_or(Reason::TooManyInFlight)?;
        Self::begin(node, node.lock(), slot, Instant::now(), times)
    }

    fn begin(
        node: &'a Arc<Node>,
        mut state: MutexGuard<'_, State>,
        slot: OwnedSemaphorePermit,
        now: Instant,
        times: Times,
    ) -> Result<Self, Fault> {
        let leave = state.breaker.enter(now, times.requests);
        let leave = leave.ok_or_else(|| Fault::new(Reason::BreakerOpen, node.address().clone()))?;
        state.in_flight += 1;
        let (due, deadline) = (now + node.terms.timeout, times.deadline);
        Ok(Self { node, _slot: slot, leave: Some(leave), due, deadline, borrowed: state.borrow(), answer: None })
    }

    /// On the connection that was borrowed.
    pub(super) async fn send(&mut self, command: Cmd, asking: bool, deadline: Instant) -> Result<Value, Fault> {
        let borrowed = self.borrowed.take().ok_or(Reason::Disconnected)?;
        let answer = self.answer.insert(Box::pin(send(borrowed, command, asking)));
        let (borrowed, value) = timeout_at(deadline, answer).await.map_err(|_| Reason::TimedOut)?;
        (self.borrowed, self.answer) = (Some(borrowed), None);
        value
    }

    pub(super) fn end(mut self, fault: Option<&Fault>) {
        let is_timeout = fault.is_some_and(|fault| fault.reason() == Reason::TimedOut);
        if is_timeout && !self.is_fair(Instant::now()) {
            // Is watched from here on.
            return;
        }
        if let Some(leave) = self.leave.take() {
            let mut state = self.node.lock();
            state.in_flight -= 1;
            let is_connected = self.borrowed.is_some() || self.answer.is_some();
            self.node.judge(state, &leave, Judged::of(fault, is_connected), self.borrowed.take());
        }
    }

    /// Whether the node has had its time to answer, and we have not been too busy to hear it.
    fn is_fair(&self, now: Instant) -> bool {
        let tolerance = self.node.terms.timeout / 16;
        now + tolerance >= self.due && now <= self.deadline + self.node.terms.timeout / 4
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let Some(leave) = self.leave.take() else { return };
        let mut state = self.node.lock();
        state.in_flight -= 1;
        // Of the runtime that it is dropped on.
        let place = Handle::try_current().ok().and_then(|runtime| {
            let watches = Arc::clone(&state.local(runtime.id(), &self.node.terms).watches);
            Some((watches.try_acquire_owned().ok()?, runtime))
        });
        drop(state);
        let watch = Watch { node: Arc::clone(self.node), leave: Some(leave) };
        let Some((place, runtime)) = place else { return };
        let (until, answer) = (self.due.max(Instant::now() + self.node.terms.timeout / 8), self.answer.take());
        runtime.spawn(async move {
            watch.await_answer(until, answer).await;
            drop(place);
        });
    }
}

/// A call whose caller has gone.
struct Watch {
    node: Arc<Node>,
    leave: Option<Leave>,
}

impl Watch {
    async fn await_answer(mut self, until: Instant, answer: Option<Answer>) {
        let (borrowed, outcome) = match answer {
            Some(answer) => match timeout_at(until, answer).await {
                Ok((borrowed, Ok(Value::ServerError(error)))) => (Some(borrowed), Err(Fault::answered(&error))),
                Ok((borrowed, outcome)) => (Some(borrowed), outcome.map(drop)),
                Err(_) => (None, Err(Reason::TimedOut.into())),
            },
            // It was still connecting, which goes on without it. That this works says little.
            None => match self.node.connect(until).await {
                Ok(_) => return,
                Err(fault) => return self.judge(Judged::Failed(&fault), None),
            },
        };
        self.judge(Judged::of(outcome.as_ref().err(), true), borrowed);
    }

    fn judge(&mut self, judged: Judged<'_>, borrowed: Option<Borrowed>) {
        if let Some(leave) = self.leave.take() {
            self.node.judge(self.node.lock(), &leave, judged, borrowed);
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Its runtime was shut down, or there was no room for it.
        self.judge(Judged::Unknown, None);
    }
}
