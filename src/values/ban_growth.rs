//! `BanGrowth`: bans that become longer when they are repeated.

use std::time::Duration;

/// How a key's bans grow: each repetition is a multiple of the ban before it, up to a longest ban, until the key was
/// not banned again for a time. Made by [`Penalty::growing`](crate::Penalty::growing).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BanGrowth {
    first: Duration,
    factor: u32,
    most: Duration,
    forgotten_after: Duration,
}

/// Enough repetitions to reach the longest ban, because a factor is at least 2, and a time has less than 2^94
/// nanoseconds.
const MOST_REPETITIONS: u32 = 94;

impl BanGrowth {
    pub(crate) const fn new(first: Duration, factor: u32, most: Duration) -> Self {
        Self { first, factor, most, forgotten_after: most }
    }

    pub(crate) const fn with_forgotten_after(self, forgotten_after: Duration) -> Self {
        Self { forgotten_after, ..self }
    }

    /// The ban for a key that was never banned, or whose bans are forgotten.
    #[must_use]
    pub const fn first(&self) -> Duration {
        self.first
    }

    /// The factor by which each repetition is longer.
    #[must_use]
    pub const fn factor(&self) -> u32 {
        self.factor
    }

    /// The longest ban.
    #[must_use]
    pub const fn most(&self) -> Duration {
        self.most
    }

    /// The time after a ban's end until the key's bans are forgotten, unless another one begins before.
    #[must_use]
    pub const fn forgotten_after(&self) -> Duration {
        self.forgotten_after
    }

    /// The ban for a key with `before` earlier bans that are not forgotten.
    #[must_use]
    pub fn ban_after(&self, before: u32) -> Duration {
        (0..before.min(MOST_REPETITIONS)).fold(self.first, |span, _| span.saturating_mul(self.factor).min(self.most))
    }

    /// The number of earlier bans after which a ban takes `span`, which a server may have rounded up.
    pub(crate) fn bans_before(&self, span: Duration) -> u32 {
        let is_reached = |before: &u32| self.ban_after(*before).saturating_add(Duration::from_micros(1)) > span;
        (0..MOST_REPETITIONS).find(is_reached).unwrap_or(MOST_REPETITIONS)
    }
}

#[cfg(all(test, not(sluice_loom)))]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn repetitions_grow_up_to_the_longest() {
        let growth = BanGrowth::new(MINUTE, 3, 20 * MINUTE);
        let minutes = [0, 1, 2, 3, 9, u32::MAX].map(|before| growth.ban_after(before).as_secs() / 60);
        assert_eq!(minutes, [1, 3, 9, 20, 20, 20]);
        assert_eq!(growth.forgotten_after(), 20 * MINUTE);
        let longest = BanGrowth::new(Duration::from_nanos(1), 2, Duration::MAX);
        assert_eq!(longest.ban_after(u32::MAX), Duration::MAX);
    }

    #[test]
    fn the_last_length_gives_the_count() {
        let growth = BanGrowth::new(MINUTE, 3, 20 * MINUTE);
        for (span, before) in [(MINUTE / 2, 0), (MINUTE, 0), (2 * MINUTE, 1), (9 * MINUTE, 2), (20 * MINUTE, 3)] {
            assert_eq!(growth.bans_before(span), before);
            assert_eq!(growth.bans_before(span + Duration::from_nanos(999)), before, "rounded up");
        }
        assert_eq!(growth.bans_before(21 * MINUTE), MOST_REPETITIONS);
    }
}
