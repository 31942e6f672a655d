//! gRPC.
//!
//! **You want** gRPC clients to be limited, and to retry when they should. The same layer does it. It looks at each
//! request: a `POST` of `application/grpc` over HTTP/2, or of `application/grpc-web`, is answered in gRPC, everything else
//! in HTTP. One port, one route and one budget may serve all three. The layer goes outside of `tonic_web::GrpcWebLayer`.
//!
//! ```no_run
//! use tower_sluice::{Policy, Quota, RateLimitLayer, algorithm::TokenBucket, key::PeerIp};
//!
//! # async fn serve() -> Result<(), tonic::transport::Error> {
//! # let (_, greeter) = tonic_health::server::health_reporter();
//! let quota = Quota::per_second(10).burst(20);
//! let policy = Policy::new("per-client", TokenBucket::new(quota)).key(PeerIp::new());
//! let layer = RateLimitLayer::new(policy);
//! tonic::transport::Server::builder()
//!     .layer(layer)
//!     .add_service(greeter)
//!     .serve("127.0.0.1:3000".parse().unwrap())
//!     .await
//! # }
//! ```
//!
//! The feature `tonic` lets [`PeerIp`](crate::key::PeerIp) find the peer under tonic's server. A gRPC server in axum,
//! or on hyper, needs none.
//!
//! # What a refused client sees
//!
//! `RESOURCE_EXHAUSTED`, in one block of headers, so that clients may retry it, with `RetryInfo` and `QuotaFailure` in
//! the details, and the exact wait in `grpc-retry-pushback-ms`. [All fields](crate::grpc).
//!
//! # Have clients retry
//!
//! A client obeys the pushback by itself, once its service config calls the code retryable:
//!
//! ```json
//! {"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 3, "initialBackoff": "1s", "maxBackoff": "10s",
//!   "backoffMultiplier": 2, "retryableStatusCodes": ["RESOURCE_EXHAUSTED"]}}]}
//! ```
//!
//! Clients that only retry `UNAVAILABLE` get it by [`grpc_status`](crate::RateLimitLayerBuilder::grpc_status);
//! servers that are watched with OpenTelemetry then count refusals as their errors.
//!
//! # Different limits per method
//!
//! The path of a gRPC request is its method, and conditions see it:
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
//! In a [queue](super::waiting), a call whose `grpc-timeout` ends before its turn would come is refused on arrival, and
//! told after what time its turn would come in time. Nobody waits for a client that will have given up.
