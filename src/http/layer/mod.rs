//! `RateLimitLayer`: limits the requests to a service by one or more policies.

mod builder;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tower_layer::Layer;

pub use self::builder::RateLimitLayerBuilder;
use crate::engine::domain::Http;
use crate::engine::policy::{IntoPolicies, Policy, PolicyError};
use crate::engine::reload::{Enforceable, LayerSettings, LayerState, LimitsHandle, LongerPath};
use crate::http::key::PeerIp;
use crate::http::service::RateLimit;
use crate::limiter::{DecidingBucket, IntoLimiter};
use crate::values::Backlog;

/// Limits the requests to a service by one or more policies.
///
/// The limiters' state belongs to the layer, so all services that it makes, and all their clones, share their budgets.
/// Make the layer once, when you build the app, and mount it once on a request's path. If it is mounted twice, it
/// charges each request twice, and logs this once. Its [handle](Self::handle) changes the policies at run time.
///
/// A request passes if every enforced policy that applies to it admits it. If so, all these policies are charged, and
/// otherwise, no policy is. They are charged before the inner service is called, and the charges stay if the client
/// disconnects.
///
/// So a request that one policy rejects, or that lacks a key, does not count for the layer's other policies. To count
/// such requests nevertheless, put the policy that counts them into an outer layer, because each layer charges on its
/// own. For example, put a limit per address around a layer that rejects requests without an API key.
///
/// A rejected request does not reach the inner service: the layer answers it. Unless a
/// [custom response](RateLimitLayerBuilder::rejection_response) is set, the answer is 429 (503 if all clients share the
/// limit), with
///
/// - `Retry-After`: whole seconds, rounded up, at least 1;
/// - `X-Rate-Limited-For`: the exact wait in seconds, to the microsecond, rounded up;
/// - `Cache-Control: no-store`;
/// - `RateLimit-Policy` and `RateLimit`: the quota and its remaining units, as on other responses to
///   which a policy applied ([`fields`](RateLimitLayerBuilder::fields));
/// - a body of problem details in JSON, which names the policies that reject the request.
///
/// gRPC and gRPC-Web clients get a [native gRPC error](crate::grpc), from the same layer and the same budget.
///
/// A client that waits for the time in `Retry-After` or `X-Rate-Limited-For` is then admitted, unless other requests
/// with its key were charged meanwhile. The wait covers the limits of all the layer's policies, for this request's
/// cost, and their [bans](Policy::penalty). This has limits:
///
/// - If a policy will never admit the request, or does not know when it will, both fields are absent.
/// - Both are capped at 24.8 days, because clients' timers overflow beyond that.
/// - With a policy on a server, the wait covers the state that this process knows.
/// - Charges [that may be refunded](Policy::charge_when) are assumed to be refunded.
///
/// # Order of layers
///
/// Mount this layer
///
/// - inside CORS, so that rejections get CORS fields, too, and preflights do not reach this layer, which would charge
///   them like all requests;
/// - inside authentication, if the user is the key;
/// - outside concurrency limits and everything costly, so that no rejected request reaches these. A request that waits
///   in a [`LeakyQueue`](crate::LeakyQueue) is an exception, because it occupies the inner services' readiness, such as
///   a concurrency limit's permit.
///
/// To put two layers around one axum route, pass both to one `layer` call, as a tuple (the first is the outermost) or a
/// `tower::ServiceBuilder`. Two calls, `get(handler).layer(a).layer(b)`, do not compile (E0283), regardless of the
/// layers, because axum cannot infer the error type between them. Around a `Router`, two calls compile.
///
#[cfg_attr(feature = "axum", doc = "```")]
#[cfg_attr(not(feature = "axum"), doc = "```ignore")]
/// use axum::{Router, routing::get};
/// use tower_sluice::algorithm::TokenBucket;
/// use tower_sluice::{Policy, Quota, RateLimitLayer};
///
/// let limit = |name: &'static str, quota| RateLimitLayer::new(Policy::new(name, TokenBucket::new(quota)));
/// let (attempts, exports) = (limit("attempts", Quota::per_second(50)), limit("exports", Quota::per_minute(2)));
/// let app: Router = Router::new().route("/export", get(|| async { "1;2;3" }).layer((attempts, exports)));
/// ```
///
/// # Examples
///
/// ```
/// use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
/// use tower_sluice::{Policy, Quota, RateLimitLayer};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let layer = RateLimitLayer::new(Policy::new("global", Quota::per_minute(1)));
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
#[doc(alias("throttle", "rate limiter", "429", "too many requests", "middleware"))]
pub struct RateLimitLayer {
    state: Arc<LayerState<Http>>,
}

impl RateLimitLayer {
    /// Makes a layer that enforces one policy, or an array or `Vec` of policies, with the default settings.
    ///
    /// # Panics
    ///
    /// If [`try_new`](Self::try_new) rejects the policies.
    #[track_caller]
    pub fn new(policies: impl IntoPolicies) -> Self {
        Self::builder(policies).build()
    }

    /// Makes a layer that gives each client its own budget, with one policy, `per-client`, keyed by [`PeerIp`].
    ///
    /// The key is the connection's peer address, with IPv6 grouped by network. Behind a proxy, that is the proxy's
    /// address for all clients, so write a [`Policy`] with [`ClientIp`](crate::key::ClientIp) instead.
    ///
    /// ```
    /// use tower_sluice::{Quota, RateLimitLayer};
    ///
    /// // Ten per second, and twenty at once after a pause.
    /// let layer = RateLimitLayer::per_client(Quota::per_second(10).burst(20));
    /// ```
    ///
    /// A [`Quota`](crate::Quota) makes a [`TokenBucket`](crate::TokenBucket) in memory. You can give any other limiter,
    /// too.
    #[track_caller]
    #[doc(alias("per ip", "ip address"))]
    pub fn per_client(limiter: impl IntoLimiter) -> Self {
        Self::of_clients(limiter)
    }

    /// The only layer that may not need a [longer path](LongerPath), because its policy has no options, and its
    /// limiter's type may always decide.
    #[track_caller]
    fn of_clients<L: IntoLimiter>(limiter: L) -> Self {
        let policy = Policy::new("per-client", limiter.into_deciding()).key(PeerIp::new());
        let policies = Enforceable::one(policy).unwrap_or_else(|error| panic!("{error}"));
        let state = LayerState::new(policies, LayerSettings::default());
        if !L::ALWAYS_DECIDES {
            state.install(LongerPath::WHOLE);
        }
        Self { state }
    }

    /// Makes a layer that enforces policies that were read at run time.
    ///
    /// # Errors
    ///
    /// See [`try_build`](RateLimitLayerBuilder::try_build).
    pub fn try_new(policies: impl IntoPolicies) -> Result<Self, PolicyError> {
        Self::builder(policies).try_build()
    }

    /// Configures a layer's response fields, the form of its rejections, and so on.
    pub fn builder(policies: impl IntoPolicies) -> RateLimitLayerBuilder {
        RateLimitLayerBuilder::new(policies)
    }

    /// Returns a handle that replaces the policies in this layer, its clones and all their services, while they run.
    #[must_use]
    #[doc(alias("hot reload", "reload"))]
    pub fn handle(&self) -> LimitsHandle {
        LimitsHandle::of(Arc::clone(self.complete()))
    }

    /// Rejects, with 503, all waiters in this layer's queues, and all requests to these queues from now on: see
    /// [`LimitsHandle::close`].
    pub fn close(&self) {
        self.state.close();
    }

    /// Updates the [metrics](crate::guide::monitoring#metrics) that are not counted per request, such as table
    /// occupancy and store health. Call it before the recorder is read. Takes some 10 to 50 µs per policy.
    #[cfg(feature = "metrics")]
    #[cfg_attr(docsrs, doc(cfg(feature = "metrics")))]
    pub fn observe(&self) {
        for policy in &*self.complete().load().policies {
            policy.observe();
        }
    }

    #[cfg(not(feature = "metrics"))]
    #[doc(hidden)]
    pub fn observe<'a>(&self)
    where
        &'a crate::util::feature::Off: crate::util::feature::Metrics,
    {
    }

    /// The number of requests that the [shadow](Policy::shadow) policy with this name would have rejected. `None` if
    /// there is no policy with this name.
    #[must_use]
    pub fn shadow_rejected(&self, policy: &str) -> Option<u64> {
        self.state.load().policy(policy).map(|policy| policy.lineage.record.shadow_rejected.load(Ordering::Relaxed))
    }

    /// The number of requests on which this policy's limiter could not decide. `None` if there is no policy with this
    /// name. The policy's [`FailureMode`](crate::FailureMode) decided on them, unless it is a shadow.
    #[must_use]
    pub fn limiter_failures(&self, policy: &str) -> Option<u64> {
        self.state.load().policy(policy).map(|policy| policy.lineage.record.failures.load(Ordering::Relaxed))
    }

    /// The waiters in this policy's limiter, such as a [`LeakyQueue`](crate::LeakyQueue). `None` if there is no policy
    /// with this name, or if its limiter never delays requests.
    #[must_use]
    pub fn backlog(&self, policy: &str) -> Option<Backlog> {
        self.complete().load().policy(policy)?.limiter.stats().backlog
    }

    /// Returns the state, for callers that may do more with it than evaluate requests.
    pub(crate) fn complete(&self) -> &Arc<LayerState<Http>> {
        self.state.install(LongerPath::WHOLE);
        self.state.load().policies.iter().for_each(|policy| DecidingBucket::complete(&*policy.limiter));
        &self.state
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        RateLimit::new(inner, Arc::clone(&self.state))
    }
}

impl fmt::Debug for RateLimitLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer").field("policies", &self.state.load().policies).finish_non_exhaustive()
    }
}
