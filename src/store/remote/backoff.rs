//! Pauses between attempts, by exponential backoff with full jitter.

use std::time::Duration;

use crate::util::random::random;

/// The longest pause after the first failure, before later failures double it. That is two timeouts at the default,
/// since a server that merely stalls must not be probed again and again.
const FIRST: Duration = Duration::from_millis(100);

/// The upper bound for all pauses. A server that has recovered is used again after this time at the latest.
pub(crate) const LONGEST: Duration = Duration::from_secs(5);

/// Draws the pause before the next attempt. Each failure in `failures` doubles the longest possible pause.
pub fn pause(failures: u32) -> Duration {
    pause_of_at_most(LONGEST, failures)
}

/// Draws a [`pause`] that is no longer than `most`.
pub(super) fn pause_of_at_most(most: Duration, failures: u32) -> Duration {
    draw_up_to(longest(failures).min(most))
}

/// Returns 100 ms, 200 ms, 400 ms, and so on up to five seconds.
fn longest(failures: u32) -> Duration {
    FIRST.saturating_mul(2_u32.saturating_pow(failures)).min(LONGEST)
}

/// Draws a duration from zero to `longest`, all equally likely ("full jitter"), so that clients that failed together do
/// not come back together.
pub(super) fn draw_up_to(longest: Duration) -> Duration {
    part(longest, random())
}

/// Returns the part of `longest` that belongs to a number.
fn part(longest: Duration, number: u64) -> Duration {
    let nanos = (longest.as_nanos() * u128::from(number)) >> 64;
    Duration::from_nanos(u64::try_from(nanos).expect("five seconds at the most"))
}

#[cfg(all(test, not(sluice_loom)))]
mod tests {
    use super::*;

    #[test]
    fn pauses_spread_over_the_whole_range() {
        let longest = Duration::from_millis(800);
        let mut eighths = [0_u32; 8];
        // All numbers are equally likely, so the middles of 8,000 equal parts stand for all.
        const PART: u64 = u64::MAX / 8_000;
        for number in 0..8_000 {
            let drawn = part(longest, number * PART + PART / 2);
            eighths[usize::try_from(drawn.as_millis() / 100).unwrap()] += 1;
        }
        assert_eq!(eighths, [1_000; 8]);
        assert!((0..100).all(|_| draw_up_to(longest) <= longest));
    }

    #[test]
    fn pauses_double_up_to_five_seconds() {
        let ms: Vec<_> = [0, 1, 2, 5, 6, 40, u32::MAX].map(|failures| longest(failures).as_millis()).into();
        assert_eq!(ms, [100, 200, 400, 3_200, 5_000, 5_000, 5_000]);
    }
}
