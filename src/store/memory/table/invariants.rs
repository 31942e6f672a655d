//! The invariants that `table/mod.rs` lists, checked in tests while no thread uses the table.

use super::SetAssociativeTable;
use super::codec::Codec;
use super::overflow::OVERFLOW;
use super::rule::Rule;
use super::search::second_candidate;
use super::slots::{SETS_PER_PAGE, SLOTS_PER_SET};
use super::sweep::ALL_PAID;
use super::ticks::{FARTHEST_AHEAD, Tick, TickBucket};
use super::windows::{WindowCounts, WindowRule, WindowState};
use super::word::{Tag, Word};

/// A [`Rule`] that knows the greatest debt that a key can have.
pub(in crate::store::memory) trait Bounded: Codec {
    /// Returns the debt's flaw, if there is one: its key may owe `most` units, and no thread has read a later time than
    /// `now`.
    fn flaw(&self, debt: Self::Debt, now: Self::Now, most: u64) -> Option<String>;

    /// Returns whether a word is from before `earliest`.
    fn is_before(&self, word: Word, earliest: Self::Now) -> bool;
}

impl Bounded for TickBucket {
    /// An admission leaves a full bucket's debt at most, at a time that some thread has read.
    fn flaw(&self, debt: u64, _: Tick, most: u64) -> Option<String> {
        let most = self.worth(most);
        (debt > most).then(|| format!("owes {debt} ticks, and {most} at most can be owed"))
    }

    fn is_before(&self, word: Word, earliest: Tick) -> bool {
        word.ahead_of(earliest.count) > FARTHEST_AHEAD
    }
}

impl<S: WindowState> Bounded for WindowRule<S> {
    fn flaw(&self, debt: WindowCounts<S>, now: Self::Now, most: u64) -> Option<String> {
        let present = self.nothing(now).window;
        if debt.window > present {
            return Some(format!("has used {debt:?}, in a window later than the present one, {present}"));
        }
        let is_more = debt.both().into_iter().any(|count| u64::from(count) > most);
        is_more.then(|| format!("has used {debt:?}, more than {most} in one window"))
    }

    /// A word that was refunded or reset counts nothing, in any window.
    fn is_before(&self, word: Word, earliest: Self::Now) -> bool {
        let counts_nothing = self.is_paid_by(word.payload(), 0);
        !counts_nothing && self.size(self.owed(word, earliest)) == 0
    }
}

/// Tags that were compared although they may belong to different keys, and the equal ones.
#[derive(Default)]
pub(in crate::store::memory) struct Meetings {
    compared: u64,
    equal: Vec<String>,
}

impl Meetings {
    /// Panics if more are equal than by chance.
    ///
    /// Two tags are equal with a probability of 2^-28. So more than are allowed here are equal by chance in at most one
    /// in a million tables.
    pub(in crate::store::memory) fn check(&self) {
        let allowed = match self.compared {
            0..0x100 => 0,
            0x100..0x1_0000 => 1,
            _ => 4,
        };
        assert!(self.equal.len() <= allowed, "{}", self.equal.join("; "));
    }
}

impl SetAssociativeTable {
    /// Panics if one of the table's invariants is broken. `now` must be no earlier than any time that a thread has
    /// read.
    ///
    /// - A key is in at most one slot (invariant 1).
    /// - No page is marked as being swept, or swept in an epoch that the clock has not entered.
    /// - No word is from before the epoch that precedes its page's: later, it would look like a debt.
    /// - No key owes more than it can owe, and no window counts before it begins.
    /// - The overflow slots have their own tag. Slots beyond the last set in the last page are empty.
    /// - Keys are evicted, or turned away, only if that was chosen.
    pub(in crate::store::memory) fn check_invariants<R: Bounded>(&self, rule: &R, now: R::Now) {
        let most = rule.most_units(self.inherited.is_some());
        self.check_pages(rule, now);
        let mut meetings = Meetings::default();
        for set in 0..self.geometry.sets() {
            self.check_keys(set, &mut meetings);
            for (index, word) in self.words(set) {
                self.check_word(rule, (set, index), (word, word.tag()), now, most);
            }
        }
        meetings.check();
        self.check_other_slots(rule, now, most);
        self.occupancy.check_invariants(self.when_full);
    }

    /// Looks in the table for a key whose inherited debt is not cleared, by its tag and a candidate set. Another key
    /// may have both by chance. Then the key that the table was asked about first has taken the debt over.
    pub(in crate::store::memory) fn meet(&self, set: usize, tag: Tag, meetings: &mut Meetings) {
        let second = second_candidate(self.geometry.sets(), set, tag);
        // The set may be the second candidate itself, as far behind the first as the second is behind it.
        let first = (2 * set + self.geometry.sets() - second) % self.geometry.sets();
        for other in [set, second, first] {
            meetings.compared += self.words(other).count() as u64;
            if self.words(other).any(|(_, word)| word.is(tag)) {
                meetings.equal.push(format!("{tag:?} is in set {other}, and what it inherited is not cleared"));
                return;
            }
        }
    }

    /// Returns a set's words that are not empty, with their slots.
    fn words(&self, set: usize) -> impl Iterator<Item = (usize, Word)> + '_ {
        let words = self.slots.in_set(set).map(|slot| slot.load());
        words.enumerate().filter(|(_, word)| !word.is_empty())
    }

    fn check_pages<R: Rule>(&self, rule: &R, now: R::Now) {
        for (index, page) in self.pages.iter().enumerate() {
            let epochs = page.load();
            let present = rule.epoch(now);
            let before = epochs.before();
            let latest = epochs.latest();
            assert!(epochs.is_swept(), "page {index} is marked as being swept, from epoch {before} to {latest}");
            assert!(latest <= present, "page {index} was swept in epoch {latest}, and the clock is in {present}");
        }
    }

    /// Checks that no key in a set is in another slot, too.
    fn check_keys(&self, set: usize, meetings: &mut Meetings) {
        for (index, word) in self.words(set) {
            let tag = word.tag();
            assert!(tag.value() > 0, "slot {index} of set {set} is not empty, but has no tag");
            let twin = self.words(set).find(|(other, word)| *other > index && word.is(tag));
            assert!(twin.is_none(), "{tag:?} is twice in set {set}");

            // A key in both its candidate sets is found once, from the first, because this set is taken to be the
            // first.
            let second = second_candidate(self.geometry.sets(), set, tag);
            meetings.compared += self.words(second).count() as u64;
            if self.words(second).any(|(_, word)| word.is(tag)) {
                meetings.equal.push(format!("{tag:?} is in set {set} and in its other candidate set, {second}"));
            }
            // Keys whose tag bits are 0 or 1 have this tag as their own.
            meetings.compared += 2;
            if tag == OVERFLOW {
                meetings.equal.push(format!("slot {index} of set {set} has the tag of overflow slots"));
            }
        }
    }

    /// Checks the word for the key with this tag, which differs from the word's tag in an overflow slot.
    fn check_word<R: Bounded>(
        &self,
        rule: &R,
        (set, index): (usize, usize),
        (word, key): (Word, Tag),
        now: R::Now,
        most: u64,
    ) {
        let epochs = self.page(set).load();
        assert!(
            !rule.is_before(word, rule.epoch_start(epochs.earliest())),
            "slot {index} of set {set} holds {word:?} from before epoch {}, and its page was swept in epoch {}",
            epochs.earliest(),
            epochs.latest()
        );
        // If a page was not swept for this long, all its words are paid, even if they look owed.
        if rule.epoch(now) - epochs.latest() < ALL_PAID {
            let own = rule.local(now, key);
            if let Some(flaw) = rule.flaw(rule.owed(word, own), own, most) {
                panic!("{key:?} in slot {index} of set {set} {flaw}");
            }
        }
    }

    /// Checks the slots that do not belong to a single key.
    fn check_other_slots<R: Bounded>(&self, rule: &R, now: R::Now, most: u64) {
        let own_pages = self.geometry.pages();
        for set in self.geometry.sets()..own_pages * SETS_PER_PAGE {
            assert!(
                self.words(set).next().is_none(),
                "set {set} is not empty, and there are {} sets",
                self.geometry.sets()
            );
        }
        let Some(page) = self.overflow_page() else { return };
        for set in page * SETS_PER_PAGE..(page + 1) * SETS_PER_PAGE {
            for (index, word) in self.words(set) {
                assert!(word.is(OVERFLOW), "overflow slot {index} of set {set} holds {word:?}, of a single key");
                let group = (set - page * SETS_PER_PAGE) * SLOTS_PER_SET + index;
                let key = Tag::of_group(group as u64);
                self.check_word(rule, (set, index), (word, key), now, most);
            }
        }
    }
}

#[cfg(all(test, not(sluice_loom)))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::time::Duration;

    use super::*;
    use crate::algorithm::FixedWindowState;
    use crate::store::WhenFull;
    use crate::store::memory::table::FixedRule;
    use crate::store::memory::table::epoch::Epochs;
    use crate::store::memory::table::ticks::EPOCH_BITS;
    use crate::values::Quota;

    const TAG: Tag = Tag::from_hash(7);

    fn bucket() -> TickBucket {
        TickBucket::new(&Quota::per_day(1).burst(1)).unwrap()
    }

    /// Two units in five seconds, in words that hold more. A window is an epoch.
    fn window() -> FixedRule {
        FixedRule::holding(&Quota::per(2, Duration::from_secs(5)), false, u32::MAX.into()).unwrap()
    }

    fn put(table: &SetAssociativeTable, set: usize, index: usize, word: Word) {
        table.slots.in_set(set).nth(index).unwrap().replace(Word::EMPTY, word).unwrap();
    }

    /// Asserts that the check finds the damage that `break_it` does to an empty table with 16 sets, at `now`.
    #[track_caller]
    fn is_found<R: Bounded>(
        rule: &R,
        when_full: WhenFull,
        now: R::Now,
        break_it: impl FnOnce(&SetAssociativeTable),
        message: &str,
    ) {
        let table = SetAssociativeTable::new(64, when_full);
        table.check_invariants(rule, now);
        break_it(&table);
        let panic = catch_unwind(AssertUnwindSafe(|| table.check_invariants(rule, now)));
        let panic = panic.expect_err(message);
        let found = panic.downcast_ref::<String>().unwrap();
        assert!(found.contains(message), "{found}");
    }

    #[test]
    fn keys_and_pages_in_disorder_are_found() {
        let of_keys = |break_it: &dyn Fn(&SetAssociativeTable), message: &str| {
            is_found(&bucket(), WhenFull::Overflow, Tick::from_count(5), break_it, message);
        };
        let word = Word::new(TAG, 9);
        let twice = |table: &SetAssociativeTable| [2, 4].into_iter().for_each(|index| put(table, 3, index, word));
        of_keys(&twice, "Tag(7) is twice in set 3");
        let apart = |table: &SetAssociativeTable| {
            [3, second_candidate(16, 3, TAG)].into_iter().for_each(|set| put(table, set, 2, word));
        };
        of_keys(&apart, "Tag(7) is in set 3 and in its other candidate set");
        of_keys(&|table| put(table, 3, 2, Word::from_bits(9)), "slot 2 of set 3 is not empty, but has no tag");
        of_keys(&|table| put(table, 3, 2, Word::new(OVERFLOW, 9)), "slot 2 of set 3 has the tag of overflow slots");
        of_keys(&|table| put(table, 64, 2, word), "overflow slot 2 of set 64 holds");
        of_keys(&|table| put(table, 16, 2, word), "set 16 is not empty, and there are 16 sets");
        of_keys(&|table| table.occupancy.note_evicted(), "Overflow, and 1 keys were evicted");

        let mark =
            |new| move |table: &SetAssociativeTable| assert!(table.pages[0].replace(Epochs::swept(0), new).is_ok());
        of_keys(&mark(Epochs::sweeping(0, 1)), "page 0 is marked as being swept, from epoch 0 to 1");
        of_keys(&mark(Epochs::swept(1)), "page 0 was swept in epoch 1, and the clock is in 0");
        let turn_away = |table: &SetAssociativeTable| table.occupancy.note_turned_away();
        is_found(&bucket(), WhenFull::EvictLeast, Tick::from_count(5), turn_away, "0 keys were evicted, 1 turned away");
    }

    #[test]
    fn words_in_disorder_are_found() {
        fn of_words<R: Bounded>(rule: &R, epochs: u32, tag: Tag, stamp: u64, message: &str) {
            let set = if tag == OVERFLOW { 64 } else { 3 };
            let write = |table: &SetAssociativeTable| {
                table.page(set).replace(Epochs::swept(0), Epochs::swept(epochs)).unwrap();
                put(table, set, 2, Word::new(tag, stamp));
            };
            is_found(rule, WhenFull::Overflow, rule.epoch_start(epochs), write, message);
        }
        const EPOCH: u64 = 1 << EPOCH_BITS;
        for tag in [TAG, OVERFLOW] {
            of_words(&bucket(), 20, tag, 19 * EPOCH - 1, "from before epoch 19, and its page was swept in epoch 20");
            of_words(&bucket(), 20, tag, 24 * EPOCH + 1, "ticks, and 17179869184 at most can be owed");
            let stamp = |number, used| {
                let used = window().clipped(FixedWindowState { window: number, used });
                window().stamp(used, window().epoch_start(20))
            };
            let message = "from before epoch 19, and its page was swept in epoch 20";
            of_words(&window(), 20, tag, stamp(18, 1), message);
            of_words(&window(), 20, tag, stamp(21, 1), "in a window later than the present one");
            of_words(&window(), 20, tag, stamp(20, 3), "more than 2 in one window");
        }
        // A word that counts nothing may be from any window.
        let table = SetAssociativeTable::new(64, WhenFull::EvictLeast);
        put(&table, 3, 2, Word::new(TAG, 0));
        table.page(3).replace(Epochs::swept(0), Epochs::swept(9)).unwrap();
        table.check_invariants(&window(), window().epoch_start(9));
    }
}
