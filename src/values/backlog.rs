//! Who waits for a limiter at the moment.

use std::time::Duration;

/// How many wait for their turns at a limiter that [delays](crate::Description::delaying), over all keys, and when the next
/// of them leaves. For gauges and people: it may have changed by the time it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backlog {
    waiting: usize,
    next_release: Option<Duration>,
}

impl Backlog {
    /// So many wait, and the next of them leaves so long from now (`None`: nobody does, or it is not known).
    #[must_use]
    pub const fn new(waiting: usize, next_release: Option<Duration>) -> Self {
        Self { waiting, next_release }
    }

    /// How many requests wait.
    #[must_use]
    pub const fn waiting(&self) -> usize {
        self.waiting
    }

    /// The time from now until the next of them leaves: zero if it is about to; `None` if nobody waits, or
    /// if the limiter does not know.
    #[must_use]
    pub const fn next_release(&self) -> Option<Duration> {
        self.next_release
    }
}
