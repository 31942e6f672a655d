//! The terms that a limiter advertises to its clients.

use crate::values::Quota;

/// The quota that a limiter enforces, and how it is restored over time: what clients need to know in advance.
///
/// ```
/// use tower_sluice::{Quota, Shape, Terms};
///
/// let terms = Terms::fixed_window(Quota::per_hour(5_000));
/// assert_eq!(terms.quota().limit(), 5_000);
/// assert_eq!(terms.shape(), Shape::FixedWindow);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    quota: Quota,
    shape: Shape,
}

/// How consumed quota is restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Shape {
    /// Steadily, one unit per `period / limit`, up to the burst.
    Bucket,
    /// All at once, when a window of one period ends.
    FixedWindow,
    /// All at once, when a window of the calendar ends. Windows differ in length.
    CalendarWindow,
    /// Gradually, within one or two periods.
    SlidingWindow,
}

impl Terms {
    /// The terms of a bucket that holds the quota's [burst](Quota::max_burst).
    #[must_use]
    pub const fn bucket(quota: Quota) -> Self {
        Self { quota, shape: Shape::Bucket }
    }

    /// The terms of a window that resets after each period.
    #[must_use]
    pub const fn fixed_window(quota: Quota) -> Self {
        Self { quota, shape: Shape::FixedWindow }
    }

    /// The terms of a window of the calendar. The quota's period is not advertised: no length is that of all windows.
    #[must_use]
    pub const fn calendar_window(quota: Quota) -> Self {
        Self { quota, shape: Shape::CalendarWindow }
    }

    /// The terms of a window that slides with time. They promise the least, and so suit any limiter that is
    /// none of the others.
    #[must_use]
    pub const fn sliding_window(quota: Quota) -> Self {
        Self { quota, shape: Shape::SlidingWindow }
    }

    /// The quota.
    #[must_use]
    pub const fn quota(&self) -> Quota {
        self.quota
    }

    /// How consumed quota is restored.
    #[must_use]
    pub const fn shape(&self) -> Shape {
        self.shape
    }
}
