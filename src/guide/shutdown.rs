//! Shut down without waiting for queues.
//!
//! **You want** the server to stop soon after SIGTERM. A graceful shutdown waits for requests in flight, so also for
//! all requests that wait in a [queue](super::queue). Close the queues first:
//!
//! ```no_run
//! use axum::{Router, routing::get};
//! use tokio::net::TcpListener;
//! use tokio::signal::unix::{SignalKind, signal};
//! use tower_sluice::{LeakyQueue, Policy, Quota, RateLimitLayer};
//!
//! #[tokio::main]
//! async fn main() -> std::io::Result<()> {
//!     let layer = RateLimitLayer::new(Policy::new("queue", LeakyQueue::new(Quota::per_second(10))));
//!     let app = Router::new().route("/", get(|| async { "hello" })).layer(layer.clone());
//!
//!     let mut sigterm = signal(SignalKind::terminate())?;
//!     let stop = async move {
//!         sigterm.recv().await;
//!         layer.close();
//!     };
//!     let listener = TcpListener::bind("127.0.0.1:3000").await?;
//!     axum::serve(listener, app).with_graceful_shutdown(stop).await
//! }
//! ```
//!
//! # What is rejected
//!
//! [`RateLimitLayer::close`](crate::RateLimitLayer::close), [`LimitsHandle::close`](crate::LimitsHandle::close) and
//! [`Config::close`](https://docs.rs/tower-sluice-config/latest/tower_sluice_config/struct.Config.html#method.close) reject all waiters and all later requests to a queue with 503.
//! [`LeakyQueue::close`](crate::LeakyQueue::close) does so for one queue. A closed queue stays closed, and so do queues
//! that a later change adds.
//!
//! # Bound the drain
//!
//! A client that never ends its request would keep the server alive for ever. The example server exits after ten
//! seconds. It also drops connections whose request head takes longer than ten seconds (`header_read_timeout` of hyper,
//! and a timeout of its own for the first head): `axum::serve` does not have them.
//!
//! Next: [keep budgets through a restart](super::restarts).
