//! Coming from `express-rate-limit`.
//!
//! **You want** the limits of `rateLimit({ … })` from Node in a Tower service. This page compares version 7, as its
//! documentation and its source have it.
//!
//! ```text
//! app.set('trust proxy', 1)
//! app.use('/api', rateLimit({
//!     windowMs: 15 * 60 * 1000, limit: 100, standardHeaders: 'draft-7', legacyHeaders: false,
//!     keyGenerator: req => req.ip, skip: req => req.path === '/health',
//! }))
//! ```
//!
//! becomes
//!
#![cfg_attr(feature = "axum", doc = "```")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! use std::time::Duration;
//!
//! use axum::{Router, routing::get};
//! use tower_sluice::headers::RateLimitFields;
//! use tower_sluice::key::{ClientIp, IpSource, TrustedProxies};
//! use tower_sluice::{FixedWindow, Policy, Quota, RateLimitLayer};
//!
//! const QUARTER: Quota = Quota::per(100, Duration::from_secs(15 * 60));
//!
//! let client = ClientIp::new(IpSource::XForwardedFor, TrustedProxies::hops(1));
//! let layer = RateLimitLayer::builder(Policy::new("api", FixedWindow::new(QUARTER).staggered()).key(client))
//!     .fields(RateLimitFields::draft07())
//!     .build();
//! let api: Router = Router::new()
//!     .route("/orders", get(|| async { "[]" }))
//!     .layer(layer)
//!     .route("/health", get(|| async { "ok" })); // added after the layer: not limited
//! let app: Router = Router::new().nest("/api", api);
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! #     let send = async |path: &str, client: &str| {
//! #         let request = axum::http::Request::get(path).header("x-forwarded-for", client);
//! #         let peer = axum::extract::ConnectInfo(std::net::SocketAddr::from(([10, 0, 0, 5], 4711)));
//! #         let request = request.extension(peer).body(axum::body::Body::empty()).unwrap();
//! #         tower::ServiceExt::oneshot(app.clone(), request).await.unwrap().status().as_u16()
//! #     };
//! #     let mut sent = 0;
//! #     while send("/api/orders", "198.51.100.1").await != 429 {
//! #         sent += 1;
//! #         assert!(sent < 10_000, "a client is never rejected");
//! #     }
//! #     assert!(sent >= 100, "{sent}");
//! #     assert_eq!(send("/api/orders", "198.51.100.2").await, 200);
//! #     for _ in 0..200 {
//! #         assert_eq!(send("/api/health", "198.51.100.1").await, 200);
//! #     }
//! # });
//! ```
//!
//! | `express-rate-limit` | here |
//! |---|---|
//! | `windowMs`, `limit` (a minute and 5, unless set) | [`Quota::per(limit, window)`](crate::Quota::per); there is no default |
//! | the algorithm: a fixed window | [`FixedWindow`](crate::FixedWindow); or a bucket, a sliding window, a queue: [choosing](super::choosing) |
//! | `limit: async (req, res) => …` | [`quota_fn`](crate::Policy::quota_fn), from what a middleware has looked up |
//! | `limit: 0` blocks all | not a quota: reject in the handler |
//! | `keyGenerator` | [`key`](crate::Policy::key): see [keys](super::keys) |
//! | `trust proxy` in Express | [`ClientIp`](super::proxies) |
//! | `skip` | [`exempt`](super::allow_list), [`when`](crate::Policy::when), or a route outside the layer |
//! | `skipSuccessfulRequests`, `skipFailedRequests`, `requestWasSuccessful` | [`charge_when(\|response\| …)`](crate::Policy::charge_when) |
//! | `message`, `handler` | [`rejection_response`](super::rejections) |
//! | `statusCode` (429) | [`status`](crate::Policy::status) |
//! | `standardHeaders: 'draft-7'` | [`RateLimitFields::draft07`](crate::headers::RateLimitFields::draft07); unless set, draft-11 |
//! | `legacyHeaders: true`, with `X-RateLimit-Reset` as an instant | [`x_ratelimit(ResetForm::EpochSeconds)`](crate::headers::RateLimitFields::x_ratelimit) |
//! | `req.rateLimit` | [`verdict`](crate::layer::RateLimitLayerBuilder::verdict), and a [`Verdict`](crate::Verdict) as an argument of the handler |
//! | `store: new RedisStore(…)` | [`RedisStore`](super::machines) |
//! | `limiter.resetKey(key)`, `getKey(key)` | [`LimitsHandle::reset`](crate::LimitsHandle::reset), [`peek`](crate::LimitsHandle::peek) |
//! | `validate` | always: [mistakes in the set-up](super::misconfigured) are logged once each |
//! | two instances in a row | two policies of one layer |
//! | `express-slow-down` in front of it | a [`SlowDown`](super::slow_down), which does both |
//!
//! # What is different
//!
//! - **A window begins at a full period of the clock** for all clients; there, it begins for each client with its first
//!   request. [`staggered`](crate::FixedWindow::staggered) gives each client an instant of its own, so that they do not
//!   all come back at once.
//! - **A rejected request is not charged.** There, each request counts, also those that are rejected.
//! - **Requests that are taken back** (`skipSuccessfulRequests`) are charged first and refunded later in both, so that
//!   no client has more in flight than its limit. Here, while the outcome of such a request is open, a rejection
//!   advertises a short wait.
//! - **Several limits** are charged all or none.
//! - **Memory is bounded** by [a capacity](super::capacity#how-much-memory-a-process-needs); there, a map has all
//!   clients of two windows.
//! - **If Redis fails**, this process goes on by itself with the same quota: [failure](super::failure).
//!
//! Next: [try the new limits out before they reject](super::shadow).
