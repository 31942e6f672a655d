//! The memory that a schedule's counts and indexes take, which no decision shows.

use super::*;
use crate::queue::schedule::waiter_slab::DriverId;

const SECOND: u64 = 1_000_000_000;

/// One request per second and key.
fn schedule() -> Schedule {
    let bounds = QueueBounds { when_full: WhenFull::Overflow, ..QueueBounds::new(WaitBounds::new(8)) };
    Schedule::new(&Quota::per_second(1), bounds)
}

/// A key with its own FIFO, never a shared one.
fn own_key(number: u128) -> FifoId {
    FifoId(1_024 + number)
}

#[test]
fn each_arrival_forgets_two_paid_keys() {
    let mut schedule = schedule();
    for key in 0..100 {
        assert!(schedule.depart_now(Timestamp::ZERO, own_key(key), 1).is_allowed());
    }
    assert_eq!(schedule.fifos.len(), 100);
    // All have paid now, and each arrival adds one key.
    for arrival in 1..=50 {
        assert!(schedule.depart_now(Timestamp::from_nanos(SECOND), own_key(100 + arrival), 1).is_allowed());
        assert_eq!(schedule.fifos.len() as u128, 100 - arrival);
    }
    schedule.check_invariants();
}

/// A charge is sought in the shared FIFO only if the key does not have its own.
#[test]
fn own_fifos_precede_shared_ones() {
    let mut schedule = schedule();
    let key = FifoId(512 + 7);
    let shared = FifoId(7);
    assert_eq!(schedule.charged_fifo(key), key);
    schedule.ensure_fifo(shared);
    assert_eq!(schedule.charged_fifo(key), shared);
    schedule.ensure_fifo(key);
    assert_eq!(schedule.charged_fifo(key), key);
}

#[test]
fn a_closed_schedule_keeps_no_key() {
    let mut schedule = schedule();
    assert!(schedule.depart_now(Timestamp::ZERO, own_key(0), 1).is_allowed());
    schedule.ensure_fifo(FifoId(7));
    assert!(schedule.close().is_empty());
    assert!(schedule.fifos.is_empty() && schedule.idle.is_empty());
    schedule.check_invariants();
}

#[test]
fn moving_a_waiter_moves_its_count() {
    let mut schedule = schedule();
    let [first, second] = [DriverId::FIRST, DriverId::SECOND];
    assert!(schedule.depart_now(Timestamp::ZERO, own_key(0), 1).is_allowed());
    let waiters: Vec<_> =
        (0..3).map(|_| schedule.join(Timestamp::ZERO, own_key(0), 1, 8 * SECOND, true, first)).collect();
    assert_eq!([first, second].map(|driver| schedule.waiting_by_driver(driver)), [3, 0]);
    schedule.set_driver(waiters[1], second);
    assert_eq!([first, second].map(|driver| schedule.waiting_by_driver(driver)), [2, 1]);
    assert_eq!(schedule.driver_of(waiters[1]), Some(second));
    schedule.check_invariants();
}
