//! The monitor of a queue: its schedule, and which runtimes have drivers. It has no task and no timer: it returns the
//! drivers to start or to signal, and the waiters to wake.

use std::task::{Poll, Waker};

use super::schedule::waiter_slab::{DriverId, WaiterId};
use super::schedule::{FifoId, Schedule};
use super::{closed, no_runtime, no_timer, too_many_runtimes};
use crate::values::time::Timestamp;
use crate::values::{Backlog, Decision, LimiterError, Quota, Receipt};

/// A queue's schedule and drivers, behind one lock (a Hoare monitor).
///
/// All interaction between threads happens here, without any timer or task, so that loom can check it. The holder of
/// the lock reads the clock under it, so that arrivals are ordered by their times. Work that runs foreign code is
/// returned as [`AfterUnlock`], because it must not run under the lock.
pub(super) struct Monitor<R: Runtime> {
    pub(super) schedule: Schedule,
    /// An arrival either finds the driver of its runtime alive, which then looks at the schedule once more, or starts
    /// the next.
    drivers: Drivers<R>,
    is_closed: bool,
}

/// A request that arrives.
pub(super) struct Request {
    pub(super) id: FifoId,
    pub(super) cost: u64,
    /// Nanoseconds.
    pub(super) max_wait: u64,
    /// The key's own quota; `None` for the queue's.
    pub(super) quota: Option<Quota>,
    /// Whether it is asked under the quota from the key's last question instead.
    pub(super) keeps_quota: bool,
    pub(super) kind: RequestKind,
}

/// How to handle a request that may pass, but not at once.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestKind {
    /// It waits, and has a future.
    Waiter,
    /// It joins without a future, and takes its turn all the same, so that those behind wait exactly as they would
    /// behind a request.
    Detached,
    /// It takes no turn, whether or not it would have to wait.
    Peek,
}

/// The result of an arrival: a decision at once, or a waiter.
pub(super) enum Arrival {
    Decided(Decision),
    Joined(WaiterId),
}

/// A driver's next step.
#[derive(Debug)]
pub(super) enum NextStep {
    /// Let other tasks run, and tick again at once.
    Yield,
    SleepUntil(Timestamp),
    End,
}

/// Work for after the lock is released, in this order.
#[must_use]
pub(super) struct AfterUnlock<R: Runtime> {
    pub(super) signals: Vec<R::Signal>,
    pub(super) start: Option<DriverStart<R>>,
    pub(super) wake: Vec<Waker>,
    /// To be dropped, which runs foreign code as well.
    pub(super) dropped: Option<Waker>,
    /// Whether the caller is a driver, which lets other tasks run right afterwards.
    pub(super) is_driver: bool,
    /// Whether to warn that keys find no room.
    pub(super) warn: bool,
}

impl<R: Runtime> AfterUnlock<R> {
    pub(super) const fn none() -> Self {
        Self { signals: Vec::new(), start: None, wake: Vec::new(), dropped: None, is_driver: false, warn: false }
    }
}

impl<R: Runtime> Monitor<R> {
    pub(super) const fn new(schedule: Schedule) -> Self {
        Self { schedule, drivers: Drivers(Vec::new()), is_closed: false }
    }

    /// Decides, or adds a waiter. `here` returns the current runtime, and is called if the request has to wait.
    pub(super) fn arrive(
        &mut self,
        now: Timestamp,
        request: &Request,
        here: impl FnOnce() -> Option<R>,
        deferred: &mut AfterUnlock<R>,
    ) -> Result<Arrival, LimiterError> {
        if self.is_closed {
            return Err(closed());
        }
        let &Request { id, cost, quota, keeps_quota, kind, .. } = request;
        let others = if keeps_quota { None } else { self.schedule.other_rules(id, quota) };
        // The request's FIFO, if the schedule has room for its key.
        let found = self.schedule.find(now, id, cost, others.as_deref(), kind != RequestKind::Peek);
        deferred.warn = self.schedule.take_warning();
        let id = match found {
            Ok(id) => id,
            Err(rejection) => return Ok(Arrival::Decided(rejection)),
        };
        // Its place in that FIFO, behind the waiters that are not due yet.
        self.schedule.catch_up(now, id, &mut deferred.wake);
        // Keys without their own FIFO share one, at the queue's quota.
        if let Some(rules) = others.filter(|_| id == request.id) {
            self.schedule.set_rules(now, id, rules, &mut deferred.wake);
            self.drivers.signal(&self.schedule, deferred);
        }
        let arrival = self.arrive_in(id, now, request, here, deferred);
        self.schedule.forget_unused(id);
        arrival
    }

    /// [`arrive`](Self::arrive) in a FIFO whose due waiters have departed.
    fn arrive_in(
        &mut self,
        id: FifoId,
        now: Timestamp,
        request: &Request,
        here: impl FnOnce() -> Option<R>,
        deferred: &mut AfterUnlock<R>,
    ) -> Result<Arrival, LimiterError> {
        let &Request { cost, max_wait, kind, .. } = request;
        let departs_at = match self.schedule.check_arrival(now, id, cost, max_wait) {
            Ok(departs_at) => departs_at,
            Err(rejection) => return Ok(Arrival::Decided(rejection)),
        };
        let preview = || self.schedule.preview(now, id, cost, departs_at);
        let preview = match kind {
            RequestKind::Peek => return Ok(Arrival::Decided(preview())),
            _ if departs_at <= now => return Ok(Arrival::Decided(self.schedule.depart_now(now, id, cost))),
            RequestKind::Detached => Some(preview()),
            RequestKind::Waiter => None,
        };

        let runtime = here();
        let driver = match &runtime {
            Some(runtime) => self.drivers.driver_on(runtime.id(), &self.schedule)?,
            // Until it is polled on a runtime.
            None => self.drivers.any().ok_or_else(no_runtime)?,
        };
        let waiter = self.schedule.join(now, id, cost, max_wait, kind == RequestKind::Waiter, driver);
        self.drivers.watch(driver, runtime.as_ref(), &self.schedule, deferred);
        Ok(preview.map_or(Arrival::Joined(waiter), Arrival::Decided))
    }

    /// Returns the result of a waiter that is polled `here`; its id is free from then on. If this starts a driver for
    /// it, it must be polled again afterwards. The waker that is left in `waker` must be dropped outside of the lock.
    pub(super) fn poll(
        &mut self,
        now: Timestamp,
        waiter: WaiterId,
        waker: &mut Option<Waker>,
        here: Option<&R>,
        deferred: &mut AfterUnlock<R>,
    ) -> Poll<Result<Decision, LimiterError>> {
        if let Poll::Ready(decision) = self.schedule.poll_waiter(now, waiter, waker) {
            return Poll::Ready(decision.ok_or_else(closed));
        }
        match self.keep_driven(waiter, here, deferred) {
            Ok(()) => Poll::Pending,
            // It waits where no driver can live.
            Err(error) => {
                self.leave(now, waiter, deferred);
                Poll::Ready(Err(error))
            }
        }
    }

    /// Removes a waiter, and returns its turn if that has come.
    pub(super) fn leave(&mut self, now: Timestamp, waiter: WaiterId, deferred: &mut AfterUnlock<R>) {
        let (returned_to, waker) = self.schedule.leave(now, waiter);
        deferred.dropped = waker;
        if let Some(fifo) = returned_to {
            self.schedule.release_all(now, Some(fifo), &mut deferred.wake);
        }
        self.drivers.signal(&self.schedule, deferred);
    }

    /// Undoes a departure, so that those behind it depart sooner.
    pub(super) fn refund(
        &mut self,
        now: Timestamp,
        fifo: FifoId,
        cost: u64,
        receipt: Receipt,
        deferred: &mut AfterUnlock<R>,
    ) {
        let fifo = self.schedule.charged_fifo(fifo);
        self.schedule.refund(now, fifo, cost, receipt);
        self.schedule.release_all(now, Some(fifo), &mut deferred.wake);
        self.drivers.signal(&self.schedule, deferred);
    }

    /// Applies another quota and other bounds to all waiters.
    pub(super) fn change(&mut self, now: Timestamp, rules: &Schedule, deferred: &mut AfterUnlock<R>) {
        self.schedule.change(now, rules, &mut deferred.wake);
        self.drivers.signal(&self.schedule, deferred);
    }

    /// Ends all waits, for good.
    pub(super) fn close(&mut self, deferred: &mut AfterUnlock<R>) {
        // Arrivals check this under the same lock, so no request joins after the waiters were taken.
        self.is_closed = true;
        deferred.wake = self.schedule.close();
        self.drivers.signal(&self.schedule, deferred);
    }

    /// For a driver: releases some of the waiters that are due, and returns its next step.
    pub(super) fn tick(&mut self, now: Timestamp, driver: DriverId, deferred: &mut AfterUnlock<R>) -> NextStep {
        deferred.is_driver = true;
        let is_all = self.schedule.release_some(now, None, &mut deferred.wake);
        if self.schedule.waiting_by_driver(driver) == 0 {
            // Under the same lock as the count: a request that joins on this runtime either was counted, or finds the
            // driver ended and starts another.
            self.drivers.end(driver);
            return NextStep::End;
        }
        if !is_all {
            self.drivers.set_alarm(driver, None);
            return NextStep::Yield;
        }
        // Stored under the lock: a turn that comes sooner than the alarm was either seen here, or is compared with the
        // alarm by the thread that makes it come sooner, which then signals this driver.
        let alarm = self.schedule.next_release().unwrap_or(Timestamp::MAX);
        self.drivers.set_alarm(driver, Some(alarm));
        NextStep::SleepUntil(alarm)
    }

    /// For a driver that was lost before it ended: wakes the waiters on its runtime, which continue where they are
    /// polled next.
    pub(super) fn lose(&mut self, driver: DriverId, deferred: &mut AfterUnlock<R>) {
        deferred.is_driver = true;
        self.drivers.lose(driver);
        deferred.wake = self.schedule.take_wakers_of(driver);
    }

    pub(super) fn backlog(&self, now: Timestamp) -> Backlog {
        Backlog::new(self.schedule.waiting(), self.schedule.next_release().map(|due| due.saturating_since(now)))
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
        match self.drivers.driver_on(runtime.id(), &self.schedule) {
            Ok(driver) => {
                self.schedule.set_driver(waiter, driver);
                self.drivers.watch(driver, Some(runtime), &self.schedule, deferred);
                // The driver that it had may have no waiters left, and must be woken to end.
                self.drivers.signal(&self.schedule, deferred);
                Ok(())
            }
            // No driver can live here, but the waiter's present driver is alive.
            Err(_) if self.drivers.is_alive(present, None) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// A runtime, as far as the monitor has to know it.
pub(super) trait Runtime: Clone {
    type Id: Copy + PartialEq;
    /// Makes a driver look at the schedule again. A signal that is sent before the driver waits for it is stored.
    type Signal: Clone + Default;

    fn id(&self) -> Self::Id;
}

/// A queue's drivers.
///
/// A driver is a task on a runtime that has waiters, and releases *all* waiters that are due, on all runtimes. So a
/// turn comes on time while its waiter's runtime is driven, regardless of the others.
///
/// # Invariants
///
/// They hold whenever the lock is free and all deferred work is done.
///
/// 1. A driver lives on each runtime that has waiters. [`watch`](Self::watch) starts it, and it ends only when no
///    waiter is left on its runtime. If it is lost (dropped with its runtime, or by a panic), that runtime's waiters
///    are woken, and continue where they are polled next.
/// 2. If a FIFO has a waiter on a sleeping driver's runtime, that driver wakes up no later than the FIFO's head may
///    depart. It looks at all FIFOs before it sleeps, and stores the time as its `alarm`. Later, a waiter may join a
///    FIFO from its runtime: then `watch` compares the turn with the alarm. Or a charge is refunded, or the quota
///    changes: then [`signal`](Self::signal) compares it with all alarms. All other events make turns come later.
///
/// Arrivals on one runtime do not wake the drivers of others.
struct Drivers<R: Runtime>(Vec<QueueDriver<R>>);

struct QueueDriver<R: Runtime> {
    runtime: R::Id,
    signal: R::Signal,
    is_alive: bool,
    /// The time until which it sleeps. Unset while it is awake, and will look at the schedule before it sleeps.
    alarm: Option<Timestamp>,
    /// How often it was lost while some of the same waiters waited.
    losses: u8,
}

/// The parameters of a driver to start.
pub(super) struct DriverStart<R: Runtime> {
    pub(super) runtime: R,
    pub(super) id: DriverId,
    pub(super) signal: R::Signal,
}

/// After this number of losses, a runtime is taken to have no timer, or to be shut down: it loses each driver that is
/// started. Not after the first, since a driver is lost by a panic, too, and the next may live.
const MAX_LOSSES: u8 = 3;

impl<R: Runtime> Drivers<R> {
    /// Returns the id of a runtime's driver, which may have to be [started](Self::watch).
    ///
    /// Fails if the runtime is known to have no timer, or to be shut down; or if 65,536 runtimes have waiters.
    fn driver_on(&mut self, runtime: R::Id, schedule: &Schedule) -> Result<DriverId, LimiterError> {
        let ids = || (0..=u16::MAX).map(DriverId).zip(&self.0);
        let is_used = |id: DriverId, driver: &QueueDriver<R>| driver.is_alive || schedule.waiting_by_driver(id) > 0;
        // Only a driver in use: a runtime may have the id of a runtime that is gone.
        if let Some((id, driver)) = ids().find(|(id, it)| it.runtime == runtime && is_used(*id, it)) {
            return if driver.is_lost_for_good() { Err(no_timer()) } else { Ok(id) };
        }
        let new = QueueDriver { runtime, signal: R::Signal::default(), is_alive: false, alarm: None, losses: 0 };
        if let Some((id, _)) = ids().find(|(id, driver)| !is_used(*id, driver)) {
            self.0[id.index()] = new;
            return Ok(id);
        }
        let id = u16::try_from(self.0.len()).map_err(|_| too_many_runtimes())?;
        self.0.push(new);
        Ok(DriverId(id))
    }

    /// Returns the id of any living driver.
    fn any(&self) -> Option<DriverId> {
        (0..=u16::MAX).map(DriverId).zip(&self.0).find(|(_, driver)| driver.is_alive).map(|(id, _)| id)
    }

    /// Whether the driver lives, and on `runtime` if one is given.
    fn is_alive(&self, id: DriverId, runtime: Option<R::Id>) -> bool {
        let driver = &self.0[id.index()];
        driver.is_alive && runtime.is_none_or(|runtime| runtime == driver.runtime)
    }

    /// Ensures, after a driver got another waiter, that it lives and wakes up in time. `runtime` is its runtime, if it
    /// may have to be started.
    fn watch(&mut self, id: DriverId, runtime: Option<&R>, schedule: &Schedule, deferred: &mut AfterUnlock<R>) {
        let driver = &mut self.0[id.index()];
        if driver.is_alive {
            if schedule.next_release().is_some_and(|due| driver.sleeps_past(due)) {
                deferred.signals.push(driver.signal.clone());
            }
        } else if let Some(runtime) = runtime {
            // Alive from here on, under the lock, although its task is not spawned yet: otherwise a second arrival on
            // this runtime would start another.
            driver.is_alive = true;
            driver.alarm = None;
            deferred.start = Some(DriverStart { runtime: runtime.clone(), id, signal: driver.signal.clone() });
        }
    }

    /// Signals the drivers that sleep past the next turn, and those without waiters, which have to end.
    fn signal(&self, schedule: &Schedule, deferred: &mut AfterUnlock<R>) {
        let next = schedule.next_release().unwrap_or(Timestamp::MAX);
        for (id, driver) in (0..=u16::MAX).map(DriverId).zip(&self.0) {
            let is_idle = driver.alarm.is_some() && schedule.waiting_by_driver(id) == 0;
            if driver.is_alive && (driver.sleeps_past(next) || is_idle) {
                deferred.signals.push(driver.signal.clone());
            }
        }
    }

    /// Stores the time until which a driver sleeps, unless it stays awake.
    fn set_alarm(&mut self, id: DriverId, alarm: Option<Timestamp>) {
        self.0[id.index()].alarm = alarm;
    }

    /// Marks a driver as ended because no waiter was left on its runtime.
    fn end(&mut self, id: DriverId) {
        self.0[id.index()].is_alive = false;
    }

    /// Marks a driver as lost: it was dropped, or has panicked.
    fn lose(&mut self, id: DriverId) {
        let driver = &mut self.0[id.index()];
        driver.is_alive = false;
        driver.losses = driver.losses.saturating_add(1);
    }
}

impl<R: Runtime> QueueDriver<R> {
    /// Whether it must be signalled to release a waiter that is due then. A driver that is awake needs no signal:
    /// before it sleeps, it reads the schedule again under the lock.
    fn sleeps_past(&self, due: Timestamp) -> bool {
        self.alarm.is_some_and(|alarm| due < alarm)
    }

    const fn is_lost_for_good(&self) -> bool {
        !self.is_alive && self.losses >= MAX_LOSSES
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::WaitBounds;
    use crate::queue::schedule::QueueBounds;
    use crate::values::Quota;

    impl Runtime for u32 {
        type Id = Self;
        type Signal = ();

        fn id(&self) -> Self {
            *self
        }
    }

    fn schedule() -> Schedule {
        Schedule::new(&Quota::per_second(1), QueueBounds::new(WaitBounds::new(8)))
    }

    fn driver(runtime: u32, is_alive: bool, losses: u8) -> QueueDriver<u32> {
        QueueDriver { runtime, signal: (), is_alive, alarm: None, losses }
    }

    /// The id of a driver that has ended is used again.
    #[test]
    fn runtimes_have_one_driver_each() {
        let mut drivers = Drivers(vec![driver(7, true, 0), driver(8, false, 0), driver(9, true, 0)]);
        assert_eq!(drivers.driver_on(9, &schedule()).unwrap(), DriverId(2));
        // The driver of runtime 8 has ended, and has no waiters.
        assert_eq!(drivers.driver_on(5, &schedule()).unwrap(), DriverId(1));
        drivers.lose(DriverId(0));
        assert_eq!(drivers.any(), Some(DriverId(2)));
    }

    #[test]
    fn drivers_live_on_their_own_runtime() {
        let drivers = Drivers(vec![driver(7, true, 0), driver(8, false, 0)]);
        let is_alive = |id| [None, Some(7), Some(8)].map(|runtime| drivers.is_alive(id, runtime));
        assert_eq!(is_alive(DriverId::FIRST), [true, true, false]);
        assert_eq!(is_alive(DriverId::SECOND), [false; 3]);
    }

    /// An earlier driver may have been lost by a panic, and the next one may live.
    #[test]
    fn three_losses_give_up_a_runtime() {
        for losses in 0..=u8::MAX {
            assert_eq!(driver(7, false, losses).is_lost_for_good(), losses >= 3, "{losses}");
            assert!(!driver(7, true, losses).is_lost_for_good(), "{losses}");
        }
    }

    #[test]
    fn at_most_65_536_runtimes_have_drivers() {
        let mut drivers = Drivers((0..=u32::from(u16::MAX)).map(|runtime| driver(runtime, true, 0)).collect());
        assert_eq!(drivers.driver_on(65_535, &schedule()).unwrap(), DriverId(u16::MAX));
        assert!(drivers.driver_on(65_536, &schedule()).unwrap_err().to_string().contains("65,536"));
        drivers.end(DriverId(3));
        assert_eq!(drivers.driver_on(65_536, &schedule()).unwrap(), DriverId(3));
    }

    /// A waiter whose runtime is driven is released in time, even if it is polled on another.
    #[cfg(not(sluice_loom))]
    #[test]
    fn waiters_survive_polls_on_broken_runtimes() {
        let mut monitor: Monitor<u32> = Monitor::new(schedule());
        let good = 7;
        let broken = 9;
        let kind = RequestKind::Waiter;
        let request =
            Request { id: FifoId(1_024), cost: 1, max_wait: 8_000_000_000, quota: None, keeps_quota: false, kind };
        let mut deferred = AfterUnlock::none();
        let mut arrive = |runtime| monitor.arrive(Timestamp::ZERO, &request, || Some(runtime), &mut deferred).unwrap();
        assert!(matches!(arrive(good), Arrival::Decided(_)));
        let mut join = |runtime| match arrive(runtime) {
            Arrival::Joined(waiter) => waiter,
            Arrival::Decided(decision) => panic!("{decision:?}"),
        };
        let [waiter, _, stranded] = [good, good, broken].map(&mut join);
        let [good_driver, broken_driver] = [waiter, stranded].map(|id| monitor.schedule.driver_of(id).unwrap());
        // A runtime without a timer loses each driver that is started there.
        while monitor.keep_driven(stranded, Some(&broken), &mut deferred).is_ok() {
            monitor.drivers.lose(broken_driver);
        }
        assert!(monitor.keep_driven(waiter, Some(&broken), &mut deferred).is_ok());
        assert_eq!(monitor.schedule.driver_of(waiter), Some(good_driver));
        monitor.drivers.lose(good_driver);
        assert!(monitor.keep_driven(waiter, Some(&broken), &mut deferred).is_err());
    }
}
