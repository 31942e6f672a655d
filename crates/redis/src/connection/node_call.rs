//! One call to one node, and the outcome's evidence about the node.
//!
//! [`Node::run`] fails without a call if the node's circuit breaker is open, if no slot for a call in flight becomes
//! free in time, or outside a runtime. It gives up at the deadline. Before a call gets here, `Redis::call_by` gives up
//! if the deadline has passed already, and `SharedTask` while the nodes are being looked up.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use ::redis::{ServerErrorKind, Value};
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};
use tower_sluice::internal::remote::{CallFailure, Evidence, Watch};
use tower_sluice::store::remote::{CallLimits, GaveUp};

use super::command::command;
use super::connections::ConnectionHandle;
use super::fault::RedisFault as _;
use super::fault::{Fault, FaultKind};
use super::node::Node;
use crate::script::ScriptCall;

/// A node's reply to a call.
#[derive(Debug)]
pub(super) enum NodeReply {
    Value(Value),
    /// The slot is at another node, at `HOST:PORT`.
    Moved(String),
    /// Another node, at `HOST:PORT`, must be asked for this one call.
    Ask(String),
    /// The keys are being moved to another node.
    TryAgain,
}

impl Node {
    /// Runs the script, once at the most; after `ASKING`, if the node was named by an `ASK` redirection.
    pub(super) async fn run(
        self: &Arc<Self>,
        call: &ScriptCall,
        asking: bool,
        limits: CallLimits,
    ) -> Result<NodeReply, Fault> {
        let deadline = limits.deadline;
        let runtime = Handle::try_current().map_err(|_| FaultKind::NoRuntime)?.id();
        let slots = Arc::clone(&self.connections.lock().for_runtime(runtime, &self.settings).slots);
        let watch = self.gate.enter(slots, limits).await.map_err(|reason| match reason {
            GaveUp::BreakerOpen => Fault::new(FaultKind::BreakerOpen, self.address().clone()),
            reason => reason.into(),
        })?;
        let due = watch.began + self.settings.timeout;
        let handle = self.connections.lock().take_handle();
        let mut node_call = NodeCall { node: self, watch: Some(watch), due, deadline, handle, answer: None };
        let answer = async {
            let mut reply = Value::Nil;
            // A server that does not have the script has run nothing, and gets the whole source.
            for (name, script) in [("EVALSHA", call.script.hash()), ("EVAL", call.script.source)] {
                let handle = match node_call.handle.take() {
                    Some(handle) => handle,
                    None => self.connect(deadline).await?,
                };
                let answer = node_call.answer.insert(Box::pin(handle.send(command(name, script, call), asking)));
                let (handle, value) = timeout_at(deadline, answer).await.map_err(|_| FaultKind::TimedOut)?;
                node_call.handle = Some(handle);
                node_call.answer = None;
                reply = value?;
                let is_cached =
                    !matches!(&reply, Value::ServerError(error) if error.kind() == Some(ServerErrorKind::NoScript));
                if is_cached {
                    break;
                }
            }
            let Value::ServerError(error) = reply else { return Ok(NodeReply::Value(reply)) };
            // `SLOT HOST:PORT`
            let elsewhere = error.details().and_then(|rest| rest.split(' ').nth(1)).map(str::to_owned);
            match (error.kind(), elsewhere) {
                (Some(ServerErrorKind::Moved), Some(address)) => Ok(NodeReply::Moved(address)),
                (Some(ServerErrorKind::Ask), Some(address)) => Ok(NodeReply::Ask(address)),
                (Some(ServerErrorKind::TryAgain), _) => Ok(NodeReply::TryAgain),
                _ => Err(Fault::answered_to_script(&error, call.script.source)),
            }
        }
        .await;
        let fault = answer.as_ref().err();
        // Otherwise, `drop` continues to watch for the answer.
        if fault.is_none_or(|fault| fault.kind() != FaultKind::TimedOut || node_call.is_fair(Instant::now())) {
            let is_sent = node_call.handle.is_some() || node_call.answer.is_some();
            if let Some(watch) = node_call.watch.take() {
                record(self, watch, fault, is_sent, node_call.handle.take());
            }
        }
        answer
    }
}

type ReplyFuture = Pin<Box<dyn Future<Output = (ConnectionHandle, Result<Value, Fault>)> + Send>>;

/// A call in flight. It ends in one of three ways: with its outcome; at its decision's deadline; or dropped, because
/// its caller was cancelled. In the last two cases, the call may end before the node's timeout. Then the answer is
/// awaited in the background. So, with any deadlines, a node that does not answer opens its circuit breaker, and a node
/// that answers does not.
struct NodeCall<'a> {
    node: &'a Arc<Node>,
    /// Taken when the outcome is recorded, or when [`await_answer`] takes over.
    watch: Option<Watch>,
    /// When the node has had the whole timeout.
    due: Instant,
    deadline: Instant,
    handle: Option<ConnectionHandle>,
    answer: Option<ReplyFuture>,
}

impl NodeCall<'_> {
    /// Whether a timeout is the node's failure: it has had its time to answer, and this process was not too busy to
    /// read the answer.
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
        // The watch goes to the runtime that drops the call.
        let Ok(runtime) = Handle::try_current() else { return };
        let watches = Arc::clone(&self.node.connections.lock().for_runtime(runtime.id(), &self.node.settings).watches);
        let Ok(watch_slot) = watches.try_acquire_owned() else { return };
        // If the call is due already, this process was busy. An eighth of the timeout, 6 ms of 50, is enough to read an
        // answer that has arrived.
        let until = self.due.max(Instant::now() + self.node.settings.timeout / 8);
        let node = Arc::clone(self.node);
        let answer = self.answer.take();
        runtime.spawn(async move {
            await_answer(&node, watch, until, answer).await;
            drop(watch_slot);
        });
    }
}

/// Awaits the answer to a call whose caller was cancelled, or gave up at its deadline before the node had the whole
/// timeout. If the call was not sent yet, awaits the connection.
async fn await_answer(node: &Arc<Node>, watch: Watch, until: Instant, answer: Option<ReplyFuture>) {
    let is_sent = answer.is_some();
    let (handle, outcome) = match answer {
        Some(answer) => match timeout_at(until, answer).await {
            Ok((handle, Ok(Value::ServerError(error)))) => (Some(handle), Err(Fault::answered(&error))),
            Ok((handle, outcome)) => (Some(handle), outcome.map(drop)),
            Err(_) => (None, Err(FaultKind::TimedOut.into())),
        },
        // The call was still connecting, which continues without it.
        None => (None, node.connect(until).await.map(drop)),
    };
    record(node, watch, outcome.as_ref().err(), is_sent, handle);
}

/// Records a call's outcome, and keeps its handle for the next.
fn record(node: &Node, watch: Watch, fault: Option<&Fault>, is_sent: bool, handle: Option<ConnectionHandle>) {
    let failed = |fault| {
        let failure = if Fault::is_silence(fault) { CallFailure::Silent } else { CallFailure::Answered };
        Evidence::Failed(failure, fault)
    };
    watch.end(match fault {
        // The script was not sent, so the fault is the node's, such as a login that it does not accept; unless this
        // process stopped the attempt. A connection alone is weak evidence.
        Some(fault) if !is_sent && fault.kind() != FaultKind::Cancelled => failed(fault),
        _ if !is_sent => Evidence::Unknown,
        Some(fault) if fault.blames_server() => failed(fault),
        _ => Evidence::Healthy,
    });
    let is_spoilt = fault.is_some_and(Fault::spoils_connection) && node.gate.is_failing();
    let mut connections = node.connections.lock();
    let spoilt = if is_spoilt { connections.remove_all() } else { Vec::new() };
    let left_over = handle.and_then(|handle| connections.put_handle(handle));
    drop(connections);
    // Outside the lock, as `put_handle` and `remove_all` require.
    drop((left_over, spoilt));
}
