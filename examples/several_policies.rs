//! Several policies in one layer: per address, per API key, and for all clients together. A request
//! passes if all admit it. Then all are charged; otherwise none is.
//!
//!     cargo run -p examples --example several_policies
//!     for i in $(seq 7); do curl -s -H 'x-api-key: a' http://127.0.0.1:3000/; echo; done
//!     curl -s -X POST -H 'x-api-key: b' http://127.0.0.1:3000/

use std::net::SocketAddr;
use std::time::Duration;

use axum::{Router, routing::any};
use tower_sluice::algorithm::{FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::key::{Global, HeaderKey, PeerIp};
use tower_sluice::{LeakyQueue, MissingKey, Policy, Quota, RateLimitLayer};

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let api_key = || HeaderKey::from_static("x-api-key");
    let layer = RateLimitLayer::new([
        Policy::new("per-client", TokenBucket::new(Quota::per_second(10))).key(PeerIp::new()),
        // A short and a long limit on the same key. Without a key, only the address counts.
        Policy::new("per-minute", SlidingWindow::new(Quota::per_minute(5)))
            .key(api_key())
            .on_missing_key(MissingKey::Skip),
        Policy::new("per-day", FixedWindow::new(Quota::per_day(1_000))).key(api_key()).on_missing_key(MissingKey::Skip),
        // Writes depart one by one, twice a second; up to six wait, three seconds at most.
        Policy::new("writes", LeakyQueue::new(Quota::per_second(2)).capacity(6))
            .key(Global)
            .when(|request| request.method() == http::Method::POST),
        // A stricter limit as a dry run: counted, never enforced.
        Policy::new("stricter", TokenBucket::new(Quota::per_second(1))).key(PeerIp::new()).shadow(),
    ]);

    let app = Router::new().route("/", any(|| async { "hello" })).layer(layer.clone());

    tokio::spawn(async move {
        let mut every_ten_seconds = tokio::time::interval(Duration::from_secs(10));
        loop {
            every_ten_seconds.tick().await;
            println!("a stricter limit would have rejected {}", layer.shadow_rejected("stricter").unwrap_or(0));
        }
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await
}
