//! Call a partner: use an API that has a limit, and be rejected as rarely as possible.
//!
//! **You want** workers to call a partner's API as fast as it allows. When it rejects a call, all of them should pause
//! for the time that it asks for, and the call should not lose its place.
//!
//! A [`PacerLayer`] around your HTTP client does that. It reads the partner's limits from its responses, and knows
//! nothing else. A complete program:
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
//! use tower_sluice::layer::PacerError;
//! use tower_sluice::PacerLayer;
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
//! 1. It joins the line of its partner: the host and port of its URI, or the value that [`key`](crate::PacerLayer::key)
//!    makes of the request. If the partner counts by account, make a key of the account.
//! 2. It waits until it is the first, and its time has come.
//! 3. It is sent. The report in its response sets the pace of the calls behind it.
//! 4. If the partner rejects it (429, or 503 with `Retry-After`), the whole line pauses, and the call is the first in
//!    line again: three [attempts](crate::PacerLayer::attempts) in all. Then the caller gets the rejection as it is.
//!
//! A call with a body that is not `Clone` needs [`with_clone`](crate::PacerLayer::with_clone), to be sent again.
//!
//! Poll each call that you have made: a call whose turn has come, and whose future is not polled for 20 ms, is passed
//! over. It keeps its place, and departs when it is polled and the pace allows it.
//!
//! # With reqwest
//!
//! The layer goes around any service of `http::Request`. `reqwest` has requests of its own type, so a closure converts
//! them (tried with reqwest 0.12):
//!
//! ```no_run
//! use http::Request;
//! use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
//! use tower_sluice::PacerLayer;
//!
//! # mod reqwest {
//! #     pub type Error = std::io::Error;
//! #     pub struct Body;
//! #     pub struct Request;
//! #     impl TryFrom<http::Request<Vec<u8>>> for Request {
//! #         type Error = Error;
//! #         fn try_from(_: http::Request<Vec<u8>>) -> Result<Self, Error> { Ok(Self) }
//! #     }
//! #     pub struct Response;
//! #     impl From<Response> for http::Response<Body> {
//! #         fn from(_: Response) -> Self { Self::new(Body) }
//! #     }
//! #     impl From<http::Response<Body>> for Response {
//! #         fn from(_: http::Response<Body>) -> Self { Self }
//! #     }
//! #     impl Response {
//! #         pub async fn text(self) -> Result<String, Error> { Ok(String::new()) }
//! #     }
//! #     #[derive(Clone)]
//! #     pub struct Client;
//! #     impl Client {
//! #         pub fn new() -> Self { Self }
//! #         pub async fn execute(&self, _: Request) -> Result<Response, Error> { Ok(Response) }
//! #     }
//! # }
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let reqwest = reqwest::Client::new();
//!     let send = service_fn(move |request: Request<Vec<u8>>| {
//!         let reqwest = reqwest.clone();
//!         async move {
//!             let response = reqwest.execute(reqwest::Request::try_from(request)?).await?;
//!             Ok::<_, reqwest::Error>(http::Response::<reqwest::Body>::from(response))
//!         }
//!     });
//!     let mut partner = ServiceBuilder::new().layer(PacerLayer::new()).service(send);
//!
//!     let request = Request::get("https://partner.example/orders").body(Vec::new())?;
//!     let response = reqwest::Response::from(partner.ready().await?.call(request).await?);
//!     println!("{}", response.text().await?);
//!     Ok(())
//! }
//! ```
//!
//! If the partner's limit is known and its responses report nothing, no layer is needed: await
//! [`acquire`](super::direct#a-job) of a queue before each call.
//!
//! # What a partner reports, and what you set
//!
//! | the partner sends | the layer | you set |
//! |---|---|---|
//! | `RateLimit` (draft-11 or draft-07), or `X-RateLimit-*` | spreads what is left over the time to the reset | nothing |
//! | only a 429 with `Retry-After` | pauses after each rejection, and sends at will in between | [`quota`](crate::PacerLayer::quota), as its documentation says |
//! | only a bare 429 | pauses for a second | the same |
//! | in gRPC: `grpc-status: 8` in the head, and `grpc-retry-pushback-ms` | pauses for as long; a status in trailers is not read | the same |
//!
//! The quota of yours applies in any case. It begins with a full burst, if you set one; without, calls are evenly
//! spaced.
//!
//! # A short burst is spread, too
//!
//! With 4,990 calls left for an hour, ten calls at once leave over seven seconds: the layer does not know that no other
//! call will follow. Calls that must not wait need a client of their own, without the layer, or a key of their own with
//! [`quota`](crate::PacerLayer::quota).
//!
//! # Several processes
//!
#![cfg_attr(feature = "redis", doc = "```no_run")]
#![cfg_attr(not(feature = "redis"), doc = "```ignore")]
//! use tower_sluice::store::redis::Redis;
//! use tower_sluice::PacerLayer;
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
//! `scripts/partner` has eight processes call the example server for as much as it allows, through one Redis, and
//! prints the rejections and the share of the quota that was used. In two minutes on two busy cores, none of 11,963
//! calls was rejected; of 1,000 calls in each window of ten seconds 99.3 % were used, and of a bucket at 100 per
//! second, all that came in. Tests do the same with simulated partners and latencies (`src/http/pacer/tests.rs`).
//!
//! More: [queues](super::queue#a-queue-for-what-you-send), if you know the partner's limit and its protocol is not
//! HTTP.
//!
//! Next: [limits in a file](super::configuration).
//!
//! [`PacerLayer`]: crate::PacerLayer
