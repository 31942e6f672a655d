//! An axum app in which each client may send 20 requests at once, and 10 per second in the long run.
//!
//!     cargo run -p examples --example quickstart
//!     for i in $(seq 25); do curl -s -o /dev/null -w '%{http_code}\n' http://127.0.0.1:3000/; done

use std::net::SocketAddr;

use axum::{Router, routing::get};
use tower_sluice::{Quota, RateLimitLayer};

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let layer = RateLimitLayer::per_client(Quota::per_second(10).burst(20));

    let app = Router::new().route("/", get(|| async { "hello\n" })).layer(layer);

    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await
}
