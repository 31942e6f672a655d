//! `SameKeyCheck`: detects policies whose key does not depend on the client.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use super::streak::Streak;
use crate::values::PartitionKey;

/// Stands for the first key's hash before there is one. A key's hash is odd.
const NO_KEY: u64 = 0;

/// Stands for the keys in a policy whose clients are meant to share one.
const SHARED_KEYS: u64 = 1;

/// Checks whether a policy's first thousand keys are equal, so that it may not distinguish clients.
#[derive(Debug)]
pub(crate) struct SameKeyCheck {
    /// The first key's hash, [`NO_KEY`] or [`SHARED_KEYS`].
    first: AtomicU64,
    streak: Streak<1_000>,
}

impl SameKeyCheck {
    /// If clients are meant to share a budget, the check does nothing.
    pub(crate) fn new(is_shared: bool) -> Self {
        let streak = Streak::new();
        if is_shared {
            streak.interrupt();
        }
        Self { first: AtomicU64::new(if is_shared { SHARED_KEYS } else { NO_KEY }), streak }
    }

    /// Whether a key was recorded. Shared keys are not recorded, but this returns `true` for them.
    pub(crate) fn has_seen_a_key(&self) -> bool {
        self.first.load(Ordering::Relaxed) != NO_KEY
    }

    /// Records a request's key. Returns `true` once, if the first thousand are equal.
    #[inline]
    pub(crate) fn record(&self, key: &PartitionKey) -> bool {
        !self.streak.is_decided() && self.compare(key)
    }

    #[cold]
    fn compare(&self, key: &PartitionKey) -> bool {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        // Odd, so never `NO_KEY`.
        let hash = hasher.finish() | 1;
        // If several first requests come at once, one sets the hash, and the others compare theirs with it, as later
        // ones do.
        match self.first.compare_exchange(NO_KEY, hash, Ordering::Relaxed, Ordering::Relaxed) {
            Err(first) if first != hash => {
                self.streak.interrupt();
                false
            }
            _ => self.streak.grows_long(),
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
    fn one_other_key_ends_the_check() {
        for other in [2, 500, 1_000] {
            let check = SameKeyCheck::new(false);
            let key = |i: u32| PartitionKey::from(if i == other { "other" } else { "same" });
            assert!(!(1..5_000).any(|i| check.record(&key(i))), "{other}");
        }
    }

    #[test]
    fn intentionally_shared_keys_are_not_reported() {
        let check = SameKeyCheck::new(true);
        assert!(!(0..5_000).any(|_| check.record(&PartitionKey::SHARED)));
    }

    #[test]
    fn recorded_keys_are_seen() {
        let check = SameKeyCheck::new(false);
        assert!(!check.has_seen_a_key());
        check.record(&"a".into());
        assert!(check.has_seen_a_key());
        assert!(SameKeyCheck::new(true).has_seen_a_key(), "unknown, and so not reported as missing");
    }
}
