//! Test your limits, without waiting.
//!
//! **You want** a test that fails when a limit differs from your promise, and that takes no time. In memory, limits
//! read a [clock](crate::time::Clock); in tests, that is a [`ManualClock`](crate::time::ManualClock), which stands
//! still until the test advances it.
//!
#![cfg_attr(feature = "axum", doc = "```")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! use std::net::SocketAddr;
//! use std::time::Duration;
//!
//! use axum::body::Body;
//! use axum::extract::ConnectInfo;
//! use axum::http::Request;
//! use axum::{Router, routing::get};
//! use tower::ServiceExt; // for `oneshot`
//! use tower_sluice::key::PeerIp;
//! use tower_sluice::store::MemoryStore;
//! use tower_sluice::time::{Clock, ManualClock, Monotonic};
//! use tower_sluice::{Policy, Quota, RateLimitLayer, RateLimiter, TokenBucket};
//!
//! const QUOTA: Quota = Quota::per_second(10).burst(20);
//!
//! /// The service, on any clock: `app(Monotonic)` in production.
//! fn app(clock: impl Clock) -> Router {
//!     let limiter = RateLimiter::new(TokenBucket::new(QUOTA), MemoryStore::default().with_clock(clock));
//!     let layer = RateLimitLayer::new(Policy::new("per-client", limiter).key(PeerIp::new()));
//!     Router::new().route("/", get(|| async { "hello" })).layer(layer)
//! }
//!
//! /// A request from this address, as the server would make it.
//! fn from(address: [u8; 4]) -> Request<Body> {
//!     let mut request = Request::get("/").body(Body::empty()).unwrap();
//!     request.extensions_mut().insert(ConnectInfo(SocketAddr::from((address, 4711))));
//!     request
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() { each_client_has_a_burst_of_twenty().await; let _ = app(Monotonic); }
//! # // Outside of a test harness, the attribute would remove the function.
//! # macro_rules! ignored { ($($attribute:tt)*) => {} }
//! # ignored! {
//! #[tokio::test]
//! # }
//! async fn each_client_has_a_burst_of_twenty() {
//!     let clock = ManualClock::new();
//!     let app = app(clock.clone());
//!     for _ in 0..20 {
//!         assert_eq!(app.clone().oneshot(from([192, 0, 2, 1])).await.unwrap().status(), 200);
//!     }
//!     let rejected = app.clone().oneshot(from([192, 0, 2, 1])).await.unwrap();
//!     assert_eq!(rejected.status(), 429);
//!     assert_eq!(rejected.headers()["x-rate-limited-for"], "0.100000");
//!     // Another client has its own.
//!     assert_eq!(app.clone().oneshot(from([192, 0, 2, 2])).await.unwrap().status(), 200);
//!
//!     clock.advance(Duration::from_nanos(99_999_999));
//!     assert_eq!(app.clone().oneshot(from([192, 0, 2, 1])).await.unwrap().status(), 429);
//!     clock.advance(Duration::from_nanos(1));
//!     assert_eq!(app.clone().oneshot(from([192, 0, 2, 1])).await.unwrap().status(), 200);
//! }
//! ```
//!
//! If all requests may come from one address, axum's `MockConnectInfo` around the app gives it to them (crate feature
//! `axum`): `app.layer(MockConnectInfo(SocketAddr::from(([192, 0, 2, 1], 4711))))`.
//!
//! With the clock standing still, nothing comes back meanwhile: the test is exact, on any machine. Give
//! [`Penalty`](crate::Penalty::with_clock) and [`ChargeOnce`](crate::ChargeOnce::with_clock) the same clock.
//!
//! # Limiters with a clock
//!
//! A [`Quota`](crate::Quota) or an algorithm alone, as in `Policy::new("api", quota)`, reads the system's clock, and so
//! do [`RateLimitLayer::per_client`](crate::RateLimitLayer::per_client) and what is built from a configuration. A
//! limiter that reads yours is an algorithm on a store with a clock: `RateLimiter::new(algorithm,
//! MemoryStore::default().with_clock(clock))`. Have the function that builds your service take the clock, as `app`
//! above does.
//!
//! # A month
//!
//! A [`CalendarWindow`](crate::CalendarWindow) reads dates: let the clock
//! [start](crate::time::ManualClock::starting_at) at one, in nanoseconds since 1970. Unlike one that starts at 0, it
//! can be put just before an edge. [`set_wall`](crate::time::ManualClock::set_wall) moves the wall clock alone, as a
//! suspend or a correction does:
//!
#![cfg_attr(feature = "calendar", doc = "```")]
#![cfg_attr(not(feature = "calendar"), doc = "```ignore")]
//! use std::time::Duration;
//! use tower_sluice::store::MemoryStore;
//! use tower_sluice::time::{ManualClock, Timestamp};
//! use tower_sluice::{CalendarWindow, LimiterExt, PartitionKey, RateLimiter};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() { a_month_begins_on_the_first().await }
//! # macro_rules! ignored { ($($attribute:tt)*) => {} }
//! # ignored! {
//! #[tokio::test]
//! # }
//! async fn a_month_begins_on_the_first() {
//!     // 31 January 2026, 23:59:59 UTC: `date -u -d '2026-01-31 23:59:59' +%s`.
//!     let clock = ManualClock::starting_at(Timestamp::from_nanos(1_769_903_999 * 1_000_000_000));
//!     let store = MemoryStore::default().with_clock(clock.clone());
//!     let month = RateLimiter::new(CalendarWindow::monthly(2), store);
//!
//!     let customer = PartitionKey::from("ada");
//!     assert!(month.acquire(&customer, 2).await.unwrap().is_allowed());
//!     assert!(!month.acquire(&customer, 1).await.unwrap().is_allowed());
//!     clock.advance(Duration::from_secs(1));
//!     assert!(month.acquire(&customer, 2).await.unwrap().is_allowed());
//!     // February has 28 days.
//!     clock.advance(Duration::from_secs(28 * 86_400 - 1));
//!     assert!(!month.acquire(&customer, 1).await.unwrap().is_allowed());
//!     clock.advance(Duration::from_secs(1));
//!     assert!(month.acquire(&customer, 1).await.unwrap().is_allowed());
//! }
//! ```
//!
//! # Queues: paused time
//!
//! Waiters wait on tokio's timer. In a test with [paused time](https://docs.rs/tokio/latest/tokio/time/fn.pause.html)
//! (tokio's feature `test-util`), tokio advances its clock whenever all tasks wait:
//!
//! ```
//! use std::time::Duration;
//! use tokio::time::Instant;
//! use tower_sluice::{LeakyQueue, LimiterExt, PartitionKey, Quota};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() { calls_are_200_ms_apart().await }
//! # macro_rules! ignored { ($($attribute:tt)*) => {} }
//! # ignored! {
//! #[tokio::test(start_paused = true)]
//! # }
//! async fn calls_are_200_ms_apart() {
//!     let queue = LeakyQueue::new(Quota::per_second(5));
//!     let (key, begin) = (PartitionKey::from("partner"), Instant::now());
//!     for number in 0..5 {
//!         assert!(queue.acquire(&key, 1).await.unwrap().is_allowed());
//!         let late = begin.elapsed() - number * Duration::from_millis(200);
//!         assert!(late <= Duration::from_millis(2), "call {number} is {late:?} late");
//!     }
//! }
//! ```
//!
//! Compare with a millisecond or two to spare: tokio's timer counts in milliseconds.
//!
//! # What else to test
//!
//! | | how |
//! |---|---|
//! | who shares a budget with whom | [`ClientIp::resolve`](super::proxies#who-the-client-is), or two requests and a limit of one |
//! | what a rejection looks like | the response of `oneshot`, as above |
//! | that a policy applies | [`LimitsHandle::peek`](crate::LimitsHandle::peek) before and after |
//! | that a configuration is valid | [`Config::parse`](https://docs.rs/tower-sluice-config/latest/tower_sluice_config/struct.Config.html#method.parse) on the file, in a test: the error names line and cure |
//! | a limiter that fails | `Arc::new(` a [`Limiter`](crate::Limiter) of your own that returns an error `)` |
//! | an algorithm, a limiter or a backend of your own | the suites in [`testing`](crate::testing) (feature `test-util`) |
//! | on Redis | a real server: the script decides by the server's clock, so use limits that do not refill during the test, `Quota::per_day(20)` |
//!
//! # In production: a shadow
//!
//! No test knows your traffic. A [shadow](super::shadow) counts the requests that it would reject, and rejects none.
//!
//! Next: [switch limits off in development](super::development).
