//! `ExpiringMap`: a fixed-size map, for values that end and are not budgets: bans, debts, retry records, known
//! rejections, leases.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::util::lock::Lock;
use crate::values::time::Timestamp;

/// Holds up to one value per tag, in sets of `WAYS` slots. The tag is a keyed hash, so that clients cannot choose a
/// set.
///
/// In a full set, the value that ends first makes room. If that is the new one, it is not kept. Values that have ended
/// are thus replaced first, and no task sweeps.
///
/// Each set has a lock, which is held for a look at its slots. The memory is `WAYS` slots and nine bytes per set, from
/// the beginning.
pub(crate) struct ExpiringMap<T, V, const WAYS: usize> {
    sets: Box<[Lock<Set<T, V, WAYS>>]>,
    /// Whether a set has any value. A key without an entry is recognised without the lock and, mostly, without a cache
    /// miss. Written under the set's lock.
    occupied: Box<[AtomicBool]>,
    /// The number of values that full sets lost before they had ended.
    evicted: AtomicU64,
}

type Set<T, V, const WAYS: usize> = [Option<(T, V)>; WAYS];

/// A hash that stands for a key.
pub(crate) trait HashTag: Copy + Eq {
    /// 64 of the hash's bits, which choose a set.
    fn bits(self) -> u64;
}

impl<T: HashTag, V: Copy, const WAYS: usize> ExpiringMap<T, V, WAYS> {
    /// Creates a map with `sets` sets. `None` if it cannot be allocated.
    pub(crate) fn new(sets: usize) -> Option<Self> {
        let mut all = Vec::new();
        all.try_reserve_exact(sets).ok()?;
        all.extend(std::iter::repeat_with(|| Lock::new([None; WAYS])).take(sets));
        let occupied = std::iter::repeat_with(AtomicBool::default).take(sets).collect();
        Some(Self { sets: all.into(), occupied, evicted: AtomicU64::new(0) })
    }

    /// The bytes that a map with `sets` sets takes.
    #[cfg(test)]
    pub(crate) const fn size_of(sets: usize) -> usize {
        sets.saturating_mul(size_of::<Lock<Set<T, V, WAYS>>>() + size_of::<AtomicBool>())
    }

    pub(crate) fn get(&self, tag: T) -> Option<V> {
        self.change(tag, |value| *value)
    }

    /// Edits a tag's value in place, if there is one. `change` must not panic between two edits that belong together,
    /// because its edits until then stay.
    pub(crate) fn change<R>(&self, tag: T, change: impl FnOnce(&mut V) -> R) -> Option<R> {
        let index = self.set_of(tag);
        if !self.occupied[index].load(Ordering::Acquire) {
            return None;
        }
        let mut set = self.sets[index].lock();
        set.iter_mut().flatten().find(|(other, _)| *other == tag).map(|(_, value)| change(value))
    }

    /// Lets `step` set, replace or remove a tag's value, under its set's lock, so in one order with all other steps.
    /// `ends` says when a value ends; `now` only decides whether a value that makes room counts as evicted.
    pub(crate) fn update<R>(
        &self,
        tag: T,
        now: Timestamp,
        ends: &dyn Fn(&V) -> Timestamp,
        step: impl FnOnce(&mut Option<V>) -> R,
    ) -> R {
        let (mut step, mut result) = (Some(step), None);
        self.update_by(tag, now, ends, &mut |value| result = step.take().map(|step| step(value)));
        result.expect("the step is taken once")
    }

    /// [Updates](Self::update) by a step of any type, so that this is compiled once for each value type.
    fn update_by(&self, tag: T, now: Timestamp, ends: &dyn Fn(&V) -> Timestamp, step: &mut dyn FnMut(&mut Option<V>)) {
        let index = self.set_of(tag);
        let mut set = self.sets[index].lock();
        let own = set.iter().position(|slot| matches!(slot, Some((other, _)) if *other == tag));
        let mut value = own.and_then(|slot| set[slot]).map(|(_, value)| value);
        step(&mut value);
        // `None`, a free slot, is before any end.
        let end_in = |slot: &Option<(T, V)>| slot.map(|(_, value)| ends(&value));
        match (value, own) {
            (Some(value), Some(slot)) => set[slot] = Some((tag, value)),
            (Some(value), None) => {
                let first = (0..WAYS).min_by_key(|slot| end_in(&set[*slot])).expect("a set has slots");
                let (end, other) = (Some(ends(&value)), end_in(&set[first]));
                if other <= end {
                    set[first] = Some((tag, value));
                    self.occupied[index].store(true, Ordering::Release);
                }
                // Relaxed, because nothing is published through it.
                if other.min(end).is_some_and(|lost| lost > now) {
                    self.evicted.fetch_add(1, Ordering::Relaxed);
                }
            }
            (None, Some(slot)) => {
                set[slot] = None;
                if set.iter().all(Option::is_none) {
                    self.occupied[index].store(false, Ordering::Release);
                }
            }
            (None, None) => {}
        }
    }

    /// Removes a tag's value. An entry that another thread is storing at this moment is removed, too, if that thread
    /// has the lock already.
    pub(crate) fn remove(&self, tag: T) {
        self.update_by(tag, Timestamp::ZERO, &|_| Timestamp::ZERO, &mut |value| *value = None);
    }

    /// The values for which `is_live` holds, counted in up to `sample` sets and extrapolated to all.
    pub(crate) fn count(&self, sample: usize, is_live: impl Fn(&V) -> bool) -> u64 {
        let sets = self.sets.len();
        let seen = sets.min(sample);
        let live_in =
            |index: usize| self.sets[index].lock().iter().flatten().filter(|(_, value)| is_live(value)).count();
        let live: usize = (0..seen).map(|index| live_in(index * sets / seen)).sum();
        live as u64 * sets as u64 / seen as u64
    }

    /// Returns each set's values in turn, copied under its lock.
    pub(crate) fn each_set(&self) -> impl Iterator<Item = [Option<(T, V)>; WAYS]> + '_ {
        // Acquire, as in `change`.
        let is_occupied = |occupied: &AtomicBool| occupied.load(Ordering::Acquire);
        let sets = self.sets.iter().zip(&self.occupied).filter(move |(_, occupied)| is_occupied(occupied));
        sets.map(|(set, _)| *set.lock())
    }

    pub(crate) fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    #[allow(clippy::cast_possible_truncation, reason = "less than the number of sets")]
    fn set_of(&self, tag: T) -> usize {
        ((u128::from(tag.bits()) * self.sets.len() as u128) >> u64::BITS) as usize
    }
}

#[cfg(all(test, not(sluice_loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::util::cases::cases;

    const WAYS: usize = 4;
    const SETS: usize = 3;

    impl HashTag for u64 {
        fn bits(self) -> u64 {
            self
        }
    }

    /// The tag for a key in one of the sets.
    fn tag(set: u64, key: u64) -> u64 {
        set * (u64::MAX / SETS as u64) + 6 + key
    }

    fn at(nanos: u64) -> Timestamp {
        Timestamp::from_nanos(nanos)
    }

    /// A set's model: its tags with the times at which their values end, in any order.
    #[derive(Default)]
    struct Model {
        sets: [Vec<(u64, u64)>; SETS],
        evicted: u64,
    }

    impl Model {
        fn put(&mut self, set: u64, tag: u64, end: Option<u64>, now: u64) {
            let set = &mut self.sets[usize::try_from(set).unwrap()];
            let was_there = set.iter().any(|(other, _)| *other == tag);
            set.retain(|(other, _)| *other != tag);
            set.extend(end.map(|end| (tag, end)));
            if set.len() > WAYS && !was_there {
                let first = *set.iter().min_by_key(|(other, end)| (*end, *other == tag)).unwrap();
                set.retain(|(other, _)| *other != first.0);
                self.evicted += u64::from(first.1 > now);
            }
        }

        fn ends(&self) -> Vec<u64> {
            let mut ends: Vec<_> = self.sets.iter().flatten().map(|(_, end)| *end).collect();
            ends.sort_unstable();
            ends
        }
    }

    proptest! {
        #![proptest_config(cases(256))]

        #[test]
        fn it_agrees_with_the_model(steps in prop::collection::vec(
            (0..SETS as u64, 0..9_u64, prop::option::weighted(0.8, 0..1_000_000_u64), 0..1_000_000_u64), 0..200,
        )) {
            let map = ExpiringMap::<u64, u64, WAYS>::new(SETS).unwrap();
            let mut model = Model::default();
            for (number, (set, key, end, now)) in (0..).zip(steps) {
                // No two ends are the same, so there is one value that ends first.
                let (tag, end) = (tag(set, key), end.map(|end| end * 1_000 + number));
                let now = now * 1_000;
                map.update(tag, at(now), &|end| at(*end), |value| *value = end);
                model.put(set, tag, end, now);
                let stored: Vec<_> = (0..SETS as u64).flat_map(|set| (0..9).map(move |key| super::tests::tag(set, key)))
                    .filter_map(|tag| map.get(tag)).collect();
                let mut sorted = stored;
                sorted.sort_unstable();
                prop_assert_eq!(&sorted, &model.ends());
                prop_assert_eq!(map.count(usize::MAX, |_| true), sorted.len() as u64);
                prop_assert_eq!(map.evicted(), model.evicted);
            }
        }
    }

    #[test]
    fn only_the_own_tag_changes_a_value() {
        let map = ExpiringMap::<u64, u64, WAYS>::new(1).unwrap();
        let add_one = |value: &mut u64| {
            *value += 1;
            *value
        };
        assert_eq!(map.change(0, add_one), None, "it has no value");
        map.update(0, at(0), &|_| at(0), |value| *value = Some(5));
        assert_eq!(map.change(1, add_one), None, "the value is its neighbour's");
        assert_eq!(map.change(0, add_one), Some(6));
        map.remove(1);
        assert_eq!(map.get(0), Some(6));
        map.remove(0);
        assert_eq!((map.get(0), map.occupied[0].load(Ordering::Relaxed)), (None, false));
    }

    #[test]
    fn the_later_end_stays() {
        let map = ExpiringMap::<u64, u64, 1>::new(1).unwrap();
        let put = |tag, end| map.update(tag, at(0), &|end| at(*end), |value| *value = Some(end));
        put(1, 20);
        put(2, 10);
        assert_eq!([map.get(1), map.get(2)], [Some(20), None]);
        put(3, 20);
        assert_eq!([map.get(1), map.get(3)], [None, Some(20)], "of two that end at once, the new one stays");
        put(3, 1);
        assert_eq!(map.get(3), Some(1), "its own value is replaced in any case");
    }
}
