//! [`Calls`]: the calls to one server, bounded in time and number, and suspended while the server keeps failing.

use std::fmt::{self, Display};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use super::backend::{CallLimits, GaveUp};
use super::circuit_breaker::CallFailure;
use super::gate::{CallGate, Evidence};
use crate::store::NodeHealth;

/// This process's calls to one server, for a [`Backend`](super::Backend) that has nothing better.
///
/// - A call has the [timeout](Self::new). A caller waits until its deadline at most, and the call goes on in the
///   background until its own timeout, so a server that does not answer is noticed, however short the deadlines are,
///   and the call's outcome is known.
/// - At most [`max_in_flight`](Self::new) calls are in flight at once. Another caller waits until one ends, for half
///   its remaining time.
/// - After five failures in a row, or when half of at least twenty calls in ten seconds have failed, the circuit
///   breaker opens, so calls fail at once. After a pause, one call is let through as a probe, and its success closes
///   the breaker. The pause is up to 100 ms at first, and later up to 1 s if the probe failed with an error, and up to
///   5 s if it got no answer.
/// - A call that panics counts as failed.
///
/// Cloning is cheap; clones count together.
///
/// # Cost
///
/// Each call is a task.
#[derive(Clone)]
pub struct Calls(Arc<CallsInner>);

struct CallsInner {
    gate: Arc<CallGate>,
    timeout: Duration,
    slots: Arc<Semaphore>,
}

impl Calls {
    /// The longest timeout for a call or a decision, a day. Longer timeouts are cut to it, since the sum of a timeout
    /// and the time must not overflow.
    pub const LONGEST_TIMEOUT: Duration = Duration::from_secs(86_400);

    /// Bounds the calls to one server, which is called `name` in log lines and metrics. A timeout has
    /// [a day](Self::LONGEST_TIMEOUT) at most.
    ///
    /// # Panics
    ///
    /// If `timeout` or `max_in_flight` is zero.
    #[must_use]
    #[track_caller]
    pub fn new(name: &str, timeout: Duration, max_in_flight: usize) -> Self {
        assert!(!timeout.is_zero(), "a call must have some time");
        assert!(max_in_flight > 0, "a limit of no calls in flight would admit none");
        let timeout = timeout.min(Self::LONGEST_TIMEOUT);
        let slots = Arc::new(Semaphore::new(max_in_flight.min(Semaphore::MAX_PERMITS)));
        Self(Arc::new(CallsInner { gate: CallGate::new(name.into(), timeout), timeout, slots }))
    }

    /// How long a call may take.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.0.timeout
    }

    /// Returns the server's state: its circuit breaker, and the calls in flight. Takes a lock, for some tens of
    /// nanoseconds.
    ///
    /// A backend with only this node implements [`Backend::health`](super::Backend::health) as
    /// `vec![self.calls.health()]`.
    pub fn health(&self) -> NodeHealth {
        self.0.gate.health()
    }

    /// Whether calls are failing, that is, the circuit breaker is not closed.
    #[must_use]
    pub fn is_failing(&self) -> bool {
        self.0.gate.is_failing()
    }

    /// Notifies the circuit breaker of a sign of life from the server: a connection was made, or an answer came after
    /// its caller had given up. If the breaker is open, the next call is let through as a probe, without a further
    /// pause.
    pub fn heard_of_server(&self) {
        self.0.gate.breaker.lock().connected(Instant::now());
    }

    /// Makes a call. `is_fault` says whether an error is the server's fault, and not the call's. If an error opens the
    /// circuit breaker, it is logged.
    ///
    /// # Errors
    ///
    /// If there was no call, or no answer before the deadline.
    ///
    /// # Cancel safety
    ///
    /// A call that has begun goes on if this future is dropped.
    pub async fn run<T, E, F>(
        &self,
        limits: CallLimits,
        call: F,
        is_fault: impl FnOnce(&E) -> bool + Send + 'static,
    ) -> Result<Result<T, E>, GaveUp>
    where
        T: Send + 'static,
        E: Display + Send + 'static,
        F: Future<Output = Result<T, E>> + Send + 'static,
    {
        let runtime = Handle::try_current().map_err(|_| GaveUp::NoRuntime)?;
        let watch = self.0.gate.enter(Arc::clone(&self.0.slots), limits).await?;
        let due = watch.began + self.0.timeout;
        // A task that runs much later than it was due belongs to a process that was busy, and an answer may have
        // arrived.
        let too_late = due + self.0.timeout / 4;
        let task = runtime.spawn(async move {
            let answer = timeout_at(due, call).await;
            watch.end(match &answer {
                Ok(Err(error)) if is_fault(error) => Evidence::Failed(CallFailure::Answered, error),
                Ok(_) => Evidence::Healthy,
                Err(_) if Instant::now() <= too_late => Evidence::Failed(CallFailure::Silent, &GaveUp::TimedOut),
                Err(_) => Evidence::Unknown,
            });
            answer.map_err(|_| GaveUp::TimedOut)
        });
        match timeout_at(limits.deadline, task).await {
            Ok(ended) => ended.unwrap_or(Err(GaveUp::Cancelled)),
            Err(_) => Err(GaveUp::TimedOut),
        }
    }
}

impl fmt::Debug for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Calls").field("server", &self.health()).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(sluice_loom)))]
mod tests {
    use std::convert::Infallible;
    use std::future::{pending, ready};
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;
    use crate::store::BreakerState;

    const TIMEOUT: Duration = Duration::from_millis(100);

    fn limits(time: Duration) -> CallLimits {
        CallLimits { deadline: Instant::now() + time, requests: 1 }
    }

    fn breaker(calls: &Calls) -> BreakerState {
        calls.health().breaker()
    }

    async fn answer(calls: &Calls, result: Result<u32, &'static str>) -> Result<Result<u32, &'static str>, GaveUp> {
        calls.run(limits(TIMEOUT), ready(result), |error| *error == "fault").await
    }

    #[tokio::test(start_paused = true)]
    async fn a_failing_server_is_not_called() {
        let calls = Calls::new("test", TIMEOUT, 10);
        for _ in 0..50 {
            assert_eq!(answer(&calls, Err("not its fault")).await, Ok(Err("not its fault")));
        }
        assert_eq!(breaker(&calls), BreakerState::Closed);
        let mut failures = 0;
        // No time passes once it is open, because its pause is random, and may be shorter than a millisecond.
        while breaker(&calls) == BreakerState::Closed {
            tokio::time::advance(Duration::from_millis(1)).await;
            assert_eq!(answer(&calls, Err("fault")).await, Ok(Err("fault")));
            failures += 1;
        }
        assert_eq!((failures, calls.is_failing()), (5, true));
        assert!(matches!(breaker(&calls), BreakerState::Open { probe_in: Some(_) }));
        assert_eq!(answer(&calls, Ok(1)).await, Err(GaveUp::BreakerOpen));
        tokio::time::advance(Duration::from_secs(6)).await;
        assert_eq!(answer(&calls, Ok(1)).await, Ok(Ok(1)));
        assert_eq!(breaker(&calls), BreakerState::Closed);
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_connection_is_probed_at_once() {
        let calls = Calls::new("test", TIMEOUT, 10);
        while breaker(&calls) == BreakerState::Closed {
            assert_eq!(answer(&calls, Err("fault")).await, Ok(Err("fault")));
        }
        while answer(&calls, Err("fault")).await != Err(GaveUp::BreakerOpen) {}
        calls.heard_of_server();
        assert_eq!(answer(&calls, Ok(1)).await, Ok(Ok(1)));
        assert_eq!(breaker(&calls), BreakerState::Closed);
    }

    #[tokio::test(start_paused = true)]
    async fn unanswered_calls_open_the_breaker() {
        let calls = Calls::new("test", TIMEOUT, 100);
        // In two waves, because failures that come together may have one cause.
        for is_failing in [false, true] {
            for _ in 0..4 {
                let short = calls.run(limits(Duration::from_millis(10)), pending::<Result<(), Infallible>>(), |_| true);
                assert_eq!(short.await, Err(GaveUp::TimedOut));
            }
            assert_eq!(breaker(&calls), BreakerState::Closed, "they still have time");
            tokio::time::sleep(TIMEOUT).await;
            assert_eq!(calls.is_failing(), is_failing);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_caller_leaves_its_call_running() {
        let calls = Calls::new("test", TIMEOUT, 1);
        let mut context = Context::from_waker(Waker::noop());
        {
            let mut call = pin!(calls.run(limits(TIMEOUT), pending::<Result<(), Infallible>>(), |_| true));
            assert!(call.as_mut().poll(&mut context).is_pending());
        }
        assert_eq!(calls.health(), NodeHealth::new("test", BreakerState::Closed).with_in_flight(1));
        let second = calls.run(limits(TIMEOUT / 2), ready(Ok::<_, Infallible>(2)), |_| true);
        assert_eq!(second.await, Err(GaveUp::TooManyInFlight));
        tokio::time::sleep(TIMEOUT).await;
        let third = calls.run(limits(TIMEOUT), ready(Ok::<_, Infallible>(3)), |_| true);
        assert_eq!(third.await, Ok(Ok(3)));
    }

    #[test]
    fn a_call_without_a_runtime_fails() {
        let calls = Calls::new("test", TIMEOUT, 1);
        let far = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let limits = far.block_on(async { limits(TIMEOUT) });
        let mut call = pin!(calls.run(limits, ready(Ok::<_, Infallible>(())), |_| true));
        let polled = call.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(polled, std::task::Poll::Ready(Err(GaveUp::NoRuntime)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_panics_is_cancelled() {
        let calls = Calls::new("test", TIMEOUT, 1);
        let panics = async { if true { panic!("on purpose") } else { Ok::<(), Infallible>(()) } };
        assert_eq!(calls.run(limits(TIMEOUT), panics, |_| true).await, Err(GaveUp::Cancelled));
        assert_eq!(answer(&calls, Ok(1)).await, Ok(Ok(1)), "its slot is free");
    }

    /// Once, each of 1,000 requests called a store that panics, with a panic on stderr each, because the breaker did
    /// not count its calls.
    #[tokio::test(start_paused = true)]
    async fn a_store_that_panics_is_left_alone() {
        let calls = Calls::new("test", TIMEOUT, 10);
        let panics = || async { if true { panic!("on purpose") } else { Ok::<(), Infallible>(()) } };
        let mut called = 0;
        for _ in 0..1_000 {
            match calls.run(limits(TIMEOUT), panics(), |_| true).await {
                Err(GaveUp::Cancelled) => called += 1,
                other => assert_eq!(other, Err(GaveUp::BreakerOpen)),
            }
            tokio::task::yield_now().await;
        }
        assert_eq!(called, 5);
        tokio::time::advance(Duration::from_secs(6)).await;
        assert_eq!(answer(&calls, Ok(1)).await, Ok(Ok(1)));
        assert_eq!(breaker(&calls), BreakerState::Closed);
    }

    /// A database's table is locked, or DynamoDB throttles. Once, pauses had grown to five seconds after 20 probes.
    #[tokio::test(start_paused = true)]
    async fn answered_errors_are_probed_every_second() {
        let calls = Calls::new("test", TIMEOUT, 10);
        while breaker(&calls) == BreakerState::Closed {
            assert_eq!(answer(&calls, Err("fault")).await, Ok(Err("fault")));
        }
        for _ in 0..20 {
            tokio::time::advance(Duration::from_secs(1)).await;
            assert_eq!(answer(&calls, Err("fault")).await, Ok(Err("fault")));
        }
    }
}
