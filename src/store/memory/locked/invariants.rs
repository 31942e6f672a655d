//! What the locked table states of itself, checked in tests while no thread uses it. What a key may owe only its
//! algorithm knows, and is not checked.

use super::set::Tag64;
use super::{LockedTable, open};
use crate::values::time::Timestamp;

impl<S: Copy + Send + 'static> LockedTable<S> {
    /// Panics if an invariant of the table is broken. `now` must be no earlier than any time that a thread has read.
    ///
    /// - A key is in one slot at most, in one of its candidate sets.
    /// - What a key in the table has inherited was cleared.
    /// - An overflow set holds nothing but a state without a key, in one slot.
    /// - Keys are evicted, or turned away, only if that was chosen.
    pub(in crate::store::memory) fn check_invariants(&self, now: Timestamp) {
        let past = self.inherited.as_ref().filter(|past| !past.has_ended(now.as_nanos()));
        let tags: Vec<_> = self.sets.iter().map(|set| open(set).tags()).collect();
        for (set, own) in tags.iter().enumerate() {
            for tag in own {
                let (low, high) = self.candidates(tag.get());
                assert!([low, high].contains(&set), "key {tag:#x} is in set {set}, and belongs in {low} or {high}");
                let slots = [low, high].into_iter().flat_map(|set| &tags[set]).filter(|other| *other == tag);
                assert_eq!(slots.count(), 1, "key {tag:#x} is in more than one slot of the sets {low} and {high}");
                let inherited = past.and_then(|past| past.get(tag.get(), now.as_nanos(), |_| 0));
                assert!(inherited.is_none(), "key {tag:#x} is in set {set}, and what it inherited is not cleared");
            }
        }
        for (group, set) in self.overflow.iter().enumerate() {
            let tags = open(set).tags();
            assert!(tags.is_empty() || tags == [Tag64::MIN], "overflow set {group} holds the keys {tags:#x?}");
        }
        self.occupancy.check_invariants(self.when_full);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;

    use super::*;
    use crate::store::memory::WhenFull;
    use crate::store::memory::debt_copies::{CopiedDebt, Copying, DebtCopies, Geometry, KeptState, Source};
    use crate::store::memory::table::Tag;

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
    fn a_key_in_a_wrong_set_is_found() {
        let table = table(WhenFull::Reject);
        let (low, high) = table.candidates(HASH);
        put(&table, (0..16).find(|set| ![low, high].contains(set)).unwrap());
        table.check_invariants(NOW);
    }

    #[test]
    #[should_panic(expected = "is in more than one slot")]
    fn a_key_in_both_sets_is_found() {
        let table = table(WhenFull::Reject);
        let (low, high) = table.candidates(HASH);
        put(&table, low);
        table.check_invariants(NOW);
        put(&table, high);
        table.check_invariants(NOW);
    }

    #[test]
    #[should_panic(expected = "is in more than one slot")]
    fn a_key_that_is_twice_in_a_set_is_found() {
        let table = table(WhenFull::Reject);
        let (low, _) = table.candidates(HASH);
        put(&table, low);
        put(&table, low);
        table.check_invariants(NOW);
    }

    #[test]
    #[should_panic(expected = "overflow set 3 holds the keys")]
    fn a_key_in_an_overflow_set_is_found() {
        let table = table(WhenFull::Overflow);
        assert!(open(&table.overflow[3]).insert(Tag64::new(HASH).unwrap(), (), |_, ()| true));
        table.check_invariants(NOW);
    }

    #[test]
    #[should_panic(expected = "0 keys were evicted, 1 turned away")]
    fn a_key_that_is_turned_away_without_need_is_found() {
        let table = table(WhenFull::ForgetLeast);
        table.occupancy().note_turned_away();
        table.check_invariants(NOW);
    }

    #[test]
    #[should_panic(expected = "and what it inherited is not cleared")]
    fn a_key_that_is_also_inherited_is_found() {
        struct One;
        impl Source<KeptState<()>> for One {
            fn announce(&self, _: &Weak<dyn Copying>) {}

            fn copy(&self, _: Geometry, _: usize, put: &mut dyn FnMut(usize, KeptState<()>, u64)) {
                put(
                    crate::store::memory::locked::candidate_sets(16, HASH).0,
                    KeptState::new(Tag::from_hash(HASH), ()),
                    u64::MAX,
                );
            }
        }
        let mut table = table(WhenFull::ForgetLeast);
        let copies = DebtCopies::new(0, &[table.geometry()], Box::new(One));
        copies.copy_all();
        table.inherit(copies, 0);
        table.check_invariants(NOW);
        put(&table, table.candidates(HASH).0);
        table.check_invariants(NOW);
    }
}
