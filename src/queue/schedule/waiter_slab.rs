use std::task::Waker;

use super::LineId;
use crate::queue::drivers::DriverNo;
use crate::values::Receipt;
use crate::values::time::Timestamp;

/// All places of a queue, taken or free, each known by its number.
///
/// A place that somebody waits in belongs to that future alone, and nobody else frees it: whatever
/// becomes of the waiter is left here, for its future to find. So a number never means two waiters.
///
/// Grows by chunks, so that nothing is moved, and forgets them when nobody is left.
pub(in crate::queue) struct Seats {
    chunks: Vec<Vec<Seat>>,
    /// The first of the free ones, each of which knows the next.
    free: SeatNo,
    taken: u32,
}

/// The number of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::queue) struct SeatNo(u32);

impl SeatNo {
    pub(in crate::queue) const NONE: Self = Self(u32::MAX);
}

pub(in crate::queue) enum Seat {
    Free {
        next: SeatNo,
    },
    Waiting(Waiter),
    /// The turn has come, and is paid for with `receipt`. It is used once its future has seen it.
    Released {
        line: LineId,
        cost: u32,
        /// Nanoseconds.
        delay: u64,
        receipt: Receipt,
    },
    /// Had to make room, or would have waited longer than it would, after a change of the quota.
    Refused {
        line: LineId,
        cost: u32,
        /// How long it was ready to wait, in nanoseconds.
        patience: u64,
    },
    Closed,
}

pub(in crate::queue) struct Waiter {
    pub(in crate::queue) line: LineId,
    /// The one that came before, and the one that came after.
    pub(in crate::queue) older: SeatNo,
    pub(in crate::queue) newer: SeatNo,
    pub(in crate::queue) cost: u32,
    /// That of the runtime on which it waits.
    pub(in crate::queue) driver: DriverNo,
    /// Whether a future waits. It does not in a place that was taken to rehearse.
    pub(in crate::queue) is_owned: bool,
    pub(in crate::queue) since: Timestamp,
    /// The last moment at which its turn may come.
    pub(in crate::queue) until: Timestamp,
    pub(in crate::queue) waker: Option<Waker>,
}

/// Both ends of a line, and its length.
#[derive(Clone, Copy)]
pub(in crate::queue) struct Chain {
    pub(in crate::queue) oldest: SeatNo,
    pub(in crate::queue) newest: SeatNo,
    pub(in crate::queue) len: usize,
}

impl Default for Chain {
    fn default() -> Self {
        Self { oldest: SeatNo::NONE, newest: SeatNo::NONE, len: 0 }
    }
}

const CHUNK: usize = 256;

impl Seats {
    pub(in crate::queue) const fn new() -> Self {
        Self { chunks: Vec::new(), free: SeatNo::NONE, taken: 0 }
    }

    pub(in crate::queue) const fn is_full(&self) -> bool {
        self.taken == u32::MAX
    }

    #[cfg(all(test, sluice_loom))]
    pub(in crate::queue) const fn taken(&self) -> u32 {
        self.taken
    }

    pub(in crate::queue) fn get(&self, number: SeatNo) -> &Seat {
        let index = number.0 as usize;
        &self.chunks[index / CHUNK][index % CHUNK]
    }

    pub(in crate::queue) fn get_mut(&mut self, number: SeatNo) -> &mut Seat {
        let index = number.0 as usize;
        &mut self.chunks[index / CHUNK][index % CHUNK]
    }

    pub(in crate::queue) fn waiter(&self, number: SeatNo) -> Option<&Waiter> {
        match number {
            SeatNo::NONE => None,
            number => match self.get(number) {
                Seat::Waiting(waiter) => Some(waiter),
                _ => None,
            },
        }
    }

    pub(in crate::queue) fn waiter_mut(&mut self, number: SeatNo) -> Option<&mut Waiter> {
        match number {
            SeatNo::NONE => None,
            number => match self.get_mut(number) {
                Seat::Waiting(waiter) => Some(waiter),
                _ => None,
            },
        }
    }

    /// Takes a place at the new end of a chain. There must be room for it.
    pub(in crate::queue) fn push(&mut self, chain: &mut Chain, mut waiter: Waiter) -> SeatNo {
        waiter.older = chain.newest;
        waiter.newer = SeatNo::NONE;
        let number = self.take(Seat::Waiting(waiter));
        match self.waiter_mut(chain.newest) {
            Some(newest) => newest.newer = number,
            None => chain.oldest = number,
        }
        chain.newest = number;
        chain.len += 1;
        number
    }

    /// Takes a waiter out of its chain, and leaves `seat` in its place.
    pub(in crate::queue) fn unlink(&mut self, chain: &mut Chain, number: SeatNo, seat: Seat) -> Option<Waiter> {
        let Seat::Waiting(waiter) = self.replace(number, seat) else { return None };
        match self.waiter_mut(waiter.older) {
            Some(older) => older.newer = waiter.newer,
            None => chain.oldest = waiter.newer,
        }
        match self.waiter_mut(waiter.newer) {
            Some(newer) => newer.older = waiter.older,
            None => chain.newest = waiter.older,
        }
        chain.len -= 1;
        Some(waiter)
    }

    pub(in crate::queue) fn replace(&mut self, number: SeatNo, seat: Seat) -> Seat {
        std::mem::replace(self.get_mut(number), seat)
    }

    fn take(&mut self, seat: Seat) -> SeatNo {
        self.taken += 1;
        if self.free != SeatNo::NONE {
            let number = self.free;
            if let Seat::Free { next } = self.replace(number, seat) {
                self.free = next;
            }
            return number;
        }
        if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK) {
            self.chunks.push(Vec::new());
        }
        let before = (self.chunks.len() - 1) * CHUNK;
        let chunk = self.chunks.last_mut().expect("just seen to");
        chunk.push(seat);
        SeatNo(u32::try_from(before + chunk.len() - 1).expect("fewer are taken, or one would be free"))
    }

    /// Gives a place back; returns what was in it.
    pub(in crate::queue) fn free(&mut self, number: SeatNo) -> Seat {
        let seat = self.replace(number, Seat::Free { next: self.free });
        self.free = number;
        self.taken -= 1;
        if self.taken == 0 && self.chunks.len() > 1 {
            self.chunks.clear();
            self.chunks.shrink_to_fit();
            self.free = SeatNo::NONE;
        }
        seat
    }

    /// All places, in the order of their numbers.
    pub(in crate::queue) fn numbers(&self) -> impl Iterator<Item = SeatNo> + use<> {
        let last = self.chunks.last().map_or(0, |last| (self.chunks.len() - 1) * CHUNK + last.len());
        (0..u32::try_from(last).unwrap_or(u32::MAX)).map(SeatNo)
    }

    /// The wakers of all waiters for which this holds. They keep their places.
    pub(in crate::queue) fn take_wakers(&mut self, is_meant: impl Fn(&Waiter) -> bool) -> Vec<Waker> {
        let seats = self.chunks.iter_mut().flatten();
        seats
            .filter_map(|seat| match seat {
                Seat::Waiting(waiter) if is_meant(waiter) => waiter.waker.take(),
                _ => None,
            })
            .collect()
    }
}
