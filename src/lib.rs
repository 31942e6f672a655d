//! Rate limiting for [Tower](https://docs.rs/tower) services: a layer that tells a client exactly how
//! long to wait, and that it can believe.
//!
#![cfg_attr(feature = "axum", doc = "```no_run")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! use std::net::SocketAddr;
//! use axum::{Router, routing::get};
//! use tower_sluice::{Policy, Quota, RateLimitLayer, algorithm::TokenBucket, key::PeerIp};
//!
//! # #[tokio::main]
//! # async fn main() -> std::io::Result<()> {
//! let quota = Quota::per_second(10).burst(20);
//! let layer = RateLimitLayer::new(Policy::new("per-client", TokenBucket::new(quota)).key(PeerIp::new()));
//! let app = Router::new().route("/", get(|| async { "hello" })).layer(layer);
//!
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//! axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await
//! # }
//! ```
//!
//! The [guide] goes from what you want to what to write: which algorithm, for whom, on several machines, and what happens
//! when something breaks. The rest of this page is an overview.
//!
//! # Map
//!
//! ```text
//! Quota  →  Algorithm  →  Store  →  Limiter  →  Policy  →  RateLimitLayer
//! how much  pure maths    state     one         named,     HTTP
//!                         and time  decision    keyed
//! ```
//!
//! - [`Quota`]: so many per period, with a burst.
//! - [`algorithm`]: token bucket, leaky bucket, fixed and sliding window, or [your own](algorithm::Algorithm).
//! - [`store`]: where the state lives; in memory, of a fixed size, or on Redis.
//! - [`Limiter`]: an algorithm over a store ([`RateLimiter`]), the FIFO [`LeakyQueue`], or your own.
//! - [`Policy`]: a limiter under a name, with a [`key`], a cost and conditions.
//! - [`RateLimitLayer`]: one or more policies around a service.
//! - [`LimitsHandle`]: other policies for a layer that runs.
//! - [`headers`]: which fields tell clients what is left and how long to wait.
//! - [`grpc`]: what gRPC and gRPC-Web clients are told, by the same layer.
//! - [`ThrottleLayer`]: the same for services that do not speak HTTP, and for clients.
//! - [`config`]: routes and policies from a TOML file.
//! - [`testing`]: conformance suites for your own algorithms and stores.
//!
//! # How a request is decided
//!
//! 1. Each policy whose [condition](Policy::when) holds reads its [key](Policy::key) and
//!    [cost](Policy::cost) from the request's head. The body is not touched.
//! 2. With several policies, all are asked first, without charging. If any would refuse, nothing is
//!    charged, and the answer names all that would.
//! 3. Each is charged. If another request came in between and took what there was, what was charged
//!    so far is given back.
//! 4. A [`LeakyQueue`] lets the request wait for its turn, after all other policies have admitted it.
//! 5. The inner service is called. What was charged stays charged, also if the client goes away; unless the response
//!    [has a say](Policy::charge_when) in it.
//!
//! In memory, all of this happens inside of `Service::call`: nothing is awaited, no task is spawned
//! and the inner service is not cloned, except where a request waits in a queue.
//!
//! # Choosing an algorithm
//!
//! | you want | take |
//! |---|---|
//! | a steady rate, with room for bursts after silence | [`TokenBucket`](algorithm::TokenBucket) |
//! | the same, thinking in how full the bucket is | [`LeakyBucket`](algorithm::LeakyBucket) (identical decisions) |
//! | requests to wait and leave evenly spaced, in order | [`LeakyQueue`] |
//! | about *n* in any minute, without a jump at the full minute | [`SlidingWindow`](algorithm::SlidingWindow) |
//! | quotas that start anew on the hour or at midnight UTC | [`FixedWindow`](algorithm::FixedWindow) (lets twice the limit pass around an edge) |
//!
//! # Several machines
//!
//! State is in this process's memory, unless it is given to a `store::RedisStore` (feature `redis`): *n* processes behind
//! a load balancer admit up to *n* times the limit together.
//!
//! On Redis, they share one. It decides in one round trip (also on several policies of a layer, if they are on one
//! server), and each process remembers which keys are used up, so that refusals cost it nothing. While Redis cannot be
//! reached, a policy does as its [`FailureMode`] says: by default, each process goes on with the same quota, and with what
//! it has seen pass. A line that several processes share is a `RedisQueue`.
//!
//! # Crate features
//!
//! | feature | default | adds |
//! |---|---|---|
//! | `http` | yes | the HTTP layer, policies and keys; without it, there is no HTTP type in the crate |
//! | `queue` | yes | [`LeakyQueue`], on tokio's timer |
//! | `precise-timer` | no | [`LeakyQueue::precise`], on a timer of the system that is finer than tokio's (Linux, Android) |
//! | `tracing` | yes | a log line when the set-up is wrong, or a limiter fails or recovers; at `debug`, one per decision |
//! | `metrics` | no | requests by policy and result, queues, tables and stores, for the recorder of the `metrics` crate: see [`RateLimitLayerBuilder::route`] |
//! | `fast-clock` | no | reading the processor's counter instead of asking the system for the time; saves about 10 ns a decision |
//! | `axum` | no | reading axum's `ConnectInfo` and `MatchedPath` |
//! | `tonic` | no | reading the peer's address from tonic's `TcpConnectInfo` |
//! | `config` | no | [`config`]: policies from TOML |
//! | `unicode` | no | [`key::nfkc_casefold_trim`](key), which makes the spellings of a login name one |
//! | `redis` | no | `store::RedisStore` and `RedisQueue`: limits that processes share; Redis 6.2 or later, or Valkey |
//! | `redis-tls` | no | `rediss://` |
//! | `test-util` | no | [`testing`] |
//!
//! # Minimum supported Rust version
//!
//! 1.85. An increase is a minor release.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod algorithm;
#[cfg(feature = "config")]
pub mod config;
// Text, for the documentation and its tests.
#[cfg(any(doc, doctest))]
pub mod guide;
#[cfg(feature = "http")]
mod http;
mod limiter;
#[cfg(feature = "queue")]
mod queue;
pub mod store;
#[cfg(feature = "test-util")]
pub mod testing;
mod util;
mod values;

#[cfg(feature = "http")]
pub use self::http::{
    FailureMode, IntoPolicies, LimitsHandle, MissingKey, Penalty, Policy, PolicyError, PolicyVerdict, RateLimit,
    RateLimitLayer, RateLimitLayerBuilder, Reason, Rejection, RejectionBody, RejectionFormat, Replaced, RequestHead,
    ResponseBody, ResponseFuture, ResponseHead, Tiers, Verdict, grpc, headers, key,
};
pub use self::limiter::{
    IntoLimiter, Limiter, LimiterExt, RateLimiter, Throttle, ThrottleError, ThrottleFuture, ThrottleLayer,
};
#[cfg(feature = "queue")]
pub use self::queue::LeakyQueue;
#[cfg(feature = "redis")]
pub use self::queue::RedisQueue;
pub use self::values::{
    Ask, Backlog, Check, Decision, Description, Heritage, Inheritance, LimiterError, Mode, Now, Outcome, PartitionKey,
    Pending, Quota, QuotaError, Receipt, Shape, Terms, time,
};

/// Holds the README's examples to what compiles.
#[cfg(all(doctest, feature = "axum", feature = "redis"))]
#[doc = include_str!("../README.md")]
struct Readme;
