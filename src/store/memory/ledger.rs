//! A set-associative table with its rule and what its keys inherit.
//!
//! Two things are kept for buckets only. The earlier rules convert the time on a receipt from before a change; a receipt
//! of a window has the window's number. The greatest debt that was inherited bounds what the next heir's words must
//! hold; the words of windows are made for the greatest count.

use std::sync::Arc;

use super::debt_copies::{self, DebtCopies, Geometry, PackedDebts, Source};
use super::debt_sources::Owed;
#[cfg(feature = "test-util")]
use super::table::{Bounded, Meetings, SETS_PER_PAGE};
use super::table::{InheritedDebts, PaidAt, Rule, SetAssociativeTable, Tag, Tick, TickBucket, stamp_of_nothing};
use super::{Occupancy, WhenFull};
use crate::values::time::Timestamp;
use crate::values::{Decision, Quota, Receipt};

/// A set-associative table, the rule that judges its words, and what its keys inherit.
pub(super) struct Ledger<R> {
    rule: R,
    table: SetAssociativeTable,
    inherited: Option<Debts>,
    /// The most ticks that any key of a bucket owed at the instant of the change. `None` for windows, and if nothing was
    /// inherited.
    most_inherited: Option<u64>,
    /// The rules of a bucket before, under whose charges something may still be owed; the oldest first.
    ancestors: Vec<Ancestor<R>>,
}

/// What keys owed at the instant of a change, as stamps.
#[derive(Clone)]
struct Debts {
    inherited: Arc<DebtCopies<u64, PackedDebts>>,
    /// The stamp of nothing at that instant, from which the copied stamps are counted.
    base: u64,
}

/// A rule that was in force earlier, and until when.
#[derive(Clone, Copy)]
struct Ancestor<R> {
    rule: R,
    until: Timestamp,
}

/// Charges from before so many changes can be refunded. The list is copied at each change, and takes 16 KiB at most.
const MOST_ANCESTORS: usize = 256;

impl<R: Rule> Ledger<R> {
    pub(super) fn new(rule: R, keys: usize, when_full: WhenFull) -> Self {
        let table = SetAssociativeTable::new(keys, when_full);
        Self { rule, table, inherited: None, most_inherited: None, ancestors: Vec::new() }
    }

    pub(super) const fn rule(&self) -> &R {
        &self.rule
    }

    pub(super) const fn occupancy(&self) -> &Arc<Occupancy> {
        self.table.occupancy()
    }

    pub(super) const fn geometry(&self) -> Geometry {
        self.table.geometry()
    }

    pub(super) fn size_in_bytes(&self) -> usize {
        self.table.size_in_bytes()
    }

    /// Returns in how many slots a key is.
    #[cfg(all(test, sluice_loom))]
    pub(super) fn copies(&self, hash: u64) -> usize {
        self.table.copies(hash)
    }

    pub(super) fn inherited(&self) -> Option<&Arc<DebtCopies<u64, PackedDebts>>> {
        self.inherited.as_ref().map(|debts| &debts.inherited)
    }

    /// Returns whether something may still be owed at `now` of what was inherited key by key: overflow slots, which
    /// inherit at once, are not looked at.
    pub(super) fn has_past(&self, now: Timestamp) -> bool {
        let now = stamp_of_nothing(&self.rule, self.rule.read(now));
        self.inherited().is_some_and(|past| !past.has_ended(now))
    }

    /// Returns how the keys are spread that may still owe something at `now`.
    pub(super) fn geometries(&self, now: Timestamp) -> Vec<Geometry> {
        debt_copies::geometries(self.table.geometry(), self.inherited().filter(|_| self.has_past(now)))
    }

    /// Lets the ledger begin with debts that `source` copies as stamps of `rule`, counted from that of nothing at
    /// `now`. For a ledger that was not used yet.
    pub(super) fn inherit(
        &mut self,
        rule: R,
        predecessor: u64,
        now: Timestamp,
        geometries: &[Geometry],
        source: impl FnOnce(u64) -> Box<dyn Source<u64>>,
    ) {
        self.rule = rule;
        let base = stamp_of_nothing(&rule, rule.read(now));
        let inherited = DebtCopies::new(predecessor, geometries, self.occupancy(), source(base));
        let debts = Debts { inherited, base };
        self.table.inherit(Box::new(debts.clone()));
        self.inherited = Some(debts);
    }

    /// Lets the overflow slots of these tags begin with the debts that these stamps stand for. For a ledger that was
    /// not used yet.
    pub(super) fn inherit_overflow(&self, now: Timestamp, stamps: impl Iterator<Item = (Tag, u64)>) {
        self.table.inherit_overflow(&self.rule, self.rule.read(now), stamps);
    }

    /// Calls `act` with the tag and the debt of each overflow slot in which something is owed at `at`, for an heir.
    pub(super) fn each_overflow(&self, at: Timestamp, mut act: impl FnMut(Tag, R::Debt)) {
        for (tag, debt) in self.table.overflow_debts(&self.rule, self.rule.read(at)) {
            if self.rule.size(debt) > 0 {
                act(tag, debt);
            }
        }
    }

    /// Calls `act` with the set in the page, the tag and the debt of all that is owed at `at` in a page of a geometry,
    /// for an heir.
    pub(super) fn each_owed(
        &self,
        (geometry, page): (Geometry, usize),
        at: Timestamp,
        mut act: impl FnMut(usize, Tag, R::Debt),
    ) {
        let now = self.rule.read(at);
        // Before the table: a debt that was inserted there and cleared here meanwhile is then in the table. In the other
        // order it could be missed. This does for a key whose sets are in this page; `DebtCopies` for all others.
        if let Some(debts) = &self.inherited {
            debts.inherited.each_left(geometry, page, |set, tag, debt| {
                let debt = self.rule.stamped(debts.base + debt, self.rule.local(now, tag));
                if self.rule.size(debt) > 0 {
                    act(set, tag, debt);
                }
            });
        }
        if geometry == self.table.geometry() {
            self.table.each_owed(&self.rule, page, now, act);
        }
    }

    #[inline(always)]
    pub(super) fn check(
        &self,
        hash: u64,
        cost: u64,
        now: impl Fn() -> Timestamp,
        fresh: impl Fn() -> Timestamp,
    ) -> Decision {
        self.table.check(&self.rule, hash, cost, self.rule.read(now()), || self.rule.read(fresh()))
    }

    pub(super) fn peek(&self, hash: u64, cost: u64, now: Timestamp) -> Decision {
        self.table.peek(&self.rule, hash, cost, self.rule.read(now))
    }

    /// Refunds what is still owed for a charge: see [`Rule::refunded`].
    pub(super) fn refund(&self, hash: u64, cost: u64, charged: Option<u64>, now: Timestamp) {
        if let Some(charged) = charged {
            self.table.refund(&self.rule, hash, cost, charged, self.rule.read(now));
        }
    }

    pub(super) fn reset(&self, hash: u64, now: Timestamp) {
        self.table.reset(&self.rule, hash, self.rule.read(now));
    }

    /// Returns how many keys owe something.
    pub(super) fn live(&self, now: Timestamp) -> u64 {
        self.table.live(&self.rule, self.rule.read(now))
    }
}

#[cfg(feature = "test-util")]
impl<R: Bounded> Ledger<R> {
    /// Panics if an [invariant of the table](SetAssociativeTable::check_invariants) is broken, or if something that was
    /// inherited is owed twice. `now` must be no earlier than any time that a thread has read.
    pub(super) fn check_invariants(&self, now: Timestamp) {
        let (rule, at, most) = (&self.rule, self.rule.read(now), self.most());
        self.table.check_invariants(rule, at, most);
        // Once all is paid, nothing of it is inserted any more, or cleared.
        let Some(debts) = self.inherited.as_ref().filter(|_| self.has_past(now)) else { return };
        // Of tables of other sizes, a tag and a set do not say in which sets of this one the key may be.
        let (geometry, mut meetings) = (self.geometry(), Meetings::default());
        for page in 0..geometry.pages() {
            debts.inherited.each_left(geometry, page, |set, tag, debt| {
                let own = rule.local(at, tag);
                let debt = rule.stamped(debts.base + debt, own);
                let set = page * SETS_PER_PAGE + set;
                if rule.size(debt) > 0 {
                    self.table.meet(set, tag, &mut meetings);
                    if let Some(flaw) = rule.flaw(debt, own, most) {
                        panic!("of what is inherited, {tag:?} in set {set} {flaw}");
                    }
                }
            });
        }
        meetings.check();
    }

    /// Returns the most that a key may owe, as the rule counts it.
    fn most(&self) -> u64 {
        let own = self.rule.most();
        match self.most_inherited {
            _ if self.inherited.is_none() => own,
            // With what a key owes of an overflow slot it may be as much as fits.
            Some(most) if !self.table.has_overflow() => own.max(most),
            _ => self.rule.most_inherited(),
        }
    }
}

impl Ledger<TickBucket> {
    /// Lets the ledger begin with what keys owe at `now` in another one, under `quota`; `source` makes what copies
    /// that. `None` if there is no such bucket.
    pub(super) fn inherit_from(
        &mut self,
        from: &Self,
        quota: &Quota,
        now: Timestamp,
        geometries: &[Geometry],
        source: impl FnOnce(TickBucket, u64) -> Box<dyn Source<u64>>,
    ) -> Option<()> {
        let at = from.rule.read(now);
        let most = from.most_owed(at);
        let rule = TickBucket::holding(quota, from.rule.tokens(most))?.numbered(self.table.occupancy().number());
        let rule = rule.continuing(&from.rule, now);
        self.inherit(rule, from.table.occupancy().number(), now, geometries, |base| source(rule, base));
        let conversion = rule.conversion(&from.rule, at);
        self.most_inherited = Some(conversion.debt(most));
        let (here, mut overflow) = (rule.read(now), Vec::new());
        from.each_overflow(now, |tag, debt| overflow.push((tag, rule.stamp(conversion.debt(debt), here))));
        let has_past = from.has_past(now) || !overflow.is_empty();
        self.inherit_overflow(now, overflow.into_iter());
        let forgotten = if has_past {
            from.ancestors.len().saturating_sub(MOST_ANCESTORS - 1)
        } else {
            // All that was charged under them is paid, in overflow slots as well.
            from.ancestors.len()
        };
        self.ancestors = from.ancestors[forgotten..].to_vec();
        self.ancestors.push(Ancestor { rule: from.rule, until: now });
        Some(())
    }

    /// Lets the ledger begin with what keys that are kept as states owe in a table of the number `predecessor`, at most
    /// `tokens` each; `overflow` has what their overflow slots owe, and the price of a token. `None` if there is no such
    /// bucket.
    pub(super) fn inherit_from_states(
        &mut self,
        quota: &Quota,
        (predecessor, tokens, now): (u64, u64, Timestamp),
        geometries: &[Geometry],
        overflow: &[(Tag, Owed)],
        source: impl FnOnce(TickBucket, u64) -> Box<dyn Source<u64>>,
    ) -> Option<()> {
        let rule = TickBucket::holding(quota, tokens)?.numbered(self.table.occupancy().number());
        let rule = rule.started_before(now);
        self.inherit(rule, predecessor, now, geometries, |base| source(rule, base));
        self.most_inherited = Some(rule.ticks_of(tokens.into(), 1));
        let here = rule.read(now);
        let stamps = overflow.iter().map(|(tag, (debt, price))| (*tag, rule.stamp(rule.ticks_of(*debt, *price), here)));
        self.inherit_overflow(now, stamps);
        Some(())
    }

    /// Returns the most tokens that any key may owe at `now`, in the table or in its overflow slot.
    pub(super) fn most_tokens(&self, now: Timestamp) -> u64 {
        self.rule.tokens(self.most_owed(self.rule.read(now)))
    }

    /// Returns the most ticks that any key may owe, in the table or in its overflow slot.
    ///
    /// A key that has inherited owes the debt of its overflow slot besides, which may together be more. It is not looked
    /// for: the slot's debt is inherited as well, so the sum would grow by it at each change. Of a greater debt, the
    /// next heir forgives what does not fit into its words ([`TickBucket::holding`]).
    fn most_owed(&self, at: Tick) -> u64 {
        let inherited = self.inherited.as_ref().map_or(0, |debts| {
            // A clock that was set back pays nothing.
            self.most_inherited.unwrap_or(0).saturating_sub(at.count.saturating_sub(debts.base))
        });
        inherited.max(self.rule.capacity())
    }

    /// Returns when a charge is paid off, in the ticks of this ledger, also if it was made before a change; `None` if
    /// the table in which it was made is forgotten.
    pub(super) fn paid_at(&self, receipt: Receipt) -> Option<u64> {
        let PaidAt { table, tick } = receipt.read()?;
        if table == self.rule.number() {
            return Some(tick);
        }
        let first = self.ancestors.iter().position(|before| before.rule.number() == table)?;
        let before = &self.ancestors[first..];
        let after = before[1..].iter().map(|table| &table.rule).chain([&self.rule]);
        Some(before.iter().zip(after).fold(tick, |tick, (from, to)| to.converted(&from.rule, from.until, tick)))
    }

    /// Lets its receipts carry the number of its table.
    pub(super) fn numbered(mut self) -> Self {
        self.rule = self.rule.numbered(self.table.occupancy().number());
        self
    }
}

impl InheritedDebts for Debts {
    fn stamp_of(&self, hash: u64, present: u64) -> u64 {
        self.inherited.get(hash, present, |debt| *debt).map_or(0, |debt| self.base + debt)
    }

    fn set_stamp_of(&self, hash: u64, stamp: u64) {
        self.inherited.set(hash, Some(stamp.saturating_sub(self.base)).filter(|debt| *debt > 0));
    }

    fn clear_inserted(&self, hash: u64) {
        self.inherited.missing(hash).iter().for_each(|heir| heir.copy_pages_of(hash));
        self.inherited.set(hash, None);
    }
}

#[cfg(all(test, feature = "test-util", not(sluice_loom)))]
mod tests {
    use std::sync::Weak;

    use super::*;
    use crate::store::memory::debt_copies::{Copying, Debtor};

    const NOW: Timestamp = Timestamp::from_nanos(5);
    const HASH: u64 = 7 << 40 | 7;

    /// Copies the debts of a bucket into one that is alike, but for its burst.
    struct FromBucket(Arc<Ledger<TickBucket>>, TickBucket);

    impl Source<u64> for FromBucket {
        fn announce(&self, heir: &Weak<dyn Copying>) {
            self.0.inherited().into_iter().for_each(|past| past.announce(heir));
        }

        fn copy(&self, geometry: Geometry, page: usize, put: &mut dyn FnMut(Debtor<u64>)) {
            let conversion = self.1.conversion(self.0.rule(), self.0.rule().read(NOW));
            self.0.each_owed((geometry, page), NOW, |set, tag, debt| {
                put(Debtor { set, tag, debt: conversion.debt(debt), ends: u64::MAX });
            });
        }

        fn size(&self, _: Tag, debt: &u64) -> u64 {
            *debt
        }
    }

    /// Returns a bucket of one that inherits a debt of three.
    fn heir() -> Ledger<TickBucket> {
        let of = |burst| Quota::per_day(1).burst(burst);
        let ledger = |burst| Ledger::new(TickBucket::new(&of(burst)).unwrap(), 64, WhenFull::EvictLeast);
        let (before, mut heir) = (ledger(3), ledger(1));
        assert!(before.check(HASH, 3, || NOW, || NOW).is_allowed());
        let from = Arc::new(ledger(3));
        assert!(from.check(HASH, 3, || NOW, || NOW).is_allowed());
        let geometries = [before.geometry()];
        heir.inherit_from(&before, &of(1), NOW, &geometries, |rule, _| Box::new(FromBucket(from, rule))).unwrap();
        heir.inherited().unwrap().copy_all();
        heir
    }

    fn bucket_of_three(keys: usize) -> Ledger<TickBucket> {
        Ledger::new(TickBucket::new(&Quota::per_day(1).burst(3)).unwrap(), keys, WhenFull::EvictLeast)
    }

    /// Returns an heir for so many keys, of the same quota.
    fn heir_with(keys: usize, before: &Arc<Ledger<TickBucket>>) -> Ledger<TickBucket> {
        let (mut heir, from, geometries) = (bucket_of_three(keys), Arc::clone(before), before.geometries(NOW));
        let quota = Quota::per_day(1).burst(3);
        heir.inherit_from(before, &quota, NOW, &geometries, |rule, _| Box::new(FromBucket(from, rule))).unwrap();
        heir
    }

    /// A thread was descheduled after it had inserted a key, before it cleared what the key had inherited. After a
    /// second change the older of the two debts counted, if the capacity had changed as well: what had been charged
    /// meanwhile was forgotten.
    #[test]
    fn of_a_debt_that_is_found_twice_the_greater_counts() {
        let before = Arc::new(bucket_of_three(64));
        assert!(before.check(HASH, 1, || NOW, || NOW).is_allowed());
        let mut heir = heir_with(128, &before);
        heir.inherited().unwrap().copy_all();
        // A table that does not know of the inheritance, and so does not clear it.
        heir.table = SetAssociativeTable::new(128, WhenFull::EvictLeast);
        assert!(heir.check(HASH, 2, || NOW, || NOW).is_allowed());
        let heir_of_heir = heir_with(64, &Arc::new(heir));
        heir_of_heir.inherited().unwrap().copy_all();
        assert_eq!(heir_of_heir.peek(HASH, 0, NOW).remaining(), 1);
        assert!(heir_of_heir.check(HASH, 1, || NOW, || NOW).is_allowed());
        heir_of_heir.check_invariants(NOW);
    }

    /// An heir had copied the page of the table without the key, and then copied the page of what the key had inherited
    /// after that was cleared: all that the key owed was forgotten.
    #[test]
    fn a_debt_that_moves_into_the_table_while_an_heir_copies_is_found() {
        let before = Arc::new(bucket_of_three(4_096));
        assert!(before.check(HASH, 3, || NOW, || NOW).is_allowed());
        let heir = Arc::new(heir_with(64, &before));
        heir.inherited().unwrap().copy_all();
        let heir_of_heir = heir_with(64, &heir);
        // A key that may be in other pages of the first table. All keys of the second are in one page.
        let Geometry::SetAssociative { sets } = before.geometry() else { unreachable!("a table of words") };
        let pages = |hash| crate::store::memory::table::candidate_sets(sets, hash).map(|set| set / SETS_PER_PAGE);
        let other =
            (1..).map(|n: u64| n << 56 | n).find(|other| pages(*other).iter().all(|it| !pages(HASH).contains(it)));
        assert_eq!(heir_of_heir.peek(other.unwrap(), 0, NOW).remaining(), 3);
        assert!(!heir.check(HASH, 1, || NOW, || NOW).is_allowed());
        assert_eq!(heir_of_heir.peek(HASH, 0, NOW).remaining(), 0);
        heir_of_heir.inherited().unwrap().copy_all();
        heir.check_invariants(NOW);
        heir_of_heir.check_invariants(NOW);
    }

    /// No key owes anything but an overflow slot.
    struct NoDebts;

    impl Source<u64> for NoDebts {
        fn announce(&self, _: &Weak<dyn Copying>) {}

        fn copy(&self, _: Geometry, _: usize, _: &mut dyn FnMut(Debtor<u64>)) {}

        fn size(&self, _: Tag, debt: &u64) -> u64 {
            *debt
        }
    }

    /// Returns an heir with overflow slots, of the same quota.
    fn heir_with_overflow(before: &Ledger<TickBucket>, quota: &Quota) -> Ledger<TickBucket> {
        let mut heir = Ledger::new(TickBucket::new(quota).unwrap(), 64, WhenFull::Overflow);
        let geometries = before.geometries(NOW);
        heir.inherit_from(before, quota, NOW, &geometries, |_, _| Box::new(NoDebts)).unwrap();
        heir.inherited().unwrap().copy_all();
        heir
    }

    /// Once no key owed anything from before the first change, the second one took all charges from before it for paid,
    /// also those that an overflow slot still owed: their refunds were lost.
    #[test]
    fn what_is_owed_in_an_overflow_slot_is_refunded_after_two_changes() {
        let quota = Quota::per_day(1).burst(3);
        let rule = TickBucket::new(&quota).unwrap();
        let before = Ledger::new(rule, 64, WhenFull::Overflow).numbered();
        let tick = rule.read(NOW).count + rule.capacity();
        before.inherit_overflow(NOW, [(Tag::from_hash(HASH), tick)].into_iter());
        let receipt = Receipt::of(PaidAt { table: before.rule().number(), tick });
        let heir = heir_with_overflow(&heir_with_overflow(&before, &quota), &quota);
        assert_eq!(heir.peek(HASH, 0, NOW).remaining(), 0);
        heir.refund(HASH, 2, heir.paid_at(receipt), NOW);
        assert_eq!(heir.peek(HASH, 0, NOW).remaining(), 2);
        heir.check_invariants(NOW);
    }

    #[test]
    fn an_inherited_debt_moves_into_the_table_when_its_key_is_inserted() {
        let heir = heir();
        heir.check_invariants(NOW);
        assert!(!heir.check(HASH, 1, || NOW, || NOW).is_allowed());
        heir.check_invariants(NOW);
    }

    #[test]
    #[should_panic(expected = "and what it inherited is not cleared")]
    fn check_invariants_finds_a_debt_owed_twice() {
        let mut heir = heir();
        // A table that does not know of the inheritance.
        heir.table = SetAssociativeTable::new(64, WhenFull::EvictLeast);
        assert!(heir.check(HASH, 1, || NOW, || NOW).is_allowed());
        heir.check_invariants(NOW);
    }

    #[test]
    #[should_panic(expected = "of what is inherited, Tag(7) in set 0 owes")]
    fn check_invariants_finds_an_inherited_debt_above_the_greatest() {
        let mut heir = heir();
        heir.most_inherited = heir.most_inherited.map(|most| most - 1);
        heir.check_invariants(NOW);
    }
}
