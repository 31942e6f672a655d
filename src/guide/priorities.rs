//! Priorities: serve payments before exports while the server is overloaded.
//!
//! **You want** the requests that matter most to be served, even if all others are rejected.
//! [`priority_fn`](crate::Policy::priority_fn) puts each request of an [`Overload`](super::overload) into one of four
//! classes:
//!
#![cfg_attr(feature = "axum", doc = "```")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! use axum::{Router, routing::{get, post}};
//! use tower_sluice::limiter::Priority;
//! use tower_sluice::{Overload, Policy, RateLimitLayer, RequestHead};
//!
//! fn priority(request: &RequestHead<'_>) -> Priority {
//!     // Your gateway sets this field on each request, and overwrites the one of the client.
//!     let is_batch = request.headers().get("x-traffic").is_some_and(|traffic| traffic == "batch");
//!     match request.uri().path() {
//!         "/login" | "/checkout" => Priority::Critical,
//!         "/export" => Priority::Low,
//!         _ if is_batch => Priority::Low,
//!         _ => Priority::Normal,
//!     }
//! }
//!
//! fn app() -> Router {
//!     let overload = Policy::new("overload", Overload::new()).priority_fn(priority);
//!     Router::new()
//!         .route("/checkout", post(|| async { "thank you" }))
//!         .route("/orders", get(|| async { "[]" }))
//!         .route("/export", get(|| async { "a long table" }))
//!         .layer(RateLimitLayer::new(overload))
//! }
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! #     let request = http::Request::get("/export").body(axum::body::Body::empty()).unwrap();
//! #     assert_eq!(tower::ServiceExt::oneshot(app(), request).await.unwrap().status(), 200);
//! # });
//! ```
//!
//! In a [configuration file](super::configuration), by a header or any other key:
//!
//! ```toml
//! [[route]]
//! path = ["/checkout", "/orders", "/export"]
//!
//! [[route.policy]]
//! name = "overload"
//! algorithm = "overload"
//! priority = { by = "path", classes = { "/checkout" = "critical", "/export" = "low" }, default = "normal" }
//! ```
//!
//! Keep all classes in **one** policy: two limiters do not know of each other.
//!
//! # The classes
//!
//! | class | for |
//! |---|---|
//! | [`Critical`](crate::limiter::Priority::Critical) | requests without which the service is down: payments, logins |
//! | [`High`](crate::limiter::Priority::High) | requests for which a person waits |
//! | [`Normal`](crate::limiter::Priority::Normal) | all others; the default |
//! | [`Low`](crate::limiter::Priority::Low) | work that can be done at any time: batches, crawlers, prefetching |
//!
//! The order is **strict**: while requests of a class wait, none of a lower class is served. If the queue is full, a
//! request of the lowest class leaves it. A request that runs is never interrupted. Of requests that wait for a
//! [worker that computes](super::overload#handlers-that-compute), the lower classes are shed at a shorter lag, and the
//! order is not strict.
//!
#![doc = include_str!("overload/classes.svg")]
//!
//! In the picture, one request in five is of the high class. Up to five times the capacity, the server has room for all
//! of them: at four times, 99.9 % were served, and by a fixed limit of 20, 24 %. From there on, even this class offers
//! more than the whole server, and half of it is served at ten times the capacity. A limit without classes rejects both
//! alike.
//!
//! # Who decides the class
//!
//! **Never the client alone**: every client would claim the highest. In order of preference:
//!
//! 1. **The route.** A client that wants to check out has to check out.
//! 2. **The account**, from an extension that your authentication inserts (`request.extensions()`), as in
//!    [tenants](super::tenants).
//! 3. **A field that your gateway sets**, after it has removed the one that came from outside. The server must be
//!    reachable through the gateway only.
//! 4. **A field that the client sets, downwards only.** A client may call its own request `Low`: a batch that marks
//!    itself helps both sides. The batch in the program above could be one.
//!
//! Between your own services, pass the class on: a call to another service is as important as the request that it is
//! for.
//!
//! # When the low classes starve
//!
//! A strict order has a price. While the higher classes fill the server, a lower one gets **nothing**, and each of its
//! requests is rejected after [`max_wait`](crate::Overload::max_wait) or sooner. That is right for a spike of minutes.
//! It shows as
//!
//! - `overload_shed_total{priority="low"}` grows as fast as its requests arrive,
//! - `overload_waiting{priority="low"}` is never 0,
//! - `overload_shed_total{priority="critical"}` does not grow. If it does, this class alone is too much for the server.
//!
//! If it lasts, one of these helps:
//!
//! - **Put fewer requests into the upper classes.** If most requests are `High`, the class means nothing.
//! - **Bound an upper class by a rate limit** in the same layer, so that the rest of the capacity is left to the
//!   others:
//!
//!   ```
//!   use tower_sluice::{Overload, Policy, Quota, RateLimitLayer, RequestHead, limiter::Priority};
//!
//!   fn priority(request: &RequestHead<'_>) -> Priority {
//!       if request.uri().path() == "/checkout" { Priority::Critical } else { Priority::Normal }
//!   }
//!
//!   let layer = RateLimitLayer::new([
//!       Policy::new("overload", Overload::new()).priority_fn(priority),
//!       Policy::new("critical", Quota::per_second(300)).when(|request| priority(request) == Priority::Critical),
//!   ]);
//!   ```
//! - **Use weights instead.** A [key](super::tenants) of weight 10 is served ten times as much as a key of weight 1,
//!   and the latter is never starved.
//! - **Let batches come back.** They get `Retry-After` as others do, and a [paced client](super::partners) waits for
//!   it.
//!
//! # With shares
//!
//! The class counts first, and the [shares of keys](super::tenants) count within a class. So a tenant cannot gain by
//! more requests, and a tenant that may choose its class can. Each class is overloaded by itself: while the low class
//! is shed, the high class is still served oldest first, and loses no request to its age.
//!
//! Next: [gRPC](super::grpc).
