//! The memory store: tables of a fixed size in this process.
//!
//! Buckets, and windows whose counts fit, are kept in a set-associative table of words, without a lock (`table`);
//! everything else in a table behind locks (`locked`). `ledger` joins a table of words with its rule and with what it
//! has inherited. Keys that have quotas of their own are kept in a second table with locks, with their quotas
//! (`own_quota`). At a live change, `heir_table` makes the new table, and `debt_copies` holds what its keys owe from
//! before, which `debt_sources` reads from the old table.

mod debt_copies;
mod debt_sources;
mod heir_table;
#[cfg(feature = "test-util")]
mod invariants;
mod ledger;
mod locked;
#[cfg(all(test, sluice_loom))]
mod models;
mod occupancy;
mod own_quota;
mod published;
mod resets;
mod table;
mod when_full;

pub use self::when_full::WhenFull;

#[cfg(feature = "test-util")]
pub use self::invariants::check_invariants_of;

use std::any::TypeId;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use self::ledger::Ledger;
use self::locked::LockedTable;
use self::occupancy::Occupancy;
use self::own_quota::{QuotaState, Under};
use self::resets::Resets;
use self::table::{FixedRule, SlidingRule, TickBucket};
use super::{Stats, Store, TableStats};
use crate::algorithm::{Algorithm, ChargedIn, Kind};
use crate::util::keyed_hash::Secret;
use crate::values::time::{Clock, Monotonic, Timestamp};
use crate::values::{Ask, Check, Decision, Description, Heritage, Inheritance, Mode, PartitionKey, Quota, Receipt};

/// A table of fixed size in this process's memory. The default store.
///
/// A store serves one limiter: what it keeps of a key is meaningful for that limiter's quota only. To change a quota,
/// make another limiter with another store, and let it [inherit](crate::Limiter::inherit).
///
/// `S` is the state of the algorithm; it is inferred.
///
/// ```
/// use tower_sluice::algorithm::TokenBucket;
/// use tower_sluice::store::MemoryStore;
/// use tower_sluice::{Quota, RateLimiter};
///
/// let limiter = RateLimiter::new(TokenBucket::new(Quota::per_second(10)), MemoryStore::with_capacity(100_000));
/// assert!(limiter.store().size_in_bytes() < 17 * 100_000);
/// ```
///
/// # Memory
///
/// For each key of capacity, two slots: **16 bytes for buckets and windows**, whatever the length of the keys. Keys are
/// not stored, only bits of a keyed hash. The system hands the memory out when it is first touched, so an idle limiter
/// takes next to none. The table never grows, and no task, no thread and no pass cleans up: a slot whose debt is paid
/// *is* free. A table of more than 16 MiB is freed by a thread of its own, since the last to hold it may be a request
/// from before a live change.
///
/// Windows whose counts do not fit into a word, windows of the calendar, and algorithms of your own take a table with
/// locks, of 50 bytes per key for windows. These limits fit:
///
/// | window of | [`FixedWindow`](crate::algorithm::FixedWindow) | [`SlidingWindow`](crate::algorithm::SlidingWindow) |
/// |---|---|---|
/// | five seconds or more | all | up to 65,535 |
/// | a second | up to 536,870,911 | up to 16,383 |
/// | a millisecond | up to 524,287 | up to 511 |
///
/// # Quotas of the keys' own
///
/// From the first question [under a quota](Ask::under) on, or once a policy has a
/// [`quota_fn`](crate::Policy::quota_fn), all keys are in another table with locks, which keeps the quota of each key
/// with its state: as large, of 100 bytes per key for buckets and 82 for windows, whatever the number of different
/// quotas. It is made when the policy is, or by [`Limiter::take_quotas`](crate::Limiter::take_quotas). A key whose quota
/// changes keeps what it has used: it is converted, as by a live change, at the first question under the other quota.
///
/// A limiter that is in use hands its keys on to that table, as to an heir. Without `take_quotas`, the first question under
/// a quota makes the table before it is answered (100 MB for a million keys), and a thread copies the keys.
///
/// # When it is full
///
/// Up to `capacity` live keys (keys that still owe something) are held without losing one. Beyond that, both candidate
/// sets of a new key may be full of live keys; [`WhenFull`] chooses what happens then.
/// [`evicted_live`](Self::evicted_live) and [`turned_away`](Self::turned_away) count how often. A warning is logged
/// once, when some three fifths of the slots are taken (more keys than its capacity), or when the first key is evicted
/// or turned away.
///
/// # Accuracy
///
/// Two keys share a slot, and so a budget, if 28 bits of their hashes and one of their candidate sets are equal: for a
/// new key in a half-full table, with a probability of 3 × 10⁻⁸ (64 bits, and 5 × 10⁻¹⁴ at a million keys, in the table
/// with locks). The hash is SipHash-1-3 with a secret drawn for each store, so an attacker cannot choose keys that
/// share.
///
/// # Cost
///
/// One compare-and-swap on a word in one or two cache lines; a rejection only reads. A new key takes a lock that it
/// shares with one in 256 others. The table with locks takes one or two at each decision, for eight slots each, and a
/// third for a new key with [`WhenFull::Overflow`].
#[doc(alias("in memory", "hash map"))]
pub struct MemoryStore<S, C = Monotonic> {
    capacity: usize,
    when_full: WhenFull,
    clock: Arc<C>,
    /// A table that was made and not used yet: it may still inherit.
    made: Mutex<Option<Kept<S>>>,
    /// Shared with what heirs copy from.
    kept: OnceLock<Arc<Kept<S>>>,
    /// Whether its limiter is asked under quotas of the keys' own.
    takes_quotas: AtomicBool,
}

/// What a store keeps: its table, and what an heir needs of it.
struct Kept<S> {
    secret: Secret,
    capacity: usize,
    table: Table<S>,
    /// Made for the first question under a quota of its key's own. From then on it has all keys, and `table` none.
    quotas: OnceLock<QuotaTable<S>>,
    resets: Resets,
    terms: Terms,
    /// Frees large tables on a thread of their own.
    free: fn(&mut Self),
}

/// The table of keys with quotas of their own.
type QuotaTable<S> = LockedTable<QuotaState<S>>;

/// No request must free more bytes than these, since that takes as much longer. A request may be the last to hold a
/// table, if it came before a live change and is answered long after it.
const LARGE: usize = 16 << 20;

impl<S> Drop for Kept<S> {
    fn drop(&mut self) {
        if self.size_in_bytes() > LARGE {
            (self.free)(self);
        }
    }
}

fn free<S: Copy + Send + 'static>(kept: &mut Kept<S>) {
    let table = std::mem::replace(&mut kept.table, Table::Locked(LockedTable::new(1, WhenFull::default())));
    let tables = (table, kept.quotas.take());
    // If no thread can be spawned, the closure, and with it the tables, is dropped here.
    let _ = std::thread::Builder::new().name("tower-sluice-free".to_owned()).spawn(move || drop(tables));
}

/// What the states in a table depend on, for heirs.
#[derive(Clone, Copy)]
struct Terms {
    algorithm: TypeId,
    clock: TypeId,
    quota: Quota,
    /// When windows begin, for receipts: see [`Algorithm::schedule`].
    schedule: u64,
    /// Whether the windows of each key begin at an instant of its own.
    staggered: bool,
    /// Whether the states are those of buckets.
    is_bucket: bool,
}

impl Terms {
    /// Whether an heir with the terms `to` has the same algorithm, and the windows of each key begin at the same
    /// instants. If a key's phase changes, its counts are of no window of the heir.
    fn has_windows_of(&self, to: &Self) -> bool {
        let same_period = || self.quota.period_nanos() == to.quota.period_nanos();
        let same_algorithm = self.algorithm == to.algorithm || (self.is_bucket && to.is_bucket);
        same_algorithm && self.staggered == to.staggered && (!to.staggered || same_period())
    }
}

enum Table<S> {
    /// One word per key, for buckets.
    Bucket(Ledger<TickBucket>),
    /// One word per key, for windows whose counts fit.
    Fixed(Ledger<FixedRule>),
    Sliding(Ledger<SlidingRule>),
    /// Any state, behind locks.
    Locked(LockedTable<S>),
}

/// Evaluates one expression for whichever table it is.
macro_rules! any_table {
    ($which:expr, $table:ident => $answer:expr) => {
        match $which {
            Table::Bucket($table) => $answer,
            Table::Fixed($table) => $answer,
            Table::Sliding($table) => $answer,
            Table::Locked($table) => $answer,
        }
    };
}
use any_table;

impl<S> Table<S> {
    fn size_in_bytes(&self) -> usize {
        any_table!(self, table => table.size_in_bytes())
    }
}

/// The rule by which an algorithm's keys can be kept in words.
enum WordRule {
    Bucket(TickBucket),
    Fixed(FixedRule),
    Sliding(SlidingRule),
}

impl WordRule {
    fn of(algorithm: &impl Algorithm) -> Option<Self> {
        match algorithm.kind() {
            Kind::Bucket { quota } => TickBucket::new(&quota).map(Self::Bucket),
            Kind::FixedWindow { quota, staggered } => FixedRule::holding(&quota, staggered, 0).map(Self::Fixed),
            Kind::SlidingWindow { quota, staggered } => SlidingRule::holding(&quota, staggered, 0).map(Self::Sliding),
            Kind::Other => None,
        }
    }
}

/// More would not fit into any memory, nor into the arithmetic of candidate sets.
const MOST_KEYS: usize = 1 << if usize::BITS < 64 { 27 } else { 33 };

#[cold]
fn another_kind() -> ! {
    unreachable!("an algorithm stays what it is: its `kind` must always be the same");
}

#[cold]
fn no_memory(keys: usize, bytes: usize) -> ! {
    panic!("a store for {keys} keys takes {bytes} bytes, and there is not so much memory; choose a smaller capacity");
}

/// Enough for most services: 1 MiB, and 3 in the table with locks.
const DEFAULT_CAPACITY: usize = 65_536;

impl<S: Copy> MemoryStore<S> {
    /// A store for up to `keys` live keys.
    ///
    /// # Panics
    ///
    /// If `keys` is zero, or above 2^33 (2^27 where an address has 32 bits); and, when it is given to a limiter, if the
    /// memory cannot be had.
    #[must_use]
    #[track_caller]
    pub fn with_capacity(keys: usize) -> Self {
        assert!(keys > 0, "a store must hold at least one key");
        assert!(keys <= MOST_KEYS, "a store holds {MOST_KEYS} keys at most, and not {keys}; choose a smaller capacity");
        Self::build(keys, WhenFull::default(), Arc::new(Monotonic))
    }
}

impl<S: Copy> Default for MemoryStore<S> {
    /// A store for 65,536 live keys.
    fn default() -> Self {
        Self::with_capacity(DEFAULT_CAPACITY)
    }
}

impl<S: Copy, C> MemoryStore<S, C> {
    const fn build(capacity: usize, when_full: WhenFull, clock: Arc<C>) -> Self {
        Self {
            capacity,
            when_full,
            clock,
            made: Mutex::new(None),
            kept: OnceLock::new(),
            takes_quotas: AtomicBool::new(false),
        }
    }

    /// Reads the time from `clock`. For a store that no limiter has yet: timestamps of two clocks do not compare.
    #[must_use]
    pub fn with_clock<D: Clock>(self, clock: D) -> MemoryStore<S, D> {
        MemoryStore::build(self.capacity, self.when_full, Arc::new(clock))
    }

    /// Sets what happens to new keys for which there is no room.
    #[must_use]
    pub fn when_full(self, choice: WhenFull) -> Self {
        Self::build(self.capacity, choice, self.clock)
    }

    /// Returns how many live keys the store holds without loss.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.kept.get().map_or(self.capacity, |kept| kept.capacity)
    }

    /// Returns the bytes of its tables, which never grow. Zero before the store is given to a limiter. Without what a
    /// [live change](crate::LimitsHandle#cost) copies until it is paid, as much again at most (unless it changes the
    /// capacity), and one KiB from the first reset on.
    #[must_use]
    pub fn size_in_bytes(&self) -> usize {
        let made = self.made();
        self.kept.get().map(|kept| &**kept).or(made.as_ref()).map_or(0, Kept::size_in_bytes)
    }

    /// Returns how many keys were evicted while they still owed something ([`WhenFull::EvictLeast`]), or were forgotten
    /// by a [live change](crate::LimitsHandle#accuracy) of a full table. After a change, with those from before it.
    #[must_use]
    pub fn evicted_live(&self) -> u64 {
        self.occupancy().map_or(0, Occupancy::evicted)
    }

    /// Returns how many requests of new keys were rejected, or had to share a budget, because the table was full
    /// ([`WhenFull::Reject`], [`WhenFull::Overflow`]). After a live change, with those from before it.
    #[must_use]
    pub fn turned_away(&self) -> u64 {
        self.occupancy().map_or(0, Occupancy::turned_away)
    }

    fn occupancy(&self) -> Option<&Occupancy> {
        self.kept.get().map(|kept| kept.occupancy())
    }

    fn made(&self) -> MutexGuard<'_, Option<Kept<S>>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: Copy + Send + 'static, C: Clock> MemoryStore<S, C> {
    #[inline]
    fn kept<A: Algorithm<State = S>>(&self, algorithm: &A) -> &Arc<Kept<S>> {
        self.kept.get_or_init(|| {
            let made = self.made().take();
            Arc::new(made.unwrap_or_else(|| self.make(algorithm, self.capacity)))
        })
    }

    fn make<A: Algorithm<State = S>>(&self, algorithm: &A, capacity: usize) -> Kept<S> {
        let (keys, when_full) = (capacity, self.when_full);
        let table = match WordRule::of(algorithm) {
            Some(WordRule::Bucket(rule)) => {
                Table::Bucket(Ledger::new(rule.started_before(self.clock.now()), keys, when_full).numbered())
            }
            Some(WordRule::Fixed(rule)) => Table::Fixed(Ledger::new(rule, keys, when_full)),
            Some(WordRule::Sliding(rule)) => Table::Sliding(Ledger::new(rule, keys, when_full)),
            None => Table::Locked(LockedTable::new(keys, when_full)),
        };
        let terms = Terms {
            algorithm: TypeId::of::<A>(),
            clock: TypeId::of::<C>(),
            quota: algorithm.quota(),
            schedule: algorithm.schedule(),
            staggered: !algorithm.phase(u64::MAX).is_zero(),
            is_bucket: matches!(algorithm.kind(), Kind::Bucket { .. }),
        };
        let quotas = OnceLock::new();
        Kept { secret: Secret::random(), capacity, table, quotas, resets: Resets::default(), terms, free }
    }

    /// Returns the table of keys with quotas of their own, made if there is none yet: of a store that was asked without
    /// quotas so far, its keys begin with what they owe there.
    #[inline]
    fn quotas<'a, A: Algorithm<State = S>>(&self, algorithm: &A, kept: &'a Arc<Kept<S>>) -> &'a QuotaTable<S> {
        kept.quotas.get().unwrap_or_else(|| self.make_quotas(algorithm, kept))
    }

    #[cold]
    #[inline(never)]
    fn make_quotas<'a, A: Algorithm<State = S>>(&self, algorithm: &A, kept: &'a Arc<Kept<S>>) -> &'a QuotaTable<S> {
        let mut is_made = false;
        let quotas = kept.quotas.get_or_init(|| {
            is_made = true;
            heir_table::quotas_from(algorithm, kept, true, (kept.capacity, self.when_full), self.clock.now())
        });
        if let Some(past) = quotas.inherited().filter(|_| is_made) {
            // Not on this thread, which answers a request. And not page by page as requests need them: the copies hold the
            // store until all is copied.
            let shared = Arc::clone(past);
            let thread = std::thread::Builder::new().name("tower-sluice-copy".to_owned());
            if thread.spawn(move || shared.copy_all()).is_err() {
                past.copy_all();
            }
        }
        quotas
    }

    /// Decides on a key whose table is that of keys with quotas of their own, or is from this question on.
    #[cold]
    #[inline(never)]
    fn charge_under<A: Algorithm<State = S>>(&self, under: &Under<A>, algorithm: &A, ask: &Ask<'_>) -> Decision {
        let kept = self.kept(algorithm);
        let quotas = self.quotas(algorithm, kept);
        let hash = kept.hash(ask.key());
        // As in `charge`.
        let resets = kept.resets.count(hash);
        let decision = quotas.check(under, hash, ask.cost(), || ask.now(&self.clock), || self.clock.now());
        if resets == 0 { decision } else { resets::with_count(decision, resets) }
    }

    #[cold]
    #[inline(never)]
    fn peek_under<A: Algorithm<State = S>>(
        &self,
        under: &Under<A>,
        algorithm: &A,
        (hash, now, cost): (u64, Timestamp, u32),
    ) -> Decision {
        self.quotas(algorithm, self.kept(algorithm)).peek(under, hash, now, cost)
    }

    /// Returns how to judge a question for which the keys' own quotas matter: since it has one, or since questions
    /// before had.
    #[inline(always)]
    fn under<A: Algorithm<State = S>>(kept: &Kept<S>, algorithm: &A, ask: &Ask<'_>) -> Option<Under<A>> {
        // One branch for all others.
        if ask.quota().is_some() | kept.quotas.get().is_some() { Under::of(algorithm, ask) } else { None }
    }
}

impl<S> Kept<S> {
    #[inline(always)]
    fn hash(&self, key: &PartitionKey) -> u64 {
        self.secret.hash(key.as_bytes())
    }

    fn occupancy(&self) -> &Occupancy {
        match self.quotas.get() {
            Some(quotas) => quotas.occupancy(),
            None => any_table!(&self.table, table => table.occupancy()),
        }
    }

    fn size_in_bytes(&self) -> usize {
        self.table.size_in_bytes() + self.quotas.get().map_or(0, LockedTable::size_in_bytes)
    }
}

impl<S: Copy + Send + 'static, C: Clock> MemoryStore<S, C> {
    /// Decides, and charges what is admitted.
    #[inline(always)]
    pub(crate) fn charge<A: Algorithm<State = S>>(&self, algorithm: &A, ask: &Ask<'_>) -> Decision {
        let kept = self.kept(algorithm);
        if let Some(under) = Self::under(kept, algorithm, ask) {
            return self.charge_under(&under, algorithm, ask);
        }
        let hash = kept.hash(ask.key());
        // Before the charge: a reset in between must count as one after it (see `Resets::count`).
        let resets = kept.resets.count(hash);
        let (now, fresh) = (|| ask.now(&self.clock), || self.clock.now());
        // The kind is known when this is compiled, so at most one of the first three arms is left.
        let decision = match (&kept.table, algorithm.kind()) {
            (Table::Bucket(ledger), Kind::Bucket { .. }) => ledger.check(hash, ask.cost(), now, fresh),
            (Table::Fixed(ledger), Kind::FixedWindow { .. }) => ledger.check(hash, ask.cost(), now, fresh),
            (Table::Sliding(ledger), Kind::SlidingWindow { .. }) => ledger.check(hash, ask.cost(), now, fresh),
            (Table::Locked(table), _) => table.check(algorithm, hash, ask.cost(), now, fresh),
            _ => another_kind(),
        };
        if resets == 0 { decision } else { resets::with_count(decision, resets) }
    }

    /// Returns what [`charge`](Self::charge) would decide, if there is room for the key.
    pub(crate) fn peek<A: Algorithm<State = S>>(&self, algorithm: &A, ask: &Ask<'_>) -> Decision {
        let kept = self.kept(algorithm);
        let hash = kept.hash(ask.key());
        let now = ask.now(&self.clock);
        if let Some(under) = Self::under(kept, algorithm, ask) {
            return self.peek_under(&under, algorithm, (hash, now, ask.cost()));
        }
        match &kept.table {
            Table::Bucket(ledger) => ledger.peek(hash, ask.cost(), now),
            Table::Fixed(ledger) => ledger.peek(hash, ask.cost(), now),
            Table::Sliding(ledger) => ledger.peek(hash, ask.cost(), now),
            Table::Locked(table) => table.peek(algorithm, hash, now, ask.cost()),
        }
    }

    /// Clears what a key owes. After it, nothing is refunded that was charged before, also for one in 256 of the other
    /// keys.
    #[cold]
    pub(crate) fn reset<A: Algorithm<State = S>>(&self, algorithm: &A, ask: &Ask<'_>) -> Decision {
        let kept = self.kept(algorithm);
        let hash = kept.hash(ask.key());
        kept.resets.run(hash, || match (kept.quotas.get(), &kept.table) {
            (Some(quotas), _) => quotas.reset(hash),
            (None, Table::Bucket(ledger)) => ledger.reset(hash, self.clock.now()),
            (None, Table::Fixed(ledger)) => ledger.reset(hash, self.clock.now()),
            (None, Table::Sliding(ledger)) => ledger.reset(hash, self.clock.now()),
            (None, Table::Locked(table)) => table.reset(hash),
        });
        self.charge(algorithm, &Ask::charge(ask.key(), 0).under(ask.quota()))
    }

    #[cold]
    pub(crate) fn charge_up_to<A: Algorithm<State = S>>(&self, algorithm: &A, ask: &Ask<'_>) -> Decision {
        let decision = self.charge(algorithm, ask);
        match decision.partial_cost(ask.cost()) {
            Some(left) => self.charge(algorithm, &ask.costing(left)),
            None => decision,
        }
    }
}

impl<A: Algorithm, C: Clock> Store<A> for MemoryStore<A::State, C> {
    /// # Panics
    ///
    /// If this store was prepared for another quota, by which it would go on to judge.
    #[track_caller]
    fn prepare(&self, algorithm: &A) {
        let mut made = self.made();
        let kept = match self.kept.get() {
            Some(kept) => kept,
            None => &*made.get_or_insert_with(|| self.make(algorithm, self.capacity)),
        };
        let is_same = match (&kept.table, WordRule::of(algorithm)) {
            (Table::Bucket(ledger), Some(WordRule::Bucket(rule))) => ledger.rule().is_like(&rule),
            (Table::Fixed(ledger), Some(WordRule::Fixed(rule))) => ledger.rule().is_like(&rule),
            (Table::Sliding(ledger), Some(WordRule::Sliding(rule))) => ledger.rule().is_like(&rule),
            // The locked table judges by the algorithm that each call passes.
            (Table::Locked(_), _) => true,
            _ => false,
        };
        assert!(is_same, "a store serves one limiter, with one quota");
    }

    #[inline(always)]
    fn decide(&self, algorithm: &A, ask: &Ask<'_>) -> Check {
        // Each arm makes its answer in place: one that is made after the match would be copied.
        match ask.mode() {
            Mode::Charge | Mode::Shadow | Mode::Fallback => self.charge(algorithm, ask).into(),
            Mode::Peek => self.peek(algorithm, ask).into(),
            Mode::UpTo => self.charge_up_to(algorithm, ask).into(),
            Mode::Reset => self.reset(algorithm, ask).into(),
        }
    }

    fn refund(&self, algorithm: &A, key: &PartitionKey, receipt: Receipt, cost: u32) {
        let kept = self.kept(algorithm);
        let hash = kept.hash(key);
        let Some(receipt) = kept.resets.open(hash, receipt) else { return };
        if let Some(quotas) = kept.quotas.get() {
            if let Some(under) = Under::of(algorithm, &Ask::charge(key, cost)) {
                return quotas.refund(&under, hash, self.clock.now(), cost, receipt);
            }
        }
        match &kept.table {
            Table::Bucket(ledger) => ledger.refund(hash, cost, ledger.paid_at(receipt), self.clock.now()),
            Table::Fixed(ledger) => ledger.refund(hash, cost, ChargedIn::read(receipt), self.clock.now()),
            Table::Sliding(ledger) => ledger.refund(hash, cost, ChargedIn::read(receipt), self.clock.now()),
            Table::Locked(table) => table.refund(algorithm, hash, self.clock.now(), cost, receipt),
        }
    }

    fn refund_under(&self, algorithm: &A, quota: Quota, key: &PartitionKey, receipt: Receipt, cost: u32) {
        let kept = self.kept(algorithm);
        let hash = kept.hash(key);
        let under = Under::of(algorithm, &Ask::charge(key, cost).under(Some(quota)));
        match (kept.quotas.get(), under, kept.resets.open(hash, receipt)) {
            (Some(quotas), Some(under), Some(receipt)) => {
                quotas.refund(&under, hash, self.clock.now(), cost, receipt);
            }
            // After a live change to a limiter that is asked without quotas.
            (None, Some(under), _) if under.has_units_of(&algorithm.quota()) => {
                self.refund(algorithm, key, receipt, cost);
            }
            _ => {}
        }
    }

    /// Makes the table of keys with quotas. If the store is in use, returns once all keys are copied.
    fn take_quotas(&self, algorithm: &A) -> bool {
        self.takes_quotas.store(true, Ordering::Relaxed);
        let mut made = self.made();
        if let Some(kept) = self.kept.get() {
            drop(made);
            if let Some(past) = self.quotas(algorithm, kept).inherited() {
                past.copy_all();
            }
            return true;
        }
        let kept = made.get_or_insert_with(|| self.make(algorithm, self.capacity));
        kept.quotas.get_or_init(|| LockedTable::new(kept.capacity, self.when_full));
        true
    }

    fn describe(&self, _: &A) -> Description {
        Description::new().answering_all().deciding_by(Arc::<C>::clone(&self.clock))
    }

    /// Reads 4,096 slots at most: some 10 µs, and 50 if they are not in the processor's caches.
    fn stats(&self, algorithm: &A) -> Stats {
        // Reading the gauges is no use of the store: it may still inherit.
        let of_quotas =
            |kept: &Kept<A::State>| Some(kept.quotas.get()?.live(&Under::keeping(algorithm)?, self.clock.now()));
        let live = self.kept.get().map_or(0, |kept| match &kept.table {
            _ if kept.quotas.get().is_some() => of_quotas(kept).unwrap_or(0),
            Table::Bucket(ledger) => ledger.live(self.clock.now()),
            Table::Fixed(ledger) => ledger.live(self.clock.now()),
            Table::Sliding(ledger) => ledger.live(self.clock.now()),
            Table::Locked(table) => table.live(algorithm, self.clock.now()),
        });
        let table = TableStats {
            capacity: self.capacity() as u64,
            live_keys: live,
            evicted_live: self.evicted_live(),
            turned_away: self.turned_away(),
            inherited: self.occupancy().map_or((0, 0), Occupancy::inherited),
            number: self.occupancy().map(Occupancy::number),
        };
        Stats { table: Some(table), ..Stats::default() }
    }

    /// From a `MemoryStore` with the same kind of clock and state: see [`Limiter::inherit`](crate::Limiter::inherit).
    fn inherit(&self, algorithm: &Arc<A>, heritage: &Heritage) -> Option<Inheritance<Self>> {
        heir_table::inherit(self, algorithm, &heritage.downcast()?)
    }

    fn heritage(&self, algorithm: &A) -> Option<Heritage> {
        Some(Heritage::new(Arc::clone(self.kept(algorithm))))
    }
}

impl<S: Copy, C> fmt::Debug for MemoryStore<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("capacity", &self.capacity())
            .field("evicted_live", &self.evicted_live())
            .field("turned_away", &self.turned_away())
            .finish_non_exhaustive()
    }
}
