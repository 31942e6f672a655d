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

use super::QueueOrder;
use super::lines::{Bounds, LineId, Lines};
use super::room::{Arrival, Errand, Progress, Request, Room};
use super::seats::SeatNo;
use crate::quota::Quota;
use crate::time::Timestamp;

/// One leaves per second.
const SECOND: u64 = 1_000_000_000;

fn room(order: QueueOrder, capacity: usize) -> Arc<Room> {
    let bounds = Bounds { capacity, max_wait: 100 * SECOND, max_waiters: 10, order };
    Arc::new(Room::new(Lines::new(&Quota::per_second(1), bounds)))
}

/// A room whose first request has left at zero, so that all others wait.
fn busy_room(order: QueueOrder, capacity: usize) -> Arc<Room> {
    let room = room(order, capacity);
    assert!(arrive(&room, 0).is_ok_and(|seat| seat.is_none()));
    room
}

/// A waker that remembers.
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Plain<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn run(errand: Errand<()>) {
    errand.wake.into_iter().for_each(Waker::wake);
}

/// The place, if it is one; an error if the room is closed.
fn arrive(room: &Room, second: u64) -> Result<Option<SeatNo>, ()> {
    let request = Request { id: LineId(1), cost: 1, max_wait: 100 * SECOND };
    let (arrival, errand) = room.enqueue(|| Timestamp::from_nanos(second * SECOND), &request, || Ok(()));
    run(errand);
    match arrival {
        Ok(Arrival::Joined(seat)) => Ok(Some(seat)),
        Ok(Arrival::Decided(decision)) => {
            assert!(decision.is_allowed());
            Ok(None)
        }
        Err(_) => Err(()),
    }
}

fn place(room: &Room) -> SeatNo {
    arrive(room, 0).expect("open").expect("busy")
}

fn tick(room: &Room, second: u64) {
    let mut wake = Vec::new();
    let _next = room.tick(|| Timestamp::from_nanos(second * SECOND), &mut wake);
    wake.into_iter().for_each(Waker::wake);
}

fn leave(room: &Room, seat: SeatNo, second: u64) {
    run(room.leave(|| Timestamp::from_nanos(second * SECOND), seat));
}

enum Found {
    Turn,
    Refusal,
    Closed,
    Nothing,
}

fn poll_with(room: &Room, seat: SeatNo, second: u64, waker: &Waker) -> Found {
    match room.poll(|| Timestamp::from_nanos(second * SECOND), seat, waker) {
        Progress::Done(Ok(decision)) if decision.is_allowed() => Found::Turn,
        Progress::Done(Ok(_)) => Found::Refusal,
        Progress::Done(Err(_)) => Found::Closed,
        Progress::Waiting { .. } => Found::Nothing,
    }
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
        let room = busy_room(QueueOrder::OldestFirst, 5);
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
            let room = busy_room(QueueOrder::OldestFirst, 5);
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
        let room = busy_room(QueueOrder::OldestFirst, 5);
        let seat = place(&room);
        let flag = Plain::new(Flag(AtomicBool::new(false)));
        let other = {
            let room = Arc::clone(&room);
            thread::spawn(move || tick(&room, 1))
        };
        let found = poll_with(&room, seat, 1, &Waker::from(Plain::clone(&flag)));
        other.join().unwrap();
        if matches!(found, Found::Nothing) {
            assert!(flag.0.load(Ordering::SeqCst), "nobody woke it");
            assert!(turn(&room, seat, 1));
        }
        assert_empty(&room);
    });
}

/// The last waiter is released, and the task is about to end; an arrival at that moment must have a task.
#[test]
fn one_arrives_while_the_task_ends() {
    loom::model(|| {
        let room = busy_room(QueueOrder::OldestFirst, 5);
        let first = place(&room);
        let other = {
            let room = Arc::clone(&room);
            thread::spawn(move || {
                let request = Request { id: LineId(1), cost: 1, max_wait: 100 * SECOND };
                let (arrival, errand) = room.enqueue(|| Timestamp::from_nanos(SECOND), &request, || Ok(()));
                let Ok(Arrival::Joined(seat)) = arrival else { panic!("there is room") };
                run(errand);
                seat
            })
        };
        let mut wake = Vec::new();
        let (_, next) = room.tick(|| Timestamp::from_nanos(SECOND), &mut wake);
        let second = other.join().unwrap();
        let Progress::Waiting { is_driven } = room.poll(|| Timestamp::from_nanos(SECOND), second, Waker::noop()) else {
            panic!("it is not its turn")
        };
        assert!(is_driven, "the task said {next:?} and ended, and nobody started another");
        assert!(turn(&room, first, 1));
        leave(&room, second, 1);
        assert_empty(&room);
    });
}

/// Nobody may get in behind the back of a close, and wait for ever.
#[test]
fn one_arrives_while_the_queue_is_closed() {
    loom::model(|| {
        let room = busy_room(QueueOrder::OldestFirst, 5);
        let flag = Plain::new(Flag(AtomicBool::new(false)));
        let first = place(&room);
        assert!(matches!(poll_with(&room, first, 0, &Waker::from(Plain::clone(&flag))), Found::Nothing));
        let other = {
            let room = Arc::clone(&room);
            thread::spawn(move || run(room.close()))
        };
        let late = arrive(&room, 0);
        other.join().unwrap();
        if let Ok(late) = late {
            assert!(matches!(poll(&room, late.expect("busy"), 0), Found::Closed));
        }
        assert!(flag.0.load(Ordering::SeqCst), "nobody told the first");
        assert!(matches!(poll(&room, first, 0), Found::Closed));
        assert!(arrive(&room, 5).is_err());
        assert_empty(&room);
    });
}

/// A waiter leaves while all are sent away: its place must be given up once.
#[test]
fn one_leaves_while_the_queue_is_closed() {
    loom::model(|| {
        let room = busy_room(QueueOrder::OldestFirst, 5);
        let (first, second) = (place(&room), place(&room));
        let other = {
            let room = Arc::clone(&room);
            thread::spawn(move || leave(&room, first, 1))
        };
        run(room.close());
        other.join().unwrap();
        // Its turn may have been given back to it before all were sent away.
        assert!(matches!(poll(&room, second, 1), Found::Closed));
        assert_empty(&room);
    });
}

/// The oldest is pushed out and leaves at the same time. The place that is free then must not be counted
/// twice, and the newcomer always gets one.
#[test]
fn the_oldest_leaves_while_it_is_pushed_out() {
    loom::model(|| {
        let room = busy_room(QueueOrder::NewestFirst, 2);
        let (oldest, middle) = (place(&room), place(&room));
        let other = {
            let room = Arc::clone(&room);
            thread::spawn(move || leave(&room, oldest, 0))
        };
        let newest = place(&room);
        other.join().unwrap();
        let waiting = room.waiting();
        let middle_waits = match poll(&room, middle, 0) {
            Found::Nothing => true,
            Found::Refusal => false,
            _ => panic!("not its turn"),
        };
        assert!(middle_waits, "the oldest was there to be pushed out, or had left");
        assert_eq!(waiting, 2);
        tick(&room, 1);
        assert!(turn(&room, newest, 1));
        tick(&room, 2);
        assert!(turn(&room, middle, 2));
        assert_empty(&room);
    });
}

/// Two give up at once, both with a turn in hand that they have not seen.
#[test]
fn two_turns_are_given_back_at_once() {
    loom::model(|| {
        let room = busy_room(QueueOrder::OldestFirst, 5);
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
