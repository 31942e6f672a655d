//! An API for pages on other origins. The CORS layer is outside the rate limit, so that a rejection carries its fields,
//! too (without them, a script sees only "network error"), and preflights are answered before they reach the limit,
//! where they would count like all requests. To let scripts read further fields, expose them.
//!
//! ```sh
//! cargo run -p examples --bin cors
//! ```

use std::net::SocketAddr;
use std::time::Duration;

use axum::http::Method;
use axum::{Router, routing::get};
use tower_http::cors::{Any, CorsLayer};
use tower_sluice::algorithm::TokenBucket;
use tower_sluice::headers::EXPOSED_HEADERS;
use tower_sluice::key::PeerIp;
use tower_sluice::{Policy, Quota, RateLimitLayer};

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let quota = Quota::per(1, Duration::from_secs(2));
    let limit = RateLimitLayer::new(Policy::new("per-client", TokenBucket::new(quota)).key(PeerIp::new()));

    let cors = CorsLayer::new()
        // A service that reads cookies must name its pages instead.
        .allow_origin(Any)
        .allow_methods([Method::GET])
        .allow_headers(Any)
        .expose_headers(EXPOSED_HEADERS);

    // The last layer is the outermost.
    let app = Router::new().route("/", get(|| async { "hello\n" })).layer(limit).layer(cors);

    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let listener = tokio::net::TcpListener::bind(address).await?;
    let url = format!("http://{}", listener.local_addr()?);
    println!("listening on {url}");
    println!("try: for i in 1 2; do curl -si -H 'origin: https://page.example' {url}/; done");
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await
}
