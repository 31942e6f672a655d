//! Random additions to advertised waits, so that clients that were rejected together do not come back together.

use std::time::Duration;

use crate::util::random::random;

/// Adds a uniformly distributed time, up to a maximum, to waits.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Jitter {
    max_nanos: u64,
}

impl Jitter {
    pub(crate) fn up_to(max: Duration) -> Self {
        Self { max_nanos: u64::try_from(max.as_nanos()).unwrap_or(u64::MAX) }
    }

    /// Returns `wait` plus a random part of the maximum; never less than `wait`.
    pub(crate) fn added_to(self, wait: Duration) -> Duration {
        if self.max_nanos == 0 {
            return wait;
        }
        let drawn = (u128::from(random()) * (u128::from(self.max_nanos) + 1)) >> u64::BITS;
        wait.saturating_add(Duration::from_nanos(u64::try_from(drawn).unwrap_or(self.max_nanos)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_is_uniform_up_to_the_maximum() {
        let wait = Duration::from_secs(7);
        let max = Duration::from_secs(10);
        let mut tenths = [0_u32; 10];
        for _ in 0..10_000 {
            let added = Jitter::up_to(max).added_to(wait).checked_sub(wait).expect("never less");
            assert!(added <= max);
            tenths[usize::try_from(added.as_secs()).unwrap().min(9)] += 1;
        }
        // A thousand each, to within ten standard deviations.
        assert!(tenths.iter().all(|count| (700..1_300).contains(count)), "{tenths:?}");
        assert_eq!(Jitter::default().added_to(wait), wait);
        assert!(Jitter::up_to(Duration::MAX).added_to(Duration::MAX) == Duration::MAX);
        assert!(Jitter::up_to(Duration::from_nanos(1)).added_to(wait) <= wait + Duration::from_nanos(1));
    }
}
