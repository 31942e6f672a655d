//! Debounces the failures of a limiter for the log.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::values::time::Timestamp;

/// The health of a limiter: at most two transitions per [`QUIET`], while failures and successes alternate.
///
/// If one node of a cluster is down, or a server is slow at times, they alternate with every request. So a success ends
/// an outage only if the last failure was at least [`QUIET`] ago.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// The instant of the last failure, in nanoseconds; zero while the limiter is healthy.
    failed_at: AtomicU64,
}

/// A transition, which is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HealthChange {
    Failed,
    Recovered,
}

/// The time without a failure after which a success ends an outage. A limiter that fails now and then logs at most 24
/// lines a minute.
const QUIET: Duration = Duration::from_secs(5);

impl Health {
    /// Records a failure.
    pub(crate) fn failed(&self, now: Timestamp) -> Option<HealthChange> {
        // Zero means healthy.
        let now = now.as_nanos().max(1);
        // Of several threads that fail at once, the swap returns zero to one, which logs the transition.
        (self.failed_at.swap(now, Ordering::Relaxed) == 0).then_some(HealthChange::Failed)
    }

    /// Records a success. Reads the clock during an outage only, since this is on the path of every request.
    #[inline]
    pub(crate) fn worked(&self, now: impl FnOnce() -> Timestamp) -> Option<HealthChange> {
        let failed_at = self.failed_at.load(Ordering::Relaxed);
        if failed_at == 0 { None } else { self.worked_again(failed_at, now()) }
    }

    #[cold]
    fn worked_again(&self, failed_at: u64, now: Timestamp) -> Option<HealthChange> {
        if now.saturating_since(Timestamp::from_nanos(failed_at)) < QUIET {
            return None;
        }
        // Fails if another thread has stored a later failure since the load, which the success must not erase, or has
        // already ended the outage and logged it.
        let swap = self.failed_at.compare_exchange(failed_at, 0, Ordering::Relaxed, Ordering::Relaxed);
        swap.is_ok().then_some(HealthChange::Recovered)
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
    fn an_outage_ends_five_seconds_after_the_last_failure() {
        let health = Health::default();
        assert_eq!(health.worked(|| unreachable!("nothing has failed")), None);
        for (second, is_failure, transition) in [
            (0, true, Some(HealthChange::Failed)),
            (1, false, None),
            (4, true, None),
            (6, false, None),
            (8, false, None),
            (9, false, Some(HealthChange::Recovered)),
            (10, false, None),
            (11, true, Some(HealthChange::Failed)),
        ] {
            let now = at(second * SECOND);
            assert_eq!(if is_failure { health.failed(now) } else { health.worked(|| now) }, transition, "{second}");
        }
    }

    #[test]
    fn a_log_of_alternating_requests_stays_short() {
        let health = Health::default();
        let mut transitions = 0;
        for request in 0..100_000 {
            // A thousandth of a second apart, with pauses of six seconds.
            let now = at((request + request / 10_000 * 6_000) * SECOND / 1_000);
            let transition = if request % 2 == 1 { health.failed(now) } else { health.worked(|| now) };
            transitions += u32::from(transition.is_some());
        }
        assert_eq!(transitions, 19, "it failed ten times, and recovered in the pauses between");
    }
}
