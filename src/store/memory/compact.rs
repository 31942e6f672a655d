//! The table of words: one word per key, decided and charged by one compare-and-swap. What a word says is up to its
//! [`Rule`]: a bucket, a fixed window or a sliding one.
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
//! 3. *A rejection writes nothing.*
//!
//! # Time goes round
//!
//! A word holds 36 bits: the time at which a bucket's debt is paid, or the index of a window and its counts. Both go round
//! every sixteen **epochs**: of 2^32 ticks each for a bucket, of a power of two of windows for windows (`windows.rs`). A debt is
//! owed for four epochs at most. So it can be told from what was paid up to
//! nine epochs ago; what is older could look like a debt again. Therefore a page that is
//! touched for the first time in an epoch is swept first, and what was paid before the epoch began
//! is cleared: 512 words, about a microsecond, once in an epoch (at ten per second and a burst of 20, in
//! 12.8 seconds). If five epochs have passed untouched, everything in it is paid, whatever it looks like. A page
//! that nobody touches costs nothing, and there is no pass over the table.
//!
//! Where windows are staggered, the keys of a page have times of their own, all later than the clock's. Epochs are counted by the
//! clock: so what was paid when one began is paid by the time of every key.
//!
//! A thread may be descheduled anywhere, for longer than an epoch, and go by a reading of the clock that is
//! old. So:
//!
//! - a word is read between two readings of its page's epoch that agree, and judged no earlier than at the
//!   beginning of the epoch before ([`Rule::clamp`]): a thread has read a later time, so it has come;
//! - a sweeper marks the page before it scans it, like the writer of a seqlock, and a writer reads the page's epoch again
//!   after its compare-and-swap. Either the sweeper sees the word, or its writer takes it back if it was
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
//! What was paid when an epoch began, and was cleared, stays paid when the clock is set back to before that: a window that has
//! ended may begin anew so, once for each step of the clock into a new epoch.
//!
//! # Inherited debts
//!
//! After a live change a key may owe something from before it, which its owner keeps beside the table ([`Past`]). A key that
//! is not found is looked up there under its stripe's lock, and its debt is inserted before anything is decided. So
//! keys that are found, the common case, pay nothing for it.
//!
//! # What remains
//!
//! If a thread is descheduled for nine epochs between judging a slot and writing to it, the key that it
//! writes may look indebted to others in the instants until it takes the word back; and if one of them is admitted
//! and charges on top of that in these instants, the false debt stays until it is paid, four epochs at most. So a
//! key may be rejected that should pass.
//!
//! The other way round takes a coincidence: that, a multiple of sixteen epochs (69 seconds at least) after
//! it was judged, the slot holds the same word again when the thread compares it. For a bucket, that is one of 2^36. For a
//! window, its counts must be the same again, which small ones easily are, and its index, one of 16 at worst (limits of 16 bits) and one of
//! 2^22 for 100 per minute. Then what the thread charges or refunds is taken for that of the present window, or the key's
//! counts are cleared.

mod epochs;
mod forgive;

use self::epochs::{Epochs, Page};
use super::past::Geometry;
use super::rule::{Rule, Ruling};
use super::slots::{LINES_PER_PAGE, PAGE, SLOTS, Slot, Slots, in_order};
use super::word::{Tag, Word};
use super::{Pressure, WhenFull, census};
use crate::util::sync::Mutex;
use crate::values::Decision;

/// Locks for insertions: more than a machine has threads, so that two rarely meet; fewer in a table with fewer lines.
const STRIPES: usize = if cfg!(sluice_loom) { 2 } else { 256 };

/// A lock on a cache line of its own: whoever takes it slows nobody down who takes another.
#[derive(Default)]
#[repr(align(64))]
struct Stripe(Mutex<()>);

/// From this many epochs on, nothing in an untouched page can be owed any more: what is in it was
/// written in the page's epoch at the latest, and a debt is at most four epochs long.
const ALL_PAID: u32 = 5;

/// The tag of all keys in the slots that new keys share.
const SHARED: Tag = Tag::from_hash(0);

/// What keys of a table owe from before a live change. Asked for keys that the table does not have, under the lock of their
/// stripe.
pub(super) trait Past: Send + Sync {
    /// The [stamp](Rule::stamp) of what the key owes, in the table's own terms; zero if it owes nothing. `present` is the stamp
    /// of nothing.
    fn paid_at(&self, hash: u64, present: u64) -> u64;

    /// Replaces that; zero forgets it.
    fn set_paid_at(&self, hash: u64, stamp: u64);
}

pub(super) struct CompactTable {
    slots: Slots,
    lines: usize,
    pages: Box<[Page]>,
    stripes: Box<[Stripe]>,
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

/// A key's word, and as of when it is judged.
struct Found<'a, N> {
    slot: Slot<'a>,
    word: Word,
    epochs: Epochs,
    at: N,
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
            stripes: (0..lines.next_power_of_two().min(STRIPES)).map(|_| Stripe::default()).collect(),
            when_full,
            pressure: Pressure::new(),
            past: None,
        }
    }

    /// Its keys begin with what they owe there. For a table that was not asked for anything yet.
    pub(super) fn inherit(&mut self, past: Box<dyn Past>) {
        self.past = Some(past);
    }

    pub(super) const fn geometry(&self) -> Geometry {
        Geometry::Compact { lines: self.lines }
    }

    /// Sets what is owed in the budgets that new keys share, if there are any, by the stamps of that. For a table that was not asked for
    /// anything yet.
    pub(super) fn inherit_shared<R: Rule>(&self, rule: &R, now: R::Now, stamps: impl Iterator<Item = Option<u64>>) {
        let Some(page) = self.shared_page() else { return };
        // As of now: a page that was last swept in an earlier epoch would be swept first, and its words taken for old ones.
        let _ = self.pages[page].replace(Epochs::settled(0), Epochs::settled(rule.epoch(now)));
        for (slot, stamp) in self.slots.page(page).zip(stamps) {
            if let Some(stamp) = stamp {
                let _ = slot.replace(Word::EMPTY, Word::new(SHARED, stamp));
            }
        }
    }

    /// What is owed in each of these budgets.
    pub(super) fn shared_debts<R: Rule>(&self, rule: &R, now: R::Now) -> impl Iterator<Item = R::Debt> + '_ {
        let rule = *rule;
        self.shared_page().into_iter().flat_map(move |page| {
            self.slots.page(page).map(move |slot| {
                let (word, at) = self.read_only(&rule, page, slot, now);
                rule.owed(word, at)
            })
        })
    }

    fn shared_page(&self) -> Option<usize> {
        (self.when_full == WhenFull::Overflow).then(|| self.pages.len() - 1)
    }

    /// Calls `act` with the line in the page, the tag and the debt of each key in a page that owes something at `now`. Writes
    /// nothing, but that it finishes a sweep that is under way.
    pub(super) fn each_owed<R: Rule>(
        &self,
        rule: &R,
        page: usize,
        now: R::Now,
        mut act: impl FnMut(usize, Tag, R::Debt),
    ) {
        let epochs = self.pages[page].load();
        // Never touched, or not for long: all is paid, and its memory need not be read.
        if epochs.is_settled() && rule.epoch(now).saturating_sub(epochs.latest()) >= ALL_PAID {
            return;
        }
        let first = page * LINES_PER_PAGE;
        for line in first..self.lines.min(first + LINES_PER_PAGE) {
            for slot in self.slots.line(line) {
                let (word, at) = self.read_only(rule, page, slot, now);
                let debt = rule.owed(word, rule.of_key(at, word.tag()));
                if rule.size(debt) > 0 {
                    act(line - first, word.tag(), debt);
                }
            }
        }
    }

    /// A word as [`read`](Self::read) reads it, but that its page is not swept up to the present epoch. What is in it was owed when
    /// the page was swept last, less than [`ALL_PAID`] epochs ago, or it reads as empty: so debts can be told.
    fn read_only<R: Rule>(&self, rule: &R, page: usize, slot: Slot<'_>, now: R::Now) -> (Word, R::Now) {
        loop {
            let epochs = self.pages[page].load();
            let epochs = if epochs.is_settled() { epochs } else { self.renew(rule, page, 0) };
            let word = slot.load();
            // Else a sweep may have begun in between, and what was read may be older than it looks.
            if self.pages[page].load() == epochs {
                let is_old = rule.epoch(now).saturating_sub(epochs.latest()) >= ALL_PAID;
                return (if is_old { Word::EMPTY } else { word }, rule.clamp(now, epochs.earliest()));
            }
        }
    }

    pub(super) const fn pressure(&self) -> &Pressure {
        &self.pressure
    }

    pub(super) fn size_in_bytes(&self) -> usize {
        self.slots.size_in_bytes() + size_of_val(&*self.pages) + size_of_val(&*self.stripes)
    }

    /// Decides, and charges what is admitted. `clock` reads the time anew, for a key that is not found.
    #[inline(always)]
    pub(super) fn check<R: Rule>(
        &self,
        rule: &R,
        hash: u64,
        cost: u32,
        now: R::Now,
        clock: impl Fn() -> R::Now,
    ) -> Decision {
        let (ruling, at) = match self.judge(rule, hash, cost, now, &clock) {
            (ruling, at) if rule.is_late(&ruling, at) => self.judge_again(rule, hash, cost, &clock),
            judged => judged,
        };
        rule.decision(ruling, cost, at)
    }

    /// After a reading of the clock that is too old to judge by: either this thread was descheduled since, and what it took
    /// for debts is paid by now; or the clock was set back, and shows the same again.
    #[cold]
    #[inline(never)]
    fn judge_again<R: Rule>(&self, rule: &R, hash: u64, cost: u32, clock: &impl Fn() -> R::Now) -> Judged<R> {
        self.judge(rule, hash, cost, clock(), clock)
    }

    #[inline(always)]
    fn judge<R: Rule>(&self, rule: &R, hash: u64, cost: u32, now: R::Now, clock: &impl Fn() -> R::Now) -> Judged<R> {
        let tag = Tag::from_hash(hash);
        let owner = Owner::own(tag);
        let first = first_home(self.lines, hash);
        if let Some(judged) = self.charge(rule, owner, cost, first, now, || self.find_in(first, tag)) {
            return judged;
        }
        let second = second_home(self.lines, first, tag);
        if let Some(judged) = self.charge(rule, owner, cost, second, now, || self.find_in(second, tag)) {
            return judged;
        }
        self.first_touch(rule, hash, &Homes { tag, lines: [first, second] }, cost, clock)
    }

    /// What [`check`](Self::check) would decide, if there is room for the key.
    pub(super) fn peek<R: Rule>(&self, rule: &R, hash: u64, cost: u32, now: R::Now) -> Decision {
        let homes = self.homes(hash);
        let (debt, at) = match self.debt_of(rule, &homes, now) {
            Some(found) => found,
            None => self.debt_beside(rule, hash, &homes, now),
        };
        rule.decision(rule.judge(debt, cost, at), cost, at)
    }

    /// What a key owes that is in the table, and as of when.
    #[inline(always)]
    fn debt_of<R: Rule>(&self, rule: &R, homes: &Homes, now: R::Now) -> Option<(R::Debt, R::Now)> {
        homes.lines.into_iter().find_map(|line| {
            let Found { word, at, .. } = self.read_found(rule, line, now, &|| self.find_in(line, homes.tag))?;
            let at = rule.of_key(at, homes.tag);
            Some((rule.owed(word, at), at))
        })
    }

    /// What a key owes that is not in the table.
    #[cold]
    fn debt_beside<R: Rule>(&self, rule: &R, hash: u64, homes: &Homes, now: R::Now) -> (R::Debt, R::Now) {
        let at = rule.of_key(now, homes.tag);
        let Some(past) = &self.past else { return (self.shared_debt(rule, homes.tag, now), at) };
        // Or it could be inserted, and its inherited debt cleared, after it was looked for in the table.
        let _stripe = self.lock_stripe(homes.tag);
        self.debt_of(rule, homes, now).unwrap_or_else(|| {
            let inherited = rule.stamped(past.paid_at(hash, present(rule, now)), at);
            (rule.joined(inherited, self.shared_debt(rule, homes.tag, now)), at)
        })
    }

    /// What a key owes for what it spent of a shared budget.
    fn shared_debt<R: Rule>(&self, rule: &R, tag: Tag, now: R::Now) -> R::Debt {
        let own = rule.of_key(now, tag);
        let Some((line, slot)) = self.shared(tag) else { return rule.nothing(own) };
        let (word, _, at) = self.read(rule, line, slot, now);
        // That may be as of a later time, if the clock was set back.
        let at = rule.of_key(at, tag);
        rule.stamped(rule.stamp(rule.owed(word, at), at), own)
    }

    /// How many keys owe something, estimated from some pages if there are many.
    pub(super) fn live<R: Rule>(&self, rule: &R, now: R::Now) -> u64 {
        let pages = self.lines.div_ceil(LINES_PER_PAGE);
        let looked_at = pages.min(census::LINES / LINES_PER_PAGE);
        let (mut live, mut seen) = (0, 0);
        for index in 0..looked_at {
            let first = index * pages / looked_at * LINES_PER_PAGE;
            for line in first..self.lines.min(first + LINES_PER_PAGE) {
                let owes = |slot: &Slot<'_>| {
                    let (word, _, at) = self.read(rule, line, *slot, now);
                    rule.size(rule.owed(word, rule.of_key(at, word.tag()))) > 0
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

    /// Decides on a key in the slot of a line that `find` returns, and says as of when; `None` if it returns none.
    #[inline(always)]
    fn charge<'a, R: Rule>(
        &'a self,
        rule: &R,
        owner: Owner,
        cost: u32,
        line: usize,
        now: R::Now,
        find: impl Fn() -> Option<(Slot<'a>, Word)>,
    ) -> Option<Judged<R>> {
        loop {
            let Found { slot, word, epochs, at } = self.read_found(rule, line, now, &find)?;
            let at = rule.of_key(at, owner.key);
            let ruling = rule.judge(rule.owed(word, at), cost, at);
            let Ruling::Admit { debt } = ruling else { return Some((ruling, at)) };
            let stamp = rule.stamp(debt, at);
            if slot.replace(word, Word::new(owner.tag, stamp)).is_ok() {
                mend(rule, slot, self.page(line), owner.tag, stamp, epochs);
                return Some((ruling, at));
            }
        }
    }

    /// The word that `find` returns, looked for between two readings of its page's epochs that agree.
    #[inline(always)]
    fn read_found<'a, R: Rule>(
        &'a self,
        rule: &R,
        line: usize,
        now: R::Now,
        find: &impl Fn() -> Option<(Slot<'a>, Word)>,
    ) -> Option<Found<'a, R::Now>> {
        let page = self.page(line);
        let (mut epochs, mut at) = (page.load(), now);
        if epochs != Epochs::settled(rule.epoch(now)) {
            (epochs, at) = self.catch_up(rule, line, now);
        }
        loop {
            let (slot, word) = find()?;
            if page.load() == epochs {
                return Some(Found { slot, word, epochs, at });
            }
            (epochs, at) = self.catch_up(rule, line, now);
        }
    }

    #[cold]
    fn catch_up<R: Rule>(&self, rule: &R, line: usize, now: R::Now) -> (Epochs, R::Now) {
        let epochs = self.freshen(rule, line, now);
        (epochs, rule.clamp(now, epochs.earliest()))
    }

    #[inline(always)]
    fn page(&self, line: usize) -> &Page {
        &self.pages[line / LINES_PER_PAGE]
    }

    /// A word, with the epochs of its page at that moment, and the time as of which to judge it.
    fn read<R: Rule>(&self, rule: &R, line: usize, slot: Slot<'_>, now: R::Now) -> (Word, Epochs, R::Now) {
        loop {
            let epochs = self.freshen(rule, line, now);
            let word = slot.load();
            if self.page(line).load() == epochs {
                return (word, epochs, rule.clamp(now, epochs.earliest()));
            }
        }
    }

    /// Decides on a key that was not found, and puts it into a slot.
    #[cold]
    #[inline(never)]
    fn first_touch<R: Rule>(
        &self,
        rule: &R,
        hash: u64,
        homes: &Homes,
        cost: u32,
        clock: &impl Fn() -> R::Now,
    ) -> Judged<R> {
        let tag = homes.tag;
        let _stripe = self.lock_stripe(tag);
        loop {
            // Another thread may have been first. If the key is not there now, nothing is owed by now.
            let found = self.find(homes);
            let now = clock();
            self.freshen_homes(rule, homes, now);
            if let Some((line, _)) = found {
                let find = || self.find_in(line, tag);
                if let Some(judged) = self.charge(rule, Owner::own(tag), cost, line, now, find) {
                    return judged;
                }
                continue;
            }
            let own = rule.of_key(now, tag);
            // What the key has spent of a shared budget it must not have once more.
            let mut owed = self.shared_debt(rule, tag, now);
            if let Some(past) = &self.past {
                let inherited = rule.stamped(past.paid_at(hash, present(rule, now)), own);
                if rule.size(inherited) > 0 {
                    owed = rule.joined(owed, inherited);
                    if self.insert_debt(rule, homes, now, owed) {
                        // Inserted before it is cleared: a successor that reads the past first, and then the table, finds
                        // it in one of them at least.
                        past.set_paid_at(hash, 0);
                        continue;
                    }
                }
            }
            let ruling = rule.judge(owed, cost, own);
            let Ruling::Admit { .. } = ruling else { return (ruling, own) };
            let place = self.place(rule, homes, now);
            self.pressure.note_arrival(hash, place.free);
            if place.free == 0 {
                match self.when_full {
                    WhenFull::ForgetLeast => {}
                    WhenFull::Refuse => return (self.refuse(rule, homes, now), rule.of_key(place.at, tag)),
                    WhenFull::Overflow => return self.overflow(rule, tag, now, cost),
                }
            }
            // That may be as of a later time, if the clock was set back: nothing more is owed then.
            let at = rule.of_key(place.at, tag);
            let ruling = rule.judge(rule.stamped(rule.stamp(owed, own), at), cost, at);
            let Ruling::Admit { debt } = ruling else { return (ruling, at) };
            if self.put(rule, &place, tag, rule.stamp(debt, at)) {
                return (ruling, at);
            }
        }
    }

    /// Puts a key with a debt into a slot; `false` if there is no room for it.
    fn insert_debt<R: Rule>(&self, rule: &R, homes: &Homes, now: R::Now, debt: R::Debt) -> bool {
        let stamp = rule.stamp(debt, rule.of_key(now, homes.tag));
        loop {
            let place = self.place(rule, homes, now);
            if place.free == 0 && self.when_full != WhenFull::ForgetLeast {
                return false;
            }
            let at = rule.of_key(place.at, homes.tag);
            if self.put(rule, &place, homes.tag, rule.stamp(rule.stamped(stamp, at), at)) {
                return true;
            }
        }
    }

    /// Puts a key where there is place; `false` if it has been taken meanwhile.
    #[inline(always)]
    fn put<R: Rule>(&self, rule: &R, place: &Place<'_, R::Now>, tag: Tag, stamp: u64) -> bool {
        let is_put = place.slot.replace(place.word, Word::new(tag, stamp)).is_ok();
        if is_put {
            if place.free == 0 {
                self.pressure.note_evicted();
            }
            mend(rule, place.slot, self.page(place.line), tag, stamp, place.epochs);
        }
        is_put
    }

    /// The slot for a new key: a free one of the emptier home, or else that of the key that owes least.
    fn place<R: Rule>(&self, rule: &R, homes: &Homes, now: R::Now) -> Place<'_, R::Now> {
        let [a, b] = homes.lines.map(|line| {
            let slots = self.slots.line(line).map(|slot| {
                let (word, epochs, at) = self.read(rule, line, slot, now);
                let size = rule.size(rule.owed(word, rule.of_key(at, word.tag())));
                Place { line, slot, word, epochs, at, size, free: 0 }
            });
            let mut free = 0;
            let least = slots.inspect(|slot| free += usize::from(slot.size == 0)).min_by_key(|slot| slot.size);
            Place { free, ..least.expect("a line has slots") }
        });
        // More free slots first; of two full lines, the one with the least debt.
        if (b.free, a.size) > (a.free, b.size) { b } else { a }
    }

    /// The table is full, and no key is to be forgotten: come back when the first slot is free.
    fn refuse<R: Rule>(&self, rule: &R, homes: &Homes, now: R::Now) -> Ruling<R::Debt> {
        self.pressure.note_turned_away();
        let slots = homes.lines.into_iter().flat_map(|line| self.slots.line(line).map(move |slot| (line, slot)));
        let wait = slots.map(|(line, slot)| {
            let (word, _, at) = self.read(rule, line, slot, now);
            let at = rule.of_key(at, word.tag());
            rule.left(rule.owed(word, at), at)
        });
        Ruling::Full { wait: wait.min().unwrap_or(0).max(1) }
    }

    /// The table is full, and no key is to be forgotten: new keys share what the extra page has.
    fn overflow<R: Rule>(&self, rule: &R, tag: Tag, now: R::Now, cost: u32) -> Judged<R> {
        self.pressure.note_turned_away();
        let (line, slot) = self.shared(tag).expect("it is made with the table");
        loop {
            let epochs = self.freshen(rule, line, now);
            // If it is empty, its last debt may have been cleared since `now` was read: then it was paid by
            // the beginning of the page's epoch, and not before.
            let now = rule.clamp(now, epochs.latest());
            let find = || (self.page(line).load() == epochs).then(|| (slot, slot.load()));
            if let Some(judged) = self.charge(rule, Owner::shared(tag), cost, line, now, find) {
                return judged;
            }
        }
    }

    /// The line and the slot that a new key shares with others when the table is full, if there is one: with keys whose windows
    /// begin when its own do.
    fn shared(&self, tag: Tag) -> Option<(usize, Slot<'_>)> {
        if self.when_full != WhenFull::Overflow {
            return None;
        }
        let index = usize::try_from(tag.value() % PAGE as u64).expect("below a page");
        let line = (self.pages.len() - 1) * LINES_PER_PAGE + index / SLOTS;
        self.slots.line(line).nth(index % SLOTS).map(|slot| (line, slot))
    }

    /// To be held while a key that is not found is looked for again, and inserted.
    fn lock_stripe(&self, tag: Tag) -> impl Drop + '_ {
        let stripe = usize::try_from(tag.value() % self.stripes.len() as u64).expect("below the number of stripes");
        // It guards no data that a panic could leave in disorder.
        self.stripes[stripe].0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn freshen_homes<R: Rule>(&self, rule: &R, homes: &Homes, now: R::Now) {
        for line in homes.lines {
            self.freshen(rule, line, now);
        }
    }

    /// Sees to it that the page of a line has been gone through in the epoch of `now`, or a later one: that one
    /// is returned. Nothing in a page may be judged, or charged, while somebody goes through it: what he has
    /// not cleared yet may look like a debt, and he may clear what is charged meanwhile.
    #[inline]
    fn freshen<R: Rule>(&self, rule: &R, line: usize, now: R::Now) -> Epochs {
        let (epochs, present) = (self.page(line).load(), rule.epoch(now));
        let is_fresh = epochs.is_settled() && epochs.latest() >= present;
        if is_fresh { epochs } else { self.renew(rule, line / LINES_PER_PAGE, present) }
    }

    /// Clears what was paid before the present epoch.
    ///
    /// Any number of threads may do so at once, and each can finish for the others: what is cleared follows from
    /// the two epochs that the first has written, not from anybody's clock. Each reads a word first, and then
    /// makes sure that the page is still being gone through: whoever writes a new debt has seen it
    /// settled, so a word that was read before that is an old one, and only that very word is cleared.
    #[cold]
    #[inline(never)]
    fn renew<R: Rule>(&self, rule: &R, index: usize, present: u32) -> Epochs {
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
            let begins = rule.beginning(epochs.latest());
            let mut is_overtaken = false;
            for slot in self.slots.page(index) {
                let word = slot.load_in_order();
                if word.is_empty() || (!all_paid && rule.size(rule.owed(word, begins)) > 0) {
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
fn mend<R: Rule>(rule: &R, slot: Slot<'_>, page: &Page, tag: Tag, stamp: u64, read: Epochs) {
    in_order();
    let epochs = page.load();
    if epochs != read && rule.is_paid_by(stamp, epochs.latest()) {
        // If it has been charged again since, its time is new.
        let _ = slot.replace(Word::new(tag, stamp), Word::EMPTY);
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

/// A ruling, and as of when.
type Judged<R> = (Ruling<<R as Rule>::Debt>, <R as Rule>::Now);

/// Whose debt a word holds.
#[derive(Clone, Copy)]
struct Owner {
    /// That of the word.
    tag: Tag,
    /// That of the key, by whose time it is judged: another one in a slot that new keys share.
    key: Tag,
}

impl Owner {
    const fn own(tag: Tag) -> Self {
        Self { tag, key: tag }
    }

    const fn shared(key: Tag) -> Self {
        Self { tag: SHARED, key }
    }
}

/// Where a new key goes, and what it replaces.
#[derive(Clone, Copy)]
struct Place<'a, N> {
    line: usize,
    slot: Slot<'a>,
    word: Word,
    epochs: Epochs,
    at: N,
    size: u64,
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

/// The stamp of nothing.
pub(super) fn present<R: Rule>(rule: &R, now: R::Now) -> u64 {
    rule.stamp(rule.nothing(now), now)
}

/// `count` times a fraction of 2^32.
#[allow(clippy::cast_possible_truncation)] // It is less than `count`.
const fn scale(fraction: u64, count: usize) -> usize {
    ((fraction * count as u64) >> 32) as usize
}

#[cfg(all(test, not(sluice_loom)))]
mod tests;
