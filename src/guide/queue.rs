//! A queue: let requests wait instead of rejecting them.
//!
//! **You want** a burst to be spread out instead of rejected. In a [`LeakyQueue`], requests depart one by one at the
//! quota's rate, in order of arrival, each key separately. A request that could not depart within the queue's bounds is
//! rejected on arrival, with the time after which a retry is accepted. A complete program:
//!
#![cfg_attr(feature = "axum", doc = "```")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! use std::net::SocketAddr;
//! use std::time::Duration;
//!
//! use axum::{Router, routing::post};
//! use tower_sluice::key::PeerIp;
//! use tower_sluice::{LeakyQueue, Policy, Quota, RateLimitLayer};
//!
//! #[tokio::main]
//! async fn main() -> std::io::Result<()> {
//!     // The printer takes ten pages per second; no request waits for more than two seconds.
//!     let queue = LeakyQueue::new(Quota::per_second(10)).max_queue(20).max_wait(Duration::from_secs(2));
//!     let layer = RateLimitLayer::new([
//!         // First, each client is kept from filling the queue; these requests are rejected at once.
//!         Policy::new("per-client", Quota::per_second(5)).key(PeerIp::new()),
//!         // Without a key, it is one queue for all.
//!         Policy::new("printer", queue),
//!     ]);
//!     let app = Router::new().route("/print", post(|| async { "printed\n" })).layer(layer.clone());
//! #   if true { return pages_are_printed_one_by_one(app).await; }
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
//! # async fn pages_are_printed_one_by_one(app: Router) -> std::io::Result<()> {
//! #     use axum::{body::Body, extract::ConnectInfo, http::Request};
//! #     let send = |address: u8| {
//! #         let peer = ConnectInfo(SocketAddr::from(([192, 0, 2, address], 4711)));
//! #         let request = Request::post("/print").extension(peer).body(Body::empty()).unwrap();
//! #         let response = tower::ServiceExt::oneshot(app.clone(), request);
//! #         async move { response.await.unwrap().status().as_u16() }
//! #     };
//! #     // Four clients at once: one page every 100 ms, all of them.
//! #     let start = std::time::Instant::now();
//! #     assert_eq!(futures_util::future::join_all((1..5).map(send)).await, [200; 4]);
//! #     assert!(start.elapsed() >= Duration::from_millis(300));
//! #     // A client that sends many is rejected before it fills the queue, and others are not.
//! #     let many = futures_util::future::join_all((0..500).map(|_| send(9)));
//! #     assert!(many.await.contains(&429));
//! #     assert_eq!(send(10).await, 200);
//! #     Ok(())
//! # }
//! ```
//!
//! In a [configuration file](super::configuration):
//!
//! ```toml
//! [[route]]
//! path = "/print"
//!
//! [[route.policy]]
//! name = "printer"
//! algorithm = "leaky-queue"
//! limit = 10
//! per = "1s"
//! max-queue = 20
//! max-wait = "2s"
//! ```
//!
//! # Wait or reject?
//!
//! | wait if | reject if |
//! |---|---|
//! | requests will be served anyhow, and only arrive too close together: jobs, webhooks, a client's own bursts | the caller wants to know at once: a person at a screen |
//! | a downstream system counts by the second: a partner's API, a printer, mail | the caller can ask another server, or a cache |
//! | the wait is short compared to the caller's timeout | the caller's deadline is about as long as the wait |
//! | rejections are expensive: the upload would start again | waits are expensive: each holds a connection, memory, a transaction |
//!
//! A queue evens out bursts. It does not add capacity: if arrivals exceed the rate for longer than the longest wait,
//! the queue is full, every request waits for the longest time, and as many are rejected as without it. Keep queues
//! short. A full queue of half a second is a buffer; one of a minute is an outage that answers 200.
//!
//! Both work together: first a bucket per client, which rejects the clients that send too much, and behind it a queue
//! for all. Within a layer, policies that delay are evaluated last, so that no request waits only to be rejected.
//!
//! # How many: Little's law
//!
//! **L = λ × W**: the number of waiters is the number of departures per second (λ), times the seconds that each waits
//! (W). For one key, λ is the quota's rate. So choose the wait that clients accept, and compute the longest queue from
//! it:
//!
//! | rate λ | longest wait W | [`max_queue`](crate::LeakyQueue::max_queue) L |
//! |---|---|---|
//! | 10 per second | 2 s | 20 |
//! | 10 per second | 5 s | 50 |
//! | 200 per second | 0.5 s | 100 |
//! | 6 per minute | 30 s | 3 |
//!
//! Or the other way: a `max_queue` of 50 at 5 per second means that the last one waits for 10 s. Only one of the two
//! bounds, `max_queue` and [`max_wait`](crate::LeakyQueue::max_wait), is ever reached: a `max_queue` beyond λ × W is
//! never used. Unless set, `max_queue` is the quota's limit (a period's worth), and the longest wait 30 seconds.
//!
//! ```
//! use std::time::Duration;
//! use tower_sluice::{LeakyQueue, LimiterExt, PartitionKey, Quota};
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() {
//! let queue = LeakyQueue::new(Quota::per_second(10))
//!     .max_queue(50)
//!     .max_wait(Duration::from_secs(2));
//! let key = PartitionKey::from("printer");
//! let waiters: Vec<_> = (0..60).map(|_| queue.acquire(&key, 1)).collect();
//! // One departed at once, and λ × W = 20 wait; of `max_queue`, 30 are never used.
//! assert_eq!(queue.waiting(), 20);
//! # drop(waiters);
//! # }
//! ```
//!
//! **Over all keys together**, λ is the rate of all busy keys together, and W the mean wait. 300 busy clients at 10 per
//! second that wait for half a second are 300 × 10 × 0.5 = 1,500 requests, each with a connection, headers, and perhaps
//! a body in the buffers. [`max_waiters`](crate::LeakyQueue::max_waiters) bounds it: 65,536 unless set, which is much.
//! Check that your server, and its limit of file descriptors, can hold 65,536 open requests.
//!
//! **Keys without waiters** are remembered, too, until their departures are paid for: an interval after the last one,
//! at a cost of 1 and without a burst. [`max_keys`](crate::LeakyQueue::max_keys) bounds them: 65,536 unless set, which
//! is little for 1 per hour and many clients. Beyond it, requests of new keys are rejected until a key is forgotten;
//! [`when_full`](crate::LeakyQueue::when_full) has the other choices, and what each admits. The metrics
//! `table_live_keys`, `table_capacity` and `table_turned_away_total` show it, and the first such request is logged.
//!
//! # Proxies in front of a queue
//!
//! | a proxy that | has the effect that | so |
//! |---|---|---|
//! | gives up after its own timeout, often 60 s, and answers 504 | a request departs whose client is gone | keep `max_wait` well below every timeout in front of you |
//! | keeps its connection to you open when its client disconnects, or does not notice | the waiters of gone clients stay, and are served in vain | keep queues short; use a proxy that closes or resets |
//! | reads the whole request before it passes it on | the wait begins after the upload; a slow upload takes no slot | do nothing, that is good |
//! | keeps the number of its connections to you low | waiters use them up, and other requests wait for a connection | allow more connections than `max_waiters`, or use HTTP/2 |
//! | retries after timeouts or a 503 | one client has two waiters, and delays itself | disable retries at the proxy on limited routes, or set [`status(429)`](crate::Policy::status) |
//! | checks your health on a limited route | the check waits, times out, and takes your server out of rotation | exclude the check with [`when`](crate::Policy::when) |
//!
//! **Even without a proxy, disconnects go unnoticed.** Over HTTP/1, a server that does not read does not see the
//! connection close: if the client disconnects with its body unread, or with one byte more than its request, its waiter
//! stays until it departs (measured with hyper 1). Over HTTP/2, a reset is noticed. That is why no bound of
//! a queue is infinite by default: the bounds keep a queue short, and disconnecting clients do not.
//!
//! A waiter whose disconnect *is* noticed is removed at once, and all behind it move up. The queue charges nothing
//! for it.
//!
//! # A pace per customer
//!
//! [`quota_fn`](crate::Policy::quota_fn) gives each key a line at the rate of its own plan. Each response advertises
//! that quota.
//!
//! ```
//! use std::time::Duration;
//! use tower_sluice::key::User;
//! use tower_sluice::{LeakyQueue, Policy, Quota};
//!
//! /// What the customer has bought: an extension, which the authentication layer attaches to requests.
//! #[derive(Clone, Copy)]
//! struct Pace(Quota);
//!
//! // Without a plan, one per second. No request of any customer waits for more than five seconds.
//! let exports = LeakyQueue::new(Quota::per_second(1)).max_queue(50).max_wait(Duration::from_secs(5));
//! let policy = Policy::new("exports", exports)
//!     .key(User::key())
//!     .quota_fn(|request| request.extensions().get::<Pace>().map(|pace| pace.0));
//! # let app: axum::Router =
//! #     axum::Router::new().fallback(|| async { "hello" }).layer(tower_sluice::RateLimitLayer::new(policy));
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! #     let send = |user: &'static str, pace: Quota| {
//! #         let request = http::Request::get("/").extension(User::new(user)).extension(Pace(pace));
//! #         tower::ServiceExt::oneshot(app.clone(), request.body(axum::body::Body::empty()).unwrap())
//! #     };
//! #     let (slow, fast) = (Quota::per_hour(1), Quota::per_second(20));
//! #     assert_eq!(send("bob", slow).await.unwrap().status(), 200);
//! #     // Bob's next turn is an hour away, which is more than he may wait, and Ada's is 50 ms away.
//! #     let response = send("bob", slow).await.unwrap();
//! #     let policy = response.headers()["ratelimit-policy"].to_str().unwrap();
//! #     assert!(response.status() == 429 && policy.contains("w=3600"), "{policy}");
//! #     for response in futures_util::future::join_all((0..3).map(|_| send("ada", fast))).await {
//! #         assert_eq!(response.unwrap().status(), 200);
//! #     }
//! # });
//! ```
//!
//! After an upgrade, the next request of the customer moves the waiters up. After a downgrade, it rejects those whose
//! turn would come too late now: [the rules](crate::LeakyQueue#quotas-of-the-keys-own). Set a
//! [`max_queue`](crate::LeakyQueue::max_queue) that fits the fastest plan: it is one number for all.
//!
//! # Deadlines
//!
//! A gRPC request whose `grpc-timeout` ends before it would depart is rejected on arrival ([gRPC](super::grpc)). Other
//! callers of a limiter pass their deadline to [`Ask::within`](crate::limiter::Ask::within).
//!
//! # A queue for what you send
//!
//! A queue in front of a client paces outgoing calls: a partner allows five calls per second, so they depart every 200
//! ms.
//!
//! ```
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_sluice::{LeakyQueue, Policy, Quota};
//! use tower_sluice_client::{ThrottleError, ThrottleLayer};
//!
//! #[tokio::main]
//! async fn main() -> Result<(), ThrottleError<std::io::Error>> {
//!     let partner = service_fn(|order: u32| async move { Ok::<_, std::io::Error>(order) });
//!     let pace = LeakyQueue::new(Quota::per_second(5)).max_queue(25); // five seconds' worth
//!     let layer = ThrottleLayer::new(Policy::on("partner", pace));
//!     let mut partner = ServiceBuilder::new().layer(layer).service(partner);
//!
//!     let response = partner.ready().await?.call(7).await?;
//!     assert_eq!(response, 7);
//!     Ok(())
//! }
//! ```
//!
//! Set the quota below the partner's limit: its clock begins when your call arrives, and calls that depart
//! 200 ms apart may arrive closer together. Nine tenths is a common choice.
//!
//! If the partner speaks HTTP and reports its limits, a [`PacerLayer`] keeps to what it reports:
//! [partners](super::partners).
//!
//! More: [`LeakyQueue`], for its exact rules and costs; [several machines](super::machines#a-shared-queue), for one
//! that they share.
//!
//! Next: [slow clients down before they are rejected](super::slow_down).
//!
//! [`LeakyQueue`]: crate::LeakyQueue
//! [`PacerLayer`]: https://docs.rs/tower-sluice-client/latest/tower_sluice_client/struct.PacerLayer.html
