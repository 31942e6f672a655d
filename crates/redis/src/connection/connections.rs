//! One node's connections: one for each runtime that calls it.
//!
//! A connection is driven by a task on the runtime that made it. If runtimes shared a connection, a runtime that is
//! blocked, or that is not driven, would delay all the others' calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ::redis::aio::{AsyncPushSender, MultiplexedConnection, SendError};
use ::redis::{Cmd, Pipeline, PushInfo, Value};
use tokio::runtime::{Handle, Id};
use tokio::sync::Semaphore;

use super::fault::Fault;
use super::fault::RedisFault as _;
use super::settings::NodeSettings;
use super::shared_task::SharedTask;

/// A node's connections, by runtime.
#[derive(Default)]
pub(super) struct Connections {
    runtimes: Vec<RuntimeState>,
    /// How many connections were made.
    made: u64,
}

/// One runtime's connection and permits for a node. Calls hold the permits, so runtimes do not share them: a blocked
/// runtime could hold them all.
pub(super) struct RuntimeState {
    runtime: Id,
    /// A connection that has ended stays until it is replaced.
    live: Option<OpenConnection>,
    pub(super) connecting: Arc<SharedTask>,
    /// One permit for each call that may be in flight.
    pub(super) slots: Arc<Semaphore>,
    /// One permit for each abandoned call that is watched for the circuit breaker.
    pub(super) watches: Arc<Semaphore>,
}

/// One runtime's connection.
pub(super) struct OpenConnection {
    connection: MultiplexedConnection,
    alive: Arc<AtomicBool>,
    /// Handles that are not in use. Making and dropping a handle contends for several counters that all calls share,
    /// but we take the node's lock anyway.
    idle: Vec<MultiplexedConnection>,
    number: u64,
}

/// A handle to a connection, and the connection's number.
pub(super) struct ConnectionHandle {
    connection: MultiplexedConnection,
    number: u64,
    runtime: Id,
}

/// The maximum number of abandoned calls from one runtime to one node that are watched at a time. The breaker opens
/// after fewer failures, so more would add no evidence.
const WATCHED: usize = 64;

impl Connections {
    /// Whether any runtime is connected.
    pub(super) fn is_alive(&self) -> bool {
        self.runtimes.iter().any(RuntimeState::is_alive)
    }

    /// Whether this runtime is connected.
    pub(super) fn has_live(&self, runtime: Id) -> bool {
        self.runtimes.iter().any(|it| it.runtime == runtime && it.is_alive())
    }

    /// Returns this runtime's part of the node: at first only its permits.
    pub(super) fn for_runtime(&mut self, runtime: Id, settings: &NodeSettings) -> &mut RuntimeState {
        let index = self.runtimes.iter().position(|it| it.runtime == runtime).unwrap_or_else(|| {
            // Runtimes that are gone have no live connection and no call in flight. An idle runtime without a live
            // connection is removed as well: its next call adds it again, and at worst connects twice. The connections
            // that are removed here have ended, so dropping them within the lock stops no task.
            self.runtimes.retain(|it| it.is_alive() || it.is_busy());
            self.runtimes.push(RuntimeState::new(runtime, settings));
            self.runtimes.len() - 1
        });
        &mut self.runtimes[index]
    }

    /// Keeps a runtime's new connection. If it has ended already, `alive` is false. Returns the connection that it
    /// replaces, which the caller drops outside the lock.
    pub(super) fn add(
        &mut self,
        runtime: Id,
        connection: MultiplexedConnection,
        alive: Arc<AtomicBool>,
        settings: &NodeSettings,
    ) -> Option<OpenConnection> {
        self.made += 1;
        let live = OpenConnection { connection, alive, idle: Vec::new(), number: self.made };
        self.for_runtime(runtime, settings).live.replace(live)
    }

    /// Returns a handle to the current runtime's connection, if there is one.
    pub(super) fn take_handle(&mut self) -> Option<ConnectionHandle> {
        let runtime = Handle::try_current().ok()?.id();
        let runtime_state = self.runtimes.iter_mut().find(|it| it.runtime == runtime)?;
        let live = runtime_state.live.as_mut().filter(|live| live.is_alive())?;
        let connection = live.idle.pop().unwrap_or_else(|| live.connection.clone());
        Some(ConnectionHandle { connection, number: live.number, runtime })
    }

    /// Keeps a handle for the next call. If its connection was replaced, returns the handle, which the caller drops
    /// outside the lock.
    pub(super) fn put_handle(&mut self, handle: ConnectionHandle) -> Option<ConnectionHandle> {
        let runtime_state = self.runtimes.iter_mut().find(|it| it.runtime == handle.runtime);
        match runtime_state.and_then(|it| it.live.as_mut()) {
            Some(live) if live.number == handle.number => {
                live.idle.push(handle.connection);
                None
            }
            _ => Some(handle),
        }
    }

    /// Removes all connections, so that each runtime's next call makes a new one. The caller drops them outside the
    /// lock, because a connection's last handle stops the task that drives it.
    pub(super) fn remove_all(&mut self) -> Vec<OpenConnection> {
        self.runtimes.iter_mut().filter_map(|it| it.live.take()).collect()
    }
}

impl RuntimeState {
    fn new(runtime: Id, settings: &NodeSettings) -> Self {
        Self {
            runtime,
            live: None,
            connecting: Arc::default(),
            slots: Arc::new(Semaphore::new(settings.max_in_flight.min(Semaphore::MAX_PERMITS))),
            watches: Arc::new(Semaphore::new(WATCHED)),
        }
    }

    /// Whether a call or a task holds one of the three `Arc`s.
    fn is_busy(&self) -> bool {
        Arc::strong_count(&self.connecting) > 1
            || Arc::strong_count(&self.slots) > 1
            || Arc::strong_count(&self.watches) > 1
    }

    fn is_alive(&self) -> bool {
        self.live.as_ref().is_some_and(OpenConnection::is_alive)
    }
}

impl OpenConnection {
    fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Acquire)
    }
}

impl ConnectionHandle {
    /// Sends a command, and returns the handle with the answer: after `ASKING`, if the node was named by an `ASK`
    /// redirection. Without `ASKING`, a node executes no command for a slot that is on its way to it.
    pub(super) async fn send(mut self, command: Cmd, asking: bool) -> (Self, Result<Value, Fault>) {
        let answer = if asking {
            let mut both = Pipeline::with_capacity(2);
            both.cmd("ASKING").add_command(command);
            let answers = self.connection.send_packed_commands(&both, 0, 2).await;
            // If `ASKING` is rejected, so is the command, for the same reason.
            let decisive = |asking, answer| if let Value::ServerError(_) = asking { asking } else { answer };
            answers.map(|answers| answers.into_iter().reduce(decisive).unwrap_or_default())
        } else {
            self.connection.send_packed_command(&command).await
        };
        (self, answer.map_err(|error| Fault::underway(&error)))
    }
}

/// Clears its flag when a connection ends. The `redis` crate then sends it a message or drops it, even when the runtime
/// that drives the connection ends.
pub(super) struct EndOfConnection(pub(super) Arc<AtomicBool>);

impl AsyncPushSender for EndOfConnection {
    fn send(&self, push: PushInfo) -> Result<(), SendError> {
        if push.kind == ::redis::PushKind::Disconnection {
            self.0.store(false, Ordering::Release);
        }
        Ok(())
    }
}

impl Drop for EndOfConnection {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
