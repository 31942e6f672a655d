//! Tenants: share the capacity of a server fairly between customers.
//!
//! **You want** one customer's import not to slow down all others. With a [key](crate::Policy::key), an
//! [`Overload`](super::overload) gives each key the same share of the capacity, however much each sends. With
//! [`weight_fn`](crate::Policy::weight_fn), shares follow the plan:
//!
#![cfg_attr(feature = "axum", doc = "```")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! use std::num::NonZeroU32;
//!
//! use axum::extract::Request;
//! use axum::middleware::{Next, from_fn};
//! use axum::response::Response;
//! use axum::{Router, routing::get};
//! use tower_sluice::key::User;
//! use tower_sluice::{MissingKey, Overload, Policy, RateLimitLayer};
//!
//! #[derive(Clone, Copy)]
//! struct Plan {
//!     weight: NonZeroU32,
//! }
//!
//! /// Stands for your table of accounts.
//! fn account(api_key: &str) -> Option<(User, Plan)> {
//!     match api_key {
//!         "key-of-ada" => Some((User::new("ada"), Plan { weight: NonZeroU32::new(10)? })),
//!         "key-of-bob" => Some((User::new("bob"), Plan { weight: NonZeroU32::MIN })),
//!         _ => None,
//!     }
//! }
//!
//! async fn authenticate(mut request: Request, next: Next) -> Response {
//!     let api_key = request.headers().get("x-api-key").and_then(|key| key.to_str().ok());
//!     if let Some((user, plan)) = api_key.and_then(account) {
//!         request.extensions_mut().insert(user);
//!         request.extensions_mut().insert(plan);
//!     }
//!     next.run(request).await
//! }
//!
//! fn app() -> Router {
//!     let overload = Policy::new("overload", Overload::new())
//!         .key(User::key())
//!         .on_missing_key(MissingKey::Share) // One share for all without an account. The default is 400.
//!         .weight_fn(|request| request.extensions().get::<Plan>().map_or(NonZeroU32::MIN, |plan| plan.weight));
//!     Router::new()
//!         .route("/report", get(|| async { "a long table" }))
//!         .layer(RateLimitLayer::new(overload))
//!         .layer(from_fn(authenticate)) // The last is the outermost.
//! }
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! #     for key in ["key-of-ada", "none"] {
//! #         let request = http::Request::get("/report").header("x-api-key", key);
//! #         let request = request.body(axum::body::Body::empty()).unwrap();
//! #         assert_eq!(tower::ServiceExt::oneshot(app(), request).await.unwrap().status(), 200);
//! #     }
//! # });
//! ```
//!
//! In a [configuration file](super::configuration):
//!
//! ```toml
//! [[route]]
//! path = ["/report", "/export"]
//!
//! [[route.policy]]
//! name = "overload"
//! algorithm = "overload"
//! key = "user"              # the extension `User`, which an authenticating layer inserts
//! on-missing-key = "share"
//! weight = { by = "header:x-plan", weights = { gold = 10 }, default = 1 }
//! ```
//!
//! Your gateway must set `x-plan`, and remove it from the requests of clients.
//!
//! # What a share is
//!
//! A share counts **units per time**, and only among keys with requests that wait. A unit is a request, unless
//! [`cost_fn`](crate::Policy::cost_fn) says otherwise.
//!
#![doc = include_str!("overload/tenants.svg")]
//!
//! In the picture, the first of ten tenants sends 60 % of the requests, which alone is three times the capacity. A
//! fixed limit rejects requests at random, so it serves tenants in proportion to what they send. `Overload` serves all
//! ten alike. Without any limit, none of them gets an answer within 100 ms.
//!
//! - **While the server keeps up, there are no shares.** No request waits, and each key is served in full.
//! - **A key that needs less than its share hardly waits.** The others divide the rest.
//! - **A key that sends more waits for itself.** Its requests queue behind one another. If the queue is full, the key
//!   with the longest queue for its weight loses its newest request, and not the key that comes next.
//! - **A key whose requests take long does not hold all units.** Of the last quarter of the limit, no key holds more
//!   than half while another key uses it. In the simulation, one key sends five requests of 10 s per second, and nine
//!   keys ten of 10 ms each: once the limit is found, none of the nine is shed, where a fixed limit of 20 sheds 63 % of
//!   their requests. While the limit is sought, it may be lowered below what the slow key holds. Then all wait, until
//!   the limit is given up: after half of the longest wait, or twice the usual time of a request. In this case, 3 % of
//!   the requests of the nine were shed in the first 15 s. On a server that is full, the slow key still holds most
//!   units, since nothing tells how long a request will take.
//! - **Nothing is remembered.** A key that has used the whole server while it was alone owes nothing. To bound the use
//!   of a customer per day, add a [quota](super::plans) to the layer.
//! - **A weight is the weight of the key**, and not of a request. Weight 10 beside ten keys of weight 1 gets half of
//!   the capacity.
//! - **Classes come first.** Shares hold within a [class](super::priorities). The simulation's table has a case: at ten
//!   times the capacity, only the high class is served. In it, nine tenants together need 80 % of the capacity and get
//!   77 %, and the greedy one gets the remaining 23 %.
//! - **A share is of this machine.** If the load balancer sends all requests of a tenant to one machine, it has a share
//!   of that one.
//!
//! # Which key
//!
//! Each key has a share, so a client that can make up keys gets as many shares as it likes. Use a key that your server
//! has verified:
//!
//! | key | good for |
//! |---|---|
//! | [`User::key`](crate::key::User::key), after authentication | customers |
//! | [`HeaderKey`](crate::key::HeaderKey) of an API key | only behind a gateway that has checked it |
//! | [`ClientIp`](crate::key::ClientIp) | clients without accounts; IPv6 clients count by network |
//! | a pair, as in [keys](super::keys) | users within customers: each user has a share of its own |
//! | none | one queue, oldest first: clients are served in proportion to their requests |
//!
//! Keys cost nothing while nobody waits, and there may be any number of them: nothing is kept of a key without requests
//! in the queue.
//!
//! # See who is rejected
//!
//! `overload_shed_total` has a label `share`. Requests of keys that had more than their share of the queue are `over`;
//! the others are `within`. If only `over` grows, the shares do their work, and one customer sends too much.
//! [`track_offenders`](crate::Policy::track_offenders) lists [who it is](super::monitoring#who-is-limited). If `within`
//! grows, the server is too small for all together.
//!
//! The labels count requests in the queue, and not units. If one customer's requests take long, it has few in the
//! queue, and the others may be `over`. Requests that are shed because a
//! [worker lags](super::overload#handlers-that-compute) are all `within`.
//!
//! # Or a limit in flight per customer?
//!
//! | | [`Concurrency`](super::in_flight) by key | `Overload` by key |
//! |---|---|---|
//! | a customer alone on the server | has its limit, and the rest is idle | has the whole server |
//! | a thousand customers at once | a thousand times the limit: overload | a thousandth each |
//! | you choose | a number per plan | nothing, or weights |
//! | use it to | sell requests at once; bound connections that stay open | protect the server |
//!
//! Both may be in one layer.
//!
//! Next: [priorities](super::priorities).
