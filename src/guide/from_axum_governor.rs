//! Coming from `axum-governor`.
//!
//! **You want** to replace `axum_governor::GovernorLayer`. This page compares version 2.1.2, as its source has it.
//!
//! ```text
//! let cfg = GovernorConfigBuilder::default()
//!     .with_extractor(PeerIp::default())
//!     .expect_connect_info()
//!     .quota_default(Quota::requests_per_second(nz!(10u32)))
//!     .stack("auth", Header(&AUTHORIZATION), Quota::requests_per_minute(nz!(600u32)))
//!     .whitelist_paths(["/health"])
//!     .finish()
//!     .unwrap();
//! let app = Router::new().route("/", get(hello)).layer(GovernorLayer::new(cfg));
//! ```
//!
//! becomes
//!
//! ```
//! use axum::{Router, routing::get};
//! use tower_sluice::key::{HeaderKey, PeerIp};
//! use tower_sluice::{Exemptions, Policy, Quota, RateLimitLayer};
//!
//! let health = Exemptions::new().path("/health")?;
//! let layer = RateLimitLayer::new([
//!     Policy::new("default", Quota::per_second(10)).key(PeerIp::new()).exempt(health.clone()),
//!     Policy::new("auth", Quota::per_minute(600)).key(HeaderKey::from_static("authorization")).exempt(health),
//! ]);
//! let app: Router = Router::new()
//!     .route("/", get(|| async { "hello" }))
//!     .route("/health", get(|| async { "ok" }))
//!     .layer(layer);
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! #     let send = async |path: &str, address: u8, token: &str| {
//! #         let peer = axum::extract::ConnectInfo(std::net::SocketAddr::from(([192, 0, 2, address], 4711)));
//! #         let request = axum::http::Request::get(path).extension(peer).header("authorization", token);
//! #         let request = request.body(axum::body::Body::empty()).unwrap();
//! #         tower::ServiceExt::oneshot(app.clone(), request).await.unwrap().status().as_u16()
//! #     };
//! #     // Both limits hold: ten per second and address, and 600 per minute and token.
//! #     let mut sent = 0;
//! #     while send("/", 1, &format!("token {sent}")).await != 429 {
//! #         sent += 1;
//! #         assert!(sent < 10_000, "an address is never rejected");
//! #     }
//! #     let mut sent = 0_u32;
//! #     while send("/", u8::try_from(2 + sent % 200).unwrap(), "one").await != 429 {
//! #         sent += 1;
//! #         assert!(sent < 100_000, "a token is never rejected");
//! #     }
//! #     assert!(sent >= 600, "{sent}");
//! #     assert_eq!(send("/health", 1, "one").await, 200);
//! # });
//! # Ok::<_, tower_sluice::policy::ExemptionError>(())
//! ```
//!
//! | `axum-governor` | here |
//! |---|---|
//! | `Quota::requests_per_second(nz!(n))`, `_minute`, `_hour` | `Quota::per_second(n)`, `per_minute`, `per_hour`: the same rate, and the same burst of *n* |
//! | `Quota::seconds_per_request(nz!(n))` | `Quota::per(1, Duration::from_secs(n))` |
//! | `.burst(nz!(n))` | [`.burst(n)`](crate::Quota::burst) |
//! | `with_extractor`, `quota_default` | a [`Policy`](crate::Policy) |
//! | `stack`, `quotas` | further policies of the layer |
//! | `quota_for(method, quota)` | [`.when(…)`](crate::Policy::when): `request.method() == Method::POST` |
//! | `KeyOutcome::with_quota_override` | [`.quota_fn(…)`](crate::Policy::quota_fn) |
//! | `PeerIp`: IPv6 by /56 | [`PeerIp`](crate::key::PeerIp): IPv6 by /64; `.ipv6_prefix(56)` |
//! | `SmartIp::new().with_trusted_proxies(…)` | [`ClientIp`](crate::key::ClientIp), with one header: see [behind a proxy](super::proxies) |
//! | `Header`, `Extension`, `Global` | [`HeaderKey`](crate::key::HeaderKey), [`ExtensionKey`](crate::key::ExtensionKey), no key |
//! | `Cookie` | [`key_fn`](crate::key::key_fn) |
//! | `Compound` | a tuple of keys |
//! | `with_async_extractor` | a middleware that puts what it found into the extensions, further out |
//! | `whitelist_paths`, `whitelist_ips` | [`Exemptions`](super::allow_list) |
//! | `whitelist_methods` | `.when(…)` |
//! | `body_preset`, `error_handler` | [`rejection_format`](crate::layer::RateLimitLayerBuilder::rejection_format), [`rejection_response`](super::rejections) |
//! | `legacy_reset_epoch(true)`; `X-RateLimit-*` always | [`x_ratelimit(ResetForm::EpochSeconds)`](crate::headers::RateLimitFields::x_ratelimit); off unless set |
//! | `gc_interval`, `gc_disable`, `max_keys` | nothing: a table of [a fixed size](super::capacity#how-much-memory-a-process-needs) |
//! | `expect_connect_info` | nothing to declare; the service is made by the same `into_make_service_with_connect_info` |
//! | `redact_keys` | always: no log has a key |
//! | `BoxedGovernorLayer` in the state | [`RateLimitLayer`](crate::RateLimitLayer): no parameters, and `Clone` |
//! | `limiter().snapshot()` | [`peek`](crate::LimitsHandle::peek) for one key; [metrics](super::monitoring#metrics) |
//!
//! # What is different
//!
//! - **All or none.** There, the first quota is charged, then the stack in order, and the first rejection wins: earlier
//!   charges stay. Here, a rejected request is not charged.
//! - **`Retry-After` is rounded up.** There, the wait is cut to whole seconds, and 1 at least: a client that waits for
//!   1 s of 1.9 s comes back too early.
//! - **One forwarding header.** `SmartIp` reads `X-Forwarded-For`, then `X-Real-IP`, then `Forwarded`, and skips
//!   elements that are no address. A proxy that writes one of them passes on the others as the client sent them. Name
//!   the header that your proxy writes.
//! - **Exempt networks are the client's**, also behind proxies. `whitelist_ips` compares the peer.
//! - **503 instead of 429** if clients share the limit; [`status`](crate::Policy::status) changes that.
//! - **Nothing is logged per rejection.** There, each is a `tracing` event.
//! - **Memory is bounded.** There, `max_keys` bounds the tracked keys, and the map of limiters grows until a sweep.
//! - Windows, queues, limits in flight, shared limits on Redis, bans, live changes, gRPC: see [the guide](super).
//!
//! Next: [try the new limits out before they reject](super::shadow).
