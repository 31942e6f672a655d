//! Overload: keep a server fast when more requests arrive than it can serve.
//!
//! **You want** a server that still works at full speed when the load is ten times its capacity. [`Overload`] bounds
//! the requests in flight by one limit for the whole server, which it finds itself. It counts **units**: one for each
//! request, or its [cost](crate::Policy::cost_fn). A few requests wait for their turn, and the others are rejected
//! (*shed*) while there is still time to ask another server:
//!
#![cfg_attr(feature = "axum", doc = "```")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! use axum::{Router, routing::get};
//! use tower_sluice::{Exemptions, Overload, Policy, RateLimitLayer};
//!
//! fn app() -> Result<Router, Box<dyn std::error::Error>> {
//!     let overload = Policy::new("overload", Overload::new()).exempt(Exemptions::new().path("/healthz")?);
//!     Ok(Router::new()
//!         .route("/report", get(|| async { "a long table" }))
//!         .route("/healthz", get(|| async { "ok" }))
//!         .layer(RateLimitLayer::new(overload))) // The last layer is the outermost.
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     # return check().await;
//!     # #[allow(unreachable_code)] {
//!     let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//!     axum::serve(listener, app()?).await?;
//!     Ok(())
//!     # }
//! }
//! #
//! # async fn check() -> Result<(), Box<dyn std::error::Error>> {
//! #     use tower::ServiceExt;
//! #     for path in ["/report", "/healthz"] {
//! #         let request = http::Request::get(path).body(axum::body::Body::empty())?;
//! #         assert_eq!(app()?.oneshot(request).await?.status(), 200);
//! #     }
//! #     Ok(())
//! # }
//! ```
//!
//! In a [configuration file](super::configuration), list the paths of one route, since each route has a limit of its
//! own:
//!
//! ```toml
//! [[route]]
//! path = ["/report", "/export", "/orders/{id}"]
//!
//! [[route.policy]]
//! name = "overload"
//! algorithm = "overload"
//! # All of these have defaults:
//! limits = [2, 1024]
//! starting-at = 20
//! queue-target = "20ms"
//! max-wait = "500ms"
//! max-queue = 1024
//! ```
//!
//! Two more pages continue this one: [shares between
//! tenants](super::tenants), and [priorities](super::priorities).
//!
//! # What overload is
//!
//! A server is overloaded when more requests arrive than it finishes. The difference waits inside the server, in run
//! queues and connection pools, and every later request waits behind it. A second later, the server works at full speed
//! on requests whose clients have given up, and no client gets an answer in time.
//!
#![doc = include_str!("overload/goodput.svg")]
//!
//! The picture is a [simulation](#measured) of a server with two workers, which serves 400 requests per second. A fixed
//! limit of 20 in flight protects it as well, and a fixed limit of 80 does not: 80 requests take 200 ms. The right
//! number changes with each deployment, machine and slow database, so `Overload` finds it while the server runs.
//!
//! A real run, of the example server under k6 (`scripts/demo overload`; one worker, 20 ms for each request, on a
//! machine that others shared):
//!
#![doc = include_str!("shapes/goodput.svg")]
//!
//! A [rate limit](super::start) does not replace it. That protects the quota of a client, and ten thousand clients
//! within their quotas overload a server, too.
//!
//! # What clients see
//!
//! ```text
//! HTTP/1.1 503 Service Unavailable
//! content-type: application/problem+json
//! retry-after: 7
//! cache-control: no-store
//!
//! {"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
//!  "title":"Temporary Reduced Capacity","status":503,
//!  "detail":"The server is overloaded; retry in 7 seconds.","violated-policies":["overload"]}
//! ```
//!
//! - The status is **503**, since the client has done nothing wrong. A load balancer may send the request to another
//!   machine, once.
//! - `Retry-After` is an **estimate**: the time in which the server would have served the requests that were before
//!   this one, 30 seconds at most. It is absent if that time is below a second or unknown: until the
//!   [exact search](#how-the-limit-is-found) has measured it, and if a [worker lags](#handlers-that-compute). All other
//!   waits of this crate are exact.
//! - gRPC clients get UNAVAILABLE, with `grpc-retry-pushback-ms` if there is an estimate.
//! - [A response of your own](super::rejections) recognises it by
//!   [`Reason::Overloaded`](crate::rejection::Reason::Overloaded).
//!
//! # Together with rate limits
//!
//! Put both into **one layer**, in any order. A request that a rate limit rejects takes no place in the queue. A
//! request that is shed is charged to no quota. If both reject, the client gets 429 with the exact wait of the rate
//! limit.
//!
#![cfg_attr(feature = "axum", doc = "```")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! use tower_sluice::key::PeerIp;
//! use tower_sluice::{Overload, Policy, Quota, RateLimitLayer};
//!
//! let layer = RateLimitLayer::new([
//!     Policy::new("per-client", Quota::per_second(50)).key(PeerIp::new()),
//!     Policy::new("overload", Overload::new()),
//! ]);
//! ```
//!
//! In two layers, a request that the inner one sheds has already paid for the outer one.
//!
//! # Where to put it
//!
//! - **Outside of all work.** Work in an outer layer is not bounded: the parsing of a body, a look-up in a database, a
//!   call to another service. Tracing and CORS belong outside. Authentication belongs outside only if the
//!   [key](super::tenants) or the [class](super::priorities) of a request depends on it, and then it should be cheap.
//! - **Once for each kind of handlers.** Two `Overload`s on one machine each find a limit, and each takes the requests
//!   of the other for a slower machine. Routers that need layers of their own [share an
//!   `Arc<Overload>`](super::sharing). Only handlers that compute and handlers that wait for another server [need one
//!   each](#what-it-cannot-do): two routers with a layer each, which are merged.
//! - **On every machine.** Each process finds the limit of its machine. Nothing is shared, and no Redis is needed.
//! - **Not around health checks.** A process that is restarted because it was busy makes the others busier. So
//!   [exempt](super::allow_list) the path of the liveness probe. Exempt requests need no unit, and change nothing about
//!   the limit.
//! - **Not around requests that stay.** A WebSocket, a long poll or server-sent events would hold a unit for an hour,
//!   in which the server does little. Exempt them, and bound them by a [`Concurrency`](super::in_flight).
//!
//! # Which settings to touch
//!
//! At first, leave them all. After a busy day, its [metrics](#metrics-to-watch) say which to change:
//!
//! | setting | default | change it if |
//! |---|---|---|
//! | [`queue_target`](crate::Overload::queue_target) | 20 ms, or a quarter of the usual time of a request | a queue may stand for longer: work that nobody waits for. Or handlers [compute](#handlers-that-compute) for more than 5 ms |
//! | [`max_wait`](crate::Overload::max_wait) | 500 ms | clients give up earlier: set their timeout less the time of a request |
//! | [`limits`](crate::Overload::limits) | 2 to 1,024 | the server has more than two processors: begin there. Or something else is scarce (connections to a database, memory): end there |
//! | [`starting_at`](crate::Overload::starting_at) | 20 | you know the limit from `overload_limit`: the server protects itself from the first second on |
//! | [`max_queue`](crate::Overload::max_queue) | 1,024 | memory is scarce: each request that waits takes some 700 bytes, and its connection |
//! | [`cost_fn`](crate::Policy::cost_fn) | 1 | some requests need several times the work of others: then count units of work |
//! | [`release_at_head`](crate::Policy::release_at_head) | no | bodies are in memory when the head is sent, and clients read slowly |
//!
//! # How the limit is found
//!
//! In steps of two at first: it compares how long requests take under a limit and under its half. If they take as long
//! under both, the double is tried; if they take twice as long, the half of the half. A few requests tell, so this
//! works for bursts, and for four requests in a second.
//!
//! Then exactly. While requests wait, the limit alternates between two values. If the server serves more under the
//! greater one, the limit grows. If it does not, the added requests have only waited inside the server, and the limit
//! shrinks. Only requests that were **served** count: an answer of 500 or above does not, and a request that its client
//! gave up does not. No response time is compared with a normal one, so an incident cannot be learned as normal, and an
//! idle night changes nothing. The
//! [design notes](https://github.com/tower-sluice/tower-sluice/tree/main/docs/design/overload.md) say why, and
//! [`Overload`] states how exact it is.
//!
//! A step of two takes about as long as two requests, one after the other, on a server whose requests are alike. An
//! exact step takes a second on a busy server, and minutes at ten requests per second.
//!
//! # Try it as a shadow
//!
//! [`.shadow()`](super::shadow) rejects nothing, and counts the requests that it would have shed. A shadow makes no
//! request wait, so it cannot find the limit, and stays at `starting_at`. The count is an upper bound: some of these
//! requests would have waited and passed.
//!
//! 1. Add it with `starting_at(1024)`. On a good day, read the highest `in_flight`.
//! 2. Set `starting_at` to that number. If almost no request is counted as shed, remove `.shadow()`.
//!
//! # Metrics to watch
//!
//! | [metric](super::monitoring#metrics), after `tower_sluice_rate_limiting_` | a healthy server | if not |
//! |---|---|---|
//! | `overload_overloaded` | 0 | 1 for minutes: add machines, or find [the client that sends so much](super::tenants#see-who-is-rejected) |
//! | `overload_shed_total` | does not grow | by `priority`, it shows [which class is rejected](super::priorities#when-the-low-classes-starve); `share="over"` is [a greedy tenant](super::tenants#see-who-is-rejected) |
//! | `overload_limit` | steady under load | at its upper bound: `limits` ends too low, or requests wait for [another server](#what-it-cannot-do); at its lower bound on a large machine: requests wait for one lock |
//! | `in_flight` | below `overload_limit` | near the limit, and nothing is shed: the machine is just full |
//! | `overload_waiting` | near 0 | near `max_queue`: `queue_target` is too long |
//! | `request_time_in_queue_seconds` | below `queue_target` | near `max_wait`: clients may have given up by then |
//!
//! Alert on `overload_overloaded`, and not on the load of the processor. [`on_transition`] reports when the server
//! begins to shed.
//!
//! [`on_transition`]: crate::layer::RateLimitLayerBuilder::on_transition
//!
//! # Clients that do not read
//!
//! A request holds its units until the body of its response has ended. A client that reads nothing would keep them:
//! with one HTTP/2 connection, sixty streams and a window of zero, all of a server. So when requests wait, the units of
//! a body that its client has left unread for 100 ms are taken back. They count for the key of the request until it
//! ends, and a key with as many as the limit waits for no more. A body whose handler still works keeps its units.
//!
//! # Handlers that compute
//!
//! A handler that computes without an `.await` keeps its worker. Other requests then wait in the run queue of tokio,
//! before any layer sees them, and no limit on requests in flight is ever reached. So `Overload` measures **the lag
//! of the workers**: while requests come, a task goes to the back of the run queue, every 5 ms or more, and notes
//! when it runs again. If it was late by more than `queue_target` each time for 100 ms, requests behind it are shed,
//! until the queue is short. The lowest class is shed from half of the target on, and the higher ones from twice and
//! four times of it. [`stats`](crate::Limiter::stats) of an `Arc<Overload>` that you keep shows the lag, as
//! [`overload.worker_lag`](crate::store::OverloadStats::worker_lag).
//!
//! A handler that computes for 20 ms delays the next one by as much. Three clients that each send one request at a time
//! are then above a target of 20 ms, and lose requests. Set `queue_target` to several times what a handler computes.
//!
//! At ten times the capacity of a real axum server (one worker, 5 ms of computing for each request, clients that
//! give up after a second), of 200 requests per second in time:
//!
//! | | nothing | tower's `ConcurrencyLimit(20)` and `LoadShed` | `Overload` |
//! |---|---|---|---|
//! | in time | 74 | 81 | 192 |
//! | median latency | 969 ms | 964 ms | 40 ms |
//!
//! `cargo run --release -p examples --features overload --bin overloaded_server` measures it, on a machine with two
//! processors that does nothing else. For other handlers, which tower's limit protects as well, it measures 193 for
//! tower and 189 for `Overload` if they yield, and 198 and 196 in `spawn_blocking`.
//!
//! If they wait for a database that does 200 per second, it measures 200 for tower and 200 for `Overload`, and 196 to
//! 199 for an exact limit of two with a queue. `Overload` finds a limit of two to three, so the median latency is
//! 15 ms, and 100 ms with tower's limit of 20. The price is that the database idles while the worker is kept from
//! sending it the next request. While a dozen other programs ran on the machine, `Overload` had 109 to 186, the exact
//! limit of two 123 to 155, and tower 143 to 200. If that matters more to you than latency, begin
//! [`limits`](crate::Overload::limits) at a higher number.
//!
//! Handlers that sleep, one after the other, for 5 ms each do not come to 200 per second under any limiter. tokio's
//! timers are exact to the millisecond, so each takes 6 ms, and 166 is the most.
//!
//! # What it cannot do
//!
//! **Give a worker back.** If a request computes for longer than some milliseconds, the health check waits for it,
//! too, and neither [shares](super::tenants) nor the order of the queue apply to requests that wait for a worker.
//! Let such a handler compute in `spawn_blocking`, and take its permits along, as below.
//!
//! **See what waits in the kernel.** A connection that was not accepted yet, and a request that tokio has not read
//! yet, are not part of the lag. Tokio looks for new ones when it has run some 60 tasks. If each of them computes
//! for 20 ms, requests wait for a second before anything can shed them. For such handlers, use `spawn_blocking`, or
//! set `event_interval` of the runtime to a few tasks. A shorter queue of connections (the backlog of
//! `TcpSocket::listen`) makes the kernel turn clients away earlier.
//!
//! **See work that outlives its response.** When a client leaves, the server drops the request, and its unit is free.
//! Work that was spawned runs on: in `spawn_blocking`, in a task, in the database. In the simulation, clients give up
//! after 50 ms, at twice the capacity, and the server works on for those that have left. `Overload` then lowers its
//! limit until clients are answered in time, and 99 % of the capacity go into answers. But it needs a while to find
//! out, in which nobody is served: seconds at 400 requests per second, a minute or more if requests take a second. If
//! handlers take their units along ([`Permits`](crate::Permits)), the limiter counts the work to its end, and no more
//! than the limit runs. Where the first limit is too high for your clients, set `starting_at`, too: 20 requests of
//! 20 ms on one worker take 400 ms, and clients that wait for 250 ms get almost nothing for some seconds.
//!
#![cfg_attr(feature = "axum", doc = "```")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! use tower_sluice::Permits;
//!
//! async fn report(permits: Permits) -> String {
//!     let held = permits.take();
//!     let work = tokio::task::spawn_blocking(move || {
//!         let table = "a long table".to_owned();
//!         drop(held); // also if the client has left
//!         table
//!     });
//!     work.await.unwrap_or_default()
//! }
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! #     let service = axum::Router::new().route("/", axum::routing::get(report));
//! #     let request = http::Request::get("/").body(axum::body::Body::empty()).unwrap();
//! #     assert_eq!(tower::ServiceExt::oneshot(service, request).await.unwrap().status(), 200);
//! # });
//! ```
//!
//! **Tell your processors from another server.** One limit counts all requests. If one in ten waits for 100 ms for
//! another server, they hold units while your workers idle, and the limit has to be greater: 92 % of the capacity at
//! twice the load, in the simulation. Exempt a route that is slower than that, and bound it by a
//! [`Concurrency`](super::in_flight).
//!
//! If far more compute than the server can do, no single limit serves both kinds. Below are the requests of a minute on
//! four workers (`--random 53:6`). 10,195 come, of which half compute for 0.2 s and half wait as long:
//!
//! | served | a limit of 8 | of 16 | of 32 | of 64 | of 256 |
//! |---|---|---|---|---|---|
//! | that compute | 948 | 923 | 0 | 0 | 0 |
//! | that wait | 1,043 | 1,051 | 1,219 | 2,397 | 5,241 |
//!
//! A limiter that does not know the kind of a request lets in as large a part of one as of the other. With a quarter of
//! all, the workers are busy. With more, those that compute queue in the server until their clients leave. `Overload`
//! may find a limit on either side, or one between, which is the worst. So give the routes that compute and those that
//! wait a limiter each. In all random scenarios of this kind [below](#measured) in which one `Overload` fails, two of
//! them serve as much as the best fixed limit, or up to a third more, and both kinds of requests.
//!
//! **Start at full speed on a large server.** With 64 workers and 50 ms per request, the limit grows from 20 to 64 in
//! steps, which takes some ten seconds. With 500 requests of 1 s per second, it takes 14 s, and until then more than a
//! third is shed. Set `starting_at`.
//!
//! **Stop floods.** A request that is shed was still received and parsed. Against floods of packets or of connections,
//! use the network in front. Against one client that sends too much, use a rate limit, which is cheaper. Against
//! clients that retry at once, use [one that waits](super::partners) on their side.
//!
//! # Measured
//!
//! `cargo run --release -p tower-sluice-overload` prints these figures, and those of other limiters. The clock is
//! simulated: they are the same on each machine. `scripts/overload` adds the crates of others.
//! [`examples/overload`](https://github.com/tower-sluice/tower-sluice/tree/main/examples/overload) explains them.
//!
//! | | no limit | a fixed limit of 5 | of 20 | of 80 | `Overload` |
//! |---|---|---|---|---|---|
//! | goodput at 1 × | 41.6 % | 87.2 % | 97.7 % | 63.7 % | 94.6 % |
//! | goodput at 2 × | 0.0 % | 99.9 % | 100.0 % | 0.0 % | 98.8 % |
//! | goodput at 10 × | 0.0 % | 100.0 % | 100.0 % | 0.0 % | 99.0 % |
//! | median latency at 10 × | none is answered | 12 ms | 50 ms | 200 ms | 11 ms |
//! | shed at 0.8 × | 0.0 % | 5.5 % | 0.0 % | 0.0 % | 0.0 % |
//! | goodput in the first 5 s after the start, at 10 × | 2.2 % | 99.9 % | 99.9 % | 2.2 % | 98.8 % |
//! | recovery after a slowdown of 10 s, at 2 × | never | at once | at once | never | at once |
//! | the high class (20 %) served at 4 × | 0.0 % | 24.5 % | 24.2 % | 0.0 % | 99.9 % |
//! | nine tenants beside a greedy one, served at 2 × | 0.0 % | 50.0 % | 50.0 % | 0.0 % | 79.8 % |
//! | bodies that take most of the work: goodput at 2 × | 0.0 % | 5.2 % | 0.0 % | 0.0 % | 98.9 % |
//! | clients give up after 50 ms, and the server works on: goodput at 2 × | 0.0 % | 99.9 % | 100.0 % | 0.0 % | 99.4 % |
//! | one request in ten waits for 100 ms: goodput at 2 × | 0.0 % | 67.4 % | 100.0 % | 0.0 % | 91.7 % |
//! | 64 workers, 50 ms per request: goodput at 2 × | 0.0 % | 7.7 % | 30.9 % | 100.0 % | 86.1 % |
//! | an idle server that sleeps: 60 at once each second, 200 ms each: shed | 0.0 % | 91.7 % | 66.7 % | 0.0 % | 0.0 % |
//! | the same: 500 per second, 1 s each: shed | 0.0 % | 99.0 % | 96.0 % | 84.0 % | 0.0 % |
//! | 500 ms of work each, at 2 ×, clients give up after 3 s: served, of the capacity | 5.6 % | 100.0 % | 9.6 % | 5.6 % | 99.6 % |
//!
//! *Goodput* is the share of the workers' time that went into answers within 100 ms. The fixed limits are tower's
//! `ConcurrencyLimit`, which releases a unit at the head of the response. A limit of 20 is exactly right for this
//! server and these clients. The nine tenants get no more than 79.8 %, since the greedy one's requests of the high
//! class come before their others. The last three rows leave out the time in which the limit is found: the first 30, 60
//! and 120 s. In it, of the bursts 5 % are shed in the first two seconds and 26 % in the next two, and none later.
//!
//! Random scenarios are compared with the best fixed limit of each, which is chosen by some draws of the arrivals, and
//! judged by others. After two minutes, `Overload` is to serve at least 90 % of what that does. `max_wait` is the
//! clients' patience less the mean time of a request.
//!
//! - Of the 100 of `--random 100` with handlers of both kinds, that [compute and that wait](#what-it-cannot-do), eight
//!   miss it (36 % to 74 %), and one more that has too few answers to be certain. In four of the eight, the best limit
//!   serves hardly any request that computes. With a limiter for each kind, all nine reach it (100 % to 132 %).
//! - Of the 470 others of `--random 52`, two miss it, and two more that have too few answers to be certain. In one, a
//!   worker can serve only two requests at once in time, and the search tries three (77 %). In the other, the load
//!   comes and goes in periods of eight seconds (87 %): the newest is served first, and older ones wait in vain.
//!
//! The pictures are drawn by `cargo run --release -p tower-sluice-overload -- --guide src/guide/overload`.
//!
//! Next: [shares between tenants](super::tenants).
//!
//! [`Overload`]: crate::Overload
