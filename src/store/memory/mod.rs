mod line;

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use self::line::{Line, SLOTS, Tag};
use super::Store;
use crate::algorithm::Algorithm;
use crate::decision::{Check, Decision, Receipt};
use crate::partition::PartitionKey;
use crate::time::{Clock, Monotonic, Timestamp};

/// A table of fixed size in this process's memory. The default store.
///
/// `S` is the state of the algorithm that it serves; it is inferred.
///
/// ```
/// use tower_sluice::algorithm::TokenBucket;
/// use tower_sluice::store::MemoryStore;
/// use tower_sluice::{Quota, RateLimiter};
///
/// let limiter = RateLimiter::new(TokenBucket::new(Quota::per_second(10)), MemoryStore::with_capacity(100_000));
/// ```
///
/// # Memory
///
/// All memory is taken when the store is made, and none after: 68 bytes per key of capacity for a
/// bucket, and 50 for a window, whatever the length of the keys. Keys themselves are not stored, only
/// a keyed 64-bit hash; no task, no thread and no pass ever cleans up, since a slot whose state has
/// expired *is* free.
///
/// # When it is full
///
/// Up to `capacity` live keys (keys that still owe something) are held with practically no loss.
/// Beyond, a new key may find both of its places full of live keys. Then **the key that owes least
/// is forgotten**: it gets its small debt forgiven, while whoever has drawn most stays limited
/// however many keys are sprayed. [`evicted_live`](Self::evicted_live) counts how often; if it grows,
/// raise the capacity.
///
/// # Accuracy
///
/// Two keys share a slot, and so a budget, if their hashes are equal in all 64 bits: with a million
/// live keys, a new one meets such a stranger with a probability of 5 × 10⁻¹⁴. The hash is SipHash
/// with a secret drawn for each store, so nobody can aim.
///
/// # Cost
///
/// A decision locks one line of eight slots, or two for a key that is new or in its second home;
/// threads that work on different keys rarely meet.
pub struct MemoryStore<S, C = Monotonic> {
    lines: Box<[Mutex<Line<S>>]>,
    hasher: RandomState,
    clock: C,
    evicted_live: AtomicU64,
}

/// Enough for most services: 3 to 5 MiB for each policy.
const DEFAULT_CAPACITY: usize = 65_536;

impl<S: Copy> MemoryStore<S> {
    /// A store for up to `keys` live keys.
    ///
    /// # Panics
    ///
    /// If `keys` is zero, or the memory cannot be had.
    #[must_use]
    #[track_caller]
    pub fn with_capacity(keys: usize) -> Self {
        assert!(keys > 0, "a store must hold at least one key");
        // Half load: two random homes of eight slots then practically never overflow (see line.rs).
        let lines = keys.saturating_mul(2).div_ceil(SLOTS).max(2);
        Self {
            lines: std::iter::repeat_with(|| Mutex::new(Line::new())).take(lines).collect(),
            hasher: RandomState::new(),
            clock: Monotonic,
            evicted_live: AtomicU64::new(0),
        }
    }
}

impl<S: Copy> Default for MemoryStore<S> {
    /// A store for 65,536 live keys.
    fn default() -> Self {
        Self::with_capacity(DEFAULT_CAPACITY)
    }
}

impl<S: Copy, C> MemoryStore<S, C> {
    /// Tells the time by `clock` from now on. For a store that is not in use yet: timestamps of two
    /// clocks do not compare.
    #[must_use]
    pub fn with_clock<D: Clock>(self, clock: D) -> MemoryStore<S, D> {
        MemoryStore { lines: self.lines, hasher: self.hasher, clock, evicted_live: self.evicted_live }
    }

    /// How many live keys the store holds without loss.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.lines.len() * SLOTS / 2
    }

    /// The bytes of its table.
    #[must_use]
    pub fn size_in_bytes(&self) -> usize {
        size_of_val(&*self.lines)
    }

    /// How many keys were forgotten while they still owed something, because the store was full.
    #[must_use]
    pub fn evicted_live(&self) -> u64 {
        self.evicted_live.load(Ordering::Relaxed)
    }

    /// The two lines in which a key may live, the one to be locked first in front.
    ///
    /// Always locking the lower line first is what keeps two threads with the same pair from
    /// waiting for each other.
    fn homes(&self, hash: u64) -> (usize, usize) {
        let count = self.lines.len() as u64;
        // The high and the low half of the hash each choose a line by multiplying, as dividing
        // would be slower and masking would need a power of two.
        #[allow(clippy::cast_possible_truncation)]
        let (a, b) = ((((hash >> 32) * count) >> 32) as usize, (((hash & 0xffff_ffff) * count) >> 32) as usize);
        let b = if a == b { (b + 1) % self.lines.len() } else { b };
        (a.min(b), a.max(b))
    }

    fn lock(&self, line: usize) -> MutexGuard<'_, Line<S>> {
        // A panicking algorithm leaves the line as it was: states are replaced whole.
        self.lines[line].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `transition` on what is remembered of `key`, and remembers what it returns.
    ///
    /// A key lives in at most one of its homes, because it is only ever put into one while both are
    /// locked and neither has it. So the first home may be searched, and a key found there served,
    /// under that home's lock alone.
    fn with_state<A, R>(
        &self,
        algorithm: &A,
        key: &PartitionKey,
        transition: impl FnOnce(Option<S>, Timestamp) -> (R, Option<S>),
    ) -> R
    where
        A: Algorithm<State = S>,
        C: Clock,
    {
        let hash = self.hasher.hash_one(key.as_bytes());
        let tag = Tag::new(hash).unwrap_or(Tag::MIN);
        let now = self.clock.now();
        let (low, high) = self.homes(hash);

        let mut low = self.lock(low);
        if let Some(state) = low.find(tag) {
            return step(state, now, transition);
        }
        let mut high = self.lock(high);
        if let Some(state) = high.find(tag) {
            return step(state, now, transition);
        }

        let (result, next) = transition(None, now);
        if let Some(state) = next {
            let is_free = |state: &S| algorithm.expires_at(state) <= now;
            // The emptier of the two: choosing it is what keeps both from filling up early.
            let (emptier, fuller) =
                if low.free(is_free) >= high.free(is_free) { (&mut low, &mut high) } else { (&mut high, &mut low) };
            if !emptier.put(tag, state, is_free) {
                let owed = |state: &S| algorithm.owed(state, now);
                let line = if emptier.least(owed) <= fuller.least(owed) { emptier } else { fuller };
                line.replace_least(tag, state, owed);
                self.evicted_live.fetch_add(1, Ordering::Relaxed);
            }
        }
        result
    }
}

fn step<S: Copy, R>(
    state: &mut S,
    now: Timestamp,
    transition: impl FnOnce(Option<S>, Timestamp) -> (R, Option<S>),
) -> R {
    let (result, next) = transition(Some(*state), now);
    if let Some(next) = next {
        *state = next;
    }
    result
}

impl<A: Algorithm, C: Clock> Store<A> for MemoryStore<A::State, C> {
    fn check(&self, algorithm: &A, key: &PartitionKey, cost: u32) -> Check {
        self.with_state(algorithm, key, |state, now| algorithm.decide(state, now, cost)).into()
    }

    fn peek(&self, algorithm: &A, key: &PartitionKey, cost: u32) -> Option<Decision> {
        Some(self.with_state(algorithm, key, |state, now| (algorithm.decide(state, now, cost).0, None)))
    }

    fn give_back(&self, algorithm: &A, key: &PartitionKey, cost: u32, receipt: Receipt) {
        self.with_state(algorithm, key, |state, now| {
            ((), state.map(|state| algorithm.give_back(state, now, cost, receipt)))
        });
    }
}

impl<S: Copy, C> fmt::Debug for MemoryStore<S, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("capacity", &self.capacity())
            .field("evicted_live", &self.evicted_live())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{FixedWindowState, GcraState, SlidingWindowState};

    /// What the documentation says.
    #[test]
    fn bytes_per_key() {
        fn of<S: Copy>() -> usize {
            MemoryStore::<S>::with_capacity(10_000).size_in_bytes() / 10_000
        }
        assert_eq!(of::<GcraState>(), 68);
        assert_eq!(of::<FixedWindowState>(), 50);
        assert_eq!(of::<SlidingWindowState>(), 50);
    }

    #[test]
    fn a_store_of_any_size_has_two_homes_for_every_hash() {
        for keys in [1, 2, 3, 8, 9, 1_000] {
            let store = MemoryStore::<GcraState>::with_capacity(keys);
            assert!(store.capacity() >= keys);
            for hash in [0, 1, u64::MAX, u64::MAX << 32, u64::MAX >> 32, 0x1234_5678_9abc_def0] {
                let (low, high) = store.homes(hash);
                assert!(low < high && high < store.lines.len(), "{keys} keys, hash {hash:#x}: {low} and {high}");
            }
        }
    }
}
