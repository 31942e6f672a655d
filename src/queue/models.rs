//! How threads can interfere in a [`Monitor`], in every order, with loom: see `verify/models/Cargo.toml`.
//!
//! All shared state of a queue is in the monitor; tokio's part is to lock it, to call [`AnyMonitor::tick`] again in
//! time, and to wake. Here, the models do all three. Each is named after its hazard.

use std::sync::Arc as Plain;
use std::task::{Poll, Wake, Waker};

use loom::sync::atomic::{AtomicBool, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

use super::monitor::{AfterUnlock, Arrival, Monitor as AnyMonitor, NextStep, Request, RequestKind, Runtime};
use super::schedule::waiter_slab::{DriverId, WaiterId};
use super::schedule::{FifoId, QueueBounds, Schedule};
use crate::limiter::WaitBounds;
use crate::values::Quota;
use crate::values::time::Timestamp;

type Monitor = Mutex<AnyMonitor<Core>>;

/// A runtime, by its number.
#[derive(Clone, Copy)]
struct Core(u8);

impl Runtime for Core {
    type Id = u8;
    type Signal = Plain<Flag>;

    fn id(&self) -> u8 {
        self.0
    }
}

const CORES: [Core; 2] = [Core(0), Core(1)];

/// The interval between departures, in nanoseconds.
const SECOND: u64 = 1_000_000_000;

fn monitor(max_queue: usize) -> Arc<Monitor> {
    let bounds = QueueBounds::new(WaitBounds::new(max_queue));
    Arc::new(Mutex::new(AnyMonitor::new(Schedule::new(&Quota::per_second(1), bounds))))
}

/// A monitor whose first request departed at zero, so that all others wait.
fn busy_monitor(max_queue: usize) -> Arc<Monitor> {
    let monitor = monitor(max_queue);
    assert!(arrive(&monitor, 0).is_ok_and(|waiter| waiter.is_none()));
    monitor
}

/// A waker, or a signal, that stores whether it was used.
struct Flag(AtomicBool);

impl Default for Flag {
    fn default() -> Self {
        Self(AtomicBool::new(false))
    }
}

impl Flag {
    fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for Flag {
    fn wake(self: Plain<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A driver that was started, and is run by the model.
struct QueueDriver {
    number: DriverId,
    signal: Plain<Flag>,
}

/// Acts on a monitor at a second, as `SharedQueue::enter` does, and returns the driver to start.
fn enter<T>(
    monitor: &Monitor,
    second: u64,
    act: impl FnOnce(&mut AnyMonitor<Core>, Timestamp, &mut AfterUnlock<Core>) -> T,
) -> (T, Option<QueueDriver>) {
    let mut deferred = AfterUnlock::none();
    let result = act(&mut monitor.lock().unwrap(), Timestamp::from_nanos(second * SECOND), &mut deferred);
    deferred.signals.iter().for_each(|signal| signal.0.store(true, Ordering::SeqCst));
    deferred.wake.into_iter().for_each(Waker::wake);
    (result, deferred.start.map(|start| QueueDriver { number: start.id, signal: start.signal }))
}

/// Returns the waiter, if the request waits. Fails only if the queue is closed.
fn arrive_on(
    monitor: &Monitor,
    core: Core,
    (fifo, cost): (u128, u64),
    second: u64,
) -> Result<(Option<WaiterId>, Option<QueueDriver>), ()> {
    let request = Request {
        id: FifoId(fifo),
        cost,
        max_wait: 100 * SECOND,
        quota: None,
        keeps_quota: false,
        kind: RequestKind::Waiter,
    };
    let (arrival, driver) =
        enter(monitor, second, |monitor, now, deferred| monitor.arrive(now, &request, || Some(core), deferred));
    match arrival {
        Ok(Arrival::Joined(waiter)) => Ok((Some(waiter), driver)),
        Ok(Arrival::Decided(decision)) => {
            assert!(decision.is_allowed());
            Ok((None, driver))
        }
        Err(error) => {
            assert!(error.is_closed(), "{error}");
            Err(())
        }
    }
}

fn arrive(monitor: &Monitor, second: u64) -> Result<Option<WaiterId>, ()> {
    arrive_on(monitor, CORES[0], (1, 1), second).map(|(waiter, _)| waiter)
}

fn join_on(monitor: &Monitor, core: Core) -> (WaiterId, Option<QueueDriver>) {
    let (waiter, driver) = arrive_on(monitor, core, (1, 1), 0).expect("open");
    (waiter.expect("busy"), driver)
}

fn join(monitor: &Monitor) -> WaiterId {
    join_on(monitor, CORES[0]).0
}

fn tick_of(monitor: &Monitor, driver: DriverId, second: u64) -> NextStep {
    enter(monitor, second, |monitor, now, deferred| monitor.tick(now, driver, deferred)).0
}

/// Ticks for the first runtime's driver.
fn tick(monitor: &Monitor, second: u64) {
    tick_of(monitor, DriverId::FIRST, second);
}

/// Returns the second at which a driver looks at the schedule again.
fn wakes_up(next: &NextStep, signal: &Flag) -> u64 {
    match next {
        NextStep::Yield => 0,
        NextStep::SleepUntil(_) if signal.is_set() => 0,
        NextStep::SleepUntil(alarm) => alarm.as_nanos() / SECOND,
        NextStep::End => u64::MAX,
    }
}

fn leave(monitor: &Monitor, waiter: WaiterId, second: u64) {
    let left = enter(monitor, second, |monitor, now, deferred| monitor.leave(now, waiter, deferred));
    assert!(left.1.is_none());
}

enum Polled {
    Turn,
    Rejection,
    Closed,
    Waiting,
}

fn poll_on(
    monitor: &Monitor,
    core: Core,
    waiter: WaiterId,
    second: u64,
    waker: &Waker,
) -> (Polled, Option<QueueDriver>) {
    let mut waker = Some(waker.clone());
    let (progress, driver) =
        enter(monitor, second, |monitor, now, deferred| monitor.poll(now, waiter, &mut waker, Some(&core), deferred));
    let found = match progress {
        Poll::Ready(Ok(decision)) if decision.is_allowed() => Polled::Turn,
        Poll::Ready(Ok(_)) => Polled::Rejection,
        Poll::Ready(Err(error)) if error.is_closed() => Polled::Closed,
        Poll::Ready(Err(error)) => panic!("{error}"),
        Poll::Pending => Polled::Waiting,
    };
    (found, driver)
}

fn poll_with(monitor: &Monitor, waiter: WaiterId, second: u64, waker: &Waker) -> Polled {
    poll_on(monitor, CORES[0], waiter, second, waker).0
}

fn poll(monitor: &Monitor, waiter: WaiterId, second: u64) -> Polled {
    poll_with(monitor, waiter, second, Waker::noop())
}

/// Whether its turn has come. If not, it leaves.
fn turn(monitor: &Monitor, waiter: WaiterId, second: u64) -> bool {
    match poll(monitor, waiter, second) {
        Polled::Turn => true,
        Polled::Waiting => {
            leave(monitor, waiter, second);
            false
        }
        Polled::Rejection | Polled::Closed => panic!("neither rejected nor closed"),
    }
}

fn close(monitor: &Monitor) {
    assert!(enter(monitor, 0, |monitor, _, deferred| monitor.close(deferred)).1.is_none());
}

fn lose(monitor: &Monitor, driver: DriverId) {
    assert!(enter(monitor, 0, |monitor, _, deferred| monitor.lose(driver, deferred)).1.is_none());
}

fn waiting(monitor: &Monitor) -> usize {
    monitor.lock().unwrap().schedule.waiting()
}

fn assert_empty(monitor: &Monitor) {
    assert_eq!((waiting(monitor), monitor.lock().unwrap().schedule.taken()), (0, 0));
    monitor.lock().unwrap().schedule.check_invariants();
}

/// Two arrive at once, and the driver releases: the older one must depart first.
#[test]
fn two_arrive_while_the_driver_releases() {
    loom::model(|| {
        let monitor = busy_monitor(5);
        let first = join(&monitor);
        let other = {
            let monitor = Arc::clone(&monitor);
            thread::spawn(move || join(&monitor))
        };
        tick(&monitor, 1);
        let third = other.join().unwrap();
        assert!(matches!(poll(&monitor, third, 1), Polled::Waiting));
        assert!(turn(&monitor, first, 1));
        tick(&monitor, 2);
        assert!(turn(&monitor, third, 2));
        assert_empty(&monitor);
    });
}

/// The head, the middle one, or the last one leaves while the head is released. If the head left in time, its turn is
/// the next one's; if the turn came and was not used, it goes back, and to the next. It always goes to exactly one.
#[test]
fn one_leaves_during_a_release() {
    for leaver in 0..3 {
        loom::model(move || {
            let monitor = busy_monitor(5);
            let mut waiters = [join(&monitor), join(&monitor), join(&monitor)].to_vec();
            let leaving = waiters.remove(leaver);
            let other = {
                let monitor = Arc::clone(&monitor);
                thread::spawn(move || leave(&monitor, leaving, 1))
            };
            tick(&monitor, 1);
            other.join().unwrap();
            // The head may have left after its release, and its turn be free again.
            assert_eq!(waiting(&monitor), 1);
            assert!(turn(&monitor, waiters[0], 1), "the turn was lost when {leaver} left");
            assert!(matches!(poll(&monitor, waiters[1], 1), Polled::Waiting), "it was used twice when {leaver} left");
            tick(&monitor, 2);
            assert!(turn(&monitor, waiters[1], 2));
            assert_empty(&monitor);
        });
    }
}

/// The head finds its turn, or is dropped, while another thread releases it: a wake-up between the look and the sleep
/// must not be lost.
#[test]
fn a_turn_comes_before_the_sleep() {
    loom::model(|| {
        let monitor = busy_monitor(5);
        let waiter = join(&monitor);
        let flag = Plain::new(Flag::default());
        let other = {
            let monitor = Arc::clone(&monitor);
            thread::spawn(move || tick(&monitor, 1))
        };
        let found = poll_with(&monitor, waiter, 1, &Waker::from(Plain::clone(&flag)));
        other.join().unwrap();
        if matches!(found, Polled::Waiting) {
            assert!(flag.is_set(), "its wake-up was lost");
            assert!(turn(&monitor, waiter, 1));
        }
        assert_empty(&monitor);
    });
}

/// The last waiter is released, and its driver is about to end. One that arrives on that runtime at that moment must
/// have a driver, and only one.
#[test]
fn one_arrives_while_the_driver_ends() {
    loom::model(|| {
        let monitor = busy_monitor(5);
        let (first, driver) = join_on(&monitor, CORES[0]);
        let driver = driver.expect("the first waiter of a runtime starts its driver");
        let other = {
            let monitor = Arc::clone(&monitor);
            thread::spawn(move || {
                let (waiter, driver) = arrive_on(&monitor, CORES[0], (1, 1), 1).expect("open");
                (waiter.expect("the first is before it"), driver)
            })
        };
        let next = tick_of(&monitor, driver.number, 1);
        let (second, started) = other.join().unwrap();
        match started {
            Some(_) => assert!(matches!(next, NextStep::End), "two drivers"),
            None => assert!(wakes_up(&next, &driver.signal) <= 2, "{next:?}: the second has no driver"),
        }
        assert!(turn(&monitor, first, 1));
        leave(&monitor, second, 1);
        assert_empty(&monitor);
    });
}

/// A driver is about to sleep until a late turn when a request arrives on its runtime whose turn comes sooner. The
/// other runtime, whose waiter is ahead of it, never runs.
#[test]
fn an_earlier_turn_races_the_drivers_sleep() {
    loom::model(|| {
        let monitor = monitor(5);
        // The turn of the first FIFO is at nine seconds, and the turns of the second begin at one second.
        let arrive = |core, fifo| arrive_on(&monitor, core, fifo, 0).expect("open");
        assert!(arrive(CORES[1], (1, 9)).0.is_none());
        let (late, driver) = arrive(CORES[1], (1, 1));
        let driver = driver.expect("each runtime has one");
        assert!(arrive(CORES[0], (2, 1)).0.is_none());
        let (elsewhere, other_driver) = arrive(CORES[0], (2, 1));
        assert!(other_driver.is_some(), "each runtime has one");
        let other = {
            let monitor = Arc::clone(&monitor);
            thread::spawn(move || {
                let (waiter, started) = arrive_on(&monitor, CORES[1], (2, 1), 0).expect("open");
                assert!(started.is_none(), "it has one");
                waiter.expect("the second of its FIFO")
            })
        };
        let next = tick_of(&monitor, driver.number, 0);
        let early = other.join().unwrap();
        assert!(wakes_up(&next, &driver.signal) <= 1, "{next:?}: it sleeps through a turn");
        // It releases the waiter of the other runtime, too. Otherwise the turn of its own waiter would come too late.
        assert!(
            matches!(tick_of(&monitor, driver.number, 1), NextStep::SleepUntil(alarm) if alarm.as_nanos() == 2 * SECOND)
        );
        assert!(
            matches!(tick_of(&monitor, driver.number, 2), NextStep::SleepUntil(alarm) if alarm.as_nanos() == 9 * SECOND)
        );
        for (core, waiter) in [(CORES[0], elsewhere), (CORES[1], Some(early))] {
            assert!(matches!(poll_on(&monitor, core, waiter.unwrap(), 2, Waker::noop()).0, Polled::Turn));
        }
        leave(&monitor, late.unwrap(), 2);
        assert_empty(&monitor);
    });
}

/// A request arrives on a runtime whose driver sleeps until a late turn.
#[test]
fn an_earlier_turn_reaches_a_sleeping_driver() {
    loom::model(|| {
        let monitor = monitor(5);
        let arrive = |fifo| arrive_on(&monitor, CORES[1], fifo, 0).expect("open");
        assert!(arrive((1, 9)).0.is_none());
        let (_late, driver) = arrive((1, 1));
        let driver = driver.expect("the first waiter of a runtime starts its driver");
        assert!(arrive((2, 1)).0.is_none());
        let other = {
            let monitor = Arc::clone(&monitor);
            let number = driver.number;
            thread::spawn(move || tick_of(&monitor, number, 0))
        };
        let (_early, none) = arrive((2, 1));
        assert!(none.is_none(), "two drivers");
        let next = other.join().unwrap();
        assert!(wakes_up(&next, &driver.signal) <= 1, "{next:?}: it sleeps through a turn");
    });
}

/// A turn of cost nine is refunded on one runtime while the driver of another goes to sleep. Those behind depart eight
/// seconds sooner, and must not depend on a runtime that does nothing any more.
#[test]
fn a_refund_races_another_drivers_sleep() {
    loom::model(|| {
        let monitor = busy_monitor(5);
        let (first, idle) = arrive_on(&monitor, CORES[0], (1, 9), 0).expect("open");
        tick_of(&monitor, idle.expect("the first waiter of a runtime starts its driver").number, 1);
        let (second, driver) = join_on(&monitor, CORES[1]);
        let (third, none) = join_on(&monitor, CORES[1]);
        let driver = driver.expect("each runtime has one");
        assert!(none.is_none(), "two drivers");
        let flag = Plain::new(Flag::default());
        let waker = Waker::from(Plain::clone(&flag));
        assert!(matches!(poll_on(&monitor, CORES[1], second, 1, &waker).0, Polled::Waiting));
        let other = {
            let monitor = Arc::clone(&monitor);
            thread::spawn(move || leave(&monitor, first.expect("busy"), 1))
        };
        let next = tick_of(&monitor, driver.number, 1);
        other.join().unwrap();
        assert!(flag.is_set(), "it was not woken");
        assert!(matches!(poll_on(&monitor, CORES[1], second, 1, Waker::noop()).0, Polled::Turn));
        assert!(wakes_up(&next, &driver.signal) <= 2, "{next:?}: it sleeps through the turn of the third");
        assert!(matches!(tick_of(&monitor, driver.number, 2), NextStep::End));
        assert!(matches!(poll_on(&monitor, CORES[1], third, 2, Waker::noop()).0, Polled::Turn));
        assert_empty(&monitor);
    });
}

/// A runtime shuts down, and its driver with it, while a waiter from there is polled on another. In either order, the
/// waiter ends up with a driver that lives.
#[test]
fn a_moving_waiter_loses_its_driver() {
    loom::model(|| {
        let monitor = busy_monitor(5);
        let (waiter, driver) = join_on(&monitor, CORES[0]);
        let lost = driver.expect("the first waiter of a runtime starts its driver").number;
        let other = {
            let monitor = Arc::clone(&monitor);
            thread::spawn(move || lose(&monitor, lost))
        };
        let (found, driver) = poll_on(&monitor, CORES[1], waiter, 0, Waker::noop());
        other.join().unwrap();
        assert!(matches!(found, Polled::Waiting));
        let driver = driver.expect("the waiter has no driver");
        assert!(
            matches!(tick_of(&monitor, driver.number, 0), NextStep::SleepUntil(alarm) if alarm.as_nanos() == SECOND)
        );
        assert!(matches!(tick_of(&monitor, driver.number, 1), NextStep::End));
        assert!(turn(&monitor, waiter, 1));
        assert_empty(&monitor);
    });
}

/// A runtime shuts down while a waiter there goes to sleep: either the waiter finds that its driver is lost and gets
/// another, or it is woken to find it.
#[test]
fn a_driver_loss_races_its_waiters_sleep() {
    loom::model(|| {
        let monitor = busy_monitor(5);
        let (waiter, driver) = join_on(&monitor, CORES[0]);
        let lost = driver.expect("the first waiter of a runtime starts its driver").number;
        let flag = Plain::new(Flag::default());
        let other = {
            let monitor = Arc::clone(&monitor);
            thread::spawn(move || lose(&monitor, lost))
        };
        let (found, driver) = poll_on(&monitor, CORES[0], waiter, 0, &Waker::from(Plain::clone(&flag)));
        other.join().unwrap();
        assert!(matches!(found, Polled::Waiting));
        assert!(driver.is_some() || flag.is_set(), "it sleeps without a driver");
        leave(&monitor, waiter, 0);
        assert_empty(&monitor);
    });
}

/// Drivers of two runtimes tick at once: each head departs once, and each waiter is woken.
#[test]
fn two_drivers_release_at_once() {
    loom::model(|| {
        let monitor = busy_monitor(5);
        let (first, driver) = join_on(&monitor, CORES[0]);
        let number = driver.expect("the first waiter of a runtime starts its driver").number;
        let (second, driver) = join_on(&monitor, CORES[1]);
        let driver = driver.expect("each runtime has one");
        let other = {
            let monitor = Arc::clone(&monitor);
            thread::spawn(move || tick_of(&monitor, number, 1))
        };
        let next = tick_of(&monitor, driver.number, 1);
        assert!(matches!(other.join().unwrap(), NextStep::End), "no waiter is left there");
        assert_eq!(wakes_up(&next, &driver.signal), 2);
        assert!(turn(&monitor, first, 1));
        assert!(matches!(poll_on(&monitor, CORES[1], second, 1, Waker::noop()).0, Polled::Waiting));
        assert!(matches!(tick_of(&monitor, driver.number, 2), NextStep::End));
        assert!(matches!(poll_on(&monitor, CORES[1], second, 2, Waker::noop()).0, Polled::Turn));
        assert_empty(&monitor);
    });
}

/// A request that joins during a close must not wait for ever.
#[test]
fn one_arrives_during_a_close() {
    loom::model(|| {
        let monitor = busy_monitor(5);
        let flag = Plain::new(Flag::default());
        let first = join(&monitor);
        assert!(matches!(poll_with(&monitor, first, 0, &Waker::from(Plain::clone(&flag))), Polled::Waiting));
        let other = {
            let monitor = Arc::clone(&monitor);
            thread::spawn(move || close(&monitor))
        };
        let late = arrive(&monitor, 0);
        other.join().unwrap();
        if let Ok(late) = late {
            assert!(matches!(poll(&monitor, late.expect("busy"), 0), Polled::Closed));
        }
        assert!(flag.is_set(), "the first was not woken");
        assert!(matches!(poll(&monitor, first, 0), Polled::Closed));
        assert!(arrive(&monitor, 5).is_err());
        assert_empty(&monitor);
    });
}

/// A waiter leaves during a close: its slot must be freed once.
#[test]
fn one_leaves_during_a_close() {
    loom::model(|| {
        let monitor = busy_monitor(5);
        let first = join(&monitor);
        let second = join(&monitor);
        let other = {
            let monitor = Arc::clone(&monitor);
            thread::spawn(move || leave(&monitor, first, 1))
        };
        close(&monitor);
        other.join().unwrap();
        // If the first has left before the close, its turn has passed to the second.
        assert!(matches!(poll(&monitor, second, 1), Polled::Turn | Polled::Closed));
        assert_empty(&monitor);
    });
}

/// Two waiters leave at once, both with a turn that they have not seen.
#[test]
fn two_turns_are_returned_at_once() {
    loom::model(|| {
        let monitor = busy_monitor(5);
        let first = join(&monitor);
        let second = join(&monitor);
        let third = join(&monitor);
        tick(&monitor, 1);
        tick(&monitor, 2);
        let other = {
            let monitor = Arc::clone(&monitor);
            thread::spawn(move || leave(&monitor, first, 2))
        };
        leave(&monitor, second, 2);
        other.join().unwrap();
        // The turn at the second second is not paid for yet, so it goes to the third waiter.
        assert!(turn(&monitor, third, 2));
        assert_empty(&monitor);
    });
}
