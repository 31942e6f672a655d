//! One call to one node, and what its outcome says about the node.
//!
//! [`NodeCall::enter`] fails without a call if the circuit breaker of the node is open, if no slot for a call in flight
//! becomes free in time, or outside of a runtime; [`NodeCall::send`] gives up at the deadline. Before a call gets here,
//! `Redis::call_by` gives up if the deadline has passed already, and `SharedTask` while the nodes are being looked up.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, MutexGuard};

use ::redis::{Cmd, Value};
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout_at};

use super::connections::ConnectionHandle;
use super::fault::{Fault, FaultKind};
use super::node::{Node, State};
use crate::store::remote::{CallLimits, CallPermit};

/// What a call says about its node, for the circuit breaker.
#[derive(Clone, Copy)]
pub(super) enum Evidence<'a> {
    /// The node answered, if only with an error that is not its own.
    Healthy,
    Failed(&'a Fault),
    /// The outcome of the call did not become known.
    Unknown,
}

impl<'a> Evidence<'a> {
    /// The evidence of a call that was sent.
    fn of_outcome(fault: Option<&'a Fault>) -> Self {
        match fault {
            Some(fault) if fault.blames_node() => Self::Failed(fault),
            _ => Self::Healthy,
        }
    }

    /// The evidence of a call that got no connection. The script was not sent, so whatever is wrong is wrong with the
    /// node, such as a login that it does not accept; unless this process stopped the attempt.
    fn of_connecting(fault: &'a Fault) -> Self {
        match fault.kind() {
            FaultKind::Cancelled => Self::Unknown,
            _ => Self::Failed(fault),
        }
    }
}

type ReplyFuture = Pin<Box<dyn Future<Output = (ConnectionHandle, Result<Value, Fault>)> + Send>>;

/// A call in flight. It ends in one of three ways: with its outcome; at the deadline of its decision; or dropped,
/// because its caller was cancelled. In the last two cases, the call may end before the node's timeout. Then the
/// answer is awaited in the background, so that a node that does not answer opens its circuit breaker, however short
/// the deadlines of the callers are, and one that does answer does not.
pub(super) struct NodeCall<'a> {
    node: &'a Arc<Node>,
    _slot: OwnedSemaphorePermit,
    /// Taken when the outcome is recorded, or is left to an [`AbandonedCall`].
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
        let runtime = Handle::try_current().map_err(|_| FaultKind::NoRuntime)?.id();
        let now = Instant::now();
        let slots = {
            let mut state = node.lock();
            let slots_of = |state: &mut State| Arc::clone(&state.connections.of_runtime(runtime, &node.settings).slots);
            match slots_of(&mut state).try_acquire_owned() {
                // The usual case: no wait, and the lock is taken once.
                Ok(slot) => return Self::begin(node, state, slot, now, limits),
                Err(_) if state.breaker.rejects_calls(now) => {
                    return Err(Fault::new(FaultKind::BreakerOpen, node.address().clone()));
                }
                Err(_) => slots_of(&mut state),
            }
        };
        let patience = limits.deadline.saturating_duration_since(now) / 2;
        let slot = timeout_at(now + patience, slots.acquire_owned()).await;
        let slot = slot.ok().and_then(Result::ok).ok_or(FaultKind::TooManyInFlight)?;
        // The breaker may have opened in the meantime: `begin` asks it.
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
        let permit = permit.ok_or_else(|| Fault::new(FaultKind::BreakerOpen, node.address().clone()))?;
        state.in_flight += 1;
        let (due, deadline) = (now + node.settings.timeout, limits.deadline);
        Ok(Self {
            node,
            _slot: slot,
            permit: Some(permit),
            due,
            deadline,
            handle: state.connections.take_handle(),
            answer: None,
        })
    }

    /// Sends a command on the connection of the handle, after `ASKING` if the node was named by an `ASK` redirection.
    pub(super) async fn send(&mut self, command: Cmd, asking: bool, deadline: Instant) -> Result<Value, Fault> {
        let handle = self.handle.take().ok_or(FaultKind::Disconnected)?;
        let answer: ReplyFuture =
            if asking { Box::pin(handle.send_asking(command)) } else { Box::pin(handle.send(command)) };
        let answer = self.answer.insert(answer);
        let (handle, value) = timeout_at(deadline, answer).await.map_err(|_| FaultKind::TimedOut)?;
        (self.handle, self.answer) = (Some(handle), None);
        value
    }

    /// Records the outcome.
    pub(super) fn end(mut self, fault: Option<&Fault>) {
        let is_timeout = fault.is_some_and(|fault| fault.kind() == FaultKind::TimedOut);
        if is_timeout && !self.is_fair(Instant::now()) {
            // Dropped without evidence: `drop` goes on watching for the answer.
            return;
        }
        let Some(permit) = self.permit.take() else { return };
        let evidence = match fault {
            Some(fault) if self.handle.is_none() && self.answer.is_none() => Evidence::of_connecting(fault),
            _ => Evidence::of_outcome(fault),
        };
        let mut state = self.node.lock();
        state.in_flight -= 1;
        self.node.record(state, &permit, evidence, self.handle.take());
    }

    /// Whether a timeout is the node's: it has had its time to answer, and this process was not too busy to read the
    /// answer.
    fn is_fair(&self, now: Instant) -> bool {
        let timeout = self.node.settings.timeout;
        // A call begins a moment after its decision, so it is due a moment after the deadline. A sixteenth of the
        // timeout, 3 ms of 50, is enough for that.
        let has_had_its_time = now + timeout / 16 >= self.due;
        // If this task runs later than that, the process was busy, and the answer may have arrived, but not been read.
        let is_on_time = now <= self.deadline + timeout / 4;
        has_had_its_time && is_on_time
    }
}

impl Drop for NodeCall<'_> {
    fn drop(&mut self) {
        let Some(permit) = self.permit.take() else { return };
        let mut state = self.node.lock();
        state.in_flight -= 1;
        // On the runtime that it is dropped on.
        let watch_slot = Handle::try_current().ok().and_then(|runtime| {
            let watches = Arc::clone(&state.connections.of_runtime(runtime.id(), &self.node.settings).watches);
            Some((watches.try_acquire_owned().ok()?, runtime))
        });
        // Unlocked before the spawn: a runtime that shuts down drops the task on the spot, and the drop of the abandoned
        // call locks the node.
        drop(state);
        let watch = AbandonedCall { node: Arc::clone(self.node), permit: Some(permit) };
        let Some((watch_slot, runtime)) = watch_slot else { return };
        // If the call is due already, this process was busy. An eighth of the timeout, 6 ms of 50, is enough to read an
        // answer that has arrived.
        let until = self.due.max(Instant::now() + self.node.settings.timeout / 8);
        let answer = self.answer.take();
        runtime.spawn(async move {
            watch.await_answer(until, answer).await;
            drop(watch_slot);
        });
    }
}

/// A call whose caller was cancelled, or gave up at its deadline before the node had the whole timeout.
struct AbandonedCall {
    node: Arc<Node>,
    permit: Option<CallPermit>,
}

impl AbandonedCall {
    /// Waits for the answer, or for the connection, and records the outcome.
    async fn await_answer(mut self, until: Instant, answer: Option<ReplyFuture>) {
        let (handle, outcome) = match answer {
            Some(answer) => match timeout_at(until, answer).await {
                Ok((handle, Ok(Value::ServerError(error)))) => (Some(handle), Err(Fault::answered(&error))),
                Ok((handle, outcome)) => (Some(handle), outcome.map(drop)),
                Err(_) => (None, Err(FaultKind::TimedOut.into())),
            },
            // It was still connecting, which continues without it. A success is weak evidence about the node, and is
            // recorded as `Unknown`.
            None => match self.node.connect(until).await {
                Ok(_) => return,
                Err(fault) => return self.record(Evidence::of_connecting(&fault), None),
            },
        };
        self.record(Evidence::of_outcome(outcome.as_ref().err()), handle);
    }

    fn record(&mut self, evidence: Evidence<'_>, handle: Option<ConnectionHandle>) {
        if let Some(permit) = self.permit.take() {
            self.node.record(self.node.lock(), &permit, evidence, handle);
        }
    }
}

impl Drop for AbandonedCall {
    fn drop(&mut self) {
        // If it was not recorded, the runtime was shut down, too many calls are watched, or it only connected. If this
        // was the probe, the breaker must not wait for it.
        self.record(Evidence::Unknown, None);
    }
}
