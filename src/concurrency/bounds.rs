//! [`WaitBounds`]: how many requests wait for units, and for how long.

use std::time::Duration;

/// The bounds on waiting.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitBounds {
    /// The most waiters of a key, and of all.
    pub(super) per_key: usize,
    pub(super) max_waiters: usize,
    pub(super) max_wait: Duration,
}

impl WaitBounds {
    /// No waiters of a key. 30 seconds are half of the 60 after which many proxies give up.
    pub(super) const DEFAULT: Self = Self { per_key: 0, max_waiters: 65_536, max_wait: Duration::from_secs(30) };

    /// How long a request with this patience waits at most.
    pub(super) fn longest_wait(&self, patience: Option<Duration>) -> Duration {
        patience.map_or(self.max_wait, |patience| patience.min(self.max_wait))
    }
}
