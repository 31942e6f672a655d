//! Threads that are descheduled between two steps, and clocks that jump: one thread plays both parts.

use super::charge::{Judged, Owner, validate};
use super::epoch::Epochs;
use super::rule::Ruling;
use super::ticks::EPOCH_BITS;
use super::word::Word;
use super::*;
use crate::values::counterexamples::each;
use crate::values::{Decision, Quota};

const EPOCH: u64 = 1 << EPOCH_BITS;

/// A table with the one quota by which all threads judge.
struct Buckets {
    table: SetAssociativeTable,
    bucket: TickBucket,
}

impl Buckets {
    fn new(quota: &Quota, keys: usize, when_full: WhenFull) -> Self {
        Self { table: SetAssociativeTable::new(keys, when_full), bucket: TickBucket::new(quota).unwrap() }
    }

    fn check(&self, hash: u64, cost: u64, now: Tick, clock: impl Fn() -> Tick) -> Decision {
        self.table.check(&self.bucket, hash, cost, now, clock)
    }

    /// Checks the table at an instant that is no earlier than any before.
    fn check_invariants(&self, now: u64) {
        self.table.check_invariants(&self.bucket, Tick::from_count(now));
    }
}

impl std::ops::Deref for Buckets {
    type Target = SetAssociativeTable;

    fn deref(&self) -> &SetAssociativeTable {
        &self.table
    }
}

fn table() -> Buckets {
    Buckets::new(&Quota::per_day(1).burst(1), 64, WhenFull::EvictLeast)
}

fn ask(table: &Buckets, read: u64, really: u64) -> bool {
    table.check(7, 1, Tick::from_count(read), || Tick::from_count(really)).is_allowed()
}

/// Ten thousand keys at half load are 40 pages, and a page to spare. Each has an epoch, and the table 256 locks.
#[test]
fn size_is_slots_epochs_and_locks() {
    let [full, shared] = [WhenFull::Reject, WhenFull::Overflow]
        .map(|when_full| SetAssociativeTable::new(10_000, when_full).size_in_bytes());
    assert_eq!(full, 41 * 4_096 + 40 * 8 + 256 * 64);
    assert_eq!(shared - full, 4_096 + 8, "the page of overflow slots");
}

/// A thread reads the clock, sleeps for some epochs, and then finds a debt that was made meanwhile. By the thread's own
/// time, that debt is so far ahead that it looks long paid.
#[test]
fn late_threads_judge_by_the_latest_reading() {
    for sleep in [1, 2, 4, 8, 9, 12, 15, 16, 17, 40] {
        let table = table();
        let late = sleep * EPOCH;
        assert!(ask(&table, late, late));
        assert!(!ask(&table, 5, late + 1), "{sleep} epochs late");
        assert!(!ask(&table, late + 2, late + 2), "{sleep} epochs late, its debt is gone");
        // Its own charge, from before it slept, was paid after four epochs.
        if sleep > 4 {
            table.refund(&table.bucket, 7, 1, 5 + table.bucket.capacity(), Tick::from_count(5));
            assert!(!ask(&table, late + 3, late + 3), "{sleep} epochs late, it was refunded");
        }
        table.check_invariants(late + 3);
    }
}

/// The clock may be set back as far as it likes.
#[test]
fn a_clock_set_back_admits_no_more() {
    for back in [EPOCH / 2, EPOCH, 2 * EPOCH - 1, 2 * EPOCH, 3 * EPOCH, 7 * EPOCH, 9 * EPOCH, 20 * EPOCH] {
        let table = table();
        // The end of an epoch, because seen from the beginning of the one before, the debt is almost six epochs long.
        let now = 21 * EPOCH - 1;
        assert!(ask(&table, now, now));
        assert!(!ask(&table, now - back, now - back), "{back} ticks");
        assert!(!ask(&table, now, now));
        // Another key is judged, too.
        assert!(
            table.check(8 << 40 | 8, 1, Tick::from_count(now - back), || Tick::from_count(now - back)).is_allowed()
        );
        table.check_invariants(now);
    }
}

/// A debt that is owed for four epochs, met in each of them.
#[test]
fn debts_are_owed_across_epochs() {
    for step in [1, 2, 3, 4] {
        let table = table();
        assert!(ask(&table, 5, 5));
        let paid = 5 + table.bucket.capacity();
        let mut now = 5;
        while now + step * EPOCH < paid {
            now += step * EPOCH;
            assert!(!ask(&table, now, now), "{now} of {paid}");
            table.check_invariants(now);
        }
        assert!(!ask(&table, paid - 1, paid - 1));
        assert!(ask(&table, paid, paid));
        table.check_invariants(paid);
    }
}

/// A thread finds a page during its sweep, after a long time: words that are not cleared yet may look like debts, and
/// charges that are made before the sweep ends would be cleared, too.
#[test]
fn a_begun_sweep_is_finished_first() {
    for sleep in [2, 4, 5, 9, 10, 12, 15, 16, 40] {
        let table = Buckets::new(&Quota::per_day(1).burst(2), 64, WhenFull::EvictLeast);
        assert!(ask(&table, 5, 5));
        let candidates = table.candidates(7);
        let first = std::cell::Cell::new(true);
        let [set, _] = candidates.sets;
        let index = set / SETS_PER_PAGE;
        let begun = Epochs::sweeping(0, u32::try_from(sleep).unwrap());
        let ruled = table.charge(&table.bucket, Owner::from_tag(candidates.tag), 1, set, Tick::from_count(5), || {
            let found = table.find_in(set, candidates.tag);
            if first.replace(false) {
                // Another thread begins a sweep, and is descheduled.
                table.pages[index].replace(Epochs::swept(0), begun).unwrap();
            }
            found
        });
        assert!(table.page(set).load().is_swept(), "{sleep} epochs late: judged an unswept word");
        let is_rejected = matches!(ruled, Some(Judged { ruling: Ruling::Reject { .. } | Ruling::Never { .. }, .. }));
        assert!(!is_rejected, "{sleep} epochs late, rejected because of a paid debt");
        table.check_invariants(sleep * EPOCH);
    }
}

/// A thread reads the clock, and sleeps before it searches its key. The key's absence says nothing about the time that
/// the thread has read.
#[test]
fn missing_keys_are_charged_as_of_now() {
    let table = table();
    let decision = table.check(7, 1, Tick::from_count(5), || Tick::from_count(EPOCH / 2));
    let PaidAt { tick, .. } = decision.receipt().read().unwrap();
    assert_eq!(tick, EPOCH / 2 + table.bucket.capacity());
    assert!(!ask(&table, table.bucket.capacity() + 5, 0), "paid half an epoch too early");
    table.check_invariants(table.bucket.capacity() + 5);
}

/// A thread reads the clock, and sleeps until the overflow slot has been charged by others, and cleared.
#[test]
fn cleared_overflow_slots_charge_as_of_now() {
    let table = Buckets::new(&Quota::per_day(1).burst(64), 64, WhenFull::Overflow);
    table.ensure_swept(&table.bucket, (table.pages.len() - 1) * SETS_PER_PAGE, Tick::from_count(EPOCH + 7));
    let Judged { at, .. } = table.charge_overflow(&table.bucket, Tag::from_hash(7), Tick::from_count(5), 1);
    assert_eq!(at.count, EPOCH);
    let Judged { at, .. } = table.charge_overflow(&table.bucket, Tag::from_hash(7), Tick::from_count(EPOCH + 9), 1);
    assert_eq!(at.count, EPOCH + 9);
    table.check_invariants(EPOCH + 9);
}

#[test]
fn warns_before_a_key_is_lost() {
    const CAPACITY: u32 = 100_000;
    let table = Buckets::new(&Quota::per_day(1), CAPACITY as usize, WhenFull::EvictLeast);
    let arrive = |n: u32| {
        // Drawn like a hash (the finaliser of SplitMix64).
        let hash = u64::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        let _ = table.check(hash ^ hash >> 31, 1, Tick::from_count(5), || Tick::from_count(5));
    };
    (1..=CAPACITY).for_each(arrive);
    assert!(!table.occupancy.has_warned(), "it is at most half full");
    (CAPACITY + 1..=CAPACITY * 5 / 4).for_each(arrive);
    assert!(table.occupancy.has_warned());
    assert_eq!(table.occupancy.evicted(), 0);
}

/// A thread sleeps between search and write. The page has been swept, so its word must not look like a debt sixteen
/// epochs later.
#[test]
fn a_late_word_is_taken_back() {
    let table = table();
    let candidates = table.candidates(7);
    let set = candidates.sets[0];
    let slot = table.slots.in_set(set).next().unwrap();
    let read = Epochs::swept(0);
    let tat = 5 + table.bucket.capacity();
    // Another thread sweeps meanwhile.
    table.ensure_swept(&table.bucket, set, Tick::from_count(40 * EPOCH));
    slot.replace(Word::EMPTY, Word::new(candidates.tag, tat)).unwrap();
    validate(&table.bucket, slot, table.page(set), candidates.tag, tat, read);
    assert!(slot.load().is_empty());
    // A debt that is still owed stays.
    let tat = 41 * EPOCH;
    slot.replace(Word::EMPTY, Word::new(candidates.tag, tat)).unwrap();
    validate(&table.bucket, slot, table.page(set), candidates.tag, tat, read);
    assert!(!slot.load().is_empty());
    table.check_invariants(40 * EPOCH);
}

#[test]
fn sweeps_withstand_the_counterexamples() {
    each("src/store/memory/table/sweep.rs: SetAssociativeTable::sweep", |case| {
        let table = table();
        let charged_at = case.number("charged_at");
        assert!(ask(&table, charged_at, charged_at));
        let candidates = table.candidates(7);
        let read_at = Tick::from_count(case.number("read_at"));
        table.ensure_candidates_swept(&table.bucket, &candidates, read_at);
        let found = candidates.sets.into_iter().find_map(|set| table.find_in(set, candidates.tag));
        [("owed", found.map_or(0, |(_, word)| table.bucket.owed(word, read_at).into()))]
    });
}
