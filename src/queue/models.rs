//! What threads can do to one another in a [`Room`], in every order: run with
//! `RUSTFLAGS="--cfg sluice_loom" cargo test --release --lib models`.
//!
//! All that a queue shares is in the room; tokio's part is to ask [`Room::tick`] again in time, and to wake.
//! Here, the models do both. Each is named after its hazard.

use std::sync::Arc as Plain;
use std::task::{Wake, Waker};

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

use super::drivers::{DriverNo, Home};
use super::monitor::{Arrival, Errand, Next, Progress, Request, Room as AnyRoom};
use super::schedule::waiter_slab::SeatNo;
use super::schedule::{Bounds, LineId, Lines};
use crate::store::WhenFull;
use crate::values::Quota;
use crate::values::time::Timestamp;

type Room = AnyRoom<Core>;

/// A runtime, by its number.
#[derive(Clone, Copy)]
struct Core(u8);

impl Home for Core {
    type Id = u8;
    type Signal = Plain<Flag>;

    fn id(&self) -> u8 {
        self.0
    }
}

const CORES: [Core; 2] = [Core(0), Core(1)];

/// One leaves per second.
const SECOND: u64 = 1_000_000_000;

fn room(capacity: usize) -> Arc<Room> {
    let bounds =
        Bounds { capacity, max_wait: 100 * SECOND, max_waiters: 10, max_keys: 10, when_full: WhenFull::Reject };
    Arc::new(Room::new(Lines::new(&Quota::per_second(1), bounds)))
}

/// A room whose first request has left at zero, so that all others wait.
fn busy_room(capacity: usize) -> Arc<Room> {
    let room = room(capacity);
    assert!(arrive(&room, 0).is_ok_and(|seat| seat.is_none()));
    room
}

/// A waker, or a signal, that remembers.
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
struct Driver {
    number: DriverNo,
    signal: Plain<Flag>,
}

fn run(errand: Errand<Core>) -> Option<Driver> {
    errand.signals.iter().for_each(|signal| signal.0.store(true, Ordering::SeqCst));
    errand.wake.into_iter().for_each(Waker::wake);
    errand.start.map(|start| Driver { number: start.number, signal: start.signal })
}

/// The place, if it is one; an error if the room is closed.
fn arrive_on(
    room: &Room,
    core: Core,
    (line, cost): (u128, u32),
    second: u64,
) -> Result<(Option<SeatNo>, Option<Driver>), ()> {
    let request = Request { id: LineId(line), cost, max_wait: 100 * SECOND };
    let (arrival, errand) = room.enqueue(|| Timestamp::from_nanos(second * SECOND), &request, || Some(core));
    let driver = run(errand);
    match arrival {
        Ok(Arrival::Joined(seat)) => Ok((Some(seat), driver)),
        Ok(Arrival::Decided(decision)) => {
            assert!(decision.is_allowed());
            Ok((None, driver))
        }
        Err(_) => Err(()),
    }
}

fn arrive(room: &Room, second: u64) -> Result<Option<SeatNo>, ()> {
    arrive_on(room, CORES[0], (1, 1), second).map(|(seat, _)| seat)
}

fn place_on(room: &Room, core: Core) -> (SeatNo, Option<Driver>) {
    let (seat, driver) = arrive_on(room, core, (1, 1), 0).expect("open");
    (seat.expect("busy"), driver)
}

fn place(room: &Room) -> SeatNo {
    place_on(room, CORES[0]).0
}

fn tick_of(room: &Room, driver: DriverNo, second: u64) -> Next {
    let mut wake = Vec::new();
    let next = room.tick(driver, || Timestamp::from_nanos(second * SECOND), &mut wake);
    wake.into_iter().for_each(Waker::wake);
    next
}

/// By the driver of the first runtime.
fn tick(room: &Room, second: u64) {
    tick_of(room, DriverNo::FIRST, second);
}

/// The second at which a driver looks at the lines again.
fn wakes_up(next: &Next, signal: &Flag) -> u64 {
    match next {
        Next::Yield => 0,
        Next::SleepUntil(_) if signal.is_set() => 0,
        Next::SleepUntil(alarm) => alarm.as_nanos() / SECOND,
        Next::End => u64::MAX,
    }
}

fn leave(room: &Room, seat: SeatNo, second: u64) {
    assert!(run(room.leave(|| Timestamp::from_nanos(second * SECOND), seat)).is_none());
}

enum Found {
    Turn,
    Refusal,
    Closed,
    Nothing,
}

fn poll_on(room: &Room, core: Core, seat: SeatNo, second: u64, waker: &Waker) -> (Found, Option<Driver>) {
    let (progress, errand) = room.poll(|| Timestamp::from_nanos(second * SECOND), seat, waker, Some(&core));
    let driver = run(errand);
    let found = match progress {
        Progress::Done(Ok(decision)) if decision.is_allowed() => Found::Turn,
        Progress::Done(Ok(_)) => Found::Refusal,
        Progress::Done(Err(_)) => Found::Closed,
        Progress::Waiting => Found::Nothing,
        Progress::Stranded(error) => panic!("{error}"),
    };
    (found, driver)
}

fn poll_with(room: &Room, seat: SeatNo, second: u64, waker: &Waker) -> Found {
    poll_on(room, CORES[0], seat, second, waker).0
}

fn poll(room: &Room, seat: SeatNo, second: u64) -> Found {
    poll_with(room, seat, second, Waker::noop())
}

/// Whether its turn has come. If not, it leaves.
fn turn(room: &Room, seat: SeatNo, second: u64) -> bool {
    match poll(room, seat, second) {
        Found::Turn => true,
        Found::Nothing => {
            leave(room, seat, second);
            false
        }
        Found::Refusal | Found::Closed => panic!("neither refused nor closed"),
    }
}

fn assert_empty(room: &Room) {
    assert_eq!((room.waiting(), room.taken()), (0, 0));
}

/// Two arrive at once, and the task runs: the one with the earlier place must leave first.
#[test]
fn two_arrive_while_the_task_releases() {
    loom::model(|| {
        let room = busy_room(5);
        let first = place(&room);
        let other = {
            let room = Arc::clone(&room);
            thread::spawn(move || place(&room))
        };
        tick(&room, 1);
        let third = other.join().unwrap();
        assert!(matches!(poll(&room, third, 1), Found::Nothing));
        assert!(turn(&room, first, 1));
        tick(&room, 2);
        assert!(turn(&room, third, 2));
        assert_empty(&room);
    });
}

/// The head, one in the middle, or the last one leaves while the head is released. If the head left in
/// time, its turn is the next one's; if it came and was not used, it goes back, and to the next. Never does it go
/// to both, or to nobody.
#[test]
fn one_leaves_while_the_head_is_released() {
    for leaver in 0..3 {
        loom::model(move || {
            let room = busy_room(5);
            let mut seats = [place(&room), place(&room), place(&room)].to_vec();
            let leaving = seats.remove(leaver);
            let other = {
                let room = Arc::clone(&room);
                thread::spawn(move || leave(&room, leaving, 1))
            };
            tick(&room, 1);
            other.join().unwrap();
            // The head may have left after its release, and its turn be free again.
            assert_eq!(room.waiting(), 1);
            assert!(turn(&room, seats[0], 1), "the turn was lost when {leaver} left");
            assert!(matches!(poll(&room, seats[1], 1), Found::Nothing), "it was used twice when {leaver} left");
            tick(&room, 2);
            assert!(turn(&room, seats[1], 2));
            assert_empty(&room);
        });
    }
}

/// The head finds its turn, or is dropped, while another thread releases it: a wake-up between the look and the
/// sleep must not be lost.
#[test]
fn a_turn_comes_between_the_look_and_the_sleep() {
    loom::model(|| {
        let room = busy_room(5);
        let seat = place(&room);
        let flag = Plain::new(Flag::default());
        let other = {
            let room = Arc::clone(&room);
            thread::spawn(move || tick(&room, 1))
        };
        let found = poll_with(&room, seat, 1, &Waker::from(Plain::clone(&flag)));
        other.join().unwrap();
        if matches!(found, Found::Nothing) {
            assert!(flag.is_set(), "nobody woke it");
            assert!(turn(&room, seat, 1));
        }
        assert_empty(&room);
    });
}

/// The last waiter is released, and its driver is about to end; one that arrives on that runtime at that moment must have
/// a driver, and only one.
#[test]
fn one_arrives_while_the_driver_ends() {
    loom::model(|| {
        let room = busy_room(5);
        let (first, driver) = place_on(&room, CORES[0]);
        let driver = driver.expect("none was there");
        let other = {
            let room = Arc::clone(&room);
            thread::spawn(move || {
                let (seat, driver) = arrive_on(&room, CORES[0], (1, 1), 1).expect("open");
                (seat.expect("the first is before it"), driver)
            })
        };
        let next = tick_of(&room, driver.number, 1);
        let (second, started) = other.join().unwrap();
        match started {
            Some(_) => assert!(matches!(next, Next::End), "two drivers"),
            None => assert!(wakes_up(&next, &driver.signal) <= 2, "{next:?}: nobody drives the second"),
        }
        assert!(turn(&room, first, 1));
        leave(&room, second, 1);
        assert_empty(&room);
    });
}

/// A driver is about to sleep until a late turn when one arrives on its runtime whose turn comes sooner. The other
/// runtime, whose waiter is before that one, never looks.
#[test]
fn an_earlier_turn_comes_up_while_the_driver_goes_to_sleep() {
    loom::model(|| {
        let room = room(5);
        // The turn of the first line is at nine seconds, and those of the second from one second on.
        let arrive = |core, line| arrive_on(&room, core, line, 0).expect("open");
        assert!(arrive(CORES[1], (1, 9)).0.is_none());
        let (late, driver) = arrive(CORES[1], (1, 1));
        let driver = driver.expect("each runtime has one");
        assert!(arrive(CORES[0], (2, 1)).0.is_none());
        let (elsewhere, other_driver) = arrive(CORES[0], (2, 1));
        assert!(other_driver.is_some(), "each runtime has one");
        let other = {
            let room = Arc::clone(&room);
            thread::spawn(move || {
                let (seat, started) = arrive_on(&room, CORES[1], (2, 1), 0).expect("open");
                assert!(started.is_none(), "it has one");
                seat.expect("the second of its line")
            })
        };
        let next = tick_of(&room, driver.number, 0);
        let early = other.join().unwrap();
        assert!(wakes_up(&next, &driver.signal) <= 1, "{next:?}: it sleeps through a turn");
        // It releases the one elsewhere, too, or its own would come too late.
        assert!(matches!(tick_of(&room, driver.number, 1), Next::SleepUntil(alarm) if alarm.as_nanos() == 2 * SECOND));
        assert!(matches!(tick_of(&room, driver.number, 2), Next::SleepUntil(alarm) if alarm.as_nanos() == 9 * SECOND));
        for (core, seat) in [(CORES[0], elsewhere), (CORES[1], Some(early))] {
            assert!(matches!(poll_on(&room, core, seat.unwrap(), 2, Waker::noop()).0, Found::Turn));
        }
        leave(&room, late.unwrap(), 2);
        assert_empty(&room);
    });
}

/// One arrives on a runtime whose driver sleeps until a late turn.
#[test]
fn an_earlier_turn_comes_up_while_the_driver_sleeps() {
    loom::model(|| {
        let room = room(5);
        let arrive = |line| arrive_on(&room, CORES[1], line, 0).expect("open");
        assert!(arrive((1, 9)).0.is_none());
        let (_late, driver) = arrive((1, 1));
        let driver = driver.expect("none was there");
        assert!(arrive((2, 1)).0.is_none());
        let other = {
            let (room, number) = (Arc::clone(&room), driver.number);
            thread::spawn(move || tick_of(&room, number, 0))
        };
        let (_early, none) = arrive((2, 1));
        assert!(none.is_none(), "two drivers");
        let next = other.join().unwrap();
        assert!(wakes_up(&next, &driver.signal) <= 1, "{next:?}: it sleeps through a turn");
    });
}

/// A turn of cost nine is given back on one runtime while the driver of another goes to sleep: those behind leave
/// eight seconds sooner, and must not wait for a runtime that does nothing any more.
#[test]
fn a_turn_is_given_back_while_another_driver_goes_to_sleep() {
    loom::model(|| {
        let room = busy_room(5);
        let (first, idle) = arrive_on(&room, CORES[0], (1, 9), 0).expect("open");
        tick_of(&room, idle.expect("none was there").number, 1);
        let (second, driver) = place_on(&room, CORES[1]);
        let (third, none) = place_on(&room, CORES[1]);
        let driver = driver.expect("each runtime has one");
        assert!(none.is_none(), "two drivers");
        let flag = Plain::new(Flag::default());
        let waker = Waker::from(Plain::clone(&flag));
        assert!(matches!(poll_on(&room, CORES[1], second, 1, &waker).0, Found::Nothing));
        let other = {
            let room = Arc::clone(&room);
            thread::spawn(move || leave(&room, first.expect("busy"), 1))
        };
        let next = tick_of(&room, driver.number, 1);
        other.join().unwrap();
        assert!(flag.is_set(), "it was not woken");
        assert!(matches!(poll_on(&room, CORES[1], second, 1, Waker::noop()).0, Found::Turn));
        assert!(wakes_up(&next, &driver.signal) <= 2, "{next:?}: it sleeps through the turn of the third");
        assert!(matches!(tick_of(&room, driver.number, 2), Next::End));
        assert!(matches!(poll_on(&room, CORES[1], third, 2, Waker::noop()).0, Found::Turn));
        assert_empty(&room);
    });
}

/// A runtime goes down, and its driver with it, while a waiter from there is polled on another. Whichever is first, the
/// waiter ends up with a driver that lives.
#[test]
fn a_driver_is_lost_while_its_waiter_moves() {
    loom::model(|| {
        let room = busy_room(5);
        let (seat, driver) = place_on(&room, CORES[0]);
        let lost = driver.expect("none was there").number;
        let other = {
            let room = Arc::clone(&room);
            thread::spawn(move || room.lose(lost).into_iter().for_each(Waker::wake))
        };
        let (found, driver) = poll_on(&room, CORES[1], seat, 0, Waker::noop());
        other.join().unwrap();
        assert!(matches!(found, Found::Nothing));
        let driver = driver.expect("nobody drives the waiter");
        assert!(matches!(tick_of(&room, driver.number, 0), Next::SleepUntil(alarm) if alarm.as_nanos() == SECOND));
        assert!(matches!(tick_of(&room, driver.number, 1), Next::End));
        assert!(turn(&room, seat, 1));
        assert_empty(&room);
    });
}

/// A runtime goes down while a waiter there goes to sleep: either it finds that its driver is gone and has another, or it
/// is woken to find it.
#[test]
fn a_driver_is_lost_while_its_waiter_goes_to_sleep() {
    loom::model(|| {
        let room = busy_room(5);
        let (seat, driver) = place_on(&room, CORES[0]);
        let lost = driver.expect("none was there").number;
        let flag = Plain::new(Flag::default());
        let other = {
            let room = Arc::clone(&room);
            thread::spawn(move || room.lose(lost).into_iter().for_each(Waker::wake))
        };
        let (found, driver) = poll_on(&room, CORES[0], seat, 0, &Waker::from(Plain::clone(&flag)));
        other.join().unwrap();
        assert!(matches!(found, Found::Nothing));
        assert!(driver.is_some() || flag.is_set(), "it sleeps, and nobody drives it");
        leave(&room, seat, 0);
        assert_empty(&room);
    });
}

/// Drivers of two runtimes look at once: each head leaves once, and each waiter is woken.
#[test]
fn two_drivers_release_at_once() {
    loom::model(|| {
        let room = busy_room(5);
        let (first, driver) = place_on(&room, CORES[0]);
        let number = driver.expect("none was there").number;
        let (second, driver) = place_on(&room, CORES[1]);
        let driver = driver.expect("each runtime has one");
        let other = {
            let room = Arc::clone(&room);
            thread::spawn(move || tick_of(&room, number, 1))
        };
        let next = tick_of(&room, driver.number, 1);
        assert!(matches!(other.join().unwrap(), Next::End), "nobody is left there");
        assert_eq!(wakes_up(&next, &driver.signal), 2);
        assert!(turn(&room, first, 1));
        assert!(matches!(poll_on(&room, CORES[1], second, 1, Waker::noop()).0, Found::Nothing));
        assert!(matches!(tick_of(&room, driver.number, 2), Next::End));
        assert!(matches!(poll_on(&room, CORES[1], second, 2, Waker::noop()).0, Found::Turn));
        assert_empty(&room);
    });
}

/// Nobody may get in behind the back of a close, and wait for ever.
#[test]
fn one_arrives_while_the_queue_is_closed() {
    loom::model(|| {
        let room = busy_room(5);
        let flag = Plain::new(Flag::default());
        let first = place(&room);
        assert!(matches!(poll_with(&room, first, 0, &Waker::from(Plain::clone(&flag))), Found::Nothing));
        let other = {
            let room = Arc::clone(&room);
            thread::spawn(move || assert!(run(room.close()).is_none()))
        };
        let late = arrive(&room, 0);
        other.join().unwrap();
        if let Ok(late) = late {
            assert!(matches!(poll(&room, late.expect("busy"), 0), Found::Closed));
        }
        assert!(flag.is_set(), "nobody told the first");
        assert!(matches!(poll(&room, first, 0), Found::Closed));
        assert!(arrive(&room, 5).is_err());
        assert_empty(&room);
    });
}

/// A waiter leaves while all are sent away: its place must be given up once.
#[test]
fn one_leaves_while_the_queue_is_closed() {
    loom::model(|| {
        let room = busy_room(5);
        let (first, second) = (place(&room), place(&room));
        let other = {
            let room = Arc::clone(&room);
            thread::spawn(move || leave(&room, first, 1))
        };
        assert!(run(room.close()).is_none());
        other.join().unwrap();
        // Its turn may have been given back to it before all were sent away.
        assert!(matches!(poll(&room, second, 1), Found::Closed));
        assert_empty(&room);
    });
}

/// Two give up at once, both with a turn in hand that they have not seen.
#[test]
fn two_turns_are_given_back_at_once() {
    loom::model(|| {
        let room = busy_room(5);
        let (first, second, third) = (place(&room), place(&room), place(&room));
        tick(&room, 1);
        tick(&room, 2);
        let other = {
            let room = Arc::clone(&room);
            thread::spawn(move || leave(&room, first, 2))
        };
        leave(&room, second, 2);
        other.join().unwrap();
        // The second one's second is not spent yet, and is the third one's.
        assert!(turn(&room, third, 2));
        assert_empty(&room);
    });
}
