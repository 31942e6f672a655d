use super::monitor::Errand;
use super::no_time;
use super::schedule::Lines;
use crate::values::LimiterError;
use crate::values::time::Timestamp;

/// A runtime, as far as a room has to know it.
pub(super) trait Home: Clone {
    type Id: Copy + PartialEq;
    /// Makes a driver look at the lines again. A signal that is sent before the driver waits for it is kept.
    type Signal: Clone + Default;

    fn id(&self) -> Self::Id;
}

/// The number of a driver. Each waiter has one: that of the runtime on which it was last polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DriverNo(u16);

impl DriverNo {
    #[cfg(all(test, sluice_loom))]
    pub(super) const FIRST: Self = Self(0);

    pub(super) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The drivers of a queue. A driver is a task on a runtime that has waiters, and releases *all* waiters that are due, on
/// whatever runtime they wait. So a turn comes on time while the runtime of its waiter is driven, whatever becomes of
/// the others.
///
/// # Invariants
///
/// They hold whenever the room is unlocked and its errands are done.
///
/// 1. A driver lives on each runtime that has waiters. [`watch`](Self::watch) starts it, and it ends only when no
///    waiter is left on its runtime. If it is lost (dropped with its runtime, or by a panic), the waiters of that
///    runtime are woken, and go on where they are polled next.
/// 2. A driver that sleeps wakes up no later than the head of any line leaves that has a waiter on its runtime. It looks
///    at all lines before it sleeps, and remembers the time as its `alarm`. Later, a waiter may join a line from its
///    runtime: then `watch` compares the turn with the alarm. Or a charge is given back, or the quota changes: then
///    [`signal`](Self::signal) compares it with all alarms. Whatever else happens makes the turn of a line come later.
///
/// Arrivals on one runtime do not wake the drivers of others.
pub(super) struct Drivers<H: Home>(Vec<Driver<H>>);

struct Driver<H: Home> {
    home: H::Id,
    signal: H::Signal,
    is_alive: bool,
    /// The time until which it sleeps; zero while it is awake and will look at the lines before it sleeps.
    alarm: Timestamp,
    /// How often it was lost while the same waiters, or some of them, waited.
    losses: u8,
}

/// What is needed to start a driver.
pub(super) struct Start<H: Home> {
    pub(super) home: H,
    pub(super) number: DriverNo,
    pub(super) signal: H::Signal,
}

/// A runtime without a timer loses its driver as often as one is started, and so does one that was shut down.
const MAX_LOSSES: u8 = 3;

impl<H: Home> Drivers<H> {
    pub(super) const fn new() -> Self {
        Self(Vec::new())
    }

    /// The number of a runtime's driver, which may have to be [started](Self::watch).
    ///
    /// Fails if the runtime has no timer or was shut down, as far as that is known; or if 65,536 runtimes have waiters.
    pub(super) fn on(&mut self, home: H::Id, lines: &Lines) -> Result<DriverNo, LimiterError> {
        let numbers = || (0..=u16::MAX).map(DriverNo).zip(&self.0);
        let is_used = |number: DriverNo, driver: &Driver<H>| driver.is_alive || lines.waiting_at(number) > 0;
        // One that is used: a runtime may have the id of one that is gone.
        if let Some((number, driver)) = numbers().find(|(number, it)| it.home == home && is_used(*number, it)) {
            return if driver.is_lost_for_good() { Err(no_time()) } else { Ok(number) };
        }
        let new = Driver { home, signal: H::Signal::default(), is_alive: false, alarm: Timestamp::ZERO, losses: 0 };
        if let Some((number, _)) = numbers().find(|(number, driver)| !is_used(*number, driver)) {
            self.0[number.index()] = new;
            return Ok(number);
        }
        let number = u16::try_from(self.0.len()).map_err(|_| no_time())?;
        self.0.push(new);
        Ok(DriverNo(number))
    }

    /// The number of a driver that lives.
    pub(super) fn any(&self) -> Option<DriverNo> {
        (0..=u16::MAX).map(DriverNo).zip(&self.0).find(|(_, driver)| driver.is_alive).map(|(number, _)| number)
    }

    /// Whether the driver lives, on `home` if that is known.
    pub(super) fn is_alive(&self, number: DriverNo, home: Option<H::Id>) -> bool {
        let driver = &self.0[number.index()];
        driver.is_alive && home.is_none_or(|home| home == driver.home)
    }

    /// Sees to it that a driver lives, and wakes up in time, after it got another waiter. `home` is its runtime, if it
    /// may have to be started.
    pub(super) fn watch(&mut self, number: DriverNo, home: Option<&H>, lines: &Lines, errand: &mut Errand<H>) {
        let driver = &mut self.0[number.index()];
        if driver.is_alive {
            if lines.next_release().is_some_and(|due| due < driver.alarm) {
                errand.signals.push(driver.signal.clone());
            }
        } else if let Some(home) = home {
            (driver.is_alive, driver.alarm) = (true, Timestamp::ZERO);
            errand.start = Some(Start { home: home.clone(), number, signal: driver.signal.clone() });
        }
    }

    /// Signals the drivers that sleep for too long, and those that have no waiters left and are to end.
    pub(super) fn signal(&self, lines: &Lines, errand: &mut Errand<H>) {
        let next = lines.next_release().unwrap_or(Timestamp::MAX);
        for (number, driver) in (0..=u16::MAX).map(DriverNo).zip(&self.0) {
            let is_asleep = driver.is_alive && driver.alarm > Timestamp::ZERO;
            if is_asleep && (next < driver.alarm || lines.waiting_at(number) == 0) {
                errand.signals.push(driver.signal.clone());
            }
        }
    }

    /// Notes until when a driver sleeps; zero if it stays awake.
    pub(super) fn set_alarm(&mut self, number: DriverNo, alarm: Timestamp) {
        self.0[number.index()].alarm = alarm;
    }

    /// Notes that a driver has ended because no waiter was left on its runtime.
    pub(super) fn end(&mut self, number: DriverNo) {
        self.0[number.index()].is_alive = false;
    }

    /// Notes that a driver was dropped, or has panicked.
    pub(super) fn lose(&mut self, number: DriverNo) {
        let driver = &mut self.0[number.index()];
        driver.is_alive = false;
        driver.losses = driver.losses.saturating_add(1);
    }
}

impl<H: Home> Driver<H> {
    const fn is_lost_for_good(&self) -> bool {
        !self.is_alive && self.losses >= MAX_LOSSES
    }
}
