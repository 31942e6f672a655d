//! The memory of a [`CompactTable`](super::compact::CompactTable): words in lines of eight.

use super::word::Word;
use crate::util::sync::{AtomicU64, Ordering};

/// Slots per line: with a choice of two, a half-full table then loses no key. A study of layouts lost
/// 0 of 10⁶ keys at half load, where lines of four lost 0.2 % of arrivals.
pub(super) const SLOTS: usize = if cfg!(sluice_loom) { 2 } else { 8 };

/// Lines per page: as much memory as the system hands out at a time.
pub(super) const LINES_PER_PAGE: usize = if cfg!(sluice_loom) { 2 } else { 64 };
pub(super) const PAGE: usize = SLOTS * LINES_PER_PAGE;

/// Where a key may be.
#[derive(Clone, Copy)]
pub(super) struct Slot<'a>(&'a AtomicU64);

impl Slot<'_> {
    #[inline(always)]
    pub(super) fn load(self) -> Word {
        before_a_step();
        Word::from_bits(self.0.load(Ordering::Acquire))
    }

    /// As [`load`](Self::load), and in one order with what other threads say of the word's page: if its writer
    /// does not see that the page is gone through, this sees what he wrote.
    pub(super) fn load_in_order(self) -> Word {
        before_a_step();
        in_order();
        Word::from_bits(self.0.load(Ordering::SeqCst))
    }

    /// Writes `new` if `old` is still there; else tells what is.
    #[inline(always)]
    pub(super) fn replace(self, old: Word, new: Word) -> Result<(), Word> {
        before_a_step();
        let swapped = self.0.compare_exchange(old.bits(), new.bits(), Ordering::SeqCst, Ordering::Acquire);
        swapped.map(|_| ()).map_err(Word::from_bits)
    }
}

#[cfg(not(all(test, sluice_loom)))]
#[inline(always)]
pub(super) const fn before_a_step() {}

#[cfg(not(all(test, sluice_loom)))]
#[inline(always)]
pub(super) const fn in_order() {}

#[cfg(all(test, sluice_loom))]
pub(super) use super::models::{before_a_step, in_order};

/// Slots in lines that each begin at a cache line.
pub(super) struct Slots {
    words: Box<[AtomicU64]>,
    first: usize,
}

impl Slots {
    #[cfg(not(sluice_loom))]
    pub(super) fn new(pages: usize) -> Self {
        const SYSTEM_PAGE: usize = 4096;
        let word = size_of::<AtomicU64>();
        // Zeroed by the system when they are first touched: an idle table takes no memory. With a page
        // to spare, so that ours begin where the system's do.
        let count = pages * PAGE + SYSTEM_PAGE / word;
        let words = bytemuck::allocation::try_zeroed_slice_box::<AtomicU64>(count)
            .unwrap_or_else(|()| super::no_memory(pages * PAGE / 2, count * word));
        let first = words.as_ptr().addr().wrapping_neg() % SYSTEM_PAGE / word;
        Self { words, first }
    }

    #[cfg(sluice_loom)]
    pub(super) fn new(pages: usize) -> Self {
        Self { words: (0..pages * PAGE).map(|_| AtomicU64::new(0)).collect(), first: 0 }
    }

    pub(super) fn size_in_bytes(&self) -> usize {
        size_of_val(&*self.words)
    }

    #[inline(always)]
    pub(super) fn line(&self, line: usize) -> impl Iterator<Item = Slot<'_>> {
        let start = self.first + line * SLOTS;
        self.words[start..start + SLOTS].iter().map(Slot)
    }

    pub(super) fn page(&self, page: usize) -> impl Iterator<Item = Slot<'_>> {
        let start = self.first + page * PAGE;
        self.words[start..start + PAGE].iter().map(Slot)
    }
}
