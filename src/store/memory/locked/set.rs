//! A set of the locked table: eight slots behind one lock.
//!
//! The table of words has no type for a set: its sets are eight words in a row, which `table/search.rs` searches
//! without a lock.

use std::num::NonZeroU64;

use crate::store::memory::table::SLOTS_PER_SET;

/// As many as the table of words has.
pub(super) const SLOTS: usize = SLOTS_PER_SET;

/// Eight slots that are locked together. A slot is free if it was never used, or if what it holds has expired.
pub(super) struct StateSet<S> {
    slots: [Option<Occupant<S>>; SLOTS],
}

#[derive(Clone, Copy)]
struct Occupant<S> {
    tag: Tag64,
    state: S,
}

/// What is kept of a key: its hash. Never zero, so that an empty slot takes no room of its own.
pub(super) type Tag64 = NonZeroU64;

impl<S: Copy> StateSet<S> {
    pub(super) const fn new() -> Self {
        Self { slots: [None; SLOTS] }
    }

    pub(super) fn find(&mut self, tag: Tag64) -> Option<&mut S> {
        self.slots.iter_mut().flatten().find(|occupant| occupant.tag == tag).map(|occupant| &mut occupant.state)
    }

    pub(super) fn each(&self, mut act: impl FnMut(Tag64, S)) {
        self.slots.iter().flatten().for_each(|occupant| act(occupant.tag, occupant.state));
    }

    #[cfg(feature = "test-util")]
    pub(super) fn tags(&self) -> Vec<Tag64> {
        self.slots.iter().flatten().map(|occupant| occupant.tag).collect()
    }

    pub(super) fn remove(&mut self, tag: Tag64) {
        let of_tag = |slot: &&mut Option<Occupant<S>>| slot.is_some_and(|occupant| occupant.tag == tag);
        self.slots.iter_mut().filter(of_tag).for_each(|slot| *slot = None);
    }

    /// Returns the number of free slots.
    pub(super) fn free(&self, is_free: impl Fn(Tag64, &S) -> bool) -> usize {
        self.slots.iter().filter(|slot| slot.is_none_or(|occupant| is_free(occupant.tag, &occupant.state))).count()
    }

    /// Inserts a state into a free slot; returns `false` if there is none.
    pub(super) fn insert(&mut self, tag: Tag64, state: S, is_free: impl Fn(Tag64, &S) -> bool) -> bool {
        let is_free = |slot: &&mut Option<Occupant<S>>| slot.is_none_or(|held| is_free(held.tag, &held.state));
        let slot = self.slots.iter_mut().find(is_free);
        slot.map(|slot| *slot = Some(Occupant { tag, state })).is_some()
    }

    /// Returns the least that any key of the set owes.
    pub(super) fn least(&self, owed: impl Fn(Tag64, &S) -> u64) -> u64 {
        self.slots.iter().flatten().map(|occupant| owed(occupant.tag, &occupant.state)).min().unwrap_or(0)
    }

    /// Evicts the key that owes least, in favour of another.
    pub(super) fn replace_least(&mut self, tag: Tag64, state: S, owed: impl Fn(Tag64, &S) -> u64) {
        let owed = |slot: &&mut Option<Occupant<S>>| slot.map_or(0, |held| owed(held.tag, &held.state));
        *self.slots.iter_mut().min_by_key(owed).expect("a set has slots") = Some(Occupant { tag, state });
    }
}
