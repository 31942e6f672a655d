use std::ops::DerefMut;
use std::sync::PoisonError;
use std::task::Waker;

use super::drivers::{DriverNo, Drivers, Home, Start};
use super::schedule::waiter_slab::SeatNo;
use super::schedule::{Answer, Found, LineId, Lines};
use super::{closed, no_runtime};
use crate::store::TableStats;
use crate::util::sync::Mutex;
use crate::values::time::Timestamp;
use crate::values::{Backlog, Decision, LimiterError, Receipt};

/// The lines under their lock: what threads can do to one another happens here, without any timer or
/// task. Drivers are returned to be started or signalled, and wakers to be woken: both run foreign code, which
/// must not meet the lock.
///
/// Times are asked for under the lock, so that arrivals are ordered as their times are.
pub(super) struct Room<H: Home> {
    state: Mutex<State<H>>,
}

struct State<H: Home> {
    lines: Lines,
    /// Changed only under the lock: an arrival either finds the driver of its runtime alive, which then looks at the
    /// lines once more, or starts the next.
    drivers: Drivers<H>,
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
    Waiting,
    /// It waits where no driver can live, and is to leave.
    Stranded(LimiterError),
}

/// What a driver is to do next.
#[derive(Debug)]
pub(super) enum Next {
    /// Let other tasks run, and come back at once.
    Yield,
    SleepUntil(Timestamp),
    End,
}

/// What is to be done once the lock is released, in this order.
#[must_use]
pub(super) struct Errand<H: Home> {
    pub(super) signals: Vec<H::Signal>,
    pub(super) start: Option<Start<H>>,
    pub(super) wake: Vec<Waker>,
    /// Whether to warn that keys are being lost.
    pub(super) warn: bool,
}

impl<H: Home> Errand<H> {
    const fn none() -> Self {
        Self { signals: Vec::new(), start: None, wake: Vec::new(), warn: false }
    }
}

impl<H: Home> Room<H> {
    pub(super) fn new(lines: Lines) -> Self {
        Self { state: Mutex::new(State { lines, drivers: Drivers::new(), is_closed: false }) }
    }

    fn lock(&self) -> impl DerefMut<Target = State<H>> + '_ {
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

    /// Decides, or gives a place. `here` is asked for the runtime if the request has to wait.
    pub(super) fn enqueue(
        &self,
        now: impl FnOnce() -> Timestamp,
        request: &Request,
        here: impl FnOnce() -> Option<H>,
    ) -> (Result<Arrival, LimiterError>, Errand<H>) {
        self.arrive(now, request, |state, now, request, _, errand| {
            state.join(now, request, true, here, errand).map(Arrival::Joined)
        })
    }

    /// Takes a place in line that nobody waits in.
    pub(super) fn enqueue_nobody(
        &self,
        now: impl FnOnce() -> Timestamp,
        request: &Request,
        here: impl FnOnce() -> Option<H>,
    ) -> (Result<Arrival, LimiterError>, Errand<H>) {
        self.arrive(now, request, |state, now, request, leaves, errand| {
            let decision = state.lines.foretell(now, request.id, request.cost, leaves);
            state.join(now, request, false, here, errand).map(|_| Arrival::Decided(decision))
        })
    }

    fn arrive(
        &self,
        now: impl FnOnce() -> Timestamp,
        request: &Request,
        join: impl FnOnce(&mut State<H>, Timestamp, &Request, Timestamp, &mut Errand<H>) -> Result<Arrival, LimiterError>,
    ) -> (Result<Arrival, LimiterError>, Errand<H>) {
        let &Request { id, cost, max_wait } = request;
        let mut errand = Errand::none();
        let mut state = self.lock();
        if state.is_closed {
            return (Err(closed()), errand);
        }
        let now = now();
        let found = state.lines.find(now, id, cost);
        let settled = state.lines.settle_in(now, id, found);
        errand.warn = state.lines.is_to_warn();
        let id = match settled {
            Ok(id) => id,
            Err(rejection) => return (Ok(Arrival::Decided(rejection)), errand),
        };
        state.lines.catch_up(now, id, &mut errand.wake);
        let arrival = match state.lines.judge(now, id, cost, max_wait) {
            Err(refusal) => Ok(Arrival::Decided(refusal)),
            Ok(leaves) if leaves <= now => Ok(Arrival::Decided(state.lines.pass(now, id, cost))),
            Ok(leaves) => join(&mut state, now, &Request { id, cost, max_wait }, leaves, &mut errand),
        };
        (arrival, errand)
    }

    /// What [`enqueue`](Self::enqueue) would decide; `None` if it is closed.
    pub(super) fn peek(&self, now: impl FnOnce() -> Timestamp, request: &Request) -> (Option<Decision>, Errand<H>) {
        let &Request { id, cost, max_wait } = request;
        let mut errand = Errand::none();
        let mut state = self.lock();
        if state.is_closed {
            return (None, errand);
        }
        let now = now();
        let id = match state.lines.find(now, id, cost) {
            Found::Own | Found::InPlaceOf(_) => id,
            Found::Shared(line) => line,
            Found::Nowhere => return (Some(state.lines.no_room(now)), errand),
        };
        state.lines.catch_up(now, id, &mut errand.wake);
        let decision = match state.lines.judge(now, id, cost, max_wait) {
            Err(refusal) => refusal,
            Ok(leaves) => state.lines.foretell(now, id, cost, leaves),
        };
        (Some(decision), errand)
    }

    /// What has become of a waiter that is polled `here`. When it is done, the place is not its own any more. If a
    /// driver is to be started for it, it is to be polled again afterwards.
    pub(super) fn poll(
        &self,
        now: impl FnOnce() -> Timestamp,
        seat: SeatNo,
        waker: &Waker,
        here: Option<&H>,
    ) -> (Progress, Errand<H>) {
        let mut errand = Errand::none();
        // Wakers are cloned and dropped without the lock: that is foreign code.
        let mut waker = Some(waker.clone());
        let mut state = self.lock();
        let now = now();
        let progress = match state.lines.answer(now, seat, &mut waker) {
            Answer::Decided(decision) => Progress::Done(Ok(decision)),
            Answer::Closed => Progress::Done(Err(closed())),
            Answer::Waiting => match state.keep_driven(seat, here, &mut errand) {
                Ok(()) => Progress::Waiting,
                Err(error) => Progress::Stranded(error),
            },
        };
        drop(state);
        drop(waker);
        (progress, errand)
    }

    /// Gives up a place, and with it the turn, if it has come.
    pub(super) fn leave(&self, now: impl FnOnce() -> Timestamp, seat: SeatNo) -> Errand<H> {
        let mut errand = Errand::none();
        let mut state = self.lock();
        let now = now();
        let (given_back, waker) = state.lines.leave(now, seat);
        if let Some(line) = given_back {
            state.lines.release(now, line, &mut errand.wake);
        }
        state.signal(&mut errand);
        drop(state);
        drop(waker);
        errand
    }

    pub(super) fn give_back(
        &self,
        now: impl FnOnce() -> Timestamp,
        line: LineId,
        cost: u32,
        receipt: Receipt,
    ) -> Errand<H> {
        let mut errand = Errand::none();
        let mut state = self.lock();
        let now = now();
        let line = state.lines.charged(line);
        state.lines.give_back(now, line, cost, receipt);
        state.lines.release(now, line, &mut errand.wake);
        state.signal(&mut errand);
        errand
    }

    /// How many keys are remembered. Other threads get the lock between any few thousand keys that are counted.
    pub(super) fn table(&self, now: impl Fn() -> Timestamp) -> TableStats {
        let (mut paid, mut from) = (0, None);
        loop {
            let state = self.lock();
            let (count, more) = state.lines.count_paid(now(), from);
            paid += count;
            if more.is_none() {
                return state.lines.table(paid);
            }
            from = more;
        }
    }

    /// Another quota and other bounds, for all who wait.
    pub(super) fn change(&self, now: impl FnOnce() -> Timestamp, rules: &Lines) -> Errand<H> {
        let mut errand = Errand::none();
        let mut state = self.lock();
        let now = now();
        state.lines.change(now, rules, &mut errand.wake);
        state.signal(&mut errand);
        errand
    }

    /// For a driver: does some of what is due, and says what to do next.
    pub(super) fn tick(&self, driver: DriverNo, now: impl FnOnce() -> Timestamp, wake: &mut Vec<Waker>) -> Next {
        let mut state = self.lock();
        let now = now();
        let is_all = state.lines.release_some(now, wake);
        if state.lines.waiting_at(driver) == 0 {
            state.drivers.end(driver);
            return Next::End;
        }
        if !is_all {
            state.drivers.set_alarm(driver, Timestamp::ZERO);
            return Next::Yield;
        }
        let alarm = state.lines.next_release().unwrap_or(Timestamp::MAX);
        state.drivers.set_alarm(driver, alarm);
        Next::SleepUntil(alarm)
    }

    /// For a driver that was lost before it ended. The waiters of its runtime are to be woken, and go on where they are
    /// polled.
    pub(super) fn lose(&self, driver: DriverNo) -> Vec<Waker> {
        let mut state = self.lock();
        state.drivers.lose(driver);
        state.lines.take_wakers_at(driver)
    }

    /// Sends everybody away, for ever.
    pub(super) fn close(&self) -> Errand<H> {
        let mut errand = Errand::none();
        let mut state = self.lock();
        state.is_closed = true;
        errand.wake = state.lines.close();
        state.signal(&mut errand);
        errand
    }

    #[cfg(all(test, sluice_loom))]
    pub(super) fn taken(&self) -> u32 {
        self.lock().lines.taken()
    }
}

impl<H: Home> State<H> {
    fn join(
        &mut self,
        now: Timestamp,
        request: &Request,
        is_owned: bool,
        here: impl FnOnce() -> Option<H>,
        errand: &mut Errand<H>,
    ) -> Result<SeatNo, LimiterError> {
        let home = here();
        let driver = match &home {
            Some(home) => self.drivers.on(home.id(), &self.lines)?,
            // Until it is polled on a runtime.
            None => self.drivers.any().ok_or_else(no_runtime)?,
        };
        let seat = self.lines.join(now, request.id, request.cost, request.max_wait, is_owned, driver);
        self.drivers.watch(driver, home.as_ref(), &self.lines, errand);
        Ok(seat)
    }

    /// Sees to it that a driver lives where a waiter is polled.
    fn keep_driven(&mut self, seat: SeatNo, here: Option<&H>, errand: &mut Errand<H>) -> Result<(), LimiterError> {
        let Some(present) = self.lines.driver_of(seat) else { return Ok(()) };
        if self.drivers.is_alive(present, here.map(H::id)) {
            return Ok(());
        }
        let home = here.ok_or_else(no_runtime)?;
        match self.drivers.on(home.id(), &self.lines) {
            Ok(driver) => {
                self.lines.move_to(seat, driver);
                self.drivers.watch(driver, Some(home), &self.lines, errand);
                // The driver that it had may have no waiters left.
                self.signal(errand);
                Ok(())
            }
            // Here none can live, but the one that it has does.
            Err(_) if self.drivers.is_alive(present, None) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn signal(&self, errand: &mut Errand<H>) {
        self.drivers.signal(&self.lines, errand);
    }
}
