//! Custom keys: the tenant in the host name, and the account that an outer layer has authenticated.
//!
//! ```sh
//! cargo run -p examples --bin custom_key
//! ```

use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::{Router, routing::get};
use tower_sluice::algorithm::SlidingWindow;
use tower_sluice::key::{ExtensionKey, key_fn};
use tower_sluice::{PartitionKey, Policy, Quota, RateLimitLayer};

#[derive(Clone)]
struct Account {
    number: u64,
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let tenant = key_fn(|request| {
        let host = request.headers().get(header::HOST)?.to_str().ok()?;
        // If a tenant's name could be spelled in many ways, the tenant would have many budgets.
        host.split('.').next().map(|tenant| PartitionKey::from(tenant.to_ascii_lowercase()))
    });
    let account = ExtensionKey::new(|account: &Account| account.number);

    let quota = Quota::per_minute(3);
    let layer = RateLimitLayer::new(Policy::new("per-account", SlidingWindow::new(quota)).key((tenant, account)));

    // The layer added last is the outermost: it authenticates before anything is counted.
    let app = Router::new().route("/", get(|| async { "hello" })).layer(layer).layer(from_fn(authenticate));

    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let listener = tokio::net::TcpListener::bind(address).await?;
    let url = format!("http://{}", listener.local_addr()?);
    println!("listening on {url}");
    let port = listener.local_addr()?.port();
    for tenant in ["a", "b"] {
        println!(
            "try: for i in $(seq 4); do curl -s -o /dev/null -w '%{{http_code}} ' -H 'authorization: Bearer 7' http://{tenant}.localhost:{port}/; done"
        );
    }
    axum::serve(listener, app).await
}

/// Accepts any number. A real service would look the token up.
async fn authenticate(mut request: Request, next: Next) -> Result<Response, StatusCode> {
    let token = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let number = token.and_then(|token| token.strip_prefix("Bearer ")?.parse().ok());
    let account = Account { number: number.ok_or(StatusCode::UNAUTHORIZED)? };
    request.extensions_mut().insert(account);
    Ok(next.run(request).await)
}
