use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::WhenFull;
use super::compact::CompactTable;
use super::ticks::{Outdated, Tick, TickBucket};
use crate::decision::{Decision, Receipt};
use crate::quota::Quota;
use crate::time::{Timestamp, nanos_of};

/// A table for buckets as one limiter sees it: with its quota, and so with its clock.
///
/// If another limiter takes over, both have the same table, and this one is [`Outdated`]: what it is still asked, by
/// requests that were on their way, is decided by the quota that is in force. So there is one clock at any time, and what
/// has been admitted is what one limiter whose quota changed would have admitted.
pub(super) struct Ledger {
    accounts: Arc<Accounts>,
    terms: Terms,
}

/// A quota, and when its clock began.
#[derive(Clone, Copy)]
struct Terms {
    bucket: TickBucket,
    started: Timestamp,
}

struct Accounts {
    table: CompactTable,
    latest: Mutex<Latest>,
}

struct Latest {
    terms: Terms,
    /// Where all debts have gone, if the ticks of this table are too long or too short for the quota in force.
    moved: Option<Arc<Accounts>>,
}

impl Accounts {
    fn new(table: CompactTable, terms: Terms) -> Arc<Self> {
        Arc::new(Self { table, latest: Mutex::new(Latest { terms, moved: None }) })
    }

    fn latest(&self) -> MutexGuard<'_, Latest> {
        // All that is written under it is written at once.
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Terms {
    /// The present, counted from when the clock began, so that it is small. A clock that is set back
    /// beyond that stands still there.
    #[inline(always)]
    fn since(&self, now: Timestamp) -> Timestamp {
        // Not saturating: a branch that is foreseen is not waited for.
        match now.as_nanos().checked_sub(self.started.as_nanos()) {
            Some(nanos) => Timestamp::from_nanos(nanos),
            None => before_the_beginning(),
        }
    }

    #[inline(always)]
    fn tick(&self, now: Timestamp) -> Tick {
        self.bucket.tick(self.since(now))
    }
}

#[cold]
const fn before_the_beginning() -> Timestamp {
    Timestamp::ZERO
}

impl Ledger {
    pub(super) fn new(bucket: TickBucket, keys: usize, when_full: WhenFull, now: Timestamp) -> Self {
        let terms = Terms { bucket, started: bucket.beginning(now) };
        Self { accounts: Accounts::new(CompactTable::new(keys, when_full), terms), terms }
    }

    pub(super) fn table(&self) -> &CompactTable {
        &self.accounts.table
    }

    /// Whether this is how it would judge by itself.
    pub(super) fn is_under(&self, quota: &Quota) -> bool {
        self.terms.bucket.is_of(quota)
    }

    #[inline(always)]
    pub(super) fn check(
        &self,
        hash: u64,
        cost: u32,
        now: impl Fn() -> Timestamp,
        fresh: impl Fn() -> Timestamp,
    ) -> Decision {
        match self.try_check(hash, cost, &now, &fresh) {
            Ok(decision) => decision,
            Err(Outdated) => self.by_the_latest(|ledger| ledger.try_check(hash, cost, &fresh, &fresh)),
        }
    }

    #[inline(always)]
    fn try_check(
        &self,
        hash: u64,
        cost: u32,
        now: &impl Fn() -> Timestamp,
        fresh: &impl Fn() -> Timestamp,
    ) -> Result<Decision, Outdated> {
        let now = self.terms.tick(now());
        self.accounts.table.check(&self.terms.bucket, hash, cost, now, || self.terms.tick(fresh()))
    }

    pub(super) fn peek(&self, hash: u64, cost: u32, clock: impl Fn() -> Timestamp) -> Decision {
        self.by_whoever_may(|Self { accounts, terms }| {
            accounts.table.peek(&terms.bucket, hash, cost, terms.tick(clock()))
        })
    }

    pub(super) fn give_back(&self, hash: u64, cost: u32, receipt: Receipt, clock: impl Fn() -> Timestamp) {
        self.by_whoever_may(|Self { accounts, terms }| {
            accounts.table.give_back(&terms.bucket, hash, cost, receipt, terms.tick(clock()))
        });
    }

    pub(super) fn reset(&self, hash: u64, clock: impl Fn() -> Timestamp) {
        self.by_whoever_may(|Self { accounts, terms }| accounts.table.reset(&terms.bucket, hash, terms.tick(clock())));
    }

    /// How many keys owe something.
    pub(super) fn live(&self, clock: impl Fn() -> Timestamp) -> u64 {
        let Self { accounts, terms } = self.latest();
        accounts.table.live(terms.tick(clock()))
    }

    fn by_whoever_may<T>(&self, ask: impl Fn(&Self) -> Result<T, Outdated>) -> T {
        ask(self).unwrap_or_else(|Outdated| self.by_the_latest(ask))
    }

    #[cold]
    #[inline(never)]
    fn by_the_latest<T>(&self, ask: impl Fn(&Self) -> Result<T, Outdated>) -> T {
        loop {
            // Another change may come in between.
            if let Ok(answer) = ask(&self.latest()) {
                return answer;
            }
        }
    }

    /// The one that nobody has taken over from. Waits for a change that is under way.
    fn latest(&self) -> Self {
        let mut accounts = Arc::clone(&self.accounts);
        loop {
            let latest = accounts.latest();
            let (terms, moved) = (latest.terms, latest.moved.clone());
            drop(latest);
            match moved {
                Some(moved) => accounts = moved,
                None => return Self { accounts, terms },
            }
        }
    }

    /// The same keys with the same debts under another quota, from now on also for whoever asks this one; `None`
    /// if there is no such bucket.
    ///
    /// If the new quota fits the ticks of the table, no debt is touched. Else all are carried into another table, and
    /// whoever asks meanwhile waits.
    pub(super) fn succeed(&self, quota: &Quota, clock: impl Fn() -> Timestamp) -> Option<Self> {
        loop {
            let accounts = self.latest().accounts;
            let mut latest = accounts.latest();
            if latest.moved.is_none() {
                return Self::change(&accounts, &mut latest, quota, clock);
            }
        }
    }

    /// Has its own quota in force again, if `other` has the same table. It stays outdated, so that all it is asked takes a
    /// lock.
    pub(super) fn resume(&self, other: &Self, quota: &Quota, clock: impl Fn() -> Timestamp) -> bool {
        let latest = self.latest();
        if !Arc::ptr_eq(&latest.accounts, &other.latest().accounts) {
            return false;
        }
        latest.is_under(quota) || self.succeed(quota, clock).is_some()
    }

    fn change(
        accounts: &Arc<Accounts>,
        latest: &mut Latest,
        quota: &Quota,
        clock: impl Fn() -> Timestamp,
    ) -> Option<Self> {
        let old = latest.terms;
        let replaced = old.bucket.replaced(quota)?;
        accounts.table.begin(old.bucket.generation() + 1);
        let now = clock();
        if let Some((bucket, lead)) = old.bucket.bend(quota, old.since(now)) {
            let started = Timestamp::from_nanos(now.as_nanos().saturating_sub(nanos_of(lead)));
            latest.terms = Terms { bucket, started };
            return Some(Self { accounts: Arc::clone(accounts), terms: latest.terms });
        }
        let table = accounts.table.move_out(old.tick(now), |debt| replaced.convert(debt, &old.bucket));
        let terms = Terms { bucket: replaced, started: now };
        let moved = Accounts::new(table, terms);
        latest.moved = Some(Arc::clone(&moved));
        Some(Self { accounts: moved, terms })
    }
}
