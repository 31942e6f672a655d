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
//! 12.8 seconds). If five epochs have passed untouched, everything in it is paid, whatever it looks like. A page
//! that nobody touches costs nothing, and there is no pass over the table.
//!
//! A thread may be held up anywhere, for longer than an epoch, and go by a reading of the clock that is
//! old. So:
//!
//! - a word is read between two readings of its page's epoch that agree, and judged no earlier than at the
//!   beginning of the epoch before ([`Epochs::clamp`]): a thread has read a later time, so it has come;
//! - who goes through a page says so first, and who has written looks afterwards whether somebody said so
//!   meanwhile. Either the word is seen by who goes through the page, or its writer takes it back if it was
//!   paid by then ([`mend`]);
//! - a key that is not found was paid when it was looked for, and not at an earlier reading of the clock: so
//!   that is read again before it is put into a slot.
//!
//! # A clock that is set back
//!
//! Keys are judged by its time, but no earlier than the epoch before the latest of their pages; waits are counted from the
//! clock's own time to that one, and on. So a key is admitted no more than its burst, and what comes in while the clock goes
//! forward, and waits are true. The price is availability: one reading far ahead, by a single thread, stops the keys of
//! the pages that it touched (512 slots each, two at most per request) until the clock catches up, for they cannot
//! be told from keys that spent something at that time.
//!
//! # Inherited debts
//!
//! After a live change a key may owe something from before it, which its owner keeps beside the table ([`Past`]). A key that
//! is not found is looked up there under its stripe's lock, and its debt is inserted before anything is decided. So
//! keys that are found, the common case, pay nothing for it.
//!
//! # What remains
//!
//! If a thread is held up for nine epochs between judging a slot and writing to it, the key that it
//! writes may look indebted to others in the instants until it takes the word back; and if one of them is admitted
//! and charges on top of that in these instants, the false debt stays until it is paid, four epochs at most. So a
//! key may be rejected that should pass. The other way round takes a coincidence: that, a multiple of sixteen epochs after
//! it was judged, the slot holds the same word again, one of 2^36, when the thread compares it.

mod epochs;
mod forgive;

use self::epochs::{Epochs, Page, epoch_of, epoch_of_count};
use super::past::Geometry;
use super::slots::{LINES_PER_PAGE, PAGE, SLOTS, Slot, Slots, in_order};
use super::ticks::{DEBT_BITS, Ruling, Tick, TickBucket};
use super::word::{Tag, Word};
use super::{Pressure, WhenFull, census};
use crate::decision::Decision;
use crate::sync::Mutex;

/// Locks for first touches; more than a machine has threads, so that two rarely meet.
const STRIPES: u64 = if cfg!(sluice_loom) { 2 } else { 256 };

/// From this many epochs on, nothing in an untouched page can be owed any more: what is in it was
/// written in the page's epoch at the latest, and a debt is at most four epochs long.
const ALL_PAID: u32 = 5;

/// The tag of all keys in the slots that new keys share.
const SHARED: Tag = Tag::from_hash(0);

/// What keys of a table owe from before a live change. Asked for keys that the table does not have, under the lock of their
/// stripe.
pub(super) trait Past: Send + Sync {
    /// What a key owes, if anything.
    fn owed(&self, hash: u64, now: Tick) -> Option<u64>;

    /// Sets what a key owes that owes something.
    fn set_owed(&self, hash: u64, now: Tick, debt: Option<u64>);
}

pub(super) struct CompactTable {
    slots: Slots,
    lines: usize,
    pages: Box<[Page]>,
    first_touch: Box<[Mutex<()>]>,
    when_full: WhenFull,
    pressure: Pressure,
    past: Option<Box<dyn Past>>,
}

/// Where a key may be.
#[derive(Clone, Copy)]
struct Homes {
    tag: Tag,
    lines: [usize; 2],
}

impl CompactTable {
    /// Slots for `keys` keys at half load.
    pub(super) fn new(keys: usize, when_full: WhenFull) -> Self {
        let lines = keys.saturating_mul(2).div_ceil(SLOTS).max(2);
        // The slots that new keys share when the table is full are one more page.
        let pages = lines.div_ceil(LINES_PER_PAGE) + usize::from(when_full == WhenFull::Overflow);
        Self {
            slots: Slots::new(pages),
            lines,
            pages: (0..pages).map(|_| Page::default()).collect(),
            first_touch: (0..STRIPES).map(|_| Mutex::new(())).collect(),
            when_full,
            pressure: Pressure::new(),
            past: None,
        }
    }

    /// Its keys begin with what they owe there, and the budgets that new keys share with these debts at a tick. For a table
    /// that was not asked for anything yet.
    pub(super) fn inherit(&mut self, past: Box<dyn Past>, shared: impl Iterator<Item = u64>, since: u64) {
        self.past = Some(past);
        if self.when_full != WhenFull::Overflow {
            return;
        }
        let last = self.pages.len() - 1;
        // As of then; a page that is swept up to an earlier epoch would take them for paid.
        let _ = self.pages[last].replace(Epochs::settled(0), Epochs::settled(epoch_of_count(since)));
        for (slot, debt) in self.slots.page(last).zip(shared).filter(|(_, debt)| *debt > 0) {
            let _ = slot.replace(Word::EMPTY, Word::new(SHARED, since + debt));
        }
    }

    /// What is owed in each of the budgets that new keys share, if there are any.
    pub(super) fn shared_debts(&self, now: Tick) -> impl Iterator<Item = u64> + '_ {
        let shared = (self.when_full == WhenFull::Overflow).then(|| self.pages.len() - 1);
        shared.into_iter().flat_map(move |page| {
            self.slots.page(page).map(move |slot| {
                let (word, at) = self.read_only(page, slot, now);
                word.debt(at.count)
            })
        })
    }

    pub(super) const fn geometry(&self) -> Geometry {
        Geometry::Compact { lines: self.lines }
    }

    /// Calls `act` with the line in the page, the tag and the debt of each key in a page that owes something at `now`. Writes nothing, but
    /// that it finishes a sweep that is under way.
    pub(super) fn each_owed(&self, page: usize, now: Tick, mut act: impl FnMut(usize, Tag, u64)) {
        let epochs = self.pages[page].load();
        // Never touched, or not for long: all is paid, and its memory need not be read.
        if epochs.is_settled() && epoch_of(now).saturating_sub(epochs.latest()) >= ALL_PAID {
            return;
        }
        let first = page * LINES_PER_PAGE;
        for line in first..self.lines.min(first + LINES_PER_PAGE) {
            for slot in self.slots.line(line) {
                let (word, at) = self.read_only(page, slot, now);
                let debt = word.debt(at.count);
                if debt > 0 {
                    act(line - first, word.tag(), debt);
                }
            }
        }
    }

    /// A word as [`read`](Self::read) reads it, but that its page is not swept up to the present epoch. What is in it was owed when
    /// the page was swept last, less than [`ALL_PAID`] epochs ago, or it is empty: so debts can be told.
    fn read_only(&self, page: usize, slot: Slot<'_>, now: Tick) -> (Word, Tick) {
        loop {
            let epochs = self.pages[page].load();
            let epochs = if epochs.is_settled() { epochs } else { self.renew(page, 0) };
            let word = slot.load();
            if self.pages[page].load() == epochs {
                let is_old = epoch_of(now).saturating_sub(epochs.latest()) >= ALL_PAID;
                return (if is_old { Word::EMPTY } else { word }, epochs.clamp(now));
            }
        }
    }

    pub(super) const fn pressure(&self) -> &Pressure {
        &self.pressure
    }

    pub(super) fn size_in_bytes(&self) -> usize {
        self.slots.size_in_bytes() + size_of_val(&*self.pages) + size_of_val(&*self.first_touch)
    }

    /// Decides, and charges what is admitted. `clock` reads the time anew, for a key that is not found.
    #[inline(always)]
    pub(super) fn check(
        &self,
        bucket: &TickBucket,
        hash: u64,
        cost: u32,
        now: Tick,
        clock: impl Fn() -> Tick,
    ) -> Decision {
        let (ruling, at) = match self.rule(bucket, hash, cost, now, &clock) {
            (Ruling::Refuse { .. }, at) if at.count > now.count => self.rule_again(bucket, hash, cost, &clock),
            ruled => ruled,
        };
        bucket.decision(ruling, at)
    }

    /// After a reading of the clock that is too old to judge by: either this thread was descheduled since, and what it took
    /// for debts is paid by now; or the clock was set back, and shows the same again.
    #[cold]
    #[inline(never)]
    fn rule_again(&self, bucket: &TickBucket, hash: u64, cost: u32, clock: &impl Fn() -> Tick) -> (Ruling, Tick) {
        self.rule(bucket, hash, cost, clock(), clock)
    }

    #[inline(always)]
    fn rule(&self, bucket: &TickBucket, hash: u64, cost: u32, now: Tick, clock: &impl Fn() -> Tick) -> (Ruling, Tick) {
        let tag = Tag::from_hash(hash);
        let first = first_home(self.lines, hash);
        if let Some(ruled) = self.charge(bucket, first, now, tag, cost, || self.find_in(first, tag)) {
            return ruled;
        }
        let second = second_home(self.lines, first, tag);
        if let Some(ruled) = self.charge(bucket, second, now, tag, cost, || self.find_in(second, tag)) {
            return ruled;
        }
        self.first_touch(bucket, hash, &Homes { tag, lines: [first, second] }, cost, clock)
    }

    /// What [`check`](Self::check) would decide, if there is room for the key.
    pub(super) fn peek(&self, bucket: &TickBucket, hash: u64, cost: u32, now: Tick) -> Decision {
        let homes = self.homes(hash);
        self.freshen_homes(&homes, now);
        let (debt, at) = match self.debt_of(&homes, now) {
            Some(found) => found,
            None => self.debt_beside(hash, &homes, now),
        };
        bucket.decision(bucket.judge(debt, cost), at)
    }

    /// What a key owes that is in the table, and as of when.
    fn debt_of(&self, homes: &Homes, now: Tick) -> Option<(u64, Tick)> {
        let (line, slot) = self.find(homes)?;
        let (word, _, at) = self.read(line, slot, now);
        word.is(homes.tag).then(|| (word.debt(at.count), at))
    }

    /// What a key owes that is not in the table.
    #[cold]
    fn debt_beside(&self, hash: u64, homes: &Homes, now: Tick) -> (u64, Tick) {
        let Some(past) = &self.past else { return (self.shared_debt(hash, now), now) };
        // Or it could be inserted, and its inherited debt cleared, after it was looked for in the table.
        let _stripe = self.lock_stripe(homes.tag);
        self.debt_of(homes, now)
            .unwrap_or_else(|| (past.owed(hash, now).unwrap_or(0) + self.shared_debt(hash, now), now))
    }

    /// What a key owes for what it spent of a shared budget.
    fn shared_debt(&self, hash: u64, now: Tick) -> u64 {
        self.shared(hash).map_or(0, |(line, slot)| {
            let (word, _, at) = self.read(line, slot, now);
            // That may be as of a later time, if the clock was set back.
            (at.count + word.debt(at.count)).saturating_sub(now.count)
        })
    }

    /// How many keys owe something, estimated from some pages if there are many.
    pub(super) fn live(&self, now: Tick) -> u64 {
        let pages = self.lines.div_ceil(LINES_PER_PAGE);
        let looked_at = pages.min(census::LINES / LINES_PER_PAGE);
        let (mut live, mut seen) = (0, 0);
        for index in 0..looked_at {
            let first = index * pages / looked_at * LINES_PER_PAGE;
            for line in first..self.lines.min(first + LINES_PER_PAGE) {
                let owes = |slot: &Slot<'_>| {
                    let (word, _, at) = self.read(line, *slot, now);
                    word.debt(at.count) > 0
                };
                live += self.slots.line(line).filter(owes).count();
                seen += 1;
            }
        }
        census::extrapolate(live, seen, self.lines)
    }

    fn homes(&self, hash: u64) -> Homes {
        Homes { tag: Tag::from_hash(hash), lines: homes_among(self.lines, hash) }
    }

    /// The line and the slot that a key is in.
    fn find(&self, homes: &Homes) -> Option<(usize, Slot<'_>)> {
        homes.lines.into_iter().find_map(|line| self.find_in(line, homes.tag).map(|(slot, _)| (line, slot)))
    }

    #[inline(always)]
    fn find_in(&self, line: usize, tag: Tag) -> Option<(Slot<'_>, Word)> {
        self.slots.line(line).map(|slot| (slot, slot.load())).find(|(_, word)| word.is(tag))
    }

    /// Decides on a key in the slot of a line that `find` tells, and says as of when; `None` if it tells of
    /// none. A word is looked for between two readings of its page's epochs that agree.
    #[inline(always)]
    fn charge<'a>(
        &'a self,
        bucket: &TickBucket,
        line: usize,
        now: Tick,
        tag: Tag,
        cost: u32,
        find: impl Fn() -> Option<(Slot<'a>, Word)>,
    ) -> Option<(Ruling, Tick)> {
        let page = self.page(line);
        let (mut epochs, mut at) = (page.load(), now);
        if epochs != Epochs::settled(epoch_of(now)) {
            (epochs, at) = self.catch_up(line, now);
        }
        loop {
            let (slot, word) = find()?;
            if page.load() != epochs {
                (epochs, at) = self.catch_up(line, now);
                continue;
            }
            let ruling = bucket.judge(word.debt(at.count), cost);
            let Ruling::Admit { debt } = ruling else { return Some((ruling, at)) };
            let tat = at.count + debt;
            if slot.replace(word, Word::new(tag, tat)).is_ok() {
                mend(slot, page, tag, tat, epochs);
                return Some((ruling, at));
            }
        }
    }

    #[cold]
    fn catch_up(&self, line: usize, now: Tick) -> (Epochs, Tick) {
        let epochs = self.freshen(line, now);
        (epochs, epochs.clamp(now))
    }

    #[inline(always)]
    fn page(&self, line: usize) -> &Page {
        &self.pages[line / LINES_PER_PAGE]
    }

    /// A word, with the epochs of its page at that moment, and the time as of which to judge it.
    fn read(&self, line: usize, slot: Slot<'_>, now: Tick) -> (Word, Epochs, Tick) {
        loop {
            let epochs = self.freshen(line, now);
            let word = slot.load();
            if self.page(line).load() == epochs {
                return (word, epochs, epochs.clamp(now));
            }
        }
    }

    /// Decides on a key that was not found, and puts it into a slot.
    #[cold]
    #[inline(never)]
    fn first_touch(
        &self,
        bucket: &TickBucket,
        hash: u64,
        homes: &Homes,
        cost: u32,
        clock: &impl Fn() -> Tick,
    ) -> (Ruling, Tick) {
        let _stripe = self.lock_stripe(homes.tag);
        loop {
            // Somebody else may have been first. If nobody is there now, nothing is owed by now.
            let found = self.find(homes);
            let now = clock();
            self.freshen_homes(homes, now);
            if let Some((line, _)) = found {
                if let Some(ruled) = self.charge(bucket, line, now, homes.tag, cost, || self.find_in(line, homes.tag)) {
                    return ruled;
                }
                continue;
            }
            // What the key has spent of a shared budget it must not have once more.
            let mut owed = self.shared_debt(hash, now);
            if let Some(past) = &self.past
                && let Some(inherited) = past.owed(hash, now)
            {
                owed += inherited;
                if self.insert_debt(homes, now, owed) {
                    // Cleared after it was inserted: an heir that reads the past first, and then the table, finds it in
                    // one of them at least.
                    past.set_owed(hash, now, None);
                    continue;
                }
            }
            let ruling = bucket.judge(owed, cost);
            let Ruling::Admit { .. } = ruling else { return (ruling, now) };
            let place = self.place(homes, now);
            // That may be as of a later time, if the clock was set back.
            let debt = (now.count + owed).saturating_sub(place.at.count) + bucket.price(cost);
            self.pressure.note_arrival(hash, place.free);
            if place.free == 0 {
                match self.when_full {
                    WhenFull::ForgetLeast => {}
                    WhenFull::Refuse => return (self.refuse(bucket, place.debt), place.at),
                    WhenFull::Overflow => return self.overflow(bucket, hash, now, cost),
                }
            }
            let tat = place.at.count + debt;
            if place.slot.replace(place.word, Word::new(homes.tag, tat)).is_ok() {
                if place.free == 0 {
                    self.pressure.note_evicted();
                }
                mend(place.slot, self.page(place.line), homes.tag, tat, place.epochs);
                return (Ruling::Admit { debt }, place.at);
            }
        }
    }

    /// Puts a key with a debt into a slot; `false` if there is no room for it.
    fn insert_debt(&self, homes: &Homes, now: Tick, debt: u64) -> bool {
        loop {
            let place = self.place(homes, now);
            if place.free == 0 && self.when_full != WhenFull::ForgetLeast {
                return false;
            }
            let tat = place.at.count + debt.min(1 << DEBT_BITS);
            if place.slot.replace(place.word, Word::new(homes.tag, tat)).is_ok() {
                if place.free == 0 {
                    self.pressure.note_evicted();
                }
                mend(place.slot, self.page(place.line), homes.tag, tat, place.epochs);
                return true;
            }
        }
    }

    /// The slot for a new key: a free one of the emptier home, or else that of the key that owes least.
    fn place(&self, homes: &Homes, now: Tick) -> Place<'_> {
        let [a, b] = homes.lines.map(|line| {
            let slots = self.slots.line(line).map(|slot| {
                let (word, epochs, at) = self.read(line, slot, now);
                Place { line, slot, word, epochs, at, debt: word.debt(at.count), free: 0 }
            });
            let mut free = 0;
            let least = slots.inspect(|slot| free += usize::from(slot.debt == 0)).min_by_key(|slot| slot.debt);
            Place { free, ..least.expect("a line has slots") }
        });
        // More free slots first; of two full lines, the one with the least debt.
        if (b.free, a.debt) > (a.free, b.debt) { b } else { a }
    }

    /// The table is full, and nobody is to be forgotten: come back when the first slot is free.
    fn refuse(&self, bucket: &TickBucket, least_debt: u64) -> Ruling {
        self.pressure.note_turned_away();
        // As if the newcomer owed all that can be owed.
        Ruling::Refuse { debt: bucket.capacity(), wait: least_debt }
    }

    /// The table is full, and nobody is to be forgotten: new keys share what the extra page has.
    fn overflow(&self, bucket: &TickBucket, hash: u64, now: Tick, cost: u32) -> (Ruling, Tick) {
        self.pressure.note_turned_away();
        let (line, slot) = self.shared(hash).expect("it is made with the table");
        loop {
            let epochs = self.freshen(line, now);
            // If it is empty, its last debt may have been cleared since `now` was read: then it was paid by
            // the beginning of the page's epoch, and not before.
            let now = if now.count < epochs.begin() { now.moved_to(epochs.begin()) } else { now };
            let find = || (self.page(line).load() == epochs).then(|| (slot, slot.load()));
            if let Some(ruled) = self.charge(bucket, line, now, SHARED, cost, find) {
                return ruled;
            }
        }
    }

    /// The line and the slot that a new key shares with others when the table is full, if there is one.
    fn shared(&self, hash: u64) -> Option<(usize, Slot<'_>)> {
        if self.when_full != WhenFull::Overflow {
            return None;
        }
        let index = usize::try_from((hash >> 32) % PAGE as u64).expect("below a page");
        let line = (self.pages.len() - 1) * LINES_PER_PAGE + index / SLOTS;
        self.slots.line(line).nth(index % SLOTS).map(|slot| (line, slot))
    }

    /// To be held while a key that is not found is looked for again, and inserted.
    fn lock_stripe(&self, tag: Tag) -> impl Drop + '_ {
        let stripe = usize::try_from(tag.value() % STRIPES).expect("below the number of stripes");
        // It guards no data that a panic could leave in disorder.
        self.first_touch[stripe].lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn freshen_homes(&self, homes: &Homes, now: Tick) {
        for line in homes.lines {
            self.freshen(line, now);
        }
    }

    /// Sees to it that the page of a line has been gone through in the epoch of `now`, or a later one: that one
    /// is returned. Nothing in a page may be judged, or charged, while somebody goes through it: what he has
    /// not cleared yet may look like a debt, and he may clear what is charged meanwhile.
    #[inline]
    fn freshen(&self, line: usize, now: Tick) -> Epochs {
        let epochs = self.page(line).load();
        let is_fresh = epochs.is_settled() && epochs.latest() >= epoch_of(now);
        if is_fresh { epochs } else { self.renew(line / LINES_PER_PAGE, epoch_of(now)) }
    }

    /// Clears what was paid before the present epoch.
    ///
    /// Any number of threads may do so at once, and each can finish for the others: what is cleared follows from
    /// the two epochs that the first has written, not from anybody's clock. Each reads a word first, and then
    /// makes sure that the page is still being gone through: whoever writes a new debt has seen it
    /// settled, so a word that was read before that is an old one, and only that very word is cleared.
    #[cold]
    #[inline(never)]
    fn renew(&self, index: usize, present: u32) -> Epochs {
        let page = &self.pages[index];
        loop {
            let epochs = page.load();
            if epochs.is_settled() && epochs.latest() >= present {
                return epochs;
            }
            if epochs.is_settled() {
                let begun = Epochs::renewing(epochs.latest(), present);
                let _ = page.replace(epochs, begun);
                continue;
            }
            let all_paid = epochs.latest() - epochs.before() >= ALL_PAID;
            let begins = epochs.begin();
            let mut is_overtaken = false;
            for slot in self.slots.page(index) {
                let word = slot.load_in_order();
                if word.is_empty() || (!all_paid && word.debt(begins) > 0) {
                    continue;
                }
                if page.load() != epochs {
                    is_overtaken = true;
                    break;
                }
                // Lost to a charge, or to another who clears: either way it is dealt with.
                let _ = slot.replace(word, Word::EMPTY);
            }
            if !is_overtaken {
                let _ = page.replace(epochs, Epochs::settled(epochs.latest()));
            }
        }
    }
}

/// Takes back a word that was written too late: if the page has begun to be gone through since `read` it
/// was judged, and the debt was paid before the new epoch began, nobody may have seen to it.
#[inline(always)]
fn mend(slot: Slot<'_>, page: &Page, tag: Tag, tat: u64, read: Epochs) {
    in_order();
    let epochs = page.load();
    if epochs != read && tat <= epochs.begin() {
        // If it has been charged again since, its time is new.
        let _ = slot.replace(Word::new(tag, tat), Word::EMPTY);
    }
}

#[cfg(all(test, sluice_loom))]
impl CompactTable {
    /// In how many slots a key is.
    pub(super) fn copies(&self, hash: u64) -> usize {
        let homes = self.homes(hash);
        let slots = homes.lines.into_iter().flat_map(|line| self.slots.line(line));
        slots.filter(|slot| slot.load().is(homes.tag)).count()
    }
}

/// Where a new key goes, and what it replaces.
#[derive(Clone, Copy)]
struct Place<'a> {
    line: usize,
    slot: Slot<'a>,
    word: Word,
    epochs: Epochs,
    at: Tick,
    debt: u64,
    /// Free slots in its line.
    free: usize,
}

/// The lines in which a key may be, in a table of so many.
///
/// The first is drawn from the upper half of the hash, the tag from the lower 28 bits, and the second from the first and the
/// tag. So no bit is used twice, and two keys with the same tag and a line in common are met with a probability of 2^-28
/// per slot.
pub(super) const fn homes_among(lines: usize, hash: u64) -> [usize; 2] {
    let first = first_home(lines, hash);
    [first, second_home(lines, first, Tag::from_hash(hash))]
}

#[inline(always)]
const fn first_home(lines: usize, hash: u64) -> usize {
    scale(hash >> 32, lines)
}

#[inline(always)]
const fn second_home(lines: usize, first: usize, tag: Tag) -> usize {
    let mixed = tag.value().wrapping_mul(0x9e37_79b1) & 0xffff_ffff;
    let second = first + 1 + scale(mixed, lines - 1);
    if second < lines { second } else { second - lines }
}

/// `count` times a fraction of 2^32.
#[allow(clippy::cast_possible_truncation)] // It is less than `count`.
const fn scale(fraction: u64, count: usize) -> usize {
    ((fraction * count as u64) >> 32) as usize
}

#[cfg(all(test, not(sluice_loom)))]
mod tests;
