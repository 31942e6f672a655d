//! gRPC.
//!
//! **You want** to limit gRPC clients, and have them retry at the right time. The same layer does it, per request: a
//! `POST` of `application/grpc` over HTTP/2, or of `application/grpc-web`, is rejected in gRPC, everything else in
//! HTTP. One port, one route and one budget may serve all three. The layer goes outside of `tonic_web::GrpcWebLayer`.
//!
//! ```no_run
//! use tower_sluice::{Policy, Quota, RateLimitLayer, algorithm::TokenBucket, key::PeerIp};
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let quota = Quota::per_second(10).burst(20);
//!     let policy = Policy::new("per-client", TokenBucket::new(quota)).key(PeerIp::new());
//!     let layer = RateLimitLayer::new(policy);
//!
//!     // Stands for your service.
//!     let (_, service) = tonic_health::server::health_reporter();
//!     let server = tonic::transport::Server::builder().layer(layer).add_service(service);
//!     server.serve("127.0.0.1:3000".parse()?).await?;
//!     Ok(())
//! }
//! ```
//!
//! The feature `tonic` lets [`PeerIp`](crate::key::PeerIp) find the peer under tonic's server. A gRPC server in axum,
//! or on hyper, needs none.
//!
//! # What a rejected client gets
//!
//! `RESOURCE_EXHAUSTED`, in one block of headers, so that clients may retry it, with `RetryInfo` and `QuotaFailure` in
//! the details, and the exact wait in `grpc-retry-pushback-ms`. [All fields](crate::grpc).
//!
//! # Have clients retry
//!
//! A client obeys the pushback automatically if its service config lists the code as retryable:
//!
//! ```json
//! {"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 3, "initialBackoff": "1s", "maxBackoff": "10s",
//!   "backoffMultiplier": 2, "retryableStatusCodes": ["RESOURCE_EXHAUSTED"]}}]}
//! ```
//!
//! For clients that only retry `UNAVAILABLE`, set [`grpc_status`](crate::RateLimitLayerBuilder::grpc_status);
//! OpenTelemetry then counts rejections as errors of the server.
//!
//! # Different limits per method
//!
//! The path of a gRPC request is its method, and conditions can match it:
//!
//! ```
//! use tower_sluice::algorithm::TokenBucket;
//! use tower_sluice::key::HeaderKey;
//! use tower_sluice::{Policy, Quota, RateLimitLayer};
//!
//! let layer = RateLimitLayer::new(
//!     Policy::new("exports", TokenBucket::new(Quota::per_minute(2)))
//!         .key(HeaderKey::from_static("authorization"))
//!         .when(|request| request.uri().path() == "/shop.v1.Orders/Export"),
//! );
//! ```
//!
//! Streams are counted when they are opened, not by their messages.
//!
//! # Deadlines
//!
//! In a [queue](super::waiting), a call whose `grpc-timeout` ends before it would depart is rejected on arrival, with
//! the time after which a retry would depart within its timeout. No call waits whose client will have given up.
