mod builder;

use std::fmt;
use std::sync::Arc;

use tower_layer::Layer;

pub use self::builder::RateLimitLayerBuilder;
use crate::http::policy::{IntoPolicies, Policy, PolicyError};
use crate::http::reload::{InForce, Limits, LimitsHandle};
use crate::http::service::RateLimit;
use crate::values::{Backlog, Decision, LimiterError, PartitionKey};

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
/// otherwise](RateLimitLayerBuilder::rejection_response), the answer is 429 (503 if everybody shares the limit), with
///
/// - `Retry-After`: whole seconds, rounded up, at least 1;
/// - `X-Rate-Limited-For`: the exact wait in seconds, to the microsecond, rounded up;
/// - `Cache-Control: no-store`;
/// - `RateLimit-Policy` and `RateLimit`: what is granted, and what is left, which other responses
///   carry, too ([`fields`](RateLimitLayerBuilder::fields));
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
    limits: Arc<Limits>,
}

impl RateLimitLayer {
    /// A layer that enforces one policy, or an array or `Vec` of them, and reports of it in the usual way.
    ///
    /// # Panics
    ///
    /// If [`try_new`](Self::try_new) rejects the policies.
    #[track_caller]
    pub fn new(policies: impl IntoPolicies) -> Self {
        Self::builder(policies).build()
    }

    /// A layer that enforces policies that were read from somewhere.
    ///
    /// # Errors
    ///
    /// See [`try_build`](RateLimitLayerBuilder::try_build).
    pub fn try_new(policies: impl IntoPolicies) -> Result<Self, PolicyError> {
        Self::builder(policies).try_build()
    }

    /// Sets up a layer: which fields responses carry, how a rejection looks, and so on.
    pub fn builder(policies: impl IntoPolicies) -> RateLimitLayerBuilder {
        RateLimitLayerBuilder::new(policies)
    }

    /// Changes the policies of this layer, of its clones and of all their services, also of those that run.
    #[must_use]
    pub fn handle(&self) -> LimitsHandle {
        LimitsHandle::new(Arc::clone(&self.limits))
    }

    /// Rejects, with 503, all requests that wait for a turn in a queue of this layer, and all that come to one from now on: see
    /// [`LimitsHandle::close`].
    pub fn close(&self) {
        self.limits.close();
    }

    /// Reads what is not counted as requests pass, for [metrics](RateLimitLayerBuilder::route): how full tables are, and how the
    /// nodes of Redis are. To be called before the recorder is read; some 10 to 50 microseconds for each policy.
    #[cfg(feature = "metrics")]
    #[cfg_attr(docsrs, doc(cfg(feature = "metrics")))]
    pub fn observe(&self) {
        for policy in &*self.limits.load().policies {
            policy.observe();
        }
    }

    /// How many requests the [shadow](Policy::shadow) policy of this name would have refused;
    /// `None` if there is no policy of this name.
    #[must_use]
    pub fn shadow_rejected(&self, policy: &str) -> Option<u64> {
        self.limits.load().policy(policy).map(Policy::shadow_rejected)
    }

    /// How many requests the limiter of the policy of this name could not decide on, so that they were treated as
    /// its [`FailureMode`](crate::FailureMode) says; `None` if there is no policy of this name.
    #[must_use]
    pub fn limiter_failures(&self, policy: &str) -> Option<u64> {
        self.limits.load().policy(policy).map(Policy::failures)
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
        let (in_force, index) = self.named(policy)?;
        in_force.policies[index].standing(key).await
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
        let (in_force, index) = self.named(policy)?;
        in_force.policies[index].reset(key).await
    }

    /// Who waits for a turn at the limiter of the policy of this name, such as a [`LeakyQueue`](crate::LeakyQueue);
    /// `None` if there is no policy of this name, or if its limiter never makes anybody wait.
    #[must_use]
    pub fn backlog(&self, policy: &str) -> Option<Backlog> {
        self.limits.load().policy(policy)?.limiter().stats().backlog
    }

    /// The policies that are in force, and the index of the one of this name.
    fn named(&self, name: &str) -> Result<(Arc<InForce>, usize), LimiterError> {
        let in_force = Arc::clone(&self.limits.load());
        let index = in_force.policies.iter().position(|policy| policy.name() == name);
        let index = index.ok_or_else(|| LimiterError::new(format!("no policy of this layer is named `{name}`")))?;
        Ok((in_force, index))
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        RateLimit::new(inner, Arc::clone(&self.limits))
    }
}

impl fmt::Debug for RateLimitLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer").field("policies", &self.limits.load().policies).finish_non_exhaustive()
    }
}
