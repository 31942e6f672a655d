//! One limit for several processes, on Redis: together they admit ten requests, and one more every six seconds. While
//! Redis is out, each process decides by itself. The guide's page `machines` explains it.
//!
//! ```sh
//! redis-server --save '' &
//! cargo run -p examples --features redis --bin machines &
//! cargo run -p examples --features redis --bin machines -- 127.0.0.1:3001
//! ```
//!
//! Try the commands that both print; then stop Redis (`redis-cli shutdown`), and try them again.

use std::net::SocketAddr;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Router, routing::get};
use tower_sluice::key::PeerIp;
use tower_sluice::{Policy, Quota, RateLimitLayer, RateLimiter, TokenBucket};
use tower_sluice_redis::{Redis, RedisStore};

/// For a probe: is the limit shared at the moment?
async fn shared(State(redis): State<Redis>) -> (StatusCode, String) {
    match redis.ping().await {
        Ok(()) => (StatusCode::OK, "yes, Redis answers\n".to_owned()),
        Err(fault) => (StatusCode::SERVICE_UNAVAILABLE, format!("no, this process decides by itself: {fault}\n")),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let redis = arguments.next().unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());

    // Connects with the first request. Processes that use equal names share their budgets.
    let redis = Redis::open(redis)?;
    let bucket = TokenBucket::new(Quota::per_minute(10));
    let limiter = RateLimiter::new(bucket, RedisStore::new(&redis, "per-client"));
    let layer = RateLimitLayer::new(Policy::new("per-client", limiter).key(PeerIp::new()));
    let app = Router::new()
        .route("/", get(|| async { "hello\n" }))
        .layer(layer)
        .route("/shared", get(shared)) // added after the layer: not limited
        .with_state(redis);

    let listener = tokio::net::TcpListener::bind(address).await?;
    let url = format!("http://{}", listener.local_addr()?);
    println!("listening on {url}");
    println!("try: for i in $(seq 8); do curl -s -o /dev/null -w '%{{http_code}} ' {url}/; done");
    println!("try: curl -s {url}/shared");
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
