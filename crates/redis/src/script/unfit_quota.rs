//! [`UnfitQuota`]: why Redis cannot keep a quota.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use super::bucket::MAX_PARTS;

/// Why a Redis server cannot keep a quota.
///
/// Its scripts read the time in microseconds, and count in whole numbers below 2^53.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnfitQuota {
    /// A window's period is not a whole number of microseconds.
    PeriodNotWhole {
        /// The period that was asked for.
        period: Duration,
    },
    /// A window's period is 2^50 microseconds, about 35 years, or longer.
    PeriodTooLong {
        /// The period that was asked for.
        period: Duration,
    },
    /// An empty bucket takes 2^51 microseconds, about 71 years, or longer to fill; or a queue, with the longest wait,
    /// to empty.
    FillTooLong {
        /// The time to fill or to empty.
        fill: Duration,
    },
    /// A bucket or a queue would have to be counted in more than 2^52 parts of a microsecond. This happens for some
    /// limits above 4.5 × 10^12 units with a period that is not a whole number of microseconds.
    TooManyParts {
        /// The number of parts per microsecond that the quota would need.
        parts: u64,
    },
    /// The window is staggered: in the scripts, all windows begin at the same instants.
    Staggered,
}

impl fmt::Display for UnfitQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PeriodNotWhole { period } => write!(
                f,
                "Redis has the time in microseconds, and a window of {period:?} is not a whole number of them; \
                 round the period, or use a bucket"
            ),
            Self::PeriodTooLong { period } => {
                write!(f, "a window of {period:?} is longer than 35 years; check its unit")
            }
            Self::FillTooLong { fill } => write!(
                f,
                "an empty bucket would take {fill:?} to fill, or a full queue to empty, more than 71 years; raise the \
                 limit, or lower the burst, the period, the capacity or the longest wait"
            ),
            Self::TooManyParts { parts } => write!(
                f,
                "Redis has the time in microseconds, and this quota is exact only in {parts} parts of one, more than \
                 {MAX_PARTS}; make the period a whole number of microseconds"
            ),
            Self::Staggered => f.write_str(
                "a staggered window is kept in memory only, and on Redis all begin at once; leave the staggering out, \
                 or use a bucket, which readmits each client at a time of its own",
            ),
        }
    }
}

impl Error for UnfitQuota {}

#[cfg(test)]
mod tests {
    use tower_sluice::Quota;
    use tower_sluice::algorithm::{FixedWindow, SlidingWindow, TokenBucket};

    use super::*;
    use crate::script::Scripted;

    fn once_in(period: Duration) -> Quota {
        Quota::per(1, period)
    }

    #[test]
    fn quotas_fit_up_to_the_documented_bounds() {
        let whole = once_in(Duration::from_micros(1));
        let odd = once_in(Duration::from_nanos(1_500));
        let longest = once_in(Duration::from_micros((1 << 50) - 1));
        let too_long = once_in(Duration::from_micros(1 << 50));
        for fits in [
            FixedWindow::new(whole).fits(),
            SlidingWindow::new(longest).fits(),
            TokenBucket::new(odd).fits(),
            TokenBucket::new(longest.burst(2)).fits(),
            TokenBucket::new(Quota::per_second(Quota::MAX_UNITS)).fits(),
            // A quota whose number of parts per microsecond equals its limit, and a quota with exactly 2^52 parts.
            TokenBucket::new(Quota::per(Quota::MAX_UNITS - 10, Duration::from_secs(86_400))).fits(),
            TokenBucket::new(Quota::per(1 << 49, Duration::from_nanos(1_000_000_000_125))).fits(),
            FixedWindow::new(Quota::per_second(Quota::MAX_UNITS)).fits(),
            SlidingWindow::new(Quota::per(Quota::MAX_UNITS, longest.period())).fits(),
        ] {
            assert_eq!(fits, Ok(()));
        }
        for (fits, unfit, message) in [
            (
                FixedWindow::new(odd).fits(),
                UnfitQuota::PeriodNotWhole { period: odd.period() },
                "Redis has the time in microseconds, and a window of 1.5µs is not a whole number of them; round the period, \
                 or use a bucket",
            ),
            (
                SlidingWindow::new(too_long).fits(),
                UnfitQuota::PeriodTooLong { period: too_long.period() },
                "a window of 1125899906.842624s is longer than 35 years; check its unit",
            ),
            (
                TokenBucket::new(too_long.burst(2)).fits(),
                UnfitQuota::FillTooLong { fill: Duration::from_secs((1 << 51) / 1_000_000) },
                "an empty bucket would take 2251799813s to fill, or a full queue to empty, more than 71 years; raise the \
                 limit, or lower the burst, the period, the capacity or the longest wait",
            ),
            (
                TokenBucket::new(Quota::per(Quota::MAX_UNITS, Duration::from_nanos(1_000_000_001))).fits(),
                UnfitQuota::TooManyParts { parts: 1_000 * Quota::MAX_UNITS },
                "Redis has the time in microseconds, and this quota is exact only in 999999999999999000 parts of one, more \
                 than 4503599627370496; make the period a whole number of microseconds",
            ),
            (
                FixedWindow::new(whole).staggered().fits(),
                UnfitQuota::Staggered,
                "a staggered window is kept in memory only, and on Redis all begin at once; leave the staggering out, or \
                 use a bucket, which readmits each client at a time of its own",
            ),
        ] {
            assert_eq!(unfit.to_string(), message);

            assert_eq!(fits, Err(unfit));
        }
    }
}
