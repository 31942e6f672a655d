//! Wait lists: the requests that wait for their key's units, first come, first served.
//!
//! # Concurrency
//!
//! A slot's list is behind its shard's lock. A slot whose word is marked
//! ([`CountWord::has_waiters`](super::word::CountWord::has_waiters)) has at least one waiter, and its word is changed
//! under that lock only. A thread without the lock never changes a marked word: to take units, it lines up behind the
//! waiters; to release some, it takes the lock. So no release is missed between the moment at which a request finds
//! that it does not fit and the moment at which it is in the list: it marks the word first, in a compare-and-swap of
//! the very word that was too full.

use std::collections::{BTreeMap, HashMap};
use std::sync::PoisonError;
use std::task::{Context, Poll, Waker};

use super::slots::{CountSlots, SlotPlace};
use crate::util::sync::{AtomicU64, Mutex, Ordering};
use crate::util::wake::{let_others_take, wake_all};

const SHARDS: usize = if cfg!(sluice_loom) { 1 } else { 64 };

/// The requests that wait, by slot.
pub(super) struct WaitLists {
    shards: Box<[Mutex<WaitShard>]>,
    /// The requests in all lists. Changed under a shard's lock, and read without.
    waiting: AtomicU64,
    /// How many limit changes were begun.
    changes: AtomicU64,
}

#[derive(Default)]
struct WaitShard {
    lists: HashMap<usize, UnitWaitList>,
    /// Waiters that have their units and do not know it yet: how many units their key has, with theirs.
    granted: HashMap<UnitWaiterId, u64>,
    next: UnitWaiterId,
    is_closed: bool,
    /// The latest limit change that was applied.
    change: LimitChange,
}

/// A limit change: the later one is the greater. Two threads may apply theirs in any order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LimitChange(u64);

/// One slot's waiters, in the order in which they came. Never empty.
type UnitWaitList = BTreeMap<UnitWaiterId, UnitWaiter>;

/// Ascends in the order of arrival within a shard.
type UnitWaiterId = u64;

struct UnitWaiter {
    cost: u64,
    limit: u64,
    is_own_limit: bool,
    waker: Option<Waker>,
}

/// A waiter's entry in its list.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitTicket {
    slot: usize,
    id: UnitWaiterId,
}

impl WaitTicket {
    pub(super) const fn slot(self) -> usize {
        self.slot
    }
}

/// The units that a request wants, and how many requests may wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct WantedUnits {
    pub(super) cost: u64,
    pub(super) limit: u64,
    /// Whether the limit is its key's own, which stays when the limiter's changes.
    pub(super) is_own_limit: bool,
    /// The most waiters for its key, and for all keys.
    pub(super) max_waiters_of_key: usize,
    pub(super) max_waiters: u64,
}

/// The result of a request that did not fit at once.
#[derive(Debug)]
pub(super) enum JoinResult {
    /// It waits.
    Waits(WaitTicket),
    /// It has its units after all. With them, its key has `units` in flight.
    Taken {
        units: u64,
    },
    /// Its list, or all lists together, have the most waiters that they may have. Its key has `units` in flight.
    Full {
        units: u64,
    },
    /// The slot belongs to another key by now, because all the key's units were released, so the request has to begin
    /// again.
    Gone,
    Closed,
}

type Wakers = Vec<Waker>;

impl Default for WaitLists {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            waiting: AtomicU64::new(0),
            changes: AtomicU64::new(0),
        }
    }
}

impl WaitShard {
    fn enlist(&mut self, slot: usize, wanted: WantedUnits) -> WaitTicket {
        let WantedUnits { cost, limit, is_own_limit, .. } = wanted;
        let id = self.next;
        self.next += 1;
        self.lists.entry(slot).or_default().insert(id, UnitWaiter { cost, limit, is_own_limit, waker: None });
        WaitTicket { slot, id }
    }
}

impl WaitLists {
    /// Runs `change` with the shard of a slot locked, and wakes the waiters that it returns after that, because a waker
    /// may take its own locks.
    fn locked<T>(&self, slot: usize, change: impl FnOnce(&mut WaitShard, &mut Wakers) -> T) -> T {
        let mut wakers = Wakers::new();
        // Nothing in the critical sections panics, unless memory runs out.
        let shard = &self.shards[slot % self.shards.len()];
        let result = change(&mut shard.lock().unwrap_or_else(PoisonError::into_inner), &mut wakers);
        let has_woken = !wakers.is_empty();
        wake_all(wakers);
        if has_woken {
            let_others_take();
        }
        result
    }

    /// Lines up a request that found its slot too full, unless it fits by now.
    pub(super) fn join(&self, slots: &CountSlots, place: &SlotPlace, slot: usize, wanted: WantedUnits) -> JoinResult {
        self.locked(slot, |shard, _| {
            if shard.is_closed {
                return JoinResult::Closed;
            }
            let mut word = slots.get(slot).load();
            loop {
                if !word.is(place.tag) {
                    return JoinResult::Gone;
                }
                let units = word.units();
                let waiting = shard.lists.get(&slot).map_or(0, BTreeMap::len);
                let fits = units.checked_add(wanted.cost).filter(|total| *total <= wanted.limit && waiting == 0);
                if fits.is_none() && (waiting >= wanted.max_waiters_of_key || !self.enter(wanted.max_waiters)) {
                    return JoinResult::Full { units };
                }
                let next = fits.map_or_else(|| word.with_waiters(true), |total| word.with_units(total));
                match (slots.get(slot).replace(word, next), fits) {
                    (Ok(()), Some(units)) => return JoinResult::Taken { units },
                    (Ok(()), None) => return JoinResult::Waits(shard.enlist(slot, wanted)),
                    // Fails only while the word is not marked: then other threads change it as well.
                    (Err(now), fits) => {
                        if fits.is_none() {
                            self.exit(1);
                        }
                        word = now;
                    }
                }
            }
        })
    }

    /// Counts a request that begins to wait, unless `max_waiters` wait already.
    fn enter(&self, max_waiters: u64) -> bool {
        let entered = self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |waiting| {
            (waiting < max_waiters).then_some(waiting + 1)
        });
        entered.is_ok()
    }

    fn exit(&self, waiters: usize) {
        self.waiting.fetch_sub(waiters as u64, Ordering::Relaxed);
    }

    /// Looks whether a waiter's turn has come. If so, returns the units that its key has then; from then on, the ticket
    /// is void. Returns `None` if the lists were closed.
    pub(super) fn poll(&self, ticket: WaitTicket, context: &mut Context<'_>) -> Poll<Option<u64>> {
        self.locked(ticket.slot, |shard, _| {
            if let Some(units) = shard.granted.remove(&ticket.id) {
                return Poll::Ready(Some(units));
            }
            match shard.lists.get_mut(&ticket.slot).and_then(|list| list.get_mut(&ticket.id)) {
                Some(waiter) => {
                    match &mut waiter.waker {
                        Some(waker) => waker.clone_from(context.waker()),
                        none => *none = Some(context.waker().clone()),
                    }
                    Poll::Pending
                }
                // Taken off the list without units: the lists were closed.
                None => Poll::Ready(None),
            }
        })
    }

    /// Takes a waiter off its list. If its turn had come already, returns the units that its key has then: the waiter
    /// has its units, and the caller has to use or to release them.
    pub(super) fn leave(&self, slots: &CountSlots, ticket: WaitTicket) -> Option<u64> {
        self.locked(ticket.slot, |shard, wakers| {
            if let Some(units) = shard.granted.remove(&ticket.id) {
                return Some(units);
            }
            if shard.lists.get_mut(&ticket.slot)?.remove(&ticket.id).is_some() {
                self.exit(1);
                // Those behind it may fit where it did not.
                self.grant(shard, slots, ticket.slot, 0, wakers);
            }
            None
        })
    }

    /// Releases `cost` units of a slot, and hands them to the waiters whose turn it is. Not inlined: a release without
    /// waiters saves no registers for it.
    #[inline(never)]
    pub(super) fn release(&self, slots: &CountSlots, slot: usize, cost: u64) {
        self.locked(slot, |shard, wakers| self.grant(shard, slots, slot, cost, wakers));
    }

    /// Does the work for [`release`](Self::release), with the lock held, in arrival order: a waiter that does not fit
    /// yet keeps those behind it waiting. Otherwise requests with a small cost could starve a request with a great
    /// cost.
    fn grant(&self, shard: &mut WaitShard, slots: &CountSlots, slot: usize, cost: u64, wakers: &mut Wakers) {
        let WaitShard { lists, granted, .. } = shard;
        let mut word = slots.get(slot).load();
        loop {
            let mut units = word.units().saturating_sub(cost);
            let list = lists.get(&slot);
            let mut served = 0;
            for waiter in list.into_iter().flat_map(BTreeMap::values) {
                match units.checked_add(waiter.cost).filter(|total| *total <= waiter.limit) {
                    Some(total) => units = total,
                    None => break,
                }
                served += 1;
            }
            let next = word.with_units(units).with_waiters(list.is_some_and(|list| list.len() > served));
            // Fails only if the word was not marked, because the last waiter has just left.
            if let Err(now) = slots.get(slot).replace(word, next) {
                word = now;
                continue;
            }
            let Some(list) = lists.get_mut(&slot) else { return };
            self.exit(served);
            for (id, waiter) in std::iter::from_fn(|| list.pop_first()).take(served) {
                granted.insert(id, units);
                wakers.extend(waiter.waker);
            }
            if list.is_empty() {
                lists.remove(&slot);
            }
            return;
        }
    }

    /// Begins a limit change, which is later than all that were begun before.
    pub(super) fn begin_change(&self) -> LimitChange {
        LimitChange(self.changes.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Applies another limit to all waiters without their key's own limit, unless a later change was applied already.
    /// Waiters that fit now get their units.
    pub(super) fn change_limit(&self, slots: &CountSlots, change: LimitChange, limit: u64) {
        for shard in 0..self.shards.len() {
            self.locked(shard, |shard, wakers| {
                if change < shard.change {
                    return;
                }
                shard.change = change;
                let changed: Vec<usize> = shard.lists.keys().copied().collect();
                for slot in changed {
                    let waiters = shard.lists.get_mut(&slot).into_iter().flat_map(BTreeMap::values_mut);
                    for waiter in waiters.filter(|waiter| !waiter.is_own_limit) {
                        // A request that can never fit under the new limit passes when it is alone, as before the
                        // change.
                        waiter.limit = limit.max(waiter.cost);
                    }
                    self.grant(shard, slots, slot, 0, wakers);
                }
            });
        }
    }

    /// Ends all waits, and lets no request wait any more.
    pub(super) fn close(&self, slots: &CountSlots) {
        for shard in 0..self.shards.len() {
            self.locked(shard, |shard, wakers| {
                shard.is_closed = true;
                for (slot, list) in std::mem::take(&mut shard.lists) {
                    self.exit(list.len());
                    wakers.extend(list.into_values().filter_map(|waiter| waiter.waker));
                    // Only the holder of the lock changes a marked word.
                    let word = slots.get(slot).load();
                    let _ = slots.get(slot).replace(word, word.with_waiters(false));
                }
            });
        }
    }

    /// The number of requests that wait.
    pub(super) fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Panics if an invariant is broken. No other thread must use the lists meanwhile.
    #[cfg(feature = "test-util")]
    pub(super) fn check_invariants(&self, slots: &CountSlots) {
        let mut waiting = 0;
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            for (slot, list) in &shard.lists {
                let word = slots.get(*slot).load();
                let head = list.values().next().expect("no list is empty");
                assert!(word.has_waiters(), "slot {slot} has waiters, and no mark");
                assert!(
                    word.units().saturating_add(head.cost) > head.limit,
                    "slot {slot} has room for its next waiter"
                );
                waiting += list.len() as u64;
            }
            assert!(shard.granted.keys().all(|id| *id < shard.next));
        }
        assert_eq!(self.waiting(), waiting);
        for slot in 0..slots.len() {
            let shard = self.shards[slot % self.shards.len()].lock().unwrap_or_else(PoisonError::into_inner);
            assert_eq!(slots.get(slot).load().has_waiters(), shard.lists.contains_key(&slot), "slot {slot}");
        }
    }
}
