//! The monitor of a queue: its schedule and drivers behind one lock.

use std::convert::identity;
use std::ops::DerefMut;
use std::sync::PoisonError;
use std::task::Waker;

use super::drivers::{AfterUnlock, Drivers, Runtime};
use super::schedule::waiter_slab::{DriverId, WaiterId};
use super::schedule::{FifoId, FoundFifo, Schedule, WaiterState};
use super::{closed, no_runtime};
use crate::store::TableStats;
use crate::util::sync::Mutex;
use crate::values::time::Timestamp;
use crate::values::{Backlog, Decision, LimiterError, Receipt};

/// The schedule and the drivers under their lock (a monitor, as Hoare's).
///
/// All interaction between threads happens here, without any timer or task, so that loom can check it. Drivers to
/// start, drivers to signal and wakers are returned as [`AfterUnlock`] work: they run foreign code, which must not run
/// under the lock.
///
/// The clock is read under the lock, so that arrivals are ordered as their times are.
pub(super) struct Monitor<R: Runtime> {
    state: Mutex<MonitorState<R>>,
}

struct MonitorState<R: Runtime> {
    schedule: Schedule,
    /// Changed only under the lock: an arrival either finds the driver of its runtime alive, which then looks at the
    /// schedule once more, or starts the next.
    drivers: Drivers<R>,
    is_closed: bool,
}

/// What an arrival asks for.
pub(super) struct Request {
    pub(super) id: FifoId,
    pub(super) cost: u64,
    /// Nanoseconds.
    pub(super) max_wait: u64,
}

/// The result of an arrival: a decision at once, or a waiter.
pub(super) enum Arrival {
    Decided(Decision),
    Joined(WaiterId),
}

/// The state of a waiter when it is polled.
pub(super) enum WaiterProgress {
    Done(Result<Decision, LimiterError>),
    Waiting,
    /// It waits where no driver can live, and must leave.
    Stranded(LimiterError),
}

/// What a driver does next.
#[derive(Debug)]
pub(super) enum NextStep {
    /// Let other tasks run, and tick again at once.
    Yield,
    SleepUntil(Timestamp),
    End,
}

impl<R: Runtime> Monitor<R> {
    pub(super) fn new(schedule: Schedule) -> Self {
        Self { state: Mutex::new(MonitorState { schedule, drivers: Drivers::new(), is_closed: false }) }
    }

    fn lock(&self) -> impl DerefMut<Target = MonitorState<R>> + '_ {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn waiting(&self) -> usize {
        self.lock().schedule.waiting()
    }

    pub(super) fn backlog(&self, now: impl FnOnce() -> Timestamp) -> Backlog {
        let state = self.lock();
        let now = now();
        Backlog::new(state.schedule.waiting(), state.schedule.next_release().map(|due| due.saturating_since(now)))
    }

    /// Decides, or adds a waiter. `here` returns the current runtime, and is called if the request has to wait.
    pub(super) fn enqueue(
        &self,
        now: impl FnOnce() -> Timestamp,
        request: &Request,
        here: impl FnOnce() -> Option<R>,
    ) -> (Result<Arrival, LimiterError>, AfterUnlock<R>) {
        self.arrive(now, request, Arrival::Decided, |state, now, request, _, deferred| {
            state.join(now, request, true, here, deferred).map(Arrival::Joined)
        })
    }

    /// Adds a waiter without a future, which takes its turn all the same.
    pub(super) fn enqueue_detached(
        &self,
        now: impl FnOnce() -> Timestamp,
        request: &Request,
        here: impl FnOnce() -> Option<R>,
    ) -> (Result<Decision, LimiterError>, AfterUnlock<R>) {
        self.arrive(now, request, identity, |state, now, request, departs_at, deferred| {
            let decision = state.schedule.preview(now, request.id, request.cost, departs_at);
            state.join(now, request, false, here, deferred).map(|_| decision)
        })
    }

    /// Answers with what `decided` makes of a decision at once, or with what `join` makes of a request that has to wait.
    fn arrive<T>(
        &self,
        now: impl FnOnce() -> Timestamp,
        request: &Request,
        decided: impl FnOnce(Decision) -> T,
        join: impl FnOnce(
            &mut MonitorState<R>,
            Timestamp,
            &Request,
            Timestamp,
            &mut AfterUnlock<R>,
        ) -> Result<T, LimiterError>,
    ) -> (Result<T, LimiterError>, AfterUnlock<R>) {
        let &Request { id, cost, max_wait } = request;
        let mut deferred = AfterUnlock::none();
        let mut state = self.lock();
        if state.is_closed {
            return (Err(closed()), deferred);
        }
        let now = now();
        // The FIFO of the request, if the schedule has room for its key.
        let found = state.schedule.find(now, id, cost);
        let claimed = state.schedule.claim(now, id, found);
        deferred.warn = state.schedule.take_warning();
        let id = match claimed {
            Ok(id) => id,
            Err(rejection) => return (Ok(decided(rejection)), deferred),
        };
        // Its place in that FIFO, behind those that are not due yet.
        state.schedule.catch_up(now, id, &mut deferred.wake);
        let arrival = match state.schedule.check_arrival(now, id, cost, max_wait) {
            Err(rejection) => Ok(decided(rejection)),
            Ok(departs_at) if departs_at <= now => Ok(decided(state.schedule.depart_now(now, id, cost))),
            Ok(departs_at) => join(&mut state, now, &Request { id, cost, max_wait }, departs_at, &mut deferred),
        };
        (arrival, deferred)
    }

    /// Returns what [`enqueue`](Self::enqueue) would decide; `None` if the queue is closed.
    pub(super) fn peek(
        &self,
        now: impl FnOnce() -> Timestamp,
        request: &Request,
    ) -> (Option<Decision>, AfterUnlock<R>) {
        let &Request { id, cost, max_wait } = request;
        let mut deferred = AfterUnlock::none();
        let mut state = self.lock();
        if state.is_closed {
            return (None, deferred);
        }
        let now = now();
        let id = match state.schedule.find(now, id, cost) {
            FoundFifo::Own | FoundFifo::InPlaceOf(_) => id,
            FoundFifo::Shared(fifo) => fifo,
            FoundFifo::Nowhere => return (Some(state.schedule.full_rejection(now)), deferred),
        };
        state.schedule.catch_up(now, id, &mut deferred.wake);
        let decision = match state.schedule.check_arrival(now, id, cost, max_wait) {
            Err(rejection) => rejection,
            Ok(departs_at) => state.schedule.preview(now, id, cost, departs_at),
        };
        (Some(decision), deferred)
    }

    /// Returns the state of a waiter that is polled `here`. When it is done, its id is free. If a driver is to be
    /// started for it, it must be polled again afterwards.
    pub(super) fn poll(
        &self,
        now: impl FnOnce() -> Timestamp,
        waiter: WaiterId,
        waker: &Waker,
        here: Option<&R>,
    ) -> (WaiterProgress, AfterUnlock<R>) {
        let mut deferred = AfterUnlock::none();
        // Wakers are cloned and dropped outside of the lock: both run foreign code, which may call the queue again.
        let mut waker = Some(waker.clone());
        let mut state = self.lock();
        let now = now();
        let progress = match state.schedule.poll_waiter(now, waiter, &mut waker) {
            WaiterState::Decided(decision) => WaiterProgress::Done(Ok(decision)),
            WaiterState::Closed => WaiterProgress::Done(Err(closed())),
            WaiterState::Waiting => match state.keep_driven(waiter, here, &mut deferred) {
                Ok(()) => WaiterProgress::Waiting,
                Err(error) => WaiterProgress::Stranded(error),
            },
        };
        drop(state);
        drop(waker);
        (progress, deferred)
    }

    /// Removes a waiter, and returns its turn if that has come.
    pub(super) fn leave(&self, now: impl FnOnce() -> Timestamp, waiter: WaiterId) -> AfterUnlock<R> {
        let mut deferred = AfterUnlock::none();
        let mut state = self.lock();
        let now = now();
        let (returned_to, waker) = state.schedule.leave(now, waiter);
        if let Some(fifo) = returned_to {
            state.schedule.release(now, fifo, &mut deferred.wake);
        }
        state.signal(&mut deferred);
        drop(state);
        drop(waker);
        deferred
    }

    /// Undoes a departure, so that those behind it depart sooner.
    pub(super) fn refund(
        &self,
        now: impl FnOnce() -> Timestamp,
        fifo: FifoId,
        cost: u64,
        receipt: Receipt,
    ) -> AfterUnlock<R> {
        let mut deferred = AfterUnlock::none();
        let mut state = self.lock();
        let now = now();
        let fifo = state.schedule.charged_fifo(fifo);
        state.schedule.refund(now, fifo, cost, receipt);
        state.schedule.release(now, fifo, &mut deferred.wake);
        state.signal(&mut deferred);
        deferred
    }

    /// Counts the keys. Other threads get the lock after every few thousand keys that are counted.
    pub(super) fn table(&self, now: impl Fn() -> Timestamp) -> TableStats {
        let (mut paid, mut from) = (0, None);
        loop {
            let state = self.lock();
            let (count, more) = state.schedule.count_paid(now(), from);
            paid += count;
            if more.is_none() {
                return state.schedule.table(paid);
            }
            from = more;
        }
    }

    /// Applies another quota and other bounds to all waiters.
    pub(super) fn change(&self, now: impl FnOnce() -> Timestamp, rules: &Schedule) -> AfterUnlock<R> {
        let mut deferred = AfterUnlock::none();
        let mut state = self.lock();
        let now = now();
        state.schedule.change(now, rules, &mut deferred.wake);
        state.signal(&mut deferred);
        deferred
    }

    /// For a driver: releases some of the waiters that are due, and returns what to do next.
    pub(super) fn tick(&self, driver: DriverId, now: impl FnOnce() -> Timestamp, wake: &mut Vec<Waker>) -> NextStep {
        let mut state = self.lock();
        let now = now();
        let is_all = state.schedule.release_some(now, wake);
        if state.schedule.waiting_at(driver) == 0 {
            // Under the same lock as the count: a request that joins on this runtime either was counted, or finds the
            // driver ended and starts another.
            state.drivers.end(driver);
            return NextStep::End;
        }
        if !is_all {
            state.drivers.set_alarm(driver, None);
            return NextStep::Yield;
        }
        // Stored under the lock: a turn that comes sooner than the alarm was either seen here, or is compared with the
        // alarm by the thread that makes it come sooner, which then signals this driver.
        let alarm = state.schedule.next_release().unwrap_or(Timestamp::MAX);
        state.drivers.set_alarm(driver, Some(alarm));
        NextStep::SleepUntil(alarm)
    }

    /// For a driver that was lost before it ended: returns the wakers of the waiters on its runtime, which continue
    /// where they are polled next.
    pub(super) fn lose(&self, driver: DriverId) -> Vec<Waker> {
        let mut state = self.lock();
        state.drivers.lose(driver);
        state.schedule.take_wakers_at(driver)
    }

    /// Ends all waits, for good.
    pub(super) fn close(&self) -> AfterUnlock<R> {
        let mut deferred = AfterUnlock::none();
        let mut state = self.lock();
        // Checked by arrivals under the same lock, so none joins after the waiters were taken.
        state.is_closed = true;
        deferred.wake = state.schedule.close();
        state.signal(&mut deferred);
        deferred
    }

    #[cfg(feature = "test-util")]
    pub(super) fn check_invariants(&self) {
        self.lock().schedule.check_invariants();
    }

    #[cfg(all(test, sluice_loom))]
    pub(super) fn taken(&self) -> u32 {
        self.lock().schedule.taken()
    }
}

impl<R: Runtime> MonitorState<R> {
    fn join(
        &mut self,
        now: Timestamp,
        request: &Request,
        has_future: bool,
        here: impl FnOnce() -> Option<R>,
        deferred: &mut AfterUnlock<R>,
    ) -> Result<WaiterId, LimiterError> {
        let runtime = here();
        let driver = match &runtime {
            Some(runtime) => self.drivers.on(runtime.id(), &self.schedule)?,
            // Until it is polled on a runtime.
            None => self.drivers.any().ok_or_else(no_runtime)?,
        };
        let waiter = self.schedule.join(now, request.id, request.cost, request.max_wait, has_future, driver);
        self.drivers.watch(driver, runtime.as_ref(), &self.schedule, deferred);
        Ok(waiter)
    }

    /// Ensures that a driver lives where a waiter is polled.
    fn keep_driven(
        &mut self,
        waiter: WaiterId,
        here: Option<&R>,
        deferred: &mut AfterUnlock<R>,
    ) -> Result<(), LimiterError> {
        let Some(present) = self.schedule.driver_of(waiter) else { return Ok(()) };
        if self.drivers.is_alive(present, here.map(R::id)) {
            return Ok(());
        }
        let runtime = here.ok_or_else(no_runtime)?;
        match self.drivers.on(runtime.id(), &self.schedule) {
            Ok(driver) => {
                self.schedule.move_to(waiter, driver);
                self.drivers.watch(driver, Some(runtime), &self.schedule, deferred);
                // The driver that it had may have no waiters left, and must be woken to end.
                self.signal(deferred);
                Ok(())
            }
            // No driver can live here, but the one that the waiter has does.
            Err(_) if self.drivers.is_alive(present, None) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn signal(&self, deferred: &mut AfterUnlock<R>) {
        self.drivers.signal(&self.schedule, deferred);
    }
}

#[cfg(all(test, not(sluice_loom)))]
mod tests {
    use super::*;
    use crate::queue::schedule::QueueBounds;
    use crate::store::WhenFull;
    use crate::values::Quota;

    /// A waiter whose runtime is driven is released in time, wherever else it is polled.
    #[test]
    fn a_waiter_is_not_stranded_where_no_driver_can_live_while_its_own_lives() {
        let second = 1_000_000_000;
        let bounds = QueueBounds {
            max_queue: 8,
            max_wait: 8 * second,
            max_waiters: 8,
            max_keys: 8,
            when_full: WhenFull::Reject,
        };
        let mut state: MonitorState<u32> = MonitorState {
            schedule: Schedule::new(&Quota::per_second(1), bounds),
            drivers: Drivers::new(),
            is_closed: false,
        };
        let (good, broken) = (7, 9);
        let request = Request { id: FifoId(1_024), cost: 1, max_wait: 8 * second };
        let mut deferred = AfterUnlock::none();
        let mut join = |runtime| state.join(Timestamp::ZERO, &request, true, || Some(runtime), &mut deferred).unwrap();
        let [waiter, _, stranded] = [good, good, broken].map(&mut join);
        let [good_driver, broken_driver] = [waiter, stranded].map(|id| state.schedule.driver_of(id).unwrap());
        // A runtime without a timer loses each driver that is started there.
        while state.keep_driven(stranded, Some(&broken), &mut deferred).is_ok() {
            state.drivers.lose(broken_driver);
        }
        assert!(state.keep_driven(waiter, Some(&broken), &mut deferred).is_ok());
        assert_eq!(state.schedule.driver_of(waiter), Some(good_driver));
        state.drivers.lose(good_driver);
        assert!(state.keep_driven(waiter, Some(&broken), &mut deferred).is_err());
    }
}
