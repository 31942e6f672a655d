//! The metrics for a layer with a name, and its log lines.
//!
//! No label contains a partner, because a program that calls addresses from its users would have a series for each.

#[cfg(feature = "metrics")]
mod series;
#[cfg(not(feature = "metrics"))]
#[path = "no_series.rs"]
mod series;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tower_sluice::internal::Lock;

use self::series::Series;
use super::log;

/// The result of a call, or of an attempt that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallResult {
    /// The partner has answered.
    Accepted,
    /// The partner has rejected it because of a limit.
    Rejected,
    /// The inner service failed, or the partner did: 5xx.
    Failed,
    /// Rejected here, since the partner keeps failing.
    Throttled,
    /// Not sent, since the wait would have been too long.
    WaitTooLong,
    /// Not sent, since too many calls wait.
    LineFull,
    /// Its future was dropped before its result.
    Cancelled,
}

#[cfg(feature = "metrics")]
impl CallResult {
    const ALL: [Self; 7] = [
        Self::Accepted,
        Self::Rejected,
        Self::Failed,
        Self::Throttled,
        Self::WaitTooLong,
        Self::LineFull,
        Self::Cancelled,
    ];

    /// The name in labels.
    const fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Rejected => "rejected",
            Self::Failed => "failed",
            Self::Throttled => "throttled",
            Self::WaitTooLong => "wait-too-long",
            Self::LineFull => "line-full",
            Self::Cancelled => "cancelled",
        }
    }
}

/// Counts and logs the calls of a layer.
#[derive(Debug, Default)]
pub(super) struct PacerMeter {
    name: Option<Arc<str>>,
    /// Without a name, nothing is counted.
    series: Series,
    lines: Lock<LinesLogged>,
}

/// The log lines of the present second.
#[derive(Debug, Default)]
struct LinesLogged {
    second: u64,
    lines: u32,
    /// How many were left out since the last one.
    left_out: u64,
}

/// How many lines a layer logs in a second.
const LINES: u32 = 10;

impl PacerMeter {
    pub(super) fn set_name(&mut self, name: &str) {
        self.name = Some(Arc::from(name));
    }

    pub(super) fn count(&self, result: CallResult) {
        self.series.count(self.name.as_ref(), result);
    }

    /// Counts one more call that waits, or one less.
    pub(super) fn waits(&self, is_waiting: bool) {
        self.series.waits(self.name.as_ref(), is_waiting);
    }

    /// Records how long a call waited before it was sent.
    pub(super) fn waited(&self, time: Duration) {
        self.series.waited(self.name.as_ref(), time);
    }

    /// Counts one more partner that is throttled, or one less.
    pub(super) fn throttles(&self, is_throttled: bool) {
        self.series.throttles(self.name.as_ref(), is_throttled);
    }

    pub(super) fn log_throttled(&self, partner: &dyn fmt::Display, accepted: u64, sent: u64, now: u64) {
        if let Some(left_out) = self.may_log(now) {
            log::partner_throttled(self.name.as_deref(), partner, accepted, sent, left_out);
        }
    }

    pub(super) fn log_recovered(&self, partner: &dyn fmt::Display, now: u64) {
        if let Some(left_out) = self.may_log(now) {
            log::partner_recovered(self.name.as_deref(), partner, left_out);
        }
    }

    pub(super) fn log_paused(&self, partner: &dyn fmt::Display, pause: Duration, now: u64) {
        if let Some(left_out) = self.may_log(now) {
            log::partner_paused(self.name.as_deref(), partner, pause, left_out);
        }
    }

    /// Whether one more line may be logged at an instant in microseconds, and how many were left out before it. A
    /// program that calls thousands of partners must not fill its log when its network fails.
    fn may_log(&self, now: u64) -> Option<u64> {
        let mut lines = self.lines.lock();
        let second = now / 1_000_000;
        if lines.second != second {
            (lines.second, lines.lines) = (second, 0);
        }
        if lines.lines == LINES {
            lines.left_out += 1;
            return None;
        }
        lines.lines += 1;
        Some(std::mem::take(&mut lines.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A layer logs ten lines per second.
    #[test]
    fn excess_log_lines_are_counted() {
        let meter = PacerMeter::default();
        let logged: Vec<_> = (0..25).map(|call| meter.may_log(5_000_000 + call)).collect();
        assert!(logged[..10].iter().all(|left_out| *left_out == Some(0)));
        assert!(logged[10..].iter().all(Option::is_none));
        assert_eq!(meter.may_log(6_000_000), Some(15));
        assert_eq!(meter.may_log(6_000_001), Some(0));
        // The clock goes back.
        assert_eq!(meter.may_log(0), Some(0));
    }
}
