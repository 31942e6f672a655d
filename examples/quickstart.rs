//! An axum app in which each client may send 20 requests at once, and 10 per second in the long run.
//!
//! ```sh
//! cargo run -p examples --bin quickstart
//! ```

use std::net::SocketAddr;

use axum::{Router, routing::get};
use tower_sluice::{Quota, RateLimitLayer};

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let layer = RateLimitLayer::per_client(Quota::per_second(10).burst(20));

    let app = Router::new().route("/", get(|| async { "hello\n" })).layer(layer);

    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let listener = tokio::net::TcpListener::bind(address).await?;
    let url = format!("http://{}", listener.local_addr()?);
    println!("listening on {url}");
    println!("try: for i in $(seq 25); do curl -s -o /dev/null -w '%{{http_code}} ' {url}/; done");
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await
}
