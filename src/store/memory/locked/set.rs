//! A set in the locked table: eight slots behind one lock.
//!
//! The word table has no type for a set: its sets are eight words in a row, which `table/search.rs` searches without a
//! lock.

use std::num::NonZeroU64;

use crate::store::memory::table::SLOTS_PER_SET;

/// The number of slots in a set, as in the word table.
pub(super) const SLOTS: usize = SLOTS_PER_SET;

/// Eight slots that are locked together. A slot is free if it has no tag, or if its state has expired.
pub(super) struct StateSet<S> {
    /// Apart from the states, so that a search reads one or two cache lines.
    tags: [Option<Tag64>; SLOTS],
    /// The states in slots that have a tag. Absent before the first insert.
    states: Option<[S; SLOTS]>,
}

/// A key's hash, by which the key is found. Never zero, so that an empty slot takes no extra bytes.
pub(super) type Tag64 = NonZeroU64;

impl<S: Copy> StateSet<S> {
    pub(super) const fn new() -> Self {
        Self { tags: [None; SLOTS], states: None }
    }

    pub(super) fn find(&mut self, tag: Tag64) -> Option<&mut S> {
        let slot = self.tags.iter().position(|held| *held == Some(tag))?;
        self.states.as_mut().map(|states| &mut states[slot])
    }

    /// Returns the slots that are in use.
    fn used(&self) -> impl Iterator<Item = (usize, Tag64, &S)> {
        let states = self.states.iter().flatten().enumerate().zip(&self.tags);
        states.filter_map(|((slot, state), tag)| Some((slot, (*tag)?, state)))
    }

    pub(super) fn each(&self, mut act: impl FnMut(Tag64, S)) {
        self.used().for_each(|(_, tag, state)| act(tag, *state));
    }

    #[cfg(feature = "test-util")]
    pub(super) fn tags(&self) -> Vec<Tag64> {
        self.tags.iter().flatten().copied().collect()
    }

    pub(super) fn remove(&mut self, tag: Tag64) {
        self.tags.iter_mut().filter(|held| **held == Some(tag)).for_each(|slot| *slot = None);
    }

    /// Returns the number of free slots.
    pub(super) fn free(&self, is_free: impl Fn(Tag64, &S) -> bool) -> usize {
        SLOTS - self.used().filter(|(_, tag, state)| !is_free(*tag, state)).count()
    }

    /// Inserts a state into a free slot. Returns whether there was one.
    pub(super) fn insert(&mut self, tag: Tag64, state: S, is_free: impl Fn(Tag64, &S) -> bool) -> bool {
        let slot = (0..SLOTS).find(|slot| self.held(*slot).is_none_or(|(tag, state)| is_free(tag, &state)));
        slot.map(|slot| self.put(slot, tag, state)).is_some()
    }

    /// Returns the least value of `owed` among the set's keys.
    pub(super) fn least(&self, owed: impl Fn(Tag64, &S) -> u64) -> u64 {
        self.used().map(|(_, tag, state)| owed(tag, state)).min().unwrap_or(0)
    }

    /// Evicts the key that owes least, and puts another in its slot.
    pub(super) fn replace_least(&mut self, tag: Tag64, state: S, owed: impl Fn(Tag64, &S) -> u64) {
        let least = self.used().min_by_key(|(_, tag, state)| owed(*tag, state)).map_or(0, |(slot, ..)| slot);
        self.put(least, tag, state);
    }

    /// Returns the tag and the state in a slot, if it has a tag.
    fn held(&self, slot: usize) -> Option<(Tag64, S)> {
        Some((self.tags[slot]?, self.states.as_ref()?[slot]))
    }

    fn put(&mut self, slot: usize, tag: Tag64, state: S) {
        self.states.get_or_insert([state; SLOTS])[slot] = state;
        self.tags[slot] = Some(tag);
    }
}
