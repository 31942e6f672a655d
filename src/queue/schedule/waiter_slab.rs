//! A queue's waiters in one slab, linked into the wait lists of their keys, without pointers.

use std::task::Waker;

use super::FifoId;
use crate::values::time::Timestamp;
use crate::values::{Quota, Receipt};

/// A driver's number. Each waiter has the driver on the runtime on which it was last polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::queue) struct DriverId(pub(in crate::queue) u16);

impl DriverId {
    #[cfg(test)]
    pub(in crate::queue) const FIRST: Self = Self(0);
    #[cfg(test)]
    pub(in crate::queue) const SECOND: Self = Self(1);

    pub(in crate::queue) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Slots for waiters, each known by its number.
///
/// If a waiter has a future, its slot belongs to that future alone, and only the future frees it: the wait's outcome is
/// left in the slot for it to find. So an id never stands for two waiters.
///
/// The slab grows by chunks, so that no waiter is moved. When the last slot is freed, it drops the chunks, unless it
/// has only one.
pub(in crate::queue) struct WaiterSlab {
    chunks: Vec<Vec<SlabSlot>>,
    /// The first free slot; each links to the next.
    free: WaiterId,
    taken: u32,
}

/// A slot's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::queue) struct WaiterId(u32);

impl WaiterId {
    pub(in crate::queue) const NONE: Self = Self(u32::MAX);
}

/// A slot: free, or a waiter's state.
pub(in crate::queue) enum SlabSlot {
    Free {
        next: WaiterId,
    },
    Waiting(LinkedWaiter),
    /// The turn has come, and is paid for with `receipt`. It is used once the future has seen it.
    Released {
        fifo: FifoId,
        /// The key's own quota at that time, if it had one. Boxed, to keep all slots small.
        quota: Option<Box<Quota>>,
        cost: u64,
        /// In nanoseconds.
        delay: u64,
        receipt: Receipt,
    },
    /// After a quota change, it would have waited for too long, or found no room.
    Rejected {
        fifo: FifoId,
        /// The key's own quota that rejected it, if it had one.
        quota: Option<Box<Quota>>,
        cost: u64,
        /// How long it accepted to wait, in nanoseconds.
        patience: u64,
    },
    Closed,
}

/// A request that waits, and its neighbours in its key's FIFO.
pub(in crate::queue) struct LinkedWaiter {
    pub(in crate::queue) fifo: FifoId,
    /// The neighbours in arrival order.
    pub(in crate::queue) older: WaiterId,
    pub(in crate::queue) newer: WaiterId,
    pub(in crate::queue) cost: u64,
    /// The driver on the runtime on which it waits.
    pub(in crate::queue) driver: DriverId,
    /// Whether a future owns the slot. A detached waiter (a shadow, or a charge of the remaining units) has no future.
    pub(in crate::queue) has_future: bool,
    pub(in crate::queue) since: Timestamp,
    /// The last instant at which its turn may come; with growing delays, its turn.
    pub(in crate::queue) until: Timestamp,
    /// With growing delays, when its charge is paid for, rounded down so that no refund is too large. Zero with even
    /// spacing: it is charged when it departs.
    pub(in crate::queue) paid_at: Timestamp,
    pub(in crate::queue) waker: Option<Waker>,
}

/// Both ends of a doubly linked list, and its length.
#[derive(Clone, Copy)]
pub(in crate::queue) struct WaitList {
    pub(in crate::queue) oldest: WaiterId,
    pub(in crate::queue) newest: WaiterId,
    pub(in crate::queue) len: usize,
}

impl Default for WaitList {
    fn default() -> Self {
        Self { oldest: WaiterId::NONE, newest: WaiterId::NONE, len: 0 }
    }
}

const CHUNK: usize = 256;

const _: () = assert!(size_of::<SlabSlot>() <= 80, "the memory of a waiter");

impl WaiterSlab {
    pub(in crate::queue) const fn new() -> Self {
        Self { chunks: Vec::new(), free: WaiterId::NONE, taken: 0 }
    }

    pub(in crate::queue) const fn is_full(&self) -> bool {
        self.taken == u32::MAX
    }

    #[cfg(all(test, sluice_loom))]
    pub(in crate::queue) const fn taken(&self) -> u32 {
        self.taken
    }

    pub(in crate::queue) fn get(&self, waiter_id: WaiterId) -> &SlabSlot {
        let index = waiter_id.0 as usize;
        &self.chunks[index / CHUNK][index % CHUNK]
    }

    pub(in crate::queue) fn get_mut(&mut self, waiter_id: WaiterId) -> &mut SlabSlot {
        let index = waiter_id.0 as usize;
        &mut self.chunks[index / CHUNK][index % CHUNK]
    }

    pub(in crate::queue) fn waiter(&self, waiter_id: WaiterId) -> Option<&LinkedWaiter> {
        match waiter_id {
            WaiterId::NONE => None,
            waiter_id => match self.get(waiter_id) {
                SlabSlot::Waiting(waiter) => Some(waiter),
                _ => None,
            },
        }
    }

    pub(in crate::queue) fn waiter_mut(&mut self, waiter_id: WaiterId) -> Option<&mut LinkedWaiter> {
        match waiter_id {
            WaiterId::NONE => None,
            waiter_id => match self.get_mut(waiter_id) {
                SlabSlot::Waiting(waiter) => Some(waiter),
                _ => None,
            },
        }
    }

    /// Appends a waiter to a list. The slab must not be full.
    pub(in crate::queue) fn push(&mut self, list: &mut WaitList, mut waiter: LinkedWaiter) -> WaiterId {
        waiter.older = list.newest;
        waiter.newer = WaiterId::NONE;
        let waiter_id = self.take(SlabSlot::Waiting(waiter));
        match self.waiter_mut(list.newest) {
            Some(newest) => newest.newer = waiter_id,
            None => list.oldest = waiter_id,
        }
        list.newest = waiter_id;
        list.len += 1;
        waiter_id
    }

    /// Removes a waiter from its list. Its slot stays taken, and awaits an outcome.
    pub(in crate::queue) fn unlink(&mut self, list: &mut WaitList, waiter_id: WaiterId) -> Option<LinkedWaiter> {
        let SlabSlot::Waiting(waiter) = self.replace(waiter_id, SlabSlot::Closed) else { return None };
        match self.waiter_mut(waiter.older) {
            Some(older) => older.newer = waiter.newer,
            None => list.oldest = waiter.newer,
        }
        match self.waiter_mut(waiter.newer) {
            Some(newer) => newer.older = waiter.older,
            None => list.newest = waiter.older,
        }
        list.len -= 1;
        Some(waiter)
    }

    fn replace(&mut self, waiter_id: WaiterId, slot: SlabSlot) -> SlabSlot {
        std::mem::replace(self.get_mut(waiter_id), slot)
    }

    fn take(&mut self, slot: SlabSlot) -> WaiterId {
        self.taken += 1;
        if self.free != WaiterId::NONE {
            let waiter_id = self.free;
            if let SlabSlot::Free { next } = self.replace(waiter_id, slot) {
                self.free = next;
            }
            return waiter_id;
        }
        if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK) {
            self.chunks.push(Vec::new());
        }
        let before = (self.chunks.len() - 1) * CHUNK;
        let chunk = self.chunks.last_mut().expect("pushed above");
        chunk.push(slot);
        WaiterId(u32::try_from(before + chunk.len() - 1).expect("the caller checked that the slab is not full"))
    }

    /// Frees a slot, and returns its content.
    pub(in crate::queue) fn free(&mut self, waiter_id: WaiterId) -> SlabSlot {
        let slot = self.replace(waiter_id, SlabSlot::Free { next: self.free });
        self.free = waiter_id;
        self.taken -= 1;
        if self.taken == 0 && self.chunks.len() > 1 {
            self.chunks.clear();
            self.chunks.shrink_to_fit();
            self.free = WaiterId::NONE;
        }
        slot
    }

    /// Returns the ids of all slots, in order.
    pub(in crate::queue) fn waiter_ids(&self) -> impl Iterator<Item = WaiterId> + use<> {
        let last = self.chunks.last().map_or(0, |last| (self.chunks.len() - 1) * CHUNK + last.len());
        (0..u32::try_from(last).unwrap_or(u32::MAX)).map(WaiterId)
    }

    /// Checks that every slot is either taken or in the list of free ones, once.
    #[cfg(feature = "test-util")]
    pub(in crate::queue) fn check_invariants(&self) {
        let slots = self.waiter_ids().count();
        let mut waiter_id = self.free;
        let mut free = 0;
        while waiter_id != WaiterId::NONE {
            let SlabSlot::Free { next } = self.get(waiter_id) else { panic!("{waiter_id:?} is free and taken") };
            free += 1;
            assert!(free <= slots, "the list of free slots is a circle");
            waiter_id = *next;
        }
        assert_eq!(free + self.taken as usize, slots, "a slot is neither free nor taken");
    }

    /// Takes the wakers of all waiters that match. They keep waiting.
    pub(in crate::queue) fn take_wakers(&mut self, is_meant: impl Fn(&LinkedWaiter) -> bool) -> Vec<Waker> {
        let slab = self.chunks.iter_mut().flatten();
        slab.filter_map(|slot| match slot {
            SlabSlot::Waiting(waiter) if is_meant(waiter) => waiter.waker.take(),
            _ => None,
        })
        .collect()
    }
}

#[cfg(all(test, not(sluice_loom)))]
mod tests {
    use super::*;

    fn waiter(cost: u64) -> LinkedWaiter {
        LinkedWaiter {
            fifo: FifoId(0),
            older: WaiterId::NONE,
            newer: WaiterId::NONE,
            cost,
            driver: DriverId::FIRST,
            has_future: true,
            since: Timestamp::ZERO,
            until: Timestamp::ZERO,
            paid_at: Timestamp::ZERO,
            waker: Some(Waker::noop().clone()),
        }
    }

    /// Adds `count` waiters of different costs, and removes them, the oldest first.
    fn fill_and_empty(slab: &mut WaiterSlab, count: u64) {
        let mut list = WaitList::default();
        let waiter_ids: Vec<_> = (0..count).map(|cost| slab.push(&mut list, waiter(cost))).collect();
        for waiter_id in waiter_ids {
            assert!(slab.unlink(&mut list, waiter_id).is_some());
            slab.free(waiter_id);
        }
    }

    /// It keeps its only chunk.
    #[test]
    fn an_empty_slab_drops_several_chunks() {
        let mut slab = WaiterSlab::new();
        fill_and_empty(&mut slab, 2);
        assert_eq!(slab.chunks.iter().map(Vec::len).collect::<Vec<_>>(), [2]);
        fill_and_empty(&mut slab, CHUNK as u64 + 1);
        assert_eq!(slab.chunks.capacity(), 0);
        fill_and_empty(&mut slab, 3);
        assert_eq!(slab.waiter_ids().count(), 3);
    }

    #[test]
    fn only_matching_waiters_wakers_are_taken() {
        let mut slab = WaiterSlab::new();
        let mut list = WaitList::default();
        for cost in 0..5 {
            slab.push(&mut list, waiter(cost));
        }
        assert_eq!(slab.take_wakers(|waiter| waiter.cost > 2).len(), 2);
        assert_eq!(slab.take_wakers(|_| true).len(), 3);
    }
}
