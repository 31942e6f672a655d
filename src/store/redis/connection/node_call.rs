//! One call to one node, and what its outcome says about the node.
//!
//! Calls are given up here, for one of three reasons: the deadline passes, the circuit breaker of the node is open, or
//! no slot for a call in flight becomes free in time.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, MutexGuard};

use ::redis::{Cmd, Value};
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout_at};

use super::circuit_breaker::CallPermit;
use super::fault::{Fault, Reason};
use super::node::{CallLimits, ConnectionHandle, Node, State, send};

/// What a call says about its node, for the circuit breaker.
#[derive(Clone, Copy)]
pub(super) enum Evidence<'a> {
    Answered,
    Failed(&'a Fault),
    /// Neither.
    Unknown,
}

impl<'a> Evidence<'a> {
    /// `is_connected`: whether the call got as far as a connection.
    fn of(fault: Option<&'a Fault>, is_connected: bool) -> Self {
        match fault {
            // Without a connection the script was not sent, so whatever is wrong is wrong with the node, such as a
            // login that it does not accept.
            Some(fault) if fault.counts() || !is_connected => Self::Failed(fault),
            _ => Self::Answered,
        }
    }
}

type ReplyFuture = Pin<Box<dyn Future<Output = (ConnectionHandle, Result<Value, Fault>)> + Send>>;

/// A call in flight. It ends in one of three ways: with its outcome; at the deadline of its decision; or dropped,
/// because its caller was cancelled. In the last two, the node may not have had the whole timeout to answer. Then the
/// answer is awaited in the background, so that the circuit breaker counts a node that does not answer, however short
/// the deadlines of its callers are, and does not count one that does.
pub(super) struct NodeCall<'a> {
    node: &'a Arc<Node>,
    _slot: OwnedSemaphorePermit,
    permit: Option<CallPermit>,
    /// When the node has had the whole timeout.
    due: Instant,
    deadline: Instant,
    pub(super) handle: Option<ConnectionHandle>,
    answer: Option<ReplyFuture>,
}

impl<'a> NodeCall<'a> {
    /// Asks the breaker for a permit. If all slots are taken, waits for one for half of the time that is left: the
    /// other half is for the call.
    pub(super) async fn enter(node: &'a Arc<Node>, limits: CallLimits) -> Result<Self, Fault> {
        let runtime = Handle::try_current().map_err(|_| Reason::NoRuntime)?.id();
        let now = Instant::now();
        let slots = {
            let mut state = node.lock();
            let slots = Arc::clone(&state.state_of(runtime, &node.settings).slots);
            if slots.available_permits() == 0 && state.breaker.rejects_calls(now) {
                return Err(Fault::new(Reason::BreakerOpen, node.address().clone()));
            }
            match slots.try_acquire_owned() {
                // The usual case: the first node, without waiting.
                Ok(slot) => return Self::begin(node, state, slot, now, limits),
                Err(_) => Arc::clone(&state.state_of(runtime, &node.settings).slots),
            }
        };
        let patience = limits.deadline.saturating_duration_since(now) / 2;
        let slot = timeout_at(now + patience, slots.acquire_owned()).await;
        let slot = slot.ok().and_then(Result::ok).ok_or(Reason::TooManyInFlight)?;
        // The breaker may have opened in the meantime, and is asked under the lock.
        Self::begin(node, node.lock(), slot, Instant::now(), limits)
    }

    fn begin(
        node: &'a Arc<Node>,
        mut state: MutexGuard<'_, State>,
        slot: OwnedSemaphorePermit,
        now: Instant,
        limits: CallLimits,
    ) -> Result<Self, Fault> {
        let permit = state.breaker.try_enter(now, limits.requests);
        let permit = permit.ok_or_else(|| Fault::new(Reason::BreakerOpen, node.address().clone()))?;
        state.in_flight += 1;
        let (due, deadline) = (now + node.settings.timeout, limits.deadline);
        Ok(Self { node, _slot: slot, permit: Some(permit), due, deadline, handle: state.take_handle(), answer: None })
    }

    /// Sends a command on the connection of the handle.
    pub(super) async fn send(&mut self, command: Cmd, asking: bool, deadline: Instant) -> Result<Value, Fault> {
        let handle = self.handle.take().ok_or(Reason::Disconnected)?;
        let answer = self.answer.insert(Box::pin(send(handle, command, asking)));
        let (handle, value) = timeout_at(deadline, answer).await.map_err(|_| Reason::TimedOut)?;
        (self.handle, self.answer) = (Some(handle), None);
        value
    }

    pub(super) fn end(mut self, fault: Option<&Fault>) {
        let is_timeout = fault.is_some_and(|fault| fault.reason() == Reason::TimedOut);
        if is_timeout && !self.is_fair(Instant::now()) {
            // Dropped without a evidence: it is watched from here on.
            return;
        }
        if let Some(permit) = self.permit.take() {
            let mut state = self.node.lock();
            state.in_flight -= 1;
            let is_connected = self.handle.is_some() || self.answer.is_some();
            self.node.record(state, &permit, Evidence::of(fault, is_connected), self.handle.take());
        }
    }

    /// Whether the node has had its time to answer, and this process was not too busy to read the answer.
    fn is_fair(&self, now: Instant) -> bool {
        let tolerance = self.node.settings.timeout / 16;
        now + tolerance >= self.due && now <= self.deadline + self.node.settings.timeout / 4
    }
}

impl Drop for NodeCall<'_> {
    fn drop(&mut self) {
        let Some(permit) = self.permit.take() else { return };
        let mut state = self.node.lock();
        state.in_flight -= 1;
        // On the runtime that it is dropped on.
        let watch_slot = Handle::try_current().ok().and_then(|runtime| {
            let watches = Arc::clone(&state.state_of(runtime.id(), &self.node.settings).watches);
            Some((watches.try_acquire_owned().ok()?, runtime))
        });
        // Unlocked before the spawn: a runtime that shuts down drops the task on the spot, and the drop of the abandoned
        // call locks the node.
        drop(state);
        let watch = AbandonedCall { node: Arc::clone(self.node), permit: Some(permit) };
        let Some((watch_slot, runtime)) = watch_slot else { return };
        let (until, answer) = (self.due.max(Instant::now() + self.node.settings.timeout / 8), self.answer.take());
        runtime.spawn(async move {
            watch.await_answer(until, answer).await;
            drop(watch_slot);
        });
    }
}

/// A call whose caller was cancelled.
struct AbandonedCall {
    node: Arc<Node>,
    permit: Option<CallPermit>,
}

impl AbandonedCall {
    async fn await_answer(mut self, until: Instant, answer: Option<ReplyFuture>) {
        let (handle, outcome) = match answer {
            Some(answer) => match timeout_at(until, answer).await {
                Ok((handle, Ok(Value::ServerError(error)))) => (Some(handle), Err(Fault::answered(&error))),
                Ok((handle, outcome)) => (Some(handle), outcome.map(drop)),
                Err(_) => (None, Err(Reason::TimedOut.into())),
            },
            // It was still connecting, which continues without it. A success is weak evidence about the node.
            None => match self.node.connect(until).await {
                Ok(_) => return,
                Err(fault) => return self.record(Evidence::Failed(&fault), None),
            },
        };
        self.record(Evidence::of(outcome.as_ref().err(), true), handle);
    }

    fn record(&mut self, evidence: Evidence<'_>, handle: Option<ConnectionHandle>) {
        if let Some(permit) = self.permit.take() {
            self.node.record(self.node.lock(), &permit, evidence, handle);
        }
    }
}

impl Drop for AbandonedCall {
    fn drop(&mut self) {
        // The runtime was shut down, or too many calls are watched. If this was the probe, the breaker must not wait
        // for it.
        self.record(Evidence::Unknown, None);
    }
}
