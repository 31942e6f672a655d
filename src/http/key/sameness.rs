use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::values::PartitionKey;

/// So many requests in a row are no coincidence.
const LONG: u32 = 1_000;
/// More than `LONG`, and than the threads that count up to it at the same time.
const OVER: u32 = 1 << 31;

/// Whether something is true of all of the first thousand requests. Once that is settled, asking costs one relaxed
/// load.
#[derive(Debug)]
pub(super) struct Streak(AtomicU32);

impl Streak {
    pub(super) const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    #[inline]
    pub(super) fn is_over(&self) -> bool {
        !cfg!(feature = "tracing") || self.0.load(Ordering::Relaxed) >= LONG
    }

    /// True of one more request; returns whether it has become a long streak with it.
    #[cold]
    pub(super) fn goes_on(&self) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed) == LONG - 1
    }

    #[cold]
    pub(super) fn breaks(&self) {
        self.0.store(OVER, Ordering::Relaxed);
    }
}

/// Whether the first thousand keys of a policy are one and the same: then it may not tell clients apart.
#[derive(Debug)]
pub(crate) struct Sameness {
    /// A hash of the first key; zero before there is one.
    first: AtomicU64,
    streak: Streak,
}

impl Sameness {
    /// Takes notes unless everybody is meant to share a budget.
    pub(crate) fn new(is_shared: bool) -> Self {
        let streak = Streak::new();
        if is_shared {
            streak.breaks();
        }
        Self { first: AtomicU64::new(0), streak }
    }

    /// Takes note of a request's key; returns `true` once, if a thousand of them have been equal.
    #[inline]
    pub(crate) fn note(&self, key: &PartitionKey) -> bool {
        !self.streak.is_over() && self.compare(key)
    }

    #[cold]
    fn compare(&self, key: &PartitionKey) -> bool {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        let hash = hasher.finish() | 1;
        match self.first.compare_exchange(0, hash, Ordering::Relaxed, Ordering::Relaxed) {
            Err(first) if first != hash => {
                self.streak.breaks();
                false
            }
            _ => self.streak.goes_on(),
        }
    }
}

#[cfg(all(test, feature = "tracing"))]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_equal_keys_are_noticed_once() {
        let sameness = Sameness::new(false);
        let noticed: Vec<_> = (1..5_000).filter(|_| sameness.note(&"same".into())).collect();
        assert_eq!(noticed, [1_000]);
    }

    #[test]
    fn one_other_key_among_the_first_thousand_is_enough() {
        for other in [2, 500, 1_000] {
            let sameness = Sameness::new(false);
            let key = |i: u32| PartitionKey::from(if i == other { "other" } else { "same" });
            assert!(!(1..5_000).any(|i| sameness.note(&key(i))), "{other}");
        }
    }

    #[test]
    fn what_is_shared_on_purpose_is_no_mistake() {
        let sameness = Sameness::new(true);
        assert!(!(0..5_000).any(|_| sameness.note(&PartitionKey::SHARED)));
    }
}
