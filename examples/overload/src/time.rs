//! Simulated time, in nanoseconds since a run began, on tokio's paused clock.

use tokio::time::{Duration, Instant};

pub(crate) const MILLISECOND: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1_000 * MILLISECOND;

/// The beginning of a run. tokio's timers are exact to the millisecond, counted from here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Epoch(Instant);

impl Epoch {
    /// Begins now: nothing has moved the paused clock before.
    pub(crate) fn begin() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn now(self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).expect("a run of less than 500 years")
    }

    /// Moves the clock towards `at`, and lets tasks run meanwhile. Returns whether it got there: a task may wake
    /// `until`, or a whole millisecond may have come first. From there on, timers are exact.
    pub(crate) async fn approach(self, at: u64, until: &tokio::sync::Notify) -> bool {
        let now = self.now();
        let whole = at - at % MILLISECOND;
        if whole <= now {
            if at > now {
                tokio::time::advance(Duration::from_nanos(at - now)).await;
            }
            return true;
        }
        let next = now.next_multiple_of(MILLISECOND);
        if next > now {
            tokio::time::advance(Duration::from_nanos(next - now)).await;
        } else {
            // The clock stands while a task is ready, and goes from timer to timer otherwise.
            tokio::select! {
                biased;
                () = until.notified() => {}
                () = tokio::time::sleep_until(self.0 + Duration::from_nanos(whole)) => {}
            }
        }
        false
    }
}

/// Seconds, for figures.
pub(crate) fn seconds(nanos: u64) -> f64 {
    nanos as f64 / SECOND as f64
}
