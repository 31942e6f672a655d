//! gRPC: limit a server, and obey a limit as a client.
//!
//! # A server
//!
//! **You want** to limit gRPC clients, and have them retry at the right time. The same layer does it, per request: a
//! `POST` of `application/grpc` over HTTP/2, or of `application/grpc-web`, is rejected in gRPC, everything else in
//! HTTP. One port, one route and one budget may serve all three. The layer goes outside of `tonic_web::GrpcWebLayer`.
//!
#![cfg_attr(feature = "tonic", doc = "```no_run")]
#![cfg_attr(not(feature = "tonic"), doc = "```ignore")]
//! use tower_sluice::{Quota, RateLimitLayer};
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let layer = RateLimitLayer::per_client(Quota::per_second(10).burst(20));
//!
//!     // Stands for your service.
//!     let (_, service) = tonic_health::server::health_reporter();
//!     let server = tonic::transport::Server::builder().layer(layer).add_service(service);
//!     server.serve("127.0.0.1:3000".parse()?).await?;
//!     Ok(())
//! }
//! ```
//!
//! The feature `tonic` (for tonic 0.14) lets [`PeerIp`](crate::key::PeerIp) find the peer under tonic's server. A gRPC
//! server in axum, or on hyper, does not need the feature.
//!
//! ## Users
//!
//! The layer that authenticates goes outside of the limit, so that the limit finds the user. Of the layers of tonic's
//! server, the **first** is the outermost, as in a `tower::ServiceBuilder`: the reverse of axum's `Router::layer`. In
//! the other order, all requests are answered `INVALID_ARGUMENT`, which is [logged
//! once](super::misconfigured#no-request-had-its-extension).
//!
#![cfg_attr(feature = "tonic", doc = "```no_run")]
#![cfg_attr(not(feature = "tonic"), doc = "```ignore")]
//! use tonic::service::InterceptorLayer;
//! use tonic::{Request, Status, transport::Server};
//! use tower_sluice::key::User;
//! use tower_sluice::{Policy, Quota, RateLimitLayer};
//!
//! /// Stands for yours: reads the token, and inserts whose it is.
//! fn authenticate(mut request: Request<()>) -> Result<Request<()>, Status> {
//!     let token = request.metadata().get("authorization").and_then(|token| token.to_str().ok());
//!     let user = match token {
//!         Some("Bearer of-ada") => User::new("ada"),
//!         _ => return Err(Status::unauthenticated("no valid token")),
//!     };
//!     request.extensions_mut().insert(user);
//!     Ok(request)
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let per_user = RateLimitLayer::new(Policy::new("per-user", Quota::per_second(10)).key(User::key()));
//!     let (_, service) = tonic_health::server::health_reporter();
//!     Server::builder()
//!         .layer(InterceptorLayer::new(authenticate)) // the outermost
//!         .layer(per_user)
//!         .add_service(service)
//!         .serve("127.0.0.1:3000".parse()?)
//!         .await?;
//!     Ok(())
//! }
//! ```
//!
//! The interceptor of one service (`GreeterServer::with_interceptor`) is inside of all layers of the server, and comes
//! too late.
//!
//! ## What a rejected client gets
//!
//! `RESOURCE_EXHAUSTED`, in one block of headers, so that clients may retry it, with `RetryInfo` and `QuotaFailure` in
//! the details, and the exact wait in `grpc-retry-pushback-ms`. [All fields](crate::grpc).
//!
//! For clients that only retry `UNAVAILABLE`, set [`grpc_status`](crate::layer::RateLimitLayerBuilder::grpc_status);
//! OpenTelemetry then counts rejections as errors of the server.
//!
//! ## Different limits per method
//!
//! The path of a gRPC request is its method, and conditions can match it:
//!
//! ```
//! use tower_sluice::key::HeaderKey;
//! use tower_sluice::{Policy, Quota, RateLimitLayer};
//!
//! let layer = RateLimitLayer::new(
//!     Policy::new("exports", Quota::per_minute(2))
//!         .key(HeaderKey::from_static("authorization"))
//!         .when(|request| request.uri().path() == "/shop.v1.Orders/Export"),
//! );
//! ```
//!
//! Streams are counted when they are opened, not by their messages. How many are open at once is limited by
//! [`Concurrency`](super::in_flight); messages, by [a limiter in the method](super::direct).
//!
//! ## Deadlines
//!
//! In a [queue](super::queue), a call whose `grpc-timeout` ends before it would depart is rejected on arrival, with the
//! time after which a retry would depart within its timeout. So no call waits for longer than its client does.
//!
//! # A client
//!
//! gRPC libraries that retry by themselves obey the pushback, if their service config lists the code as retryable.
//! Those of Python and Node were tried (`scripts/ci/clients`).
//!
//! ```json
//! {"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 3, "initialBackoff": "1s", "maxBackoff": "10s",
//!   "backoffMultiplier": 2, "retryableStatusCodes": ["RESOURCE_EXHAUSTED"]}}]}
//! ```
//!
//! tonic's client does not retry by itself. Read the wait, and call again:
//!
#![cfg_attr(feature = "tonic", doc = "```")]
#![cfg_attr(not(feature = "tonic"), doc = "```ignore")]
//! use std::time::Duration;
//!
//! use tonic::transport::{Channel, Endpoint};
//! use tonic::{Code, Status};
//! use tonic_health::pb::HealthCheckRequest;
//! use tonic_health::pb::health_client::HealthClient;
//! use tonic_types::StatusExt;
//!
//! /// The wait that a rejection asks for.
//! fn wait_of(status: &Status) -> Option<Duration> {
//!     let is_rejection = matches!(status.code(), Code::ResourceExhausted | Code::Unavailable);
//!     if is_rejection { status.get_details_retry_info()?.retry_delay } else { None }
//! }
//!
//! /// Calls up to three times, and waits as long as the server asks for in between.
//! async fn check(client: &mut HealthClient<Channel>) -> Result<i32, Status> {
//!     for _ in 0..2 {
//!         match client.check(HealthCheckRequest::default()).await {
//!             Err(status) => match wait_of(&status) {
//!                 Some(wait) => tokio::time::sleep(wait).await,
//!                 None => return Err(status),
//!             },
//!             Ok(response) => return Ok(response.into_inner().status),
//!         }
//!     }
//!     Ok(client.check(HealthCheckRequest::default()).await?.into_inner().status)
//! }
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! #     let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//! #     let address = format!("http://{}", listener.local_addr()?);
//! #     let (_, service) = tonic_health::server::health_reporter();
//! #     let layer = tower_sluice::RateLimitLayer::per_client(tower_sluice::Quota::per_second(20).burst(1));
//! #     let server = tonic::transport::Server::builder().layer(layer).add_service(service);
//! #     tokio::spawn(server.serve_with_incoming(tokio_stream::wrappers::TcpListenerStream::new(listener)));
//! let channel = Endpoint::from_shared(address)?.connect().await?;
//! let mut client = HealthClient::new(channel);
//! for _ in 0..3 {
//!     println!("{}", check(&mut client).await?);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Many tasks that wait so come back together. To keep to a limit that you know, put a queue around the calls: they
//! depart evenly spaced, and none is rejected.
//!
#![cfg_attr(feature = "tonic", doc = "```no_run")]
#![cfg_attr(not(feature = "tonic"), doc = "```ignore")]
//! use std::sync::Arc;
//!
//! use tonic::Status;
//! use tonic::transport::Channel;
//! use tonic_health::pb::HealthCheckRequest;
//! use tonic_health::pb::health_client::HealthClient;
//! use tower_sluice::{LeakyQueue, LimiterExt, PartitionKey, Quota};
//!
//! #[derive(Clone)]
//! struct Partner {
//!     client: HealthClient<Channel>,
//!     pace: Arc<LeakyQueue>,
//! }
//!
//! impl Partner {
//!     fn new(channel: Channel) -> Self {
//!         // The partner allows 50 per second: nine tenths of it, since calls may arrive closer together.
//!         let pace = LeakyQueue::new(Quota::per_second(45).burst(1));
//!         Self { client: HealthClient::new(channel), pace: Arc::new(pace) }
//!     }
//!
//!     async fn check(&mut self) -> Result<i32, Status> {
//!         let turn = self.pace.acquire(&PartitionKey::from("partner"), 1).await;
//!         match turn.map_err(|error| Status::unavailable(error.to_string()))? {
//!             turn if turn.is_allowed() => {}
//!             _ => return Err(Status::resource_exhausted("the queue is full")),
//!         }
//!         Ok(self.client.check(HealthCheckRequest::default()).await?.into_inner().status)
//!     }
//! }
//! ```
//!
//! On several machines, the queue is a [`SharedQueue`](super::machines#a-shared-queue).
//!
//! Next: [limit part of a handler, or a job](super::direct).
