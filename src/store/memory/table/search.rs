//! Where a key may be: its two candidate sets, and the search in them.

use super::SetAssociativeTable;
use super::slots::{SETS_PER_PAGE, SLOTS_PER_SET, Slot};
use super::word::{Tag, Word};
use crate::util::two_choices;

/// A key's tag, and the sets that it may be in.
#[derive(Clone, Copy)]
pub(super) struct CandidateSets {
    pub(super) tag: Tag,
    pub(super) sets: [usize; 2],
}

/// How keys are spread over a table's sets, with words or with states behind locks, and over the sets in the copies of
/// their debts. The secret for their hashes is handed on with the copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::store::memory) struct Geometry {
    sets: usize,
}

impl Geometry {
    /// Returns the geometry for a table with slots for `keys` keys at half load.
    pub(in crate::store::memory) fn of(keys: usize) -> Self {
        Self { sets: keys.saturating_mul(2).div_ceil(SLOTS_PER_SET).max(2) }
    }

    pub(in crate::store::memory) const fn with_sets(sets: usize) -> Self {
        Self { sets }
    }

    #[inline(always)]
    pub(in crate::store::memory) const fn sets(self) -> usize {
        self.sets
    }

    pub(in crate::store::memory) const fn pages(self) -> usize {
        self.sets.div_ceil(SETS_PER_PAGE)
    }

    /// Returns how many sets a page has: the last one may have fewer.
    pub(in crate::store::memory) fn sets_of(self, page: usize) -> usize {
        SETS_PER_PAGE.min(self.sets - page * SETS_PER_PAGE)
    }

    /// Returns the sets in which a key may be.
    ///
    /// The first is drawn from the hash's upper half, the tag from the lower 28 bits, and the second from the first and
    /// the tag. So no bit is used twice, and two keys have the same tag and a set in common with a probability of 2^-28
    /// per slot.
    pub(in crate::store::memory) const fn candidate_sets(self, hash: u64) -> [usize; 2] {
        let first = first_candidate(self.sets, hash);
        [first, second_candidate(self.sets, first, Tag::from_hash(hash))]
    }
}

#[inline(always)]
pub(super) const fn first_candidate(sets: usize, hash: u64) -> usize {
    two_choices::first(sets, hash >> 32)
}

/// Returns any set but the first.
#[inline(always)]
pub(super) const fn second_candidate(sets: usize, first: usize, tag: Tag) -> usize {
    two_choices::second(sets, first, tag.value())
}

impl SetAssociativeTable {
    pub(super) fn candidates(&self, hash: u64) -> CandidateSets {
        CandidateSets { tag: Tag::from_hash(hash), sets: self.geometry.candidate_sets(hash) }
    }

    /// Searches both candidate sets. Returns the set and the slot that the key is in.
    pub(super) fn find(&self, candidates: &CandidateSets) -> Option<(usize, Slot<'_>)> {
        candidates.sets.into_iter().find_map(|set| self.find_in(set, candidates.tag).map(|(slot, _)| (set, slot)))
    }

    /// Searches one set.
    #[inline(always)]
    pub(super) fn find_in(&self, set: usize, tag: Tag) -> Option<(Slot<'_>, Word)> {
        self.slots.in_set(set).map(|slot| (slot, slot.load())).find(|(_, word)| word.is(tag))
    }
}

#[cfg(all(test, sluice_loom))]
impl SetAssociativeTable {
    /// Returns how many slots a key is in.
    pub(in crate::store::memory) fn copies(&self, hash: u64) -> usize {
        let candidates = self.candidates(hash);
        let slots = candidates.sets.into_iter().flat_map(|set| self.slots.in_set(set));
        slots.filter(|slot| slot.load().is(candidates.tag)).count()
    }
}
