//! The table for buckets: one word per key, decided and charged by one compare-and-swap.
//!
//! # Layout
//!
//! Words stand in **lines** of eight, one cache line each. A key has two homes, and is in one of them
//! or nowhere. A new key goes to the home with more free slots; a slot whose debt is paid is as free as
//! an empty one. 64 lines are a **page** of 4 KiB, with an epoch of its own in a small array beside.
//!
//! # Order of things
//!
//! 1. *A key is in one slot at most.* Only who holds the lock of its tag puts a key into a slot, having
//!    looked through both homes under it. Without the lock, two threads that meet a fresh key could put
//!    it into two slots, and admit it twice. Whoever finds the key needs no lock.
//! 2. *What is written was decided on what is replaced.* All writes to a word are compare-and-swaps from
//!    the value that was judged, tag and time together; whoever loses starts over.
//! 3. *A refusal writes nothing.*
//!
//! # Time goes round
//!
//! A word holds 36 bits of time, and a debt has at most 34. So a debt can be told from what was paid up to
//! nine epochs of 2^32 ticks ago; what is older could look like a debt again. Therefore a page that is
//! touched for the first time in an epoch is gone through first, and what was paid before the epoch began
//! is cleared: 512 words, about a microsecond, once in 2^32 ticks (at ten per second and a burst of 20, in
//! 1.6 seconds). If five epochs have passed untouched, everything in it is paid, whatever it looks like. A page
//! that nobody touches costs nothing, and there is no pass over the table.
//!
//! A thread may be held up anywhere, for longer than an epoch, and go by a reading of the clock that is
//! old. So:
//!
//! - a word is read between two readings of its page's epoch that agree, and judged no earlier than at the
//!   beginning of that epoch but one ([`Epochs::clamp`]): somebody has read that time, so it has come;
//! - who goes through a page says so first, and who has written looks afterwards whether somebody said so
//!   meanwhile. Either the word is seen by who goes through the page, or its writer takes it back if it was
//!   paid by then ([`CompactTable::mend`]);
//! - a key that is not found was paid when it was looked for, and not at an earlier reading of the clock: so
//!   that is read again before it is put into a slot.
//!
//! What remains: if a thread is held up for nine epochs between judging an empty slot and writing to it, the
//! key that it writes may look indebted to others in the instants until it takes the word back.

use super::ticks::{Ruling, Tick, TickBucket};
use super::word::{Tag, Word};
use super::{Pressure, WhenFull};
use crate::decision::{Decision, Receipt};
use crate::sync::{AtomicU64, Mutex, Ordering};

/// Slots per line: with a choice of two, a half-full table then loses no key. A study of layouts lost
/// 0 of 10⁶ keys at half load, where lines of four lost 0.2 % of arrivals.
const SLOTS: usize = if cfg!(sluice_loom) { 2 } else { 8 };

/// Lines per page: as much memory as the system hands out at a time.
const LINES_PER_PAGE: usize = if cfg!(sluice_loom) { 2 } else { 64 };
const PAGE: usize = SLOTS * LINES_PER_PAGE;

/// Locks for first touches; more than a machine has threads, so that two rarely meet.
const STRIPES: u64 = if cfg!(sluice_loom) { 2 } else { 256 };

const EPOCH_BITS: u32 = 32;

/// From this many epochs on, nothing in an untouched page can be owed any more: what is in it was
/// written in the page's epoch at the latest, and a debt is at most four epochs long.
const ALL_PAID: u32 = 5;

pub(super) struct CompactTable {
    bucket: TickBucket,
    cells: Cells,
    lines: u64,
    /// For each page, its [`Epochs`].
    epochs: Box<[AtomicU64]>,
    first_touch: Box<[Mutex<()>]>,
    when_full: WhenFull,
    pressure: Pressure,
}

/// Where a key may be.
#[derive(Clone, Copy)]
struct Homes {
    tag: Tag,
    lines: [usize; 2],
}

impl CompactTable {
    /// Slots for `keys` keys at half load.
    pub(super) fn new(bucket: TickBucket, keys: usize, when_full: WhenFull) -> Self {
        // More would not fit into any memory, nor into the arithmetic of homes.
        let keys = keys.min(1 << 33);
        let lines = keys.saturating_mul(2).div_ceil(SLOTS).max(2);
        // The slots that new keys share when the table is full are one more page.
        let pages = lines.div_ceil(LINES_PER_PAGE) + usize::from(when_full == WhenFull::Overflow);
        Self {
            bucket,
            cells: Cells::new(pages * PAGE),
            lines: lines as u64,
            epochs: (0..pages).map(|_| AtomicU64::new(0)).collect(),
            first_touch: (0..STRIPES).map(|_| Mutex::new(())).collect(),
            when_full,
            pressure: Pressure::default(),
        }
    }

    pub(super) const fn pressure(&self) -> &Pressure {
        &self.pressure
    }

    pub(super) fn size_in_bytes(&self) -> usize {
        self.cells.size_in_bytes() + size_of_val(&*self.epochs) + size_of_val(&*self.first_touch)
    }

    /// Decides, and charges what is admitted. `clock` reads the time anew, for a key that is not found.
    #[inline]
    pub(super) fn check(&self, hash: u64, cost: u32, now: Tick, clock: impl Fn(&TickBucket) -> Tick) -> Decision {
        let homes = self.homes(hash);
        for line in homes.lines {
            self.freshen(line, now);
            if let Some(cell) = self.find_in(line, homes.tag) {
                if let Some((ruling, at)) = self.charge(cell, homes.tag, Occupied::Only, now, cost) {
                    return self.bucket.decision(ruling, at);
                }
            }
        }
        let (ruling, at) = self.first_touch(hash, &homes, cost, &clock);
        self.bucket.decision(ruling, at)
    }

    pub(super) const fn bucket(&self) -> &TickBucket {
        &self.bucket
    }

    /// What [`check`](Self::check) would decide, if there is room for the key.
    pub(super) fn peek(&self, hash: u64, cost: u32, now: Tick) -> Decision {
        let homes = self.homes(hash);
        self.freshen_homes(&homes, now);
        let found = self.find(&homes).map(|cell| self.read(cell, now)).filter(|(word, ..)| word.is(homes.tag));
        let (debt, at) = found.map_or((0, now), |(word, _, at)| (word.debt(at.count), at));
        self.bucket.decision(self.bucket.judge(debt, cost), at)
    }

    /// Gives back what is still owed for a charge; see [`Gcra`](crate::algorithm::gcra::Gcra).
    pub(super) fn give_back(&self, hash: u64, cost: u32, receipt: Receipt, now: Tick) {
        let homes = self.homes(hash);
        self.freshen_homes(&homes, now);
        let Some(cell) = self.find(&homes) else { return };
        let paid_at = u64::try_from(receipt.value()).unwrap_or(u64::MAX);
        loop {
            let (word, epochs, at) = self.read(cell, now);
            if !word.is(homes.tag) {
                return;
            }
            let debt = word.debt(at.count);
            let back = paid_at.saturating_sub(at.count).min(self.bucket.price(cost)).min(debt);
            if back == 0 {
                return;
            }
            let tat = at.count + (debt - back);
            if self.cells.replace(cell, word, Word::new(homes.tag, tat)).is_ok() {
                self.mend(cell, homes.tag, tat, epochs);
                return;
            }
        }
    }

    /// The first home is drawn from the upper half of the hash, the tag from the lower 28 bits, and the
    /// second home from the first and the tag. So no bit is used twice, and two keys with the same tag
    /// and a home in common are met with a probability of 2^-28 per slot.
    fn homes(&self, hash: u64) -> Homes {
        #[allow(clippy::cast_possible_truncation)]
        let scale = |bits: u64, count: u64| ((bits * count) >> 32) as usize;
        let tag = Tag::from_hash(hash);
        let first = scale(hash >> 32, self.lines);
        let mixed = tag.value().wrapping_mul(0x9e37_79b1) & 0xffff_ffff;
        let second = first + 1 + scale(mixed, self.lines - 1);
        let count = usize::try_from(self.lines).expect("it was one");
        Homes { tag, lines: [first, if second < count { second } else { second - count }] }
    }

    fn find(&self, homes: &Homes) -> Option<usize> {
        homes.lines.into_iter().find_map(|line| self.find_in(line, homes.tag))
    }

    #[inline]
    fn find_in(&self, line: usize, tag: Tag) -> Option<usize> {
        let is_there = |cell: &AtomicU64| Word::from_bits(cell.load(Ordering::Acquire)).is(tag);
        self.cells.line(line).iter().position(is_there).map(|slot| line * SLOTS + slot)
    }

    /// Decides on a key in its slot, and says as of when; `None` if it is not there any more.
    #[inline(always)]
    fn charge(&self, cell: usize, tag: Tag, occupied: Occupied, now: Tick, cost: u32) -> Option<(Ruling, Tick)> {
        loop {
            let (word, epochs, at) = self.read(cell, now);
            let is_ours = word.is(tag) || (occupied == Occupied::OrEmpty && word.is_empty());
            if !is_ours {
                return None;
            }
            let ruling = self.bucket.judge(word.debt(at.count), cost);
            let Ruling::Admit { debt } = ruling else { return Some((ruling, at)) };
            let tat = at.count + debt;
            if self.cells.replace(cell, word, Word::new(tag, tat)).is_ok() {
                self.mend(cell, tag, tat, epochs);
                return Some((ruling, at));
            }
        }
    }

    /// A word, with the epochs of its page at that moment, and the time as of which to judge it.
    #[inline(always)]
    fn read(&self, cell: usize, now: Tick) -> (Word, Epochs, Tick) {
        let page = &self.epochs[cell / PAGE];
        let mut epochs = Epochs(page.load(Ordering::SeqCst));
        loop {
            let word = self.cells.load(cell);
            let after = Epochs(page.load(Ordering::SeqCst));
            if after == epochs {
                return (word, epochs, epochs.clamp(now));
            }
            epochs = after;
        }
    }

    /// Decides on a key that was not found, and puts it into a slot.
    #[cold]
    #[inline(never)]
    fn first_touch(&self, hash: u64, homes: &Homes, cost: u32, clock: &impl Fn(&TickBucket) -> Tick) -> (Ruling, Tick) {
        let stripe = usize::try_from(homes.tag.value() % STRIPES).expect("below the number of stripes");
        // The lock guards no data that a panic could leave in disorder.
        let _first = self.first_touch[stripe].lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        loop {
            // Somebody else may have been first. If nobody is there now, nothing is owed by now.
            let found = self.find(homes);
            let now = clock(&self.bucket);
            self.freshen_homes(homes, now);
            if let Some(cell) = found {
                if let Some(ruled) = self.charge(cell, homes.tag, Occupied::Only, now, cost) {
                    return ruled;
                }
                continue;
            }
            let ruling = self.bucket.judge(0, cost);
            let Ruling::Admit { debt } = ruling else { return (ruling, now) };
            let place = self.place(homes, now);
            self.pressure.note_arrival(hash, place.free);
            if place.free == 0 {
                match self.when_full {
                    WhenFull::ForgetLeast => {}
                    WhenFull::Refuse => return (self.refuse(place.debt), place.at),
                    WhenFull::Overflow => return self.overflow(hash, now, cost),
                }
            }
            let tat = place.at.count + debt;
            if self.cells.replace(place.cell, place.word, Word::new(homes.tag, tat)).is_ok() {
                if place.free == 0 {
                    self.pressure.note_evicted();
                }
                self.mend(place.cell, homes.tag, tat, place.epochs);
                return (ruling, place.at);
            }
        }
    }

    /// The slot for a new key: a free one of the emptier home, or else that of the key that owes least.
    fn place(&self, homes: &Homes, now: Tick) -> Place {
        let [a, b] = homes.lines.map(|line| {
            let slots = (line * SLOTS..(line + 1) * SLOTS).map(|cell| {
                let (word, epochs, at) = self.read(cell, now);
                Place { cell, word, epochs, at, debt: word.debt(at.count), free: 0 }
            });
            let mut free = 0;
            let least = slots.inspect(|slot| free += usize::from(slot.debt == 0)).min_by_key(|slot| slot.debt);
            Place { free, ..least.expect("a line has slots") }
        });
        // More free slots first; of two full lines, the one with the least debt.
        if (b.free, a.debt) > (a.free, b.debt) { b } else { a }
    }

    /// The table is full, and nobody is to be forgotten: come back when the first slot is free.
    fn refuse(&self, least_debt: u64) -> Ruling {
        self.pressure.note_turned_away();
        // As if the newcomer owed all that can be owed.
        Ruling::Refuse { debt: self.bucket.capacity(), wait: least_debt }
    }

    /// The table is full, and nobody is to be forgotten: new keys share what the extra page has.
    fn overflow(&self, hash: u64, now: Tick, cost: u32) -> (Ruling, Tick) {
        self.pressure.note_turned_away();
        let page = self.epochs.len() - 1;
        self.freshen(page * LINES_PER_PAGE, now);
        let slot = usize::try_from((hash >> 32) % PAGE as u64).expect("below a page");
        let ruled = self.charge(page * PAGE + slot, Tag::from_hash(0), Occupied::OrEmpty, now, cost);
        ruled.expect("all who use this page use one tag")
    }

    fn freshen_homes(&self, homes: &Homes, now: Tick) {
        for line in homes.lines {
            self.freshen(line, now);
        }
    }

    /// Sees to it that the page of a line has been gone through in the epoch of `now`, or a later one.
    #[inline]
    fn freshen(&self, line: usize, now: Tick) {
        let page = line / LINES_PER_PAGE;
        let epochs = Epochs(self.epochs[page].load(Ordering::SeqCst));
        if !epochs.is_settled() || epochs.latest() < epoch_of(now) {
            self.renew(page, epoch_of(now));
        }
    }

    /// Clears what was paid before the present epoch.
    ///
    /// Any number of threads may do so at once, and each can finish for the others: what is cleared follows from
    /// the two epochs that the first has written, not from anybody's clock. Each reads a word first, and then
    /// makes sure that the page is still being gone through: whoever writes a new debt has seen it
    /// settled, so a word that was read before that is an old one, and only that very word is cleared.
    #[cold]
    #[inline(never)]
    fn renew(&self, page: usize, present: u32) {
        loop {
            let epochs = Epochs(self.epochs[page].load(Ordering::SeqCst));
            if epochs.is_settled() && epochs.latest() >= present {
                return;
            }
            if epochs.is_settled() {
                let begun = Epochs::renewing(epochs.latest(), present);
                let _ = self.swap_epochs(page, epochs, begun);
                continue;
            }
            let all_paid = epochs.latest() - epochs.before() >= ALL_PAID;
            let begins = u64::from(epochs.latest()) << EPOCH_BITS;
            let mut is_overtaken = false;
            for cell in page * PAGE..(page + 1) * PAGE {
                let word = self.cells.load(cell);
                if word.is_empty() || (!all_paid && word.debt(begins) > 0) {
                    continue;
                }
                if self.epochs[page].load(Ordering::SeqCst) != epochs.0 {
                    is_overtaken = true;
                    break;
                }
                // Lost to a charge, or to another who clears: either way it is dealt with.
                let _ = self.cells.replace(cell, word, Word::EMPTY);
            }
            if !is_overtaken {
                let _ = self.swap_epochs(page, epochs, Epochs::renewing(epochs.latest(), epochs.latest()));
            }
        }
    }

    fn swap_epochs(&self, page: usize, old: Epochs, new: Epochs) -> Result<u64, u64> {
        self.epochs[page].compare_exchange(old.0, new.0, Ordering::SeqCst, Ordering::SeqCst)
    }

    /// Takes back a word that was written too late: if the page has begun to be gone through since `read` it
    /// was judged, and the debt was paid before the new epoch began, nobody may have seen to it.
    #[inline]
    fn mend(&self, cell: usize, tag: Tag, tat: u64, read: Epochs) {
        let epochs = Epochs(self.epochs[cell / PAGE].load(Ordering::SeqCst));
        if epochs != read && tat <= u64::from(epochs.latest()) << EPOCH_BITS {
            // If it has been charged again since, its time is new.
            let _ = self.cells.replace(cell, Word::new(tag, tat), Word::EMPTY);
        }
    }
}

/// The epoch up to which a page has been gone through, twice; or, while somebody goes through it, the one
/// before and the one to come.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Epochs(u64);

impl Epochs {
    const fn renewing(old: u32, new: u32) -> Self {
        Self((old as u64) << u32::BITS | new as u64)
    }

    #[allow(clippy::cast_possible_truncation)]
    const fn latest(self) -> u32 {
        self.0 as u32
    }

    #[allow(clippy::cast_possible_truncation)]
    const fn before(self) -> u32 {
        (self.0 >> u32::BITS) as u32
    }

    const fn is_settled(self) -> bool {
        self.before() == self.latest()
    }

    /// The time as of which to judge a word of this page: `now`, unless that is so old that distances from
    /// it could not be told. What is in the page is paid less than six epochs after its last one began.
    #[inline(always)]
    fn clamp(self, now: Tick) -> Tick {
        if self.latest() <= epoch_of(now) + 1 { now } else { Tick::at(u64::from(self.latest()) << EPOCH_BITS) }
    }
}

/// Whether a slot must hold the key already, to be charged.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Occupied {
    Only,
    OrEmpty,
}

#[cfg(all(test, sluice_loom))]
impl CompactTable {
    /// In how many slots a key is.
    pub(super) fn copies(&self, hash: u64) -> usize {
        let homes = self.homes(hash);
        let cells = homes.lines.into_iter().flat_map(|line| self.cells.line(line));
        cells.filter(|cell| Word::from_bits(cell.load(Ordering::Acquire)).is(homes.tag)).count()
    }
}

/// Where a new key goes, and what it replaces.
#[derive(Clone, Copy)]
struct Place {
    cell: usize,
    word: Word,
    epochs: Epochs,
    at: Tick,
    debt: u64,
    /// Free slots in its line.
    free: usize,
}

fn epoch_of(now: Tick) -> u32 {
    u32::try_from(now.count >> EPOCH_BITS).expect("64 bits less 32")
}

/// The words, in lines that each begin at a cache line.
struct Cells {
    words: Box<[AtomicU64]>,
    first: usize,
}

impl Cells {
    #[cfg(not(sluice_loom))]
    fn new(count: usize) -> Self {
        const SYSTEM_PAGE: usize = 4096;
        let word = size_of::<AtomicU64>();
        // Zeroed by the system when they are first touched: an idle table takes no memory. With a page
        // to spare, so that ours begin where the system's do.
        let words = bytemuck::allocation::zeroed_slice_box::<AtomicU64>(count + SYSTEM_PAGE / word);
        let first = words.as_ptr().addr().wrapping_neg() % SYSTEM_PAGE / word;
        Self { words, first }
    }

    #[cfg(sluice_loom)]
    fn new(count: usize) -> Self {
        Self { words: (0..count).map(|_| AtomicU64::new(0)).collect(), first: 0 }
    }

    fn size_in_bytes(&self) -> usize {
        size_of_val(&*self.words)
    }

    #[inline]
    fn line(&self, line: usize) -> &[AtomicU64] {
        let start = self.first + line * SLOTS;
        &self.words[start..start + SLOTS]
    }

    #[inline]
    fn load(&self, cell: usize) -> Word {
        Word::from_bits(self.words[self.first + cell].load(Ordering::Acquire))
    }

    /// Writes `new` if `old` is still there; else tells what is.
    #[inline]
    fn replace(&self, cell: usize, old: Word, new: Word) -> Result<(), Word> {
        let swapped =
            self.words[self.first + cell].compare_exchange(old.bits(), new.bits(), Ordering::SeqCst, Ordering::Acquire);
        swapped.map(|_| ()).map_err(Word::from_bits)
    }
}

#[cfg(all(test, not(sluice_loom)))]
mod tests {
    use super::*;
    use crate::quota::Quota;

    const EPOCH: u64 = 1 << EPOCH_BITS;

    fn table() -> CompactTable {
        let bucket = TickBucket::new(&Quota::per_day(1).burst(1)).unwrap();
        CompactTable::new(bucket, 64, WhenFull::ForgetLeast)
    }

    fn ask(table: &CompactTable, read: u64, really: u64) -> bool {
        table.check(7, 1, Tick::at(read), |_| Tick::at(really)).is_allowed()
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
                table.give_back(7, 1, Receipt::new(u128::from(5 + table.bucket.capacity())), Tick::at(5));
                assert!(!ask(&table, late + 3, late + 3), "{sleep} epochs late, it was given back");
            }
        }
    }

    /// The clock may be set back as far as it likes.
    #[test]
    fn a_clock_that_is_set_back_neither_hangs_nor_admits_more() {
        for back in [EPOCH / 2, EPOCH, 2 * EPOCH, 3 * EPOCH, 7 * EPOCH, 9 * EPOCH, 20 * EPOCH] {
            let table = table();
            let now = 20 * EPOCH;
            assert!(ask(&table, now, now));
            assert!(!ask(&table, now - back, now - back), "{back} ticks");
            assert!(!ask(&table, now, now));
            // Another key is judged, too.
            assert!(table.check(8 << 40 | 8, 1, Tick::at(now - back), |_| Tick::at(now - back)).is_allowed());
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

    /// It sleeps between looking and writing: the page has been cleared, and the word that it writes then
    /// must not look like a debt when time has gone round.
    #[test]
    fn a_word_that_is_written_late_is_taken_back() {
        let table = table();
        let homes = table.homes(7);
        let cell = homes.lines[0] * SLOTS;
        let (read, tat) = (Epochs(0), 5 + table.bucket.capacity());
        // What another did meanwhile.
        table.freshen(homes.lines[0], Tick::at(40 * EPOCH));
        table.cells.replace(cell, Word::EMPTY, Word::new(homes.tag, tat)).unwrap();
        table.mend(cell, homes.tag, tat, read);
        assert!(table.cells.load(cell).is_empty());
        // A debt that is still owed stays.
        let tat = 41 * EPOCH;
        table.cells.replace(cell, Word::EMPTY, Word::new(homes.tag, tat)).unwrap();
        table.mend(cell, homes.tag, tat, read);
        assert!(!table.cells.load(cell).is_empty());
    }
}
