//! [`RateLimiter`]: an algorithm, and the table in which it keeps the keys' states.

use std::io;
use std::sync::Arc;

use super::{IntoLimiter, Limiter};
use crate::algorithm::Algorithm;
use crate::store::remote::{Backend, RemoteTable};
use crate::store::{MemoryStore, MemoryTable, OpenStore, SharedTable, Stats};
use crate::values::snapshot::{Commit, SavedTable, TableSink, Unfit, WallClock};
use crate::values::time::Clock;
#[cfg(feature = "test-util")]
use crate::values::time::Timestamp;
use crate::values::{Answer, Ask, Decision, Description, Heritage, Inheritance, KeepsStates, PartitionKey, Receipt};

/// An [`Algorithm`], and the table in which it keeps the keys' states: in memory, or on a server.
///
/// Usable on its own, without any HTTP:
///
/// ```
/// use tower_sluice::algorithm::SlidingWindow;
/// use tower_sluice::{PartitionKey, Quota, RateLimiter};
///
/// let limiter = RateLimiter::in_memory(SlidingWindow::new(Quota::per_minute(2)));
/// let alice = PartitionKey::from("alice");
///
/// for expected in [true, true, false] {
///     assert_eq!(limiter.check(&alice).is_allowed(), expected);
/// }
/// ```
///
/// `T` is the table: a [`MemoryTable`], unless the [store](OpenStore) says another. Clones share the table.
#[derive(Debug)]
#[doc(alias = "governor")]
pub struct RateLimiter<A: Algorithm, T = MemoryTable<<A as Algorithm>::State>> {
    /// Shared with this limiter's heirs.
    algorithm: Arc<A>,
    table: T,
}

impl<A: Algorithm, T: Clone> Clone for RateLimiter<A, T> {
    fn clone(&self) -> Self {
        Self { algorithm: Arc::clone(&self.algorithm), table: self.table.clone() }
    }
}

impl<A: Algorithm> RateLimiter<A> {
    /// `algorithm` with a [`MemoryStore`] for 65,536 live keys.
    #[must_use]
    pub fn in_memory(algorithm: A) -> Self {
        Self::new(algorithm, MemoryStore::default())
    }

    /// `algorithm` with a table that can only decide until it is asked for more.
    pub(super) fn open_to_decide(algorithm: A) -> Self {
        let table = MemoryStore::default().open_to_decide(&algorithm);
        Self { algorithm: Arc::new(algorithm), table }
    }
}

impl<A: Algorithm, T> RateLimiter<A, T> {
    /// `algorithm` with a table that is made by the settings in `store`.
    ///
    /// # Panics
    ///
    /// If the store cannot keep this algorithm or its quota, or if there is not enough memory.
    #[must_use]
    #[track_caller]
    pub fn new(algorithm: A, store: impl OpenStore<A, Table = T>) -> Self {
        let table = store.open(&algorithm);
        Self { algorithm: Arc::new(algorithm), table }
    }

    /// The algorithm.
    #[must_use]
    pub fn algorithm(&self) -> &A {
        &self.algorithm
    }
}

impl<A: Algorithm, C: Clock> RateLimiter<A, MemoryTable<A::State, C>> {
    /// Charges one unit to `key`, if it is admitted. A limiter in memory decides at once and cannot fail.
    ///
    /// For another cost, use [`acquire`](crate::LimiterExt::acquire).
    #[inline]
    #[doc(alias = "try_acquire")]
    pub fn check(&self, key: &PartitionKey) -> Decision {
        self.table.charge(&*self.algorithm, &Ask::charge(key, 1))
    }

    /// Returns how many live keys the table holds without loss. After a live change, perhaps the capacity of the
    /// previous table.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.table.shared().capacity()
    }

    /// Returns the table's bytes, which never grows. Without the copies of a [live change](crate::LimitsHandle#cost),
    /// which are kept until all debts in them are paid and at most double this (unless it changes the capacity), and
    /// one KiB from the first reset on.
    #[must_use]
    pub fn size_in_bytes(&self) -> usize {
        self.table.shared().size_in_bytes()
    }

    /// Returns how many keys were evicted while they still owed something
    /// ([`WhenFull::EvictLeast`](crate::store::WhenFull::EvictLeast)), or were forgotten by a
    /// [live change](crate::LimitsHandle#accuracy) of a full table. After a change, with those from before it.
    #[must_use]
    pub fn evicted_live(&self) -> u64 {
        self.table.shared().counts().evicted_live
    }

    /// Returns how many requests on new keys were rejected, or had to share a budget, because the table was full
    /// ([`WhenFull::Reject`](crate::store::WhenFull::Reject),
    /// [`WhenFull::Overflow`](crate::store::WhenFull::Overflow)). After a live change, with those from before it.
    #[must_use]
    pub fn turned_away(&self) -> u64 {
        self.table.shared().counts().turned_away
    }

    /// For this crate's tests, while no thread uses the limiter: panics if its table is in disorder. Its clock must
    /// have shown no later time.
    #[cfg(feature = "test-util")]
    #[doc(hidden)]
    pub fn check_invariants(&self) {
        self.table.shared().check_invariants(self.table.time(&*self.algorithm));
    }
}

impl<A: Algorithm, C: Clock> RateLimiter<A, MemoryTable<A::State, C>> {
    /// Describes a limiter in memory, without its states.
    pub(super) fn described_in_memory(&self) -> Description {
        let clock = Arc::<C>::clone(self.table.clock());
        self.described(Description::new().answering_all().deciding_by(clock))
    }

    /// Charges a key. `seldom` decides if keys have their own quotas, or some were reset.
    #[inline(always)]
    pub(super) fn charge_or_else(&self, ask: &Ask<'_>, seldom: impl FnOnce() -> Answer) -> Answer {
        self.table.charge_or_else(&*self.algorithm, ask, seldom)
    }
}

impl<A: Algorithm, T> RateLimiter<A, T> {
    /// Describes the part that all tables share: the algorithm.
    fn described(&self, table: Description) -> Description {
        let table = table.advertising(self.algorithm.terms()).admitting_at_most(self.algorithm.max_cost());
        if self.algorithm.under(self.algorithm.quota()).is_some() { table.taking_quotas() } else { table }
    }
}

/// In memory.
impl<A: Algorithm, C: Clock> Limiter for RateLimiter<A, MemoryTable<A::State, C>> {
    // Inlined down to the table, so that a caller that reads only the outcome does not pay for the rest.
    #[inline(always)]
    fn decide(&self, ask: &Ask<'_>) -> Answer {
        self.table.decide(&*self.algorithm, ask)
    }

    fn refund(&self, charged: &Ask<'_>, receipt: Receipt, units: u64) {
        self.table.shared().refund(&*self.algorithm, charged, receipt, units);
    }

    fn describe(&self) -> Description {
        let states = StatesInMemory { algorithm: Arc::clone(&self.algorithm), table: Arc::clone(self.table.shared()) };
        self.described_in_memory().keeping_states(states)
    }

    fn inherit(&self, predecessor: &dyn Limiter) -> Option<Inheritance<Arc<dyn Limiter>>> {
        let heritage = predecessor.describe().keeps_states()?.heritage();
        let heir = |table| Self { algorithm: Arc::clone(&self.algorithm), table }.into_limiter();
        Some(self.table.inherit(&self.algorithm, &heritage)?.map(heir))
    }

    fn stats(&self) -> Stats {
        Stats { table: Some(self.table.shared().stats(&*self.algorithm)), ..Stats::default() }
    }
}

/// The states of a limiter in memory, by a clock of any type.
struct StatesInMemory<A: Algorithm> {
    algorithm: Arc<A>,
    table: Arc<SharedTable<A::State>>,
}

impl<A: Algorithm> KeepsStates for StatesInMemory<A> {
    fn heritage(&self) -> Heritage {
        self.table.heritage(&*self.algorithm)
    }

    fn take_quotas(&self) {
        self.table.take_quotas(&*self.algorithm);
    }

    fn save(&self, sink: &mut dyn TableSink) -> io::Result<Result<(), Unfit>> {
        self.table.save(&*self.algorithm, sink)
    }

    fn prepare(&self, saved: SavedTable, wall: WallClock) -> Result<Commit, Unfit> {
        self.table.prepare(&self.algorithm, saved, wall)
    }

    #[cfg(feature = "test-util")]
    fn check_invariants(&self, now: Timestamp) {
        self.table.check_invariants(now);
    }
}

/// On a server.
impl<A: Algorithm + Clone, B: Backend<A>> Limiter for RateLimiter<A, RemoteTable<A::State, B>> {
    fn decide(&self, ask: &Ask<'_>) -> Answer {
        self.table.decide(&*self.algorithm, ask)
    }

    fn refund(&self, charged: &Ask<'_>, receipt: Receipt, units: u64) {
        self.table.refund(&*self.algorithm, charged, receipt, units);
    }

    fn describe(&self) -> Description {
        self.described(self.table.describe(&*self.algorithm).keeping_states(self.clone()))
    }

    fn inherit(&self, predecessor: &dyn Limiter) -> Option<Inheritance<Arc<dyn Limiter>>> {
        let heritage = predecessor.describe().keeps_states()?.heritage();
        let heir = |table| Self { algorithm: Arc::clone(&self.algorithm), table }.into_limiter();
        Some(self.table.inherit(&self.algorithm, &heritage)?.map(heir))
    }

    fn stats(&self) -> Stats {
        self.table.stats::<A>()
    }
}

impl<A: Algorithm + Clone, B: Backend<A>> KeepsStates for RateLimiter<A, RemoteTable<A::State, B>> {
    fn heritage(&self) -> Heritage {
        self.table.heritage()
    }

    fn take_quotas(&self) {
        self.table.take_quotas(&*self.algorithm);
    }
}
