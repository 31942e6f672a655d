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
#![cfg_attr(feature = "axum", doc = "```")]
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
//! #   if true { return a_client_gets_twenty_at_once(app).await; }
//!
//!     let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//!     // With the addresses of the clients, which `axum::serve(listener, app)` would not pass on.
//!     axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await
//! }
//! #
//! # async fn a_client_gets_twenty_at_once(app: Router) -> std::io::Result<()> {
//! #     use axum::{body::Body, extract::ConnectInfo, http::Request};
//! #     let send = async |address: u8| {
//! #         let peer = ConnectInfo(SocketAddr::from(([192, 0, 2, address], 4711)));
//! #         let request = Request::get("/").extension(peer).body(Body::empty()).unwrap();
//! #         tower::ServiceExt::oneshot(app.clone(), request).await.unwrap().status().as_u16()
//! #     };
//! #     let mut sent = 0;
//! #     while send(1).await != 429 {
//! #         sent += 1;
//! #         assert!(sent < 10_000, "it is never rejected");
//! #     }
//! #     assert!(sent >= 20, "{sent}");
//! #     assert_eq!(send(2).await, 200);
//! #     Ok(())
//! # }
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
//! Every response shows the quota of the policy (`q` requests in `w` seconds), and the remaining requests (`r`). Until
//! `t` seconds have passed, a client can count on `r` requests: if it spreads them over `t` seconds, none is rejected.
//! In a rejection, `r` is 0 and `t` is the wait ([the details](crate::headers::RateLimitFields::draft11)). A rejection
//! also has the wait in two more fields: `Retry-After`, rounded up to the second, and `X-Rate-Limited-For`, exact. A
//! client that waits that long is admitted.
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
//! | [key](super::keys) | whose quota: an address's, a user's, an API key's |
//! | [`Policy`](crate::Policy) | a named limit: quota, algorithm, key, and [more settings](super::defaults) |
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
//!     // The capacity of the service. Without a key, all clients share one budget.
//!     Policy::new("all-clients", Quota::per_second(5_000)),
//! ]);
//! ```
//!
//! # On one route
//!
//! A layer limits the routes that were added before it. Routes that are added after it are not limited:
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
//! # use axum::{body::Body, extract::ConnectInfo, http::Request};
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! #     let send = async |method: &str, path: &str, address: u8| {
//! #         let peer = ConnectInfo(std::net::SocketAddr::from(([192, 0, 2, address], 4711)));
//! #         let request = Request::builder().method(method).uri(path).extension(peer).body(Body::empty()).unwrap();
//! #         tower::ServiceExt::oneshot(app.clone(), request).await.unwrap().status().as_u16()
//! #     };
//! #     // Unknown paths are not charged to the limit of exports.
//! #     for path in ["/unknown", "/export/unknown", "/exports"] {
//! #         assert_eq!(send("GET", path, 1).await, 404);
//! #     }
//! #     let mut sent = 0;
//! #     while send("POST", "/export", 1).await != 429 {
//! #         sent += 1;
//! #         assert!(sent < 10_000, "exports are never rejected");
//! #     }
//! #     assert!(sent >= 2, "{sent}");
//! #     assert_eq!(send("POST", "/export", 2).await, 200, "of another client");
//! #     for _ in 0..100 {
//! #         assert_eq!(send("GET", "/healthz", 1).await, 200);
//! #     }
//! # });
//! ```
//!
//! Put [`CorsLayer`](crate::RateLimitLayer#order-of-layers) and authentication outside of the limit: of layers on a
//! router, the last one is the outermost.
//!
//! # Before production
//!
//! 1. Is there a proxy in front? Then the address of the peer is the proxy's: [behind a proxy](super::proxies).
//! 2. Are there several machines? In memory, each has the whole quota: [several machines](super::machines).
//! 3. How much is right? Let it [count without rejecting](super::shadow) for a week.
//! 4. What happens when something breaks? [Failure](super::failure).
//! 5. Is it in your way while you develop? [Switch it off there](super::development).
//!
//! Next: [protect a login](super::login). Or choose from the [list of all pages](super).
