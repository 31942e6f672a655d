//! Which algorithm of this crate an implementation is.

use crate::values::Quota;

/// Names the algorithm of this crate that an [`Algorithm`](super::Algorithm) is, with all that its decisions depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// A [`TokenBucket`](super::TokenBucket) or [`LeakyBucket`](super::LeakyBucket).
    #[non_exhaustive]
    Bucket {
        /// The burst, and the rate at which it is earned.
        quota: Quota,
    },
    /// A [`FixedWindow`](super::FixedWindow).
    #[non_exhaustive]
    FixedWindow {
        /// The limit in each window, and its length.
        quota: Quota,
        /// Whether the windows of each key begin at an instant of its own.
        staggered: bool,
    },
    /// A [`SlidingWindow`](super::SlidingWindow).
    #[non_exhaustive]
    SlidingWindow {
        /// The limit, and the length of a window.
        quota: Quota,
        /// Whether the windows of each key begin at an instant of its own.
        staggered: bool,
    },
    /// Another algorithm.
    Other,
}
