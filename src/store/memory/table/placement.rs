//! Chooses the slot for a new key, in its candidate sets.

use super::SetAssociativeTable;
use super::epoch::Epochs;
use super::rule::Rule;
use super::search::CandidateSets;
use super::slots::Slot;
use super::word::Word;

/// The slot that a new key goes to, and the word that it replaces.
#[derive(Clone, Copy)]
pub(super) struct InsertTarget<'a, N> {
    pub(super) set: usize,
    pub(super) slot: Slot<'a>,
    pub(super) word: Word,
    pub(super) epochs: Epochs,
    /// The time by which the word was judged.
    pub(super) at: N,
    /// The debt that the word's key has, by its size.
    size: u64,
    /// The number of free slots in its set.
    pub(super) free: usize,
}

impl SetAssociativeTable {
    /// Chooses the slot for a new key: a free slot in the emptier candidate set. If both sets are full, the slot whose
    /// key owes least.
    pub(super) fn choose_slot<R: Rule>(
        &self,
        rule: &R,
        candidates: &CandidateSets,
        now: R::Now,
    ) -> InsertTarget<'_, R::Now> {
        let [a, b] = candidates.sets;
        let a = self.least_of(rule, a, now);
        let b = self.least_of(rule, b, now);
        // More free slots first; between two full sets, the set with the least debt.
        if (b.free, a.size) > (a.free, b.size) { b } else { a }
    }

    /// Returns the first free slot in a set. If the set is full, the slot whose key owes least.
    fn least_of<R: Rule>(&self, rule: &R, set: usize, now: R::Now) -> InsertTarget<'_, R::Now> {
        let mut least = None::<InsertTarget<'_, R::Now>>;
        let mut free = 0;
        for slot in self.slots.in_set(set) {
            let (word, epochs, at) = self.read(rule, set, slot, now);
            let size = rule.size(rule.owed(word, rule.local(at, word.tag())));
            free += usize::from(size == 0);
            // An iterator's `min_by_key` would move a whole target per slot.
            if least.is_none_or(|least| size < least.size) {
                least = Some(InsertTarget { set, slot, word, epochs, at, size, free: 0 });
            }
        }
        InsertTarget { free, ..least.expect("a set has slots") }
    }
}
