//! Detects policies whose key does not depend on the client: a thousand requests in a row with one key.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::values::PartitionKey;

/// The length of a streak that is no coincidence, in requests.
const LONG: u32 = 1_000;
/// The count of an interrupted streak. Far above `LONG`, and far enough below `u32::MAX` that the threads which are
/// still counting do not make it wrap around.
const INTERRUPTED: u32 = 1 << 31;

/// Whether something is true of all of the first thousand requests. Once that is decided, the check costs one relaxed
/// load.
///
/// All accesses are relaxed: no other data depends on this count.
#[derive(Debug)]
pub(super) struct Streak(AtomicU32);

impl Streak {
    pub(super) const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    #[inline]
    pub(super) fn is_decided(&self) -> bool {
        !cfg!(feature = "tracing") || self.0.load(Ordering::Relaxed) >= LONG
    }

    /// Counts one more request; returns `true` to the one that makes the streak long.
    ///
    /// Every `fetch_add` returns another count, so of several threads exactly one reads `LONG - 1`, and only that one
    /// logs.
    #[cold]
    pub(super) fn extend(&self) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed) == LONG - 1
    }

    /// Ends the streak for good. A thread that has passed `is_decided` before may still add one to `INTERRUPTED`, which
    /// stays above `LONG`.
    #[cold]
    pub(super) fn interrupt(&self) {
        self.0.store(INTERRUPTED, Ordering::Relaxed);
    }
}

/// Whether the first thousand keys of a policy are equal, so that it may not distinguish clients.
#[derive(Debug)]
pub(crate) struct SameKeyCheck {
    /// A hash of the first key; zero before there is one.
    first: AtomicU64,
    streak: Streak,
}

impl SameKeyCheck {
    /// Checks nothing if clients are meant to share a budget.
    pub(crate) fn new(is_shared: bool) -> Self {
        let streak = Streak::new();
        if is_shared {
            streak.interrupt();
        }
        Self { first: AtomicU64::new(0), streak }
    }

    /// Records a request's key; returns `true` once, if the first thousand are equal.
    #[inline]
    pub(crate) fn record(&self, key: &PartitionKey) -> bool {
        !self.streak.is_decided() && self.compare(key)
    }

    #[cold]
    fn compare(&self, key: &PartitionKey) -> bool {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        // Never zero, which stands for "no key yet".
        let hash = hasher.finish() | 1;
        // Of several first requests, one sets the hash; the others compare theirs with it, as later ones do.
        match self.first.compare_exchange(0, hash, Ordering::Relaxed, Ordering::Relaxed) {
            Err(first) if first != hash => {
                self.streak.interrupt();
                false
            }
            _ => self.streak.extend(),
        }
    }
}

#[cfg(all(test, feature = "tracing"))]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_equal_keys_are_reported_once() {
        let check = SameKeyCheck::new(false);
        let reported: Vec<_> = (1..5_000).filter(|_| check.record(&"same".into())).collect();
        assert_eq!(reported, [1_000]);
    }

    #[test]
    fn one_other_key_among_the_first_thousand_ends_the_check() {
        for other in [2, 500, 1_000] {
            let check = SameKeyCheck::new(false);
            let key = |i: u32| PartitionKey::from(if i == other { "other" } else { "same" });
            assert!(!(1..5_000).any(|i| check.record(&key(i))), "{other}");
        }
    }

    #[test]
    fn a_key_that_is_shared_on_purpose_is_not_reported() {
        let check = SameKeyCheck::new(true);
        assert!(!(0..5_000).any(|_| check.record(&PartitionKey::SHARED)));
    }
}
