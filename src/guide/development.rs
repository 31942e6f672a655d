//! Switched off in development: a layer that is not applied, or that admits all requests.
//!
//! **You want** no 429 while you work on the service, and the limits in production. `Router::layer` of axum does not
//! change the type of a router, so an `if` is enough:
//!
#![cfg_attr(feature = "axum", doc = "```")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! use std::net::SocketAddr;
//!
//! use axum::{Router, routing::get};
//! use tower_sluice::{Quota, RateLimitLayer};
//!
//! fn app(is_limited: bool) -> Router {
//!     let app = Router::new().route("/", get(|| async { "hello\n" }));
//!     if is_limited { app.layer(RateLimitLayer::per_client(Quota::per_second(10))) } else { app }
//! }
//!
//! #[tokio::main]
//! async fn main() -> std::io::Result<()> {
//!     # return Ok(check().await);
//!     # #[allow(unreachable_code)] {
//!     // The limits are on unless a developer switches them off: a forgotten variable cannot do that in production.
//!     let is_limited = std::env::var_os("WITHOUT_LIMITS").is_none();
//!     let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//!     axum::serve(listener, app(is_limited).into_make_service_with_connect_info::<SocketAddr>()).await
//!     # }
//! }
//! #
//! # // No limit, so no address is needed.
//! # async fn check() {
//! #     use tower::ServiceExt;
//! #     let send = async |is_limited| {
//! #         app(is_limited).oneshot(http::Request::new(axum::body::Body::empty())).await.unwrap().status().as_u16()
//! #     };
//! #     assert_eq!((send(false).await, send(true).await), (200, 500));
//! # }
//! ```
//!
//! # Around any other service
//!
//! In tonic, or in a `tower::ServiceBuilder`, the layer changes the type of the response's body, so
//! `tower::util::option_layer(Some(layer))` does not compile. Give each policy a condition instead. A policy whose
//! condition is false asks for no key and charges nothing:
//!
//! ```
//! use tower_sluice::key::PeerIp;
//! use tower_sluice::{Policy, Quota, RateLimitLayer};
//!
//! fn limits(is_limited: bool) -> RateLimitLayer {
//!     let per_client = Policy::new("per-client", Quota::per_second(10)).key(PeerIp::new());
//!     let all_clients = Policy::new("all-clients", Quota::per_second(5_000));
//!     RateLimitLayer::new([per_client, all_clients].map(|policy| policy.when(move |_| is_limited)))
//! }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! #     use tower::{Layer, ServiceExt, service_fn};
//! #     let send = |is_limited| {
//! #         let ok = service_fn(|_| async { Ok::<_, std::convert::Infallible>(http::Response::new(String::new())) });
//! #         limits(is_limited).layer(ok).oneshot(http::Request::new(()))
//! #     };
//! #     assert_eq!(send(false).await.unwrap().status(), 200);
//! #     assert_eq!(send(true).await.unwrap().status(), 500);
//! # }
//! ```
//!
//! [`when`](crate::Policy::when) replaces an earlier condition of the policy. If it has one, write both into one
//! function.
//!
//! # Choices
//!
//! | in development | then |
//! |---|---|
//! | no layer, or a condition that is false | no limit, no response fields, no key |
//! | a [shadow](super::shadow), in a [file](super::configuration) `shadow = true` | all requests pass, and rejections are counted. A missing key is logged, as in production |
//! | `.exempt(…)` for the loopback network | requests of this machine pass, all others are limited: [exemptions](super::allow_list) |
//! | a large quota, such as `Quota::per_second(1_000_000)` | the response fields are there, so a client can be tried out |
//!
//! The third choice is not for a server behind a proxy on the same machine: there, each request comes from the loopback
//! network.
//!
//! Do not switch limits off in tests. With [a clock that you set](super::testing), a test of a limit takes no time.
//!
//! Next: [try a limit out before it rejects](super::shadow).
