use std::ops::DerefMut;
use std::sync::PoisonError;
use std::task::Waker;

use super::closed;
use super::lines::{Answer, LineId, Lines};
use super::seats::SeatNo;
use crate::backlog::Backlog;
use crate::decision::{Decision, LimiterError, Receipt};
use crate::sync::Mutex;
use crate::time::Timestamp;

/// The lines under their lock: what threads can do to one another happens here, without any timer or
/// task. Those are told what to do, and wakers are returned, not woken: both run foreign code, which
/// must not meet the lock.
///
/// Times are asked for under the lock, so that arrivals are ordered as their times are.
pub(super) struct Room {
    state: Mutex<State>,
}

struct State {
    lines: Lines,
    /// Whether the task that keeps the time lives. Changes only under the lock: an arrival either sees
    /// it alive, and then the task will see the arrival, or starts the next.
    is_driven: bool,
    is_closed: bool,
}

pub(super) struct Request {
    pub(super) id: LineId,
    pub(super) cost: u32,
    /// Nanoseconds.
    pub(super) max_wait: u64,
}

/// What became of an arrival: an answer at once, or a place in line.
pub(super) enum Arrival {
    Decided(Decision),
    Joined(SeatNo),
}

/// What became of a waiter.
pub(super) enum Progress {
    Done(Result<Decision, LimiterError>),
    Waiting { is_driven: bool },
}

/// What is to be done once the lock is released.
#[must_use]
pub(super) struct Errand<R> {
    pub(super) wake: Vec<Waker>,
    pub(super) rouse: Rouse<R>,
}

/// What is to be done for the task that keeps the time. `R` is whatever starts one.
pub(super) enum Rouse<R> {
    Nobody,
    Sleeper,
    New(R),
}

impl<R> Errand<R> {
    const fn none() -> Self {
        Self { wake: Vec::new(), rouse: Rouse::Nobody }
    }
}

impl Room {
    pub(super) fn new(lines: Lines) -> Self {
        Self { state: Mutex::new(State { lines, is_driven: false, is_closed: false }) }
    }

    fn lock(&self) -> impl DerefMut<Target = State> + '_ {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn waiting(&self) -> usize {
        self.lock().lines.waiting()
    }

    pub(super) fn backlog(&self, now: impl FnOnce() -> Timestamp) -> Backlog {
        let state = self.lock();
        let now = now();
        Backlog::new(state.lines.waiting(), state.lines.next_release().map(|due| due.saturating_since(now)))
    }

    /// Decides, or gives a place. `start` is asked for a task if there is none and somebody has to wait.
    pub(super) fn enqueue<R>(
        &self,
        now: impl FnOnce() -> Timestamp,
        request: &Request,
        start: impl FnOnce() -> Result<R, LimiterError>,
    ) -> (Result<Arrival, LimiterError>, Errand<R>) {
        self.arrive(now, request, |state, now, _, errand| {
            state.join(now, request, true, start, errand).map(Arrival::Joined)
        })
    }

    /// Takes a place in line that nobody waits in.
    pub(super) fn enqueue_nobody<R>(
        &self,
        now: impl FnOnce() -> Timestamp,
        request: &Request,
        start: impl FnOnce() -> Result<R, LimiterError>,
    ) -> (Result<Arrival, LimiterError>, Errand<R>) {
        self.arrive(now, request, |state, now, leaves, errand| {
            let decision = state.lines.foretell(now, request.id, request.cost, leaves);
            state.join(now, request, false, start, errand).map(|_| Arrival::Decided(decision))
        })
    }

    fn arrive<R>(
        &self,
        now: impl FnOnce() -> Timestamp,
        request: &Request,
        join: impl FnOnce(&mut State, Timestamp, Timestamp, &mut Errand<R>) -> Result<Arrival, LimiterError>,
    ) -> (Result<Arrival, LimiterError>, Errand<R>) {
        let &Request { id, cost, max_wait } = request;
        let mut errand = Errand::none();
        let mut state = self.lock();
        if state.is_closed {
            return (Err(closed()), errand);
        }
        let now = now();
        state.lines.catch_up(now, id, &mut errand.wake);
        let arrival = match state.lines.judge(now, id, cost, max_wait) {
            Err(refusal) => Ok(Arrival::Decided(refusal)),
            Ok(leaves) if leaves <= now => Ok(Arrival::Decided(state.lines.pass(now, id, cost))),
            Ok(leaves) => join(&mut state, now, leaves, &mut errand),
        };
        (arrival, errand)
    }

    /// What [`enqueue`](Self::enqueue) would decide; `None` if it is closed.
    pub(super) fn peek<R>(&self, now: impl FnOnce() -> Timestamp, request: &Request) -> (Option<Decision>, Errand<R>) {
        let &Request { id, cost, max_wait } = request;
        let mut errand = Errand::none();
        let mut state = self.lock();
        if state.is_closed {
            return (None, errand);
        }
        let now = now();
        state.lines.catch_up(now, id, &mut errand.wake);
        let decision = match state.lines.judge(now, id, cost, max_wait) {
            Err(refusal) => refusal,
            Ok(leaves) => state.lines.foretell(now, id, cost, leaves),
        };
        (Some(decision), errand)
    }

    /// What has become of a waiter. When it is done, the place is not its own any more.
    pub(super) fn poll(&self, now: impl FnOnce() -> Timestamp, seat: SeatNo, waker: &Waker) -> Progress {
        let mut state = self.lock();
        let now = now();
        let answer = state.lines.answer(now, seat, waker);
        let is_driven = state.is_driven;
        drop(state);
        match answer {
            Answer::Decided(decision) => Progress::Done(Ok(decision)),
            Answer::Closed => Progress::Done(Err(closed())),
            Answer::Waiting(replaced) => {
                drop(replaced);
                Progress::Waiting { is_driven }
            }
        }
    }

    /// Has a task started if there is none.
    pub(super) fn revive<R>(&self, start: impl FnOnce() -> Result<R, LimiterError>) -> Result<Rouse<R>, LimiterError> {
        self.lock().driver(start)
    }

    /// Gives up a place, and with it the turn, if it has come.
    pub(super) fn leave<R>(&self, now: impl FnOnce() -> Timestamp, seat: SeatNo) -> Errand<R> {
        let mut errand = Errand::none();
        let mut state = self.lock();
        let now = now();
        let (given_back, waker) = state.lines.leave(now, seat);
        if let Some(line) = given_back {
            state.move_up(now, line, &mut errand);
        }
        // The task ends now, and its timer with it, and not when the turn of the last one would have come.
        if state.is_driven && state.lines.waiting() == 0 {
            errand.rouse = Rouse::Sleeper;
        }
        drop(state);
        drop(waker);
        errand
    }

    pub(super) fn give_back<R>(
        &self,
        now: impl FnOnce() -> Timestamp,
        line: LineId,
        cost: u32,
        receipt: Receipt,
    ) -> Errand<R> {
        let mut errand = Errand::none();
        let mut state = self.lock();
        let now = now();
        state.lines.give_back(now, line, cost, receipt);
        state.move_up(now, line, &mut errand);
        errand
    }

    /// Another quota and other bounds, for all who wait.
    pub(super) fn change<R>(&self, now: impl FnOnce() -> Timestamp, rules: &Lines) -> Errand<R> {
        let mut errand = Errand::none();
        let mut state = self.lock();
        let now = now();
        state.lines.change(now, rules, &mut errand.wake);
        if state.is_driven {
            errand.rouse = Rouse::Sleeper;
        }
        errand
    }

    /// For the task: does some of what is due, and says whether that was all, and when to come back. If
    /// that is never, the task has ended.
    pub(super) fn tick(&self, now: impl FnOnce() -> Timestamp, wake: &mut Vec<Waker>) -> (bool, Option<Timestamp>) {
        let mut state = self.lock();
        let now = now();
        let is_all = state.lines.release_some(now, wake);
        let next = state.lines.next_due();
        state.is_driven = next.is_some();
        (is_all, next)
    }

    /// For a task that ends without having said so. Those who wait are to see to the next one.
    pub(super) fn undrive(&self) -> Vec<Waker> {
        let mut state = self.lock();
        state.is_driven = false;
        state.lines.take_wakers()
    }

    /// Sends everybody away, for ever.
    pub(super) fn close<R>(&self) -> Errand<R> {
        let mut state = self.lock();
        state.is_closed = true;
        let rouse = if state.is_driven { Rouse::Sleeper } else { Rouse::Nobody };
        Errand { wake: state.lines.close(), rouse }
    }

    #[cfg(all(test, sluice_loom))]
    pub(super) fn taken(&self) -> u32 {
        self.lock().lines.taken()
    }
}

impl State {
    fn join<R>(
        &mut self,
        now: Timestamp,
        request: &Request,
        is_owned: bool,
        start: impl FnOnce() -> Result<R, LimiterError>,
        errand: &mut Errand<R>,
    ) -> Result<SeatNo, LimiterError> {
        let before = self.lines.next_due();
        errand.rouse = self.driver(start)?;
        let (seat, evicted) = self.lines.join(now, request.id, request.cost, request.max_wait, is_owned);
        errand.wake.extend(evicted);
        // The task may sleep towards a head that has left since, so it must be told of the first to
        // wait again, too, and not only of one that is due sooner.
        let is_next = before.is_none_or(|before| self.lines.next_due() < Some(before));
        if matches!(errand.rouse, Rouse::Nobody) && is_next {
            errand.rouse = Rouse::Sleeper;
        }
        Ok(seat)
    }

    /// After something was given back: the next of the line may leave sooner.
    fn move_up<R>(&mut self, now: Timestamp, line: LineId, errand: &mut Errand<R>) {
        self.lines.release(now, line, &mut errand.wake);
        if self.is_driven {
            errand.rouse = Rouse::Sleeper;
        }
    }

    /// Sees to it that there is a task.
    fn driver<R>(&mut self, start: impl FnOnce() -> Result<R, LimiterError>) -> Result<Rouse<R>, LimiterError> {
        if self.is_driven {
            return Ok(Rouse::Nobody);
        }
        let new = start()?;
        self.is_driven = true;
        Ok(Rouse::New(new))
    }
}
