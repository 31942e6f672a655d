//! One Redis server: its connections, its circuit breaker, and the calls to it.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::redis::aio::{AsyncPushSender, MultiplexedConnection, SendError};
use ::redis::{AsyncConnectionConfig, Client, Cmd, ConnectionInfo, Pipeline, PushInfo, ServerErrorKind, Value};
use tokio::runtime::{Handle, Id};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};

use super::circuit_breaker::{BreakerState, CallPermit, CircuitBreaker};
use super::command;
use super::eviction_check;
use super::fault::{Fault, Reason};
use super::node_call::{Evidence, NodeCall};
use super::shared_task::{SharedTask, Work};
use crate::store::redis::evalsha::Call;
use crate::util::log;

/// The settings of all nodes.
#[derive(Debug)]
pub(super) struct Settings {
    /// For a call, all in all.
    pub(super) timeout: Duration,
    /// For a connection, which may be made in the background.
    pub(super) connect_timeout: Duration,
    /// The most calls of one runtime to one node.
    pub(super) max_in_flight: usize,
    /// Whether the eviction settings of some server were checked.
    pub(super) eviction_checked: AtomicBool,
}

/// One server, with a connection for each runtime that calls it.
///
/// A connection is driven by a task of the runtime that made it. If runtimes shared one, a runtime that is blocked, or
/// that is not driven, would delay the calls of all the others.
pub(super) struct Node {
    address: Arc<str>,
    server: ConnectionInfo,
    client: Client,
    pub(super) settings: Arc<Settings>,
    state: Mutex<State>,
}

pub(super) struct State {
    pub(super) breaker: CircuitBreaker,
    pub(super) in_flight: usize,
    runtimes: Vec<RuntimeState>,
    /// How many connections were made.
    connections: u64,
}

/// What a runtime has of a node. Nothing that a call holds is shared between runtimes, since a blocked runtime could
/// hold all of it.
pub(super) struct RuntimeState {
    runtime: Id,
    live: Option<OpenConnection>,
    connecting: Arc<SharedTask>,
    /// One permit for each call that may be in flight.
    pub(super) slots: Arc<Semaphore>,
    /// One permit for each abandoned call that is watched for the circuit breaker.
    pub(super) watches: Arc<Semaphore>,
}

/// A connection of one runtime.
struct OpenConnection {
    connection: MultiplexedConnection,
    alive: Arc<AtomicBool>,
    /// Handles that are not in use. To make one, and to drop it, contends for several counters that all calls share;
    /// the lock of the node is taken anyway.
    idle: Vec<MultiplexedConnection>,
    number: u64,
}

/// A handle to a connection, and the number of that connection.
pub(super) struct ConnectionHandle {
    connection: MultiplexedConnection,
    number: u64,
    runtime: Id,
}

/// The reply of a node to a call.
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

/// The most abandoned calls of a node that are watched at a time. More of them would add no evidence.
const WATCHED: usize = 64;

impl Node {
    pub(super) fn new(server: ConnectionInfo, settings: Arc<Settings>) -> Result<Arc<Self>, Fault> {
        let address = server.addr().to_string().into();
        let client =
            Client::open(server.clone()).map_err(|error| Fault::new(Reason::Misconfigured, error.to_string()))?;
        let state = State {
            breaker: CircuitBreaker::new(Instant::now(), settings.timeout),
            in_flight: 0,
            runtimes: Vec::new(),
            connections: 0,
        };
        Ok(Arc::new(Self { address, server, client, settings, state: Mutex::new(state) }))
    }

    pub(super) fn address(&self) -> &Arc<str> {
        &self.address
    }

    pub(super) const fn server(&self) -> &ConnectionInfo {
        &self.server
    }

    /// Runs the script, once at the most.
    pub(super) async fn run(
        self: &Arc<Self>,
        call: &Call,
        asking: bool,
        limits: CallLimits,
    ) -> Result<NodeReply, Fault> {
        let mut node_call = NodeCall::enter(self, limits).await?;
        let answer = self.run_on(&mut node_call, call, asking, limits.deadline).await;
        node_call.end(answer.as_ref().err());
        answer
    }

    async fn run_on(
        self: &Arc<Self>,
        node_call: &mut NodeCall<'_>,
        call: &Call,
        asking: bool,
        deadline: Instant,
    ) -> Result<NodeReply, Fault> {
        if node_call.handle.is_none() {
            node_call.handle = Some(self.connect(deadline).await?);
        }
        let mut value = node_call.send(command::by_hash(call), asking, deadline).await?;
        if matches!(&value, Value::ServerError(error) if error.kind() == Some(ServerErrorKind::NoScript)) {
            value = node_call.send(command::in_full(call), asking, deadline).await?;
        }
        let Value::ServerError(error) = value else {
            return Ok(NodeReply::Value(value));
        };
        // `SLOT HOST:PORT`
        let elsewhere = || error.details().and_then(|rest| rest.split(' ').nth(1)).map(str::to_owned);
        match (error.kind(), elsewhere()) {
            (Some(ServerErrorKind::Moved), Some(address)) => Ok(NodeReply::Moved(address)),
            (Some(ServerErrorKind::Ask), Some(address)) => Ok(NodeReply::Ask(address)),
            (Some(ServerErrorKind::TryAgain), _) => Ok(NodeReply::TryAgain),
            _ => Err(Fault::answered(&error)),
        }
    }

    /// Sends a command that belongs to no call. The circuit breaker neither prevents nor counts it.
    pub(super) async fn ask(self: &Arc<Self>, question: Cmd, deadline: Instant) -> Result<Value, Fault> {
        let live = self.lock().take_handle();
        let handle = match live {
            Some(handle) => handle,
            None => self.connect(deadline).await?,
        };
        match timeout_at(deadline, send(handle, question, false)).await.map_err(|_| Reason::TimedOut)?.1? {
            Value::ServerError(error) => Err(Fault::answered(&error)),
            value => Ok(value),
        }
    }

    /// Makes the next call open a new connection.
    pub(super) fn forget_connection(&self) {
        let forgotten = self.lock().take_connections();
        drop(forgotten);
    }

    pub(super) fn health(&self) -> NodeHealth {
        let mut state = self.lock();
        NodeHealth {
            address: self.address.clone(),
            breaker: state.breaker.state(),
            in_flight: state.in_flight,
            connected: state.is_alive(),
        }
    }

    /// Whether it is likely to answer.
    pub(super) fn is_healthy(&self) -> bool {
        let mut state = self.lock();
        state.breaker.state() == BreakerState::Closed && state.is_alive()
    }

    pub(super) async fn connect(self: &Arc<Self>, deadline: Instant) -> Result<ConnectionHandle, Fault> {
        let runtime = Handle::try_current().map_err(|_| Reason::NoRuntime)?.id();
        let connecting = Arc::clone(&self.lock().state_of(runtime, &self.settings).connecting);
        let work = || {
            let node = self.clone();
            Ok(Box::pin(node.make_connection(runtime)) as Work)
        };
        connecting.run(deadline, work).await?;
        self.lock().take_handle().ok_or_else(|| Reason::Disconnected.into())
    }

    async fn make_connection(self: Arc<Self>, runtime: Id) -> Result<(), Fault> {
        let alive = Arc::new(AtomicBool::new(true));
        // No timeouts of the `redis` crate: deadlines are ours.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_push_sender(EndOfConnection(alive.clone()));
        let made =
            timeout(self.settings.connect_timeout, self.client.get_multiplexed_async_connection_with_config(&config));
        let connection = match made.await {
            Err(_) => return Err(Fault::new(Reason::TimedOut, format!("connecting to {}", self.address))),
            Ok(Err(error)) => return Err(Fault::connecting(&error)),
            Ok(Ok(connection)) => connection,
        };
        {
            let (connection, now) = (connection.clone(), Instant::now());
            let mut state = self.lock();
            state.connections += 1;
            let number = state.connections;
            // If the connection has ended already, `alive` says so, and the next look removes it.
            state.state_of(runtime, &self.settings).live =
                Some(OpenConnection { connection, alive, idle: Vec::new(), number });
            state.breaker.connected(now);
        }
        if !self.settings.eviction_checked.swap(true, Ordering::Relaxed) {
            tokio::spawn(eviction_check::warn_if_keys_may_be_evicted(connection, self.settings.connect_timeout));
        }
        Ok(())
    }

    /// Records the outcome of a call.
    pub(super) fn record(
        &self,
        mut state: MutexGuard<'_, State>,
        permit: &CallPermit,
        evidence: Evidence<'_>,
        handle: Option<ConnectionHandle>,
    ) {
        let (mut opened, mut closed, mut spoilt) = (None, false, Vec::new());
        match evidence {
            Evidence::Failed(fault) => {
                opened = state.breaker.failed(permit, Instant::now()).then_some(fault);
                let is_failing = state.breaker.is_failing();
                if is_failing && fault.spoils_connection() {
                    spoilt = state.take_connections();
                }
            }
            Evidence::Answered => closed = state.breaker.succeeded(permit),
            Evidence::Unknown => state.breaker.abandoned(permit, Instant::now()),
        }
        let left_over = handle.and_then(|handle| state.put_handle(handle));
        drop(state);
        // After the lock is released: the last handle of a connection runs code of the `redis` crate when it is
        // dropped.
        drop((left_over, spoilt));
        if let Some(fault) = opened {
            log::redis_breaker_opened(&self.address, fault);
        }
        if closed {
            log::redis_breaker_closed(&self.address);
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.health().fmt(f)
    }
}

impl State {
    /// Whether any runtime is connected.
    fn is_alive(&mut self) -> bool {
        self.runtimes.iter_mut().any(RuntimeState::is_alive)
    }

    pub(super) fn state_of(&mut self, runtime: Id, settings: &Settings) -> &mut RuntimeState {
        let index = self.runtimes.iter().position(|it| it.runtime == runtime).unwrap_or_else(|| {
            // Runtimes that are gone have no connection that is alive and no call in flight.
            self.runtimes.retain_mut(|it| it.is_alive() || it.is_busy());
            let slots = Arc::new(Semaphore::new(settings.max_in_flight.min(Semaphore::MAX_PERMITS)));
            let (connecting, watches) = (Arc::default(), Arc::new(Semaphore::new(WATCHED)));
            self.runtimes.push(RuntimeState { runtime, live: None, connecting, slots, watches });
            self.runtimes.len() - 1
        });
        &mut self.runtimes[index]
    }

    /// Returns a handle to the connection of this runtime, if there is one.
    pub(super) fn take_handle(&mut self) -> Option<ConnectionHandle> {
        let runtime = Handle::try_current().ok()?.id();
        let runtime_state = self.runtimes.iter_mut().find(|it| it.runtime == runtime)?;
        if !runtime_state.is_alive() {
            return None;
        }
        let live = runtime_state.live.as_mut()?;
        let connection = live.idle.pop().unwrap_or_else(|| live.connection.clone());
        Some(ConnectionHandle { connection, number: live.number, runtime })
    }

    /// Keeps a handle for the next call. Returns it if its connection was replaced, to be dropped outside of the lock.
    fn put_handle(&mut self, handle: ConnectionHandle) -> Option<ConnectionHandle> {
        let runtime_state = self.runtimes.iter_mut().find(|it| it.runtime == handle.runtime);
        match runtime_state.and_then(|it| it.live.as_mut()) {
            Some(live) if live.number == handle.number => {
                live.idle.push(handle.connection);
                None
            }
            _ => Some(handle),
        }
    }

    fn take_connections(&mut self) -> Vec<OpenConnection> {
        self.runtimes.iter_mut().filter_map(|it| it.live.take()).collect()
    }
}

impl RuntimeState {
    fn is_busy(&self) -> bool {
        Arc::strong_count(&self.connecting) + Arc::strong_count(&self.slots) + Arc::strong_count(&self.watches) > 3
    }

    fn is_alive(&mut self) -> bool {
        if self.live.as_ref().is_some_and(|live| !live.alive.load(Ordering::Acquire)) {
            self.live = None;
        }
        self.live.is_some()
    }
}

/// The deadline of a call, and how many requests it is for.
#[derive(Clone, Copy)]
pub(super) struct CallLimits {
    pub(super) deadline: Instant,
    pub(super) requests: u32,
}

/// Notices the end of a connection: it gets a message, or is dropped, also when the runtime that drives the connection
/// ends.
struct EndOfConnection(Arc<AtomicBool>);

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

/// Sends a command, and returns the handle with the answer.
pub(super) async fn send(
    mut handle: ConnectionHandle,
    command: Cmd,
    asking: bool,
) -> (ConnectionHandle, Result<Value, Fault>) {
    let connection = &mut handle.connection;
    let answer = if asking {
        let mut both = Pipeline::with_capacity(2);
        both.cmd("ASKING").add_command(command);
        let answers = connection.send_packed_commands(&both, 0, 2).await;
        answers.map(|mut answers| answers.pop().unwrap_or_default())
    } else {
        connection.send_packed_command(&command).await
    };
    (handle, answer.map_err(|error| Fault::underway(&error)))
}

/// The state of a node.
#[derive(Clone, Debug)]
pub struct NodeHealth {
    address: Arc<str>,
    breaker: BreakerState,
    in_flight: usize,
    connected: bool,
}

impl NodeHealth {
    /// Returns `HOST:PORT`, or a path.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the state of its circuit breaker.
    #[must_use]
    pub const fn breaker(&self) -> BreakerState {
        self.breaker
    }

    /// Returns how many calls are in flight.
    #[must_use]
    pub const fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Whether there is a connection, as far as is known here.
    #[must_use]
    pub const fn is_connected(&self) -> bool {
        self.connected
    }
}
