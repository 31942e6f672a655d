//! The locked table's invariants, checked in tests while no thread uses it. Only the algorithm knows how much a key may
//! owe, so that is not checked.

use super::LockedTable;
use crate::values::time::Timestamp;

impl<S: Copy + Send + 'static> LockedTable<S> {
    /// Panics if one of the table's invariants is broken. `now` must be no earlier than any time that a thread has
    /// read.
    ///
    /// - A key is in one slot at most, in one of its candidate sets.
    /// - The inherited state is cleared for each key in the table.
    /// - A quota has at most one slot in an overflow set.
    /// - Keys are evicted, or requests turned away, only if [`WhenFull`](super::WhenFull) allows it.
    pub(in crate::store::memory) fn check_invariants(&self, now: Timestamp) {
        let past = self.inherited.as_ref().filter(|past| !past.has_ended(now.as_nanos()));
        let tags: Vec<_> = self.sets.iter().map(|set| set.lock().tags()).collect();
        for (set, own) in tags.iter().enumerate() {
            for tag in own {
                let (low, high) = self.candidates(tag.get());
                assert!([low, high].contains(&set), "key {tag:#x} is in set {set}, and belongs in {low} or {high}");
                let slots = [low, high].into_iter().flat_map(|set| &tags[set]).filter(|other| *other == tag);
                assert_eq!(slots.count(), 1, "key {tag:#x} is in more than one slot of the sets {low} and {high}");
                let inherited = past.and_then(|past| past.get(tag.get(), now.as_nanos(), &|_| 0));
                assert!(inherited.is_none(), "key {tag:#x} is in set {set}, and what it inherited is not cleared");
            }
        }
        for (group, set) in self.overflow.iter().enumerate() {
            let mut tags = set.lock().tags();
            let slots = tags.len();
            tags.sort_unstable();
            tags.dedup();
            assert_eq!(tags.len(), slots, "a quota has two slots of overflow set {group}");
        }
        self.occupancy.check_invariants(self.when_full);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;

    use super::*;
    use crate::store::memory::debt_copies::{DebtSource, Debtor, PastDebts};
    use crate::store::memory::locked::set::Tag64;
    use crate::store::memory::read_states::AnyTable;
    use crate::store::memory::table::{Geometry, Tag};
    use crate::store::memory::when_full::WhenFull;

    const NOW: Timestamp = Timestamp::from_nanos(5);
    const HASH: u64 = 7 << 40 | 7 << 28 | 7;

    fn table(when_full: WhenFull) -> LockedTable<()> {
        LockedTable::new(64, when_full)
    }

    fn put(table: &LockedTable<()>, set: usize) {
        assert!(table.lock(set).insert(Tag64::new(HASH).unwrap(), (), |_, ()| false));
    }

    #[test]
    #[should_panic(expected = "belongs in")]
    fn a_misplaced_key_is_found() {
        let table = table(WhenFull::Reject);
        let (low, high) = table.candidates(HASH);
        put(&table, (0..16).find(|set| ![low, high].contains(set)).unwrap());
        table.check_invariants(NOW);
    }

    #[test]
    #[should_panic(expected = "is in more than one slot")]
    fn a_duplicate_key_is_found() {
        let table = table(WhenFull::Reject);
        let (low, high) = table.candidates(HASH);
        put(&table, low);
        table.check_invariants(NOW);
        put(&table, high);
        table.check_invariants(NOW);
    }

    #[test]
    #[should_panic(expected = "is in more than one slot")]
    fn a_key_twice_per_set_is_found() {
        let table = table(WhenFull::Reject);
        let (low, _) = table.candidates(HASH);
        put(&table, low);
        put(&table, low);
        table.check_invariants(NOW);
    }

    #[test]
    #[should_panic(expected = "a quota has two slots of overflow set 3")]
    fn a_duplicate_quota_in_overflow_is_found() {
        let table = table(WhenFull::Overflow);
        for _ in 0..2 {
            assert!(table.overflow[3].lock().insert(Tag64::new(HASH).unwrap(), (), |_, ()| false));
        }
        table.check_invariants(NOW);
    }

    #[test]
    #[should_panic(expected = "0 keys were evicted, 1 turned away")]
    fn a_needless_rejection_is_found() {
        let table = table(WhenFull::EvictLeast);
        table.occupancy().note_turned_away();
        table.check_invariants(NOW);
    }

    #[test]
    #[should_panic(expected = "and what it inherited is not cleared")]
    fn an_uncleared_inherited_key_is_found() {
        struct One;
        impl DebtSource<()> for One {
            fn announce(&self, _: &Weak<dyn PastDebts>) {}

            fn copy(&self, geometry: Geometry, _: usize, put: &mut dyn FnMut(Debtor<()>)) {
                let [set, _] = geometry.candidate_sets(HASH);
                put(Debtor { set, tag: Tag::from_hash(HASH), debt: (), ends: u64::MAX });
            }

            fn size(&self, _: Tag, (): &()) -> u64 {
                1
            }
        }
        let mut table = table(WhenFull::EvictLeast);
        table.inherit(&[table.geometry], Box::new(One));
        table.inherited().unwrap().copy_all();
        table.check_invariants(NOW);
        put(&table, table.candidates(HASH).0);
        table.check_invariants(NOW);
    }
}
