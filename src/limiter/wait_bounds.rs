//! [`WaitBounds`]: how many requests wait for their turn at a limiter, and for how long.

use std::time::Duration;

use crate::values::Quota;

/// The bounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitBounds {
    /// How many requests per key wait.
    pub(crate) max_queue: usize,
    /// How long a request waits.
    pub(crate) max_wait: Duration,
    /// How many requests wait over all keys.
    pub(crate) max_waiters: usize,
}

impl WaitBounds {
    /// The defaults: half of the 60 seconds after which many proxies give up; and over all keys, the number of requests
    /// that take some 7 MB in a `LeakyQueue` at ten per key.
    pub(crate) const fn new(max_queue: usize) -> Self {
        Self { max_queue, max_wait: Duration::from_secs(30), max_waiters: 65_536 }
    }

    /// The defaults for a queue: a key's requests may wait if they can depart within a period.
    pub(crate) fn of_queue(quota: &Quota) -> Self {
        Self::new(usize::try_from(quota.limit()).unwrap_or(usize::MAX))
    }

    /// How long a request with this patience waits.
    pub(crate) fn longest_wait(&self, patience: Option<Duration>) -> Duration {
        patience.map_or(self.max_wait, |patience| patience.min(self.max_wait))
    }
}
