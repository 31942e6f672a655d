//! Where a key may be: its two candidate sets, the search in them, and the choice of a slot for a new key.

use super::SetAssociativeTable;
use super::epoch::Epochs;
use super::rule::Rule;
use super::slots::{SETS_PER_PAGE, SLOTS_PER_PAGE, SLOTS_PER_SET, Slot};
use super::word::{Tag, Word};
use crate::store::memory::WhenFull;

/// The tag of all keys in the overflow slots.
pub(super) const OVERFLOW: Tag = Tag::from_hash(0);

/// A key's tag, and the sets that it may be in.
#[derive(Clone, Copy)]
pub(super) struct CandidateSets {
    pub(super) tag: Tag,
    pub(super) sets: [usize; 2],
}

/// The slot that a new key goes to, and the word that it replaces.
#[derive(Clone, Copy)]
pub(super) struct Target<'a, N> {
    pub(super) set: usize,
    pub(super) slot: Slot<'a>,
    pub(super) word: Word,
    pub(super) epochs: Epochs,
    /// The time as of which the word was judged.
    pub(super) at: N,
    /// What the word's key owes.
    size: u64,
    /// Free slots in its set.
    pub(super) free: usize,
}

/// Returns the sets in which a key may be, in a table of so many.
///
/// The first is drawn from the upper half of the hash, the tag from the lower 28 bits, and the second from the first
/// and the tag. So no bit is used twice, and two keys have the same tag and a set in common with a probability of 2^-28
/// per slot.
pub(in crate::store::memory) const fn candidate_sets(sets: usize, hash: u64) -> [usize; 2] {
    let first = first_candidate(sets, hash);
    [first, second_candidate(sets, first, Tag::from_hash(hash))]
}

#[inline(always)]
pub(super) const fn first_candidate(sets: usize, hash: u64) -> usize {
    scale(hash >> 32, sets)
}

#[inline(always)]
pub(super) const fn second_candidate(sets: usize, first: usize, tag: Tag) -> usize {
    let mixed = tag.value().wrapping_mul(0x9e37_79b1) & 0xffff_ffff;
    let second = first + 1 + scale(mixed, sets - 1);
    if second < sets { second } else { second - sets }
}

/// Returns `count` times a fraction of 2^32.
#[allow(clippy::cast_possible_truncation)] // It is less than `count`.
const fn scale(fraction: u64, count: usize) -> usize {
    ((fraction * count as u64) >> 32) as usize
}

impl SetAssociativeTable {
    pub(super) fn candidates(&self, hash: u64) -> CandidateSets {
        CandidateSets { tag: Tag::from_hash(hash), sets: candidate_sets(self.sets, hash) }
    }

    /// Searches both candidate sets; returns the set and the slot that the key is in.
    pub(super) fn find(&self, candidates: &CandidateSets) -> Option<(usize, Slot<'_>)> {
        candidates.sets.into_iter().find_map(|set| self.find_in(set, candidates.tag).map(|(slot, _)| (set, slot)))
    }

    /// Searches one set.
    #[inline(always)]
    pub(super) fn find_in(&self, set: usize, tag: Tag) -> Option<(Slot<'_>, Word)> {
        self.slots.in_set(set).map(|slot| (slot, slot.load())).find(|(_, word)| word.is(tag))
    }

    /// Chooses the slot for a new key: a free one of the emptier candidate set, or else that of the key that owes
    /// least.
    pub(super) fn choose_slot<R: Rule>(&self, rule: &R, candidates: &CandidateSets, now: R::Now) -> Target<'_, R::Now> {
        let [a, b] = candidates.sets.map(|set| {
            let slots = self.slots.in_set(set).map(|slot| {
                let (word, epochs, at) = self.read(rule, set, slot, now);
                let size = rule.size(rule.owed(word, rule.local(at, word.tag())));
                Target { set, slot, word, epochs, at, size, free: 0 }
            });
            let mut free = 0;
            let least = slots.inspect(|slot| free += usize::from(slot.size == 0)).min_by_key(|slot| slot.size);
            Target { free, ..least.expect("a set has slots") }
        });
        // More free slots first; of two full sets, the one with the least debt.
        if (b.free, a.size) > (a.free, b.size) { b } else { a }
    }

    /// Returns the page of overflow slots, if there is one.
    pub(super) fn overflow_page(&self) -> Option<usize> {
        (self.when_full == WhenFull::Overflow).then(|| self.pages.len() - 1)
    }

    /// Returns the set and the slot that a new key shares with others when the table is full, if there is one: with
    /// keys whose windows begin when its own do.
    pub(super) fn overflow_slot(&self, tag: Tag) -> Option<(usize, Slot<'_>)> {
        if self.when_full != WhenFull::Overflow {
            return None;
        }
        let index = usize::try_from(tag.value() % SLOTS_PER_PAGE as u64).expect("below a page");
        let set = (self.pages.len() - 1) * SETS_PER_PAGE + index / SLOTS_PER_SET;
        self.slots.in_set(set).nth(index % SLOTS_PER_SET).map(|slot| (set, slot))
    }
}

#[cfg(all(test, sluice_loom))]
impl SetAssociativeTable {
    /// Returns in how many slots a key is.
    pub(in crate::store::memory) fn copies(&self, hash: u64) -> usize {
        let candidates = self.candidates(hash);
        let slots = candidates.sets.into_iter().flat_map(|set| self.slots.in_set(set));
        slots.filter(|slot| slot.load().is(candidates.tag)).count()
    }
}
