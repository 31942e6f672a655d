//! Look and act on the limits of [`tower-sluice`](tower_sluice) over HTTP: a page and JSON calls for operators.
//!
//! *Why is this customer limited, since when, and let her in now*: the page answers the first two for a key, and has
//! buttons for the third. [`Admin`] is a Tower service. With the feature `axum`, `router` makes a router from it.
#![cfg_attr(feature = "axum", doc = "```no_run")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! use tower_sluice::{Quota, RateLimitLayer};
//!
//! # #[tokio::main]
//! # async fn main() -> std::io::Result<()> {
//! let layer = RateLimitLayer::per_client(Quota::per_second(10));
//! let admin = tower_sluice_admin::router([("api", layer.handle())]);
//! // Not the address of the app: whoever reaches this one may do everything.
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:3001").await?;
//! axum::serve(listener, admin).await
//! # }
//! ```
//!
//! # Guard it
//!
//! It is mounted nowhere by itself, and knows no users: **whoever reaches it may look at every key and ban every
//! client**. So
//!
//! - serve it on an address of its own, `127.0.0.1` or a private network, and never nest it in the router of the app;
//! - on a network, put a guard before it: a proxy with mTLS or single sign-on, or a layer of yours that checks a token,
//!   with [a limit on wrong ones](https://docs.rs/tower-sluice/latest/tower_sluice/guide/support/) that a right one does not meet;
//! - keep the log: each reset, ban, allowance, unban, credit and charge is a line at `warn`, with a keyed hash of the
//!   key and the reason, or the units and the reference.
//!   Who did it is known to your guard only, so let it log, too.
//!
//! Against pages of other sites that an operator has open, it guards itself:
//!
//! - Calls that a page of another site has a browser send are answered 403, by `Sec-Fetch-Site` and `Origin`.
//! - Calls that do something are `POST` with `content-type: application/json`, which no form can send.
//! - `Host` must be an address or `localhost` (421 otherwise), so that no site can make its own name that of this
//!   server (DNS rebinding). For a name of your own, call [`Admin::host`].
//! - A token in a cookie would need more: send it as a bearer token, or have the proxy ask.
//!
//! Keys are personal data in most cases. They are never part of an address, so that no access log and no history has
//! them: to look at a key is a `POST`, too. All answers have `Cache-Control: no-store`.
//!
//! # Calls
//!
//! | call | body | answer |
//! |---|---|---|
//! | `GET /` | | the page |
//! | `GET /api/policies` | | `policies`: each with its limit, what its keys look like, failures, tables and queue |
//! | `GET /api/stores` | | `stores`: each node of a store on a server, with its circuit breaker |
//! | `GET /api/exceptions` | | `exceptions`: bans and allowances by hand that [this process knows](tower_sluice::LimitsHandle::exceptions) |
//! | `GET /api/offenders` | | `offenders`: the keys that are rejected most, of each policy that [tracks](tower_sluice::Policy::track_offenders) them, since when and how often, 20 of each; the `key` of an entry that is `whole` is one for a call, and any other a part of a key or its hash |
//! | `POST /api/key` | `key`, and perhaps `layer` and `policy` | `policies`: what each policy says about the key |
//! | `POST /api/reset` | `policy`, `key`, perhaps `layer` | the state afterwards: the whole budget, no ban, no allowance |
//! | `POST /api/ban` | the same, `for` and `reason` | the state afterwards |
//! | `POST /api/allow` | the same | the state afterwards |
//! | `POST /api/unban` | `policy`, `key`, perhaps `layer` | the state afterwards: no ban and no allowance; the budget as it was |
//! | `POST /api/credit` | `policy`, `key`, `units`, `reference`, perhaps `layer` and `expires_in` | the state afterwards, and `repeated`: [the reference](tower_sluice::limiter::Credit::reference) was used before, and nothing was done |
//! | `POST /api/charge` | `policy`, `key`, `units`, `reference`, perhaps `layer` | the same, after a [charge by hand](tower_sluice::LimitsHandle::charge) |
//!
//! `key` is text [as an operator types it](tower_sluice::policy::KeyOf), and each answer shows keys as such text, so
//! that the key that is shown is the one that is acted on, whatever its bytes. `for`, as `expires_in`, is a text with
//! units as in a configuration (`15min`, `3h`, `2days`; a text of digits is an error), or a number of seconds (`900`).
//! `layer` may be left out where one layer only has a policy of this name. In answers, times are milliseconds, rounded
//! up.
//!
//! ```text
//! $ curl -H 'content-type: application/json' -d '{"key": "203.0.113.7"}' http://127.0.0.1:3001/api/key
//! {"key":"203.0.113.7","policies":[{"layer":"api","policy":"per-client","state":"limited","left":0,"limit":10,…
//! $ curl -H 'content-type: application/json' -d '{"policy": "per-client", "key": "203.0.113.7"}' http://127.0.0.1:3001/api/reset
//! ```
//!
//! The `state` of a key is
//!
//! | `state` | |
//! |---|---|
//! | `passes` | `left` of `limit` units are left (of the burst, for a bucket); all of them in `full_in_ms` |
//! | `limited` | no unit is left; a request passes in `passes_in_ms`, if that is known |
//! | `banned` | `ban` has the rest, the reason if it is `by_hand`, and perhaps since when |
//! | `allowed` | `allowance` likewise |
//! | `no-key` | the text is no key of this policy; `keys` says what its keys are |
//! | `unknown` | the store fails, say: see `error` |
//!
//! If the policy tracks its offenders, `rejections` says since when the key is rejected and how often, in this hour and
//! the one before; null if it is not among those that are rejected most.
//!
//! A call that is not carried out is answered with problem details (RFC 9457), whose `detail` says what to do: 400 (no
//! JSON), 403 and 421 (see above), 404 (no such call, layer or policy), 405, 413 (more than 16 KiB), 415 (not declared
//! as JSON), 422 (a member is missing, unknown or wrong, or the policy cannot do this), and 503 (the store fails).
#![cfg_attr(docsrs, feature(doc_cfg))]

mod answers;
mod body;
mod call;
mod guard;
mod members;
mod page;
mod problem;
#[cfg(feature = "axum")]
mod router;
mod service;

use std::fmt;
use std::sync::Arc;

pub use self::body::AdminBody;
#[cfg(feature = "axum")]
#[cfg_attr(docsrs, doc(cfg(feature = "axum")))]
pub use self::router::router;
use tower_sluice::policy::Operate;

/// The service: the page, and the [calls](self#calls).
///
/// It takes requests with any body, and answers all. It is always ready, and never fails.
///
/// ```
/// use http::Request;
/// use http_body_util::{BodyExt, Full};
/// use tower::ServiceExt;
/// use tower_sluice_admin::Admin;
/// use tower_sluice::{Quota, RateLimitLayer};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let layer = RateLimitLayer::per_client(Quota::per_minute(10));
/// let admin = Admin::new([("api", layer.handle())]);
///
/// let ban = r#"{"policy": "per-client", "key": "203.0.113.7", "for": "1h", "reason": "scrapes the catalogue"}"#;
/// let request = Request::post("/api/ban").header("content-type", "application/json");
/// let response = admin.oneshot(request.body(Full::new(bytes::Bytes::from(ban)))?).await?;
/// let state: serde_json::Value = serde_json::from_slice(&response.into_body().collect().await?.to_bytes())?;
/// assert_eq!(state["state"], "banned");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use]
pub struct Admin {
    layers: Arc<[(String, Arc<dyn Operate>)]>,
    hosts: Arc<[String]>,
}

impl Admin {
    /// Makes the service for the limits in these layers, each with a name for operators, such as its route. It takes
    /// layers' [handles](tower_sluice::RateLimitLayer::handle), or [`Limits`](tower_sluice::direct::Limits) on your
    /// program's own values. [`with`](Self::with) adds the others.
    ///
    /// # Panics
    ///
    /// If two layers have the same name.
    #[track_caller]
    pub fn new<N: Into<String>, L: Into<Arc<dyn Operate>>>(layers: impl IntoIterator<Item = (N, L)>) -> Self {
        let layers: Arc<[_]> = layers.into_iter().map(|(name, limits)| (name.into(), limits.into())).collect();
        for (index, (name, _)) in layers.iter().enumerate() {
            assert!(layers[..index].iter().all(|(other, _)| other != name), "two layers have the name `{name}`");
        }
        Self { layers, hosts: Arc::default() }
    }

    /// Adds limits (any kind), with a name for operators.
    ///
    /// ```
    /// use tower_sluice::direct::Limits;
    /// use tower_sluice::{Policy, Quota, RateLimitLayer};
    /// use tower_sluice_admin::Admin;
    ///
    /// let layer = RateLimitLayer::per_client(Quota::per_minute(10));
    /// let jobs = Limits::new(Policy::on("jobs", Quota::per_hour(100)).key_by(|customer: &u64| *customer));
    /// let admin = Admin::new([("api", layer.handle())]).with("jobs", jobs);
    /// # drop(admin);
    /// ```
    ///
    /// # Panics
    ///
    /// If this name is taken.
    #[track_caller]
    pub fn with(self, name: impl Into<String>, limits: impl Into<Arc<dyn Operate>>) -> Self {
        let layers = self.layers.iter().cloned().chain([(name.into(), limits.into())]);
        Self { hosts: Arc::clone(&self.hosts), ..Self::new(layers) }
    }

    /// Answers requests for this name, too, such as `limits.example.internal`: see [above](self#guard-it). Call it once
    /// for each name.
    pub fn host(self, name: impl Into<String>) -> Self {
        let hosts = self.hosts.iter().cloned().chain([name.into()]).collect();
        Self { hosts, ..self }
    }
}

/// Creates the service, as [`Admin::new`] does.
impl<N: Into<String>, L: Into<Arc<dyn Operate>>, const LAYERS: usize> From<[(N, L); LAYERS]> for Admin {
    #[track_caller]
    fn from(layers: [(N, L); LAYERS]) -> Self {
        Self::new(layers)
    }
}

/// Creates the service, as [`Admin::new`] does.
impl<N: Into<String>, L: Into<Arc<dyn Operate>>> From<Vec<(N, L)>> for Admin {
    #[track_caller]
    fn from(layers: Vec<(N, L)>) -> Self {
        Self::new(layers)
    }
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.layers.iter().map(|(name, _)| name).collect();
        f.debug_struct("Admin").field("layers", &names).field("hosts", &self.hosts).finish()
    }
}
