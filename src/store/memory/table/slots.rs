//! The memory for a [`SetAssociativeTable`](super::SetAssociativeTable): words in sets of eight.

use super::word::Word;
use crate::util::aligned_words::AlignedWords;
use crate::util::sync::{AtomicU64, Ordering, before_a_step, in_order};

/// Slots per set, a cache line. With two such sets to choose from, a half-full table loses no key, as
/// `keys_take_17_bytes_each` in `tests/store/table.rs` shows.
pub(in crate::store::memory) const SLOTS_PER_SET: usize = if cfg!(sluice_loom) { 2 } else { 8 };

/// Sets per page, which is one [`SYSTEM_PAGE`].
pub(in crate::store::memory) const SETS_PER_PAGE: usize = if cfg!(sluice_loom) { 2 } else { 64 };
pub(super) const SLOTS_PER_PAGE: usize = SLOTS_PER_SET * SETS_PER_PAGE;

/// The page size on most systems, in bytes. Where it is 16 or 64 KiB, a page that is touched takes memory for its
/// neighbours, too; an idle table takes none on any system.
const SYSTEM_PAGE: usize = 4096;

#[cfg(not(sluice_loom))]
const _: () = assert!(SLOTS_PER_PAGE * size_of::<AtomicU64>() == SYSTEM_PAGE);

/// A word in the table.
#[derive(Clone, Copy)]
pub(super) struct Slot<'a>(&'a AtomicU64);

impl Slot<'_> {
    /// Acquire, so that the epoch that validates a word is not read before the word is.
    #[inline(always)]
    pub(super) fn load(self) -> Word {
        before_a_step();
        Word::from_bits(self.0.load(Ordering::Acquire))
    }

    /// Loads the word in one order with its page's epochs, so that if the word's writer does not see that the page is
    /// being swept, this load sees the written word.
    pub(super) fn load_in_order(self) -> Word {
        before_a_step();
        in_order();
        Word::from_bits(self.0.load(Ordering::SeqCst))
    }

    /// Writes `new` if `old` is still there. Otherwise returns the present word.
    ///
    /// `SeqCst`, for one order with the page's epochs: a sweeper marks the page and then loads the word, and a writer
    /// replaces the word and then reads the epochs (`validate`). With release and acquire alone, both could read old
    /// values, and the word would stay, and look like a debt later. A failed exchange writes nothing, and is a
    /// [load](Self::load).
    #[inline(always)]
    pub(super) fn replace(self, old: Word, new: Word) -> Result<(), Word> {
        before_a_step();
        let swapped = self.0.compare_exchange(old.bits(), new.bits(), Ordering::SeqCst, Ordering::Acquire);
        swapped.map(|_| ()).map_err(Word::from_bits)
    }
}

/// Slots in sets that each begin at a cache line, and in pages that begin where the system's do.
pub(super) struct Slots(AlignedWords);

impl Slots {
    /// Makes the slots for `pages` pages, for a store with `keys` keys.
    pub(super) fn new(pages: usize, keys: usize) -> Self {
        let count = pages * SLOTS_PER_PAGE;
        let words = AlignedWords::new(count, SYSTEM_PAGE);
        Self(words.unwrap_or_else(|| crate::store::memory::occupancy::no_memory(keys, count * size_of::<AtomicU64>())))
    }

    pub(super) fn size_in_bytes(&self) -> usize {
        self.0.size_in_bytes()
    }

    #[inline(always)]
    pub(super) fn in_set(&self, set: usize) -> impl Iterator<Item = Slot<'_>> {
        self.0.in_range(set * SLOTS_PER_SET, SLOTS_PER_SET).iter().map(Slot)
    }

    /// Whether all slots in a set are empty. Each is loaded [in order](Slot::load_in_order).
    #[inline(always)]
    pub(super) fn is_empty(&self, set: usize) -> bool {
        // Done without a branch per word.
        self.in_set(set).fold(0, |bits, slot| bits | slot.load_in_order().bits()) == 0
    }

    pub(super) fn in_page(&self, page: usize) -> impl Iterator<Item = Slot<'_>> {
        self.0.in_range(page * SLOTS_PER_PAGE, SLOTS_PER_PAGE).iter().map(Slot)
    }
}
