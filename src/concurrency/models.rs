//! How threads can interfere in [`Counts`], in every order, with loom: see `verify/models/Cargo.toml`.
//!
//! The table is as small as possible (two sets of two slots), and each model is named after its hazard.

use std::task::{Context, Poll, Wake, Waker};

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::thread;

use super::counts::{AcquireResult, Counts};
use super::slots::SlotPlace;
use super::wait_lists::{JoinResult, WaitTicket, WantedUnits};

/// Counts, and how many units the model's key has in flight, counted apart.
struct Shared {
    counts: Counts,
    in_flight: AtomicU64,
}

fn model(run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 100_000;
    builder.check(run);
}

/// For three threads, with two preemptions at most: a third one takes minutes.
fn model_of_three(run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.max_branches = 100_000;
    builder.preemption_bound = Some(builder.preemption_bound.map_or(2, |bound| bound.min(2)));
    builder.check(run);
}

fn shared() -> Arc<Shared> {
    Arc::new(Shared { counts: Counts::new(2), in_flight: AtomicU64::new(0) })
}

fn beside<O: 'static>(shared: &Arc<Shared>, act: impl FnOnce(&Shared) -> O + 'static) -> thread::JoinHandle<O> {
    let shared = Arc::clone(shared);
    thread::spawn(move || act(&shared))
}

impl Shared {
    fn place(&self, hash: u64) -> SlotPlace {
        self.counts.slots.place(hash)
    }

    /// Takes a unit for a key, and notes it; returns the slot.
    fn take(&self, hash: u64, limit: u64) -> Option<usize> {
        match self.counts.acquire(&self.place(hash), 1, limit) {
            AcquireResult::Taken { slot, .. } => {
                self.note(limit);
                Some(slot)
            }
            AcquireResult::Full { .. } | AcquireResult::NoSlot => None,
        }
    }

    fn note(&self, limit: u64) {
        let before = self.in_flight.fetch_add(1, Ordering::Relaxed);
        assert!(before < limit, "more than {limit} are in flight");
    }

    fn release(&self, slot: usize) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.counts.release(slot, 1);
    }

    fn is_idle(&self) -> bool {
        self.counts.totals() == (0, 0)
    }
}

#[test]
fn first_requests_take_the_last_unit_once() {
    model(|| {
        let shared = shared();
        let other = beside(&shared, |shared| shared.take(7, 1));
        let mine = shared.take(7, 1);
        let theirs = other.join().unwrap();
        assert!(mine.is_some() != theirs.is_some());
        shared.release(mine.or(theirs).unwrap());
        assert!(shared.is_idle());
    });
}

#[test]
fn release_beside_request_keeps_all_units() {
    model(|| {
        let shared = shared();
        let slot = shared.take(7, 1).unwrap();
        let other = beside(&shared, |shared| {
            if let Some(slot) = shared.take(7, 1) {
                shared.release(slot);
            }
        });
        shared.release(slot);
        other.join().unwrap();
        assert!(shared.is_idle());
        assert!(shared.take(7, 1).is_some());
    });
}

/// Fills all slots but one, so that two keys want the same.
fn with_one_slot(shared: &Shared) {
    let mut taken = 0;
    for hash in 100..200_u64 {
        let is_last = taken == shared.counts.slots.len() - 1;
        if is_last {
            break;
        }
        if matches!(shared.counts.acquire(&shared.place(hash), 1, 1), AcquireResult::Taken { .. }) {
            taken += 1;
        }
    }
}

#[test]
fn returning_and_new_keys_share_no_slot() {
    model(|| {
        let shared = shared();
        with_one_slot(&shared);
        // The key has the last slot, and is idle.
        let slot = shared.take(7, 1).unwrap();
        shared.release(slot);
        let before = shared.counts.totals().1;
        let other = beside(&shared, |shared| {
            matches!(shared.counts.acquire(&shared.place(8), 1, 1), AcquireResult::Taken { .. })
        });
        let mine = shared.take(7, 1).is_some();
        let theirs = other.join().unwrap();
        assert!(mine != theirs, "the slot has room for one of them");
        assert_eq!(shared.counts.totals().1, before + 1);
    });
}

/// The key's slot goes to another key and comes back while a thread holds the word that it read before.
#[test]
fn a_twice_reused_slot_keeps_the_limit() {
    model_of_three(|| {
        let shared = shared();
        with_one_slot(&shared);
        let slot = shared.take(7, 1).unwrap();
        shared.release(slot);
        let another_key = beside(&shared, |shared| {
            if let AcquireResult::Taken { slot, .. } = shared.counts.acquire(&shared.place(8), 1, 1) {
                shared.counts.release(slot, 1);
            }
        });
        let again = beside(&shared, |shared| shared.take(7, 1));
        let mine = shared.take(7, 1);
        another_key.join().unwrap();
        let theirs = again.join().unwrap();
        assert!(mine.is_none() || theirs.is_none());
        for slot in mine.into_iter().chain(theirs) {
            shared.release(slot);
        }
    });
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

const ROOM: WantedUnits = WantedUnits { cost: 1, limit: 1, is_own_limit: false, max_waiters_of_key: 9, max_waiters: 9 };

impl Shared {
    /// Takes a unit for a key, or lines up for it.
    fn take_or_wait(&self, hash: u64, wanted: WantedUnits) -> Result<usize, WaitTicket> {
        let place = self.place(hash);
        loop {
            let slot = match self.counts.acquire(&place, wanted.cost, wanted.limit) {
                AcquireResult::Taken { slot, .. } => {
                    self.note(wanted.limit);
                    return Ok(slot);
                }
                AcquireResult::Full { slot, .. } => slot,
                AcquireResult::NoSlot => panic!("there is room"),
            };
            match self.counts.wait_lists.join(&self.counts.slots, &place, slot, wanted) {
                JoinResult::Waits(ticket) => return Err(ticket),
                JoinResult::Taken { .. } => {
                    self.note(wanted.limit);
                    return Ok(slot);
                }
                JoinResult::Gone => {}
                JoinResult::Full { .. } | JoinResult::Closed => panic!("there is room to wait"),
            }
        }
    }

    fn poll(&self, ticket: WaitTicket, flag: &std::sync::Arc<Flag>) -> bool {
        let waker = Waker::from(std::sync::Arc::clone(flag));
        match self.counts.wait_lists.poll(ticket, &mut Context::from_waker(&waker)) {
            Poll::Ready(Some(_)) => true,
            Poll::Ready(None) => panic!("not closed"),
            Poll::Pending => false,
        }
    }
}

#[test]
fn a_release_wakes_a_new_waiter() {
    model(|| {
        let shared = shared();
        let slot = shared.take(7, 1).unwrap();
        let waiter = beside(&shared, |shared| {
            let flag = std::sync::Arc::new(Flag(AtomicBool::new(false)));
            match shared.take_or_wait(7, ROOM) {
                Ok(slot) => Ok(slot),
                Err(ticket) if shared.poll(ticket, &flag) => {
                    shared.note(1);
                    Ok(ticket.slot())
                }
                Err(ticket) => Err((ticket, flag)),
            }
        });
        shared.release(slot);
        let slot = waiter.join().unwrap().unwrap_or_else(|(ticket, flag)| {
            assert!(flag.0.load(Ordering::SeqCst), "its unit is free, but it was not woken");
            assert!(shared.poll(ticket, &flag));
            shared.note(1);
            ticket.slot()
        });
        shared.release(slot);
        assert!(shared.is_idle());
        shared.counts.wait_lists.check_invariants(&shared.counts.slots);
    });
}

#[test]
fn leaving_waiters_hand_their_unit_on() {
    model(|| {
        let shared = shared();
        let slot = shared.take(7, 1).unwrap();
        let (Err(first), Err(second)) = (shared.take_or_wait(7, ROOM), shared.take_or_wait(7, ROOM)) else {
            panic!("both wait")
        };
        let leaver = beside(&shared, move |shared| {
            if shared.counts.wait_lists.leave(&shared.counts.slots, first).is_some() {
                shared.counts.release(first.slot(), 1);
            }
        });
        shared.release(slot);
        leaver.join().unwrap();
        let flag = std::sync::Arc::new(Flag(AtomicBool::new(false)));
        assert!(shared.poll(second, &flag), "the unit was lost");
        shared.note(1);
        shared.release(second.slot());
        assert!(shared.is_idle());
    });
}

/// One unit is free, and the waiter needs two.
#[test]
fn no_request_overtakes_a_waiter() {
    model_of_three(|| {
        let shared = shared();
        let slot = shared.take(7, 2).unwrap();
        let Err(waiter) = shared.take_or_wait(7, WantedUnits { cost: 2, limit: 2, ..ROOM }) else { panic!("it waits") };
        let late = beside(&shared, |shared| shared.take(7, 2).is_some());
        shared.release(slot);
        assert!(!late.join().unwrap(), "a request that came later has the unit");
        let flag = std::sync::Arc::new(Flag(AtomicBool::new(false)));
        assert!(shared.poll(waiter, &flag));
    });
}

/// One unit is free. The first waiter needs two, and the second needs one.
#[test]
fn leaving_waiters_let_others_pass() {
    model(|| {
        let shared = shared();
        let slot = shared.take(7, 2).unwrap();
        let (Err(great), Err(small)) = (
            shared.take_or_wait(7, WantedUnits { cost: 2, limit: 2, ..ROOM }),
            shared.take_or_wait(7, WantedUnits { limit: 2, ..ROOM }),
        ) else {
            panic!("both wait")
        };
        let leaver = beside(&shared, move |shared| {
            if shared.counts.wait_lists.leave(&shared.counts.slots, great).is_some() {
                shared.counts.release(great.slot(), 2);
            }
        });
        shared.release(slot);
        leaver.join().unwrap();
        let flag = std::sync::Arc::new(Flag(AtomicBool::new(false)));
        assert!(shared.poll(small, &flag));
        shared.counts.wait_lists.check_invariants(&shared.counts.slots);
        shared.counts.release(small.slot(), 1);
        assert!(shared.is_idle());
    });
}

#[test]
fn the_last_waiter_unlocks_the_slot() {
    model(|| {
        let shared = shared();
        let slot = shared.take(7, 1).unwrap();
        let Err(waiter) = shared.take_or_wait(7, ROOM) else { panic!("it waits") };
        let leaver = beside(&shared, move |shared| {
            if shared.counts.wait_lists.leave(&shared.counts.slots, waiter).is_some() {
                shared.counts.release(waiter.slot(), 1);
            }
        });
        shared.release(slot);
        leaver.join().unwrap();
        shared.counts.wait_lists.check_invariants(&shared.counts.slots);
        assert!(shared.is_idle() && shared.take(7, 1).is_some());
    });
}

#[test]
fn two_releases_serve_two_waiters() {
    model_of_three(|| {
        let shared = shared();
        let wanted = WantedUnits { limit: 2, ..ROOM };
        let a = shared.take(7, 2).unwrap();
        let b = shared.take(7, 2).unwrap();
        let (Err(first), Err(second)) = (shared.take_or_wait(7, wanted), shared.take_or_wait(7, wanted)) else {
            panic!("both wait")
        };
        let other = beside(&shared, move |shared| shared.release(a));
        shared.release(b);
        other.join().unwrap();
        let flag = std::sync::Arc::new(Flag(AtomicBool::new(false)));
        for ticket in [first, second] {
            assert!(shared.poll(ticket, &flag));
            shared.counts.release(ticket.slot(), 1);
        }
        assert!(shared.is_idle());
        shared.counts.wait_lists.check_invariants(&shared.counts.slots);
    });
}

/// A raised limit lets waiters pass, and a release does so as well.
#[test]
fn a_limit_change_serves_waiters_once() {
    model(|| {
        let shared = shared();
        let slot = shared.take(7, 1).unwrap();
        let (Err(first), Err(second)) = (shared.take_or_wait(7, ROOM), shared.take_or_wait(7, ROOM)) else {
            panic!("both wait")
        };
        let change = beside(&shared, |shared| {
            let lists = &shared.counts.wait_lists;
            lists.change_limit(&shared.counts.slots, lists.begin_change(), 2);
        });
        shared.release(slot);
        change.join().unwrap();
        let flag = std::sync::Arc::new(Flag(AtomicBool::new(false)));
        assert!(shared.poll(first, &flag) && shared.poll(second, &flag));
        assert_eq!(shared.counts.totals(), (1, 2));
        shared.counts.wait_lists.check_invariants(&shared.counts.slots);
    });
}

/// Two units are in flight. The first waiter has a limit of one, and the second a limit of three, so that it would fit
/// at once.
#[test]
fn lower_limits_are_not_overtaken() {
    model_of_three(|| {
        let shared = shared();
        let a = shared.take(7, 3).unwrap();
        let b = shared.take(7, 3).unwrap();
        let own = |limit| WantedUnits { limit, is_own_limit: true, ..ROOM };
        let Err(low) = shared.take_or_wait(7, own(1)) else { panic!("it waits") };
        let Err(high) = shared.take_or_wait(7, own(3)) else { panic!("it waits") };
        let flags = [(); 2].map(|()| std::sync::Arc::new(Flag(AtomicBool::new(false))));
        assert!(!shared.poll(low, &flags[0]) && !shared.poll(high, &flags[1]));
        let other = beside(&shared, move |shared| shared.release(a));
        let late = beside(&shared, |shared| shared.take(7, 3).is_some());
        shared.release(b);
        other.join().unwrap();
        // It may come when both units are released and handed to the waiters.
        let late = late.join().unwrap();
        assert!(flags.iter().all(|flag| flag.0.load(Ordering::SeqCst)), "a waiter with room was not woken");
        assert!(shared.poll(low, &flags[0]) && shared.poll(high, &flags[1]));
        assert_eq!(shared.counts.totals(), (1, 2 + u64::from(late)));
        shared.counts.wait_lists.check_invariants(&shared.counts.slots);
    });
}
