//! A partner's line: the calls that wait, in order of arrival, and the task that lets them go.

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use tokio::runtime::{self, Handle};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep_until, timeout_at};
use tower_sluice::internal::{Lock, let_others_take};

use super::error::LineRejection;
use super::health::PartnerHealth;
use super::pace::{CallReport, Need, PacedDeparture, PacedTurn, PartnerPace};
use super::partners::{PartnerKey, SharedByLines};
use super::shared::SharedPace;
use super::throttle::{AdaptiveThrottle, BUCKETS};

/// A partner's line.
///
/// # Invariants
///
/// 1. A call departs only if no call that came earlier is waiting. The map of waiters is ordered by arrival, and a call
///    that the partner rejected comes back with its old number.
/// 2. Each runtime on which a call joined has a driver while any call waits. Each driver reserves at most one departure
///    at a time, and calls the first in line when its time has come. So the first in line departs as soon as any
///    runtime is driven.
/// 3. A departure is decided when the call is polled: at most one is [ready](LineState::ready) that was not taken. So
///    calls whose futures are polled late do not leave together, and no departure is lost with a call that is not
///    polled.
pub(super) struct PartnerLine {
    pub(super) common: Arc<SharedByLines>,
    pub(super) key: PartnerKey,
    /// Not set without a throttle. Boxed, since it is larger than the rest.
    pub(super) health: Option<Box<(AdaptiveThrottle, Lock<PartnerHealth>)>>,
    /// Not set if this process has its own pace.
    shared: Option<SharedPace>,
    state: Lock<LineState>,
    /// Wakes the drivers when an answer came, and when the last waiter left.
    changed: Notify,
}

pub(super) struct LineState {
    /// The pace. If it is shared, this is the part that this process has seen, and decides while Redis fails.
    pub(super) pace: PartnerPace,
    waiting: BTreeMap<u64, WaitingCall>,
    arrivals: u64,
    /// A departure whose time has come, until a call takes it.
    ready: Option<Ready>,
    /// The runtimes with a driver.
    drivers: Vec<runtime::Id>,
    /// When a pause was last logged.
    pub(super) pause_logged: Option<u64>,
}

impl LineState {
    fn arrive(&mut self, deadline: Instant) -> LineTicket {
        self.arrivals += 1;
        LineTicket { arrival: self.arrivals, deadline }
    }

    /// Whether a departure is kept for a call that was called just now, and until when.
    fn kept_until(&self, now: Instant) -> Option<Instant> {
        let (_, called) = self.ready.as_ref()?.called?;
        Some(called + GRACE).filter(|until| now < *until)
    }
}

/// A departure that may be taken.
struct Ready {
    slot: PacedDeparture,
    /// Whether it is on Redis.
    is_shared: bool,
    /// The arrival of the call that was called to take it, and when. Not set if the call has left the line instead.
    called: Option<(u64, Instant)>,
    /// How many calls are called next. It doubles each time that nobody takes the departure, because a busy program may
    /// have many calls in line. The call that is polled first takes it, and the others continue to wait.
    calls: u32,
}

impl Ready {
    const fn new(slot: PacedDeparture, is_shared: bool) -> Self {
        Self { slot, is_shared, called: None, calls: 1 }
    }
}

/// How long a departure is kept for the call that was called. If it is not taken by then, nobody polls that call's
/// future, so the next in line is called. The call departs as soon as it is polled and the pace allows it.
const GRACE: Duration = Duration::from_millis(20);

/// A call that waits.
struct WaitingCall {
    deadline: Instant,
    joined: Instant,
    /// Whether its future was polled since.
    is_polled: bool,
    /// Calls it, or rejects it.
    turn: oneshot::Sender<Result<(), LineRejection>>,
}

/// Until when a call waits, and which place it has in line.
#[derive(Clone, Copy)]
pub(super) struct LineTicket {
    arrival: u64,
    pub(super) deadline: Instant,
}

/// The result of joining.
pub(super) enum JoinedLine {
    Departed(Departed),
    Waiting(PlaceInLine),
}

impl PartnerLine {
    pub(super) fn new(common: Arc<SharedByLines>, key: PartnerKey, shared: Option<SharedPace>) -> Self {
        let pace = PartnerPace::new(common.micros(Instant::now()));
        let state = LineState {
            pace,
            waiting: BTreeMap::new(),
            arrivals: 0,
            ready: None,
            drivers: Vec::new(),
            pause_logged: None,
        };
        let health = common.throttle.map(|throttle| Box::new((throttle, Lock::new(PartnerHealth::default()))));
        Self { common, key, health, shared, state: Lock::new(state), changed: Notify::new() }
    }

    /// Locks the state. No panic leaves it half changed.
    pub(super) fn lock(&self) -> MutexGuard<'_, LineState> {
        self.state.lock()
    }

    /// Returns how much is lost if the line is dropped, to compare lines by.
    pub(super) fn need(&self) -> Need {
        let need = self.lock().pace.need(self.common.micros(Instant::now()), &self.common.rules);
        match self.health.as_deref() {
            Some((throttle, health)) if health.lock().is_throttled() => need.known_for(throttle.width * BUCKETS as u64),
            _ => need,
        }
    }

    /// Joins the line. Departs at once if nothing limits it. If nobody waits, and no call to Redis is needed, it may
    /// depart as soon as it is polled.
    pub(super) fn join(self: &Arc<Self>, runtime: &Handle) -> Result<(JoinedLine, LineTicket), LineRejection> {
        let now = Instant::now();
        let deadline = now + self.common.max_wait;
        let mut state = self.lock();
        let ticket = state.arrive(deadline);
        if state.waiting.is_empty() && self.shared.is_none() && state.kept_until(now).is_none() {
            let slot = state.ready.as_ref().map(|ready| ready.slot);
            if let Some(slot) = self.depart_by(&mut state, now, slot) {
                if state.pace.is_unlimited(&self.common.rules) {
                    drop(state);
                    return Ok((JoinedLine::Departed(self.departed(slot.number, None)), ticket));
                }
                let called = Some((ticket.arrival, now));
                state.ready = Some(Ready { called, ..Ready::new(slot, false) });
                let place = PlaceInLine { line: Arc::clone(self), ticket, runtime: runtime.clone(), turn: None };
                return Ok((JoinedLine::Waiting(place), ticket));
            }
        }
        self.check_wait(&state, &state.pace, ticket, now)?;
        if state.waiting.len() >= self.common.max_waiters {
            return Err(LineRejection::LineFull { max_waiters: self.common.max_waiters });
        }
        let turn = Some(self.wait(state, ticket, runtime));
        let place = PlaceInLine { line: Arc::clone(self), ticket, runtime: runtime.clone(), turn };
        Ok((JoinedLine::Waiting(place), ticket))
    }

    /// Reserves a departure by the pace of this process, or confirms `slot`, if one may depart now.
    fn depart_by(&self, state: &mut LineState, now: Instant, slot: Option<PacedDeparture>) -> Option<PacedDeparture> {
        let (mut pace, micros) = (state.pace, self.common.micros(now));
        match pace.turn(micros, &self.common.rules, slot) {
            PacedTurn::Depart(slot) if slot.at <= micros => {
                state.pace = pace;
                Some(slot)
            }
            _ => None,
        }
    }

    /// Returns a place at the end of the line, for a call that was sent elsewhere and was rejected here.
    pub(super) fn ticket(&self, deadline: Instant) -> LineTicket {
        self.lock().arrive(deadline)
    }

    /// Takes the old place again, after a rejection.
    pub(super) fn rejoin(self: &Arc<Self>, ticket: LineTicket, runtime: &Handle) -> Result<PlaceInLine, LineRejection> {
        let turn = Some(self.wait_again(ticket, runtime)?);
        Ok(PlaceInLine { line: Arc::clone(self), ticket, runtime: runtime.clone(), turn })
    }

    fn wait_again(self: &Arc<Self>, ticket: LineTicket, runtime: &Handle) -> Result<Called, LineRejection> {
        let state = self.lock();
        // A learnt pace may be too slow, and then it quickens, so it isn't a reason to give up a call.
        let pace = PartnerPace { gap: 0, ..state.pace };
        self.check_wait(&state, &pace, ticket, Instant::now())?;
        Ok(self.wait(state, ticket, runtime))
    }

    /// Rejects a call that would wait for too long, as far as is known now.
    fn check_wait(
        &self,
        state: &LineState,
        pace: &PartnerPace,
        ticket: LineTicket,
        now: Instant,
    ) -> Result<(), LineRejection> {
        let ahead = match state.waiting.last_key_value() {
            Some((last, _)) if *last > ticket.arrival => state.waiting.range(..ticket.arrival).count(),
            _ => state.waiting.len(),
        };
        let ahead = ahead as u64;
        let earliest = pace.earliest(self.common.micros(now), ahead, &self.common.rules);
        let earliest = self.common.instant(earliest);
        if earliest <= ticket.deadline {
            return Ok(());
        }
        Err(LineRejection::WaitTooLong { retry_after: Some(earliest - now) })
    }

    fn wait(self: &Arc<Self>, mut state: MutexGuard<'_, LineState>, ticket: LineTicket, runtime: &Handle) -> Called {
        let (turn, called) = oneshot::channel();
        let waiter = WaitingCall { deadline: ticket.deadline, joined: Instant::now(), is_polled: false, turn };
        state.waiting.insert(ticket.arrival, waiter);
        self.common.add_waiter();
        let needs_driver = !state.drivers.contains(&runtime.id());
        if needs_driver {
            state.drivers.push(runtime.id());
        }
        // The lock is released before, because a runtime that is shut down drops the driver at once, which takes the
        // lock.
        drop(state);
        if needs_driver {
            let driver = LineDriver { line: Arc::clone(self), runtime: runtime.id(), slot: None, is_listed: true };
            runtime.spawn(driver.run());
            let_others_take();
        }
        called
    }

    fn departed(self: &Arc<Self>, number: u64, shared: Option<u64>) -> Departed {
        Departed { line: Arc::clone(self), number, shared, sent: Instant::now(), is_reported: false }
    }

    /// Calls the first in line for the departure that is ready, or all if nothing limits departures.
    fn call(&self) {
        let (mut guard, now) = (self.lock(), Instant::now());
        let state = &mut *guard;
        let is_unlimited = self.shared.is_none() && state.pace.is_unlimited(&self.common.rules);
        let is_kept = state.kept_until(now).is_some();
        // If there is no departure, another call has taken it meanwhile.
        let Some(ready) = state.ready.as_mut().filter(|_| !is_kept) else { return };
        let mut left = if is_unlimited { u32::MAX } else { ready.calls };
        ready.calls = ready.calls.saturating_mul(2);
        ready.called = None;
        while left > 0 {
            let Some((arrival, first)) = state.waiting.pop_first() else { break };
            self.common.remove_waiter();
            // Its future isn't polled now. It finds out at its next poll.
            let is_away = !first.is_polled && first.joined + GRACE <= now;
            // If it gave up just now, or is away, call the next one.
            if first.turn.send(Ok(())).is_ok() && !is_away {
                ready.called = Some((arrival, now));
                left -= 1;
            }
        }
        let has_called = ready.called.is_some();
        drop(guard);
        if has_called {
            let_others_take();
        }
    }

    /// Takes a departure for a call that was called, and is polled now: the ready departure, or another that this
    /// process's pace allows. Otherwise, the call continues to wait.
    fn take(self: &Arc<Self>) -> Option<Departed> {
        let now = Instant::now();
        let mut state = self.lock();
        let departed = match state.ready.take() {
            // The server has decided, so only a pause that was learnt since then voids it.
            Some(Ready { slot, is_shared: true, .. }) => {
                let is_void = state.pace.paused > self.common.micros(now);
                let departed = self.departure(&mut state, slot, true);
                if is_void { Err(Some(departed)) } else { Ok(departed) }
            }
            None if self.shared.is_some() => Err(None),
            ready => match self.depart_by(&mut state, now, ready.map(|ready| ready.slot)) {
                Some(slot) => Ok(self.departure(&mut state, slot, false)),
                None => Err(None),
            },
        };
        let has_driver = !state.drivers.is_empty();
        drop(state);
        if has_driver {
            self.changed.notify_waiters();
            let_others_take();
        }
        // A void departure is dropped only here, since that takes the lock.
        departed.ok()
    }

    /// Gives up the ready departure, if there is one, because nobody takes it.
    fn give_up(self: &Arc<Self>, mut state: MutexGuard<'_, LineState>) {
        let ready = state.ready.take();
        let departed = ready.map(|ready| self.departure(&mut state, ready.slot, ready.is_shared));
        drop(state);
        // Nobody needs to wait for its answer.
        drop(departed);
    }

    /// Makes the departure for a slot whose time has come.
    fn departure(self: &Arc<Self>, state: &mut LineState, slot: PacedDeparture, is_shared: bool) -> Departed {
        if is_shared {
            let number = state.pace.note_departure(self.common.micros(Instant::now()));
            self.departed(number, Some(slot.number))
        } else {
            self.departed(slot.number, None)
        }
    }

    /// Rejects the calls at the head of the line whose deadlines are before `earliest`.
    fn reject_before(&self, earliest: Instant) {
        let (mut state, mut has_rejected) = (self.lock(), false);
        while let Some(first) = state.waiting.first_entry() {
            if first.get().deadline >= earliest {
                break;
            }
            has_rejected = true;
            self.common.remove_waiter();
            let retry_after = Some(earliest.saturating_duration_since(Instant::now()));
            // If it gave up just now, it does not need an answer.
            let _ = first.remove().turn.send(Err(LineRejection::WaitTooLong { retry_after }));
        }
        if has_rejected && state.waiting.is_empty() {
            // The driver ends now, and not when it would have looked again.
            self.changed.notify_waiters();
        }
    }

    /// Processes an answer: here at once, and on Redis in the background. Returns whether the line learns about a
    /// rejection.
    fn learn(self: &Arc<Self>, departed: &Departed, report: CallReport) -> bool {
        let received = Instant::now();
        let took = departed.sent.elapsed();
        let now = self.common.micros(received);
        let mut state = self.lock();
        let is_news = state.pace.learn(departed.number, now, super::pace::micros(took), &report, &self.common.rules);
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
        is_news
    }

    /// Processes an answer to a call that was sent to another partner, which has redirected it here. Redis does not
    /// know its departure, and learns from the next call instead.
    pub(super) fn learn_redirected(self: &Arc<Self>, report: CallReport) -> bool {
        let number = self.lock().pace.note_departure(self.common.micros(Instant::now()));
        self.departed(number, None).answered(report)
    }
}

/// Receives the call for a departure, or the rejection.
type Called = oneshot::Receiver<Result<(), LineRejection>>;

/// A place in line. If it is dropped, the call leaves.
pub(super) struct PlaceInLine {
    line: Arc<PartnerLine>,
    ticket: LineTicket,
    runtime: Handle,
    /// Not set once it was called.
    turn: Option<Called>,
}

impl PlaceInLine {
    /// Waits for the turn.
    pub(super) async fn turn(mut self) -> Result<Departed, LineRejection> {
        loop {
            if let Some(turn) = &mut self.turn {
                if let Some(waiter) = self.line.lock().waiting.get_mut(&self.ticket.arrival) {
                    waiter.is_polled = true;
                }
                match timeout_at(self.ticket.deadline, turn).await {
                    Ok(Ok(called)) => called?,
                    Ok(Err(_)) | Err(_) => return Err(LineRejection::WaitTooLong { retry_after: None }),
                }
                self.turn = None;
            }
            if let Some(departed) = self.line.take() {
                return Ok(departed);
            }
            // It was polled late, and another call has taken its departure, or a later report has voided it.
            self.turn = Some(self.line.wait_again(self.ticket, &self.runtime)?);
        }
    }
}

impl Drop for PlaceInLine {
    fn drop(&mut self) {
        let mut state = self.line.lock();
        if state.waiting.remove(&self.ticket.arrival).is_some() {
            self.line.common.remove_waiter();
            if state.waiting.is_empty() {
                self.line.changed.notify_waiters();
            }
            return;
        }
        let Some(ready) = &mut state.ready else { return };
        if ready.called.is_none_or(|(arrival, _)| arrival != self.ticket.arrival) {
            return;
        }
        // It was called, but leaves, so the next in line is called.
        ready.called = None;
        if state.drivers.is_empty() {
            self.line.give_up(state);
        } else {
            self.line.changed.notify_waiters();
        }
    }
}

/// A call that has departed. Reports its answer, or, if it is dropped before, that there was no answer.
pub(super) struct Departed {
    line: Arc<PartnerLine>,
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

    /// Reports the answer, as [`PartnerLine::learn`] does.
    pub(super) fn answered(mut self, report: CallReport) -> bool {
        self.is_reported = true;
        self.line.learn(&self, report)
    }

    pub(super) fn is_of(&self, line: &Arc<PartnerLine>) -> bool {
        Arc::ptr_eq(&self.line, line)
    }
}

impl Drop for Departed {
    fn drop(&mut self) {
        if !self.is_reported {
            let line = Arc::clone(&self.line);
            line.learn(self, CallReport::default());
        }
    }
}

/// The task that lets calls go, on one runtime.
struct LineDriver {
    line: Arc<PartnerLine>,
    runtime: runtime::Id,
    /// The departure that it has reserved.
    slot: Option<Reserved>,
    /// Whether the line lists it.
    is_listed: bool,
}

struct Reserved {
    slot: PacedDeparture,
    /// Whether it is on Redis.
    is_shared: bool,
    at: Instant,
}

/// The next step of a driver.
enum NextDeparture {
    /// Calls the first in line, for a departure that is ready.
    Call,
    /// Nothing departs before `earliest`. Look again at `at`, or when something changed.
    Sleep { at: Instant, earliest: Instant },
}

/// How often a line reads from Redis the reports to other processes.
const LOOK: Duration = Duration::from_secs(1);

impl LineDriver {
    async fn run(mut self) {
        let line = Arc::clone(&self.line);
        loop {
            let mut changed = std::pin::pin!(line.changed.notified());
            // From here on, no change is missed.
            changed.as_mut().enable();
            if self.is_done() {
                return;
            }
            match self.next().await {
                NextDeparture::Call => line.call(),
                NextDeparture::Sleep { at, earliest } => {
                    line.reject_before(earliest);
                    tokio::select! {
                        biased;
                        () = changed => {}
                        () = sleep_until(at) => {}
                    }
                }
            }
        }
    }

    /// Whether nobody waits, or was called just now. If so, the next arrival starts a new driver.
    fn is_done(&mut self) -> bool {
        let mut state = self.line.lock();
        if !state.waiting.is_empty() || state.kept_until(Instant::now()).is_some() {
            return false;
        }
        state.drivers.retain(|runtime| *runtime != self.runtime);
        self.is_listed = false;
        self.line.give_up(state);
        true
    }

    async fn next(&mut self) -> NextDeparture {
        let now = Instant::now();
        let line = Arc::clone(&self.line);
        {
            let state = line.lock();
            if let Some(until) = state.kept_until(now) {
                return NextDeparture::Sleep { at: until, earliest: now };
            }
            if state.ready.is_some() {
                return NextDeparture::Call;
            }
        }
        if let Some(reserved) = self.slot.as_ref().filter(|reserved| now < reserved.at) {
            return NextDeparture::Sleep { at: reserved.at, earliest: reserved.at };
        }
        if let Some(shared) = &line.shared {
            let paused = line.common.instant(line.lock().pace.paused);
            if paused > now {
                // Known here, so the server need not be asked.
                return NextDeparture::Sleep { at: paused.min(now + LOOK), earliest: paused };
            }
            let slot = self.slot.as_ref().filter(|reserved| reserved.is_shared).map(|reserved| reserved.slot);
            if let Some(answer) = shared.turn(&line.common.rules, slot).await {
                self.slot = None;
                let at = Instant::now() + answer.delay;
                return match answer.turn {
                    PacedTurn::Depart(slot) => self.depart(slot, at, true),
                    PacedTurn::Wait(_) => NextDeparture::Sleep { at: at.min(Instant::now() + LOOK), earliest: at },
                };
            }
            // Redis fails, so we use the reports that this process has seen.
        }
        let slot = self.slot.take().filter(|reserved| !reserved.is_shared).map(|reserved| reserved.slot);
        let micros = line.common.micros(now);
        let turn = line.lock().pace.turn(micros, &line.common.rules, slot);
        match turn {
            PacedTurn::Depart(slot) => self.depart(slot, line.common.instant(slot.at), false),
            PacedTurn::Wait(until) => {
                let until = line.common.instant(until);
                NextDeparture::Sleep { at: until, earliest: until }
            }
        }
    }

    /// Makes a departure ready, or reserves it for its time, or until the ready departure was taken.
    fn depart(&mut self, slot: PacedDeparture, at: Instant, is_shared: bool) -> NextDeparture {
        let now = Instant::now();
        let mut state = self.line.lock();
        if at <= now && state.ready.is_none() {
            state.ready = Some(Ready::new(slot, is_shared));
            return NextDeparture::Call;
        }
        self.slot = Some(Reserved { slot, is_shared, at });
        // If another driver's departure is ready, the loop looks at it next.
        NextDeparture::Sleep { at, earliest: at }
    }
}

impl Drop for LineDriver {
    fn drop(&mut self) {
        if self.is_listed {
            // The runtime is shut down.
            self.line.lock().drivers.retain(|runtime| *runtime != self.runtime);
        }
        if let Some(Reserved { slot, is_shared, .. }) = self.slot.take() {
            let mut state = self.line.lock();
            let departed = self.line.departure(&mut state, slot, is_shared);
            drop(state);
            // Nobody takes the departure, so nobody needs to wait for its answer.
            drop(departed);
        }
    }
}
