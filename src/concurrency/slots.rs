//! The memory of the counts: words in sets of eight, and the two sets in which a key may be.

use super::word::{CountTag, CountWord};
use crate::util::aligned_words::AlignedWords;
use crate::util::sync::{AtomicU64, Ordering, before_a_step};
use crate::util::two_choices;

/// Slots per set, a cache line. With a choice of two such sets, a half-full table turns no key away.
pub(super) const SLOTS_PER_SET: usize = if cfg!(sluice_loom) { 2 } else { 8 };

const CACHE_LINE: usize = 64;

/// A key's tag, and the sets that it may be in.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotPlace {
    pub(super) tag: CountTag,
    pub(super) sets: [usize; 2],
}

/// Slots in sets that each begin at a cache line.
pub(super) struct CountSlots {
    words: AlignedWords,
    sets: usize,
}

impl CountSlots {
    /// Makes two slots for each of `keys` keys.
    ///
    /// # Panics
    ///
    /// If there is no memory for them.
    pub(super) fn new(keys: usize) -> Self {
        let sets = keys.saturating_mul(2).div_ceil(SLOTS_PER_SET).max(2);
        let words = AlignedWords::new(sets.saturating_mul(SLOTS_PER_SET), CACHE_LINE);
        Self { words: words.unwrap_or_else(|| panic!("no memory for the counts of {keys} keys")), sets }
    }

    /// The number of sets.
    pub(super) const fn sets(&self) -> usize {
        self.sets
    }

    /// The number of slots.
    pub(super) const fn len(&self) -> usize {
        self.sets * SLOTS_PER_SET
    }

    pub(super) fn size_in_bytes(&self) -> usize {
        self.words.size_in_bytes()
    }

    /// Where a key with this hash may be.
    ///
    /// The first set is drawn from the upper half of the hash, the tag from the lower one, and the second set from
    /// both.
    #[inline(always)]
    pub(super) const fn place(&self, hash: u64) -> SlotPlace {
        let tag = CountTag::from_hash(hash);
        let first = two_choices::first(self.sets, hash >> 32);
        SlotPlace { tag, sets: [first, two_choices::second(self.sets, first, tag.value() as u64)] }
    }

    /// The slots of a set, each with its word.
    #[inline(always)]
    pub(super) fn in_set(&self, set: usize) -> impl Iterator<Item = (usize, CountWord)> + '_ {
        let start = set * SLOTS_PER_SET;
        // As one slice, so that the bounds are checked once.
        (start..).zip(self.words.in_range(start, SLOTS_PER_SET).iter().map(|word| CountSlot(word).load()))
    }

    #[inline(always)]
    pub(super) fn get(&self, slot: usize) -> CountSlot<'_> {
        CountSlot(self.words.at(slot))
    }
}

/// A slot's word.
#[derive(Clone, Copy)]
pub(super) struct CountSlot<'a>(&'a AtomicU64);

impl CountSlot<'_> {
    /// Acquire, as in a semaphore: a thread that sees the count after a permit was released also sees all writes that
    /// were made under that permit.
    #[inline(always)]
    pub(super) fn load(self) -> CountWord {
        before_a_step();
        CountWord::from_bits(self.0.load(Ordering::Acquire))
    }

    /// Writes `new` if the word is still `old`. Otherwise returns the present word.
    #[inline(always)]
    pub(super) fn replace(self, old: CountWord, new: CountWord) -> Result<(), CountWord> {
        before_a_step();
        let swapped = self.0.compare_exchange(old.bits(), new.bits(), Ordering::AcqRel, Ordering::Acquire);
        swapped.map(|_| ()).map_err(CountWord::from_bits)
    }
}

#[cfg(all(test, not(sluice_loom)))]
mod tests {
    use super::*;

    #[test]
    fn key_sets_begin_at_cache_lines() {
        for keys in [1, 2, 7, 1000] {
            let slots = CountSlots::new(keys);
            assert!(slots.len() >= 2 * keys && slots.size_in_bytes() >= slots.len() * 8);
            assert_eq!(slots.words.in_range(0, 1).as_ptr().addr() % CACHE_LINE, 0);
            for hash in (0..10_000_u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).chain([u64::MAX]) {
                let SlotPlace { tag, sets: [a, b] } = slots.place(hash);
                assert!(a != b && a < slots.sets && b < slots.sets && tag.value() != 0);
                assert_eq!(slots.in_set(b).count(), SLOTS_PER_SET);
            }
        }
    }
}
