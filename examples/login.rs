//! A login that slows guessing down, per address and per account. Only failures are counted. The guide's page `login`
//! explains the program.
//!
//! ```sh
//! cargo run -p examples --bin login
//! ```

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::{Json, Router, routing::post};
use tower_sluice::key::{ExtensionKey, PeerIp};
use tower_sluice::{Penalty, Policy, Quota, RateLimitLayer, SlidingWindow};

const QUARTER: Duration = Duration::from_secs(15 * 60);
const ATTEMPTS: Quota = Quota::per_minute(30);
const FAILURES_OF_AN_ADDRESS: Quota = Quota::per(20, QUARTER);
const FAILURES_HERE: Quota = Quota::per(5, QUARTER);
const FAILURES_ANYWHERE: Quota = Quota::per(50, QUARTER);
const EARLY_RETRIES: Quota = Quota::per(10, QUARTER);
const BAN: Duration = Duration::from_secs(3_600);

/// The account that a request wants to log in to, and its device, if that account has logged in on it before.
#[derive(Clone)]
struct Login {
    name: String,
    device: Option<String>,
}

const NAME: ExtensionKey<Login> = ExtensionKey::new(|login| login.name.as_str().into());
const DEVICE: ExtensionKey<Login> = ExtensionKey::new(|login| login.device.as_deref().unwrap_or("unknown").into());

/// Reads the name from the body, and passes the body on.
async fn read_login(request: Request, next: Next) -> Result<Response, StatusCode> {
    let (mut head, body) = request.into_parts();
    let body = to_bytes(body, 4_096).await.map_err(|_| StatusCode::PAYLOAD_TOO_LARGE)?;
    let form: HashMap<String, String> = serde_json::from_slice(&body).map_err(|_| StatusCode::BAD_REQUEST)?;
    // One spelling per account. It would be better to use the account's number, and this name only if no such account
    // exists.
    let name = form.get("name").ok_or(StatusCode::BAD_REQUEST)?.trim().to_lowercase();
    let device = known_device(&head.headers, &name);
    head.extensions.insert(Login { name, device });
    Ok(next.run(Request::from_parts(head, Body::from(body))).await)
}

/// Stands for your check of a cookie that is set when a login succeeds. You must sign it, for this account and with the
/// device's number: otherwise each invented cookie would have its own budget.
fn known_device(headers: &HeaderMap, name: &str) -> Option<String> {
    let cookie = headers.get("cookie")?.to_str().ok()?;
    (cookie == "device=signed-7" && name == "ada").then(|| "7".to_owned())
}

/// Stands for your own handler.
async fn login(Json(form): Json<HashMap<String, String>>) -> StatusCode {
    match (form["name"].trim(), form.get("password").map(String::as_str)) {
        ("ada", Some("correct horse")) => StatusCode::OK,
        _ => StatusCode::UNAUTHORIZED,
    }
}

fn app() -> Router {
    let is_failure = |response: &tower_sluice::policy::ResponseHead<'_>| response.status() == StatusCode::UNAUTHORIZED;
    let failures = RateLimitLayer::new([
        Policy::new("address", SlidingWindow::new(FAILURES_OF_AN_ADDRESS))
            .key(PeerIp::new())
            .charge_when(is_failure)
            .penalty(Penalty::new(EARLY_RETRIES, BAN)),
        Policy::new("account-here", SlidingWindow::new(FAILURES_HERE))
            .key((NAME, PeerIp::new()))
            .charge_when(is_failure)
            .penalty(Penalty::new(EARLY_RETRIES, BAN)),
        // No penalty here: banning an account would lock its owner out.
        Policy::new("account", SlidingWindow::new(FAILURES_ANYWHERE)).key((NAME, DEVICE)).charge_when(is_failure),
    ]);
    // More than ten premature retries per minute lead to a ban of ten minutes. A policy's penalty counts only that
    // policy's own rejections, so the policies above have their own penalties.
    let attempts = Policy::new("attempts", ATTEMPTS)
        .key(PeerIp::new())
        .penalty(Penalty::new(Quota::per_minute(10), Duration::from_secs(600)));
    Router::new()
        .route("/login", post(login))
        // Not `layer`, which would also wrap the answer 404 to an unknown path: that request would be charged as an
        // attempt, and be answered 400, as it has no name.
        .route_layer(failures)
        .route_layer(from_fn(read_login))
        .route_layer(RateLimitLayer::new(attempts)) // The last is the outermost: no body is read for a flood.
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let listener = tokio::net::TcpListener::bind(address).await?;
    let url = format!("http://{}", listener.local_addr()?);
    println!("listening on {url}");
    let json = "-H 'content-type: application/json'";
    println!(
        "try: for i in $(seq 6); do curl -s -o /dev/null -w '%{{http_code}} ' {json} -d '{{\"name\": \"ada\", \"password\": \"guess\"}}' {url}/login; done"
    );
    axum::serve(listener, app().into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
