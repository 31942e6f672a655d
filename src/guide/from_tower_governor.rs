//! Coming from `tower_governor`.
//!
//! **You want** to replace `GovernorLayer`. This page compares version 0.8.0.
//!
//! ```text
//! let config = GovernorConfigBuilder::default().per_second(2).burst_size(5).finish().unwrap();
//! let app = Router::new().route("/", get(hello)).layer(GovernorLayer::new(config));
//! ```
//!
//! becomes
//!
//! ```
//! use std::time::Duration;
//!
//! use axum::{Router, routing::get};
//! use tower_sluice::key::PeerIp;
//! use tower_sluice::{Policy, Quota, RateLimitLayer};
//!
//! let quota = Quota::per(1, Duration::from_secs(2)).burst(5); // one every two seconds
//! let policy = Policy::new("per-client", quota).key(PeerIp::new());
//! let layer = RateLimitLayer::new(policy);
//! let app: Router = Router::new().route("/", get(|| async { "hello" })).layer(layer);
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! #     let send = async |address: u8| {
//! #         let peer = axum::extract::ConnectInfo(std::net::SocketAddr::from(([192, 0, 2, address], 4711)));
//! #         let request = axum::http::Request::get("/").extension(peer).body(axum::body::Body::empty()).unwrap();
//! #         tower::ServiceExt::oneshot(app.clone(), request).await.unwrap().status().as_u16()
//! #     };
//! #     let mut sent = 0;
//! #     while send(1).await != 429 {
//! #         sent += 1;
//! #         assert!(sent < 10_000, "a client is never rejected");
//! #     }
//! #     assert!(sent >= 5 && send(2).await == 200, "{sent}");
//! # });
//! # Ok::<_, tower_sluice::limiter::QuotaError>(())
//! ```
//!
//! **Check the rate.** There, `per_second(2)` is an interval: one request every *two seconds*. Here,
//! [`Quota::per_second(2)`](crate::Quota::per_second) is two requests every second: four times the rate. Check that the
//! old limit was meant so.
//!
//! | `tower_governor` | here |
//! |---|---|
//! | `per_second(n)`: one every *n* seconds | `Quota::per(1, Duration::from_secs(n))` |
//! | `per_millisecond(n)`, `period(d)` | `Quota::per(1, d)`; 100 ms is `Quota::per_second(10)` |
//! | `burst_size(n)` | [`burst(n)`](crate::Quota::burst); unset, it is the limit, not 8 |
//! | `GovernorConfig::default()` | `Quota::per_second(2).burst(8)` |
//! | `GovernorConfig::secure()` | `Quota::per_minute(15).burst(2)` |
//! | `finish()`, an `Option` | an error with the reason, or in a constant, a compile error |
//! | `PeerIpKeyExtractor` (the default) | [`PeerIp`](crate::key::PeerIp); not the default |
//! | `SmartIpKeyExtractor` | [`ClientIp`](crate::key::ClientIp), with [your proxies](super::proxies) |
//! | `GlobalKeyExtractor` | no key |
//! | a `KeyExtractor` of your own | [`key_fn`](crate::key::key_fn) |
//! | `methods(vec![Method::POST])` | [`.when(…)`](crate::Policy::when): `request.method() == Method::POST` |
//! | `use_headers()` | always on: [`RateLimit`](crate::headers::RateLimitFields::draft11); add [`x_ratelimit`](crate::headers::RateLimitFields::x_ratelimit) for the old ones |
//! | `error_handler(…)` | [`rejection_response`](super::rejections) |
//! | a thread that calls `retain_recent()` | nothing |
//! | `GovernorLayer<K, M, RespBody>` | [`RateLimitLayer`](crate::RateLimitLayer), no parameters |
//! | `into_make_service_with_connect_info` | the same |
//!
//! The old response fields:
//!
//! ```
//! use tower_sluice::headers::{RateLimitFields, ResetForm};
//! use tower_sluice::{Policy, Quota, RateLimitLayer};
//!
//! let policy = Policy::new("per-client", Quota::per_second(2));
//! let layer = RateLimitLayer::builder(policy)
//!     .fields(RateLimitFields::none().x_ratelimit(ResetForm::DeltaSeconds))
//!     .build();
//! ```
//!
//! # What is different
//!
//! - **`Retry-After` is rounded up**, and at least 1. There it is rounded down and may be 0, so that obedient clients
//!   come back too early. There is no `X-RateLimit-After`; [`X-Rate-Limited-For`](crate::headers::WaitFields) has the
//!   exact wait, with decimals.
//! - **Forwarding headers count only from trusted proxies.** `SmartIpKeyExtractor` takes the leftmost address in the
//!   first line of `X-Forwarded-For`, then `X-Real-IP`, then `Forwarded`, from any peer: a client that changes it has a
//!   fresh budget each time.
//! - **IPv6 clients count by their /64**, and not by single addresses.
//! - **503 instead of 429** if clients share the limit; [`status`](crate::Policy::status) changes that.
//! - **A missing key is 400** if the client left it out, and 500 only if the server is set up wrong.
//! - **Memory is bounded** by [a capacity that you may set](super::capacity#how-much-memory-a-process-needs), and needs
//!   no clean-up.
//! - **gRPC by request**: one layer serves HTTP and gRPC, and decides by the request, not by the type of the body.
//! - **Nothing is logged per rejection.** There, the feature `tracing` logs a line for each.
//! - **CORS preflights count** where they arrive, unless [you exempt
//!   them](crate::layer::RateLimitLayerBuilder::exempt_preflights). With the CORS layer outside, they do not arrive.
//! - **Several limits** go into one layer, and a request is charged to all, or not at all; stacked `GovernorLayer`s
//!   charge each for itself.
//!
//! Next: [try the new limits out before they reject](super::shadow).
