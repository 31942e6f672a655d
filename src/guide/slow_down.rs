//! Slow clients down before they are rejected.
//!
//! **You want** a client that sends too much to notice it gently. Its first requests are free, further ones wait longer
//! and longer, and only a client that goes on in spite of that is rejected. That is a [`SlowDown`]. A complete program:
//!
#![cfg_attr(feature = "axum", doc = "```")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! use std::net::SocketAddr;
//! use std::time::Duration;
//!
//! use axum::{Router, routing::get};
//! use tower_sluice::key::PeerIp;
//! use tower_sluice::{Policy, Quota, RateLimitLayer, SlowDown};
//!
//! #[tokio::main]
//! async fn main() -> std::io::Result<()> {
//!     // 50 searches per minute at full speed. In a burst, the 51st waits for 200 ms, the 52nd for 400 ms, and so on,
//!     // up to 5 s. The 101st is rejected.
//!     let slow = SlowDown::new(Quota::per_minute(50).burst(100))
//!         .free(50)
//!         .step(Duration::from_millis(200))
//!         .max_delay(Duration::from_secs(5));
//!     let layer = RateLimitLayer::new(Policy::new("search", slow).key(PeerIp::new()));
//!     let app = Router::new().route("/search", get(|| async { "found\n" })).layer(layer.clone());
//! #   if true { return requests_wait_longer_and_longer(app).await; }
//!
//!     let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//!     axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>())
//!         .with_graceful_shutdown(async move {
//!             let _ = tokio::signal::ctrl_c().await;
//!             layer.close(); // rejects the waiters, which the server would wait for
//!         })
//!         .await
//! }
//! #
//! # async fn requests_wait_longer_and_longer(app: Router) -> std::io::Result<()> {
//! #     use axum::{body::Body, extract::ConnectInfo, http::Request};
//! #     use futures_util::{StreamExt, stream::FuturesUnordered};
//! #     let send = |address: u8| {
//! #         let peer = ConnectInfo(SocketAddr::from(([192, 0, 2, address], 4711)));
//! #         let request = Request::get("/search").extension(peer).body(Body::empty()).unwrap();
//! #         let response = tower::ServiceExt::oneshot(app.clone(), request);
//! #         async move { response.await.unwrap().status().as_u16() }
//! #     };
//! #     // The 51st and the 52nd at once wait, the longer one for 400 ms.
//! #     let start = std::time::Instant::now();
//! #     let first: FuturesUnordered<_> = (0..52).map(|_| send(1)).collect();
//! #     assert_eq!(first.collect::<Vec<_>>().await, [200; 52]);
//! #     assert!(start.elapsed() >= Duration::from_millis(400));
//! #     // A client that goes on is rejected, and another one is served at once.
//! #     let more: FuturesUnordered<_> = (0..10_000).map(|_| send(1)).collect();
//! #     assert!(more.any(async |status| status == 429).await);
//! #     assert_eq!(send(2).await, 200);
//! #     Ok(())
//! # }
//! ```
//!
//! In a [configuration file](super::configuration):
//!
//! ```toml
//! [[route]]
//! path = "/search"
//!
//! [[route.policy]]
//! name = "search"
//! algorithm = "slow-down"
//! limit = 50
//! per = "1m"
//! burst = 100
//! free = 50
//! step = "200ms"
//! max-delay = "5s"
//! key = "client-ip"
//! ```
//!
//! # How it counts
//!
//! Each client has a level. A request raises the level by one, or by its [cost](crate::Policy::cost), and it leaks at
//! the quota's rate: here, 50 per minute.
//!
//! | level after the request | the request |
//! |---|---|
//! | up to [`free`](crate::SlowDown::free): 50 | passes at once |
//! | `free` + *k* | waits for *k* × [`step`](crate::SlowDown::step), and at most for [`max_delay`](crate::SlowDown::max_delay) |
//! | above the [burst](crate::Quota::burst): 100 | is rejected, with the time after which a retry is accepted |
//!
//! So the quota's rate is what a client may send for ever at full speed, evenly; `free` is what it may send at once at
//! full speed; and the burst is the level at which patience ends. Without a burst, that is the limit, and `free` is
//! half of it unless set.
//!
//! A script that waits for each response before it sends the next request is slowed down to the quota's rate, and never
//! rejected, if two things hold: `max_delay` is at least the time per unit (1.2 s here), and so is the delay at the
//! highest level.
//!
//! ```
//! use std::time::Duration;
//! use tokio::time::Instant;
//! use tower_sluice::{LimiterExt, PartitionKey, Quota, SlowDown};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() {
//! let slow = SlowDown::new(Quota::per_minute(50).burst(100)).free(50).step(Duration::from_millis(200));
//! let scraper = PartitionKey::from("203.0.113.7");
//! let start = Instant::now();
//! for _ in 0..350 {
//!     assert!(slow.acquire(&scraper, 1).await.unwrap().is_allowed());
//! }
//! // Some fifty came at once, and the other three hundred at fifty per minute.
//! assert_eq!(start.elapsed().as_secs() / 60, 5);
//! # }
//! ```
//!
//! # Order
//!
//! The requests of a client depart in the order in which they came. A request that would be free again, because the
//! level has leaked meanwhile, still departs after those of the same client that wait. No request waits for longer than
//! `max_delay`, and none waits for another client.
//!
//! The turn of a request is fixed on arrival. A client that disconnects leaves, and what has not leaked of its charge
//! is returned; those behind it keep their turns. In a [shadow](super::shadow), nothing waits. Waiting requests and
//! their times are in the same [metrics](super::monitoring) as those of a queue, and a delayed request counts as
//! `result="delayed"`.
//!
//! # Slow down, queue or reject?
//!
//! | you want | take |
//! |---|---|
//! | to discourage clients that send too much, and still serve them | [`SlowDown`] |
//! | to protect what is behind: requests depart evenly, however they come | a [`LeakyQueue`](super::queue) |
//! | to let the client decide: it learns at once when to come again | a [bucket or a window](super::choosing) |
//! | to make guesses of passwords expensive | a bucket with a [penalty](super::login): a guesser with many connections does not mind waiting |
//!
//! A `SlowDown` delays requests and does not space them out: fifty requests that came at once depart one step apart,
//! but all those at `max_delay` depart as close together as they came. A waiting request holds its connection and
//! memory, up to [`max_waiters`](crate::SlowDown::max_waiters) over all clients. What the [page on
//! queues](super::queue) says about proxies and disconnects holds here, too.
//!
//! Levels and waiters are in this process. There is no counterpart on Redis: on several machines, a client has a level
//! at each. To reject by a limit that machines share, add a policy on a [`RedisStore`](super::machines) to the layer;
//! it is charged first.
//!
//! # Coming from `express-slow-down`
//!
//! ```text
//! app.use('/search', slowDown({
//!     windowMs: 60 * 1000, delayAfter: 50, delayMs: (used) => (used - 50) * 200, maxDelayMs: 5000,
//! }))
//! app.use('/search', rateLimit({ windowMs: 60 * 1000, limit: 100 }))
//! ```
//!
//! is the program above. Compared with version 2:
//!
//! | `express-slow-down` | here |
//! |---|---|
//! | `windowMs`, `delayAfter` (a minute and 1, unless set) | the quota, `Quota::per(delayAfter, window)`, and [`free`](crate::SlowDown::free) |
//! | `delayMs: (used) => (used - delayAfter) * 200`; 1,000, unless set | [`step`](crate::SlowDown::step); a second, unless set |
//! | `delayMs: () => 500`, the same delay for each | `step` and `max_delay` of 500 ms |
//! | `maxDelayMs`, unlimited unless set | [`max_delay`](crate::SlowDown::max_delay), 30 s unless set |
//! | the `limit` of `express-rate-limit` behind it | the quota's [burst](crate::Quota::burst): one policy does both |
//! | `keyGenerator`, `skip`, `store` | as on [the page on `express-rate-limit`](super::from_express) |
//! | `req.slowDown.delay` | [`Verdict`](crate::Verdict), and [`Decision::delay`](crate::Decision::delay) |
//!
//! What is different:
//!
//! - **The count leaks** instead of being reset when a window ends. A client below the rate is never delayed, wherever
//!   it stands in a window, and a client that has used up everything recovers bit by bit.
//! - **Order is kept.** There, each request has a timer of its own, and the first requests of a new window overtake
//!   those that still wait.
//! - **Waiting is bounded**, in time and in memory, also without a setting.
//! - **A client that disconnects** gets back what has not leaked; there, its request stays counted.
//! - **Rejections do not count**, and carry the exact time to wait.
//!
//! More: [`SlowDown`], for its exact rules and costs.
//!
//! Next: [protect a server from overload](super::overload).
//!
//! [`SlowDown`]: crate::SlowDown
