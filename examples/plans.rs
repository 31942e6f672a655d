//! An API that is sold: keys with plans, a pace, a month by the customer's clocks, a pool for teams, overage, units
//! that are bought, warnings, requests in flight, and a language model's tokens. The guide's page `plans` explains the
//! program.
//!
//! ```sh
//! cargo run -p examples --features calendar,config,postgres,redis --bin plans
//! cargo run -p examples --features calendar,config,postgres,redis --bin plans -- 127.0.0.1:3000 store.toml
//! ```
//!
//! Without a file, budgets are in this process. With one, processes share all budgets on its server:
//!
//! ```toml
//! [store.postgres]
//! url = "postgres://app@127.0.0.1/shop"
//! # Units that are sold are worth a wait: an answer of this process alone could give them away twice.
//! timeout = "5s"
//! ```
//!
//! or
//!
//! ```toml
//! [store.redis]
//! url = "redis://127.0.0.1"
//! timeout = "5s"
//! ```

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::{
    Router,
    routing::{get, post},
};
use futures_util::{StreamExt, stream};
use tower_sluice::key::{KeyExtractor, PeerIp, User, key_fn};
use tower_sluice::limiter::Credit;
use tower_sluice::policy::Crossing;
use tower_sluice::{
    CalendarWindow, Limiter, LimiterError, LimiterExt, LimitsHandle, MissingKey, PartitionKey, Penalty, Policy, Quota,
    RateLimitLayer, Rejection, RequestHead, Settlement, SlidingWindow, TokenBucket, Verdict,
};
use tower_sluice_config::Config;
use tower_sluice_config::store::{self, ConcurrencySpec, NoLimiter, Store};

/// A plan's allowances. Each row that is read is a unit.
#[derive(Clone, Copy)]
struct Plan {
    pace: Quota,
    in_flight: u64,
    /// Units per billing month.
    included: u64,
    /// Further units per billing month, at a price.
    overage: u64,
    tokens: Quota,
}

const FREE: Plan =
    Plan { pace: Quota::per_minute(60), in_flight: 2, included: 1_000, overage: 0, tokens: Quota::per_minute(20_000) };
const PRO: Plan = Plan {
    pace: Quota::per_minute(6_000).burst(500),
    in_flight: 20,
    included: 10_000,
    overage: 5_000,
    tokens: Quota::per_minute(500_000),
};
const TEAM: Plan = Plan { included: 2_000, overage: 0, ..PRO };
/// A team's members share these units per month, once they have used their own ...
const POOL: u64 = 6_000;
/// ... and each member takes at most this many.
const OF_POOL: u64 = 4_000;

/// A customer, as an extension in its requests.
#[derive(Clone)]
struct Account {
    plan: Plan,
    team: Option<&'static str>,
    /// The plan's units, in months that begin on the billing day, by the customer's clocks.
    included: CalendarWindow,
    /// `None` without overage.
    overage: Option<CalendarWindow>,
}

/// Stands for your account table.
fn account(api_key: &str) -> Option<(User, Account)> {
    let (name, plan, team, zone, billing_day) = match api_key {
        "key-of-ada" => ("ada", PRO, None, "Europe/Berlin", 17),
        "key-of-bob" => ("bob", FREE, None, "UTC", 1),
        "key-of-cyd" => ("cyd", TEAM, Some("engines"), "America/New_York", 31),
        "key-of-dee" => ("dee", TEAM, Some("engines"), "Asia/Kolkata", 1),
        "key-of-eve" => ("eve", TEAM, Some("sails"), "Pacific/Auckland", 30),
        "key-of-fay" => ("fay", PRO, None, "America/St_Johns", 29),
        _ => return None,
    };
    let month = |limit| CalendarWindow::monthly(limit).anchor(billing_day).zone(zone).ok();
    let overage = if plan.overage > 0 { Some(month(plan.overage)?) } else { None };
    Some((User::new(name), Account { plan, team, included: month(plan.included)?, overage }))
}

/// Ten wrong keys per hour and address. Each request is charged before its key is looked up, so that no address has
/// more than ten guesses open. If the key is right, the charge is refunded, so serving the request does not count.
async fn authenticate(
    State(guesses): State<Arc<dyn Limiter>>,
    mut request: Request,
    next: Next,
) -> axum::response::Result<Response> {
    // Behind a proxy: ClientIp, or all customers share these ten guesses.
    let address = PeerIp::new().extract(&RequestHead::from(&request)).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    let guess = guesses.acquire(&address, 1).await.map_err(Box::<Rejection>::from)?;
    let guess = Rejection::unless_allowed("guesses", guess)?;
    let api_key = request.headers().get("x-api-key").and_then(|key| key.to_str().ok());
    let (user, account) = api_key.and_then(account).ok_or(StatusCode::UNAUTHORIZED)?;
    guess.refund();
    request.extensions_mut().insert(user);
    request.extensions_mut().insert(account);
    Ok(next.run(request).await)
}

fn account_of<'a>(request: &'a RequestHead<'_>) -> Option<&'a Account> {
    request.extensions().get()
}

/// A request's units: the rows for `/v1/rows/{count}`, nothing for `/v1/usage`, and otherwise one.
fn units(request: &RequestHead<'_>) -> u64 {
    match request.uri().path().split('/').collect::<Vec<_>>()[..] {
        ["", "v1", "rows", count] => count.parse().unwrap_or(1),
        ["", "v1", "usage"] => 0,
        _ => 1,
    }
}

/// Stands for a mail to the customer.
fn warn(crossing: &Crossing<'_>) {
    let customer = crossing.key_text();
    println!("mail to {customer}: you have used {} of {} units", crossing.used(), crossing.limit());
}

/// Shows a customer how much is left.
async fn usage(verdict: Verdict) -> String {
    let left = verdict.policies().iter().map(|policy| (policy.name(), policy.decision().remaining()));
    left.map(|(name, units)| format!("{name}: {units} left\n")).collect()
}

/// Streams an answer, and reports each token before it is sent.
async fn chat(settlement: Settlement, prompt: String) -> Body {
    let words: Vec<String> = prompt.split(' ').map(str::to_uppercase).collect();
    let answer = stream::iter(words).map(move |word| {
        // Before the word is sent: the client may leave after it, and then the stream never ends.
        settlement.add_all(1);
        Ok::<_, std::io::Error>(Bytes::from(word))
    });
    Body::from_stream(answer)
}

/// The payment provider calls this when a customer has bought units, which can be used for 90 days. It may call twice.
/// Verify its signature here.
async fn paid(
    State(limits): State<LimitsHandle>,
    Path((customer, units, invoice)): Path<(String, u64, String)>,
) -> Result<String, (StatusCode, String)> {
    let credit = Credit::units(units).expires_in(Duration::from_secs(90 * 86_400)).reference(invoice);
    let failed = |error: LimiterError| (StatusCode::SERVICE_UNAVAILABLE, format!("{error:#}; call again"));
    let balance = limits.credit("bought", &*customer, credit).await.map_err(failed)?;
    Ok(if balance.is_repeated() { "was bought before" } else { "bought" }.to_owned())
}

/// Opens the store for budgets: in this process alone, or on the server that a file names.
async fn open_store(file: Option<String>) -> Result<Arc<dyn Store>, Box<dyn Error>> {
    let Some(file) = file else { return Ok(store::memory()) };
    let reader = Config::reader()
        .store("postgres", tower_sluice_postgres::file::open)
        .store("redis", tower_sluice_redis::file::open);
    let store = reader.open_store(&file, &std::fs::read_to_string(&file)?)?;
    store.prepare().await?;
    Ok(store)
}

fn app(store: &dyn Store) -> Result<Router, NoLimiter> {
    let in_units = |name: &'static str, month: u64| {
        let window = CalendarWindow::monthly(month);
        Ok::<_, NoLimiter>(Policy::new(name, store.rate_limiter(name, window.into())?).cost_fn(units))
    };
    // Each policy's own limit applies to customers without one.
    let included = in_units("included", FREE.included)?
        .key(User::key())
        .window_fn(|request| Some(account_of(request)?.included.clone()))
        .on_crossing(0.8, warn);
    let pool = in_units("pool", POOL)?
        .key(key_fn(|request| Some(PartitionKey::from(account_of(request)?.team?))))
        .on_missing_key(MissingKey::Skip);
    let of_pool = in_units("of-pool", OF_POOL)?
        .key(User::key())
        .when(|request| account_of(request).is_some_and(|account| account.team.is_some()));
    let overage = in_units("overage", PRO.overage)?
        .key(User::key())
        .when(|request| account_of(request).is_some_and(|account| account.overage.is_some()))
        .window_fn(|request| account_of(request)?.overage.clone());
    let bought = Policy::new("bought", store.balance("bought")?).key(User::key()).cost_fn(units);

    let pace = Policy::new("pace", store.rate_limiter("pace", TokenBucket::new(FREE.pace).into())?)
        .key(User::key())
        .quota_fn(|request| Some(account_of(request)?.plan.pace))
        // For clients that retry prematurely twenty times in a minute.
        .penalty(Penalty::new(Quota::per_minute(20), Duration::from_secs(600)));
    let in_flight = Policy::new("in-flight", store.concurrency("in-flight", ConcurrencySpec::new(FREE.in_flight))?)
        .key(User::key())
        .limit_fn(|request| Some(account_of(request)?.plan.in_flight));
    let tokens = Policy::new("tokens", store.rate_limiter("tokens", SlidingWindow::new(FREE.tokens).into())?)
        .key(User::key())
        .when(|request| matches!(request.uri().path(), "/v1/chat" | "/v1/usage"))
        .quota_fn(|request| Some(account_of(request)?.plan.tokens))
        // The usual cost of an answer; corrected when the answer has ended.
        .cost_fn(|request| if request.uri().path() == "/v1/usage" { 0 } else { 500 })
        .settle_by_handler()
        .owe_shortfalls();

    // One layer, so that a request is charged to all of these policies or to none, and to one alternative.
    let units = included.or_else(pool.and(of_pool)).or_else(overage).or_else(bought);
    let plans = RateLimitLayer::builder(pace.and(in_flight).and(units).and(tokens))
        .verdict() // for `usage`
        .build();
    let limits = plans.handle();
    let guesses = store.rate_limiter("guesses", SlidingWindow::new(Quota::per_hour(10)).into())?;

    Ok(Router::new()
        .route("/v1/rows/{count}", get(|| async { "[]" }))
        .route("/v1/chat", post(chat))
        .route("/v1/usage", get(usage))
        .layer(plans)
        .layer(from_fn_with_state(guesses, authenticate)) // The last is the outermost.
        .merge(Router::new().route("/paid/{customer}/{units}/{invoice}", post(paid)).with_state(limits)))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let store = open_store(arguments.next()).await?;
    let listener = tokio::net::TcpListener::bind(address).await?;
    let url = format!("http://{}", listener.local_addr()?);
    println!("listening on {url}");
    println!("try: curl -si -H 'x-api-key: key-of-bob' {url}/v1/rows/1 | grep -i ratelimit");
    println!("try: curl -s -H 'x-api-key: key-of-bob' -d 'how are you' {url}/v1/chat");
    println!("try: curl -si -H 'x-api-key: key-of-ada' {url}/v1/rows/1 | grep -i ratelimit");
    println!("try: curl -s -H 'x-api-key: key-of-bob' {url}/v1/usage");
    axum::serve(listener, app(&*store)?.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
