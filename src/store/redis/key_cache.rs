//! A small set-associative cache of fixed size, for values that are worth keeping of a key.

use std::sync::{Mutex, PoisonError};

use super::key::Tag;

/// Up to 8,192 keys in sets of four. In a full set, the value with the least worth is replaced.
pub(super) struct KeyCache<V>(Box<[Mutex<Set<V>>]>);

/// The entries of one set.
type Set<V> = [Option<(Tag, V)>; WAYS];

const SETS: usize = 2_048;
const WAYS: usize = 4;

impl<V: Copy> KeyCache<V> {
    #[cfg(test)]
    pub(super) const CAPACITY: usize = SETS * WAYS;

    pub(super) fn new() -> Self {
        Self(std::iter::repeat_with(|| Mutex::new([None; WAYS])).take(SETS).collect())
    }

    pub(super) fn get(&self, tag: Tag) -> Option<V> {
        self.with(tag, |set| find(set, tag).and_then(|slot| slot.map(|(_, value)| value)))
    }

    /// Applies `change` to the value of a key, if there is one.
    pub(super) fn change<R>(&self, tag: Tag, change: impl FnOnce(&mut V) -> R) -> Option<R> {
        self.with(tag, |set| find(set, tag).and_then(Option::as_mut).map(|(_, value)| change(value)))
    }

    /// Stores a value, in place of the former value of the key, or else of the one in its set with the least `worth`;
    /// unless that is worth more.
    pub(super) fn put(&self, tag: Tag, value: V, worth: impl Fn(&V) -> u64) {
        self.put_if(|| true, tag, value, worth);
    }

    /// Does the same if `condition` holds. It is evaluated under the lock of the set, so in one order with
    /// [`remove`](Self::remove).
    pub(super) fn put_if(&self, condition: impl Fn() -> bool, tag: Tag, value: V, worth: impl Fn(&V) -> u64) {
        self.with(tag, |set| {
            if !condition() {
                return;
            }
            let worth_of = |slot: &Option<(Tag, V)>| slot.map_or(0, |(_, value)| worth(&value));
            let own = set.iter().position(|slot| is_of(slot, tag));
            let least = || {
                let index = (0..WAYS).min_by_key(|index| worth_of(&set[*index])).expect("a set has slots");
                (worth_of(&set[index]) <= worth(&value)).then_some(index)
            };
            if let Some(index) = own.or_else(least) {
                set[index] = Some((tag, value));
            }
        });
    }

    pub(super) fn remove(&self, tag: Tag) -> Option<V> {
        self.with(tag, |set| find(set, tag).and_then(Option::take).map(|(_, value)| value))
    }

    fn with<R>(&self, tag: Tag, look: impl FnOnce(&mut Set<V>) -> R) -> R {
        #[allow(clippy::cast_possible_truncation)]
        let set = &self.0[tag.short() as usize % SETS];
        // A poisoned lock is no harm: values are replaced whole.
        look(&mut set.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn is_of<V>(slot: &Option<(Tag, V)>, tag: Tag) -> bool {
    slot.as_ref().is_some_and(|(other, _)| *other == tag)
}

fn find<V>(set: &mut Set<V>, tag: Tag) -> Option<&mut Option<(Tag, V)>> {
    set.iter_mut().find(|slot| is_of(slot, tag))
}
