//! Which runtimes have drivers, and until when each driver sleeps. No task and no timer: what is to be started or
//! signalled is returned.

use std::task::Waker;

use super::schedule::Schedule;
use super::schedule::waiter_slab::DriverId;
use super::{no_timer, too_many_runtimes};
use crate::values::LimiterError;
use crate::values::time::Timestamp;

/// A runtime, as far as the monitor has to know it.
pub(super) trait Runtime: Clone {
    type Id: Copy + PartialEq;
    /// Makes a driver look at the schedule again. A signal that is sent before the driver waits for it is stored.
    type Signal: Clone + Default;

    fn id(&self) -> Self::Id;
}

/// The drivers of a queue.
///
/// A driver is a task on a runtime that has waiters, and releases *all* waiters that are due, on whatever runtime they
/// wait. So a turn comes on time while the runtime of its waiter is driven, whatever happens to the others.
///
/// # Invariants
///
/// They hold whenever the lock is free and all deferred work is done.
///
/// 1. A driver lives on each runtime that has waiters. [`watch`](Self::watch) starts it, and it ends only when no
///    waiter is left on its runtime. If it is lost (dropped with its runtime, or by a panic), the waiters of that
///    runtime are woken, and continue where they are polled next.
/// 2. If a FIFO has a waiter on the runtime of a sleeping driver, that driver wakes up no later than the FIFO's head may
///    depart. It looks at all FIFOs before it sleeps, and stores the time as its `alarm`. Later, a waiter may join a
///    FIFO from its runtime: then `watch` compares the turn with the alarm. Or a charge is refunded, or the quota
///    changes: then [`signal`](Self::signal) compares it with all alarms. All other events make turns come later.
///
/// Arrivals on one runtime do not wake the drivers of others.
pub(super) struct Drivers<R: Runtime>(Vec<QueueDriver<R>>);

struct QueueDriver<R: Runtime> {
    runtime: R::Id,
    signal: R::Signal,
    is_alive: bool,
    /// The time until which it sleeps; `None` while it is awake and will look at the schedule before it sleeps.
    alarm: Option<Timestamp>,
    /// How often it was lost while some of the same waiters waited.
    losses: u8,
}

/// The parameters of a driver that is to be started.
pub(super) struct DriverStart<R: Runtime> {
    pub(super) runtime: R,
    pub(super) id: DriverId,
    pub(super) signal: R::Signal,
}

/// After so many losses, a runtime is taken to have no timer, or to be shut down: it loses each driver that is started.
/// Not after the first, since a driver is lost by a panic, too, and the next may live.
const MAX_LOSSES: u8 = 3;

/// Work for after the lock is released, in this order.
#[must_use]
pub(super) struct AfterUnlock<R: Runtime> {
    pub(super) signals: Vec<R::Signal>,
    pub(super) start: Option<DriverStart<R>>,
    pub(super) wake: Vec<Waker>,
    /// Whether to warn that keys find no room.
    pub(super) warn: bool,
}

impl<R: Runtime> AfterUnlock<R> {
    pub(super) const fn none() -> Self {
        Self { signals: Vec::new(), start: None, wake: Vec::new(), warn: false }
    }
}

impl<R: Runtime> Drivers<R> {
    pub(super) const fn new() -> Self {
        Self(Vec::new())
    }

    /// Returns the id of a runtime's driver, which may have to be [started](Self::watch).
    ///
    /// Fails if the runtime is known to have no timer, or to be shut down; or if 65,536 runtimes have waiters.
    pub(super) fn on(&mut self, runtime: R::Id, schedule: &Schedule) -> Result<DriverId, LimiterError> {
        let ids = || (0..=u16::MAX).map(DriverId).zip(&self.0);
        let is_used = |id: DriverId, driver: &QueueDriver<R>| driver.is_alive || schedule.waiting_at(id) > 0;
        // Only one that is in use: a runtime may have the id of one that is gone.
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
    pub(super) fn any(&self) -> Option<DriverId> {
        (0..=u16::MAX).map(DriverId).zip(&self.0).find(|(_, driver)| driver.is_alive).map(|(id, _)| id)
    }

    /// Whether the driver lives, and on `runtime` if one is given.
    pub(super) fn is_alive(&self, id: DriverId, runtime: Option<R::Id>) -> bool {
        let driver = &self.0[id.index()];
        driver.is_alive && runtime.is_none_or(|runtime| runtime == driver.runtime)
    }

    /// Ensures, after a driver got another waiter, that it lives and wakes up in time. `runtime` is its runtime, if it
    /// may have to be started.
    pub(super) fn watch(
        &mut self,
        id: DriverId,
        runtime: Option<&R>,
        schedule: &Schedule,
        deferred: &mut AfterUnlock<R>,
    ) {
        let driver = &mut self.0[id.index()];
        if driver.is_alive {
            if schedule.next_release().is_some_and(|due| driver.sleeps_past(due)) {
                deferred.signals.push(driver.signal.clone());
            }
        } else if let Some(runtime) = runtime {
            // Alive from here on, under the lock, although its task is not spawned yet: otherwise a second arrival on
            // this runtime would start another.
            (driver.is_alive, driver.alarm) = (true, None);
            deferred.start = Some(DriverStart { runtime: runtime.clone(), id, signal: driver.signal.clone() });
        }
    }

    /// Signals the drivers that sleep past the next turn, and those without waiters, which are to end.
    pub(super) fn signal(&self, schedule: &Schedule, deferred: &mut AfterUnlock<R>) {
        let next = schedule.next_release().unwrap_or(Timestamp::MAX);
        for (id, driver) in (0..=u16::MAX).map(DriverId).zip(&self.0) {
            let is_idle = driver.alarm.is_some() && schedule.waiting_at(id) == 0;
            if driver.is_alive && (driver.sleeps_past(next) || is_idle) {
                deferred.signals.push(driver.signal.clone());
            }
        }
    }

    /// Stores until when a driver sleeps; `None` if it stays awake.
    pub(super) fn set_alarm(&mut self, id: DriverId, alarm: Option<Timestamp>) {
        self.0[id.index()].alarm = alarm;
    }

    /// Marks a driver as ended because no waiter was left on its runtime.
    pub(super) fn end(&mut self, id: DriverId) {
        self.0[id.index()].is_alive = false;
    }

    /// Marks a driver as lost: it was dropped, or has panicked.
    pub(super) fn lose(&mut self, id: DriverId) {
        let driver = &mut self.0[id.index()];
        driver.is_alive = false;
        driver.losses = driver.losses.saturating_add(1);
    }
}

impl<R: Runtime> QueueDriver<R> {
    /// Whether it must be signalled to release a waiter that is due then. A driver that is awake needs no signal: before
    /// it sleeps, it reads the schedule again under the lock.
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
    use crate::queue::schedule::QueueBounds;
    use crate::store::WhenFull;
    use crate::values::Quota;

    impl Runtime for u32 {
        type Id = Self;
        type Signal = ();

        fn id(&self) -> Self {
            *self
        }
    }

    /// Nobody waits in it.
    fn schedule() -> Schedule {
        let bounds =
            QueueBounds { max_queue: 1, max_wait: 1, max_waiters: 1, max_keys: 1, when_full: WhenFull::Overflow };
        Schedule::new(&Quota::per_second(1), bounds)
    }

    fn driver(runtime: u32, is_alive: bool, losses: u8) -> QueueDriver<u32> {
        QueueDriver { runtime, signal: (), is_alive, alarm: None, losses }
    }

    #[test]
    fn each_runtime_has_one_driver_and_ids_are_used_again() {
        let mut drivers = Drivers(vec![driver(7, true, 0), driver(8, false, 0), driver(9, true, 0)]);
        assert_eq!(drivers.on(9, &schedule()).unwrap(), DriverId(2));
        // The driver of runtime 8 has ended, and has no waiters.
        assert_eq!(drivers.on(5, &schedule()).unwrap(), DriverId(1));
        drivers.lose(DriverId(0));
        assert_eq!(drivers.any(), Some(DriverId(2)));
    }

    #[test]
    fn a_driver_lives_on_its_own_runtime_alone() {
        let drivers = Drivers(vec![driver(7, true, 0), driver(8, false, 0)]);
        let is_alive = |id| [None, Some(7), Some(8)].map(|runtime| drivers.is_alive(id, runtime));
        assert_eq!(is_alive(DriverId::FIRST), [true, true, false]);
        assert_eq!(is_alive(DriverId::SECOND), [false; 3]);
    }

    /// Until then it may have been lost by a panic, and the next one may live.
    #[test]
    fn a_runtime_is_given_up_once_it_has_lost_three_drivers() {
        for losses in 0..=u8::MAX {
            assert_eq!(driver(7, false, losses).is_lost_for_good(), losses >= 3, "{losses}");
            assert!(!driver(7, true, losses).is_lost_for_good(), "{losses}");
        }
    }

    #[test]
    fn no_more_than_65_536_runtimes_have_drivers_and_the_error_says_so() {
        let mut drivers = Drivers((0..=u32::from(u16::MAX)).map(|runtime| driver(runtime, true, 0)).collect());
        assert_eq!(drivers.on(65_535, &schedule()).unwrap(), DriverId(u16::MAX));
        assert!(drivers.on(65_536, &schedule()).unwrap_err().to_string().contains("65,536"));
        drivers.end(DriverId(3));
        assert_eq!(drivers.on(65_536, &schedule()).unwrap(), DriverId(3));
    }
}
