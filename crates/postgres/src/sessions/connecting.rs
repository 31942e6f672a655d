//! The task that makes connections while requests need them.
//!
//! An attempt has a minute, which is PostgreSQL's own limit (`authentication_timeout`), and continues after its request
//! has given up. So the store can use a server that connects more slowly than requests wait.
//!
//! If the network has lost an attempt's bytes, the attempt stays silent. So while the store has no connection, and all
//! attempts have been silent for half a second and for twice the time that the last connection took, it makes one more
//! attempt, the probe. A silent probe is replaced by the next one, so a probe connects soon after the network is back.
//! When an attempt connects, we give up the attempts that began well before it.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};

use super::{Connected, Inner};
use crate::fault::{FaultKind, PostgresFault, before_the_statement};
use crate::pool::{Session, Value};
use crate::sql;

/// How long an attempt may take.
const LONGEST: Duration = Duration::from_secs(60);

/// An attempt may have lost its bytes after this time, or after twice the time that the last connection took if that is
/// longer.
const SILENT: Duration = Duration::from_millis(500);

/// How many attempts are made at once, so that many requests for a few connections do not flood the server.
const MOST: usize = 4;

/// The pauses after failed attempts.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// An attempt to connect.
struct Attempt {
    began: Instant,
    is_probe: bool,
    task: AbortHandle,
}

type Made = Result<(Box<dyn Session>, String), PostgresFault>;

/// All attempts.
#[derive(Default)]
struct Attempts {
    tasks: JoinSet<Made>,
    list: Vec<Attempt>,
    /// How many have failed since one has connected.
    failures: u32,
    silent_after: Duration,
}

/// Whether the task is still needed, and when it must look again.
enum Plan {
    End,
    Wait(Option<Instant>),
}

impl Inner {
    /// Starts the task that makes connections if one is needed, or lets it look again.
    pub(super) fn connect_if_needed(self: &Arc<Self>) {
        let mut state = self.lock();
        if state.is_connecting {
            drop(state);
            return self.wake.notify_one();
        }
        let Ok(runtime) = Handle::try_current() else { return };
        if state.needs(Instant::now()) > 0 && state.live < self.size {
            state.is_connecting = true;
            drop(state);
            runtime.spawn(Task { inner: Arc::clone(self), has_ended: false }.run());
        }
    }

    /// Makes a connection, and sets it up.
    async fn connect(self: Arc<Self>) -> Made {
        let connect = async {
            let mut session = self.pool.connect().await.map_err(before_the_statement)?;
            if self.settings.is_behind_pooler {
                return Ok((session, String::new()));
            }
            let millis = i64::try_from(self.settings.patience().as_millis()).unwrap_or(i64::MAX);
            let millis = millis.clamp(1, i32::MAX.into());
            let answer = session.query(sql::SET_UP, &[Value::from(millis)], false).await;
            let rows = answer.map_err(before_the_statement)?;
            match rows.into_iter().flatten().next() {
                Some(Value::Text(Some(marker))) => Ok((session, marker)),
                _ => Err(FaultKind::Unintelligible.into()),
            }
        };
        let late = || PostgresFault::new(FaultKind::Unreachable, "no connection was made in a minute");
        timeout(LONGEST, connect).await.unwrap_or_else(|_| Err(late()))
    }

    /// Counts a new connection, and notifies the circuit breakers.
    fn connected(self: &Arc<Self>, (session, marker): (Box<dyn Session>, String), took: Duration) {
        let generation = {
            let mut state = self.lock();
            state.failed = None;
            state.connecting_took = took;
            state.live += 1;
            state.generation
        };
        self.put(Connected { session, marker, generation });
        self.tell_breakers();
    }

    /// Passes the reason why no connection was made to the waiting requests. If a connection is in use, they wait for
    /// it.
    fn failed(&self, fault: &PostgresFault, retry_at: Instant) {
        let waiters = {
            let mut state = self.lock();
            state.failed = Some((fault.clone(), retry_at));
            if state.live == 0 { std::mem::take(&mut state.waiters) } else { Default::default() }
        };
        for waiter in waiters {
            let _ = waiter.send(Err(fault.clone()));
        }
    }
}

impl super::State {
    /// The time after which an attempt may have lost its bytes.
    fn silent_after(&self) -> Duration {
        SILENT.max(self.connecting_took.saturating_mul(2))
    }

    /// How many more connections are needed.
    fn needs(&mut self, now: Instant) -> usize {
        self.waiters.retain(|waiter| !waiter.is_closed());
        let is_wanted = self.live == 0 && self.wanted_until.is_some_and(|until| now < until);
        self.waiters.len().max(is_wanted.into())
    }
}

/// The task. If it is dropped, as with its runtime, another one may be started.
struct Task {
    inner: Arc<Inner>,
    /// The task is no longer needed. Another one may have begun by now.
    has_ended: bool,
}

impl Task {
    async fn run(mut self) {
        let mut attempts = Attempts::default();
        while let Plan::Wait(until) = self.plan(&mut attempts) {
            let pause = async {
                match until {
                    Some(until) => sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                Some(made) = attempts.tasks.join_next_with_id() => match made {
                    Ok((id, made)) => attempts.ended(&self.inner, id, made),
                    // The attempt was given up, and is no longer in the list; or the driver has panicked.
                    Err(error) => attempts.ended(&self.inner, error.id(), Err(FaultKind::Cancelled.into())),
                },
                () = self.inner.wake.notified() => {}
                () = pause => {}
            }
        }
    }

    /// Begins the attempts that are needed.
    fn plan(&mut self, attempts: &mut Attempts) -> Plan {
        let now = Instant::now();
        let mut state = self.inner.lock();
        let needed = state.needs(now);
        let (room, is_without) = (self.inner.size.saturating_sub(state.live), state.live == 0);
        if (needed == 0 || room == 0) && attempts.list.is_empty() {
            state.is_connecting = false;
            self.has_ended = true;
            return Plan::End;
        }
        let retry_at = state.failed.as_ref().map(|(_, retry_at)| *retry_at).filter(|at| now < *at);
        let wanted_until = state.wanted_until.filter(|until| now < *until && is_without);
        attempts.silent_after = state.silent_after();
        drop(state);
        if needed == 0 {
            return Plan::Wait(None);
        }
        if let Some(retry_at) = retry_at {
            return Plan::Wait(Some(retry_at));
        }
        while attempts.list.len() < needed.min(MOST).min(room) {
            attempts.begin(&self.inner, now, false);
        }
        if !is_without {
            return Plan::Wait(None);
        }
        let silent_after = attempts.silent_after;
        if attempts.list.iter().all(|attempt| attempt.began + silent_after <= now) {
            attempts.probe(&self.inner, now);
        }
        let youngest = attempts.list.iter().map(|attempt| attempt.began + silent_after).max();
        Plan::Wait(youngest.into_iter().chain(wanted_until).min())
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let waiters = {
            let mut state = self.inner.lock();
            state.is_connecting = false;
            std::mem::take(&mut state.waiters)
        };
        // Their requests fail at once.
        drop(waiters);
    }
}

impl Attempts {
    fn begin(&mut self, inner: &Arc<Inner>, now: Instant, is_probe: bool) {
        let task = self.tasks.spawn(Arc::clone(inner).connect());
        self.list.push(Attempt { began: now, is_probe, task });
    }

    /// Begins a probe, which replaces the previous one.
    fn probe(&mut self, inner: &Arc<Inner>, now: Instant) {
        self.give_up(|attempt| attempt.is_probe);
        self.begin(inner, now, true);
    }

    fn give_up(&mut self, is_given_up: impl Fn(&Attempt) -> bool) {
        self.list.retain(|attempt| {
            let goes = is_given_up(attempt);
            if goes {
                attempt.task.abort();
            }
            !goes
        });
    }

    fn ended(&mut self, inner: &Arc<Inner>, id: tokio::task::Id, made: Made) {
        // An attempt that was given up as it ended is closed.
        let Some(at) = self.list.iter().position(|attempt| attempt.task.id() == id) else { return };
        let began = self.list.swap_remove(at).began;
        match made {
            Ok(session) => {
                self.failures = 0;
                let silent_after = self.silent_after;
                self.give_up(|attempt| attempt.began + silent_after < began);
                inner.connected(session, Instant::now().saturating_duration_since(began));
            }
            Err(fault) => {
                let pause = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(self.failures)).min(LONGEST_PAUSE);
                self.failures = self.failures.saturating_add(1);
                inner.failed(&fault, Instant::now() + pause);
            }
        }
    }
}
