//! [`Sessions`]: the store's connections, made by a [pool](crate::Pool)'s settings.
//!
//! - There is never more than one connection beyond the pool's maximum.
//! - A connection is made in a separate task ([`connecting`]), which outlives the request that needed it first.
//! - The server itself ends a statement that takes too long (`statement_timeout`), so its connection is soon free
//!   again. If no answer comes in twice the timeout, we close the connection. If the other connections have been silent
//!   since the statement began, we close them, too.
//! - A connection has one statement at a time, and is used again only after its answer.

mod connecting;
#[cfg(all(test, feature = "deadpool"))]
mod simulation;

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout, timeout_at};
use tower_sluice::store::remote::Calls;

use crate::fault::{FaultKind, PostgresFault, before_the_statement};
use crate::pool::{Answer, Connect, Session, Value};
use crate::sql::Statement;

/// After a request has needed a connection, the store tries to make one for this long.
const WANTED: Duration = Duration::from_secs(30);

/// A store's connections.
#[derive(Clone)]
pub(crate) struct Sessions(Arc<Inner>);

struct Inner {
    pool: Arc<dyn Connect>,
    /// The maximum number of connections.
    size: usize,
    settings: Settings,
    state: Mutex<State>,
    /// Wakes the task that makes connections.
    wake: Notify,
    /// Calls whose circuit breakers are notified when a connection was made.
    calls: Mutex<Vec<Weak<Calls>>>,
}

/// How connections are used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// How long a decision may take.
    pub(crate) timeout: Duration,
    /// A pooler may carry out one connection's statements over several connections to the server. So the store prepares
    /// nothing, and changes no setting.
    pub(crate) is_behind_pooler: bool,
}

impl Settings {
    /// How long a statement may take on the server, and how long a request waits for a connection.
    fn patience(self) -> Duration {
        self.timeout / 4 * 3
    }
}

#[derive(Default)]
struct State {
    /// The last one is used next.
    idle: Vec<Connected>,
    /// How many connections exist, idle and in use.
    live: usize,
    waiters: VecDeque<Waiter>,
    /// Grows when connections are found dead. A connection of an earlier generation is closed when its statement ends.
    generation: u64,
    /// When the last answer came, over any connection.
    answered: Option<Instant>,
    is_connecting: bool,
    /// How long the last connection took to make.
    connecting_took: Duration,
    /// Until when connections are made although no request waits.
    wanted_until: Option<Instant>,
    /// Why the last attempt failed, and when the next one may begin.
    failed: Option<(PostgresFault, Instant)>,
}

type Waiter = oneshot::Sender<Result<Lent, PostgresFault>>;

/// A connection that is ready for a statement.
struct Connected {
    session: Box<dyn Session>,
    /// The server's name for the connection, if it is always the same.
    marker: String,
    generation: u64,
}

/// A connection in use. When dropped, it becomes idle again, unless its statement was cut off, in which case it is
/// closed.
struct Lent {
    inner: Arc<Inner>,
    connected: Option<Connected>,
    is_busy: bool,
}

impl Sessions {
    pub(crate) fn new(pool: Arc<dyn Connect>, settings: Settings) -> Self {
        let size = pool.max_connections().max(1);
        Self(Arc::new(Inner {
            pool,
            size,
            settings,
            state: Mutex::default(),
            wake: Notify::new(),
            calls: Mutex::default(),
        }))
    }

    /// Notifies the circuit breaker for these calls, while they exist, when a connection was made.
    pub(crate) fn tell(&self, calls: &Arc<Calls>) {
        let mut told = self.0.calls.lock().unwrap_or_else(PoisonError::into_inner);
        told.retain(|calls| calls.strong_count() > 0);
        told.push(Arc::downgrade(calls));
    }

    /// Returns connections over the same pool with other settings.
    pub(crate) fn with(&self, settings: Settings) -> Self {
        Self::new(Arc::clone(&self.0.pool), settings)
    }

    pub(crate) fn settings(&self) -> Settings {
        self.0.settings
    }

    /// Whether both have the same pool.
    pub(crate) fn is_same_pool(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0.pool, &other.0.pool)
    }

    /// Sends a statement. If the future is dropped, the statement continues, and `held` is dropped when it has ended.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        statement: &Statement,
        mut parameters: Vec<Value>,
        held: T,
    ) -> Answer {
        let mut lent = self.0.lend().await?;
        let text = Arc::clone(&statement.text);
        if let Some(first) = parameters.first_mut() {
            *first = Value::from(format!("{}{}", lent.marker(), statement.id));
        }
        let settings = self.0.settings;
        let statement = tokio::spawn(async move {
            let began = Instant::now();
            let query = lent.query(&text, &parameters, !settings.is_behind_pooler);
            let answer = timeout(settings.timeout.saturating_mul(2), query).await;
            match &answer {
                Ok(Err(fault)) if fault.kind().ends_this_connection() => lent.close(fault.kind().ends_connections()),
                Ok(_) => lent.inner.note_answer(began),
                Err(_) => {
                    let is_alone = lent.inner.lock().answered.is_some_and(|answered| began < answered);
                    lent.close(!is_alone);
                }
            }
            drop((lent, held));
            answer.unwrap_or_else(|_| Err(FaultKind::TimedOut.into()))
        });
        statement.await.unwrap_or_else(|_| Err(FaultKind::Cancelled.into()))
    }

    /// Executes a text over a connection of its own, without the settings.
    pub(crate) async fn execute(&self, text: &str, longest: Duration) -> Answer {
        let run = async {
            let mut session = self.0.pool.connect().await.map_err(before_the_statement)?;
            session.query(text, &[], false).await
        };
        timeout(longest, run).await.unwrap_or_else(|_| Err(FaultKind::TimedOut.into()))
    }
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sessions").field("pool", &self.0.pool).finish_non_exhaustive()
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a connection without a statement. Waits for three quarters of the timeout, so that the error says
    /// whether the connection or the answer was missing.
    async fn lend(self: &Arc<Self>) -> Result<Lent, PostgresFault> {
        let deadline = Instant::now() + self.settings.patience();
        loop {
            let (dead, wait) = self.take_idle();
            drop(dead);
            let told = match wait? {
                Wait::None(lent) => return Ok(lent),
                Wait::For(told) => told,
            };
            self.connect_if_needed();
            match timeout_at(deadline, told).await {
                Ok(Ok(lent)) => return lent,
                // The task that makes connections has ended with its runtime. The next one runs in this runtime.
                Ok(Err(_)) if Instant::now() < deadline => {}
                Ok(Err(_)) | Err(_) => return Err(self.missing()),
            }
        }
    }

    /// Takes an idle connection, or joins the requests that wait for one. Returns dead connections, to be dropped
    /// without the lock.
    fn take_idle(self: &Arc<Self>) -> (Vec<Connected>, Result<Wait, PostgresFault>) {
        let now = Instant::now();
        let mut dead = Vec::new();
        let mut state = self.lock();
        state.wanted_until = Some(now + WANTED);
        while let Some(connected) = state.idle.pop() {
            if !connected.session.is_closed() {
                return (
                    dead,
                    Ok(Wait::None(Lent { inner: Arc::clone(self), connected: Some(connected), is_busy: false })),
                );
            }
            state.live -= 1;
            dead.push(connected);
        }
        if let Some((fault, _)) = state.failed.as_ref().filter(|(_, retry_at)| state.live == 0 && now < *retry_at) {
            let fault = fault.clone();
            drop(state);
            self.connect_if_needed();
            return (dead, Err(fault));
        }
        let (sender, told) = oneshot::channel();
        state.waiters.push_back(sender);
        (dead, Ok(Wait::For(told)))
    }

    /// Notes an answer to a statement that began at `began`.
    fn note_answer(&self, began: Instant) {
        let now = Instant::now();
        self.lock().answered = Some(now);
        if now.saturating_duration_since(began) > self.settings.timeout {
            self.tell_breakers();
        }
    }

    /// Notifies the circuit breakers that the server has answered.
    fn tell_breakers(&self) {
        let calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner).clone();
        calls.iter().filter_map(Weak::upgrade).for_each(|calls| calls.heard_of_server());
    }

    /// Returns the reason why no connection came in time.
    fn missing(&self) -> PostgresFault {
        let state = self.lock();
        if state.live >= self.size {
            return PostgresFault::new(FaultKind::PoolExhausted, format!("it has {}", self.size));
        }
        match &state.failed {
            Some((fault, _)) => fault.clone(),
            None => PostgresFault::new(FaultKind::Unreachable, "no connection was made in time"),
        }
    }

    /// Gives a connection to the next request that waits, or lets it be idle.
    fn put(self: &Arc<Self>, mut connected: Connected) {
        loop {
            let waiter = {
                let mut state = self.lock();
                let is_dead = connected.generation != state.generation || connected.session.is_closed();
                if is_dead || state.live > self.size {
                    state.live -= 1;
                    drop(state);
                    drop(connected);
                    return self.connect_if_needed();
                }
                let Some(waiter) = state.waiters.pop_front() else { return state.idle.push(connected) };
                waiter
            };
            match waiter.send(Ok(Lent { inner: Arc::clone(self), connected: Some(connected), is_busy: false })) {
                Err(Ok(mut lent)) => match lent.connected.take() {
                    Some(back) => connected = back,
                    None => return,
                },
                _ => return,
            }
        }
    }

    /// Forgets a connection that was closed. Closes all idle ones, too, if they are probably dead as well.
    fn forget(self: &Arc<Self>, are_all_suspect: bool) {
        let mut state = self.lock();
        state.live -= 1;
        let mut dead = Vec::new();
        if are_all_suspect {
            state.generation += 1;
            dead = std::mem::take(&mut state.idle);
            state.live -= dead.len();
        }
        drop(state);
        drop(dead);
        self.connect_if_needed();
    }
}

enum Wait {
    None(Lent),
    For(oneshot::Receiver<Result<Lent, PostgresFault>>),
}

impl Lent {
    fn marker(&self) -> &str {
        self.connected.as_ref().map_or("", |connected| &connected.marker)
    }

    async fn query(&mut self, text: &str, parameters: &[Value], is_prepared: bool) -> Answer {
        let connected = self.connected.as_mut().ok_or(FaultKind::ConnectionLost)?;
        self.is_busy = true;
        let answer = connected.session.query(text, parameters, is_prepared).await;
        self.is_busy = false;
        answer
    }

    /// Closes the connection, although its statement may continue.
    fn close(&mut self, are_all_suspect: bool) {
        if let Some(connected) = self.connected.take() {
            // `forget` increments the generation once, even if many of its connections die together.
            let is_news = are_all_suspect && self.inner.lock().generation == connected.generation;
            connected.session.abandon(!self.inner.settings.is_behind_pooler);
            self.inner.forget(is_news);
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if self.is_busy {
            return self.close(false);
        }
        if let Some(connected) = self.connected.take() {
            self.inner.put(connected);
        }
    }
}
