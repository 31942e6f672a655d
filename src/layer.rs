use std::fmt;
use std::sync::Arc;

use http::Response;
use tower_layer::Layer;

use crate::body::RejectionBody;
use crate::grpc::GrpcStatus;
use crate::head::RequestHead;
use crate::headers::{RateLimitFields, WaitFields};
use crate::live::{Enforceable, LimitsHandle, Settings, View};
use crate::policy::{IntoPolicies, Policy, PolicyError};
use crate::rejection::Rejection;
use crate::responder::RejectionFormat;
use crate::service::RateLimit;

/// Limits the requests to a service by one or more policies.
///
/// The state of the limiters belongs to the layer: all services made by one layer, and all clones
/// of them, share their budgets. Make the layer once, when the app is built. By its [handle](Self::handle), its policies
/// can be changed later.
///
/// A request passes exactly when every enforced policy that applies to it admits it; then every
/// one of them is charged, and otherwise none. It is charged before the inner service is called, and
/// stays charged if the client goes away.
///
/// So a request that one policy refuses, or that lacks a key, does not count for the others of its
/// layer. To count such requests too (guesses at an API key, say, by address), put that policy into a
/// layer of its own, further out: layers charge each for themselves.
///
/// A request that does not pass is answered by the layer. Unless [shaped
/// otherwise](Self::with_rejection_response), the answer is 429 (503 if everybody shares the limit), with
///
/// - `Retry-After`: whole seconds, rounded up, at least 1;
/// - `X-Rate-Limited-For`: the exact wait in seconds, to the microsecond, rounded up;
/// - `Cache-Control: no-store`;
/// - `RateLimit-Policy` and `RateLimit`: what is granted, and what is left, which other responses
///   carry, too ([`with_fields`](Self::with_fields));
/// - problem details in JSON that name the violated policies.
///
/// A gRPC or gRPC-Web client is answered [in gRPC](crate::grpc), by the same layer and from the same budget.
///
/// A client that waits as long as either field says is admitted, if nobody else drew on its budget
/// meanwhile. (Both stop at 24.8 days: beyond, clients' timers overflow.)
///
/// # Order of layers
///
/// Inside of CORS (a refusal needs its headers, too) and of authentication (if the user is the key);
/// outside of concurrency limits and everything costly: a request that waits in a
/// [`LeakyQueue`](crate::LeakyQueue) holds the readiness of what is inside.
///
/// # Examples
///
/// ```
/// use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
/// use tower_sluice::algorithm::TokenBucket;
/// use tower_sluice::{Policy, Quota, RateLimitLayer};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let layer = RateLimitLayer::new(Policy::new("everybody", TokenBucket::new(Quota::per_minute(1))));
/// let mut service = ServiceBuilder::new().layer(layer).service(service_fn(|_: http::Request<()>| async {
///     Ok::<_, std::convert::Infallible>(http::Response::new(String::from("hello")))
/// }));
///
/// let first = service.ready().await.unwrap().call(http::Request::new(())).await.unwrap();
/// assert_eq!(first.status(), 200);
/// let second = service.ready().await.unwrap().call(http::Request::new(())).await.unwrap();
/// assert_eq!(second.status(), 503);
/// assert_eq!(second.headers()["retry-after"], "60");
/// # }
/// ```
#[derive(Clone)]
#[must_use]
pub struct RateLimitLayer {
    view: Arc<View>,
}

impl RateLimitLayer {
    /// A layer that enforces one policy, or an array or `Vec` of them.
    ///
    /// # Panics
    ///
    /// If [`try_new`](Self::try_new) refuses the policies.
    #[track_caller]
    pub fn new(policies: impl IntoPolicies) -> Self {
        match Self::try_new(policies) {
            Ok(layer) => layer,
            Err(error) => panic!("{error}"),
        }
    }

    /// A layer that enforces policies that were read from somewhere.
    ///
    /// # Errors
    ///
    /// If there is no policy, two have the same name, or one could never admit anything.
    pub fn try_new(policies: impl IntoPolicies) -> Result<Self, PolicyError> {
        Enforceable::new(policies).map(Self::of)
    }

    pub(crate) fn of(policies: Enforceable) -> Self {
        Self { view: View::new(policies) }
    }

    /// Changes the policies of this layer, of its clones and of all their services, also of those that run.
    #[must_use]
    pub fn handle(&self) -> LimitsHandle {
        LimitsHandle::new(Arc::clone(&self.view.limits))
    }

    fn set(self, set: impl FnOnce(&mut Settings)) -> Self {
        Self { view: self.view.with(set) }
    }

    /// Which fields tell clients what is left, and when; unless set, `RateLimit-Policy` and `RateLimit` on all
    /// responses, see [`RateLimitFields::draft11`]. Shadows and limiters without
    /// [terms](crate::Limiter::terms) are not told of.
    ///
    /// Costs one allocation per response, and two for the map of its fields if it had none.
    ///
    /// ```
    /// use tower_sluice::algorithm::TokenBucket;
    /// use tower_sluice::headers::{RateLimitFields, ResetForm};
    /// use tower_sluice::{Policy, Quota, RateLimitLayer};
    ///
    /// let layer = RateLimitLayer::new(Policy::new("api", TokenBucket::new(Quota::per_second(5))))
    ///     .with_fields(RateLimitFields::none().x_rate_limit(ResetForm::EpochSeconds));
    /// ```
    pub fn with_fields(self, fields: RateLimitFields) -> Self {
        self.set(|settings| settings.fields = fields)
    }

    /// Which fields tell the refused how long to wait, besides `Retry-After`; unless set,
    /// `X-Rate-Limited-For`.
    pub fn with_wait_fields(self, fields: WaitFields) -> Self {
        self.set(|settings| settings.responder.wait = fields)
    }

    /// Adds `Server-Timing: ratelimit;dur=…` (milliseconds) to the responses of requests that waited in a
    /// [`LeakyQueue`](crate::LeakyQueue). Pages of other origins read it only with `Timing-Allow-Origin`.
    pub fn with_server_timing(self) -> Self {
        self.set(|settings| settings.tells_timing = true)
    }

    /// What plain HTTP clients find in the body of a rejection; problem details in JSON unless set.
    pub fn with_rejection_format(self, format: &RejectionFormat) -> Self {
        self.set(|settings| settings.responder.set_format(format))
    }

    /// Counts the preflights of CORS (`OPTIONS` with `Origin` and `Access-Control-Request-Method`) like other
    /// requests. Unless set, they pass unseen: a browser takes a refused preflight for a broken network.
    pub fn counting_preflights(self) -> Self {
        self.set(|settings| settings.counts_preflights = true)
    }

    /// Answers rejected requests with what `respond` returns.
    ///
    /// It is for plain HTTP requests only: gRPC and gRPC-Web clients are always told in gRPC, see
    /// [`grpc`](crate::grpc).
    ///
    /// Its body is whatever converts to bytes, axum's `Body`, or, by [`RejectionBody::new`], any other.
    ///
    /// The fields that tell the wait and what is left, and `Cache-Control`, are set afterwards; a greater
    /// `Retry-After` of its own is kept. The status is the closure's, which may use that of the
    /// rejection.
    ///
    /// ```
    /// use http::Response;
    /// use tower_sluice::algorithm::TokenBucket;
    /// use tower_sluice::{Policy, Quota, RateLimitLayer};
    ///
    /// let layer = RateLimitLayer::new(Policy::new("api", TokenBucket::new(Quota::per_second(5))))
    ///     .with_rejection_response(|rejection, _request| {
    ///         Response::builder().status(rejection.status()).body("slow down, please").unwrap()
    ///     });
    /// ```
    pub fn with_rejection_response<F, B>(self, respond: F) -> Self
    where
        F: Fn(&Rejection, &RequestHead<'_>) -> Response<B> + Send + Sync + 'static,
        B: Into<RejectionBody>,
    {
        let respond = move |rejection: &Rejection, head: &RequestHead<'_>| respond(rejection, head).map(Into::into);
        self.set(|settings| settings.responder.set_custom(Arc::new(respond)))
    }

    /// Puts the [`Verdict`](crate::Verdict) into the extensions of all responses, for layers further out that log
    /// or count. Costs four allocations per request.
    pub fn with_verdict(self) -> Self {
        self.set(|settings| settings.tells_verdict = true)
    }

    /// The code with which gRPC clients are refused; [`GrpcStatus::ResourceExhausted`] unless set.
    pub fn with_grpc_status(self, status: GrpcStatus) -> Self {
        self.set(|settings| settings.responder.grpc_status = status)
    }

    /// How many requests the [shadow](Policy::shadow) policy of this name would have refused;
    /// `None` if there is no policy of this name.
    #[must_use]
    pub fn shadow_denied(&self, policy: &str) -> Option<u64> {
        self.view.limits.load().policy(policy).map(Policy::shadow_denied)
    }

    /// How many requests the limiter of the policy of this name could not decide on, so that they were treated as
    /// its [`FailureMode`](crate::FailureMode) says; `None` if there is no policy of this name.
    #[must_use]
    pub fn limiter_failures(&self, policy: &str) -> Option<u64> {
        self.view.limits.load().policy(policy).map(Policy::failures)
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        self.view.enrol();
        RateLimit::new(inner, Arc::clone(&self.view))
    }
}

impl fmt::Debug for RateLimitLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer").field("policies", &self.view.limits.load().policies).finish_non_exhaustive()
    }
}
