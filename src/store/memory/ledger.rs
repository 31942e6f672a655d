use std::sync::Arc;

use super::WhenFull;
use super::compact::{CompactTable, Past};
use super::past::{self, Entry, Geometry, Inherited, PackedDebt, Source};
use super::ticks::{Exchange, Tick, TickBucket};
use crate::decision::{Decision, Receipt};
use crate::quota::Quota;
use crate::time::{self, Timestamp};

/// A table for buckets, with their quota and when their clock began.
pub(super) struct Ledger {
    clock: TickClock,
    table: CompactTable,
    inherited: Option<Debts>,
    /// The tables before, of whose charges something may still be owed; the oldest first.
    forebears: Vec<Forebear>,
}

/// A table that was in force before, and until when.
#[derive(Clone, Copy)]
struct Forebear {
    number: u64,
    clock: TickClock,
    until: Timestamp,
}

/// Charges of so many changes ago can be given back.
const MOST_FOREBEARS: usize = 256;

/// A bucket, and when its ticks began.
#[derive(Clone, Copy)]
pub(super) struct TickClock {
    bucket: TickBucket,
    started: Timestamp,
}

/// What keys owed at a tick of the heir's clock.
#[derive(Clone)]
pub(super) struct Debts {
    inherited: Arc<Inherited<PackedDebt>>,
    since: u64,
    /// The most that any key may have owed then, in ticks.
    most: u64,
}

#[cold]
const fn before_the_beginning() -> Timestamp {
    Timestamp::ZERO
}

impl TickClock {
    fn new(bucket: TickBucket, now: Timestamp) -> Self {
        Self { bucket, started: bucket.beginning(now) }
    }

    /// The tick of an instant. Counted from when the clock began, so that counts are small. A clock that is set back
    /// beyond that stands still there.
    #[inline(always)]
    fn tick(&self, now: Timestamp) -> Tick {
        // Not saturating: a branch that is predicted is not waited for.
        self.bucket.tick(match now.as_nanos().checked_sub(self.started.as_nanos()) {
            Some(nanos) => Timestamp::from_nanos(nanos),
            None => before_the_beginning(),
        })
    }

    /// When a debt is paid by this clock, that is paid at `tick` by that of another, which was changed for this one at `at`.
    fn carried(&self, from: &Self, at: Timestamp, tick: u64) -> u64 {
        let before = from.tick(at);
        match tick.saturating_sub(before.count) {
            0 => 0,
            debt => self.tick(at).count + self.bucket.exchange(&from.bucket, before).debt(debt),
        }
    }
}

impl Ledger {
    pub(super) fn new(bucket: TickBucket, keys: usize, when_full: WhenFull, now: Timestamp) -> Self {
        let table = CompactTable::new(keys, when_full);
        let bucket = bucket.numbered(table.pressure().number());
        Self { clock: TickClock::new(bucket, now), table, inherited: None, forebears: Vec::new() }
    }

    pub(super) const fn table(&self) -> &CompactTable {
        &self.table
    }

    pub(super) fn inherited(&self) -> Option<&Arc<Inherited<PackedDebt>>> {
        self.inherited.as_ref().map(|debts| &debts.inherited)
    }

    /// How the keys are spread of which something may still be owed at `now`.
    pub(super) fn geometries(&self, now: Timestamp) -> Vec<Geometry> {
        let past = self.inherited().filter(|past| !past.has_ended(self.clock.tick(now).count));
        past::geometries(self.table.geometry(), past)
    }

    /// Whether this is how it judges.
    pub(super) fn is_under(&self, quota: &Quota) -> bool {
        self.clock.bucket.is_of(quota)
    }

    /// Begins with what keys owe at `now` in the table of another, which `source` copies. For a ledger that was not asked for
    /// anything yet.
    pub(super) fn inherit(
        &mut self,
        quota: &Quota,
        from: &Self,
        now: Timestamp,
        geometries: &[Geometry],
        source: impl FnOnce(Copying) -> Arc<dyn Source<PackedDebt>>,
    ) -> Option<Arc<Inherited<PackedDebt>>> {
        let at = from.clock.tick(now);
        let bucket = TickBucket::holding(quota, from.most_owed(at))?.numbered(self.table.pressure().number());
        let exchange = bucket.exchange(&from.clock.bucket, at);
        self.clock = TickClock::new(bucket, now);
        // A fraction of a tick that has passed has passed by this clock, too: or each change would cost a tick.
        let started = self.clock.started.as_nanos().saturating_sub(exchange.lead());
        self.clock.started = Timestamp::from_nanos(started);
        let since = self.clock.tick(now).count;
        let most =
            exchange.debt((u128::from(from.most_owed(at)) << from.clock.bucket.shift()).try_into().unwrap_or(u64::MAX));
        let source = source(Copying { at, exchange, since });
        let inherited = Arc::new(Inherited::new(from.table.pressure().number(), geometries, source));
        let debts = Debts { inherited: Arc::clone(&inherited), since, most };
        self.table.inherit(Box::new(debts.clone()), from.table.shared_debts(at).map(|debt| exchange.debt(debt)), since);
        self.table.pressure().go_on(from.table.pressure());
        self.inherited = Some(debts);
        self.forebears = from.forebears_left(at);
        self.forebears.push(Forebear { number: from.table.pressure().number(), clock: from.clock, until: now });
        Some(inherited)
    }

    fn forebears_left(&self, at: Tick) -> Vec<Forebear> {
        let has_ended = self.inherited().is_none_or(|past| past.has_ended(at.count));
        let first =
            if has_ended { self.forebears.len() } else { self.forebears.len().saturating_sub(MOST_FOREBEARS - 1) };
        self.forebears[first..].to_vec()
    }

    /// When a charge is paid, by its receipt: long ago, if nothing is left of what the table had that wrote it.
    fn paid_at(&self, receipt: Receipt) -> u64 {
        let (number, tick) = TickBucket::read(receipt);
        if number == self.table.pressure().number() {
            return tick;
        }
        let Some(first) = self.forebears.iter().position(|table| table.number == number) else { return 0 };
        let before = &self.forebears[first..];
        let after = before[1..].iter().map(|table| &table.clock).chain([&self.clock]);
        before.iter().zip(after).fold(tick, |tick, (from, to)| to.carried(&from.clock, from.until, tick))
    }

    /// The most that any key may owe, in tokens.
    fn most_owed(&self, at: Tick) -> u64 {
        let inherited = self.inherited.as_ref().map_or(0, |debts| debts.aged(debts.most, at));
        inherited.max(self.clock.bucket.capacity()).div_ceil(1 << self.clock.bucket.shift())
    }

    /// Copies what keys owe in a page of a layer, for an heir.
    pub(super) fn copy(
        &self,
        copying: &Copying,
        geometry: Geometry,
        page: usize,
        put: &mut dyn FnMut(usize, PackedDebt, u64),
    ) {
        let Copying { at, exchange, since } = copying;
        let mut copy = |line, tag, debt| {
            if debt > 0 {
                let debt = exchange.debt(debt);
                put(line, PackedDebt::new(tag, debt), since + debt);
            }
        };
        // Before the table: what is moved there meanwhile is seen twice then, and not missed.
        if let Some(debts) = &self.inherited {
            debts.inherited.each_left(geometry, page, |line, entry| {
                copy(line, entry.tag(), debts.aged(entry.debt().unwrap_or(0), *at));
            });
        }
        if geometry == self.table.geometry() {
            self.table.each_owed(page, *at, copy);
        }
    }

    #[inline(always)]
    pub(super) fn check(&self, hash: u64, cost: u32, clock: impl Fn() -> Timestamp) -> Decision {
        self.table.check(&self.clock.bucket, hash, cost, self.clock.tick(clock()), || {
            time::let_go();
            self.clock.tick(clock())
        })
    }

    pub(super) fn peek(&self, hash: u64, cost: u32, now: Timestamp) -> Decision {
        self.table.peek(&self.clock.bucket, hash, cost, self.clock.tick(now))
    }

    /// Gives back what is still owed for a charge, also for one that was made before a change.
    pub(super) fn give_back(&self, hash: u64, cost: u32, receipt: Receipt, now: Timestamp) {
        self.table.give_back(&self.clock.bucket, hash, cost, self.paid_at(receipt), self.clock.tick(now));
    }

    pub(super) fn reset(&self, hash: u64, now: Timestamp) {
        self.table.reset(hash, self.clock.tick(now));
    }

    /// How many keys owe something.
    pub(super) fn live(&self, now: Timestamp) -> u64 {
        self.table.live(self.clock.tick(now))
    }
}

/// How debts are copied for an heir: as of when by the old clock, in which ticks, and what the heir's clock showed then.
pub(super) struct Copying {
    at: Tick,
    exchange: Exchange,
    since: u64,
}

impl Debts {
    /// What is left at `now` of a debt of then. A clock that was set back beyond pays nothing.
    const fn aged(&self, debt: u64, now: Tick) -> u64 {
        debt.saturating_sub(now.count.saturating_sub(self.since))
    }
}

impl Past for Debts {
    fn owed(&self, hash: u64, now: Tick) -> Option<u64> {
        let debt = self.inherited.get(hash, now.count)?;
        Some(self.aged(debt, now)).filter(|debt| *debt > 0)
    }

    fn set_owed(&self, hash: u64, now: Tick, debt: Option<u64>) {
        self.inherited.set(hash, debt.map(|debt| debt + now.count.saturating_sub(self.since)));
    }
}
