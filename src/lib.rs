//! Rate limiting for [Tower](https://docs.rs/tower) services. A rejected client gets the time after which a retry
//! succeeds, where the limiter knows it.
//!
#![cfg_attr(feature = "axum", doc = "```no_run")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! use std::net::SocketAddr;
//! use axum::{Router, routing::get};
//! use tower_sluice::{Quota, RateLimitLayer};
//!
//! # #[tokio::main]
//! # async fn main() -> std::io::Result<()> {
//! // Each client: ten per second, and twenty at once after a pause.
//! let layer = RateLimitLayer::per_client(Quota::per_second(10).burst(20));
//! let app = Router::new().route("/", get(|| async { "hello" })).layer(layer);
//!
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//! axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await
//! # }
//! ```
//!
//! The [guide] has a page with a complete program for each task, such as protecting a login, selling an API, sharing a
//! limit between machines, queueing, gRPC and tests. The rest of this page is an overview.
//!
//! # Map
//!
//! ```text
//! Quota  →  Algorithm  →  Limiter     →  Policy  →  RateLimitLayer
//! how much  pure maths    state, time    named,     HTTP
//!                         one decision   keyed
//! ```
//!
//! - [`Quota`]: a limit per period, with a burst.
//! - [`algorithm`]: token bucket, leaky bucket, fixed, sliding and calendar window, or
//!   [your own](algorithm::Algorithm).
//! - [`Limiter`]: keeps a state per key, and decides on requests. A [`RateLimiter`] is an algorithm with a table of
//!   states; a [`LeakyQueue`] and a [`SlowDown`] delay requests, in FIFO order; a [`Concurrency`] limits the requests
//!   in flight; or write your own. To write a limiter, or to call one without a layer, see [`limiter`].
//! - [`store`]: where a [`RateLimiter`] keeps its table: in memory, with a fixed size, or on a server.
//! - [`Policy`]: a named limiter, with a [`key`], a cost and conditions. Its parts are in [`policy`].
//! - [`RateLimitLayer`]: one or more policies around a service. Its parts are in [`layer`] and [`rejection`].
//! - [`LimitsHandle`]: replaces the policies of a running layer, and shows, resets, bans, credits and charges single
//!   keys.
//! - The package [`tower-sluice-admin`](https://docs.rs/tower-sluice-admin): these operations as a service with a page,
//!   for operators.
//! - [`headers`]: the response fields that report the remaining quota and the wait.
//! - [`grpc`]: the layer's responses to gRPC and gRPC-Web clients.
//! - The package [`tower-sluice-client`](https://docs.rs/tower-sluice-client): `PacerLayer` limits an HTTP client's
//!   outgoing calls to the pace that the server's responses report, and `ThrottleLayer` puts policies around services
//!   that do not speak HTTP.
//! - The package [`tower-sluice-config`](https://docs.rs/tower-sluice-config): routes and policies from a TOML file.
//! - [`testing`]: conformance suites for your own algorithms, limiters and backends.
//!
//! # How a request is decided
//!
//! 1. Each policy whose [condition](Policy::when) holds reads its [key](Policy::key) and
//!    [cost](Policy::cost) from the request's head. The body is not touched.
//! 2. Several policies are a transaction: either all are charged, or no policy is. First, the precheck peeks at them
//!    without charging. If a policy would reject the request, the request is rejected without any charge, and the
//!    response names every policy that would reject it.
//! 3. Then each policy is charged in turn. If a concurrent request has used up the units that the precheck saw, the
//!    charges made so far are refunded, and the request is rejected.
//! 4. A [`LeakyQueue`] or [`SlowDown`] is charged last, so that a request waits only after all other policies have
//!    admitted it.
//! 5. The inner service is called. The charge stays, even if the client disconnects, unless it
//!    [depends on the response](Policy::charge_when).
//! 6. When the body of the response has ended, the units that the request [held](Concurrency) are released, and charges
//!    whose [final cost](Settlement) is known only then are corrected.
//!
//! In memory, all of this happens inside `Service::call`: nothing is awaited, no task is spawned
//! and the inner service is not cloned, unless a request waits in a queue.
//!
//! # Choosing an algorithm
//!
//! | you want | take |
//! |---|---|
//! | a steady rate, with room for bursts after silence | [`TokenBucket`] |
//! | the same, thinking in how full the bucket is | [`LeakyBucket`] (identical decisions) |
//! | requests to wait and leave evenly spaced, in order | [`LeakyQueue`] |
//! | requests to wait longer the more a client sends | [`SlowDown`] |
//! | at most *n* of a client at once, however long they take | [`Concurrency`]; on all machines together, [`SharedConcurrency`] |
//! | no more than the server can do, whoever asks | [`Overload`] |
//! | only what was credited, such as bought units | [`Balance`] |
//! | about *n* in any minute, without a jump at the full minute | [`SlidingWindow`] |
//! | quotas that reset on the hour or at midnight UTC | [`FixedWindow`] (admits up to twice the limit around a window's edge) |
//! | quotas per day, week or month of a time zone | `CalendarWindow` (feature `calendar`; also up to twice the limit around an edge) |
//!
//! # Several machines
//!
//! By default, state is in the memory of each process: *n* processes behind a load balancer admit up to *n* times the
//! limit together.
//!
//! With a `RedisStore` of the package [`tower-sluice-redis`](https://docs.rs/tower-sluice-redis), they share one limit.
//! A decision is one round trip, also for several policies of a layer if one server keeps them all. Each process keeps
//! a negative cache of the keys that are used up, so that rejections need no round trip. While Redis cannot be reached,
//! a policy follows its [`FailureMode`]: by default, each process falls back to the same quota in memory, which has
//! counted the requests that Redis admitted. There are packages for
//! [PostgreSQL](https://docs.rs/tower-sluice-postgres) and [DynamoDB](https://docs.rs/tower-sluice-dynamodb), too, and
//! [`store::remote`] is for a server of your own. A [`SharedQueue`] is a queue that processes share, on Redis, on
//! PostgreSQL or on a server of your own.
//!
//! # Crate features
//!
//! | feature | default | adds |
//! |---|---|---|
//! | `http` | yes | the HTTP layer, policies and keys; without it, there is no HTTP type in the crate |
//! | `precise-timer` | no | [`LeakyQueue::precise`], on a system timer that is finer than tokio's (Linux, Android) |
//! | `tracing` | yes | log lines: mistakes in the configuration, stores that fill up, limiters that fail or recover; at `debug`, one per decision. The stores on servers turn it on, so that no outage is silent |
//! | `metrics` | no | requests by policy and result, queues, tables and stores, for a recorder of the `metrics` crate 0.24 (a recorder of another version sees nothing): see [monitoring](guide::monitoring#metrics) |
//! | `fast-clock` | no | reads the processor's counter instead of the system clock, in the whole program: about 10 ns less per decision (`ours-system-clock` in `benches/results`), within 2 µs of the system's clock. The first reading calibrates the counter, for up to 200 ms. Programs may turn it on; libraries should not |
//! | `axum` | no | for axum 0.8: reads its `ConnectInfo` and `MatchedPath`; `Verdict`, `Settlement` and `Permits` as arguments, `Rejection` as a response, `Config::router` |
//! | `tonic` | no | for tonic 0.14: reads the peer's address from its `TcpConnectInfo` |
//! | `calendar` | no | `CalendarWindow`: quotas per day, week or month of a time zone |
//! | `unicode` | no | [`key::nfkc_casefold_trim`](key), which unifies the spellings of a login name |
//! | `test-util` | no | [`testing`] |
//!
//! # Minimum supported Rust version
//!
//! 1.85. An increase is a minor release.
#![cfg_attr(docsrs, feature(doc_cfg))]
// Dead code is reported only if all of these features are on. Without one of them, the items that only this feature
// uses are unused.
#![cfg_attr(
    not(all(feature = "axum", feature = "calendar", feature = "metrics", feature = "internal")),
    allow(dead_code)
)]
// Some `pub` items can be reached from outside the crate only with these two features.
#![cfg_attr(not(all(feature = "internal", feature = "test-util")), allow(unreachable_pub))]

pub mod algorithm;
mod balance;
mod concurrency;
#[cfg(feature = "internal")]
#[doc(hidden)]
pub mod internal;
// `engine` has the policies. `guide` is text only, for rustdoc and its tests.
#[cfg(feature = "http")]
mod engine;
#[cfg(any(doc, doctest))]
pub mod guide;
#[cfg(feature = "http")]
mod http;
pub mod limiter;
mod overload;
mod queue;
pub mod store;
#[cfg(feature = "test-util")]
pub mod testing;
mod util;
mod values;

// Files of `tests/support` name the crate as integration tests do.
#[cfg(test)]
extern crate self as tower_sluice;

/// Decisions without a layer: on messages, jobs, or requests that no layer sees.
#[cfg(feature = "http")]
pub mod direct {
    pub use crate::engine::direct::{Admission, Deciding, Limits, LimitsBuilder, Rejected};
    pub use crate::engine::domain::{Domain, Http, On};
}

/// The parts of the layer: its service, its futures and its builder.
#[cfg(feature = "http")]
pub mod layer {
    pub use crate::http::{
        Answering, IntoPolicies, RateLimit, RateLimitLayerBuilder, Replaced, ResponseBody, ResponseFuture,
    };
}

/// The parts of a [`Policy`]: its errors, and the arguments of its closures.
#[cfg(feature = "http")]
pub mod policy {
    pub use crate::http::{
        Crossing, Event, ExemptionError, KeyOf, KeyStatus, Meter, Offender, Offenders, Operate, Policies, PolicyError,
        PolicyStatus, ResponseHead, SettleError, ShowKey, TakenPermits, Transition,
    };
}

/// The parts of a [`Rejection`] and a [`Verdict`].
#[cfg(feature = "http")]
pub mod rejection {
    pub use crate::http::{PolicyVerdict, Reason, RejectionBody, RejectionFormat};
}

/// Snapshots of the budgets in memory, so that they outlive a restart: see [`Snapshots`](snapshot::Snapshots).
#[cfg(feature = "http")]
pub mod snapshot {
    pub use crate::http::{Restored, Saved, SnapshotError, Snapshots};
}

#[cfg(feature = "calendar")]
pub use self::algorithm::CalendarWindow;
pub use self::algorithm::{FixedWindow, LeakyBucket, SlidingWindow, TokenBucket};
pub use self::balance::{Balance, SharedBalance};
pub use self::concurrency::{Concurrency, SharedConcurrency};
#[cfg(feature = "http")]
pub use self::http::{
    ChargeOnce, Exemptions, LimitsHandle, MissingKey, Penalty, Permits, Policy, RateLimitLayer, Rejection, RequestHead,
    Settlement, Verdict, grpc, headers, key,
};
pub use self::limiter::ext::LimiterExt;
pub use self::limiter::rate_limiter::RateLimiter;
pub use self::limiter::traits::Limiter;
pub use self::overload::Overload;
pub use self::queue::{LeakyQueue, SharedQueue, SlowDown};
pub use self::values::{Decision, FailureMode, LimiterError, Outcome, PartitionKey, Quota, time};

/// Compiles the README's examples.
#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../README.md")]
struct Readme;

/// Compiles the programs of `llms.txt`.
#[cfg(all(doctest, feature = "axum", feature = "tonic"))]
#[doc = include_str!("../llms.txt")]
struct LlmsTxt;
