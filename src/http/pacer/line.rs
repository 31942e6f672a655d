//! The line of one partner: the calls that wait, in order of arrival, and the task that lets them go.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::{self, Handle};
use tokio::sync::{Notify, oneshot};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::error::Refusal;
use super::pace::{Pace, Report, Slot, Turn};
use super::partners::Common;
#[cfg(feature = "redis")]
use super::shared::SharedPace;
#[cfg(not(feature = "redis"))]
use super::unshared::SharedPace;
use crate::util::wake::let_others_take;

/// The line of one partner.
///
/// # Invariants
///
/// 1. A call departs only if no call that came earlier is waiting. The map of waiters is ordered by arrival, and a call
///    that the partner rejected comes back with its old number.
/// 2. Each runtime on which a call joined has a driver while any call waits. Each driver reserves at most one departure
///    at a time, and gives it to the first in line when its time has come. So the first in line departs as soon as any
///    runtime is driven.
pub(super) struct Line {
    common: Arc<Common>,
    /// `None` if the pace is that of this process alone.
    shared: Option<SharedPace>,
    state: Mutex<State>,
    /// Wakes the drivers when an answer came, and when the last waiter left.
    changed: Notify,
}

struct State {
    /// The pace; if it is shared, as far as this process has seen: it decides while Redis fails.
    pace: Pace,
    waiting: BTreeMap<u64, Waiter>,
    arrivals: u64,
    /// The runtimes with a driver.
    drivers: Vec<runtime::Id>,
}

/// A call that waits.
struct Waiter {
    deadline: Instant,
    /// If the waiter is gone, what is sent comes back, or is dropped with its message.
    turn: oneshot::Sender<Result<Departed, Refusal>>,
}

/// Until when a call waits, and which place it has in line.
#[derive(Clone, Copy)]
pub(super) struct Ticket {
    arrival: u64,
    deadline: Instant,
}

/// The result of joining.
pub(super) enum Joined {
    Departed(Departed),
    Waiting(Place),
}

impl Line {
    pub(super) fn new(common: Arc<Common>, shared: Option<SharedPace>) -> Self {
        let pace = Pace::new(common.micros(Instant::now()));
        let state = State { pace, waiting: BTreeMap::new(), arrivals: 0, drivers: Vec::new() };
        Self { common, shared, state: Mutex::new(state), changed: Notify::new() }
    }

    /// No panic leaves the state half changed.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether anything is lost if the line is dropped.
    pub(super) fn is_needed(&self) -> bool {
        self.lock().pace.is_needed(self.common.micros(Instant::now()))
    }

    /// Joins the line. Departs at once if nobody waits, and if that can be decided without a call to Redis.
    pub(super) fn join(self: &Arc<Self>, runtime: &Handle) -> Result<(Joined, Ticket), Refusal> {
        let now = Instant::now();
        let deadline = now + self.common.max_wait;
        let mut state = self.lock();
        state.arrivals += 1;
        let ticket = Ticket { arrival: state.arrivals, deadline };
        if state.waiting.is_empty() && self.shared.is_none() {
            let (mut pace, micros) = (state.pace, self.common.micros(now));
            match pace.turn(micros, &self.common.rules, None) {
                Turn::Depart(slot) if slot.at <= micros => {
                    state.pace = pace;
                    drop(state);
                    return Ok((Joined::Departed(self.departed(slot.number, None)), ticket));
                }
                _ => {}
            }
        }
        self.check_wait(&state, ticket, now)?;
        if !self.common.add_waiter() {
            return Err(Refusal::LineFull { max_waiters: self.common.max_waiters });
        }
        Ok((Joined::Waiting(self.wait(state, ticket, runtime)), ticket))
    }

    /// Takes the old place again, after a rejection.
    pub(super) fn rejoin(self: &Arc<Self>, ticket: Ticket, runtime: &Handle) -> Result<Place, Refusal> {
        let state = self.lock();
        self.check_wait(&state, ticket, Instant::now())?;
        self.common.add_waiter_again();
        Ok(self.wait(state, ticket, runtime))
    }

    /// Refuses a call that would wait for too long by what is known now.
    fn check_wait(&self, state: &State, ticket: Ticket, now: Instant) -> Result<(), Refusal> {
        let ahead = match state.waiting.last_key_value() {
            Some((last, _)) if *last > ticket.arrival => state.waiting.range(..ticket.arrival).count(),
            _ => state.waiting.len(),
        };
        let ahead = ahead as u64;
        let earliest = state.pace.earliest(self.common.micros(now), ahead, &self.common.rules);
        let earliest = self.common.instant(earliest);
        if earliest <= ticket.deadline {
            return Ok(());
        }
        Err(Refusal::WaitTooLong { retry_after: Some(earliest - now) })
    }

    fn wait(self: &Arc<Self>, mut state: MutexGuard<'_, State>, ticket: Ticket, runtime: &Handle) -> Place {
        let (sender, turn) = oneshot::channel();
        state.waiting.insert(ticket.arrival, Waiter { deadline: ticket.deadline, turn: sender });
        let needs_driver = !state.drivers.contains(&runtime.id());
        if needs_driver {
            state.drivers.push(runtime.id());
        }
        // Not under the lock: a runtime that is shut down drops the driver at once, which takes the lock.
        drop(state);
        if needs_driver {
            let driver = Driver { line: Arc::clone(self), runtime: runtime.id(), slot: None, is_listed: true };
            runtime.spawn(driver.run());
            let_others_take();
        }
        Place { line: Arc::clone(self), ticket, turn }
    }

    fn departed(self: &Arc<Self>, number: u64, shared: Option<u64>) -> Departed {
        Departed { line: Arc::clone(self), number, shared, sent: Instant::now(), is_reported: false }
    }

    /// Gives a departure to the first in line.
    fn grant(&self, mut departed: Departed) {
        loop {
            let Some((_, first)) = self.lock().waiting.pop_first() else { return };
            self.common.remove_waiter();
            match first.turn.send(Ok(departed)) {
                Ok(()) => return let_others_take(),
                // It gave up just now: the next one.
                Err(returned) => departed = returned.unwrap_or_else(|_| unreachable!("a departure was sent")),
            }
        }
    }

    /// Refuses those at the head of the line whose deadlines are before `earliest`.
    fn refuse_before(&self, earliest: Instant) {
        let mut state = self.lock();
        while let Some(first) = state.waiting.first_entry() {
            if first.get().deadline >= earliest {
                break;
            }
            self.common.remove_waiter();
            let retry_after = Some(earliest.saturating_duration_since(Instant::now()));
            // If it gave up just now, it needs no answer.
            let _ = first.remove().turn.send(Err(Refusal::WaitTooLong { retry_after }));
        }
        if state.waiting.is_empty() {
            // The driver ends now, and not when it would have looked again.
            self.changed.notify_waiters();
        }
    }

    /// Takes in an answer: here at once, and on Redis in the background.
    fn learn(self: &Arc<Self>, departed: &Departed, report: Report) {
        let (received, took) = (Instant::now(), departed.sent.elapsed());
        let now = self.common.micros(received);
        let mut state = self.lock();
        state.pace.learn(departed.number, now, super::pace::micros(took), &report, &self.common.rules);
        let has_driver = !state.drivers.is_empty();
        drop(state);
        if has_driver {
            self.changed.notify_waiters();
            let_others_take();
        }
        if let (Some(_), Some(number), Ok(runtime)) = (&self.shared, departed.shared, Handle::try_current()) {
            let line = Arc::clone(self);
            runtime.spawn(async move {
                let Some(shared) = &line.shared else { return };
                shared.learn(number, received.elapsed(), took, &report, &line.common.rules).await;
                line.changed.notify_waiters();
            });
        }
    }
}

/// A place in line. If it is dropped, the call leaves.
pub(super) struct Place {
    line: Arc<Line>,
    ticket: Ticket,
    turn: oneshot::Receiver<Result<Departed, Refusal>>,
}

impl Place {
    /// Waits for the turn.
    pub(super) async fn turn(mut self) -> Result<Departed, Refusal> {
        match timeout_at(self.ticket.deadline, &mut self.turn).await {
            Ok(Ok(turn)) => turn,
            Ok(Err(_)) | Err(_) => Err(Refusal::WaitTooLong { retry_after: None }),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.line.lock();
        if state.waiting.remove(&self.ticket.arrival).is_some() {
            self.line.common.remove_waiter();
            if state.waiting.is_empty() {
                self.line.changed.notify_waiters();
            }
        }
    }
}

/// A call that has departed. Reports its answer; if it is dropped before, that there was none.
pub(super) struct Departed {
    line: Arc<Line>,
    number: u64,
    /// Its number on Redis.
    shared: Option<u64>,
    sent: Instant,
    is_reported: bool,
}

impl Departed {
    /// Starts the clock: the call is sent now.
    pub(super) fn sent_now(&mut self) {
        self.sent = Instant::now();
    }

    pub(super) fn answered(mut self, report: Report) {
        self.is_reported = true;
        self.line.learn(&self, report);
    }
}

impl Drop for Departed {
    fn drop(&mut self) {
        if !self.is_reported {
            let line = Arc::clone(&self.line);
            line.learn(self, Report::default());
        }
    }
}

/// The task that lets calls go, on one runtime.
struct Driver {
    line: Arc<Line>,
    runtime: runtime::Id,
    /// The departure that it has reserved.
    slot: Option<Reserved>,
    /// Whether the line lists it.
    is_listed: bool,
}

struct Reserved {
    slot: Slot,
    /// Whether it is on Redis.
    is_shared: bool,
    at: Instant,
}

/// What a driver does next.
enum Next {
    Grant(Departed),
    /// Nothing departs before `earliest`; look again at `at`, or when something changed.
    Sleep {
        at: Instant,
        earliest: Instant,
    },
}

/// How often a line looks on Redis what other processes have learnt.
const LOOK: Duration = Duration::from_secs(1);

/// How many departures follow one another before other tasks run.
const BATCH: u32 = 64;

impl Driver {
    async fn run(mut self) {
        let line = Arc::clone(&self.line);
        let mut granted: u32 = 0;
        loop {
            let mut changed = std::pin::pin!(line.changed.notified());
            // From here on, no change is missed.
            changed.as_mut().enable();
            if self.is_done() {
                return;
            }
            match self.next().await {
                Next::Grant(departed) => {
                    line.grant(departed);
                    granted += 1;
                    if granted % BATCH == 0 {
                        yield_now().await;
                    }
                }
                Next::Sleep { at, earliest } => {
                    line.refuse_before(earliest);
                    tokio::select! {
                        () = sleep_until(at) => {}
                        () = changed => {}
                    }
                }
            }
        }
    }

    /// Whether nobody waits. If so, the next arrival starts a new driver.
    fn is_done(&mut self) -> bool {
        let mut state = self.line.lock();
        if !state.waiting.is_empty() {
            return false;
        }
        state.drivers.retain(|runtime| *runtime != self.runtime);
        self.is_listed = false;
        true
    }

    async fn next(&mut self) -> Next {
        let now = Instant::now();
        if let Some(reserved) = self.slot.as_ref().filter(|reserved| now < reserved.at) {
            return Next::Sleep { at: reserved.at, earliest: reserved.at };
        }
        let line = Arc::clone(&self.line);
        if let Some(shared) = &line.shared {
            let paused = line.common.instant(line.lock().pace.paused);
            if paused > now {
                // Known here, so the server need not be asked.
                return Next::Sleep { at: paused.min(now + LOOK), earliest: paused };
            }
            let slot = self.slot.as_ref().filter(|reserved| reserved.is_shared).map(|reserved| reserved.slot);
            if let Ok(answer) = shared.turn(&line.common.rules, slot).await {
                self.slot = None;
                let at = Instant::now() + answer.delay;
                return match answer.turn {
                    Turn::Depart(slot) => self.depart(slot, at, true),
                    Turn::Wait(_) => Next::Sleep { at: at.min(Instant::now() + LOOK), earliest: at },
                };
            }
            // Redis fails: by what this process has seen.
        }
        let slot = self.slot.take().filter(|reserved| !reserved.is_shared).map(|reserved| reserved.slot);
        let micros = line.common.micros(now);
        let turn = line.lock().pace.turn(micros, &line.common.rules, slot);
        match turn {
            Turn::Depart(slot) => self.depart(slot, line.common.instant(slot.at), false),
            Turn::Wait(until) => {
                let until = line.common.instant(until);
                Next::Sleep { at: until, earliest: until }
            }
        }
    }

    /// Departs, or reserves the departure for its time.
    fn depart(&mut self, slot: Slot, at: Instant, is_shared: bool) -> Next {
        let now = Instant::now();
        if at > now {
            self.slot = Some(Reserved { slot, is_shared, at });
            return Next::Sleep { at, earliest: at };
        }
        Next::Grant(self.departed(slot, is_shared))
    }

    fn departed(&self, slot: Slot, is_shared: bool) -> Departed {
        if is_shared {
            let now = self.line.common.micros(Instant::now());
            let number = self.line.lock().pace.note_departure(now);
            self.line.departed(number, Some(slot.number))
        } else {
            self.line.departed(slot.number, None)
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if self.is_listed {
            // The runtime is shut down.
            self.line.lock().drivers.retain(|runtime| *runtime != self.runtime);
        }
        if let Some(Reserved { slot, is_shared, .. }) = self.slot.take() {
            // Nobody takes the departure: its answer need not be awaited.
            drop(self.departed(slot, is_shared));
        }
    }
}
