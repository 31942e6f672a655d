use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::Response;

use super::RateLimitLayer;
use crate::http::body::RejectionBody;
use crate::http::grpc::GrpcStatus;
use crate::http::head::RequestHead;
use crate::http::headers::{Jitter, RateLimitFields, WaitFields};
use crate::http::policy::{IntoPolicies, Policy, PolicyError};
use crate::http::preflight::Exemption;
use crate::http::reject::{Rejection, RejectionFormat};
use crate::http::reload::{Enforceable, Limits, Settings};
use crate::values::Quota;

/// Sets up a [`RateLimitLayer`], which is fixed from then on, but for its [policies](RateLimitLayer::handle).
///
/// ```
/// use tower_sluice::algorithm::TokenBucket;
/// use tower_sluice::headers::RateLimitFields;
/// use tower_sluice::{Policy, Quota, RateLimitLayer};
///
/// let layer = RateLimitLayer::builder(Policy::new("api", TokenBucket::new(Quota::per_second(5))))
///     .fields(RateLimitFields::draft07())
///     .route("/api")
///     .build();
/// ```
#[must_use]
pub struct RateLimitLayerBuilder {
    policies: Vec<Policy>,
    settings: Settings,
}

impl RateLimitLayerBuilder {
    pub(super) fn new(policies: impl IntoPolicies) -> Self {
        Self { policies: policies.into_policies(), settings: Settings::default() }
    }

    /// The layer.
    ///
    /// # Panics
    ///
    /// If [`try_build`](Self::try_build) rejects the policies.
    #[track_caller]
    pub fn build(self) -> RateLimitLayer {
        match self.try_build() {
            Ok(layer) => layer,
            Err(error) => panic!("{error}"),
        }
    }

    /// The layer, of policies that were read from somewhere.
    ///
    /// # Errors
    ///
    /// If there is no policy, two have the same name or one has a name that is no token of up to 64 bytes, or if one could never
    /// admit anything or never reject anything: see [`PolicyError`].
    pub fn try_build(self) -> Result<RateLimitLayer, PolicyError> {
        let Self { policies, settings } = self;
        Enforceable::new(policies).map(|policies| RateLimitLayer { limits: Limits::new(policies, settings) })
    }

    /// Which fields tell clients what is left, and when; unless set, `RateLimit-Policy` and `RateLimit` on all
    /// responses, see [`RateLimitFields::draft11`]. Shadows and limiters without
    /// [terms](crate::Description::advertising) are not told of.
    ///
    /// Costs one allocation per response, and two for the map of its fields if it had none.
    ///
    /// ```
    /// use tower_sluice::algorithm::TokenBucket;
    /// use tower_sluice::headers::{RateLimitFields, ResetForm};
    /// use tower_sluice::{Policy, Quota, RateLimitLayer};
    ///
    /// let layer = RateLimitLayer::builder(Policy::new("api", TokenBucket::new(Quota::per_second(5))))
    ///     .fields(RateLimitFields::none().x_rate_limit(ResetForm::EpochSeconds));
    /// ```
    pub fn fields(mut self, fields: RateLimitFields) -> Self {
        self.settings.fields = fields;
        self
    }

    /// Which fields tell the refused how long to wait, besides `Retry-After`; unless set,
    /// `X-Rate-Limited-For`.
    pub fn wait_fields(mut self, fields: WaitFields) -> Self {
        self.settings.responder.wait = fields;
        self
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
    /// let layer = RateLimitLayer::builder(Policy::new("api", FixedWindow::new(Quota::per_minute(100))))
    ///     .retry_jitter(Duration::from_secs(6));
    /// ```
    pub fn retry_jitter(mut self, max: Duration) -> Self {
        self.settings.responder.jitter = Jitter::up_to(max);
        self
    }

    /// Adds `Server-Timing: ratelimit;dur=…` (milliseconds) to the responses of requests that waited in a
    /// [`LeakyQueue`](crate::LeakyQueue). Pages of other origins read it only with `Timing-Allow-Origin`.
    pub fn server_timing(mut self) -> Self {
        self.settings.adds_timing = true;
        self
    }

    /// What plain HTTP clients find in the body of a rejection; problem details in JSON unless set.
    pub fn rejection_format(mut self, format: &RejectionFormat) -> Self {
        self.settings.responder.set_format(format);
        self
    }

    /// Lets preflights of CORS pass uncounted, as many as `budget` allows. Unless set, they count like all requests.
    ///
    /// Where the layer that handles CORS is [outside](RateLimitLayer#order-of-layers), as it should be, preflights never arrive here,
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
    /// is one for the layer, its clones and all clients, in this process, and [live changes](RateLimitLayer::handle) leave it as it
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
    /// let layer = RateLimitLayer::builder(policy).exempt_preflights(Quota::per_second(50));
    /// ```
    pub fn exempt_preflights(mut self, budget: Quota) -> Self {
        self.settings.exemption = Some(Exemption::new(budget));
        self
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
    /// let layer = RateLimitLayer::builder(Policy::new("api", TokenBucket::new(Quota::per_second(5))))
    ///     .rejection_response(|rejection, _request| {
    ///         Response::builder().status(rejection.status()).body("slow down, please").unwrap()
    ///     });
    /// ```
    pub fn rejection_response<F, B>(mut self, respond: F) -> Self
    where
        F: Fn(&Rejection, &RequestHead<'_>) -> Response<B> + Send + Sync + 'static,
        B: Into<RejectionBody>,
    {
        let respond = move |rejection: &Rejection, head: &RequestHead<'_>| respond(rejection, head).map(Into::into);
        self.settings.responder.set_custom(Arc::new(respond));
        self
    }

    /// Puts the [`Verdict`](crate::Verdict) into the extensions of all responses, for layers further out that log
    /// or count. Costs four allocations per request.
    pub fn verdict(mut self) -> Self {
        self.settings.adds_verdict = true;
        self
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
    /// | `requests_total` | `result` | `allowed`, `delayed` (after it waited), `denied`, `shadow-denied` (passed), `skipped` (the policy did not apply), `no-key` (refused for want of one), `store-error` (passed uncounted, or answered 503, as its [`FailureMode`](crate::FailureMode) says; or its queue was [closed](RateLimitLayer::close)), `cancelled` (the client left before a decision, or its turn) |
    /// | `limiter_failures_total` | | requests whose limiter failed, also those that the local fallback decided |
    /// | `queued_requests` | | requests that wait now |
    /// | `request_time_in_queue_seconds` | `result`: `delayed`, `cancelled` | histogram of waits |
    /// | `table_capacity`, `table_live_keys` | | see [`TableStats`](crate::store::TableStats) |
    /// | `table_evicted_live_total`, `table_turned_away_total` | | the same, added up over all tables that the policy had |
    /// | `ban_table_capacity`, `ban_table_live_keys`, `ban_table_evicted_live_total` | | the same of the table of [bans](Policy::penalty) |
    /// | `store_breaker` | `node` | whether a node of Redis is asked: 0 yes, 1 by one call that tries, 2 no |
    /// | `store_call_duration_seconds` | only `result`: `ok`, or why not | histogram of calls to Redis, all policies together |
    ///
    /// A request counts once with each policy, but for those that would have admitted what another refuses. `table_…`,
    /// `ban_table_…` and `store_breaker` are read when [`observe`](RateLimitLayer#method.observe) is called.
    ///
    /// Once a policy is gone, because a [change](crate::LimitsHandle::replace) left it out or the layer, its clones and all
    /// their services were dropped, its gauges are zero: a recorder cannot remove a series. Counters stay, and go on if a
    /// policy of the same name comes after it.
    ///
    /// A counter costs an atomic addition, and a compare if no recorder is installed.
    pub fn route(mut self, route: impl Into<Arc<str>>) -> Self {
        self.settings.route = Some(route.into());
        self
    }

    /// The code with which gRPC clients are refused; [`GrpcStatus::ResourceExhausted`] unless set.
    pub fn grpc_status(mut self, status: GrpcStatus) -> Self {
        self.settings.responder.grpc_status = status;
        self
    }
}

impl fmt::Debug for RateLimitLayerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayerBuilder").field("policies", &self.policies).finish_non_exhaustive()
    }
}
