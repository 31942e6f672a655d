//! Quotas, bursts and costs.
//!
//! **You want** to write down how much is allowed. A [`Quota`](crate::Quota) has two numbers that are independent of
//! each other: the **rate**, which holds in the long run, and the **burst**, which may be taken at once.
//!
//! ```
//! use std::time::Duration;
//! use tower_sluice::Quota;
//!
//! const API: Quota = Quota::per_second(10).burst(20); // ten per second, twenty at once
//! const EXPORTS: Quota = Quota::per_day(5); // five at once, then one every 4.8 hours
//! const EVENLY: Quota = Quota::per_minute(60).burst(1); // one per second, never two together
//! const LOGIN: Quota = Quota::per(5, Duration::from_secs(15 * 60)); // five per quarter of an hour
//!
//! // From a file: nothing panics.
//! let quota = Quota::try_per(3, Duration::from_secs(5))?.try_burst(6)?;
//! assert_eq!((quota.limit(), quota.max_burst()), (3, 6));
//! # Ok::<_, tower_sluice::limiter::QuotaError>(())
//! ```
//!
//! The constructors are `const`: a zero in a constant does not compile.
//!
//! # The burst counts the first request
//!
//! `burst(1)` admits one, and the next after `period / limit`. Unless set, the burst of a bucket is its limit, and the
//! burst of a [`LeakyQueue`](crate::LeakyQueue) is 1. Windows have no burst: their whole limit may come at once, and
//! they panic if a quota sets another one.
//!
//! A client that was idle gets burst + rate × *t* in its first *t*. With `per_minute(60)`, that is 120 in the first
//! minute, and 60 in each that follows. If you promise 60 in *any* minute, use a
//! [`SlidingWindow`](crate::SlidingWindow), or set a small burst.
//!
//! # Which burst?
//!
//! - At least the number of requests that a well-behaved client sends at once. A page that loads 15 images is 15
//!   requests.
//! - For the service behind the limiter: the most that it can take at one instant, divided by the number of clients
//!   that may send together.
//! - After a burst, a bucket takes burst / rate to fill up: 20 at 10 per second are back
//!   after two seconds; 1,000 at one per minute after 17 hours.
//! - Not 1 without a reason. Two requests that a client sends a second apart may arrive 999 ms apart, and one of them
//!   is rejected. A burst of 1 is also the hardest to hold [under a flood of keys](crate::store::WhenFull).
//!
//! # Rates are exact
//!
//! Three per second are three per second, and not one every 333 ms. There are no floating-point numbers, and only the
//! advertised wait is rounded, up. One per year is as exact as a million per second.
//!
//! # A request that costs more
//!
//! ```
//! use tower_sluice::{Policy, Quota};
//!
//! let policy = Policy::new("points", Quota::per_minute(600).burst(100))
//!     .cost_fn(|request| match request.uri().path() {
//!         "/search" => 10,
//!         "/health" => 0, // passes, and counts for nothing
//!         _ => 1,
//!     });
//! # use axum::{Router, body::Body, http::Request, routing::get};
//! # let app: Router = Router::new()
//! #     .fallback(|| async { "hello" })
//! #     .layer(tower_sluice::RateLimitLayer::new(policy));
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! #     let send = async |path: &str| {
//! #         let request = Request::get(path).body(Body::empty()).unwrap();
//! #         tower::ServiceExt::oneshot(app.clone(), request).await.unwrap()
//! #     };
//! #     let left = |response: &http::Response<_>| {
//! #         let field = response.headers()["ratelimit"].to_str().unwrap().to_owned();
//! #         field.split(';').find_map(|part| part.strip_prefix("r=")).unwrap().parse::<u64>().unwrap()
//! #     };
//! #     assert_eq!([left(&send("/search").await), left(&send("/orders").await)].map(|left| left < 100), [true; 2]);
//! #     let mut searches = 1;
//! #     while send("/search").await.status().is_success() {
//! #         searches += 1;
//! #         assert!(searches < 10_000, "searches are never rejected");
//! #     }
//! #     // A hundred points are ten searches, but for the one of an order.
//! #     assert!(searches >= 9, "{searches}");
//! #     assert!(send("/health").await.status().is_success());
//! # });
//! ```
//!
//! - A fixed [cost](crate::Policy::cost) above the burst is an error when the layer is built. If a
//!   [function](crate::Policy::cost_fn) returns one, the request is rejected without `Retry-After`, since no wait
//!   helps.
//! - In a queue, a request of cost 3 departs in its order, and the next departs three intervals later.
//! - The cost is set before the body is read. If the handler [reports](crate::Policy::cost_after) another one
//!   afterwards, the difference is charged or refunded.
//!
//! # A quota per customer
//!
//! Your authentication layer looks up the account and puts the customer's quota into the request;
//! [`quota_fn`](crate::Policy::quota_fn) reads it there. [Sell an API](super::plans) is the complete program.
//!
//! ```
//! use tower_sluice::key::User;
//! use tower_sluice::{Policy, Quota};
//!
//! /// What the account allows: an extension.
//! #[derive(Clone, Copy)]
//! struct Plan(Quota);
//!
//! // A customer without a plan has the quota of the policy.
//! let api = Policy::new("api", Quota::per_minute(60))
//!     .key(User::key())
//!     .quota_fn(|request| request.extensions().get::<Plan>().map(|plan| plan.0));
//! # use axum::{Router, body::Body, http::Request};
//! # let app: Router = Router::new()
//! #     .fallback(|| async { "hello" })
//! #     .layer(tower_sluice::RateLimitLayer::new(api));
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! #     let send = async |user: &'static str, plan: Option<Quota>| {
//! #         let mut request = Request::get("/").extension(User::new(user)).body(Body::empty()).unwrap();
//! #         plan.map(|quota| request.extensions_mut().insert(Plan(quota)));
//! #         let response = tower::ServiceExt::oneshot(app.clone(), request).await.unwrap();
//! #         (response.status().as_u16(), response.headers()["ratelimit-policy"].to_str().unwrap().to_owned())
//! #     };
//! #     let three = Some(Quota::per_day(3));
//! #     for status in [200, 200, 200, 429] {
//! #         assert_eq!(send("ada", three).await, (status, r#""api";q=3;w=86400"#.to_owned()));
//! #     }
//! #     assert_eq!(send("bob", None).await, (200, r#""api";q=60;w=60"#.to_owned()));
//! #     assert_eq!(send("carl", three).await.0, 200, "each customer has a budget");
//! # });
//! ```
//!
//! - Each response advertises the quota of its own customer.
//! - If a plan changes, the next request is decided under the new one, and used units stay used: an upgrade helps at
//!   once, and there is no fresh budget in changing plans to and fro. For windows, that needs plans of one period:
//!   between 1,000 per day and 10 per second, a customer who changes to and fro passes 10,100 in a minute.
//! - **Return one quota for all requests of a key.** The used units of a key are converted at each change, unit for
//!   unit: with 5 per hour for `/login` and 100 per second for other paths, a client that sends both in turn, five
//!   times a second, gets 18,000 logins an hour. Write a policy for each kind of request, with
//!   [`when`](crate::Policy::when). A quota that goes back and forth is
//!   [logged](super::misconfigured#the-quota-of-a-key-goes-back-and-forth).
//! - Without a plan, or if it cannot be found, the policy's own quota applies. The request is limited in any case.
//! - The plan is looked up once per request, and that quota holds for its refund and its fields as well.
//! - Memory is bounded, with any number of quotas: see [`quota_fn`](crate::Policy::quota_fn).
//! - It works on [a server](super::machines) in the same way: the quota comes with each call, and is stored with the
//!   key ([on Redis](https://docs.rs/tower-sluice-redis/latest/tower_sluice_redis/struct.RedisStore.html#quotas-of-the-keys-own)). Give all plans of a policy with windows one period:
//!   a count that comes into a shorter one ends with it.
//! - In TOML, the customers of [a plan](super::plans#by-configuration) have its quota: the proxy in front says which
//!   plan a request has.
//!
//! # Count failures only
//!
//! ```
//! use http::StatusCode;
//! use tower_sluice::key::PeerIp;
//! use tower_sluice::{Policy, Quota, SlidingWindow};
//!
//! let failed_logins = Policy::new("failed-logins", SlidingWindow::new(Quota::per_hour(10)))
//!     .key(PeerIp::new())
//!     .charge_when(|response| response.status() == StatusCode::UNAUTHORIZED);
//! # use axum::{Router, body::Body, extract::ConnectInfo, http::Request, routing::get};
//! # let app: Router = Router::new()
//! #     .route("/right", get(|| async { StatusCode::OK }))
//! #     .route("/wrong", get(|| async { StatusCode::UNAUTHORIZED }))
//! #     .layer(tower_sluice::RateLimitLayer::new(failed_logins));
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! #     let send = async |path: &str, address: u8| {
//! #         let peer = ConnectInfo(std::net::SocketAddr::from(([192, 0, 2, address], 4711)));
//! #         let request = Request::get(path).extension(peer).body(Body::empty()).unwrap();
//! #         tower::ServiceExt::oneshot(app.clone(), request).await.unwrap().status().as_u16()
//! #     };
//! #     for _ in 0..30 {
//! #         assert_eq!(send("/right", 1).await, 200);
//! #     }
//! #     for _ in 0..10 {
//! #         assert_eq!(send("/wrong", 1).await, 401);
//! #     }
//! #     assert_eq!([send("/wrong", 1).await, send("/right", 1).await, send("/wrong", 2).await], [429, 429, 401]);
//! # });
//! ```
//!
//! Each request is [charged on arrival, and refunded](crate::Policy::charge_when) if the response has another status;
//! so no client has more guesses in flight than the limit of a window allows. Use a window for that: with a bucket of 5
//! per minute, a client that holds its own logins open for 20 minutes has [105 guesses at one
//! instant](crate::Policy::charge_when).
//!
//! Valid requests in flight count, too, so the limit must exceed the number of requests that a client has in flight: of
//! 1,000 valid requests of one address, 100 per second of 200 ms each, a limit of ten rejected 520, as 20 are in flight
//! and ten may be. If the check is a small part of the request, as for an API key, charge [around the
//! check](super::plans#what-happens).
//!
//! # When requests are charged
//!
//! A request is charged when it is admitted, before the service is called, and stays charged if the client disconnects:
//! opening and cancelling requests must not be free. A rejection costs nothing, so a client that keeps sending is
//! admitted again as soon as a client that waits. To change that, add a [penalty](crate::Policy::penalty): a client
//! that keeps sending before the advertised wait is over is banned for a while. Against guesses at a password, see
//! [protect a login](super::login).
//!
//! # Charge a retry once
//!
//! A client that lost the answer to `POST /payments` asks again, with the same `Idempotency-Key`, and is charged again.
//! [`charge_once`](crate::Policy::charge_once) makes a number of retries free, once the first request was charged and
//! is over:
//!
//! ```
//! use std::time::Duration;
//!
//! use http::HeaderName;
//! use tower_sluice::key::HeaderKey;
//! use tower_sluice::{ChargeOnce, FixedWindow, Policy, Quota};
//!
//! let once = ChargeOnce::by_header(HeaderName::from_static("idempotency-key"))
//!     .within(Duration::from_secs(24 * 3_600))
//!     .free_retries(3);
//! let payments = Policy::new("payments", FixedWindow::new(Quota::per_day(10_000)))
//!     .key(HeaderKey::from_static("x-api-key"))
//!     .charge_once(once);
//! # use axum::{Router, body::Body, http::Request};
//! # let app: Router = Router::new()
//! #     .fallback(|| async { "paid" })
//! #     .layer(tower_sluice::RateLimitLayer::new(payments));
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! #     let send = async |idempotency_key: &str| {
//! #         let request = Request::post("/payments").header("x-api-key", "a").header("idempotency-key", idempotency_key);
//! #         let request = request.body(Body::empty()).unwrap();
//! #         let (head, body) = tower::ServiceExt::oneshot(app.clone(), request).await.unwrap().into_parts();
//! #         axum::body::to_bytes(body, 100).await.unwrap();
//! #         let field = head.headers["ratelimit"].to_str().unwrap();
//! #         field.split(';').find_map(|part| part.strip_prefix("r=")).unwrap().parse::<u64>().unwrap()
//! #     };
//! #     // The first request, and three retries; the fourth is charged, and so is another payment.
//! #     let mut left = Vec::new();
//! #     for key in ["one", "one", "one", "one", "one", "two"] {
//! #         left.push(send(key).await);
//! #     }
//! #     // Unless the day has ended meanwhile.
//! #     if left.is_sorted_by(|earlier, later| earlier >= later) {
//! #         assert_eq!(left, [9_999, 9_999, 9_999, 9_999, 9_998, 9_997]);
//! #     }
//! # });
//! ```
//!
//! - It is off by default, since the client chooses the key, and can send another payload with it. The worst case is
//!   **1 + `free_retries` times the quota**: four times, here. Set a quota that you can serve that often.
//! - Other repetitions are charged: if the first request is still in flight, or if it was rejected.
//! - In memory, each process knows its own requests: with *n* processes behind a balancer, one of *n* retries is free.
//!   If the limiter is on [a server](super::machines), they share the records of requests. On Redis, a request is still
//!   one round trip; on [PostgreSQL](super::postgres) and [DynamoDB](super::dynamodb), it is
//!   [one more](crate::ChargeOnce#cost). Each request takes some 200 bytes there for the time of `within`: set it to
//!   minutes if clients send many.
//! - Rejections are never charged, so a client that was rejected does not need this. If the policy counts [successes
//!   only](crate::Policy::charge_when), a client whose request failed does not need it either.
//!
//! In TOML:
//!
//! ```toml
//! [[route]]
//! path = "/payments"
//!
//! [[route.policy]]
//! name = "payments"
//! algorithm = "fixed-window"
//! limit = 10_000
//! per = "1day"
//! key = "header:x-api-key"
//! charge-once = { header = "idempotency-key", within = "24h", free-retries = 3 }
//! ```
//!
//! `max-keys` in that table bounds the requests that are remembered in memory; a policy on a server leaves it out.
//!
//! Next: [choose the key](super::keys).
