//! One call to one node, and what its outcome says about the node.
//!
//! [`NodeCall::enter`] fails without a call if the circuit breaker of the node is open, if no slot for a call in flight
//! becomes free in time, or outside of a runtime; [`NodeCall::send`] gives up at the deadline. Before a call gets here,
//! `Redis::call_by` gives up if the deadline has passed already, and `SharedTask` while the nodes are being looked up.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use ::redis::{Cmd, Value};
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};

use super::connections::ConnectionHandle;
use super::fault::{Fault, FaultKind};
use super::node::Node;
use crate::store::remote::{CallFailure, CallLimits, Evidence, GaveUp, Watch};

type ReplyFuture = Pin<Box<dyn Future<Output = (ConnectionHandle, Result<Value, Fault>)> + Send>>;

/// A call in flight. It ends in one of three ways: with its outcome; at the deadline of its decision; or dropped,
/// because its caller was cancelled. In the last two cases, the call may end before the node's timeout. Then the
/// answer is awaited in the background, so that a node that does not answer opens its circuit breaker, however short
/// the deadlines of the callers are, and one that does answer does not.
pub(super) struct NodeCall<'a> {
    node: &'a Arc<Node>,
    /// Taken when the outcome is recorded, or is left to [`await_answer`].
    watch: Option<Watch>,
    /// When the node has had the whole timeout.
    due: Instant,
    deadline: Instant,
    pub(super) handle: Option<ConnectionHandle>,
    answer: Option<ReplyFuture>,
}

impl<'a> NodeCall<'a> {
    pub(super) async fn enter(node: &'a Arc<Node>, limits: CallLimits) -> Result<Self, Fault> {
        let runtime = Handle::try_current().map_err(|_| FaultKind::NoRuntime)?.id();
        let slots = Arc::clone(&node.connections.lock().of_runtime(runtime, &node.settings).slots);
        let watch = node.gate.enter(slots, limits).await.map_err(|reason| match reason {
            GaveUp::BreakerOpen => Fault::new(FaultKind::BreakerOpen, node.address().clone()),
            reason => Fault::given_up(reason),
        })?;
        let (due, handle) = (watch.began + node.settings.timeout, node.connections.lock().take_handle());
        Ok(Self { node, watch: Some(watch), due, deadline: limits.deadline, handle, answer: None })
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
        let Some(watch) = self.watch.take() else { return };
        let is_sent = self.handle.is_some() || self.answer.is_some();
        record(self.node, watch, fault, is_sent, self.handle.take());
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
        let Some(mut watch) = self.watch.take() else { return };
        watch.leave();
        // On the runtime that it is dropped on.
        let Ok(runtime) = Handle::try_current() else { return };
        let watches = Arc::clone(&self.node.connections.lock().of_runtime(runtime.id(), &self.node.settings).watches);
        let Ok(watch_slot) = watches.try_acquire_owned() else { return };
        // If the call is due already, this process was busy. An eighth of the timeout, 6 ms of 50, is enough to read an
        // answer that has arrived.
        let until = self.due.max(Instant::now() + self.node.settings.timeout / 8);
        let (node, answer) = (Arc::clone(self.node), self.answer.take());
        runtime.spawn(async move {
            await_answer(&node, watch, until, answer).await;
            drop(watch_slot);
        });
    }
}

/// Awaits the answer to a call whose caller was cancelled, or gave up at its deadline before the node had the whole timeout;
/// or the connection.
async fn await_answer(node: &Arc<Node>, watch: Watch, until: Instant, answer: Option<ReplyFuture>) {
    let is_sent = answer.is_some();
    let (handle, outcome) = match answer {
        Some(answer) => match timeout_at(until, answer).await {
            Ok((handle, Ok(Value::ServerError(error)))) => (Some(handle), Err(Fault::answered(&error))),
            Ok((handle, outcome)) => (Some(handle), outcome.map(drop)),
            Err(_) => (None, Err(FaultKind::TimedOut.into())),
        },
        // It was still connecting, which continues without it.
        None => (None, node.connect(until).await.map(drop)),
    };
    record(node, watch, outcome.as_ref().err(), is_sent, handle);
}

/// Records the outcome of a call, and keeps its handle for the next.
fn record(node: &Node, watch: Watch, fault: Option<&Fault>, is_sent: bool, handle: Option<ConnectionHandle>) {
    let failed = |fault| {
        let failure = if Fault::is_silence(fault) { CallFailure::Silent } else { CallFailure::Answered };
        Evidence::Failed(failure, fault)
    };
    watch.end(match fault {
        // The script was not sent, so whatever is wrong is wrong with the node, such as a login that it does not accept;
        // unless this process stopped the attempt. That a connection was made is weak evidence.
        Some(fault) if !is_sent && fault.kind() != FaultKind::Cancelled => failed(fault),
        _ if !is_sent => Evidence::Unknown,
        Some(fault) if fault.blames_node() => failed(fault),
        _ => Evidence::Healthy,
    });
    let is_spoilt = fault.is_some_and(Fault::spoils_connection) && node.gate.is_failing();
    let mut connections = node.connections.lock();
    let spoilt = if is_spoilt { connections.remove_all() } else { Vec::new() };
    let left_over = handle.and_then(|handle| connections.put_handle(handle));
    drop(connections);
    // Outside of the lock, as their methods ask.
    drop((left_over, spoilt));
}
