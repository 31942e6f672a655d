//! What a limiter announces to its clients.

use crate::values::Quota;

/// The quota that a limiter enforces, and what becomes of it as time passes: enough to tell clients in
/// advance what they may expect.
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

/// How what was used up comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Shape {
    /// Steadily, one unit per `period / limit`, up to the burst.
    Bucket,
    /// All at once, when a window of one period ends.
    FixedWindow,
    /// By and by, within a period or two.
    SlidingWindow,
}

impl Terms {
    /// Those of a bucket that holds the quota's [burst](Quota::max_burst).
    #[must_use]
    pub const fn bucket(quota: Quota) -> Self {
        Self { quota, shape: Shape::Bucket }
    }

    /// Those of a window that starts anew after each period.
    #[must_use]
    pub const fn fixed_window(quota: Quota) -> Self {
        Self { quota, shape: Shape::FixedWindow }
    }

    /// Those of a window that moves along with time. They promise the least, and so suit whatever is
    /// none of the others.
    #[must_use]
    pub const fn sliding_window(quota: Quota) -> Self {
        Self { quota, shape: Shape::SlidingWindow }
    }

    /// How much.
    #[must_use]
    pub const fn quota(&self) -> Quota {
        self.quota
    }

    /// How it comes back.
    #[must_use]
    pub const fn shape(&self) -> Shape {
        self.shape
    }
}
