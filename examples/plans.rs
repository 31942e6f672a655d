//! An API that is sold: keys with plans, a pace and a month per customer, requests in flight, and tokens of a language
//! model. Page `plans` of the guide explains the program.
//!
//! ```sh
//! cargo run -p examples --features calendar --bin plans
//! ```

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::{
    Router,
    routing::{get, post},
};
use futures_util::{StreamExt, stream};
use tower_sluice::key::{KeyExtractor, PeerIp, User};
use tower_sluice::limiter::IntoLimiter;
use tower_sluice::{
    CalendarWindow, Concurrency, Limiter, LimiterExt, Policy, Quota, RateLimitLayer, Rejection, RequestHead,
    Settlement, SlidingWindow, Verdict,
};

/// What a plan allows.
#[derive(Clone, Copy)]
struct Plan {
    pace: Quota,
    per_month: u64,
    tokens: Quota,
}

const FREE: Plan = Plan { pace: Quota::per_minute(60), per_month: 1_000, tokens: Quota::per_minute(20_000) };
const PRO: Plan =
    Plan { pace: Quota::per_minute(6_000).burst(500), per_month: 1_000_000, tokens: Quota::per_minute(500_000) };
const MONTH: Duration = Duration::from_secs(30 * 86_400);

/// Stands for your table of accounts.
fn account(api_key: &str) -> Option<(User, Plan)> {
    match api_key {
        "key-of-ada" => Some((User::new("ada"), PRO)),
        "key-of-bob" => Some((User::new("bob"), FREE)),
        _ => None,
    }
}

/// Ten wrong keys per hour and address. Each request is charged before its key is looked up, so that no address has
/// more than ten guesses open, and refunded if the key is right: what it takes to serve the request does not count.
async fn authenticate(
    State(guesses): State<Arc<dyn Limiter>>,
    mut request: Request,
    next: Next,
) -> axum::response::Result<Response> {
    let address = PeerIp::new().extract(&RequestHead::from(&request)).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    let guess = guesses.acquire(&address, 1).await.map_err(Box::<Rejection>::from)?;
    let guess = Rejection::unless_allowed("guesses", guess)?;
    let api_key = request.headers().get("x-api-key").and_then(|key| key.to_str().ok());
    let (user, plan) = api_key.and_then(account).ok_or(StatusCode::UNAUTHORIZED)?;
    guess.refund();
    request.extensions_mut().insert(user);
    request.extensions_mut().insert(plan);
    Ok(next.run(request).await)
}

fn plan(request: &RequestHead<'_>) -> Option<Plan> {
    request.extensions().get().copied()
}

/// The cost of a request: nothing for one that only asks what is left.
fn unless_usage(cost: u64) -> impl Fn(&RequestHead<'_>) -> u64 {
    move |request| if request.uri().path() == "/v1/usage" { 0 } else { cost }
}

/// Shows a customer what is left.
async fn usage(verdict: Verdict) -> String {
    let left = verdict.policies().iter().map(|policy| (policy.name(), policy.decision().remaining()));
    left.map(|(name, units)| format!("{name}: {units} left\n")).collect()
}

/// Streams an answer, and reports each token before it is sent.
async fn chat(settlement: Settlement, prompt: String) -> Body {
    let words: Vec<String> = prompt.split(' ').map(str::to_uppercase).collect();
    let answer = stream::iter(words).map(move |word| {
        // Before the word is sent: the client may leave after it, and then the stream never ends.
        let _ = settlement.add("tokens", 1);
        Ok::<_, std::io::Error>(Bytes::from(word))
    });
    Body::from_stream(answer)
}

fn app() -> Result<Router, Box<dyn std::error::Error>> {
    // Each quota of a policy is that of a customer without a plan of his own.
    let month = CalendarWindow::monthly(FREE.per_month).zone("Europe/Berlin")?;
    // One layer, so that a request is charged to all of these policies or to none.
    let plans = RateLimitLayer::builder([
        Policy::new("pace", FREE.pace).key(User::key()).quota_fn(|request| Some(plan(request)?.pace)),
        // Of a quota for a window of the calendar, only the limit counts.
        Policy::new("month", month)
            .key(User::key())
            .quota_fn(|request| Some(Quota::per(plan(request)?.per_month, MONTH)))
            .cost_fn(unless_usage(1)),
        Policy::new("in-flight", Concurrency::new(8)).key(User::key()),
        Policy::new("tokens", SlidingWindow::new(FREE.tokens))
            .key(User::key())
            .when(|request| matches!(request.uri().path(), "/v1/chat" | "/v1/usage"))
            .quota_fn(|request| Some(plan(request)?.tokens))
            .cost_fn(unless_usage(500)) // what an answer usually takes; corrected when it has ended
            .settle_by_handler()
            .owe_shortfalls(),
    ])
    .verdict() // for `usage`
    .build();
    let guesses = SlidingWindow::new(Quota::per_hour(10)).into_limiter();

    Ok(Router::new()
        .route("/v1/orders", get(|| async { "[]" }))
        .route("/v1/chat", post(chat))
        .route("/v1/usage", get(usage))
        .layer(plans)
        .layer(from_fn_with_state(guesses, authenticate))) // The last is the outermost.
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let listener = tokio::net::TcpListener::bind(address).await?;
    let url = format!("http://{}", listener.local_addr()?);
    println!("listening on {url}");
    println!("try: curl -si -H 'x-api-key: key-of-bob' {url}/v1/orders | grep -i ratelimit");
    println!("try: curl -s -H 'x-api-key: key-of-bob' -d 'how are you' {url}/v1/chat");
    println!("try: curl -si -H 'x-api-key: key-of-ada' {url}/v1/orders | grep -i ratelimit");
    println!("try: curl -s -H 'x-api-key: key-of-bob' {url}/v1/usage");
    axum::serve(listener, app()?.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
