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

    pub(crate) const fn is_none(self) -> bool {
        self.max_nanos == 0
    }

    /// Returns `wait` plus a random part of the maximum, which is never less than `wait`.
    pub(crate) fn added_to(self, wait: Duration) -> Duration {
        if self.is_none() { wait } else { wait.saturating_add(self.part(random())) }
    }

    /// Returns the part of the maximum that belongs to a number.
    fn part(self, number: u64) -> Duration {
        let nanos = (u128::from(number) * (u128::from(self.max_nanos) + 1)) >> u64::BITS;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(self.max_nanos))
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
        // All numbers are equally likely, so these stand for all of them.
        for number in 0..10_000 {
            let added = Jitter::up_to(max).part((2 * number + 1) * (u64::MAX / 20_000));
            tenths[usize::try_from(added.as_secs()).unwrap()] += 1;
        }
        assert_eq!(tenths, [1_000; 10]);
        assert_eq!([0, u64::MAX].map(|number| Jitter::up_to(max).part(number)), [Duration::ZERO, max]);
        for _ in 0..100 {
            assert!((wait..=wait + max).contains(&Jitter::up_to(max).added_to(wait)));
        }
        assert_eq!(Jitter::default().added_to(wait), wait);
        assert!(Jitter::up_to(Duration::MAX).added_to(Duration::MAX) == Duration::MAX);
        assert!(Jitter::up_to(Duration::from_nanos(1)).added_to(wait) <= wait + Duration::from_nanos(1));
    }
}
