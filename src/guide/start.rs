//! Start here: a limited service in five minutes.
//!
//! **You have** an axum service, and want no client to take it all. In `Cargo.toml`:
//!
//! ```toml
//! [dependencies]
//! tower-sluice = { version = "0.1", features = ["axum"] }
//! axum = "0.8"
//! tokio = { version = "1", features = ["macros", "net", "rt-multi-thread"] }
//! ```
//!
//! In `src/main.rs`:
//!
#![cfg_attr(feature = "axum", doc = "```no_run")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! use std::net::SocketAddr;
//!
//! use axum::{Router, routing::get};
//! use tower_sluice::{Quota, RateLimitLayer};
//!
//! #[tokio::main]
//! async fn main() -> std::io::Result<()> {
//!     // Each client: ten requests per second, and twenty at once after a pause.
//!     let layer = RateLimitLayer::per_client(Quota::per_second(10).burst(20));
//!     let app = Router::new().route("/", get(|| async { "hello\n" })).layer(layer);
//!
//!     let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//!     // With the addresses of the clients, which `axum::serve(listener, app)` would not pass on.
//!     axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await
//! }
//! ```
//!
//! Run it, and send 25 requests:
//!
//! ```text
//! $ cargo run &
//! $ for i in $(seq 25); do curl -s -o /dev/null -w '%{http_code} ' http://127.0.0.1:3000/; done
//! 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 200 429 429 200 429 429
//! ```
//!
//! Twenty pass at once. Then one passes every 100 ms, so the exact sequence depends on how fast `curl` is.
//!
//! # What a client sees
//!
//! Every response says what is left: the quota of the policy (`q` requests in `w` seconds), how much remains (`r`), and
//! the seconds for which that has to suffice (`t`): a client that spreads `r` requests over `t` seconds is not rejected.
//! Of a rejection, `r` is 0 and `t` is the wait ([the details](crate::headers::RateLimitFields::draft11)). A rejection
//! also says how long to wait, rounded up to the second in `Retry-After` and exactly in `X-Rate-Limited-For`. A client
//! that waits that long is admitted.
//!
//! ```text
//! HTTP/1.1 429 Too Many Requests
//! content-type: application/problem+json
//! retry-after: 1
//! x-rate-limited-for: 0.098731
//! ratelimit-policy: "per-client";q=20;w=2
//! ratelimit: "per-client";r=0;t=1
//! ```
//!
//! # The words
//!
//! | word | is |
//! |---|---|
//! | [`Quota`](crate::Quota) | how much: a rate, and a burst. `Quota::per(5, Duration::from_secs(15 * 60))` is five per quarter of an hour |
//! | algorithm | what the quota means: a quota by itself is a [`TokenBucket`](crate::TokenBucket). The [others](super::choosing) |
//! | [key](super::keys) | whose quota: that of an address, a user, an API key |
//! | [`Policy`](crate::Policy) | a named limit: quota, algorithm, key, and [what else](super::defaults) there is to set |
//! | [`RateLimitLayer`](crate::RateLimitLayer) | one or several policies around a service. A request is charged to all or to none |
//!
//! The same layer, in full, and with a second policy:
//!
//! ```
//! use tower_sluice::key::PeerIp;
//! use tower_sluice::{Policy, Quota, RateLimitLayer};
//!
//! let layer = RateLimitLayer::new([
//!     Policy::new("per-client", Quota::per_second(10).burst(20)).key(PeerIp::new()),
//!     // What the service can do at all. Without a key, all clients share one budget.
//!     Policy::new("all-clients", Quota::per_second(5_000)),
//! ]);
//! ```
//!
//! # On one route
//!
//! A layer limits what it is put around. Routes that are added after it are not limited:
//!
//! ```
//! use axum::{Router, routing::{get, post}};
//! use tower_sluice::{Quota, RateLimitLayer};
//!
//! let exports = Router::new()
//!     .route("/export", post(|| async { "a long table" }))
//!     // Not `layer`, which would also charge requests for unknown paths to this limit.
//!     .route_layer(RateLimitLayer::per_client(Quota::per_minute(2)));
//! let app: Router = Router::new()
//!     .merge(exports)
//!     .layer(RateLimitLayer::per_client(Quota::per_second(10)))
//!     .route("/healthz", get(|| async { "ok" }));
//! ```
//!
//! Put [`CorsLayer`](crate::RateLimitLayer#order-of-layers) and authentication outside of the limit: of layers on a
//! router, the last one is the outermost.
//!
//! # Off in development
//!
//! `Router::layer` does not change the type of a router, so an `if` is enough:
//!
//! ```
//! use axum::{Router, routing::get};
//! use tower_sluice::{Quota, RateLimitLayer};
//!
//! fn app(is_limited: bool) -> Router {
//!     let app = Router::new().route("/", get(|| async { "hello\n" }));
//!     if is_limited { app.layer(RateLimitLayer::per_client(Quota::per_second(10))) } else { app }
//! }
//! # // No limit, so no address is needed.
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! #     use tower::ServiceExt;
//! #     let send = async |is_limited| {
//! #         app(is_limited).oneshot(http::Request::new(axum::body::Body::empty())).await.unwrap().status().as_u16()
//! #     };
//! #     assert_eq!((send(false).await, send(true).await), (200, 500));
//! # }
//! ```
//!
//! Around any other service, as in tonic, the layer changes the type of the responses' bodies, so
//! `tower::util::option_layer(Some(layer))` does not compile. Give each policy a condition instead: `.when(move |_| is_limited)`.
//! A policy whose condition is false asks for no key and charges nothing. In a [file](super::configuration), `shadow = true`
//! counts and lets all requests pass.
//!
//! # Before production
//!
//! 1. Is there a proxy in front? Then the address of the peer is the proxy's: [behind a proxy](super::proxies).
//! 2. Are there several machines? In memory, each has the whole quota: [several machines](super::machines).
//! 3. How much is right? Let it [count without rejecting](super::operating#try-it-out-first) for a week.
//! 4. What happens when something breaks? [Failure](super::failure).
//!
//! Next: [protect a login](super::login), [sell an API](super::plans), or the [list of all pages](super).
