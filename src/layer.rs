use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::Response;
use tower_layer::Layer;

use crate::backlog::Backlog;
use crate::body::RejectionBody;
use crate::decision::{Decision, LimiterError};
use crate::grpc::GrpcStatus;
use crate::head::RequestHead;
use crate::headers::{Jitter, RateLimitFields, WaitFields};
use crate::live::{Enforceable, LimitsHandle, Settings, View};
use crate::partition::PartitionKey;
use crate::policy::{IntoPolicies, Policy, PolicyError};
use crate::preflight::Exemption;
use crate::quota::Quota;
use crate::rejection::Rejection;
use crate::responder::RejectionFormat;
use crate::service::RateLimit;

/// Limits the requests to a service by one or more policies.
///
/// The state of the limiters belongs to the layer: all services made by one layer, and all clones
/// of them, share their budgets. Make the layer once, when the app is built, and mount it once on the way of a request: a
/// layer around itself charges each request twice, which is logged once. By its [handle](Self::handle), its policies
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
/// meanwhile: they cover the limits of all policies of the layer, for the cost of this request, and their
/// [bans](Policy::penalty). If no wait helps one of them, both are absent. (Both stop at 24.8 days: beyond, clients' timers
/// overflow. A policy on Redis counts as far as this process knows, and charges [that may be refunded](Policy::charge_when)
/// as refunded.)
///
/// # Order of layers
///
/// Inside of CORS (a refusal needs its headers, too, and preflights, which count like all requests, then never arrive here) and of authentication (if the user is the key);
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
    /// If there is no policy, two have the same name or one has a name that is no token of up to 64 bytes, or if one could never
    /// admit anything or never reject anything: see [`PolicyError`].
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

    /// Rejects, with 503, all requests that wait for a turn in a queue of this layer, and all that come to one from now on: see
    /// [`LimitsHandle::close`].
    pub fn close(&self) {
        self.view.limits.close();
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

    /// Lengthens the wait of each rejection by a random time of up to `max`, every length as likely as any other: so clients
    /// that are rejected together, and retry as soon as they may, do not come back together. Unless set, waits are exact.
    ///
    /// Lengthened are `Retry-After`, `X-Rate-Limited-For`, the text of the rejection, and what gRPC clients get, all by the
    /// same; never shortened, so that a client that waits for as long as it was told is admitted as before. `RateLimit`
    /// goes on to tell when quota is there again.
    ///
    /// A tenth of the window, and ten seconds at most, is enough for most services with windows, of which all clients are
    /// readmitted at the same instant; buckets readmit each at its own. See also
    /// [`FixedWindow::staggered`](crate::algorithm::FixedWindow::staggered), which costs nobody a wait.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sluice::algorithm::FixedWindow;
    /// use tower_sluice::{Policy, Quota, RateLimitLayer};
    ///
    /// let layer = RateLimitLayer::new(Policy::new("api", FixedWindow::new(Quota::per_minute(100))))
    ///     .with_retry_jitter(Duration::from_secs(6));
    /// ```
    pub fn with_retry_jitter(self, max: Duration) -> Self {
        self.set(|settings| settings.responder.jitter = Jitter::up_to(max))
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

    /// Lets preflights of CORS pass uncounted, as many as `budget` allows. Unless set, they count like all requests.
    ///
    /// Where the layer that handles CORS is [outside](Self#order-of-layers), as it should be, preflights never arrive here,
    /// and this is not needed. It is for services that answer them further in, or behind another handler: a browser takes a
    /// rejected preflight for a broken network.
    ///
    /// Exempt is only what can be nothing but a preflight:
    ///
    /// - the method is `OPTIONS`, with one `Origin` that is an origin, and one `Access-Control-Request-Method` that is one
    ///   method;
    /// - there is no body, and no `content-type` (so it is never gRPC);
    /// - there is no `authorization`, `proxy-authorization` or `cookie`, no `te`, `trailer`, `expect`, `upgrade`,
    ///   `content-encoding` or `transfer-encoding`, and no field that overrides the method.
    ///
    /// In HTTP/1.1, the fields say whether there is a body. Over HTTP/2 and later, only the body knows: there, requests with
    /// another body than axum's (crate feature `axum`), tonic's (`tonic`) or `()` count.
    ///
    /// A preflight of a key that a policy has [banned](Policy::penalty) is not exempt, and is rejected with the ban. The budget
    /// is one for the layer, its clones and all clients, in this process, and [live changes](Self::handle) leave it as it
    /// is. A preflight beyond it is not rejected for that: it counts like any other request. So all clients together gain
    /// `budget` and no more, and who uses it up takes nothing else from others.
    ///
    /// Exempt preflights reach the inner service like any `OPTIONS`. Where a handler does its work whatever the method
    /// (axum's `any`), they are `budget` requests more.
    ///
    /// # Cost
    ///
    /// To other requests, a look at the method.
    ///
    /// ```
    /// use tower_sluice::algorithm::TokenBucket;
    /// use tower_sluice::key::PeerIp;
    /// use tower_sluice::{Policy, Quota, RateLimitLayer};
    ///
    /// let policy = Policy::new("per-client", TokenBucket::new(Quota::per_second(5))).key(PeerIp::new());
    /// let layer = RateLimitLayer::new(policy).exempting_preflights(Quota::per_second(50));
    /// ```
    pub fn exempting_preflights(self, budget: Quota) -> Self {
        self.set(|settings| settings.exemption = Some(Arc::new(Exemption::new(budget))))
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

    /// Names the route, or whatever else tells this layer from others: a label of its metrics, and a field of its events.
    ///
    /// Without it, policies of the same name in several layers are counted as one. A [`Config`](crate::config::Config)
    /// sets it to the first path of the route. Not for anything of which clients can make many.
    ///
    /// # Metrics
    ///
    /// With the feature `metrics`, each policy keeps these, through the recorder that is installed when its first
    /// request comes. Names are those of Prometheus; in the facade, `tower_sluice.rate_limiting` and dots.
    ///
    /// | `tower_sluice_rate_limiting_…` | labels, with `route` and `policy` | |
    /// |---|---|---|
    /// | `requests_total` | `result` | `allowed`, `delayed` (after it waited), `denied`, `shadow-denied` (passed), `skipped` (the policy did not apply), `no-key` (refused for want of one), `store-error` (passed uncounted, or answered 503, as its [`FailureMode`](crate::FailureMode) says; or its queue was [closed](Self::close)), `cancelled` (the client left before a decision, or its turn) |
    /// | `limiter_failures_total` | | requests whose limiter failed, also those that the local guard decided |
    /// | `queued_requests` | | requests that wait now |
    /// | `request_time_in_queue_seconds` | `result`: `delayed`, `cancelled` | histogram of waits |
    /// | `table_capacity`, `table_live_keys` | | see [`TableStats`](crate::store::TableStats) |
    /// | `table_evicted_live_total`, `table_turned_away_total` | | the same, added up over all tables that the policy had |
    /// | `ban_table_capacity`, `ban_table_live_keys`, `ban_table_evicted_live_total` | | the same of the table of [bans](Policy::penalty) |
    /// | `store_breaker` | `node` | whether a node of Redis is asked: 0 yes, 1 by one call that tries, 2 no |
    /// | `store_call_duration_seconds` | only `result`: `ok`, or why not | histogram of calls to Redis, all policies together |
    ///
    /// A request counts once with each policy, but for those that would have admitted what another refuses. `table_…`,
    /// `ban_table_…` and `store_breaker` are read when [`observe`](#method.observe) is called.
    ///
    /// Once a policy is gone, because a [change](crate::LimitsHandle::replace) left it out or the layer, its clones and all
    /// their services were dropped, its gauges are zero: a recorder cannot remove a series. Counters stay, and go on if a
    /// policy of the same name comes after it.
    ///
    /// A counter costs an atomic addition, and a compare if no recorder is installed.
    ///
    /// # Panics
    ///
    /// If this layer, or one that it was cloned from, has another route.
    #[track_caller]
    pub fn with_route(self, route: impl Into<Arc<str>>) -> Self {
        let route = route.into();
        for policy in &*self.view.limits.load().policies {
            assert!(policy.meter().set_route(&route), "a layer and its clones have one route");
        }
        self
    }

    /// Reads what is not counted as requests pass, for [metrics](Self::with_route): how full tables are, and how the
    /// nodes of Redis are. To be called before the recorder is read; some 10 to 50 microseconds for each policy.
    #[cfg(feature = "metrics")]
    #[cfg_attr(docsrs, doc(cfg(feature = "metrics")))]
    pub fn observe(&self) {
        for policy in &*self.view.limits.load().policies {
            policy.observe();
        }
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

    /// How a key stands with the policy of this name, for support staff: the decision on a request of cost 0, which is
    /// refused only if the key is [banned](Policy::penalty). Charges nothing.
    ///
    /// The key is the one that the policy's [`KeyExtractor`](crate::key::KeyExtractor) takes from a request: of a header or
    /// a user, `PartitionKey::from("alice")`.
    ///
    /// # Errors
    ///
    /// If there is no policy of this name, or its limiter fails.
    pub async fn peek(&self, policy: &str, key: &PartitionKey) -> Result<Decision, LimiterError> {
        let (policies, index) = self.named(policy)?;
        policies[index].peek(key).await
    }

    /// Lets a key owe nothing to the policy of this name, lifts its ban, and tells how it stands then. Other processes that
    /// share the budget on Redis may refuse it for up to a minute more; so may a request that is being judged now.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use tower_sluice::algorithm::SlidingWindow;
    /// use tower_sluice::key::HeaderKey;
    /// use tower_sluice::{PartitionKey, Policy, Quota, RateLimitLayer};
    ///
    /// let logins = Policy::new("logins", SlidingWindow::new(Quota::per_day(5))).key(HeaderKey::from_static("x-account"));
    /// let layer = RateLimitLayer::new(logins);
    /// let alice = PartitionKey::from("alice");
    /// assert_eq!(layer.reset("logins", &alice).await?.remaining(), 5);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// If there is no policy of this name, its limiter fails, or that cannot be done: a queue forgets nobody's turn. A ban is
    /// lifted all the same.
    pub async fn reset(&self, policy: &str, key: &PartitionKey) -> Result<Decision, LimiterError> {
        let (policies, index) = self.named(policy)?;
        policies[index].reset(key).await
    }

    /// Who waits for a turn at the limiter of the policy of this name, such as a [`LeakyQueue`](crate::LeakyQueue);
    /// `None` if there is no policy of this name, or if its limiter never makes anybody wait.
    #[must_use]
    pub fn backlog(&self, policy: &str) -> Option<Backlog> {
        self.view.limits.load().policy(policy)?.limiter().backlog()
    }

    /// The policies that are in force, and the index of the one of this name.
    fn named(&self, name: &str) -> Result<(Arc<[Policy]>, usize), LimiterError> {
        let policies = Arc::clone(&self.view.limits.load().policies);
        let index = policies.iter().position(|policy| policy.name() == name);
        let index = index.ok_or_else(|| LimiterError::new(format!("no policy of this layer is named `{name}`")))?;
        Ok((policies, index))
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
