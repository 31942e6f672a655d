use std::sync::Arc;

use super::compact::{CompactTable, Past, present};
use super::past::{self, Geometry, Inherited, PackedDebt, Source};
use super::rule::Rule;
use super::ticks::{PaidAt, Tick, TickBucket};
use super::word::Tag;
use super::{Pressure, WhenFull};
use crate::values::time::Timestamp;
use crate::values::{Decision, Quota, Receipt};

/// A table of words, with the rule by which they are judged, and what its keys inherit.
pub(super) struct Ledger<R> {
    rule: R,
    table: CompactTable,
    inherited: Option<Debts>,
    /// The tables before, of whose charges something may still be owed; the oldest first.
    forebears: Vec<Forebear<R>>,
}

/// Stamps of what keys owed at the instant of a change, counted from `base`.
#[derive(Clone)]
struct Debts {
    inherited: Arc<Inherited<PackedDebt>>,
    base: u64,
    /// The most that any key may owe of it.
    most: u64,
}

/// A rule that was in force before, and until when.
#[derive(Clone, Copy)]
struct Forebear<R> {
    rule: R,
    until: Timestamp,
}

/// Charges of so many changes ago can be given back.
const MOST_FOREBEARS: usize = 256;

impl<R: Rule> Ledger<R> {
    pub(super) fn new(rule: R, keys: usize, when_full: WhenFull) -> Self {
        Self { rule, table: CompactTable::new(keys, when_full), inherited: None, forebears: Vec::new() }
    }

    pub(super) const fn rule(&self) -> &R {
        &self.rule
    }

    pub(super) const fn pressure(&self) -> &Pressure {
        self.table.pressure()
    }

    pub(super) const fn geometry(&self) -> Geometry {
        self.table.geometry()
    }

    pub(super) fn size_in_bytes(&self) -> usize {
        self.table.size_in_bytes()
    }

    /// In how many slots a key is.
    #[cfg(all(test, sluice_loom))]
    pub(super) fn copies(&self, hash: u64) -> usize {
        self.table.copies(hash)
    }

    pub(super) fn inherited(&self) -> Option<&Arc<Inherited<PackedDebt>>> {
        self.inherited.as_ref().map(|debts| &debts.inherited)
    }

    /// Whether something may still be owed at `now` of what was inherited.
    pub(super) fn has_past(&self, now: Timestamp) -> bool {
        let now = present(&self.rule, self.rule.read(now));
        self.inherited().is_some_and(|past| !past.has_ended(now))
    }

    /// How the keys are spread of which something may still be owed at `now`.
    pub(super) fn geometries(&self, now: Timestamp) -> Vec<Geometry> {
        past::geometries(self.table.geometry(), self.inherited().filter(|_| self.has_past(now)))
    }

    /// Begins with debts that `source` copies as stamps of `rule`, counted from that of nothing at `now`. For a ledger that was
    /// not asked for anything yet.
    pub(super) fn inherit(
        &mut self,
        rule: R,
        predecessor: u64,
        now: Timestamp,
        geometries: &[Geometry],
        source: impl FnOnce(u64) -> Box<dyn Source<PackedDebt>>,
    ) {
        self.rule = rule;
        let base = present(&rule, rule.read(now));
        let inherited = Arc::new(Inherited::new(predecessor, geometries, source(base)));
        let debts = Debts { inherited, base, most: 0 };
        self.table.inherit(Box::new(debts.clone()));
        self.inherited = Some(debts);
    }

    /// Calls `act` with the line, the tag and the debt of all that is owed at `at` in a page of a layer, for an heir.
    pub(super) fn each_owed(
        &self,
        (geometry, page): (Geometry, usize),
        at: Timestamp,
        mut act: impl FnMut(usize, Tag, R::Debt),
    ) {
        let now = self.rule.read(at);
        // Before the table: what is moved there meanwhile is seen twice then, and not missed.
        if let Some(debts) = &self.inherited {
            debts.inherited.each_left(geometry, page, |line, tag, debt| {
                let debt = self.rule.stamped(debts.base + debt, self.rule.of_key(now, tag));
                if self.rule.size(debt) > 0 {
                    act(line, tag, debt);
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
        cost: u32,
        now: impl Fn() -> Timestamp,
        fresh: impl Fn() -> Timestamp,
    ) -> Decision {
        self.table.check(&self.rule, hash, cost, self.rule.read(now()), || self.rule.read(fresh()))
    }

    pub(super) fn peek(&self, hash: u64, cost: u32, now: Timestamp) -> Decision {
        self.table.peek(&self.rule, hash, cost, self.rule.read(now))
    }

    /// Gives back what is still owed for a charge: see [`Rule::refunded`].
    pub(super) fn give_back(&self, hash: u64, cost: u32, charged: Option<u64>, now: Timestamp) {
        if let Some(charged) = charged {
            self.table.give_back(&self.rule, hash, cost, charged, self.rule.read(now));
        }
    }

    pub(super) fn reset(&self, hash: u64, now: Timestamp) {
        self.table.reset(&self.rule, hash, self.rule.read(now));
    }

    /// How many keys owe something.
    pub(super) fn live(&self, now: Timestamp) -> u64 {
        self.table.live(&self.rule, self.rule.read(now))
    }
}

impl Ledger<TickBucket> {
    /// Begins with what keys owe at `now` in another ledger, under `quota`; `copying` makes a source of how that is copied.
    /// `None` if there is no such bucket.
    pub(super) fn succeed(
        &mut self,
        from: &Self,
        quota: &Quota,
        now: Timestamp,
        geometries: &[Geometry],
        source: impl FnOnce(TickBucket, u64) -> Box<dyn Source<PackedDebt>>,
    ) -> Option<()> {
        let at = from.rule.read(now);
        let most = from.most_owed(at);
        let rule = TickBucket::holding(quota, from.rule.tokens(most))?.numbered(self.table.pressure().number());
        let rule = rule.going_on(&from.rule, now);
        self.inherit(rule, from.table.pressure().number(), now, geometries, |base| source(rule, base));
        let exchange = rule.exchange(&from.rule, at);
        if let Some(debts) = &mut self.inherited {
            debts.most = exchange.debt(most);
        }
        let here = rule.read(now);
        let shared = from.table.shared_debts(&from.rule, at).map(|debt| exchange.debt(debt));
        let stamps = shared.map(|debt| (debt > 0).then(|| rule.stamp(debt, here)));
        self.table.inherit_shared(&rule, here, stamps);
        let first = if from.has_past(now) {
            from.forebears.len().saturating_sub(MOST_FOREBEARS - 1)
        } else {
            from.forebears.len()
        };
        self.forebears = from.forebears[first..].to_vec();
        self.forebears.push(Forebear { rule: from.rule, until: now });
        Some(())
    }

    /// The most ticks that any key may owe.
    fn most_owed(&self, at: Tick) -> u64 {
        let inherited = self.inherited.as_ref().map_or(0, |debts| {
            // A clock that was set back pays nothing.
            debts.most.saturating_sub(at.count.saturating_sub(debts.base))
        });
        inherited.max(self.rule.capacity())
    }

    /// When a charge is paid off, in these ticks, also if it was made before a change; `None` if nothing is left of what the
    /// table had that it was made in.
    pub(super) fn paid_at(&self, receipt: Receipt) -> Option<u64> {
        let PaidAt { table, tick } = receipt.read()?;
        if table == self.rule.number() {
            return Some(tick);
        }
        let first = self.forebears.iter().position(|before| before.rule.number() == table)?;
        let before = &self.forebears[first..];
        let after = before[1..].iter().map(|table| &table.rule).chain([&self.rule]);
        Some(before.iter().zip(after).fold(tick, |tick, (from, to)| to.carried(&from.rule, from.until, tick)))
    }

    /// Has its receipts carry the number of its table.
    pub(super) fn numbered(mut self) -> Self {
        self.rule = self.rule.numbered(self.table.pressure().number());
        self
    }
}

impl Past for Debts {
    fn paid_at(&self, hash: u64, present: u64) -> u64 {
        self.inherited.get(hash, present).map_or(0, |debt| self.base + debt)
    }

    fn set_paid_at(&self, hash: u64, stamp: u64) {
        self.inherited.set(hash, Some(stamp.saturating_sub(self.base)).filter(|debt| *debt > 0));
    }
}
