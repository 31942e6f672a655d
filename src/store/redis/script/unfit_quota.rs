//! [`UnfitQuota`]: why Redis cannot keep a quota.

use std::error::Error;
use std::fmt;
use std::time::Duration;

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
        /// How long it takes.
        fill: Duration,
    },
    /// The limit or the burst is above 4,294,967,295 units.
    TooManyUnits {
        /// The greater of the two.
        units: u64,
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
            Self::TooManyUnits { units } => write!(
                f,
                "Redis counts up to 4294967295 units, and the quota has {units}; count in greater units, such as KiB in \
                 place of bytes, or keep the policy in memory"
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
    use super::*;
    use crate::algorithm::{FixedWindow, SlidingWindow, TokenBucket};
    use crate::store::redis::script::Scripted;
    use crate::values::Quota;

    fn once_in(period: Duration) -> Quota {
        Quota::per(1, period)
    }

    #[test]
    fn quotas_fit_up_to_the_documented_bounds() {
        let (whole, odd) = (once_in(Duration::from_micros(1)), once_in(Duration::from_nanos(1_500)));
        let longest = once_in(Duration::from_micros((1 << 50) - 1));
        let too_long = once_in(Duration::from_micros(1 << 50));
        for fits in [
            FixedWindow::new(whole).fits(),
            SlidingWindow::new(longest).fits(),
            TokenBucket::new(odd).fits(),
            TokenBucket::new(longest.burst(2)).fits(),
            TokenBucket::new(Quota::per_second(u32::MAX.into())).fits(),
            SlidingWindow::new(Quota::per_second(u32::MAX.into())).fits(),
        ] {
            assert_eq!(fits, Ok(()));
        }
        for (fits, unfit, advice) in [
            (
                FixedWindow::new(odd).fits(),
                UnfitQuota::PeriodNotWhole { period: odd.period() },
                "round the period, or use a bucket",
            ),
            (
                SlidingWindow::new(too_long).fits(),
                UnfitQuota::PeriodTooLong { period: too_long.period() },
                "check its unit",
            ),
            (
                TokenBucket::new(too_long.burst(2)).fits(),
                UnfitQuota::FillTooLong { fill: Duration::from_secs((1 << 51) / 1_000_000) },
                "raise the limit, or lower the burst",
            ),
            (
                TokenBucket::new(Quota::per_second(1).burst(1 << 32)).fits(),
                UnfitQuota::TooManyUnits { units: 1 << 32 },
                "count in greater units",
            ),
            (
                FixedWindow::new(Quota::per_second(1 << 32)).fits(),
                UnfitQuota::TooManyUnits { units: 1 << 32 },
                "up to 4294967295 units",
            ),
            (FixedWindow::new(whole).staggered().fits(), UnfitQuota::Staggered, "leave the staggering out"),
        ] {
            assert!(unfit.to_string().contains(advice), "{unfit}");
            assert_eq!(fits, Err(unfit));
        }
    }
}
