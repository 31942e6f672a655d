//! Coming from tower's own limits: `RateLimitLayer`, `ConcurrencyLimitLayer`, `LoadShedLayer`.
//!
//! **You want** to replace the limits of the crate `tower`. This page compares version 0.5, in axum 0.8.
//!
//! ```text
//! let limit = ServiceBuilder::new()
//!     .layer(HandleErrorLayer::new(|_: BoxError| async { StatusCode::SERVICE_UNAVAILABLE }))
//!     .load_shed()
//!     .buffer(64) // since `RateLimit` is not `Clone`, which axum asks for
//!     .rate_limit(10, Duration::from_secs(1));
//! let app = Router::new().route("/", get(|| async { "hello" })).layer(limit);
//! ```
//!
//! becomes
//!
#![cfg_attr(feature = "axum", doc = "```")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! use std::net::SocketAddr;
//!
//! use axum::{Router, routing::get};
//! use tower_sluice::{Concurrency, Policy, Quota, RateLimitLayer};
//!
//! #[tokio::main]
//! async fn main() -> std::io::Result<()> {
//!     # return Ok(check().await);
//!     # #[allow(unreachable_code)] {
//!     let limits = RateLimitLayer::new([
//!         // Without a key, all clients share a limit, as in tower.
//!         Policy::new("rate", Quota::per_second(10)),
//!         Policy::new("in-flight", Concurrency::new(64)),
//!     ]);
//!     // Tower has no such limit: a budget for each client.
//!     let per_client = RateLimitLayer::per_client(Quota::per_second(2).burst(5));
//!     let app = Router::new().route("/", get(|| async { "hello" })).layer(limits).layer(per_client);
//!
//!     let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//!     axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await
//!     # }
//! }
//! #
//! # /// What tower's limits count in axum, and what the layer of this crate counts.
//! # async fn check() {
//! #     use std::time::Duration;
//! #     use axum::{error_handling::HandleErrorLayer, http::StatusCode};
//! #     use tokio::io::{AsyncReadExt, AsyncWriteExt};
//! #     use tokio::net::{TcpListener, TcpStream};
//! #     use tower::limit::{ConcurrencyLimitLayer, GlobalConcurrencyLimitLayer};
//! #     use tower::{BoxError, ServiceBuilder};
//! #     async fn serve(app: Router, per_connection: bool) -> SocketAddr {
//! #         let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
//! #         let address = listener.local_addr().unwrap();
//! #         tokio::spawn(async move {
//! #             match per_connection {
//! #                 true => axum::serve(listener, app).await,
//! #                 false => axum::serve(listener, app.into_make_service()).await,
//! #             }
//! #         });
//! #         address
//! #     }
//! #     async fn ask(connection: &mut TcpStream, path: &str) -> u16 {
//! #         connection.write_all(format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes()).await.unwrap();
//! #         let mut head = [0; 2_000];
//! #         assert!(connection.read(&mut head).await.unwrap() > 12);
//! #         std::str::from_utf8(&head[9..12]).unwrap().parse().unwrap()
//! #     }
//! #     let shed = || {
//! #         ServiceBuilder::new()
//! #             .layer(HandleErrorLayer::new(|_: BoxError| async { StatusCode::SERVICE_UNAVAILABLE }))
//! #             .load_shed()
//! #     };
//! #     let slow = || {
//! #         get(|| async {
//! #             tokio::time::sleep(Duration::from_secs(1)).await;
//! #             "slow"
//! #         })
//! #     };
//! #     let routes = || Router::new().route("/", slow()).route("/b", slow());
//! #     let ours = || RateLimitLayer::new(Policy::new("in-flight", Concurrency::new(1)));
//! #     let cases = [
//! #         (routes().layer(shed().layer(ConcurrencyLimitLayer::new(1))), true, 3),
//! #         (routes().layer(shed().layer(ConcurrencyLimitLayer::new(1))), false, 2),
//! #         (routes().layer(shed().layer(GlobalConcurrencyLimitLayer::new(1))), true, 1),
//! #         (routes().layer(shed().layer(GlobalConcurrencyLimitLayer::new(1))), false, 1),
//! #         (routes().layer(ours()), true, 1),
//! #         (routes().layer(ours()), false, 1),
//! #     ];
//! #     let cases = cases.into_iter().map(|(app, per_connection, served)| async move {
//! #         let address = serve(app, per_connection).await;
//! #         let mut connections = Vec::new();
//! #         for path in ["/", "/", "/b"] {
//! #             connections.push((TcpStream::connect(address).await.unwrap(), path));
//! #         }
//! #         let asked = connections.iter_mut().map(|(connection, path)| ask(connection, path));
//! #         let statuses = futures_util::future::join_all(asked).await;
//! #         assert_eq!(statuses.iter().filter(|status| **status == 200).count(), served, "{statuses:?}");
//! #     });
//! #     futures_util::future::join_all(cases).await;
//! #     let rate = || shed().buffer(1).rate_limit(1, Duration::from_secs(60));
//! #     for per_connection in [true, false] {
//! #         let address = serve(routes_without_wait().layer(rate()), per_connection).await;
//! #         let mut connections = Vec::new();
//! #         for _ in 0..2 {
//! #             connections.push(TcpStream::connect(address).await.unwrap());
//! #         }
//! #         assert_eq!(ask(&mut connections[0], "/").await, 200);
//! #         let patience = if per_connection { Duration::from_secs(10) } else { Duration::from_millis(200) };
//! #         let second = tokio::time::timeout(patience, ask(&mut connections[1], "/")).await;
//! #         assert_eq!(second.is_ok(), per_connection);
//! #         let again = tokio::time::timeout(Duration::from_millis(200), ask(&mut connections[0], "/")).await;
//! #         assert!(again.is_err(), "it waits");
//! #     }
//! # }
//! #
//! # fn routes_without_wait() -> Router {
//! #     Router::new().route("/", get(|| async { "fast" }))
//! # }
//! ```
//!
//! **Check the number.** In axum, tower's limit may have been many limits, so the same number here may be far stricter.
//!
//! # What tower's limits count in axum
//!
//! A tower layer makes a new limit each time it is put around a service. axum does that more often than the code shows:
//!
//! | served by | `RateLimitLayer`, `ConcurrencyLimitLayer` | `GlobalConcurrencyLimitLayer` |
//! |---|---|---|
//! | `axum::serve(listener, app)` | a limit per **connection** and route: axum prepares the router for each connection | one limit |
//! | `app.into_make_service()`, or one with `connect_info` | a limit per **route** | one limit |
//! | tonic's `concurrency_limit_per_connection` | a limit per connection, as it says | |
//!
//! A client gets around a limit per connection by another connection. With `rate_limit(1, …)` and
//! `axum::serve(listener, app)`, two requests over two connections passed within a millisecond, and the second one over
//! the same connection waited for a second. With `into_make_service()`, the second connection waited.
//!
//! Clones of this crate's [`RateLimitLayer`](crate::RateLimitLayer) share their budgets, so there is one limit for all
//! routes and connections under the layer. For a limit per route, add
//! [`PathKey::matched`](crate::key::PathKey::matched) to the key. Nothing here counts by connection.
//!
//! # Row by row
//!
//! | tower | here |
//! |---|---|
//! | `RateLimitLayer::new(10, Duration::from_secs(1))` | [`Quota::per_second(10)`](crate::Quota::per_second) in a policy; `FixedWindow::new(Quota::per_second(10))` for windows, as there |
//! | its requests wait | they are rejected, with the wait. To let them wait, in order and evenly spaced: [`LeakyQueue`](super::queue) |
//! | `ConcurrencyLimitLayer::new(64)`, `GlobalConcurrencyLimitLayer` | [`Concurrency::new(64)`](crate::Concurrency); to wait, with [`max_queue`](crate::Concurrency::max_queue) |
//! | a permit until the response's head | [until its body has ended](super::in_flight#when-a-request-is-over), or as there: [`release_at_head`](crate::Policy::release_at_head) |
//! | `LoadShedLayer`, `BufferLayer`, `HandleErrorLayer` | nothing: a rejection is a response, and the layer is `Clone` |
//! | around a client's service | [`ThrottleLayer`](https://docs.rs/tower-sluice-client/latest/tower_sluice_client/struct.ThrottleLayer.html), as in [calling a partner](super::partners) |
//!
//! # What is different
//!
//! - **A response, not an error**: 429, or 503 if all clients share the limit, with `Retry-After` and the fields of
//!   `RateLimit`. In tower, an overloaded limit is an error of the service, which axum needs `HandleErrorLayer` for.
//! - **`load_shed` around a buffer** rejects only when the buffer is full. Until then, requests wait, and no field of
//!   the response says for how long.
//! - **`RateLimit` has windows**: at the end of one, and at the beginning of the next, twice the limit may pass. A
//!   [`TokenBucket`](crate::TokenBucket) admits burst + rate × time: see [choosing](super::choosing).
//! - **Backpressure.** Tower's limits are not ready while they are full, so a balancer can choose another service. A
//!   layer of this crate is ready whenever its inner service is, and decides by the request.
//!
//! Next: [try the new limits out before they reject](super::shadow).
