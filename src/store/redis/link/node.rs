use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ::redis::aio::{AsyncPushSender, MultiplexedConnection, SendError};
use ::redis::{AsyncConnectionConfig, Client, Cmd, ConnectionInfo, Pipeline, PushInfo, ServerErrorKind, Value};
use tokio::time::{Instant, timeout, timeout_at};

use super::alone::{Alone, Work};
use super::breaker::{Breaker, BreakerState, Leave};
use super::command;
use super::eviction;
use super::fault::{Fault, Reason};
use crate::store::redis::call::Call;
use crate::telemetry;

/// What holds for all nodes.
#[derive(Debug)]
pub(super) struct Terms {
    /// For a call, all in all.
    pub(super) timeout: Duration,
    /// For a connection, which may be made in the background.
    pub(super) connect_timeout: Duration,
    /// Calls to one node.
    pub(super) max_in_flight: usize,
    /// Whether somebody has looked for what may evict our keys.
    pub(super) looked: AtomicBool,
}

/// One server, with the one connection to it.
pub(super) struct Node {
    address: Arc<str>,
    server: ConnectionInfo,
    client: Client,
    terms: Arc<Terms>,
    connecting: Alone,
    state: Mutex<State>,
}

struct State {
    breaker: Breaker,
    in_flight: usize,
    live: Option<Live>,
    /// How many connections there have been.
    connections: u64,
}

struct Live {
    connection: MultiplexedConnection,
    alive: Arc<AtomicBool>,
    /// Handles to it that nobody uses at the moment. To make one, and to drop it, takes turns at several counters
    /// that all calls share; this lock is taken anyway.
    idle: Vec<MultiplexedConnection>,
    number: u64,
}

/// A handle to a connection, and which connection that is.
struct Borrowed {
    connection: MultiplexedConnection,
    number: u64,
}

/// What a node made of a call.
#[derive(Debug)]
pub(super) enum Answer {
    Value(Value),
    /// The slot is another's: that of `HOST:PORT`.
    Moved(String),
    /// This once, another is to be asked.
    Ask(String),
    /// The keys are on their way to another node.
    TryAgain,
}

impl Node {
    pub(super) fn new(server: ConnectionInfo, terms: Arc<Terms>) -> Result<Arc<Self>, Fault> {
        let address = server.addr().to_string().into();
        let client =
            Client::open(server.clone()).map_err(|error| Fault::new(Reason::Misconfigured, error.to_string()))?;
        let state = State { breaker: Breaker::new(Instant::now()), in_flight: 0, live: None, connections: 0 };
        Ok(Arc::new(Self { address, server, client, terms, connecting: Alone::default(), state: Mutex::new(state) }))
    }

    pub(super) fn address(&self) -> &Arc<str> {
        &self.address
    }

    pub(super) const fn server(&self) -> &ConnectionInfo {
        &self.server
    }

    /// Runs the script, once at the most.
    pub(super) async fn run(self: &Arc<Self>, call: &Call, asking: bool, times: Times) -> Result<Answer, Fault> {
        let mut turn = self.enter(times.start)?;
        let answer = self.run_in_turn(&mut turn, call, asking, times.deadline).await;
        turn.end(answer.as_ref().err());
        answer
    }

    async fn run_in_turn(
        self: &Arc<Self>,
        turn: &mut Turn<'_>,
        call: &Call,
        asking: bool,
        deadline: Instant,
    ) -> Result<Answer, Fault> {
        let borrowed = match &mut turn.borrowed {
            Some(borrowed) => borrowed,
            none => none.insert(self.connect(deadline).await?),
        };
        let connection = &mut borrowed.connection;
        let mut value = send(connection, command::by_hash(call), asking, deadline).await?;
        if matches!(&value, Value::ServerError(error) if error.kind() == Some(ServerErrorKind::NoScript)) {
            value = send(connection, command::in_full(call), asking, deadline).await?;
        }
        let Value::ServerError(error) = value else {
            return Ok(Answer::Value(value));
        };
        // `SLOT HOST:PORT`
        let elsewhere = || error.details().and_then(|rest| rest.split(' ').nth(1)).map(str::to_owned);
        match (error.kind(), elsewhere()) {
            (Some(ServerErrorKind::Moved), Some(address)) => Ok(Answer::Moved(address)),
            (Some(ServerErrorKind::Ask), Some(address)) => Ok(Answer::Ask(address)),
            (Some(ServerErrorKind::TryAgain), _) => Ok(Answer::TryAgain),
            _ => Err(Fault::answered(&error)),
        }
    }

    /// Asks for something that has nothing to do with any call. The breaker has no say in it.
    pub(super) async fn ask(self: &Arc<Self>, question: Cmd, deadline: Instant) -> Result<Value, Fault> {
        let live = self.lock().borrow();
        let mut borrowed = match live {
            Some(borrowed) => borrowed,
            None => self.connect(deadline).await?,
        };
        match send(&mut borrowed.connection, question, false, deadline).await? {
            Value::ServerError(error) => Err(Fault::answered(&error)),
            value => Ok(value),
        }
    }

    /// Makes the next call connect anew.
    pub(super) fn forget_connection(&self) {
        let forgotten = self.lock().live.take();
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

    fn enter(&self, now: Instant) -> Result<Turn<'_>, Fault> {
        let mut state = self.lock();
        if state.in_flight >= self.terms.max_in_flight {
            return Err(Reason::TooManyInFlight.into());
        }
        let Some(leave) = state.breaker.enter(now) else {
            return Err(Fault::new(Reason::BreakerOpen, self.address.clone()));
        };
        state.in_flight += 1;
        Ok(Turn { node: self, leave: Some(leave), borrowed: state.borrow() })
    }

    async fn connect(self: &Arc<Self>, deadline: Instant) -> Result<Borrowed, Fault> {
        let work = || {
            let node = self.clone();
            Ok(Box::pin(node.make_connection()) as Work)
        };
        self.connecting.done(deadline, work).await?;
        self.lock().borrow().ok_or_else(|| Reason::Disconnected.into())
    }

    async fn make_connection(self: Arc<Self>) -> Result<(), Fault> {
        let alive = Arc::new(AtomicBool::new(true));
        // Deadlines are ours.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_push_sender(EndOfConnection(alive.clone()));
        let made =
            timeout(self.terms.connect_timeout, self.client.get_multiplexed_async_connection_with_config(&config));
        let connection = match made.await {
            Err(_) => return Err(Fault::new(Reason::TimedOut, format!("connecting to {}", self.address))),
            Ok(Err(error)) => return Err(Fault::connecting(&error)),
            Ok(Ok(connection)) => connection,
        };
        {
            let (connection, now) = (connection.clone(), Instant::now());
            let mut state = self.lock();
            state.connections += 1;
            state.live = Some(Live { connection, alive, idle: Vec::new(), number: state.connections });
            state.breaker.connected(now);
        }
        if !self.terms.looked.swap(true, Ordering::Relaxed) {
            tokio::spawn(eviction::look(connection, self.terms.connect_timeout));
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.health().fmt(f)
    }
}

impl State {
    fn is_alive(&mut self) -> bool {
        if self.live.as_ref().is_some_and(|live| !live.alive.load(Ordering::Acquire)) {
            self.live = None;
        }
        self.live.is_some()
    }

    fn borrow(&mut self) -> Option<Borrowed> {
        if !self.is_alive() {
            return None;
        }
        let live = self.live.as_mut()?;
        let connection = live.idle.pop().unwrap_or_else(|| live.connection.clone());
        Some(Borrowed { connection, number: live.number })
    }

    /// Returns what is left over: it is better dropped without the lock.
    fn give_back(&mut self, borrowed: Option<Borrowed>) -> Option<Borrowed> {
        match (&mut self.live, borrowed) {
            (Some(live), Some(borrowed)) if live.number == borrowed.number => {
                live.idle.push(borrowed.connection);
                None
            }
            (_, borrowed) => borrowed,
        }
    }
}

/// When a call began, and when it ends.
#[derive(Clone, Copy)]
pub(super) struct Times {
    pub(super) start: Instant,
    pub(super) deadline: Instant,
}

/// A call under way.
struct Turn<'a> {
    node: &'a Node,
    leave: Option<Leave>,
    borrowed: Option<Borrowed>,
}

impl Turn<'_> {
    fn end(mut self, fault: Option<&Fault>) {
        let Some(leave) = self.leave.take() else {
            return;
        };
        let (mut opened, mut closed) = (None, false);
        let mut state = self.node.lock();
        state.in_flight -= 1;
        match fault {
            Some(fault) if fault.counts() => {
                opened = state.breaker.failed(&leave, Instant::now()).then_some(fault);
                let barred = state.breaker.state() != BreakerState::Closed;
                if barred && fault.spoils_connection() {
                    state.live = None;
                }
            }
            _ => closed = state.breaker.succeeded(&leave),
        }
        let left_over = state.give_back(self.borrowed.take());
        drop(state);
        drop(left_over);
        if let Some(fault) = opened {
            telemetry::redis_node_given_up(&self.node.address, fault);
        }
        if closed {
            telemetry::redis_node_back(&self.node.address);
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(leave) = &self.leave {
            let mut state = self.node.lock();
            state.in_flight -= 1;
            state.breaker.abandoned(leave, Instant::now());
        }
    }
}

/// Is told, or dropped, when the connection ends, in whichever way; also when the runtime that drives it ends.
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

async fn send(
    connection: &mut MultiplexedConnection,
    command: Cmd,
    asking: bool,
    deadline: Instant,
) -> Result<Value, Fault> {
    let answer = if asking {
        let mut both = Pipeline::with_capacity(2);
        both.cmd("ASKING").add_command(command);
        let answers = timeout_at(deadline, connection.send_packed_commands(&both, 0, 2)).await;
        answers.map(|answers| answers.map(|mut answers| answers.pop().unwrap_or_default()))
    } else {
        timeout_at(deadline, connection.send_packed_command(&command)).await
    };
    match answer {
        Err(_) => Err(Reason::TimedOut.into()),
        Ok(Err(error)) => Err(Fault::underway(&error)),
        Ok(Ok(value)) => Ok(value),
    }
}

/// How a node is doing.
#[derive(Clone, Debug)]
pub struct NodeHealth {
    address: Arc<str>,
    breaker: BreakerState,
    in_flight: usize,
    connected: bool,
}

impl NodeHealth {
    /// `HOST:PORT`, or a path.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Whether it is asked at all.
    #[must_use]
    pub const fn breaker(&self) -> BreakerState {
        self.breaker
    }

    /// How many calls are under way.
    #[must_use]
    pub const fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Whether there is a connection, as far as we know.
    #[must_use]
    pub const fn is_connected(&self) -> bool {
        self.connected
    }
}
