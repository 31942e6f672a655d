//! Which of this crate's algorithms an implementation is.

use crate::values::Quota;

/// Names which of this crate's algorithms an [`Algorithm`](super::Algorithm) is, with all that its decisions depend on.
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
        /// Whether each key's windows begin at its own instant.
        staggered: bool,
    },
    /// A [`SlidingWindow`](super::SlidingWindow).
    #[non_exhaustive]
    SlidingWindow {
        /// The limit, and the length of a window.
        quota: Quota,
        /// Whether each key's windows begin at its own instant.
        staggered: bool,
    },
    /// Another algorithm.
    Other,
}
