//! Debounces a limiter's failures for the log.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::values::time::Timestamp;

/// A limiter's health: at most two transitions per `QUIET`, while failures and successes alternate.
///
/// If one node of a cluster is down, or a server is slow at times, they alternate with every request. So a success ends
/// an outage only if the last failure was at least `QUIET` ago.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// The instant of the last failure, in nanoseconds; zero while the limiter is healthy.
    failed_at: AtomicU64,
    /// Whether it has [failed again](Self::failed_often) since then.
    has_failed_again: AtomicBool,
}

/// The time without a failure after which a success ends an outage. A limiter that fails now and then logs at most 24
/// lines a minute.
const QUIET: Duration = Duration::from_secs(5);

impl Health {
    /// Records a failure. Returns whether an outage begins with it, which is logged.
    pub(crate) fn failed(&self, now: Timestamp) -> bool {
        // Zero means healthy.
        let now = now.as_nanos().max(1);
        // If several threads fail at once, the swap returns zero to one of them, which logs the transition.
        self.failed_at.swap(now, Ordering::Relaxed) == 0
    }

    /// Records a frequent failure at little cost, because it reads the clock only if an outage begins with it. The
    /// outage ends [`QUIET`] after the first success that follows the last failure.
    #[inline]
    pub(crate) fn failed_often(&self, now: impl FnOnce() -> Timestamp) -> bool {
        if self.failed_at.load(Ordering::Relaxed) == 0 {
            return self.failed(now());
        }
        // Threads that only read it share its cache line.
        if !self.has_failed_again.load(Ordering::Relaxed) {
            self.has_failed_again.store(true, Ordering::Relaxed);
        }
        false
    }

    /// Records a success. Returns whether it ends an outage, which is logged. Reads the clock during an outage only,
    /// since this is on the path of every request.
    #[inline]
    pub(crate) fn worked(&self, now: impl FnOnce() -> Timestamp) -> bool {
        let failed_at = self.failed_at.load(Ordering::Relaxed);
        failed_at != 0 && self.worked_again(failed_at, now())
    }

    #[cold]
    fn worked_again(&self, failed_at: u64, now: Timestamp) -> bool {
        if self.has_failed_again.swap(false, Ordering::Relaxed) {
            self.failed_at.fetch_max(now.as_nanos(), Ordering::Relaxed);
            return false;
        }
        if now.saturating_since(Timestamp::from_nanos(failed_at)) < QUIET {
            return false;
        }
        // Fails if another thread has stored a later failure since the load, which the success must not erase, or has
        // already ended the outage and logged it.
        self.failed_at.compare_exchange(failed_at, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn at(nanos: u64) -> Timestamp {
        Timestamp::from_nanos(nanos)
    }

    #[test]
    fn outages_end_after_five_quiet_seconds() {
        let health = Health::default();
        assert!(!health.worked(|| unreachable!("nothing has failed")));
        for (second, is_failure, is_transition) in [
            (0, true, true),
            (1, false, false),
            (4, true, false),
            (6, false, false),
            (8, false, false),
            (9, false, true),
            (10, false, false),
            (11, true, true),
        ] {
            let now = at(second * SECOND);
            assert_eq!(if is_failure { health.failed(now) } else { health.worked(|| now) }, is_transition, "{second}");
        }
    }

    /// In seconds: each failure counts as of the success after it.
    #[test]
    fn frequent_failures_read_no_clock() {
        let health = Health::default();
        assert!(health.failed_often(|| at(SECOND)));
        for _ in 0..3 {
            assert!(!health.failed_often(|| unreachable!("the outage goes on")));
        }
        for (second, is_end) in [(60, false), (64, false), (65, true), (66, false)] {
            assert_eq!(health.worked(|| at(second * SECOND)), is_end, "{second}");
        }
        assert!(health.failed_often(|| at(70 * SECOND)));
    }

    #[test]
    fn alternating_requests_log_little() {
        let health = Health::default();
        let mut transitions = 0;
        for request in 0..100_000 {
            // A thousandth of a second apart, with pauses of six seconds.
            let now = at((request + request / 10_000 * 6_000) * SECOND / 1_000);
            let is_transition = if request % 2 == 1 { health.failed(now) } else { health.worked(|| now) };
            transitions += u32::from(is_transition);
        }
        assert_eq!(transitions, 19, "it failed ten times, and recovered in the pauses between");
    }
}
