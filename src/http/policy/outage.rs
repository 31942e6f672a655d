//! Whether a limiter counts as failing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::values::time::Timestamp;

/// Tells outages from requests.
///
/// While one node of a cluster is out, or a server is slow at times, failures and successes alternate with every
/// request. So a success ends an outage only if no failure came shortly before it: whatever the requests are, there
/// are at most two turns per [`QUIET`].
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// When it failed last, in nanoseconds; zero while it works.
    failed_at: AtomicU64,
}

/// What is worth a line in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    Failed,
    Recovered,
}

/// For so long nothing may have failed.
const QUIET: Duration = Duration::from_secs(5);

impl Health {
    pub(crate) fn failed(&self, now: Timestamp) -> Option<Turn> {
        // Zero is taken.
        let now = now.as_nanos().max(1);
        (self.failed_at.swap(now, Ordering::Relaxed) == 0).then_some(Turn::Failed)
    }

    /// Reads the clock only while it counts as failing: this is on the path of every request.
    #[inline]
    pub(crate) fn worked(&self, now: impl FnOnce() -> Timestamp) -> Option<Turn> {
        let failed_at = self.failed_at.load(Ordering::Relaxed);
        if failed_at == 0 { None } else { self.worked_again(failed_at, now()) }
    }

    #[cold]
    fn worked_again(&self, failed_at: u64, now: Timestamp) -> Option<Turn> {
        if now.saturating_since(Timestamp::from_nanos(failed_at)) < QUIET {
            return None;
        }
        // Unless it has just failed again, or somebody else saw that it works.
        let swap = self.failed_at.compare_exchange(failed_at, 0, Ordering::Relaxed, Ordering::Relaxed);
        swap.is_ok().then_some(Turn::Recovered)
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
    fn it_recovers_when_nothing_has_failed_for_a_while() {
        let health = Health::default();
        assert_eq!(health.worked(|| unreachable!("nothing has failed")), None);
        for (second, is_failure, turn) in [
            (0, true, Some(Turn::Failed)),
            (1, false, None),
            (4, true, None),
            (6, false, None),
            (8, false, None),
            (9, false, Some(Turn::Recovered)),
            (10, false, None),
            (11, true, Some(Turn::Failed)),
        ] {
            let now = at(second * SECOND);
            assert_eq!(if is_failure { health.failed(now) } else { health.worked(|| now) }, turn, "{second}");
        }
    }

    #[test]
    fn a_log_of_alternating_requests_stays_short() {
        let health = Health::default();
        let mut turns = 0;
        for request in 0..100_000 {
            // A thousandth of a second apart, with pauses of six seconds.
            let now = at((request + request / 10_000 * 6_000) * SECOND / 1_000);
            let turn = if request % 2 == 1 { health.failed(now) } else { health.worked(|| now) };
            turns += u32::from(turn.is_some());
        }
        assert_eq!(turns, 19, "it failed ten times, and recovered in the pauses between");
    }
}
