use std::task::Waker;

use super::FifoId;
use crate::queue::drivers::DriverId;
use crate::values::Receipt;
use crate::values::time::Timestamp;

/// All places of a queue, taken or free, each known by its waiter_id.
///
/// A place that somebody waits in belongs to that future alone, and nobody else frees it: whatever
/// becomes of the waiter is left here, for its future to find. So a waiter_id never means two waiters.
///
/// Grows by chunks, so that nothing is moved, and forgets them when nobody is left.
pub(in crate::queue) struct WaiterSlab {
    chunks: Vec<Vec<Slot>>,
    /// The first of the free ones, each of which knows the next.
    free: WaiterId,
    taken: u32,
}

/// The waiter_id of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::queue) struct WaiterId(u32);

impl WaiterId {
    pub(in crate::queue) const NONE: Self = Self(u32::MAX);
}

pub(in crate::queue) enum Slot {
    Free {
        next: WaiterId,
    },
    Waiting(Waiter),
    /// The turn has come, and is paid for with `receipt`. It is used once its future has seen it.
    Released {
        fifo: FifoId,
        cost: u32,
        /// Nanoseconds.
        delay: u64,
        receipt: Receipt,
    },
    /// Had to make room, or would have waited longer than it would, after a change of the quota.
    Rejected {
        fifo: FifoId,
        cost: u32,
        /// How long it was ready to wait, in nanoseconds.
        patience: u64,
    },
    Closed,
}

pub(in crate::queue) struct Waiter {
    pub(in crate::queue) fifo: FifoId,
    /// The one that came before, and the one that came after.
    pub(in crate::queue) older: WaiterId,
    pub(in crate::queue) newer: WaiterId,
    pub(in crate::queue) cost: u32,
    /// That of the runtime on which it waits.
    pub(in crate::queue) driver: DriverId,
    /// Whether a future waits. It does not in a place that was taken to rehearse.
    pub(in crate::queue) has_future: bool,
    pub(in crate::queue) since: Timestamp,
    /// The last moment at which its turn may come.
    pub(in crate::queue) until: Timestamp,
    pub(in crate::queue) waker: Option<Waker>,
}

/// Both ends of a fifo, and its length.
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

    pub(in crate::queue) fn get(&self, waiter_id: WaiterId) -> &Slot {
        let index = waiter_id.0 as usize;
        &self.chunks[index / CHUNK][index % CHUNK]
    }

    pub(in crate::queue) fn get_mut(&mut self, waiter_id: WaiterId) -> &mut Slot {
        let index = waiter_id.0 as usize;
        &mut self.chunks[index / CHUNK][index % CHUNK]
    }

    pub(in crate::queue) fn waiter(&self, waiter_id: WaiterId) -> Option<&Waiter> {
        match waiter_id {
            WaiterId::NONE => None,
            waiter_id => match self.get(waiter_id) {
                Slot::Waiting(waiter) => Some(waiter),
                _ => None,
            },
        }
    }

    pub(in crate::queue) fn waiter_mut(&mut self, waiter_id: WaiterId) -> Option<&mut Waiter> {
        match waiter_id {
            WaiterId::NONE => None,
            waiter_id => match self.get_mut(waiter_id) {
                Slot::Waiting(waiter) => Some(waiter),
                _ => None,
            },
        }
    }

    /// Takes a place at the new end of a list. There must be room for it.
    pub(in crate::queue) fn push(&mut self, list: &mut WaitList, mut waiter: Waiter) -> WaiterId {
        waiter.older = list.newest;
        waiter.newer = WaiterId::NONE;
        let waiter_id = self.take(Slot::Waiting(waiter));
        match self.waiter_mut(list.newest) {
            Some(newest) => newest.newer = waiter_id,
            None => list.oldest = waiter_id,
        }
        list.newest = waiter_id;
        list.len += 1;
        waiter_id
    }

    /// Takes a waiter out of its list, and leaves `slot` in its place.
    pub(in crate::queue) fn unlink(&mut self, list: &mut WaitList, waiter_id: WaiterId, slot: Slot) -> Option<Waiter> {
        let Slot::Waiting(waiter) = self.replace(waiter_id, slot) else { return None };
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

    pub(in crate::queue) fn replace(&mut self, waiter_id: WaiterId, slot: Slot) -> Slot {
        std::mem::replace(self.get_mut(waiter_id), slot)
    }

    fn take(&mut self, slot: Slot) -> WaiterId {
        self.taken += 1;
        if self.free != WaiterId::NONE {
            let waiter_id = self.free;
            if let Slot::Free { next } = self.replace(waiter_id, slot) {
                self.free = next;
            }
            return waiter_id;
        }
        if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK) {
            self.chunks.push(Vec::new());
        }
        let before = (self.chunks.len() - 1) * CHUNK;
        let chunk = self.chunks.last_mut().expect("just seen to");
        chunk.push(slot);
        WaiterId(u32::try_from(before + chunk.len() - 1).expect("fewer are taken, or one would be free"))
    }

    /// Gives a place back; returns what was in it.
    pub(in crate::queue) fn free(&mut self, waiter_id: WaiterId) -> Slot {
        let slot = self.replace(waiter_id, Slot::Free { next: self.free });
        self.free = waiter_id;
        self.taken -= 1;
        if self.taken == 0 && self.chunks.len() > 1 {
            self.chunks.clear();
            self.chunks.shrink_to_fit();
            self.free = WaiterId::NONE;
        }
        slot
    }

    /// All places, in the order of their waiter_ids.
    pub(in crate::queue) fn waiter_ids(&self) -> impl Iterator<Item = WaiterId> + use<> {
        let last = self.chunks.last().map_or(0, |last| (self.chunks.len() - 1) * CHUNK + last.len());
        (0..u32::try_from(last).unwrap_or(u32::MAX)).map(WaiterId)
    }

    /// The wakers of all waiters for which this holds. They keep their places.
    pub(in crate::queue) fn take_wakers(&mut self, is_meant: impl Fn(&Waiter) -> bool) -> Vec<Waker> {
        let slab = self.chunks.iter_mut().flatten();
        slab.filter_map(|slot| match slot {
            Slot::Waiting(waiter) if is_meant(waiter) => waiter.waker.take(),
            _ => None,
        })
        .collect()
    }
}
