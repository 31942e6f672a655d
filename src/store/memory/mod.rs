//! The memory store: tables of a fixed size in this process, made from the settings in `settings`.
//!
//! *Where does a key's state live?* In one of the `tables` of its limiter, in one of two candidate sets. Tables of both
//! kinds find it by `Geometry::candidate_sets` (`table/search`), and then by its tag: 28 bits of a keyed hash in words,
//! all 64 behind locks.
//!
//! - Under the limiter's own quota, buckets and windows that fit are words, without a lock (`table`). All other states
//!   are behind locks (`locked`), without their quota.
//! - Keys with quotas of their own are in a second table, `quota_table`, with locks: states with their quotas
//!   (`quota_state`), judged by `own_quota`. It is made by the first question under a quota, by `take_quotas` (a policy
//!   has a `quota_fn`), or by a live change after which a key owes too much for words (`heir`). From then on it is
//!   asked about all keys, if the algorithm takes quotas. The first table is not asked any more, but keeps its states
//!   and its memory.
//!
//! *Where does it go on a live change?* The new limiter has tables of its own (`start`, `heir`). It copies the debts of
//! the old limiter's keys page by page (`debt_copies`): reads them as states (`read_states`), and converts them into
//! its own form once. A key moves from the copy into the table with its first request, which also copies its pages; the
//! thread that calls `replace` copies all others. A key that is not asked about stays in the copy until its debt is
//! paid. An algorithm of another kind, another clock or another stagger inherits nothing: all keys start with full
//! budgets. `ledger` joins a table of words with its rule and with these copies.
//!
//! *Where is it after a restart?* In a snapshot (`snapshot`), from which a new limiter inherits as from a predecessor
//! (`restored`).
//!
//! *When is it evicted?* A slot whose state owes nothing is free. If both sets of a new key are full of other keys, the
//! state that owes least is chosen (`table/placement`) and overwritten (`table/insert`), unless [`WhenFull`] says
//! otherwise; `locked` does both in `insert`. The evicted key's debt is forgiven. Only the count of evictions
//! (`occupancy`) remains, and heirs continue it.

mod debt_copies;
mod heir;
mod ledger;
mod locked;
#[cfg(all(test, sluice_loom))]
mod models;
mod occupancy;
mod own_quota;
mod quota_state;
mod quota_table;
mod read_states;
mod resets;
mod restored;
mod settings;
mod snapshot;
mod start;
mod table;
mod tables;
mod wall_time;
mod when_full;

pub use self::settings::MemoryStore;
pub use self::when_full::WhenFull;

use std::fmt;
use std::sync::{Arc, OnceLock};

use self::own_quota::UnderQuota;
use self::start::TableStart;
use self::tables::{KeyTable, Tables, any_table};
use super::{OpenStore, TableStats};
use crate::algorithm::{Algorithm, Kind};
use crate::values::time::{Clock, Monotonic, Timestamp};
use crate::values::{Answer, Ask, Decision, Heritage, Mode, Receipt};

/// The table of one [`RateLimiter`](crate::RateLimiter) in memory, with its [settings](MemoryStore). Clones share it.
pub struct MemoryTable<S, C = Monotonic> {
    store: MemoryStore<C>,
    /// The tables that [`TableStart`] has in use, from the first question on: reached with one pointer less.
    tables: OnceLock<Arc<Tables<S>>>,
    start: Arc<TableStart<S>>,
}

impl<S, C> Clone for MemoryTable<S, C> {
    fn clone(&self) -> Self {
        Self { store: self.store.clone(), tables: self.tables.clone(), start: Arc::clone(&self.start) }
    }
}

impl<A: Algorithm, C: Clock> OpenStore<A> for MemoryStore<C> {
    type Table = MemoryTable<A::State, C>;

    /// Makes the table at once, so that a limiter whose memory cannot be allocated fails when it is created.
    fn open(self, algorithm: &A) -> Self::Table {
        let table = self.table();
        *table.start.made.lock() = Some(Tables::new(algorithm, &table.store, table.store.capacity));
        table
    }
}

#[cold]
fn another_kind() -> ! {
    unreachable!("an algorithm stays what it is: its `kind` must always be the same");
}

impl<S: Copy + Send + 'static, C> MemoryTable<S, C> {
    /// Returns how many live keys the table holds without loss.
    pub(crate) fn capacity(&self) -> usize {
        self.in_use().map_or(self.store.capacity, |tables| tables.capacity)
    }

    pub(crate) fn size_in_bytes(&self) -> usize {
        let made = self.start.made.lock();
        self.in_use().map(|tables| &**tables).or(made.as_ref()).map_or(0, Tables::size_in_bytes)
    }

    /// Returns how many keys the table has evicted, and how many requests it has turned away.
    pub(crate) fn counts(&self) -> TableStats {
        self.in_use().map_or_else(TableStats::default, |tables| tables.occupancy().counts())
    }

    /// For tests, while no thread uses the table: panics if it is in disorder. `now` must be no earlier than any time
    /// that its clock has shown.
    #[cfg(feature = "test-util")]
    pub(crate) fn check_invariants(&self, now: Timestamp) {
        let Some(tables) = self.in_use() else { return };
        any_table!(&tables.key_table, table => table.check_invariants(now));
        if let Some(quotas) = tables.quota_table.get() {
            quotas.check_invariants(now);
        }
    }
}

impl<S: Copy + Send + 'static, C: Clock> MemoryTable<S, C> {
    /// Reads the time by which an algorithm counts.
    #[inline(always)]
    pub(crate) fn time<A: Algorithm<State = S>>(&self, algorithm: &A) -> Timestamp {
        if algorithm.follows_wall_clock() { self.store.clock.wall() } else { self.store.clock.now() }
    }

    /// Returns the instant of a question. The wall clock is read each time: it may be set during a request.
    #[inline(always)]
    fn time_of<A: Algorithm<State = S>>(&self, algorithm: &A, ask: &Ask<'_>) -> Timestamp {
        if algorithm.follows_wall_clock() { self.store.clock.wall() } else { ask.now(&self.store.clock) }
    }

    /// Decides under the limiter's own quota.
    #[inline(always)]
    fn charge_own<A: Algorithm<State = S>, T: From<Decision>>(
        &self,
        algorithm: &A,
        tables: &Tables<S>,
        ask: &Ask<'_>,
        hash: u64,
    ) -> T {
        let (now, fresh) = (|| self.time_of(algorithm, ask), || self.time(algorithm));
        // The kind is known when this is compiled, so at most one of the first three arms is left. Each makes its
        // answer in place: an answer made after the match would be copied.
        match (&tables.key_table, algorithm.kind()) {
            (KeyTable::Bucket(ledger), Kind::Bucket { .. }) => ledger.check(hash, ask.cost(), now, fresh),
            (KeyTable::Fixed(ledger), Kind::FixedWindow { .. }) => ledger.check(hash, ask.cost(), now, fresh),
            (KeyTable::Sliding(ledger), Kind::SlidingWindow { .. }) => ledger.check(hash, ask.cost(), now, fresh),
            (KeyTable::Locked(table), _) => T::from(table.check(algorithm, hash, ask.cost(), now, fresh)),
            _ => another_kind(),
        }
    }

    /// Decides, and charges the key if the request is admitted.
    #[inline(always)]
    pub(crate) fn charge<A: Algorithm<State = S>, T: From<Decision>>(&self, algorithm: &A, ask: &Ask<'_>) -> T {
        let tables = self.tables(algorithm);
        let hash = tables.hash(ask.key());
        // One branch for all three rare cases.
        if ask.quota().is_some() | tables.quota_table.get().is_some() | tables.resets.has_any() {
            return T::from(self.charge_seldom(algorithm, ask, hash));
        }
        self.charge_own(algorithm, tables, ask, hash)
    }

    /// Returns the decision that [`charge`](Self::charge) would make, if there is room for the key.
    #[inline(always)]
    pub(crate) fn peek<A: Algorithm<State = S>, T: From<Decision>>(&self, algorithm: &A, ask: &Ask<'_>) -> T {
        let tables = self.tables(algorithm);
        let hash = tables.hash(ask.key());
        let now = self.time_of(algorithm, ask);
        if let Some(under) = tables.judge_under_quota(algorithm, ask) {
            return T::from(self.peek_under(&under, algorithm, ask, (hash, now)));
        }
        match (&tables.key_table, algorithm.kind()) {
            (KeyTable::Bucket(ledger), Kind::Bucket { .. }) => ledger.peek(hash, ask.cost(), now),
            (KeyTable::Fixed(ledger), Kind::FixedWindow { .. }) => ledger.peek(hash, ask.cost(), now),
            (KeyTable::Sliding(ledger), Kind::SlidingWindow { .. }) => ledger.peek(hash, ask.cost(), now),
            (KeyTable::Locked(table), _) => T::from(table.peek(algorithm, hash, ask.cost(), now)),
            _ => another_kind(),
        }
    }

    /// Clears a key's debt. Earlier charges to this key, and to one in 256 of the other keys, are not refunded any
    /// more.
    #[cold]
    pub(crate) fn reset<A: Algorithm<State = S>>(&self, algorithm: &A, ask: &Ask<'_>) -> Decision {
        let tables = self.tables(algorithm);
        let hash = tables.hash(ask.key());
        tables.resets.run(hash, || tables.current().reset(hash, self.time(algorithm)));
        self.charge(algorithm, &Ask::charge(ask.key(), 0).under(ask.quota()))
    }

    #[cold]
    pub(crate) fn charge_up_to<A: Algorithm<State = S>>(&self, algorithm: &A, ask: &Ask<'_>) -> Decision {
        let decision: Decision = self.charge(algorithm, ask);
        match decision.partial_cost(ask.cost()) {
            Some(left) => self.charge(algorithm, &ask.costing(left)),
            None => decision,
        }
    }
}

impl<S: Copy + Send + 'static, C: Clock> MemoryTable<S, C> {
    #[inline(always)]
    pub(crate) fn decide<A: Algorithm<State = S>>(&self, algorithm: &A, ask: &Ask<'_>) -> Answer {
        match ask.mode() {
            Mode::Charge | Mode::Shadow | Mode::Fallback => self.charge(algorithm, ask),
            Mode::Peek => self.peek(algorithm, ask),
            Mode::UpTo => self.charge_up_to(algorithm, ask).into(),
            Mode::Reset => self.reset(algorithm, ask).into(),
        }
    }

    pub(crate) fn refund<A: Algorithm<State = S>>(
        &self,
        algorithm: &A,
        charged: &Ask<'_>,
        receipt: Receipt,
        units: u64,
    ) {
        let tables = self.tables(algorithm);
        let hash = tables.hash(charged.key());
        let Some(receipt) = tables.resets.open(hash, receipt) else { return };
        if charged.quota().is_some() | tables.quota_table.get().is_some() {
            if let Some(under) = UnderQuota::for_ask(algorithm, charged) {
                match tables.quota_table.get() {
                    Some(quotas) => return quotas.refund(&under, hash, units, receipt, self.time(algorithm)),
                    // After the charge came a live change to a limiter that is asked without quotas.
                    None if !under.has_units_of(&algorithm.quota()) => return,
                    None => {}
                }
            }
        }
        let now = self.time(algorithm);
        any_table!(
            &tables.key_table,
            words => words.refund(hash, units, receipt, now),
            states => states.refund(algorithm, hash, units, receipt, now)
        );
    }

    pub(crate) const fn clock(&self) -> &Arc<C> {
        &self.store.clock
    }

    /// Reads 4,096 slots at most: some 10 µs, and 50 if they are not in the processor's caches.
    pub(crate) fn stats<A: Algorithm<State = S>>(&self, algorithm: &A) -> TableStats {
        // Reading the gauges does not put the table into use: it may still inherit.
        let now = self.time(algorithm);
        let live = self.in_use().map_or(0, |tables| match tables.quota_table.get() {
            Some(quotas) => UnderQuota::without_conversion(algorithm).map_or(0, |under| quotas.live(&under, now)),
            None => any_table!(&tables.key_table, words => words.live(now), states => states.live(algorithm, now)),
        });
        TableStats { capacity: self.capacity() as u64, live_keys: live, ..self.counts() }
    }

    /// Returns a handle to its tables, for [heirs](Self::inherit).
    pub(crate) fn heritage<A: Algorithm<State = S>>(&self, algorithm: &A) -> Heritage {
        Heritage::new(Arc::clone(self.tables(algorithm)))
    }
}

impl<S: Copy + Send + 'static, C> fmt::Debug for MemoryTable<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TableStats { evicted_live, turned_away, .. } = self.counts();
        f.debug_struct("MemoryTable")
            .field("capacity", &self.capacity())
            .field("evicted_live", &evicted_live)
            .field("turned_away", &turned_away)
            .finish_non_exhaustive()
    }
}
