//! Work that all callers wait for together.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};
use tower_sluice::internal::Lock;

use super::fault::{Fault, FaultKind};
use tower_sluice::internal::remote::OnDrop;

/// Runs work in a separate task, so that it continues when its callers give up. Callers that come while it runs share
/// its outcome, so it runs once at a time. A second run begins only if the first one's runtime may be blocked.
#[derive(Debug, Default)]
pub(super) struct SharedTask {
    running: Lock<Option<Running>>,
}

/// Work that was started, and may have ended.
#[derive(Clone, Debug)]
struct Running {
    progress: Arc<TaskProgress>,
    runtime: Id,
    began: Instant,
}

/// The work's progress.
#[derive(Debug)]
struct TaskProgress {
    outcome: OnceLock<TaskOutcome>,
    /// Has no permits. It is closed when the work is done, or was dropped, which wakes the callers in the order in
    /// which they came. A `watch` channel would wake them in a random order.
    end: Semaphore,
}

/// How long to wait for work on another runtime. If it takes longer, that runtime may be blocked, and the caller does
/// the work itself. On a runtime that is not blocked, healthy servers answer within milliseconds.
pub(super) const TAKE_OVER_AFTER: Duration = Duration::from_millis(250);

/// Work that has not started yet.
pub(super) type Work = Pin<Box<dyn Future<Output = TaskOutcome> + Send>>;

pub(super) type TaskOutcome = Result<(), Fault>;

impl SharedTask {
    /// Waits for the work that is running. If no work is running, `begin` returns the work to run on this runtime, or
    /// the outcome if there is no work to do now.
    ///
    /// # Errors
    ///
    /// The errors from `begin` and from the work; [`FaultKind::TimedOut`] at the deadline; [`FaultKind::Cancelled`] if
    /// the work panicked, or if this runtime is being shut down; [`FaultKind::NoRuntime`].
    pub(super) async fn run(&self, deadline: Instant, begin: impl Fn() -> Result<Work, TaskOutcome>) -> TaskOutcome {
        let handle = Handle::try_current().map_err(|_| FaultKind::NoRuntime)?;
        loop {
            let work = match self.join(&handle, &begin) {
                Ok(work) => work,
                Err(outcome) => return outcome,
            };
            let is_here = work.runtime == handle.id();
            let until = if is_here { deadline } else { deadline.min(work.began + TAKE_OVER_AFTER) };
            let has_ended = timeout_at(until, work.progress.end.acquire()).await.is_ok();
            match work.progress.outcome.get() {
                Some(outcome) => return outcome.clone(),
                // The work panicked, or this runtime is being shut down. A second run would end in the same way.
                None if has_ended && is_here => return Err(FaultKind::Cancelled.into()),
                // The work's runtime was shut down in the middle of it, or is blocked: run the work on this runtime.
                _ if Instant::now() < deadline => {}
                _ => return Err(FaultKind::TimedOut.into()),
            }
        }
    }

    /// Runs the work as [`run`](Self::run) does, but does not wait for it.
    pub(super) fn start(&self, begin: impl Fn() -> Result<Work, TaskOutcome>) {
        if let Ok(handle) = Handle::try_current() {
            // No caller waits for the outcome.
            let _ = self.join(&handle, &begin);
        }
    }

    /// Returns the work that is running, here or on another runtime. Starts it if no work is running.
    fn join(&self, handle: &Handle, begin: &impl Fn() -> Result<Work, TaskOutcome>) -> Result<Running, TaskOutcome> {
        let runtime = handle.id();
        let now = Instant::now();
        let mut running = self.running.lock();
        if let Some(work) = &*running {
            // The outcome is set a moment before the end.
            let is_running = !work.progress.end.is_closed() && work.progress.outcome.get().is_none();
            if is_running && (work.runtime == runtime || now < work.began + TAKE_OVER_AFTER) {
                return Ok(work.clone());
            }
        }
        let work = begin()?;
        let progress = Arc::new(TaskProgress { outcome: OnceLock::new(), end: Semaphore::new(0) });
        let done = Arc::clone(&progress);
        let ended = Arc::clone(&progress);
        // Closes it even when the work is dropped with its runtime.
        let end = OnDrop::new(move || ended.end.close());
        handle.spawn(async move {
            let _end = end;
            // The outcome is set only here.
            let _ = done.outcome.set(work.await);
        });
        Ok(running.insert(Running { progress, runtime, began: now }).clone())
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    use tokio::runtime::Builder;

    use super::*;

    fn work(work: impl Future<Output = TaskOutcome> + Send + 'static) -> Result<Work, TaskOutcome> {
        Ok(Box::pin(work))
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(5)
    }

    #[tokio::test(start_paused = true)]
    async fn many_callers_share_one_run() {
        let shared = Arc::new(SharedTask::default());
        let runs = Arc::new(AtomicU32::new(0));
        let waiting: Vec<_> = (0..100)
            .map(|_| {
                let shared = shared.clone();
                let runs = runs.clone();
                tokio::spawn(async move {
                    let begin = || {
                        let runs = runs.clone();
                        work(async move {
                            tokio::time::sleep(Duration::from_secs(1)).await;
                            runs.fetch_add(1, Ordering::Relaxed);
                            Err(FaultKind::Unreachable.into())
                        })
                    };
                    shared.run(soon(), begin).await
                })
            })
            .collect();
        for waiter in waiting {
            assert_eq!(waiter.await.unwrap(), Err(FaultKind::Unreachable.into()));
        }
        assert_eq!(runs.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn work_continues_when_its_caller_gives_up() {
        let shared = SharedTask::default();
        let done = Arc::new(AtomicU32::new(0));
        let begin = || {
            let done = done.clone();
            work(async move {
                tokio::time::sleep(Duration::from_secs(10)).await;
                done.fetch_add(1, Ordering::Relaxed);
                Ok(())
            })
        };
        assert_eq!(shared.run(soon(), begin).await, Err(FaultKind::TimedOut.into()));
        assert_eq!(shared.run(soon() + Duration::from_secs(5), begin).await, Ok(()));
        assert_eq!(done.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn work_that_panics_is_not_run_again() {
        let shared = SharedTask::default();
        let runs = Arc::new(AtomicU32::new(0));
        let begin = || {
            let runs = runs.clone();
            work(async move {
                runs.fetch_add(1, Ordering::Relaxed);
                panic!("on purpose")
            })
        };
        assert_eq!(shared.run(soon(), begin).await, Err(FaultKind::Cancelled.into()));
        assert_eq!(runs.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn work_moves_from_a_lost_runtime() {
        let shared = SharedTask::default();
        let runtime = || Builder::new_current_thread().enable_all().build().unwrap();
        let first = runtime();
        first.block_on(async { shared.start(|| work(std::future::pending())) });
        drop(first);
        assert_eq!(runtime().block_on(shared.run(soon(), || work(async { Ok(()) }))), Ok(()));
    }

    #[test]
    fn work_moves_from_a_blocked_runtime() {
        let shared = SharedTask::default();
        let mut runtime = Builder::new_current_thread();
        let blocked = runtime.enable_all().build().unwrap();
        let begins = Instant::now();
        blocked.block_on(async { shared.start(|| work(std::future::pending())) });
        // This runtime's clock only moves during the wait.
        runtime.start_paused(true).build().unwrap().block_on(async {
            let start = Instant::now();
            assert_eq!(shared.run(soon(), || work(async { Ok(()) })).await, Ok(()));
            assert!(begins.elapsed() >= TAKE_OVER_AFTER);
            assert!(start.elapsed() <= TAKE_OVER_AFTER + Duration::from_millis(1), "{:?}", start.elapsed());
        });
    }

    #[tokio::test]
    async fn without_work_its_outcome_is_returned() {
        let shared = SharedTask::default();
        for outcome in [Ok(()), Err(Fault::from(FaultKind::Unreachable))] {
            assert_eq!(shared.run(soon(), || Err(outcome.clone())).await, outcome);
        }
    }

    #[test]
    fn outside_a_runtime_it_is_a_fault() {
        let shared = SharedTask::default();
        let mut waiting = pin!(shared.run(soon(), || work(async { Ok(()) })));
        let outcome = waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(outcome, Poll::Ready(Err(FaultKind::NoRuntime.into())));
    }
}
