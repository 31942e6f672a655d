//! `ThrottleLayer`: limits services that do not speak HTTP, and clients.

#[cfg(test)]
mod tests;

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;
use tower_sluice::direct::{Admission, Deciding, Limits, On, Rejected};
use tower_sluice::layer::IntoPolicies;
use tower_sluice::policy::PolicyError;

/// Limits a service with any request type by [policies](tower_sluice::Policy::on). A rejected request ends with the
/// error [`ThrottleError::Rejected`].
///
/// With a [`Concurrency`](tower_sluice::Concurrency), a request is over when the inner service's future is ready or
/// dropped.
///
/// With a [`LeakyQueue`](tower_sluice::LeakyQueue), it paces outgoing calls: requests wait in a queue, and only those
/// that would wait too long are rejected.
///
/// ```
/// use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
/// use tower_sluice::{LeakyQueue, Policy, Quota};
/// use tower_sluice_client::ThrottleLayer;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// // A partner allows five calls per second: send one every 200 ms, over all callers.
/// let pace = Policy::on("weather", LeakyQueue::new(Quota::per_second(5)).max_queue(100));
/// let mut client = ServiceBuilder::new()
///     .layer(ThrottleLayer::new(pace))
///     .service(service_fn(|city: &'static str| async move { Ok::<_, std::io::Error>(format!("sunny in {city}")) }));
///
/// assert_eq!(client.ready().await.unwrap().call("Oslo").await.unwrap(), "sunny in Oslo");
/// # }
/// ```
///
/// Keys, costs and everything else are options on the policies:
///
/// ```
/// use tower_sluice::{Concurrency, Policy, Quota};
/// use tower_sluice_client::ThrottleLayer;
///
/// struct Job {
///     customer: u64,
///     rows: u64,
/// }
///
/// let rows = Policy::on("rows", Quota::per_minute(10_000)).key_by(|job: &Job| job.customer).cost_fn(|job| job.rows);
/// let in_flight = Policy::on("in-flight", Concurrency::new(2)).key_by(|job: &Job| job.customer);
/// let layer = ThrottleLayer::new([rows, in_flight]);
/// # let _ = layer;
/// ```
///
/// To decide where there is no service, use [`Limits`], which this adapts.
#[must_use]
#[doc(alias("outgoing", "worker", "job"))]
pub struct ThrottleLayer<Req: 'static> {
    limits: Limits<Req>,
}

impl<Req: 'static> ThrottleLayer<Req> {
    /// Puts policies in force.
    ///
    /// # Panics
    ///
    /// If [`try_new`](Self::try_new) rejects the policies.
    #[track_caller]
    pub fn new(policies: impl IntoPolicies<On<Req>>) -> Self {
        Self { limits: Limits::new(policies) }
    }

    /// Puts policies in force that were read at run time.
    ///
    /// # Errors
    ///
    /// If [`Limits::try_new`](tower_sluice::LimitsHandle::try_new) rejects the policies.
    pub fn try_new(policies: impl IntoPolicies<On<Req>>) -> Result<Self, PolicyError> {
        Limits::try_new(policies).map(|limits| Self { limits })
    }

    /// The policies in force, to replace them, and to look and act on single keys. All services from the layer share
    /// them.
    #[must_use]
    pub const fn limits(&self) -> &Limits<Req> {
        &self.limits
    }
}

impl<Req: 'static, S> Layer<S> for ThrottleLayer<Req> {
    type Service = Throttle<S, Req>;

    fn layer(&self, inner: S) -> Throttle<S, Req> {
        Throttle { inner, limits: self.limits.clone() }
    }
}

impl<Req: 'static> Clone for ThrottleLayer<Req> {
    fn clone(&self) -> Self {
        Self { limits: self.limits.clone() }
    }
}

impl<Req: 'static> fmt::Debug for ThrottleLayer<Req> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThrottleLayer").finish_non_exhaustive()
    }
}

/// A rate-limited service, made by [`ThrottleLayer`]. Clones share their budgets.
pub struct Throttle<S, Req: 'static> {
    inner: S,
    limits: Limits<Req>,
}

impl<S: Clone, Req: 'static> Clone for Throttle<S, Req> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), limits: self.limits.clone() }
    }
}

impl<S, Req> Service<Req> for Throttle<S, Req>
where
    S: Service<Req> + Clone,
    Req: 'static,
{
    type Response = S::Response;
    type Error = ThrottleError<S::Error>;
    type Future = ThrottleFuture<S, Req>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(ThrottleError::Service)
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let deciding = self.limits.decide(&request);
        let state = if deciding.is_waiting() {
            // The service that was polled ready will be called; its clone stays here.
            let clone = self.inner.clone();
            let service = std::mem::replace(&mut self.inner, clone);
            ThrottleState::Waiting { deciding, call: Some((service, request)) }
        } else {
            let decided = deciding.at_once().expect("it is decided");
            ThrottleState::after(decided, &mut self.inner, request)
        };
        ThrottleFuture { state }
    }
}

impl<S: fmt::Debug, Req: 'static> fmt::Debug for Throttle<S, Req> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Throttle").field("inner", &self.inner).finish_non_exhaustive()
    }
}

pin_project! {
    /// The future of [`Throttle`]. If it is dropped while it waits, the request leaves the queue.
    pub struct ThrottleFuture<S, Req>
    where
        S: Service<Req>,
        Req: 'static,
    {
        #[pin]
        state: ThrottleState<S::Future, S, Req>,
    }
}

pin_project! {
    #[project = StateProj]
    enum ThrottleState<F, S, Req>
    where
        Req: 'static,
    {
        // Dropped together, so that units are held until the inner service is done.
        Passing { #[pin] response: F, admission: Option<Admission<On<Req>>> },
        Rejected { rejected: Option<Box<Rejected>> },
        Waiting { deciding: Deciding<On<Req>>, call: Option<(S, Req)> },
    }
}

impl<S: Service<Req>, Req: 'static> ThrottleState<S::Future, S, Req> {
    /// Calls the service if the request is admitted.
    fn after(decided: Result<Admission<On<Req>>, Box<Rejected>>, service: &mut S, request: Req) -> Self {
        match decided {
            Ok(admission) => Self::Passing { response: service.call(request), admission: Some(admission) },
            Err(rejected) => Self::Rejected { rejected: Some(rejected) },
        }
    }
}

impl<S: Service<Req>, Req: 'static> Future for ThrottleFuture<S, Req> {
    type Output = Result<S::Response, ThrottleError<S::Error>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            match state.as_mut().project() {
                // -> done, with the inner service's response
                StateProj::Passing { response, admission } => {
                    let result = ready!(response.poll(cx));
                    match admission.take() {
                        Some(admission) if result.is_ok() => admission.finish(),
                        Some(admission) => admission.fail(),
                        None => {}
                    }
                    return Poll::Ready(result.map_err(ThrottleError::Service));
                }
                // -> done, with an error
                StateProj::Rejected { rejected } => {
                    let rejected = rejected.take().expect("polled after it was ready");
                    return Poll::Ready(Err(ThrottleError::Rejected(rejected)));
                }
                // -> Passing or Rejected, once it is decided
                StateProj::Waiting { deciding, call } => {
                    let decided = ready!(Pin::new(deciding).poll(cx));
                    let (mut service, request) = call.take().expect("taken only once, when it is decided");
                    state.set(ThrottleState::after(decided, &mut service, request));
                }
            }
        }
    }
}

impl<S: Service<Req>, Req: 'static> fmt::Debug for ThrottleFuture<S, Req> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThrottleFuture").finish_non_exhaustive()
    }
}

/// The error of a [`Throttle`]d request.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ThrottleError<E> {
    /// The policies reject the request, or a limiter cannot decide: see [`Rejected::reason`].
    Rejected(Box<Rejected>),
    /// The inner service failed.
    Service(E),
}

impl<E: fmt::Display> fmt::Display for ThrottleError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rejected(rejected) => rejected.fmt(f),
            Self::Service(error) => error.fmt(f),
        }
    }
}

impl<E: Error + 'static> Error for ThrottleError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Rejected(rejected) => rejected.source(),
            Self::Service(error) => error.source(),
        }
    }
}
