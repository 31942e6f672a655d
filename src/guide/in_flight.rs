//! Requests in flight: how many of one client the server works on at once.
//!
//! **You want** one customer's slow exports, downloads or streams not to take all workers, connections or memory. A
//! quota over time does not do that: four exports per minute that run for an hour each are 240 at once. [`Concurrency`]
//! counts requests that have begun and are not over.
//!
#![cfg_attr(feature = "axum", doc = "```")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! use std::net::SocketAddr;
//! use axum::{Router, routing::get};
//! use tower_sluice::key::HeaderKey;
//! use tower_sluice::{Concurrency, Policy, Quota, RateLimitLayer};
//!
//! #[tokio::main]
//! async fn main() -> std::io::Result<()> {
//!     let api_key = HeaderKey::from_static("x-api-key");
//!     let layer = RateLimitLayer::new([
//!         Policy::new("per-minute", Quota::per_minute(60)).key(api_key.clone()),
//!         Policy::new("in-flight", Concurrency::new(4)).key(api_key),
//!     ]);
//!     let app = Router::new().route("/export", get(|| async { "a long table" })).layer(layer);
//! #   if true { return a_key_has_four_at_once(app).await; }
//!     let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//!     axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await
//! }
//! #
//! # async fn a_key_has_four_at_once(app: Router) -> std::io::Result<()> {
//! #     use axum::{body::Body, http::Request};
//! #     let send = async |key: &str| {
//! #         let request = Request::get("/export").header("x-api-key", key).body(Body::empty()).unwrap();
//! #         tower::ServiceExt::oneshot(app.clone(), request).await.unwrap()
//! #     };
//! #     // A response whose body is not read yet is in flight.
//! #     let mut open = Vec::new();
//! #     for _ in 0..4 {
//! #         open.push(send("a").await);
//! #     }
//! #     assert!(open.iter().all(|response| response.status() == 200));
//! #     assert_eq!([send("a").await.status().as_u16(), send("b").await.status().as_u16()], [429, 200]);
//! #     axum::body::to_bytes(open.pop().unwrap().into_body(), 100).await.unwrap();
//! #     assert_eq!(send("a").await.status(), 200);
//! #     Ok(())
//! # }
//! ```
//!
//! In a [configuration file](https://docs.rs/tower-sluice-config/latest/tower_sluice_config/):
//!
//! ```toml
//! [[route]]
//! path = "/export"
//!
//! [[route.policy]]
//! name = "in-flight"
//! algorithm = "concurrency"
//! limit = 4
//! max-queue = 10      # ten more of a key may wait
//! max-wait = "5s"
//! key = "header:x-api-key"
//! ```
//!
//! # When a request is over
//!
//! When the **body** of its response has ended, has failed, or was dropped: by the client, by a timeout, by a panic.
//!
//! | response | over |
//! |---|---|
//! | a small one | as soon as the server has taken it over, which is at once |
//! | a large one to a slow reader | when its last part has left for the connection's buffers |
//! | server-sent events, gRPC streams | at the end of the stream (its trailers), or when the client disconnects |
//! | to HEAD, 204, 304 | at once: there is no body |
//! | a rejection by a later policy | at once; nothing was begun |
//! | the service fails or panics, or the client leaves before the head | at that moment |
//! | a protocol upgrade (WebSocket) | at once, unless the handler [takes its permits along](crate::Permits) |
//!
//! A server notices at once that a client has closed its connection, or reset its stream. A client that vanishes
//! without either is noticed when the server writes: an idle stream needs keep-alive messages for that.
//!
//! A server takes a body frame by frame, as it can send them. Over HTTP/2, hyper takes frames early: one frame ahead,
//! and a whole frame as soon as the client's window has room for one byte of it. With the last frame, the body has
//! ended. So send large contents in pieces, as `tower_http::services::ServeDir` does. A body in a single frame ends
//! while a slow reader has most of it still to come.
//!
//! **If slow readers should not count**, since only the work of handlers is scarce, call
//! [`release_at_head`](crate::Policy::release_at_head) (in TOML, `release-at = "head"`). That is what tower's own
//! `ConcurrencyLimit` does, without keys. With 200 slow downloads at a limit of 8, it lets the server have 200 bodies
//! open, and this limit 8 (`k6/in_flight.js`).
//!
//! # WebSockets
//!
//! The response to an upgrade ends at once, and the connection lives on. The handler holds what the request holds:
//!
#![cfg_attr(feature = "axum", doc = "```")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! use tower_sluice::Permits;
//!
//! async fn connect(permits: Permits) {
//!     let held = permits.take();
//!     // In `on_upgrade(move |socket| async move { … })`:
//!     let _connection = async move {
//!         // … until the socket closes …
//!         drop(held);
//!     };
//! }
//! ```
//!
//! # Wait or reject
//!
//! Without [`max_queue`](crate::Concurrency::max_queue), a request too many is rejected: with 429 if it has a key of
//! its own, with 503 if all clients share the limit. It carries **no `Retry-After`**, since the time at which a request
//! will be over is unknown. A client that counts its own requests can do without. With a queue, it waits for its turn,
//! first come, first served. Little's law says for how long: *waiting = rate × wait*. If requests take a second each
//! and 4 run at once, 4 are over per second, and the twentieth in line waits for five.
//!
//! A policy with a queue is evaluated after those that reject, as [`LeakyQueue`](crate::LeakyQueue)s are. A request
//! that waits in a queue after it has its permit counts as in flight.
//!
//! # Or protect the server
//!
//! A limit per client protects clients from one another, and needs a number. With enough clients at once, the server is
//! overloaded all the same. [`Overload`](super::overload) is one limit for all of them, which finds its number, and
//! [shares it fairly](super::tenants). Use both in one layer: `Concurrency` for slow streams and for the requests at
//! once that you sell, and `Overload` for the server.
//!
//! # A limit per customer
//!
//! [`limit_fn`](crate::Policy::limit_fn) returns the number of the customer's plan:
//!
//! ```
//! use tower_sluice::key::User;
//! use tower_sluice::{Concurrency, Policy};
//!
//! /// What the account allows: an extension.
//! #[derive(Clone, Copy)]
//! struct Seats(u64);
//!
//! // A customer without a plan has two.
//! let in_flight = Policy::new("in-flight", Concurrency::new(2))
//!     .key(User::key())
//!     .limit_fn(|request| request.extensions().get::<Seats>().map(|seats| seats.0));
//! # let app: axum::Router =
//! #     axum::Router::new().fallback(|| async { "hello" }).layer(tower_sluice::RateLimitLayer::new(in_flight));
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! #     let count = async |user: &'static str, seats: Option<u64>| {
//! #         let mut open = Vec::new();
//! #         loop {
//! #             let mut request = http::Request::get("/").extension(User::new(user));
//! #             if let Some(seats) = seats {
//! #                 request = request.extension(Seats(seats));
//! #             }
//! #             let request = request.body(axum::body::Body::empty()).unwrap();
//! #             let response = tower::ServiceExt::oneshot(app.clone(), request).await.unwrap();
//! #             if response.status() == 429 {
//! #                 break open.len();
//! #             }
//! #             open.push(response);
//! #             assert!(open.len() < 100, "there is no limit");
//! #         }
//! #     };
//! #     assert_eq!([count("ada", Some(5)).await, count("bob", None).await, count("carl", Some(1)).await], [5, 2, 1]);
//! # });
//! ```
//!
//! A plan may change at any time. Requests in flight stay; under a lowered limit, none is admitted until enough of them
//! are over. A limit of 0 [suspends](crate::Quota::suspended) the customer. In a queue, each request is judged by the
//! limit that it came with, and none overtakes another, whatever their limits. It works on a server in the same way;
//! while processes have different numbers for a customer, each judges by its own.
//!
//! # On several machines
//!
//! A `Concurrency` counts one process. A [`SharedConcurrency`](crate::SharedConcurrency) counts [all
//! processes](super::machines#what-is-in-flight-on-all-machines), on Redis, on [PostgreSQL](super::postgres), on
//! [DynamoDB](super::dynamodb#beyond-limits-over-time), or on a [store of your own](super::own_stores). Its
//! [`max_queue`](crate::SharedConcurrency::max_queue) is a line in each process, first come, first served; [between
//! processes](crate::SharedConcurrency#waiting), chance decides. In a file with `[redis]` or `[store.postgres]`,
//! `algorithm = "concurrency"` is that one, and `lease = "10s"` says after which time the units of a process that has
//! died are free; `store = "memory"` keeps a policy in the process.
//!
//! # Jobs, tasks, calls
//!
//! Without HTTP, [`acquire`](crate::LimiterExt::acquire) returns a [`Permit`](crate::limiter::Permit), and a
//! [`ThrottleLayer`] holds units for as long as the future of a service runs:
//!
//! ```
//! use tower_sluice::{Concurrency, LimiterExt, PartitionKey};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tower_sluice::LimiterError> {
//! let exports = Concurrency::new(2).max_queue(100);
//! let customer = PartitionKey::from("customer 7");
//! if let Some(permit) = exports.acquire(&customer, 1).await?.admitted() {
//!     // … export …
//!     drop(permit);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Next: [real costs](super::real_costs).
//!
//! [`Concurrency`]: crate::Concurrency
//! [`ThrottleLayer`]: https://docs.rs/tower-sluice-client/latest/tower_sluice_client/struct.ThrottleLayer.html
