//! Topology refreshes: one at a time, not too often, and less often while they fail.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tower_sluice::internal::Lock;
use tower_sluice::internal::remote::pause_after;

use super::fault::FaultKind;
use super::shared_task::{SharedTask, TAKE_OVER_AFTER, TaskOutcome, Work};

/// The shortest time between the beginnings of two refreshes, for any number of failures that ask for one. It is at
/// most the time after which another runtime takes over a refresh, since that counts as a second refresh.
const GAP: Duration = TAKE_OVER_AFTER;

/// Runs topology refreshes, at most one at a time.
#[derive(Clone, Debug, Default)]
pub(super) struct Refresh(Arc<RefreshInner>);

#[derive(Debug, Default)]
struct RefreshInner {
    task: SharedTask,
    pace: Lock<RefreshPace>,
}

/// When the next refresh may begin.
#[derive(Debug, Default)]
struct RefreshPace {
    not_before: Option<Instant>,
    /// The number of failures in a row.
    failures: u32,
    /// The outcome of the last refresh that has ended.
    last: Option<TaskOutcome>,
}

impl Refresh {
    /// Runs a refresh, and waits for it. If it is too early for a refresh, returns the outcome of the last.
    ///
    /// # Errors
    ///
    /// The work's errors, a timeout at the deadline, and [`FaultKind::NoRuntime`] outside a runtime.
    pub(super) async fn run<W>(&self, deadline: Instant, work: impl Fn() -> W) -> TaskOutcome
    where
        W: Future<Output = TaskOutcome> + Send + 'static,
    {
        self.0.task.run(deadline, || self.begin(&work)).await
    }

    /// Runs a refresh without waiting for it.
    pub(super) fn start<W>(&self, work: impl Fn() -> W)
    where
        W: Future<Output = TaskOutcome> + Send + 'static,
    {
        self.0.task.start(|| self.begin(&work));
    }

    /// Returns the refresh to run; or, if it is too early for a refresh, the last one's outcome.
    fn begin<W>(&self, work: &impl Fn() -> W) -> Result<Work, TaskOutcome>
    where
        W: Future<Output = TaskOutcome> + Send + 'static,
    {
        let now = Instant::now();
        let mut pace = self.0.pace.lock();
        if pace.not_before.is_some_and(|moment| now < moment) {
            // There is no outcome if the first refresh panicked, or its runtime was shut down.
            return Err(pace.last.clone().unwrap_or_else(|| Err(FaultKind::Cancelled.into())));
        }
        pace.not_before = Some(now + GAP);
        let this = self.clone();
        let work = work();
        Ok(Box::pin(async move {
            let outcome = work.await;
            this.end(&outcome);
            outcome
        }))
    }

    fn end(&self, outcome: &TaskOutcome) {
        let mut pace = self.0.pace.lock();
        match outcome {
            Ok(()) => pace.failures = 0,
            Err(_) => {
                pace.failures = pace.failures.saturating_add(1);
                pace.not_before = Some(Instant::now() + GAP.max(pause_after(pace.failures)));
            }
        }
        pace.last = Some(outcome.clone());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::connection::Fault;

    #[tokio::test(start_paused = true)]
    async fn many_requests_cause_one_refresh_per_gap() {
        let refresh = Refresh::default();
        let runs = Arc::new(AtomicU32::new(0));
        let work = || {
            let runs = runs.clone();
            async move {
                runs.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
        };
        for _ in 0..1_000 {
            refresh.start(work);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(runs.load(Ordering::Relaxed), 4, "one in each 250 ms of a second");
    }

    /// Otherwise, calls that fail a moment after a failover was noticed would not be made again at the new primary.
    #[tokio::test(start_paused = true)]
    async fn a_recent_success_is_returned() {
        let refresh = Refresh::default();
        let soon = Instant::now() + Duration::from_secs(1);
        assert_eq!(refresh.run(soon, || async { Ok(()) }).await, Ok(()));
        let asked_again = || async { unreachable!("it is too early") };
        assert_eq!(refresh.run(soon, asked_again).await, Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_recent_fault_is_returned_at_once() {
        let refresh = Refresh::default();
        let fails = || async { Err(Fault::new(FaultKind::Unreachable, "no server")) };
        let soon = Instant::now() + Duration::from_secs(1);
        let first = refresh.run(soon, fails).await;
        let asked_again = || async { unreachable!("it is too early") };
        assert_eq!(refresh.run(soon, asked_again).await, first);
        assert!(first.unwrap_err().to_string().contains("no server"));
    }

    /// No server was found to be unreachable.
    #[tokio::test(start_paused = true)]
    async fn a_lost_refresh_is_a_cancellation() {
        let refresh = Refresh::default();
        let soon = Instant::now() + Duration::from_secs(1);
        for _ in 0..2 {
            let lost = || async { panic!("lost on purpose") };
            assert_eq!(refresh.run(soon, lost).await, Err(FaultKind::Cancelled.into()));
        }
    }
}
