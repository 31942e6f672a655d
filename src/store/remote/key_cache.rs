//! A small set-associative cache of fixed size, which prefers the values that are worth more.

use std::sync::atomic::{AtomicBool, Ordering};

use super::tag::Tag;
#[cfg(test)]
use crate::util::lock::Lock;
use crate::util::lock::Shards;

/// Holds one value for each of up to 8,192 keys, in sets of four. In a full set, the value with the least worth is
/// replaced.
pub(crate) struct KeyCache<V> {
    sets: Shards<Set<V>>,
    /// Whether a set has any value. Most have none, and to see that takes neither the lock nor a miss of the cache: the
    /// flags are two kilobytes. Written under the lock of the set.
    occupied: Box<[AtomicBool]>,
}

/// The entries of one set.
type Set<V> = [Option<(Tag, V)>; WAYS];

/// Each set has a lock of its own. A whole negative cache takes 1 MiB, and all leases 1.1 (see the tests of both). A
/// key beyond their 8,192 costs a call per request: in the one a key that is used up, in the other one in demand.
const SETS: usize = 2_048;

/// Few enough to look at all of them under the lock. More would let a set fill up later, and each look take longer.
const WAYS: usize = 4;

impl<V: Copy> KeyCache<V> {
    #[cfg(test)]
    pub(crate) const CAPACITY: usize = SETS * WAYS;

    /// In bytes.
    #[cfg(test)]
    pub(crate) const SIZE: usize = SETS * (size_of::<Lock<Set<V>>>() + size_of::<AtomicBool>());

    pub(crate) fn new() -> Self {
        Self {
            sets: Shards::new(SETS, || [None; WAYS]),
            occupied: std::iter::repeat_with(AtomicBool::default).take(SETS).collect(),
        }
    }

    pub(crate) fn get(&self, tag: Tag) -> Option<V> {
        if self.has_none(tag) {
            return None;
        }
        self.with(tag, |set| find(set, tag).and_then(|slot| slot.map(|(_, value)| value)))
    }

    /// Edits the value of a key in place, if there is one. `change` must not panic between two edits that belong
    /// together: what it has done by then stays.
    pub(crate) fn change<R>(&self, tag: Tag, change: impl FnOnce(&mut V) -> R) -> Option<R> {
        if self.has_none(tag) {
            return None;
        }
        self.with(tag, |set| find(set, tag).and_then(Option::as_mut).map(|(_, value)| change(value)))
    }

    /// Stores a value, in place of the former value of the key; or else in a free slot of its set; or else in place of
    /// the value with the least `worth` there, unless that is worth more.
    pub(crate) fn put(&self, tag: Tag, value: V, worth: impl Fn(&V) -> u64) {
        self.put_if(tag, value, worth, || true);
    }

    /// Does the same as [`put`](Self::put) if `condition` holds. It is evaluated under the lock of the set, so in one
    /// order with [`remove`](Self::remove).
    pub(crate) fn put_if(&self, tag: Tag, value: V, worth: impl Fn(&V) -> u64, condition: impl FnOnce() -> bool) {
        self.with(tag, |set| {
            if !condition() {
                return;
            }
            // `None`, a free slot, is less than any worth.
            let worth_of = |slot: &Option<(Tag, V)>| slot.map(|(_, value)| worth(&value));
            let own = set.iter().position(|slot| is_of(slot, tag));
            let least = || {
                let index = (0..WAYS).min_by_key(|index| worth_of(&set[*index])).expect("a set has slots");
                (worth_of(&set[index]) <= Some(worth(&value))).then_some(index)
            };
            if let Some(index) = own.or_else(least) {
                set[index] = Some((tag, value));
                self.occupied[self.sets.index(tag.short())].store(true, Ordering::Release);
            }
        });
    }

    /// Removes the value of a key, if there is one. What another thread is storing at this moment is removed, too, if it
    /// has the lock already.
    pub(crate) fn remove(&self, tag: Tag) {
        self.with(tag, |set| {
            if let Some(slot) = find(set, tag) {
                *slot = None;
                if set.iter().all(Option::is_none) {
                    self.occupied[self.sets.index(tag.short())].store(false, Ordering::Release);
                }
            }
        });
    }

    /// Removes the value of a key, if there is one. What another thread is storing at this moment may stay.
    pub(crate) fn discard(&self, tag: Tag) {
        if !self.has_none(tag) {
            self.remove(tag);
        }
    }

    /// Whether no key of its set has a value.
    fn has_none(&self, tag: Tag) -> bool {
        !self.occupied[self.sets.index(tag.short())].load(Ordering::Acquire)
    }

    fn with<R>(&self, tag: Tag, look: impl FnOnce(&mut Set<V>) -> R) -> R {
        // A poisoned lock is no harm. Entries are put and removed whole, after all that may panic. `change` edits in
        // place, and asks its callers for edits that a panic leaves sound.
        look(&mut self.sets.of(tag.short()))
    }
}

fn is_of<V>(slot: &Option<(Tag, V)>, tag: Tag) -> bool {
    slot.as_ref().is_some_and(|(other, _)| *other == tag)
}

fn find<V>(set: &mut Set<V>, tag: Tag) -> Option<&mut Option<(Tag, V)>> {
    set.iter_mut().find(|slot| is_of(slot, tag))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::remote::tag::Tags;
    use crate::values::PartitionKey;

    /// Returns keys of one set.
    fn neighbours(count: usize) -> Vec<Tag> {
        let tags = Tags::new(b"");
        let tags = (0..).map(|number: u32| tags.of(&PartitionKey::from(number.to_string())));
        tags.filter(|tag| tag.short() % SETS as u64 == 0).take(count).collect()
    }

    #[test]
    fn a_value_without_worth_is_not_replaced_while_a_slot_is_free() {
        let cache = KeyCache::new();
        let tags = neighbours(WAYS);
        for (tag, value) in tags.iter().zip(0_u64..) {
            cache.put(*tag, value, |_| 0);
        }
        assert_eq!(tags.iter().map(|tag| cache.get(*tag)).collect::<Vec<_>>(), [Some(0), Some(1), Some(2), Some(3)]);
    }

    #[test]
    fn in_a_full_set_the_least_worth_is_replaced_and_never_by_less() {
        let cache = KeyCache::new();
        let tags = neighbours(WAYS + 1);
        let values = [30, 10, 20, 40_u64];
        for (tag, value) in tags.iter().zip(values) {
            cache.put(*tag, value, |value| *value);
        }
        cache.put(tags[WAYS], 9, |value| *value);
        assert_eq!(cache.get(tags[WAYS]), None);
        cache.put(tags[WAYS], 10, |value| *value);
        assert_eq!([cache.get(tags[1]), cache.get(tags[WAYS])], [None, Some(10)]);
    }

    #[test]
    fn a_value_replaces_the_former_one_of_its_key_whatever_that_is_worth() {
        let cache = KeyCache::new();
        let tags = neighbours(WAYS);
        let worth = |value: &u64| *value;
        tags.iter().for_each(|tag| cache.put(*tag, 40, worth));
        cache.put(tags[WAYS - 1], 1, worth);
        assert_eq!([cache.get(tags[WAYS - 1]), cache.get(tags[0])], [Some(1), Some(40)]);
    }

    #[test]
    fn a_value_is_changed_or_removed_under_its_own_key_alone() {
        let cache = KeyCache::new();
        let tags = neighbours(2);
        let add_one = |value: &mut u64| {
            *value += 1;
            *value
        };
        assert_eq!(cache.change(tags[0], add_one), None, "the key has no value");
        cache.put(tags[0], 5, |_| 0);
        assert_eq!(cache.change(tags[1], add_one), None, "the value is its neighbour's");
        assert_eq!(cache.change(tags[0], add_one), Some(6));
        cache.remove(tags[1]);
        assert_eq!(cache.get(tags[0]), Some(6));
        cache.remove(tags[0]);
        assert_eq!(cache.get(tags[0]), None);
    }

    #[test]
    fn a_condition_that_does_not_hold_leaves_the_former_value() {
        let cache = KeyCache::new();
        let tag = neighbours(1)[0];
        cache.put_if(tag, 1_u64, |_| 0, || false);
        assert_eq!(cache.get(tag), None);
        cache.put_if(tag, 2, |_| 0, || true);
        cache.put_if(tag, 3, |_| 0, || false);
        assert_eq!(cache.get(tag), Some(2));
    }
}
