//! Rejections for gRPC clients: one layer answers HTTP, gRPC and gRPC-Web, each natively.
//!
//! A `POST` over HTTP/2 or later with one content type `application/grpc` is gRPC, and a `POST` over any version with
//! `application/grpc-web` or `application/grpc-web-text` is gRPC-Web, each with or without `+proto` and the like. Any
//! other request is plain HTTP. The layer decides this per request, so that all three can share a port, a route and a
//! budget.
//!
//! A layer inside `tonic_web::GrpcWebLayer` sees gRPC-Web over HTTP/1.1 as a request that no gRPC client sends, and
//! rejects it in plain HTTP. Put the rate limit outside.
//!
#![cfg_attr(feature = "tonic", doc = "```no_run")]
#![cfg_attr(not(feature = "tonic"), doc = "```ignore")]
//! use tower_sluice::{Policy, Quota, RateLimitLayer, algorithm::TokenBucket, key::PeerIp};
//!
//! # async fn serve() -> Result<(), tonic::transport::Error> {
//! # let (_, health) = tonic_health::server::health_reporter();
//! let quota = Quota::per_second(10).burst(20);
//! let layer = RateLimitLayer::new(Policy::new("per-client", TokenBucket::new(quota)).key(PeerIp::new()));
//! tonic::transport::Server::builder()
//!     .layer(layer)
//!     .add_service(health)
//!     .serve("127.0.0.1:3000".parse().unwrap())
//!     .await
//! # }
//! ```
//!
//! [`PeerIp`](crate::key::PeerIp) finds the peer under tonic's server with the crate feature `tonic`. Nothing else
//! here needs this feature, or tonic: gRPC servers built on axum or hyper are limited in the same way.
//!
//! # The answer
//!
//! A rejection is HTTP 200 with one block of headers and no body. gRPC calls this "Trailers-Only", and clients retry
//! it. gRPC-Web clients get the same fields. They get the request's content type back: a suffix `+proto`, `+json` or
//! `+thrift` is kept (of `-text` only `+proto`), and any other is left out. The fields are:
//!
//! | field | value |
//! |---|---|
//! | `grpc-status` | [8 or 14](GrpcStatus) if a limit is exceeded; 8 if no wait helps or the client is banned; 14 if the server is overloaded or a limiter failed, 3 if the request has no key or has it twice, 13 if the server is not set up to provide the key |
//! | `grpc-message` | the sentence that HTTP clients find as `detail` |
//! | `grpc-status-details-bin` | a `google.rpc.Status` with the same code and message, with `RetryInfo` (the exact wait) and, unless the server is overloaded, `QuotaFailure` (a violation for each policy; its subject is the policy's name) |
//! | `grpc-retry-pushback-ms` | the wait in milliseconds, rounded up, from 1 to 2^31 − 1 (24.8 days); −1, "do not retry", if no wait helps; absent if the wait is not known |
//!
//! `Retry-After`, `X-Rate-Limited-For` and `Cache-Control` go with them, as metadata.
//!
//! The code for an exceeded limit is also sent where HTTP clients get 503 because all clients share the limit: 8 means
//! an exhausted quota as well as an exhausted system, and clients of OpenTelemetry retry it, given `RetryInfo`. If no
//! wait helps, the code is always 8, since 14 invites clients to retry.
//!
//! # Clients
//!
//! A client obeys `grpc-retry-pushback-ms` automatically if its service config lists the code as
//! retryable:
//!
//! ```json
//! {"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 3, "initialBackoff": "1s", "maxBackoff": "10s",
//!   "backoffMultiplier": 2, "retryableStatusCodes": ["RESOURCE_EXHAUSTED"]}}]}
//! ```
//!
//! # Deadlines
//!
//! A request whose `grpc-timeout` would pass while it waits in a [`LeakyQueue`](crate::LeakyQueue) is rejected at
//! once, with the time after which it would depart within that timeout.
//!
//! # Sources
//!
//! gRPC over HTTP/2 and gRPC-Web (PROTOCOL-HTTP2, PROTOCOL-WEB), gRFC A6 (pushback), google.rpc's
//! `status.proto` and `error_details.proto`.

mod details;
mod protocol;
mod status;
mod timeout;

pub(crate) use self::details::Violation;
pub(crate) use self::protocol::{Protocol, has_status_in_trailers};
pub use self::status::GrpcStatus;
pub(crate) use self::status::{Code, GrpcRetry, Status, is_server_error};
pub(crate) use self::timeout::timeout;
