//! In a handler, a job, a WebSocket: limiters without the layer.
//!
//! **You want** to limit something that is not a whole request: one branch of a handler, an operation of GraphQL, jobs
//! of a worker, messages on a connection. A limiter answers one question: may this key have this many units now?
//! [`Limits`](crate::direct::Limits) answer it by several policies, on values of your own.
//!
//! ```
//! use tower_sluice::{PartitionKey, Quota, RateLimiter, TokenBucket};
//!
//! let limiter = RateLimiter::in_memory(TokenBucket::new(Quota::per_minute(2)));
//! let ada = PartitionKey::from("ada");
//!
//! assert!(limiter.check(&ada).is_allowed());
//! assert_eq!(limiter.check(&ada).remaining(), 0);
//! let rejected = limiter.check(&ada);
//! assert!(!rejected.is_allowed());
//! assert!(rejected.retry_after().is_some_and(|wait| wait.as_secs() < 30)); // exact: a token every half minute
//! ```
//!
//! | limiter | ask by | decides |
//! |---|---|---|
//! | an algorithm in memory | [`check`](crate::RateLimiter::check) | at once, and cannot fail |
//! | the same with a cost; on Redis; a queue | [`acquire`](crate::LimiterExt::acquire)`(&key, cost).await` | at once, after a round trip, or when it is its turn |
//! | what is in flight | `acquire`, `acquire_owned`, or [`Concurrency::try_acquire`](crate::Concurrency::try_acquire) | with a permit, which holds the units until it is dropped |
//! | the same, to look without charging | [`peek`](crate::LimiterExt::peek)`(&key, cost).await` | as above. A [`SharedQueue`](crate::SharedQueue) and a [`SharedConcurrency`](crate::SharedConcurrency) cannot: an error, and nothing is reserved or taken |
//! | the same, to forget what a key owes | [`reset`](crate::LimiterExt::reset)`(&key).await` | as above. A [`RateLimiter`](crate::RateLimiter) can; queues and limits of requests in flight cannot |
//!
//! A rejection is not an error: it is a [`Decision`](crate::Decision), with the wait. An `acquire` that is dropped
//! while it waits leaves the queue. A limiter is shared by an `Arc`, or as a field of a value that is shared anyway.
//!
//! # Jobs, by policies
//!
//! A limiter is one limit. If a job must pass several of them, take [`Limits`](crate::direct::Limits): policies as a
//! layer has them, on a type of your own. A value is charged to all policies or to none. They have names, metrics,
//! bans, alternatives, and are replaced while they run.
//!
//! ```
//! use tower_sluice::direct::Limits;
//! use tower_sluice::{Concurrency, Policy, Quota, SlidingWindow};
//!
//! struct Export {
//!     customer: u64,
//!     expected_rows: u64,
//! }
//!
//! /// Each customer has 100,000 rows an hour, and two exports at a time.
//! fn limits() -> Limits<Export> {
//!     let rows = Policy::on("rows", SlidingWindow::new(Quota::per_hour(100_000)))
//!         .key_by(|export: &Export| export.customer)
//!         .cost_fn(|export| export.expected_rows)
//!         .settle_by_handler()
//!         .owe_shortfalls();
//!     let in_flight = Policy::on("in-flight", Concurrency::new(2)).key_by(|export: &Export| export.customer);
//!     Limits::new([rows, in_flight])
//! }
//!
//! async fn run(limits: &Limits<Export>, export: Export) {
//!     let admission = match limits.decide(&export).await {
//!         Ok(admission) => admission,
//!         Err(rejected) if rejected.may_retry() => {
//!             // Back into the queue. No time is known if two exports of this customer run.
//!             let wait = rejected.retry_after().unwrap_or(std::time::Duration::from_secs(5));
//!             println!("{rejected}: export of {} again in {wait:?}", export.customer);
//!             return;
//!         }
//!         // More rows than are ever admitted at once.
//!         Err(rejected) => return println!("{rejected}"),
//!     };
//!     let rows = 40_000; // what it turned out to be
//!     admission.settle_all(rows);
//!     admission.finish();
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let limits = limits();
//! run(&limits, Export { customer: 7, expected_rows: 90_000 }).await;
//! let left = limits.peek("rows", "7").await.unwrap().decision().remaining();
//! assert_eq!(left, 60_000);
//! # }
//! ```
//!
//! - **An [`Admission`](crate::direct::Admission) holds the units in flight.**
//!   [`finish`](crate::direct::Admission::finish) it, or [`fail`](crate::direct::Admission::fail) it; dropped, as by a
//!   panic or a cancelled task, it is over too.
//! - **Costs may change** until then: [`settle_all`](crate::direct::Admission::settle_all), or a
//!   [`Meter`](crate::policy::Meter) of its [`settlement`](crate::direct::Admission::settlement) for a stream. Take
//!   [`owe_shortfalls`](crate::Policy::owe_shortfalls) along: without it, what a key uses beyond the units that are
//!   left is forgiven, and if each job turns out to cost more than its estimate, the quota is hardly a limit.
//! - **Charges that depend on the result**: [`Policy::with_outcome`](crate::Policy::with_outcome),
//!   [`charge_when`](crate::Policy::charge_when), and
//!   [`finish_with`](crate::direct::Admission::finish_with)`(&result)`.
//! - **`decide` waits** for a server, and for its turn in a queue; otherwise it is ready at once, and
//!   [`at_once`](crate::direct::Deciding::at_once) needs no `await`. Dropped while it waits, a value leaves the queue,
//!   and what other policies have charged for it stays charged.
//! - **A quota of an operator** goes through [`Quota::try_per`](crate::Quota::try_per) and
//!   [`Limits::try_new`](crate::LimitsHandle::try_new), which return errors.
//!   [`replace`](crate::LimitsHandle::replace)`(policies)` changes it while jobs run, and keys keep what they have
//!   used.
//!
//! # A handler
//!
//! The cost of this one is in its body, which no layer reads:
//!
#![cfg_attr(feature = "axum", doc = "```")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! use std::sync::Arc;
//!
//! use axum::extract::State;
//! use axum::http::HeaderMap;
//! use axum::{Extension, Router, routing::post};
//! use tower_sluice::headers::{DecisionFields, RateLimitFields};
//! use tower_sluice::key::User;
//! use tower_sluice::limiter::IntoLimiter;
//! use tower_sluice::{Limiter, LimiterExt, PartitionKey, Quota, Rejection};
//!
//! #[derive(Clone)]
//! struct App {
//!     rows: Arc<dyn Limiter>,
//!     fields: DecisionFields,
//! }
//!
//! /// A `LimiterError`, as of a limiter on Redis, becomes 503 by the first `?`, without a line in the log. A rejection
//! /// becomes 429 by the second one, with `Retry-After`; or without it, if that many rows are never admitted at once.
//! async fn import(
//!     State(app): State<App>,
//!     Extension(user): Extension<User>,
//!     body: String,
//! ) -> Result<(HeaderMap, String), Box<Rejection>> {
//!     let rows = body.lines().count() as u64;
//!     let permit = app.rows.acquire(&PartitionKey::from(user.id()), rows).await?;
//!     let permit = Rejection::unless_allowed("rows", permit)?;
//!     Ok((app.fields.of(&permit), format!("{rows} rows\n")))
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let rows = Quota::per_hour(10_000).burst(1_000).into_limiter();
//! let fields = DecisionFields::new(RateLimitFields::draft11(), "rows", &*rows);
//! let app: Router = Router::new().route("/import", post(import)).with_state(App { rows, fields });
//! # use tower::ServiceExt;
//! # let send = async |rows: usize| {
//! #     let mut request = http::Request::post("/import").body(axum::body::Body::from("row\n".repeat(rows))).unwrap();
//! #     request.extensions_mut().insert(User::new("ada"));
//! #     let response = app.clone().oneshot(request).await.unwrap();
//! #     (response.status().as_u16(), response.headers().get("retry-after").is_some())
//! # };
//! # assert_eq!(send(900).await, (200, false));
//! # assert_eq!(send(900).await, (429, true));
//! # assert_eq!(send(1_001).await, (429, false));
//! # assert_eq!(send(100).await, (200, false));
//! # }
//! ```
//!
//! To *know* the remaining units, a handler need not ask: with
//! [`verdict`](crate::layer::RateLimitLayerBuilder::verdict) on the layer, it takes a [`Verdict`](crate::Verdict) as an
//! argument.
//!
//! A layer may be enough: it can charge what the handler [reports](crate::Policy::settle_by_handler), and a middleware
//! can read a body and put values [into the request](super::login).
//!
//! # Jobs that wait
//!
//! Jobs may wait instead of being rejected: a [`Concurrency`](crate::Concurrency) bounds how many run at once, and a
//! [`LeakyQueue`](crate::LeakyQueue) lets them depart evenly spaced and in order. Wait for the pace last: a job that
//! waits for anything after its turn starts later than that, at the same instant as others perhaps.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//! use tower_sluice::{Concurrency, LeakyQueue, LimiterError, LimiterExt, PartitionKey, Quota};
//!
//! /// Returns whether the letter was sent. If not, put it back and come again later.
//! async fn send(letter: u32, pace: &LeakyQueue, senders: &Concurrency) -> Result<bool, LimiterError> {
//!     let key = PartitionKey::from("mail");
//!     let Some(_permit) = senders.acquire(&key, 1).await?.admitted() else { return Ok(false) };
//!     let turn = pace.acquire(&key, 1).await?;
//!     if !turn.is_allowed() {
//!         println!("letter {letter}: not before {:?} have passed", turn.retry_after());
//!         return Ok(false);
//!     }
//!     println!("sending letter {letter}");
//!     Ok(true) // the permit goes out of scope here, as it would by a panic
//! }
//!
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Ten per second; a job that would wait for more than a minute for a sender is put back. The queue itself never has
//! // more than four waiters here; by itself, it takes as many as depart in a period, and 30 s, unless set otherwise.
//! let pace = Arc::new(LeakyQueue::new(Quota::per_second(10)));
//! let senders = Arc::new(Concurrency::new(4).max_queue(1_000).max_wait(Duration::from_secs(60)));
//! let mut jobs = tokio::task::JoinSet::new();
//! for letter in 0..1_000 {
//!     let (pace, senders) = (Arc::clone(&pace), Arc::clone(&senders));
//!     jobs.spawn(async move { send(letter, &pace, &senders).await });
//! }
//! let mut sent = 0;
//! while let Some(job) = jobs.join_next().await {
//!     sent += u32::from(job??);
//! }
//! assert!((601..=605).contains(&sent)); // one at once, 600 in a minute, and those that have a permit by then
//! # Ok(())
//! # }
//! ```
//!
//! A job that is cancelled while it waits leaves its line. One that has had its turn, and does nothing with it, gives
//! it back by [`Permit::refund`](crate::limiter::Permit::refund): the next in line then departs at once, if that
//! departure was the last. To join the line at once and wait in another task, call
//! [`acquire_owned`](crate::LimiterExt::acquire_owned) and move the future into the task.
//!
//! An `acquire` that fails, because a server cannot be reached, does not fall back: only policies do. Ask
//! [`Mode::Fallback`](crate::limiter::Mode::Fallback) yourself, or treat the error as a rejection.
//!
//! Around a Tower service of jobs, a [`ThrottleLayer`] does the same by policies. For workers on several machines, the
//! queue is a [`SharedQueue`](super::machines#a-shared-queue).
//!
//! # A WebSocket
//!
//! The layer limits how many connections are opened, and, with the permits taken along, how many are open. Messages are
//! values of policies: here, each address (of IPv6, each network, as `PeerIp` counts) may send so many, and so many
//! bytes. An address that goes on all the same is banned, and its connection closed. A policy counts for its ban only
//! what it rejects itself, so both have a penalty. (The program needs the crate feature `axum`.)
//!
#![cfg_attr(feature = "axum", doc = "```no_run")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! use std::net::SocketAddr;
//! use std::time::Duration;
//!
//! use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
//! use axum::extract::{ConnectInfo, State};
//! use axum::response::Response;
//! use axum::{Router, routing::any};
//! use tower_sluice::direct::Limits;
//! use tower_sluice::key::{IpNetwork, PeerIp};
//! use tower_sluice::rejection::Reason;
//! use tower_sluice::{Concurrency, Penalty, Permits, Policy, Quota, RateLimitLayer};
//!
//! struct Said {
//!     by: IpNetwork,
//!     bytes: u64,
//! }
//!
//! fn messages() -> Limits<Said> {
//!     let penalty = || Penalty::new(Quota::per_minute(10), Duration::from_secs(600));
//!     let messages = Policy::on("messages", Quota::per_second(5).burst(20))
//!         .key_by(|said: &Said| said.by)
//!         .penalty(penalty());
//!     let bytes = Policy::on("bytes", Quota::per_minute(100_000))
//!         .key_by(|said: &Said| said.by)
//!         .cost_fn(|said| said.bytes)
//!         .penalty(penalty());
//!     Limits::new([messages, bytes])
//! }
//!
//! async fn chat(
//!     upgrade: WebSocketUpgrade,
//!     permits: Permits,
//!     ConnectInfo(peer): ConnectInfo<SocketAddr>,
//!     State(messages): State<Limits<Said>>,
//! ) -> Response {
//!     // The response to the upgrade ends at once, and the connection lives on: it holds what the request held.
//!     let held = permits.take();
//!     upgrade.on_upgrade(move |socket| async move {
//!         talk(socket, &messages, IpNetwork::of(peer.ip(), 64)).await;
//!         drop(held);
//!     })
//! }
//!
//! async fn talk(mut socket: WebSocket, messages: &Limits<Said>, by: IpNetwork) {
//!     while let Some(Ok(message)) = socket.recv().await {
//!         // axum answers pings and closes by itself.
//!         let bytes = match &message {
//!             Message::Text(text) => text.len() as u64,
//!             Message::Binary(data) => data.len() as u64,
//!             Message::Ping(_) | Message::Pong(_) | Message::Close(_) => continue,
//!         };
//!         let answer = match messages.decide(&Said { by, bytes }).await {
//!             Ok(admission) => {
//!                 admission.finish();
//!                 message
//!             }
//!             Err(rejected) => match rejected.retry_after() {
//!                 Some(wait) if !matches!(rejected.reason(), Reason::Banned | Reason::BannedByHand) => {
//!                     let wait = wait.as_millis() + 1;
//!                     Message::text(format!(r#"{{"error":"slow down","retry_after_ms":{wait}}}"#))
//!                 }
//!                 // Banned, or a message longer than all bytes of a minute: 1008, "policy violation".
//!                 _ => Message::Close(Some(CloseFrame { code: close_code::POLICY, reason: "slow down".into() })),
//!             },
//!         };
//!         if socket.send(answer).await.is_err() {
//!             return;
//!         }
//!     }
//! }
//!
//! #[tokio::main]
//! async fn main() -> std::io::Result<()> {
//!     let connections = RateLimitLayer::new([
//!         Policy::new("opened", Quota::per_minute(30)).key(PeerIp::new()),
//!         Policy::new("open", Concurrency::new(5)).key(PeerIp::new()),
//!     ]);
//!     let app = Router::new().route("/chat", any(chat)).layer(connections).with_state(messages());
//!
//!     let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//!     axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await
//! }
//! ```
//!
//! The limit is per address here, over all of its connections. Per connection, put the connection's number into the
//! value, and make the key of it. A rejected message counts for neither policy.
//!
//! # A request that no layer sees
//!
//! The policies of a layer decide on a request without its service, too: on each message of the connection that it
//! opened, say, or on a request that a proxy asks about. They charge the same budgets.
//!
//! ```
//! use tower_sluice::key::HeaderKey;
//! use tower_sluice::{Policy, Quota, RateLimitLayer};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let layer = RateLimitLayer::new(Policy::new("api", Quota::per_hour(2)).key(HeaderKey::from_static("x-api-key")));
//! let limits = layer.handle();
//!
//! let (head, ()) = http::Request::builder().header("x-api-key", "ada").body(()).unwrap().into_parts();
//! assert!(limits.decide(&(&head).into()).await.is_ok());
//! assert!(limits.decide(&(&head).into()).await.is_ok());
//! let rejection = limits.decide(&(&head).into()).await.unwrap_err();
//! assert_eq!(rejection.status(), 429);
//! # }
//! ```
//!
//! A server that is no tower service, or a gateway that asks about requests, answers as the layer would by
//! [`answer`](crate::LimitsHandle::answer): with its fields, its format and its jitter.
//!
//! # Operators
//!
//! The [admin page] shows and changes the limits of layers and of jobs: `Admin::new([("api",
//! layer.handle())]).with("jobs", jobs)`. For a page of your own, [`Operate`](crate::policy::Operate) has the calls of
//! both. [`Limits::builder`](crate::LimitsHandle::builder) names limits in metrics, calls a hook when a key begins to
//! be limited, and finds two of a thousand policies by [marks](crate::direct::LimitsBuilder::marks).
//!
//! # A job that comes over HTTP
//!
//! A handler of axum that returns `Result<_, Box<Rejection>>` writes `limits.decide(&job).await?`: a rejected job is
//! answered 429 with `Retry-After`, or [another status](crate::Rejection) by its reason.
//!
//! ```
//! use axum::Json;
//! use axum::extract::State;
//! use tower_sluice::Rejection;
//! use tower_sluice::direct::Limits;
//!
//! async fn submit(
//!     State(limits): State<Limits<u64>>,
//!     Json(customer): Json<u64>,
//! ) -> Result<&'static str, Box<Rejection>> {
//!     let admission = limits.decide(&customer).await?;
//!     // Until the job is over, it would be kept beside it.
//!     admission.finish();
//!     Ok("accepted")
//! }
//! # drop(axum::routing::post::<_, _, Limits<u64>>(submit));
//! ```
//!
//! [admin page]: https://docs.rs/tower-sluice-admin
//!
//! Next: [call a partner that has limits](super::partners).
//!
//! [`ThrottleLayer`]: https://docs.rs/tower-sluice-client/latest/tower_sluice_client/struct.ThrottleLayer.html
