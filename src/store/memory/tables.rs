//! Which tables a limiter has, and how they are chosen.

use std::any::TypeId;
use std::sync::{Arc, OnceLock, Weak};

use super::ledger::{Ledger, WordTable};
use super::locked::LockedTable;
use super::occupancy::Occupancy;
use super::quota_state::QuotaState;
use super::read_states::AnyTable;
use super::resets::Resets;
use super::settings::Settings;
use super::table::{Codec, FixedRule, SlidingRule, TickBucket};
use super::when_full::WhenFull;
use crate::algorithm::{Algorithm, Kind};
use crate::util::keyed_hash::Secret;
use crate::values::{PartitionKey, Quota};

/// A limiter's tables, with the settings that an heir needs.
pub(super) struct Tables<S> {
    /// The tables from which these have inherited.
    pub(super) predecessor: Weak<Self>,
    pub(super) secret: Secret,
    pub(super) capacity: usize,
    pub(super) key_table: KeyTable<S>,
    /// Made in the cases that the head of `memory/mod.rs` lists. From then on it is asked about all keys, and
    /// `key_table` is not.
    pub(super) quota_table: OnceLock<QuotaTable<S>>,
    pub(super) resets: Resets,
    pub(super) terms: HeirTerms,
    /// Frees large tables on their own thread.
    free: OnceLock<fn(&mut Self)>,
}

/// The table for keys with their own quotas.
pub(super) type QuotaTable<S> = LockedTable<QuotaState<S>>;

/// The table for keys under the limiter's own quota. The enum has its own discriminant, which each decision reads,
/// because a discriminant encoded in a variant's field takes more instructions.
#[repr(u8)]
pub(super) enum KeyTable<S> {
    /// One word per key, for buckets.
    Bucket(Ledger<TickBucket>),
    /// One word per key, for windows whose counts fit.
    Fixed(Ledger<FixedRule>),
    Sliding(Ledger<SlidingRule>),
    /// Any state, behind locks.
    Locked(LockedTable<S>),
}

impl<S: Copy + Send + 'static> KeyTable<S> {
    pub(super) fn as_table(&self) -> &dyn AnyTable {
        match self {
            Self::Locked(states) => states,
            _ => self.words().expect("it is no other kind").as_table(),
        }
    }

    /// Returns the table, if its keys are words.
    pub(super) fn words(&self) -> Option<&dyn WordTable> {
        match self {
            Self::Bucket(ledger) => Some(ledger.as_words()),
            Self::Fixed(ledger) => Some(ledger.as_words()),
            Self::Sliding(ledger) => Some(ledger.as_words()),
            Self::Locked(_) => None,
        }
    }

    pub(super) fn occupancy(&self) -> &Arc<Occupancy> {
        match self {
            Self::Bucket(ledger) => &ledger.table().occupancy,
            Self::Fixed(ledger) => &ledger.table().occupancy,
            Self::Sliding(ledger) => &ledger.table().occupancy,
            Self::Locked(states) => states.occupancy(),
        }
    }

    fn size_in_bytes(&self) -> usize {
        match self {
            Self::Bucket(ledger) => ledger.table().size_in_bytes(),
            Self::Fixed(ledger) => ledger.table().size_in_bytes(),
            Self::Sliding(ledger) => ledger.table().size_in_bytes(),
            Self::Locked(states) => states.size_in_bytes(),
        }
    }

    pub(super) fn words_mut(&mut self) -> Option<&mut dyn WordTable> {
        match self {
            Self::Bucket(ledger) => Some(ledger.as_words_mut()),
            Self::Fixed(ledger) => Some(ledger.as_words_mut()),
            Self::Sliding(ledger) => Some(ledger.as_words_mut()),
            Self::Locked(_) => None,
        }
    }
}

/// A limiter's tables, with states of any type, as its heirs see them.
pub(super) trait AnyTables: Send + Sync {
    fn terms(&self) -> &HeirTerms;

    fn secret(&self) -> Secret;

    fn resets(&self) -> &Resets;

    /// Returns the table that has the keys.
    fn current(&self) -> &dyn AnyTable;

    /// Returns whether keys may have their own quotas.
    fn has_quotas(&self) -> bool;

    /// Returns the table for keys under the limiter's own quota, even if it has handed its keys on.
    fn without_quotas(&self) -> &dyn AnyTable;

    /// Returns the table for keys under the limiter's own quota, if it is one of buckets.
    fn bucket(&self) -> Option<&Ledger<TickBucket>>;

    /// Whether windows under the limiter's own quota have other numbers than by the clock.
    fn is_skewed(&self) -> bool;
}

impl<S: Copy + Send + 'static> AnyTables for Tables<S> {
    fn terms(&self) -> &HeirTerms {
        &self.terms
    }

    fn secret(&self) -> Secret {
        self.secret
    }

    fn resets(&self) -> &Resets {
        &self.resets
    }

    fn current(&self) -> &dyn AnyTable {
        self.current()
    }

    fn has_quotas(&self) -> bool {
        self.quota_table.get().is_some()
    }

    fn without_quotas(&self) -> &dyn AnyTable {
        self.key_table.as_table()
    }

    fn bucket(&self) -> Option<&Ledger<TickBucket>> {
        match &self.key_table {
            KeyTable::Bucket(ledger) => Some(ledger),
            _ => None,
        }
    }

    fn is_skewed(&self) -> bool {
        match &self.key_table {
            KeyTable::Fixed(ledger) => ledger.is_skewed(),
            _ => false,
        }
    }
}

/// The settings that the states in a table depend on, for heirs.
#[derive(Clone, Copy)]
pub(super) struct HeirTerms {
    algorithm: TypeId,
    pub(super) clock: TypeId,
    pub(super) quota: Quota,
    /// When windows begin, for receipts, as [`Algorithm::schedule`] returns it.
    pub(super) schedule: u64,
    /// Whether each key's windows begin at an instant of their own.
    pub(super) staggered: bool,
    /// Whether the algorithm is a bucket.
    pub(super) is_bucket: bool,
}

impl HeirTerms {
    pub(super) fn new<A: Algorithm>(algorithm: &A, clock: TypeId) -> Self {
        Self {
            algorithm: TypeId::of::<A>(),
            clock,
            quota: algorithm.quota(),
            schedule: algorithm.schedule(),
            staggered: !algorithm.phase(u64::MAX).is_zero(),
            is_bucket: matches!(algorithm.kind(), Kind::Bucket { .. }),
        }
    }

    /// The terms for a snapshot's table, with the same algorithm.
    pub(super) fn restored(self, quota: Quota, schedule: u64, staggered: bool) -> Self {
        Self { quota, schedule, staggered, ..self }
    }

    /// Whether an heir with the terms `to` has the same algorithm, and each key keeps its phase. If a key's phase
    /// changes, its counts match no window in the heir.
    pub(super) fn has_windows_of(&self, to: &Self) -> bool {
        let has_same_algorithm = self.algorithm == to.algorithm || (self.is_bucket && to.is_bucket);
        let has_same_period = self.quota.period_nanos() == to.quota.period_nanos();
        has_same_algorithm && self.staggered == to.staggered && (!to.staggered || has_same_period)
    }
}

impl<S: Copy + Send + 'static> Tables<S> {
    pub(super) fn new<A: Algorithm<State = S>>(algorithm: &A, settings: &Settings, capacity: usize) -> Self {
        let tables = Self::deciding(algorithm, settings, capacity);
        tables.complete(algorithm);
        tables
    }

    /// Adds the operations beside decisions. Inlined, as `key_table_of` is.
    #[inline(always)]
    pub(super) fn complete<A: Algorithm<State = S>>(&self, algorithm: &A) {
        self.free.get_or_init(|| free);
        match (&self.key_table, algorithm.kind()) {
            (KeyTable::Bucket(ledger), Kind::Bucket { .. }) => ledger.complete(),
            (KeyTable::Fixed(ledger), Kind::FixedWindow { .. }) => ledger.complete(),
            (KeyTable::Sliding(ledger), Kind::SlidingWindow { .. }) => ledger.complete(),
            _ => {}
        }
    }

    /// Makes tables that only decide until they are [completed](Self::complete).
    pub(super) fn deciding<A: Algorithm<State = S>>(algorithm: &A, settings: &Settings, capacity: usize) -> Self {
        let terms = HeirTerms::new(algorithm, settings.clock_type);
        let key_table = Self::key_table_of(algorithm.kind(), settings, capacity)
            .unwrap_or_else(|| KeyTable::Locked(LockedTable::new(capacity, settings.when_full)));
        let quota_table = OnceLock::new();
        Self {
            predecessor: Weak::new(),
            secret: Secret::random(),
            capacity,
            key_table,
            quota_table,
            resets: Resets::default(),
            terms,
            free: OnceLock::new(),
        }
    }

    /// Makes a word table, if states of that kind fit into words. Inlined, so that the kind is known, and the program
    /// only has the rule for that kind.
    #[inline(always)]
    fn key_table_of(kind: Kind, settings: &Settings, capacity: usize) -> Option<KeyTable<S>> {
        match kind {
            Kind::Bucket { quota } => bucket_words(&quota, settings, capacity).map(KeyTable::Bucket),
            Kind::FixedWindow { quota, staggered } => {
                fixed_words(&quota, staggered, settings, capacity).map(KeyTable::Fixed)
            }
            Kind::SlidingWindow { quota, staggered } => {
                sliding_words(&quota, staggered, settings, capacity).map(KeyTable::Sliding)
            }
            Kind::Other => None,
        }
    }

    #[inline(always)]
    pub(super) fn hash(&self, key: &PartitionKey) -> u64 {
        self.secret.hash(key.as_bytes())
    }

    /// Returns the table that has the keys.
    pub(super) fn current(&self) -> &dyn AnyTable {
        match self.quota_table.get() {
            Some(quotas) => quotas,
            None => self.key_table.as_table(),
        }
    }

    pub(super) fn occupancy(&self) -> &Arc<Occupancy> {
        self.quota_table.get().map_or_else(|| self.key_table.occupancy(), AnyTable::occupancy)
    }

    pub(super) fn size_in_bytes(&self) -> usize {
        let quotas = self.quota_table.get().map_or(0, AnyTable::size_in_bytes);
        self.key_table.size_in_bytes() + quotas
    }
}

// Separate functions without type parameters, so that a ledger is compiled in this crate, once, and not in each crate
// that makes a limiter.

fn bucket_words(quota: &Quota, settings: &Settings, capacity: usize) -> Option<Ledger<TickBucket>> {
    let rule = TickBucket::new(quota)?.started_before(settings.clock.now());
    Some(Ledger::new(rule, capacity, settings.when_full))
}

fn fixed_words(quota: &Quota, staggered: bool, settings: &Settings, capacity: usize) -> Option<Ledger<FixedRule>> {
    Some(Ledger::new(FixedRule::holding(quota, staggered, 0)?, capacity, settings.when_full))
}

fn sliding_words(quota: &Quota, staggered: bool, settings: &Settings, capacity: usize) -> Option<Ledger<SlidingRule>> {
    Some(Ledger::new(SlidingRule::holding(quota, staggered, 0)?, capacity, settings.when_full))
}

/// The most bytes that a request may free, because the time grows with the size. A request may be the last to hold a
/// table, if it came before a live change and is answered long after it.
const LARGE: usize = 16 << 20;

impl<S> Drop for Tables<S> {
    fn drop(&mut self) {
        if let Some(free) = self.free.get().copied() {
            free(self);
        }
    }
}

fn free<S: Copy + Send + 'static>(tables: &mut Tables<S>) {
    if tables.size_in_bytes() <= LARGE {
        return;
    }
    let key_table =
        std::mem::replace(&mut tables.key_table, KeyTable::Locked(LockedTable::new(1, WhenFull::default())));
    let large = (key_table, tables.quota_table.take());
    // If no thread can be spawned, the closure, and with it the tables, is dropped here.
    let _ = std::thread::Builder::new().name("tower-sluice-free".to_owned()).spawn(move || drop(large));
}
