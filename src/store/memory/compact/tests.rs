use super::*;
use crate::store::memory::ticks::{EPOCH_BITS, PaidAt, Tick, TickBucket};
use crate::values::Quota;

const EPOCH: u64 = 1 << EPOCH_BITS;

/// A table with the one quota that all judge by.
struct Buckets {
    table: CompactTable,
    bucket: TickBucket,
}

impl Buckets {
    fn new(quota: &Quota, keys: usize, when_full: WhenFull) -> Self {
        Self { table: CompactTable::new(keys, when_full), bucket: TickBucket::new(quota).unwrap() }
    }

    fn check(&self, hash: u64, cost: u32, now: Tick, clock: impl Fn() -> Tick) -> Decision {
        self.table.check(&self.bucket, hash, cost, now, clock)
    }
}

impl std::ops::Deref for Buckets {
    type Target = CompactTable;

    fn deref(&self) -> &CompactTable {
        &self.table
    }
}

fn table() -> Buckets {
    Buckets::new(&Quota::per_day(1).burst(1), 64, WhenFull::ForgetLeast)
}

fn ask(table: &Buckets, read: u64, really: u64) -> bool {
    table.check(7, 1, Tick::at(read), || Tick::at(really)).is_allowed()
}

/// A thread reads the clock, sleeps for some epochs, and then meets a debt that was made meanwhile. By its
/// own time that debt is so far ahead that it looks long paid.
#[test]
fn a_thread_that_comes_late_judges_by_the_time_that_others_have_read() {
    for sleep in [1, 2, 4, 8, 9, 12, 15, 16, 17, 40] {
        let table = table();
        let late = sleep * EPOCH;
        assert!(ask(&table, late, late));
        assert!(!ask(&table, 5, late + 1), "{sleep} epochs late");
        assert!(!ask(&table, late + 2, late + 2), "{sleep} epochs late, its debt is gone");
        // What it was charged itself, before it slept, was paid after four epochs.
        if sleep > 4 {
            table.give_back(&table.bucket, 7, 1, 5 + table.bucket.capacity(), Tick::at(5));
            assert!(!ask(&table, late + 3, late + 3), "{sleep} epochs late, it was given back");
        }
    }
}

/// The clock may be set back as far as it likes.
#[test]
fn a_clock_that_is_set_back_neither_hangs_nor_admits_more() {
    for back in [EPOCH / 2, EPOCH, 2 * EPOCH - 1, 2 * EPOCH, 3 * EPOCH, 7 * EPOCH, 9 * EPOCH, 20 * EPOCH] {
        let table = table();
        // The end of an epoch: seen from the beginning of the one before, the debt is almost six epochs long.
        let now = 21 * EPOCH - 1;
        assert!(ask(&table, now, now));
        assert!(!ask(&table, now - back, now - back), "{back} ticks");
        assert!(!ask(&table, now, now));
        // Another key is judged, too.
        assert!(table.check(8 << 40 | 8, 1, Tick::at(now - back), || Tick::at(now - back)).is_allowed());
    }
}

/// A debt that is owed for four epochs, met in each of them.
#[test]
fn debts_are_owed_from_epoch_to_epoch() {
    for step in [1, 2, 3, 4] {
        let table = table();
        assert!(ask(&table, 5, 5));
        let paid = 5 + table.bucket.capacity();
        let mut now = 5;
        while now + step * EPOCH < paid {
            now += step * EPOCH;
            assert!(!ask(&table, now, now), "{now} of {paid}");
        }
        assert!(!ask(&table, paid - 1, paid - 1));
        assert!(ask(&table, paid, paid));
    }
}

/// It comes upon a page that is just being gone through after a long time: what has not been cleared yet
/// may look like a debt, and what is charged before all is cleared would be cleared, too.
#[test]
fn a_page_that_is_being_gone_through_is_finished_first() {
    for sleep in [2, 4, 5, 9, 10, 12, 15, 16, 40] {
        let table = Buckets::new(&Quota::per_day(1).burst(2), 64, WhenFull::ForgetLeast);
        assert!(ask(&table, 5, 5));
        let (homes, first) = (table.homes(7), std::cell::Cell::new(true));
        let [line, _] = homes.lines;
        let index = line / LINES_PER_PAGE;
        let begun = Epochs::renewing(0, u32::try_from(sleep).unwrap());
        let ruled = table.charge(&table.bucket, Owner::own(homes.tag), 1, line, Tick::at(5), || {
            let found = table.find_in(line, homes.tag);
            if first.replace(false) {
                // Another begins, and is held up himself.
                table.pages[index].replace(Epochs::settled(0), begun).unwrap();
            }
            found
        });
        assert!(table.page(line).load().is_settled(), "{sleep} epochs late: judged what is not clear");
        let refused = matches!(ruled, Some((Ruling::Reject { .. } | Ruling::Never { .. }, _)));
        assert!(!refused, "{sleep} epochs late, refused for what was paid");
    }
}

/// It looked at the clock before it looked for its key, and slept in between. That the key is not there
/// says nothing of the time that it read.
#[test]
fn a_key_that_is_not_found_is_charged_as_of_now() {
    let table = table();
    let decision = table.check(7, 1, Tick::at(5), || Tick::at(EPOCH / 2));
    let PaidAt { tick, .. } = decision.receipt().read().unwrap();
    assert_eq!(tick, EPOCH / 2 + table.bucket.capacity());
    assert!(!ask(&table, table.bucket.capacity() + 5, 0), "paid half an epoch too early");
}

/// It reads the clock, and sleeps until the slot that newcomers share has been charged by others, and cleared.
#[test]
fn a_shared_slot_that_was_cleared_is_not_charged_as_of_before() {
    let table = Buckets::new(&Quota::per_day(1).burst(64), 64, WhenFull::Overflow);
    table.freshen(&table.bucket, (table.pages.len() - 1) * LINES_PER_PAGE, Tick::at(EPOCH + 7));
    let (_, at) = table.overflow(&table.bucket, Tag::from_hash(7), Tick::at(5), 1);
    assert_eq!(at.count, EPOCH);
    let (_, at) = table.overflow(&table.bucket, Tag::from_hash(7), Tick::at(EPOCH + 9), 1);
    assert_eq!(at.count, EPOCH + 9);
}

#[test]
fn warns_beyond_its_capacity_and_before_a_key_is_lost() {
    const CAPACITY: u64 = 100_000;
    let table = Buckets::new(&Quota::per_day(1), 100_000, WhenFull::ForgetLeast);
    let arrive = |n: u64| {
        // Drawn like a hash (the finaliser of SplitMix64).
        let hash = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        let _ = table.check(hash ^ hash >> 31, 1, Tick::at(5), || Tick::at(5));
    };
    (1..=CAPACITY).for_each(arrive);
    assert!(!table.pressure().has_warned(), "it is no more than half full");
    (CAPACITY + 1..=CAPACITY * 5 / 4).for_each(arrive);
    assert!(table.pressure().has_warned());
    assert_eq!(table.pressure().evicted(), 0);
}

/// It sleeps between looking and writing: the page has been cleared, and the word that it writes then
/// must not look like a debt when time has gone round.
#[test]
fn a_word_that_is_written_late_is_taken_back() {
    let table = table();
    let homes = table.homes(7);
    let line = homes.lines[0];
    let slot = table.slots.line(line).next().unwrap();
    let (read, tat) = (Epochs::settled(0), 5 + table.bucket.capacity());
    // What another did meanwhile.
    table.freshen(&table.bucket, line, Tick::at(40 * EPOCH));
    slot.replace(Word::EMPTY, Word::new(homes.tag, tat)).unwrap();
    mend(&table.bucket, slot, table.page(line), homes.tag, tat, read);
    assert!(slot.load().is_empty());
    // A debt that is still owed stays.
    let tat = 41 * EPOCH;
    slot.replace(Word::EMPTY, Word::new(homes.tag, tat)).unwrap();
    mend(&table.bucket, slot, table.page(line), homes.tag, tat, read);
    assert!(!slot.load().is_empty());
}
