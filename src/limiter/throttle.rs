//! `ThrottleLayer`: limits services that do not speak HTTP, and clients.

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

use crate::limiter::{Hold, IntoLimiter, Limiter};
use crate::values::{Ask, Check, Decision, LimiterError, Outcome, PartitionKey, Pending};

/// Limits a service of any request type. A rejected request ends with the error [`ThrottleError::Rejected`].
///
/// With a [`Concurrency`](crate::Concurrency), a request is over when the future of the inner service is ready or
/// dropped.
///
/// With a [`LeakyQueue`](crate::LeakyQueue), it paces outgoing calls: requests wait for their turn, and
/// only those that would wait too long are rejected.
///
/// ```
/// use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
/// use tower_sluice::{LeakyQueue, Quota, ThrottleLayer};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// // A partner allows five calls per second: send one every 200 ms, over all callers.
/// let mut client = ServiceBuilder::new()
///     .layer(ThrottleLayer::new(LeakyQueue::new(Quota::per_second(5)).capacity(100)))
///     .service(service_fn(|city: &'static str| async move { Ok::<_, std::io::Error>(format!("sunny in {city}")) }));
///
/// assert_eq!(client.ready().await.unwrap().call("Oslo").await.unwrap(), "sunny in Oslo");
/// # }
/// ```
pub struct ThrottleLayer<Req> {
    gate: Arc<Gate<Req>>,
}

/// What all services of a layer share.
struct Gate<Req> {
    limiter: Arc<dyn Limiter>,
    /// Whether requests hold their units until they are over.
    holds: bool,
    key: KeyFn<Req>,
    cost: CostFn<Req>,
}

type KeyFn<Req> = Box<dyn Fn(&Req) -> PartitionKey + Send + Sync>;
type CostFn<Req> = Box<dyn Fn(&Req) -> u32 + Send + Sync>;

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
        let holds = limiter.describe().holds();
        Self { gate: Arc::new(Gate { limiter, holds, key: Box::new(key), cost: Box::new(|_| 1) }) }
    }

    /// Sets the cost of a request; 1 unless set.
    ///
    /// # Panics
    ///
    /// If a clone of the layer, or a service that it made, is alive.
    #[must_use]
    #[track_caller]
    pub fn cost(mut self, cost: impl Fn(&Req) -> u32 + Send + Sync + 'static) -> Self {
        let gate = Arc::get_mut(&mut self.gate).expect("the cost is set before the layer is used");
        gate.cost = Box::new(cost);
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
    gate: Arc<Gate<Req>>,
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
        let (key, cost) = ((self.gate.key)(&request), (self.gate.cost)(&request));
        let check = self.gate.limiter.decide(&Ask::charge(&key, cost));
        let state = match check {
            Check::Ready(result) => match self.gate.admit(result, &key, cost) {
                Ok(hold) => State::Passing { response: self.inner.call(request), hold },
                Err(error) => State::Rejected { error: Some(error) },
            },
            Check::Pending(pending) => {
                // The service that was polled ready is the one that will be called; its clone stays here.
                let clone = self.inner.clone();
                let ready = std::mem::replace(&mut self.inner, clone);
                let gate = Arc::clone(&self.gate);
                State::Waiting { pending, rest: Some(Rest { service: ready, request, gate, key, cost }) }
            }
        };
        ThrottleFuture { state }
    }
}

impl<Req> Gate<Req> {
    /// Returns what an admitted request holds until it is over, if anything.
    fn admit<E>(
        &self,
        result: Result<Decision, LimiterError>,
        key: &PartitionKey,
        cost: u32,
    ) -> Result<Option<Hold>, ThrottleError<E>> {
        let decision = result.map_err(ThrottleError::Limiter)?;
        match decision.outcome() {
            Outcome::Allow => Ok(self.holds.then(|| Hold::new(&self.limiter, key, &decision, cost))),
            Outcome::Deny { retry_after } => Err(ThrottleError::Rejected { retry_after }),
        }
    }
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
        state: State<S::Future, S, Req, S::Error>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<F, S, Req, E> {
        // Dropped together, so that units are held for as long as the inner service works.
        Passing { #[pin] response: F, hold: Option<Hold> },
        Rejected { error: Option<ThrottleError<E>> },
        Waiting { pending: Pending, rest: Option<Rest<S, Req>> },
    }
}

/// What a request needs once its turn has come.
struct Rest<S, Req> {
    service: S,
    request: Req,
    gate: Arc<Gate<Req>>,
    key: PartitionKey,
    cost: u32,
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
                    *hold = None;
                    return Poll::Ready(result.map_err(ThrottleError::Service));
                }
                // -> done, with an error
                StateProj::Rejected { error } => {
                    return Poll::Ready(Err(error.take().expect("polled after it was ready")));
                }
                // -> Passing or Rejected, once the limiter has decided
                StateProj::Waiting { pending, rest } => {
                    let result = ready!(pending.as_mut().poll(cx));
                    let rest = rest.take().expect("taken only once, when the turn has come");
                    let Rest { mut service, request, gate, key, cost } = rest;
                    let next = match gate.admit(result, &key, cost) {
                        Ok(hold) => State::Passing { response: service.call(request), hold },
                        Err(error) => State::Rejected { error: Some(error) },
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
    Rejected {
        /// The exact time after which the same request would pass, alone on its key; `None` if no wait helps, or if the
        /// time is not known, as with a [`Concurrency`](crate::Concurrency).
        retry_after: Option<Duration>,
    },
    /// The limiter cannot decide.
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
