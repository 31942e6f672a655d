//! A limiter's waiters.

use std::time::Duration;

/// The number of requests that wait in a limiter that [delays](crate::limiter::Description::delaying), over all keys,
/// and the time until the next one departs. For gauges: it may be outdated when you read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backlog {
    waiting: usize,
    next_release: Option<Duration>,
}

impl Backlog {
    /// A backlog with `waiting` waiters; the next departs after `next_release` (`None`: nobody waits, or the time is
    /// unknown).
    #[must_use]
    pub const fn new(waiting: usize, next_release: Option<Duration>) -> Self {
        Self { waiting, next_release }
    }

    /// The number of requests that wait.
    #[must_use]
    pub const fn waiting(&self) -> usize {
        self.waiting
    }

    /// The time until the next waiter departs: zero if it is due, `None` if there is no waiter or the limiter does not
    /// know.
    #[must_use]
    pub const fn next_release(&self) -> Option<Duration> {
        self.next_release
    }
}
