//! `ThrottleLayer`: limits services that do not speak HTTP, and clients.

#[cfg(test)]
mod tests;

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;
use tower_sluice::internal::{Health, Hold};
use tower_sluice::limiter::{Answer, Ask, IntoLimiter, Mode, Pending, RequestEnd};
use tower_sluice::time::{Clock, Monotonic};
use tower_sluice::{Decision, FailureMode, Limiter, LimiterError, PartitionKey};

use crate::log;

/// Limits a service of any request type. A rejected request ends with the error [`ThrottleError::Rejected`].
///
/// With a [`Concurrency`](tower_sluice::Concurrency), a request is over when the future of the inner service is ready
/// or dropped.
///
/// With a [`LeakyQueue`](tower_sluice::LeakyQueue), it paces outgoing calls: requests wait for their turn, and
/// only those that would wait too long are rejected.
///
/// ```
/// use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
/// use tower_sluice::{LeakyQueue, Quota};
/// use tower_sluice_client::ThrottleLayer;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// // A partner allows five calls per second: send one every 200 ms, over all callers.
/// let mut client = ServiceBuilder::new()
///     .layer(ThrottleLayer::new(LeakyQueue::new(Quota::per_second(5)).max_queue(100)))
///     .service(service_fn(|city: &'static str| async move { Ok::<_, std::io::Error>(format!("sunny in {city}")) }));
///
/// assert_eq!(client.ready().await.unwrap().call("Oslo").await.unwrap(), "sunny in Oslo");
/// # }
/// ```
#[must_use]
#[doc(alias("outgoing", "worker", "job"))]
pub struct ThrottleLayer<Req> {
    gate: Arc<ThrottleGate<Req>>,
}

/// The part that all services of a layer share.
struct ThrottleGate<Req> {
    limiter: Arc<dyn Limiter>,
    /// Whether requests hold their units until they are over.
    holds: bool,
    has_fallback: bool,
    on_failure: FailureMode,
    health: Arc<Health>,
    key: ThrottleKeyFn<Req>,
    cost: CostFn<Req>,
}

// Shared with the layers that were cloned before an option was set.
type ThrottleKeyFn<Req> = Arc<dyn Fn(&Req) -> PartitionKey + Send + Sync>;
type CostFn<Req> = Arc<dyn Fn(&Req) -> u64 + Send + Sync>;

impl<Req> Clone for ThrottleGate<Req> {
    fn clone(&self) -> Self {
        let limiter = Arc::clone(&self.limiter);
        let health = Arc::clone(&self.health);
        let key = Arc::clone(&self.key);
        let cost = Arc::clone(&self.cost);
        Self { limiter, health, key, cost, ..*self }
    }
}

impl<Req> ThrottleLayer<Req> {
    /// One budget for all requests.
    pub fn new(limiter: impl IntoLimiter) -> Self {
        Self::keyed(limiter, |_| PartitionKey::SHARED)
    }

    /// One budget per key.
    pub fn keyed<K: Into<PartitionKey>>(
        limiter: impl IntoLimiter,
        key: impl Fn(&Req) -> K + Send + Sync + 'static,
    ) -> Self {
        let (limiter, key) = (limiter.into_limiter(), move |request: &Req| key(request).into());
        let description = limiter.describe();
        let gate = ThrottleGate {
            limiter,
            holds: description.holds(),
            has_fallback: description.answers(Mode::Fallback),
            on_failure: FailureMode::default(),
            health: Arc::default(),
            key: Arc::new(key),
            cost: Arc::new(|_: &Req| 1),
        };
        Self { gate: Arc::new(gate) }
    }

    /// Computes the cost of a request; 1 unless set. Clones and services that were made before keep theirs, and share
    /// the budgets.
    pub fn cost_fn(mut self, cost: impl Fn(&Req) -> u64 + Send + Sync + 'static) -> Self {
        Arc::make_mut(&mut self.gate).cost = Arc::new(cost);
        self
    }

    /// Sets how a request whose limiter fails is treated; the [local fallback](FailureMode::LocalFallback) decides
    /// unless set. If the limiter was [closed](LimiterError::closed), requests end with that error in any case. The
    /// beginning and the end of an outage are logged.
    pub fn on_failure(mut self, choice: FailureMode) -> Self {
        Arc::make_mut(&mut self.gate).on_failure = choice;
        self
    }
}

impl<Req, S> Layer<S> for ThrottleLayer<Req> {
    type Service = Throttle<S, Req>;

    fn layer(&self, inner: S) -> Throttle<S, Req> {
        Throttle { inner, gate: Arc::clone(&self.gate) }
    }
}

impl<Req> Clone for ThrottleLayer<Req> {
    fn clone(&self) -> Self {
        Self { gate: Arc::clone(&self.gate) }
    }
}

impl<Req> fmt::Debug for ThrottleLayer<Req> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThrottleLayer").finish_non_exhaustive()
    }
}

/// A rate-limited service, made by [`ThrottleLayer`]. Clones share their budgets.
pub struct Throttle<S, Req> {
    inner: S,
    gate: Arc<ThrottleGate<Req>>,
}

impl<S: Clone, Req> Clone for Throttle<S, Req> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), gate: Arc::clone(&self.gate) }
    }
}

impl<S, Req> Service<Req> for Throttle<S, Req>
where
    S: Service<Req> + Clone,
{
    type Response = S::Response;
    type Error = ThrottleError<S::Error>;
    type Future = ThrottleFuture<S, Req>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(ThrottleError::Service)
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let key = (self.gate.key)(&request);
        let cost = (self.gate.cost)(&request);
        let next = match self.gate.limiter.decide(&Ask::charge(&key, cost)) {
            Answer::Ready(answer) => self.gate.next(answer, &key, cost, false),
            Answer::Pending(pending) => ThrottleStep::Wait { pending, fell_back: false },
        };
        let state = match next {
            ThrottleStep::Pass { hold } => ThrottleState::Passing { response: self.inner.call(request), hold },
            ThrottleStep::Reject(error) => ThrottleState::Rejected { error: Some(error) },
            ThrottleStep::Wait { pending, fell_back } => {
                // The service that was polled ready will be called; its clone stays here.
                let clone = self.inner.clone();
                let service = std::mem::replace(&mut self.inner, clone);
                let gate = Arc::clone(&self.gate);
                ThrottleState::Waiting {
                    pending,
                    rest: Some(ThrottledCall { service, request, gate, key, cost, fell_back }),
                }
            }
        };
        ThrottleFuture { state }
    }
}

impl<Req> ThrottleGate<Req> {
    /// Returns the next step after an answer of the limiter, or of its local fallback.
    fn next<E>(
        &self,
        answer: Result<Decision, LimiterError>,
        key: &PartitionKey,
        cost: u64,
        fell_back: bool,
    ) -> ThrottleStep<E> {
        // The answers of the fallback tell nothing about the limiter.
        if answer.is_ok() && !fell_back && self.health.worked(|| Monotonic.now()) {
            log::throttle_recovered();
        }
        let error = match answer {
            Ok(decision) if decision.is_allowed() => {
                let mut hold = self.holds.then(|| Hold::new(Arc::clone(&self.limiter), key, &decision, cost));
                // Unless the inner service is done before it is dropped.
                end(&mut hold, RequestEnd::Abandoned);
                return ThrottleStep::Pass { hold };
            }
            Ok(decision) => {
                return ThrottleStep::Reject(ThrottleError::Rejected { retry_after: decision.retry_after() });
            }
            Err(error) => error,
        };
        // Who closed it wants its requests rejected: the limiter has not failed.
        if error.is_closed() {
            return ThrottleStep::Reject(ThrottleError::Limiter(error));
        }
        if self.health.failed(Monotonic.now()) {
            log::throttle_failed(&error, self.fate_on_failure());
        }
        match self.on_failure {
            FailureMode::Allow => ThrottleStep::Pass { hold: None },
            FailureMode::LocalFallback if self.has_fallback && !fell_back => {
                match self.limiter.decide(&Ask::charge(key, cost).to(Mode::Fallback)) {
                    Answer::Ready(answer) => self.next(answer, key, cost, true),
                    Answer::Pending(pending) => ThrottleStep::Wait { pending, fell_back: true },
                }
            }
            // `Reject`, a limiter without a fallback, and a fallback that fails.
            _ => ThrottleStep::Reject(ThrottleError::Limiter(error)),
        }
    }

    /// The treatment of requests while the limiter fails, for the log.
    fn fate_on_failure(&self) -> &'static str {
        match self.on_failure {
            FailureMode::Allow => "pass uncounted",
            FailureMode::LocalFallback if self.has_fallback => "are decided by the local fallback",
            _ => "end with an error",
        }
    }
}

/// Sets how a request is over when its units are released, for limiters that learn from it.
fn end(hold: &mut Option<Hold>, end: RequestEnd) {
    if let Some(hold) = hold {
        hold.end_as(Some(end));
    }
}

/// The treatment of a request.
enum ThrottleStep<E> {
    /// It is passed on, and holds this until it is over.
    Pass { hold: Option<Hold> },
    /// It ends with an error.
    Reject(ThrottleError<E>),
    /// The limiter has yet to decide, or its local fallback.
    Wait { pending: Pending, fell_back: bool },
}

impl<S: fmt::Debug, Req> fmt::Debug for Throttle<S, Req> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Throttle").field("inner", &self.inner).finish_non_exhaustive()
    }
}

pin_project! {
    /// The future of [`Throttle`]. If it is dropped while it waits for its turn, the request leaves the queue.
    pub struct ThrottleFuture<S, Req>
    where
        S: Service<Req>,
    {
        #[pin]
        state: ThrottleState<S::Future, S, Req, S::Error>,
    }
}

pin_project! {
    #[project = StateProj]
    enum ThrottleState<F, S, Req, E> {
        // Dropped together, so that units are held until the inner service is done.
        Passing { #[pin] response: F, hold: Option<Hold> },
        Rejected { error: Option<ThrottleError<E>> },
        Waiting { pending: Pending, rest: Option<ThrottledCall<S, Req>> },
    }
}

/// The parts that a request needs once its turn has come.
struct ThrottledCall<S, Req> {
    service: S,
    request: Req,
    gate: Arc<ThrottleGate<Req>>,
    key: PartitionKey,
    cost: u64,
    /// Whether the limiter has failed, so that its fallback is asked.
    fell_back: bool,
}

impl<S: Service<Req>, Req> Future for ThrottleFuture<S, Req> {
    type Output = Result<S::Response, ThrottleError<S::Error>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            match state.as_mut().project() {
                // -> done, with the inner service's response
                StateProj::Passing { response, hold } => {
                    let result = ready!(response.poll(cx));
                    end(hold, if result.is_ok() { RequestEnd::Served } else { RequestEnd::Failed });
                    *hold = None;
                    return Poll::Ready(result.map_err(ThrottleError::Service));
                }
                // -> done, with an error
                StateProj::Rejected { error } => {
                    return Poll::Ready(Err(error.take().expect("polled after it was ready")));
                }
                // -> Passing or Rejected, once the limiter has decided; Waiting, if its fallback waits as well
                StateProj::Waiting { pending, rest } => {
                    let answer = ready!(pending.as_mut().poll(cx));
                    let mut rest = rest.take().expect("taken only once, when the limiter has answered");
                    let next = match rest.gate.next(answer, &rest.key, rest.cost, rest.fell_back) {
                        ThrottleStep::Pass { hold } => {
                            ThrottleState::Passing { response: rest.service.call(rest.request), hold }
                        }
                        ThrottleStep::Reject(error) => ThrottleState::Rejected { error: Some(error) },
                        ThrottleStep::Wait { pending, fell_back } => {
                            ThrottleState::Waiting { pending, rest: Some(ThrottledCall { fell_back, ..rest }) }
                        }
                    };
                    state.set(next);
                }
            }
        }
    }
}

impl<S: Service<Req>, Req> fmt::Debug for ThrottleFuture<S, Req> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThrottleFuture").finish_non_exhaustive()
    }
}

/// The error of a [`Throttle`]d request.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ThrottleError<E> {
    /// The limit is used up, or the wait in the queue would be too long.
    #[non_exhaustive]
    Rejected {
        /// The exact time after which the same request would pass, alone on its key; `None` if no wait helps, or if the
        /// time is not known, as with a [`Concurrency`](tower_sluice::Concurrency).
        retry_after: Option<Duration>,
    },
    /// The limiter cannot decide, and the [`FailureMode`] does not decide in its place.
    Limiter(LimiterError),
    /// The inner service failed.
    Service(E),
}

impl<E: fmt::Display> fmt::Display for ThrottleError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rejected { retry_after: Some(wait) } => write!(f, "rate limit exceeded, retry after {wait:?}"),
            Self::Rejected { retry_after: None } => f.write_str("rate limit exceeded, and no wait is known to help"),
            Self::Limiter(error) => error.fmt(f),
            Self::Service(error) => error.fmt(f),
        }
    }
}

impl<E: Error + 'static> Error for ThrottleError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Rejected { .. } => None,
            Self::Limiter(error) => error.source(),
            Self::Service(error) => error.source(),
        }
    }
}
