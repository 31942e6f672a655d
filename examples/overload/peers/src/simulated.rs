//! Latencies on tokio's clock, for crates that read `std`'s clock.

use std::cell::Cell;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Instant;
use tower::Service;

thread_local! {
    /// When the request was sent whose future is polled or dropped.
    static SENT: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// An algorithm that gets the simulated latency instead of the latency that its service has measured.
pub(crate) struct Simulated<A>(pub(crate) A);

fn latency() -> Duration {
    SENT.get().expect("requests are timed").elapsed()
}

impl<A: tower_acc::Algorithm> tower_acc::Algorithm for Simulated<A> {
    fn max_concurrency(&self) -> usize {
        self.0.max_concurrency()
    }

    fn update(&mut self, _: Duration, in_flight: usize, is_error: bool, is_canceled: bool) {
        self.0.update(latency(), in_flight, is_error, is_canceled);
    }
}

impl<A: tower_resilience_adaptive::ConcurrencyAlgorithm> tower_resilience_adaptive::ConcurrencyAlgorithm
    for Simulated<A>
{
    fn record_success(&self, _: Duration) {
        self.0.record_success(latency());
    }

    fn record_success_with_load(&self, _: Duration, in_flight: usize) {
        self.0.record_success_with_load(latency(), in_flight);
    }

    fn record_failure(&self) {
        self.0.record_failure();
    }

    fn record_dropped(&self) {
        self.0.record_dropped();
    }

    fn limit(&self) -> usize {
        self.0.limit()
    }

    fn min_limit(&self) -> usize {
        self.0.min_limit()
    }

    fn max_limit(&self) -> usize {
        self.0.max_limit()
    }
}

/// Notes when a request is sent to a limiter.
#[derive(Clone)]
pub(crate) struct Timed<S>(pub(crate) S);

impl<S, Request> Service<Request> for Timed<S>
where
    S: Service<Request>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = TimedFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        TimedFuture { sent: Instant::now(), future: Some(Box::pin(self.0.call(request))) }
    }
}

pub(crate) struct TimedFuture<F> {
    sent: Instant,
    future: Option<Pin<Box<F>>>,
}

impl<F: Future> Future for TimedFuture<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        SENT.set(Some(self.sent));
        self.future.as_mut().expect("dropped last").as_mut().poll(cx)
    }
}

impl<F> Drop for TimedFuture<F> {
    fn drop(&mut self) {
        SENT.set(Some(self.sent));
        self.future = None;
    }
}
