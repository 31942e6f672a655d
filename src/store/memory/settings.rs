//! [`MemoryStore`]: the settings of a table in memory.

use std::any::TypeId;
use std::fmt;
use std::sync::Arc;

use super::when_full::WhenFull;
use crate::algorithm::Algorithm;
use crate::values::time::{Clock, Monotonic, Timestamp};

/// The settings for a fixed-size table in this process's memory: its capacity, its clock, and the choice for a full
/// table. The default store.
///
/// [`RateLimiter::new`](crate::RateLimiter::new) makes the table, one for each limiter. To change a quota, make another
/// limiter, and let it [inherit](crate::Limiter::inherit).
///
/// ```
/// use tower_sluice::algorithm::TokenBucket;
/// use tower_sluice::store::MemoryStore;
/// use tower_sluice::{Quota, RateLimiter};
///
/// let limiter = RateLimiter::new(TokenBucket::new(Quota::per_second(10)), MemoryStore::with_capacity(100_000));
/// assert!(limiter.size_in_bytes() < 17 * 100_000);
/// ```
///
/// # Memory
///
/// For each key of capacity, two slots: **16 bytes for buckets and windows**, and less than one more for their pages'
/// words. Keys may have any length, since they are not stored, only some bits of a keyed hash. The system hands the
/// memory out when it is first touched, so an idle limiter takes almost no memory. The table never grows, and no task,
/// no thread and no pass cleans up, because a slot whose debt is paid *is* free. A table of more than 16 MiB is freed
/// by its own thread, since the last to hold it may be a request from before a live change.
///
/// States that do not fit into a word take a table with locks: buckets whose limit or burst is above 4,294,967,295, or
/// whose limit is above four units per nanosecond; windows whose limits exceed the first table below; windows by the
/// calendar; and your own algorithms.
///
/// | window of | [`FixedWindow`](crate::algorithm::FixedWindow) | [`SlidingWindow`](crate::algorithm::SlidingWindow) |
/// |---|---|---|
/// | five seconds or more | up to 4,294,967,295 | up to 65,535 |
/// | a second | up to 536,870,911 | up to 16,383 |
/// | a millisecond | up to 524,287 | up to 511 |
///
/// | bytes per key | bucket | fixed window, calendar | sliding window |
/// |---|---|---|---|
/// | words | 16 | 16 (calendar: 52) | 16 |
/// | with locks | 52 | 52 | 68 |
/// | with locks, and [quotas of the keys' own](#quotas-of-the-keys-own) | 98 | 98 | 114 |
///
/// # Quotas of the keys' own
///
/// From the first question [under a quota](crate::limiter::Ask::under) on, or once a policy has a
/// [`quota_fn`](crate::Policy::quota_fn) or a `window_fn`, all keys are in another table with locks, which keeps each
/// key's state with its quota, or with its calendar's number. It has the same capacity, and takes 98 bytes per key, or
/// 114 for sliding windows, however many different quotas there are. It comes on top of the first table, which stays:
/// words that are never touched take no memory, but states that do not fit into words take 52 or 68 bytes per key there
/// as well. It is made together with the policy. A key whose quota changes keeps its used units: they are converted, as
/// by a live change, at the first question under the other quota.
///
/// A limiter that is in use hands its keys on to that table, as to an heir. Without a policy, the first question under
/// a quota makes the table before it is answered (100 MB for a million keys), and a thread copies the keys.
///
/// # Restarts
///
/// The memory is gone with the process. The snapshots of a layer keep the keys' usage: see [the
/// guide](crate::guide::restarts).
///
/// # When it is full
///
/// Up to `capacity` live keys (keys that still owe something) are held without losing one. Beyond that, both candidate
/// sets of a new key may be full of live keys; [`WhenFull`] chooses whether a key is evicted, or the new key is
/// rejected or shares a budget. [`RateLimiter::evicted_live`](crate::RateLimiter::evicted_live) and
/// [`turned_away`](crate::RateLimiter::turned_away) count how often. A warning is logged once, when some three fifths
/// of the slots are taken (more keys than its capacity), or when the first key is evicted or turned away.
///
/// # Accuracy
///
/// Two keys share a slot, and so a budget, if 28 bits of their hashes and one candidate set are equal. For a new key in
/// a half-full table, the probability is 3 × 10⁻⁸ (64 bits, and 5 × 10⁻¹⁴ at a million keys, in the table with locks).
/// The hash is SipHash-1-3 with a secret drawn for each limiter, which its heirs keep, so an attacker cannot choose
/// keys that share a slot.
///
/// # Cost
///
/// A decision takes one compare-and-swap on a word in one or two cache lines; a rejection only reads. A new key takes a
/// lock that it shares with one in 256 others. The table with locks takes one or two locks at each decision, for eight
/// slots each, and a third lock for a new key with [`WhenFull::Overflow`].
#[must_use]
#[doc(alias("in memory", "hash map"))]
pub struct MemoryStore<C = Monotonic> {
    pub(super) capacity: usize,
    pub(super) when_full: WhenFull,
    pub(super) clock: Arc<C>,
}

/// More keys would exceed any memory, and overflow the arithmetic for candidate sets.
const MOST_KEYS: usize = 1 << if usize::BITS < 64 { 27 } else { 33 };

/// Enough for most services: 1 MiB, and 3 in the table with locks.
const DEFAULT_CAPACITY: usize = 65_536;

impl<C> Clone for MemoryStore<C> {
    fn clone(&self) -> Self {
        Self { clock: Arc::clone(&self.clock), ..*self }
    }
}

impl MemoryStore {
    /// Makes a table for up to `keys` live keys.
    ///
    /// # Panics
    ///
    /// If `keys` is zero, or above 2^33 (2^27 where an address has 32 bits); and, when a limiter is made, if the memory
    /// cannot be allocated.
    #[track_caller]
    pub fn with_capacity(keys: usize) -> Self {
        assert!(keys > 0, "a store must hold at least one key");
        assert!(keys <= MOST_KEYS, "a store holds {MOST_KEYS} keys at most, and not {keys}; choose a smaller capacity");
        Self { capacity: keys, when_full: WhenFull::default(), clock: Arc::new(Monotonic) }
    }
}

impl Default for MemoryStore {
    /// Makes a table for 65,536 live keys.
    fn default() -> Self {
        Self::with_capacity(DEFAULT_CAPACITY)
    }
}

impl<C> MemoryStore<C> {
    /// Reads the time from `clock`.
    pub fn with_clock<D: Clock>(self, clock: D) -> MemoryStore<D> {
        MemoryStore { capacity: self.capacity, when_full: self.when_full, clock: Arc::new(clock) }
    }

    /// Sets how new keys are treated when there is no room for them.
    pub const fn when_full(mut self, choice: WhenFull) -> Self {
        self.when_full = choice;
        self
    }
}

impl<C: Clock> MemoryStore<C> {
    pub(super) fn settings(&self) -> Settings {
        let Self { capacity, when_full, ref clock } = *self;
        Settings { capacity, when_full, clock: Arc::clone(clock) as _, clock_type: TypeId::of::<C>() }
    }
}

/// A [`MemoryStore`] with a clock of any type.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) capacity: usize,
    pub(super) when_full: WhenFull,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) clock_type: TypeId,
}

impl Settings {
    /// Reads the time by which an algorithm counts.
    pub(super) fn time<A: Algorithm>(&self, algorithm: &A) -> Timestamp {
        if algorithm.follows_wall_clock() { self.clock.wall() } else { self.clock.now() }
    }
}

impl<C> fmt::Debug for MemoryStore<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("capacity", &self.capacity)
            .field("when_full", &self.when_full)
            .finish_non_exhaustive()
    }
}
