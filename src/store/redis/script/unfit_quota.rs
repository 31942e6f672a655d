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
                "an empty bucket would take {fill:?} to fill, more than 71 years; raise the limit, or lower the burst, \
                 the period or the longest wait"
            ),
            Self::Staggered => f.write_str(
                "a staggered window is kept in memory only, and on Redis all begin at once; leave the staggering out, or use \
                 a bucket, which readmits each client at a time of its own",
            ),
        }
    }
}

impl Error for UnfitQuota {}
