//! The memory store: fixed-size tables in this process, made from the settings in `settings`.
//!
//! *Where does a key's state live?* In one of its limiter's `tables`, in one of two candidate sets. Tables of both
//! kinds find it by `Geometry::candidate_sets` (`table/search`), and then by its tag: 28 bits of a keyed hash in words,
//! all 64 behind locks.
//!
//! - Under the limiter's own quota, buckets and windows that fit are words, without a lock (`table`). All other states
//!   are behind locks (`locked`), without their quota.
//! - Keys with their own quotas are in a second table, `quota_table`, with locks: states with their quotas
//!   (`quota_state`), judged by `own_quota`. It is made by the first question under a quota, by `take_quotas` (a policy
//!   has a `quota_fn`), or by a live change after which a key owes too much for words (`heir`). From then on it is
//!   asked about all keys, if the algorithm takes quotas. The first table is not asked any more, but keeps its states
//!   and its memory.
//!
//! *Where does it go on a live change?* The new limiter has its own tables (`start`, `heir`). It copies the old
//! limiter's debts page by page (`debt_copies`): reads them as states (`read_states`), and converts them into its own
//! form once. A key moves from the copy into the table with its first request, which also copies its pages; the thread
//! that calls `replace` copies all others. A key that is not asked about stays in the copy until its debt is paid.
//! After a change to another kind of algorithm, another clock or another stagger, the new limiter inherits nothing, so
//! all keys start with full budgets. `ledger` joins a word table with its rule and with these copies.
//!
//! *Where is it after a restart?* In a snapshot (`snapshot`), from which a new limiter inherits as from a predecessor
//! (`restored`).
//!
//! [`MemoryTable`] decides requests, and is compiled for each type of clock. All other operations are in
//! [`SharedTable`] (`start`).
//!
//! *When is it evicted?* A slot whose state owes nothing is free. If both of a new key's sets are full, the state that
//! owes least is chosen (`table/placement`) and overwritten (`table/insert`), unless [`WhenFull`] says otherwise;
//! `locked` does both in `insert`. The evicted key's debt is forgiven. Only the eviction count (`occupancy`) remains,
//! and heirs continue it.

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
pub(crate) use self::start::SharedTable;
pub use self::when_full::WhenFull;

use std::fmt;
use std::sync::{Arc, OnceLock};

use self::locked::LockedTable;
use self::own_quota::UnderQuota;
use self::tables::{KeyTable, Tables};
use super::{OpenStore, TableStats};
use crate::algorithm::{Algorithm, Kind};
use crate::values::time::{Clock, Monotonic, Timestamp};
use crate::values::{Answer, Ask, Decision, Heritage, Inheritance, Mode, Receipt};

/// The table in memory for one [`RateLimiter`](crate::RateLimiter), with its [settings](MemoryStore). Clones share it.
pub struct MemoryTable<S, C = Monotonic> {
    store: MemoryStore<C>,
    /// The tables that [`SharedTable`] has in use, from the first question on. Kept here as well, to follow one pointer
    /// less.
    tables: OnceLock<Arc<Tables<S>>>,
    shared: Arc<SharedTable<S>>,
}

impl<S, C> Clone for MemoryTable<S, C> {
    fn clone(&self) -> Self {
        Self { store: self.store.clone(), tables: self.tables.clone(), shared: Arc::clone(&self.shared) }
    }
}

impl<A: Algorithm, C: Clock> OpenStore<A> for MemoryStore<C> {
    type Table = MemoryTable<A::State, C>;

    /// Makes the table at once, so that a limiter whose memory cannot be allocated fails when it is created.
    fn open(self, algorithm: &A) -> Self::Table {
        self.open_with(|settings, capacity| Tables::new(algorithm, settings, capacity))
    }
}

impl<C: Clock> MemoryStore<C> {
    /// Like `open`, but until the table is asked for more, it has no operations except decisions.
    pub(crate) fn open_to_decide<A: Algorithm>(self, algorithm: &A) -> MemoryTable<A::State, C> {
        self.open_with(|settings, capacity| Tables::deciding(algorithm, settings, capacity))
    }

    fn open_with<S: Copy + Send + 'static>(
        self,
        make: impl FnOnce(&settings::Settings, usize) -> Tables<S>,
    ) -> MemoryTable<S, C> {
        let table = self.table();
        *table.shared.made.lock() = Some(make(&table.shared.settings, table.store.capacity));
        table
    }
}

#[cold]
fn another_kind() -> ! {
    unreachable!("an algorithm stays what it is: its `kind` must always be the same");
}

impl<S: Copy + Send + 'static, C> MemoryTable<S, C> {
    /// The operations that know no type of clock.
    pub(crate) const fn shared(&self) -> &Arc<SharedTable<S>> {
        &self.shared
    }

    /// Inherits from a table with the same kind of clock and state, as [`Limiter::inherit`](crate::Limiter::inherit)
    /// describes.
    pub(crate) fn inherit<A: Algorithm<State = S>>(
        &self,
        algorithm: &Arc<A>,
        heritage: &Heritage,
    ) -> Option<Inheritance<Self>> {
        let inheritance = self.shared.inherit(algorithm, heritage)?;
        Some(inheritance.map(|shared| Self::starting(self.store.clone(), shared)))
    }
}

/// Decides requests. These operations are compiled for each type of clock.
impl<S: Copy + Send + 'static, C: Clock> MemoryTable<S, C> {
    /// Reads the time by which an algorithm counts.
    #[inline(always)]
    pub(crate) fn time<A: Algorithm<State = S>>(&self, algorithm: &A) -> Timestamp {
        if algorithm.follows_wall_clock() { self.store.clock.wall() } else { self.store.clock.now() }
    }

    /// Returns the instant of a question. The wall clock is read each time, because it may be set during a request.
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
        // answer in place, because an answer made after the match would be copied.
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
        self.charge_with(algorithm, ask, |tables| T::from(self.shared.charge_seldom(algorithm, tables, ask)))
    }

    /// Decides, and charges the key if the request is admitted. `seldom` decides if keys have quotas of their own, or
    /// some were reset.
    #[inline(always)]
    pub(crate) fn charge_or_else<A: Algorithm<State = S>, T: From<Decision>>(
        &self,
        algorithm: &A,
        ask: &Ask<'_>,
        seldom: impl FnOnce() -> T,
    ) -> T {
        self.charge_with(algorithm, ask, |_| seldom())
    }

    #[inline(always)]
    fn charge_with<A: Algorithm<State = S>, T: From<Decision>>(
        &self,
        algorithm: &A,
        ask: &Ask<'_>,
        seldom: impl FnOnce(&Arc<Tables<S>>) -> T,
    ) -> T {
        let tables = self.tables(algorithm);
        let hash = tables.hash(ask.key());
        // All three rare cases take one branch.
        if ask.quota().is_some() | tables.quota_table.get().is_some() | tables.resets.has_any() {
            return seldom(tables);
        }
        self.charge_own(algorithm, tables, ask, hash)
    }

    /// Returns the decision that [`charge`](Self::charge) would make, if there is room for the key.
    #[inline(always)]
    pub(crate) fn peek<A: Algorithm<State = S>, T: From<Decision>>(&self, algorithm: &A, ask: &Ask<'_>) -> T {
        let tables = self.tables(algorithm);
        let hash = tables.hash(ask.key());
        let now = || self.time_of(algorithm, ask);
        if ask.quota().is_some() | tables.quota_table.get().is_some() {
            if let Some(decision) = self.shared.peek_under(algorithm, tables, ask, (hash, now())) {
                return T::from(decision);
            }
        }
        match (&tables.key_table, algorithm.kind()) {
            (KeyTable::Bucket(ledger), Kind::Bucket { .. }) => ledger.peek(hash, ask.cost(), now),
            (KeyTable::Fixed(ledger), Kind::FixedWindow { .. }) => ledger.peek(hash, ask.cost(), now),
            (KeyTable::Sliding(ledger), Kind::SlidingWindow { .. }) => ledger.peek(hash, ask.cost(), now),
            (KeyTable::Locked(table), _) => T::from(table.peek(algorithm, hash, ask.cost(), now())),
            _ => another_kind(),
        }
    }

    #[inline(always)]
    pub(crate) fn decide<A: Algorithm<State = S>>(&self, algorithm: &A, ask: &Ask<'_>) -> Answer {
        match ask.mode() {
            Mode::Charge | Mode::Shadow | Mode::Fallback => self.charge(algorithm, ask),
            Mode::Peek => self.peek(algorithm, ask),
            Mode::UpTo => self.charge_up_to(algorithm, ask).into(),
            Mode::Reset => self.shared.reset(algorithm, ask).into(),
        }
    }

    #[cold]
    pub(crate) fn charge_up_to<A: Algorithm<State = S>>(&self, algorithm: &A, ask: &Ask<'_>) -> Decision {
        let decision: Decision = self.charge(algorithm, ask);
        match decision.partial_cost(ask.cost()) {
            Some(left) => self.shared.charge_seldom(algorithm, self.tables(algorithm), &ask.costing(left)),
            None => decision,
        }
    }

    pub(crate) const fn clock(&self) -> &Arc<C> {
        &self.store.clock
    }
}

/// Decides on a key whose state is behind a lock, by a clock of any type.
fn charge_locked<A: Algorithm>(
    table: &LockedTable<A::State>,
    algorithm: &A,
    ask: &Ask<'_>,
    hash: u64,
    clock: &dyn Clock,
) -> Decision {
    if algorithm.follows_wall_clock() {
        // Read each time, because it may be set during a request.
        return table.check(algorithm, hash, ask.cost(), || clock.wall(), || clock.wall());
    }
    table.check(algorithm, hash, ask.cost(), || ask.now(clock), || clock.now())
}

impl<S: Copy + Send + 'static> SharedTable<S> {
    /// Returns how many live keys the table holds without loss.
    pub(crate) fn capacity(&self) -> usize {
        self.in_use().map_or(self.settings.capacity, |tables| tables.capacity)
    }

    pub(crate) fn size_in_bytes(&self) -> usize {
        let made = self.made.lock();
        self.in_use().map(|tables| &**tables).or(made.as_ref()).map_or(0, Tables::size_in_bytes)
    }

    /// Returns how many keys the table has evicted, and how many requests it has turned away.
    pub(crate) fn counts(&self) -> TableStats {
        self.in_use().map_or_else(TableStats::default, |tables| tables.occupancy().counts())
    }

    /// Panics if the table's invariants are broken. For tests, while no thread uses the table. `now` must be no earlier
    /// than any time that its clock has shown.
    #[cfg(feature = "test-util")]
    pub(crate) fn check_invariants(&self, now: Timestamp) {
        let Some(tables) = self.in_use() else { return };
        match &tables.key_table {
            KeyTable::Bucket(words) => words.check_invariants(now),
            KeyTable::Fixed(words) => words.check_invariants(now),
            KeyTable::Sliding(words) => words.check_invariants(now),
            KeyTable::Locked(states) => states.check_invariants(now),
        }
        if let Some(quotas) = tables.quota_table.get() {
            quotas.check_invariants(now);
        }
    }

    /// Decides under the limiter's own quota, as [`MemoryTable::charge_own`] does.
    fn charge_own<A: Algorithm<State = S>>(
        &self,
        algorithm: &A,
        tables: &Tables<S>,
        ask: &Ask<'_>,
        hash: u64,
    ) -> Decision {
        let clock = &*self.settings.clock;
        tables.complete(algorithm);
        match &tables.key_table {
            KeyTable::Locked(states) => charge_locked(states, algorithm, ask, hash, clock),
            table => table.words().map_or_else(|| another_kind(), |words| words.decide(ask, hash, clock)),
        }
    }

    /// Clears a key's debt. Earlier charges to this key, and to one in 256 of the other keys, are not refunded any
    /// more.
    #[cold]
    #[inline(never)]
    pub(crate) fn reset<A: Algorithm<State = S>>(&self, algorithm: &A, ask: &Ask<'_>) -> Decision {
        let tables = self.whole_tables(algorithm);
        let hash = tables.hash(ask.key());
        tables.resets.run(hash, || tables.current().reset(hash, self.settings.time(algorithm)));
        self.charge_seldom(algorithm, tables, &Ask::charge(ask.key(), 0).under(ask.quota()))
    }

    pub(crate) fn refund<A: Algorithm<State = S>>(
        &self,
        algorithm: &A,
        charged: &Ask<'_>,
        receipt: Receipt,
        units: u64,
    ) {
        let tables = self.whole_tables(algorithm);
        let hash = tables.hash(charged.key());
        let Some(receipt) = tables.resets.open(hash, receipt) else { return };
        if charged.quota().is_some() | tables.quota_table.get().is_some() {
            if let Some(under) = UnderQuota::for_ask(algorithm, charged) {
                match tables.quota_table.get() {
                    Some(quotas) => return quotas.refund(&under, hash, units, receipt, self.settings.time(algorithm)),
                    // A live change to a limiter that is asked without quotas came after the charge.
                    None if !under.has_units_of(&algorithm.quota()) => return,
                    None => {}
                }
            }
        }
        let now = self.settings.time(algorithm);
        match &tables.key_table {
            KeyTable::Locked(states) => states.refund(algorithm, hash, units, receipt, now),
            table => table.words().into_iter().for_each(|words| words.refund(hash, units, receipt, now)),
        }
    }

    /// Reads 4,096 slots at most, in some 10 µs, or 50 µs if they are not in the processor's caches.
    pub(crate) fn stats<A: Algorithm<State = S>>(&self, algorithm: &A) -> TableStats {
        // Reading the gauges does not put the table into use, so it may still inherit.
        let now = self.settings.time(algorithm);
        let live = self.whole_in_use(algorithm).map_or(0, |tables| match tables.quota_table.get() {
            Some(quotas) => UnderQuota::without_conversion(algorithm).map_or(0, |under| quotas.live(&under, now)),
            None => match &tables.key_table {
                KeyTable::Locked(states) => states.live(algorithm, now),
                table => table.words().map_or(0, |words| words.live(now)),
            },
        });
        TableStats { capacity: self.capacity() as u64, live_keys: live, ..self.counts() }
    }

    /// Returns a handle to its tables, for [heirs](Self::inherit).
    pub(crate) fn heritage<A: Algorithm<State = S>>(&self, algorithm: &A) -> Heritage {
        Heritage::new(Arc::clone(self.whole_tables(algorithm)))
    }
}

impl<S: Copy + Send + 'static, C> fmt::Debug for MemoryTable<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TableStats { evicted_live, turned_away, .. } = self.shared.counts();
        f.debug_struct("MemoryTable")
            .field("capacity", &self.shared.capacity())
            .field("evicted_live", &evicted_live)
            .field("turned_away", &turned_away)
            .finish_non_exhaustive()
    }
}
