//! `RateLimitLayerBuilder`: a layer's settings.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::Response;

use super::RateLimitLayer;
use crate::engine::domain::Http;
use crate::engine::policy::{Event, Hook, IntoPolicies, Policies, PolicyError};
use crate::engine::reload::{Enforceable, LayerSettings, LayerState, LongerPath};
use crate::http::body::RejectionBody;
use crate::http::grpc::GrpcStatus;
use crate::http::head::RequestHead;
use crate::http::headers::{Jitter, RateLimitFields, WaitFields};
use crate::http::preflight::exempt_preflights;
use crate::http::reject::{Rejection, RejectionFormat};
use crate::values::Quota;

/// Builds a [`RateLimitLayer`]. Once it is built, only its [policies](RateLimitLayer::handle) can be changed.
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
    policies: Policies,
    settings: LayerSettings<Http>,
}

impl RateLimitLayerBuilder {
    pub(super) fn new(policies: impl IntoPolicies) -> Self {
        Self { policies: policies.into_policies(), settings: LayerSettings::default() }
    }

    /// Builds the layer.
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

    /// Builds the layer, or returns an error. Use this for policies that are read at run time.
    ///
    /// # Errors
    ///
    /// If there is no policy, if two have the same name, or if a policy's options are invalid: [`PolicyError`] lists
    /// the mistakes.
    pub fn try_build(self) -> Result<RateLimitLayer, PolicyError> {
        let Self { policies, settings } = self;
        let state = LayerState::new(Enforceable::new(policies)?, settings);
        state.install(LongerPath::WHOLE);
        Ok(RateLimitLayer { state })
    }

    /// Sets the fields that report the remaining quota, and the responses that have them. Unless set, responses to
    /// which an advertised policy applied, with its key found, have
    /// `RateLimit-Policy` and `RateLimit`: see [`RateLimitFields::draft11`]. Shadows, and limiters that do not
    /// advertise [terms](crate::limiter::Description::advertising), are not reported.
    ///
    /// Costs one allocation per response, and two more for its header map if that is empty.
    ///
    /// ```
    /// use tower_sluice::algorithm::TokenBucket;
    /// use tower_sluice::headers::{RateLimitFields, ResetForm};
    /// use tower_sluice::{Policy, Quota, RateLimitLayer};
    ///
    /// let layer = RateLimitLayer::builder(Policy::new("api", TokenBucket::new(Quota::per_second(5))))
    ///     .fields(RateLimitFields::none().x_ratelimit(ResetForm::EpochSeconds));
    /// ```
    pub fn fields(mut self, fields: RateLimitFields) -> Self {
        self.settings.own.fields = fields;
        self
    }

    /// Sets the fields that report a rejection's wait, besides `Retry-After`. `X-Rate-Limited-For` unless set.
    pub fn wait_fields(mut self, fields: WaitFields) -> Self {
        self.settings.own.responder.wait = fields;
        self
    }

    /// Lengthens each rejection's wait by a uniformly random time up to `max`, so that clients that are rejected
    /// together and retry as early as possible do not all retry at once. Unless set, nothing is added.
    ///
    /// `Retry-After`, `X-Rate-Limited-For`, the rejection's text and the gRPC details are lengthened by the same time.
    /// They are never shortened, so a client that waits as advertised is still admitted. `RateLimit` keeps reporting
    /// when quota is available again.
    ///
    /// A tenth of the window, and at most ten seconds, is enough for most services with windows, which readmit all
    /// clients at the same instant. Buckets readmit each client at its own instant. See also
    /// [`FixedWindow::staggered`](crate::algorithm::FixedWindow::staggered), which does not lengthen waits.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_sluice::algorithm::FixedWindow;
    /// use tower_sluice::{Policy, Quota, RateLimitLayer};
    ///
    /// let layer = RateLimitLayer::builder(Policy::new("api", FixedWindow::new(Quota::per_minute(100))))
    ///     .retry_jitter(Duration::from_secs(6));
    /// ```
    #[doc(alias("thundering herd", "jitter"))]
    pub fn retry_jitter(mut self, max: Duration) -> Self {
        self.settings.own.responder.jitter = Jitter::up_to(max);
        self
    }

    /// Adds `Server-Timing: ratelimit;dur=…` (milliseconds) to responses whose requests waited in a
    /// [`LeakyQueue`](crate::LeakyQueue). Pages from other origins read it only with `Timing-Allow-Origin`.
    pub fn server_timing(mut self) -> Self {
        self.settings.adds_timing = true;
        self
    }

    /// Sets the format of a rejection's body for plain HTTP clients. Problem details in JSON unless set.
    pub fn rejection_format(mut self, format: &RejectionFormat) -> Self {
        self.settings.own.responder.set_format(format);
        self
    }

    /// Exempts CORS preflights from all policies, within a `budget`. Unless set, they count like all requests.
    ///
    /// If the CORS layer is [outside](RateLimitLayer#order-of-layers), as it should be, preflights never reach this
    /// layer, and this is not needed. It is for services that answer preflights further inside: a browser reports a
    /// rejected preflight as a network error.
    ///
    /// A request is exempt only if it can be nothing but a preflight:
    ///
    /// - the method is `OPTIONS`, with one `Origin` that is an origin, and one `Access-Control-Request-Method` that is
    ///   one method;
    /// - there is no body, and no `content-type` (so it is never gRPC);
    /// - there is no `authorization`, `proxy-authorization` or `cookie`, no `te`, `trailer`, `expect`, `upgrade`,
    ///   `content-encoding` or `transfer-encoding`, and no field that overrides the method.
    ///
    /// In HTTP/1.1, the header fields say whether there is a body. Over HTTP/2 and later, only the body itself knows,
    /// and this layer knows only the bodies from axum (crate feature `axum`) and tonic (`tonic`), and `()`. Over these
    /// versions, requests with another body type are not exempt.
    ///
    /// A preflight with a key that a policy has [banned](crate::Policy::penalty) is not exempt, and is rejected with
    /// the ban. The layer, its clones and all clients share one budget per process, which [live
    /// changes](RateLimitLayer::handle) do not touch. A preflight beyond the budget counts like any other request. So
    /// all clients together gain `budget` at most, and a client that uses it up does not take anything else from
    /// others.
    ///
    /// Exempt preflights reach the inner service like any `OPTIONS` request. If a handler does its work for any method
    /// (axum's `any`), clients can make it do so for `budget` further requests.
    ///
    /// # Cost
    ///
    /// For requests with another method, one comparison.
    ///
    /// ```
    /// use tower_sluice::algorithm::TokenBucket;
    /// use tower_sluice::key::PeerIp;
    /// use tower_sluice::{Policy, Quota, RateLimitLayer};
    ///
    /// let policy = Policy::new("per-client", TokenBucket::new(Quota::per_second(5))).key(PeerIp::new());
    /// let layer = RateLimitLayer::builder(policy).exempt_preflights(Quota::per_second(50));
    /// ```
    #[doc(alias("cors", "options"))]
    pub fn exempt_preflights(mut self, budget: Quota) -> Self {
        self.settings.own.preflight_exemption = Some(exempt_preflights(budget));
        self
    }

    /// Answers rejected requests with the response that `respond` returns.
    ///
    /// This is for plain HTTP requests only. gRPC and gRPC-Web clients always get a gRPC error, see
    /// [`grpc`](crate::grpc).
    ///
    /// The body is anything that converts to bytes, axum's `Body`, or any other body in a [`RejectionBody::new`].
    ///
    /// The closure sets the status, mostly to the rejection's. The fields that report the wait and the remaining quota,
    /// and `Cache-Control`, are set after it. Only a longer `Retry-After` from the closure is kept.
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
    #[doc(alias("error handler", "429"))]
    pub fn rejection_response<F, B>(mut self, respond: F) -> Self
    where
        F: Fn(&Rejection, &RequestHead<'_>) -> Response<B> + Send + Sync + 'static,
        B: Into<RejectionBody>,
    {
        let respond = move |rejection: &Rejection, head: &RequestHead<'_>| respond(rejection, head).map(Into::into);
        self.settings.own.responder.set_custom(Arc::new(respond));
        self
    }

    /// Puts the [`Verdict`](crate::Verdict) into the extensions of admitted requests, for the handler, and into those
    /// of all responses, for outer layers that log or count.
    ///
    /// Off unless set, because it costs five allocations per request, and few handlers read it.
    pub fn verdict(mut self) -> Self {
        self.settings.adds_verdict = true;
        self
    }

    /// Sets the name of this layer in metrics (the label `route`) and log events: its route, or another property that
    /// distinguishes it.
    ///
    /// Without it, policies with the same name in several layers are counted as one. A
    /// [`Config`](https://docs.rs/tower-sluice-config/latest/tower_sluice_config/struct.Config.html) sets it to the
    /// route's first path. Do not use values that clients choose, because each value makes new series.
    ///
    /// # Metrics
    ///
    /// With the feature `metrics`, each policy counts its requests, and reports its queue, tables and store, to the
    /// recorder that is installed when its first request comes. The [guide](crate::guide::monitoring#metrics) lists the
    /// names and labels. A counter costs one atomic addition, or one comparison if no recorder is installed.
    pub fn route(mut self, route: impl Into<Arc<str>>) -> Self {
        self.settings.route = Some(route.into());
        self
    }

    /// Calls `hook` with each [event](Event) from this layer's policies: a key begins to be limited, is banned, allowed
    /// or let in again, or a limiter fails, or works again. So an operator learns of a client before it complains.
    ///
    /// ```
    /// use tower_sluice::policy::Transition;
    /// use tower_sluice::{Policy, Quota, RateLimitLayer};
    ///
    /// let (events, _inbox) = std::sync::mpsc::sync_channel(1_000);
    /// let policy = Policy::new("api", Quota::per_second(10));
    /// let layer = RateLimitLayer::builder(policy).on_transition(move |event| {
    ///     if let Transition::Limited { .. } = event.transition() {
    ///         // Does not wait: the thread answers a request.
    ///         let _ = events.try_send(format!("{}: {:?} is limited", event.policy(), event.key_text()));
    ///     }
    /// });
    /// # drop(layer);
    /// ```
    ///
    /// # Cost
    ///
    /// Admitted requests cost nothing more. A rejection takes some 50 ns more, because limited keys are kept until
    /// their budgets are full again, up to 65,536 keys, in 2 MiB per policy, from the first rejection on. The hook is
    /// called on the request's thread, so it must not wait. Clients cause at most ten events per second and policy, and
    /// [`left_out`](Event::left_out) counts the others.
    ///
    /// # Log
    ///
    /// Transitions are logged with a keyed hash of the key. If there is a hook, a limited key is logged at `info`. All
    /// others are logged at `warn`. The end of a ban is not an event, because its length was reported when it began.
    pub fn on_transition(mut self, hook: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Self {
        self.settings.hook = Some(Hook::new(hook));
        self
    }

    /// Sets the status code in rejections for gRPC clients. [`GrpcStatus::ResourceExhausted`] unless set.
    pub fn grpc_status(mut self, status: GrpcStatus) -> Self {
        self.settings.own.responder.grpc_status = status;
        self
    }
}

impl fmt::Debug for RateLimitLayerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayerBuilder").field("policies", &self.policies).finish_non_exhaustive()
    }
}
