//! Call a partner: use an API that has a limit, and be rejected as rarely as possible.
//!
//! **You want** workers to call a partner's API as fast as it allows. When it rejects a call, all of them should pause
//! for the time that it asks for, and the call should not lose its place.
//!
//! A [`PacerLayer`], of the package [`tower-sluice-client`](https://docs.rs/tower-sluice-client), around your HTTP client
//! does that. It reads the partner's limits from its responses, and knows nothing else.
//!
//! # With reqwest
//!
//! With the feature `reqwest` of `tower-sluice-client`, the layer is a middleware of
//! [`reqwest-middleware`](https://docs.rs/reqwest-middleware), beside `reqwest-retry` and `reqwest-tracing`:
//!
//! ```toml
//! tower-sluice-client = { version = "0.1", features = ["reqwest"] }
//! reqwest = "0.13"
//! reqwest-middleware = "0.5"
//! ```
//!
//! ```no_run
//! use tower_sluice_client::PacerLayer;
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let client = reqwest_middleware::ClientBuilder::new(reqwest::Client::new()).with(PacerLayer::reqwest()).build();
//!     let response = client.get("https://partner.example/orders").send().await?;
//!     println!("{}", response.text().await?);
//!     Ok(())
//! }
//! ```
//!
//! It is a Tower layer, too: `PacerLayer::reqwest().layer(reqwest::Client::new())` is a service of `reqwest::Request`,
//! with `oneshot(request)`. A body that is a stream cannot be sent again. After a redirect, the answer is booked on the
//! host that gave it. A call that was not sent fails with a [`PacerError`], which [`PacerError::find`] returns, also
//! from inside of `reqwest-retry`. The feature adds `reqwest` without its default features (no TLS: your program
//! chooses), `reqwest-middleware` and `async-trait`, and to a program that has these nothing.
//!
//! With reqwest 0.12, convert the requests in a `tower::service_fn`: `reqwest::Request::try_from(request)`, and
//! `http::Response::from(response)`.
//!
//! # A complete program
//!
//! With hyper's client:
//!
//! ```no_run
//! use std::error::Error;
//! use std::time::Duration;
//!
//! use bytes::Bytes;
//! use http::Request;
//! use http_body_util::Full;
//! use hyper_util::client::legacy::Client;
//! use hyper_util::rt::TokioExecutor;
//! use tower::{Service, ServiceBuilder, ServiceExt};
//! use tower_sluice_client::{PacerError, PacerLayer};
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn Error>> {
//!     let http = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
//!     let pacer = PacerLayer::new().max_wait(Duration::from_secs(120)).max_waiters(5_000);
//!     let mut client = ServiceBuilder::new().layer(pacer).service(http);
//!
//!     let mut calls = tokio::task::JoinSet::new();
//!     for order in 0..1_000 {
//!         let request = Request::get(format!("http://partner.example/orders/{order}")).body(Full::default())?;
//!         // A call joins the line here; spawned, it waits in the background.
//!         calls.spawn(client.ready().await?.call(request));
//!     }
//!     while let Some(call) = calls.join_next().await {
//!         match call? {
//!             Ok(response) => println!("{}", response.status()),
//!             // Put the job back, and come again later.
//!             Err(PacerError::WaitTooLong { retry_after, .. }) => println!("not within two minutes: {retry_after:?}"),
//!             Err(error) => println!("{error}"),
//!         }
//!     }
//!     Ok(())
//! }
//! ```
//!
//! # What happens to a call
//!
//! 1. It joins the line of its partner: the host and port of its URI, or the value that [`key`] makes of the request.
//!    If the partner counts by account, make a key of the account. tonic's client names no host: each channel that you
//!    wrap has a line of its own.
//! 2. It waits until it is the first, and its time has come.
//! 3. It is sent. The report in its response sets the pace of the calls behind it.
//! 4. If the partner rejects it (429, or 503 or 403 with `Retry-After`; [`WaitStatuses`] has the table, and you can
//!    change it), the whole line pauses, and the call is the first in line again, until [`max_wait`] is over. Then the
//!    caller gets the rejection as it is.
//!
//! A call with a body that is not `Clone` needs [`with_clone`], to be sent again.
//!
//! Poll each call that you have made: a call whose turn has come, and whose future is not polled for 20 ms, is passed
//! over. It keeps its place, and departs when it is polled and the pace allows it.
//!
//! If the partner's limit is known and its responses report nothing, no layer is needed: await
//! [`acquire`](super::direct#a-job) of a queue before each call.
//!
//! # What a partner reports, and what you set
//!
//! | the partner sends | the layer | you set |
//! |---|---|---|
//! | `RateLimit` (any draft), `X-RateLimit-*`, `X-Rate-Limit-*` and kin | spreads what is left over the time to the reset | nothing |
//! | only a 429 with `Retry-After` | pauses for as long, and [learns the pace](#a-partner-that-only-rejects) | the quota, if you know it |
//! | only a bare 429 | the same, with pauses of its own | the quota, if you know it |
//! | another status, such as 403 | the same, if it states a wait | [`wait_statuses`](https://docs.rs/tower-sluice-client/latest/tower_sluice_client/struct.PacerLayer.html#method.wait_statuses), for others |
//! | in gRPC: `grpc-status: 8` in the head, and `grpc-retry-pushback-ms` | pauses for as long; a status in trailers is not read | the same |
//!
//! The quota of yours applies in any case. It begins with a full burst, if you set one; without, calls are evenly
//! spaced.
//!
//! # A partner that only rejects
//!
//! From rejections, the layer learns a pace, as TCP does: slower with each rejection, and a little faster with each
//! call that is accepted. At first and after each pause, one call goes alone; at first, two follow, then four, and so
//! on. So 200 calls at once to a partner of 20 per second are all served, and about 20 of them are rejected once
//! (`crates/client/tests/client/pacer_wave.rs`).
//!
//! Processes that know nothing of each other share the partner's quota in this way. Rejections per thousand calls that
//! were served, and the share of the quota that was used, for clients with ten calls each to make at any time
//! (`crates/client/src/pacer/tests/contest.rs`, up to ten minutes simulated):
//!
//! | the partner's quota, eight clients | retry after 1 s | backoff with full jitter | pacer |
//! |---|---|---|---|
//! | 100 per 10 s | 7,600 (100 %) | 628 (100 %) | 66 (94 %) |
//! | 60 per minute | 76,000 (100 %) | 3,566 (100 %) | 557 (98 %) |
//! | 1,000 per minute | 4,517 (100 %) | 261 (100 %) | 90 (100 %) |
//! | 100 per second, burst 100 | 709 (100 %) | 586 (100 %) | 24 (100 %) |
//! | 10 per second, burst 20 | 7,471 (101 %) | 2,126 (100 %) | 31 (99 %) |
//!
//! Backoff waits for a random time up to 1, 2, 4, … 64 seconds. The pacer's calls keep their order, too.
//!
//! # When a partner fails
//!
//! No pace helps against a partner that is down: each call fails, and most fail late, with their timeout. Have the
//! layer reject them at once, and send it just enough to notice that it is back:
//!
//! ```
//! use tower_sluice_client::{AdaptiveThrottle, PacerLayer};
//!
//! # type Body = http_body_util::Full<bytes::Bytes>;
//! let layer = PacerLayer::<Body>::new().throttle(AdaptiveThrottle::new()).name("orders");
//! ```
//!
//! Then `PacerError::Throttled` means: this call has not left the process. Answer from a cache, put the job back, or
//! leave the feature out. While the partner accepts at least half of the calls of two minutes, nothing is rejected; if
//! it accepts less, it gets about twice as many as it accepts; and one per second in any case. Once that one is
//! accepted, their number doubles every second until all are sent, so that a partner that recovers is not overrun. Each
//! partner is judged by itself. Failures are 429, 5xx, errors and timeouts: the table is at
//! [`AdaptiveThrottle`].
//!
//! It is off unless set. A program that does not expect this error treats it as the partner's, and would retry the
//! more.
//!
//! A timeout belongs *inside* of the layer (reqwest's own, for example): the wait in line is not the partner's fault.
//! One around it works as well: a call that is dropped after it was sent counts as failed.
//!
//! # A short burst is spread, too
//!
//! With 4,990 calls left for an hour, ten calls at once leave over seven seconds: the layer does not know that no other
//! call will follow. Calls that must not wait need a client of their own, without the layer, or a key of their own with
//! [`quota`].
//!
//! # Several processes
//!
//! ```no_run
//! use tower_sluice_redis::Redis;
//! use tower_sluice_client::PacerLayer;
//!
//! # type Body = http_body_util::Full<bytes::Bytes>;
//! let redis = Redis::open("redis://10.0.0.7:6379")?;
//! let pacer = PacerLayer::<Body>::new().shared(&redis, "partners");
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! Each process gets the reports of all: eight processes share the remaining calls, and a pause holds for all. A call
//! costs one round trip to Redis before it departs, or two if it has to wait for its time, and one after its response.
//! While Redis is out of reach, each process follows the responses that it sees itself.
//!
//! Calls keep their order within a process. Between processes, the first in each line depart in the order in which they
//! reach Redis.
//!
//! # How well it works
//!
//! `scripts/ci/partner` has eight processes call the example server for as much as it allows, through one Redis, and
//! prints the rejections and the share of the quota that was used. In two minutes on two busy cores, none of 11,963
//! calls was rejected; of 1,000 calls in each window of ten seconds 99.3 % were used, and of a bucket at 100 per
//! second, all that came in. Tests do the same with simulated partners and latencies
//! (`crates/client/src/pacer/tests.rs`).
//!
//! More: [queues](super::queue#a-queue-for-what-you-send), if you know the partner's limit and its protocol is not
//! HTTP.
//!
//! Next: [limits in a file](super::configuration).
//!
//! [`PacerLayer`]: https://docs.rs/tower-sluice-client/latest/tower_sluice_client/struct.PacerLayer.html
//! [`WaitStatuses`]: https://docs.rs/tower-sluice-client/latest/tower_sluice_client/struct.WaitStatuses.html
//! [`AdaptiveThrottle`]: https://docs.rs/tower-sluice-client/latest/tower_sluice_client/struct.AdaptiveThrottle.html
//! [`PacerError::find`]: https://docs.rs/tower-sluice-client/latest/tower_sluice_client/enum.PacerError.html#method.find
//! [`PacerError`]: https://docs.rs/tower-sluice-client/latest/tower_sluice_client/enum.PacerError.html
//! [`key`]: https://docs.rs/tower-sluice-client/latest/tower_sluice_client/struct.PacerLayer.html#method.key
//! [`max_wait`]: https://docs.rs/tower-sluice-client/latest/tower_sluice_client/struct.PacerLayer.html#method.max_wait
//! [`quota`]: https://docs.rs/tower-sluice-client/latest/tower_sluice_client/struct.PacerLayer.html#method.quota
//! [`with_clone`]: https://docs.rs/tower-sluice-client/latest/tower_sluice_client/struct.PacerLayer.html#method.with_clone
