//! Bans and debts that processes share, since Redis keeps them with the keys' budgets.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Request, Response, StatusCode};
use tokio::sync::Barrier;
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::algorithm::{FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::key::User;
use tower_sluice::{
    ChargeOnce, FailureMode, PartitionKey, Penalty, Policy, Quota, RateLimitLayer, RateLimiter, Settlement,
};
use tower_sluice_redis::{Redis, RedisStore, RedisTable, Scripted};

use crate::support::clients::PLENTY;
use crate::support::redis::RedisServer;
use crate::support::timing::eventually;

const DAY: Duration = Duration::from_secs(86_400);

/// A ban lasts for longer than any wait without it.
const BAN: Duration = Duration::from_secs(7 * 86_400);

/// Connects as another process would.
fn redis(server: &RedisServer) -> Redis {
    Redis::single(server.url()).timeout(PLENTY).connect_timeout(PLENTY).open().unwrap()
}

fn limiter<A: Scripted>(redis: &Redis, name: &str, algorithm: A) -> RateLimiter<A, RedisTable<A::State>> {
    RateLimiter::new(algorithm, RedisStore::new(redis, name))
}

/// Ten units a day, with a request's query as its cost; a ban for more than one premature retry.
fn api(redis: &Redis) -> Policy {
    Policy::new("api", limiter(redis, "api", TokenBucket::new(Quota::per_day(10))))
        .key(User::key())
        .cost_fn(|request| request.uri().query().map_or(1, |cost| cost.parse().unwrap()))
        .penalty(Penalty::new(Quota::per_day(1), BAN))
}

fn request(cost: u64) -> Request<()> {
    let mut request = Request::get(format!("/?{cost}")).body(()).unwrap();
    request.extensions_mut().insert(User::new("alice"));
    request
}

fn alice() -> PartitionKey {
    "alice".into()
}

async fn respond(layer: &RateLimitLayer, request: Request<()>) -> (StatusCode, HeaderMap) {
    let hello = service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(())) });
    let response = layer.clone().layer(hello).oneshot(request).await.unwrap();
    (response.status(), response.headers().clone())
}

/// The seconds in `Retry-After`; zero if the request passes.
async fn wait(layer: &RateLimitLayer, cost: u64) -> u64 {
    wait_in(&respond(layer, request(cost)).await.1)
}

fn wait_in(headers: &HeaderMap) -> u64 {
    headers.get("retry-after").map_or(0, |wait| wait.to_str().unwrap().parse().unwrap())
}

/// Whether a wait belongs to a ban which began within the last day.
fn is_ban(wait: u64) -> bool {
    (6 * 86_400 + 1..=7 * 86_400).contains(&wait)
}

/// Uses half of the available units. Premature retries of requests for them all are a ban, which is known on the server
/// then.
async fn ban(layer: &RateLimitLayer) {
    assert_eq!(wait(layer, 5).await, 0);
    for _ in 0..2 {
        let wait = wait(layer, 10).await;
        assert!(wait > 0 && !is_ban(wait), "{wait}");
    }
    assert!(is_ban(wait(layer, 10).await));
    let is_known = async || !layer.handle().peek("api", &alice()).await.unwrap().decision().is_allowed();
    eventually("the ban is on the server", is_known).await;
}

fn calls(server: &RedisServer) -> u64 {
    let stat = server.info("cmdstat_evalsha");
    stat.split(',').find_map(|field| field.strip_prefix("calls=")).map_or(0, |calls| calls.parse().unwrap())
}

/// Each process banned by its own rejections, and a key that it had banned passed in the others. Any process can lift
/// the ban.
#[tokio::test]
async fn all_processes_reject_a_banned_client() {
    let server = RedisServer::start();
    let process = || RateLimitLayer::new(api(&redis(&server)));
    let (first, second, third) = (process(), process(), process());
    assert_eq!(wait(&second, 1).await, 0);
    ban(&first).await;
    for layer in [&second, &third] {
        let before = calls(&server);
        let (status, headers) = respond(layer, request(1)).await;
        assert!(status == 429 && is_ban(wait_in(&headers)), "{status}, {headers:?}");
        assert_eq!(calls(&server) - before, 1, "as each decision takes");
    }
    let peeked = third.handle().peek("api", &alice()).await.unwrap();
    let left = peeked.ban().unwrap().left();
    assert!(!peeked.decision().is_allowed() && is_ban(left.as_secs() + 1), "{peeked:?}");
    assert!(third.handle().reset("api", &alice()).await.unwrap().decision().is_allowed());
    assert_eq!(wait(&third, 1).await, 0);
    assert_eq!(wait(&process(), 1).await, 0);
    // These know the ban for half a second.
    for layer in [&first, &second] {
        eventually("it passes again", async || wait(layer, 1).await == 0).await;
    }
}

/// It rejects requests with several limits, too.
#[tokio::test]
async fn a_ban_rejects_free_retries_too() {
    let server = RedisServer::start();
    let redis = redis(&server);
    ban(&RateLimitLayer::new(api(&redis))).await;
    let other = || {
        let window = limiter(&redis, "other", FixedWindow::new(Quota::per_day(10)));
        Policy::new("other", window).key(User::key())
    };
    let both = RateLimitLayer::new([other(), api(&redis)]);
    let before = calls(&server);
    assert!(is_ban(wait(&both, 1).await));
    assert_eq!(calls(&server) - before, 1);
    assert_eq!(both.handle().peek("other", &alice()).await.unwrap().decision().remaining(), 10, "it is not charged");
    let once = ChargeOnce::by_header(http::HeaderName::from_static("idempotency-key")).within(DAY);
    let retried = RateLimitLayer::new(api(&redis).charge_once(once));
    let mut retry = request(1);
    retry.headers_mut().insert("idempotency-key", "one".parse().unwrap());
    assert!(is_ban(wait_in(&respond(&retried, retry).await.1)));
}

/// A process that has made a ban, or has seen it, rejects by it while Redis is out of reach.
#[tokio::test]
async fn known_bans_outlast_an_outage() {
    let mut server = RedisServer::start();
    let process = || RateLimitLayer::new(api(&redis(&server)).on_failure(FailureMode::Allow));
    let (first, second, third) = (process(), process(), process());
    ban(&first).await;
    assert!(is_ban(wait(&second, 1).await));
    server.kill();
    assert_eq!(wait(&third, 1).await, 0, "it has not heard of it");
    for layer in [&first, &second] {
        // A state that it has read from the server is forgotten after a minute; the ban is not.
        assert!(is_ban(wait(layer, 1).await));
    }
}

/// Sends a request that turns out to have this cost.
async fn settle(layer: &RateLimitLayer, cost: u64) -> (StatusCode, HeaderMap) {
    settle_with(layer, cost, Arc::new(Barrier::new(1))).await
}

/// Sends such a request, which is settled once all have come to the barrier.
async fn settle_with(layer: &RateLimitLayer, cost: u64, barrier: Arc<Barrier>) -> (StatusCode, HeaderMap) {
    let handler = service_fn(move |request: Request<()>| {
        let barrier = Arc::clone(&barrier);
        async move {
            barrier.wait().await;
            request.extensions().get::<Settlement>().unwrap().settle("units", cost).unwrap();
            Ok::<_, Infallible>(Response::new(()))
        }
    });
    let response = layer.clone().layer(handler).oneshot(request(1)).await.unwrap();
    (response.status(), response.headers().clone())
}

fn owing<A: Scripted>(redis: &Redis, algorithm: A) -> RateLimitLayer {
    let units = limiter(redis, "units", algorithm);
    RateLimitLayer::new(Policy::new("units", units).key(User::key()).settle_by_handler().owe_shortfalls())
}

/// The bucket has ten units, and the request costs 25. A process did not know about another one's debts.
#[tokio::test]
async fn one_processs_debt_is_paid_in_all() {
    let server = RedisServer::start();
    let layer = || owing(&redis(&server), TokenBucket::new(Quota::per_day(10)));
    let (first, second) = (layer(), layer());
    assert_eq!(settle(&first, 25).await.0, 200);
    for layer in [&first, &second] {
        let peek = async || *layer.handle().peek("units", &alice()).await.unwrap().decision();
        eventually("the debt is known", async || peek().await.reset_after() > DAY).await;
        let left = peek().await;
        assert_eq!(left.remaining(), 0);
        assert!(left.reset_after() > DAY * 24 / 10 && left.reset_after() <= DAY * 25 / 10, "{left:?}");
        let before = calls(&server);
        let (status, headers) = settle(layer, 1).await;
        let wait = wait_in(&headers);
        assert!(status == 429 && wait > 86_400 && wait <= 16 * 8_640, "{status}, {wait} s");
        assert!(calls(&server) - before <= 1);
    }
    let _ = second.handle().reset("units", &alice()).await.unwrap();
    assert_eq!(settle(&second, 1).await.0, 200);
    eventually("the other process has heard of it", async || settle(&first, 1).await.0 == 200).await;
}

#[tokio::test]
async fn debts_of_windows_add_up_over_processes() {
    async fn check<A: Scripted>(algorithm: A) {
        let server = RedisServer::start();
        let layers = [(); 2].map(|()| owing(&redis(&server), algorithm.clone()));
        // Both requests are admitted before the first is settled.
        let barrier = Arc::new(Barrier::new(2));
        let both = layers.each_ref().map(|layer| settle_with(layer, 35, Arc::clone(&barrier)));
        for (status, _) in futures_util::future::join_all(both).await {
            assert_eq!(status, 200);
        }
        let peek = async || layers[0].handle().peek("units", &alice()).await.unwrap().decision().reset_after();
        // The debt is 70 units: ten fit into the present window, and ten into each after it.
        eventually("all is owed", async || peek().await > 6 * DAY).await;
        assert!(peek().await <= 9 * DAY);
    }
    check(FixedWindow::new(Quota::per_day(10))).await;
    check(SlidingWindow::new(Quota::per_day(10))).await;
}

/// If a process cannot report a debt to the server, it keeps the debt itself.
#[tokio::test]
async fn an_outages_debt_stays_in_this_process() {
    let mut server = RedisServer::start();
    let units = limiter(&redis(&server), "units", TokenBucket::new(Quota::per_day(10)));
    let policy = Policy::new("units", units).key(User::key()).settle_by_handler().owe_shortfalls();
    let layer = RateLimitLayer::new(policy.on_failure(FailureMode::Allow));
    assert_eq!(settle(&layer, 2).await.0, 200);
    let barrier = Arc::new(Barrier::new(2));
    let pending = {
        let (layer, barrier) = (layer.clone(), Arc::clone(&barrier));
        tokio::spawn(async move { settle_with(&layer, 25, barrier).await })
    };
    let is_charged = async || layer.handle().peek("units", &alice()).await.unwrap().decision().remaining() == 7;
    eventually("the request is admitted", is_charged).await;
    server.kill();
    barrier.wait().await;
    assert_eq!(pending.await.unwrap().0, 200);
    eventually("it is owed here", async || respond(&layer, request(1)).await.0 == 429).await;
}

/// A one-week ban, then a two-week ban: the second process repeats the first one's ban.
#[tokio::test]
async fn processes_count_bans_together() {
    let server = RedisServer::start();
    let week = Duration::from_secs(7 * 86_400);
    let policy = |name: &'static str, redis: &Redis| {
        let penalty = Penalty::new(Quota::per_day(1), week).growing(2, 3 * week).forgetting_after(week);
        Policy::new(name, limiter(redis, name, TokenBucket::new(Quota::per_day(1)))).key(User::key()).penalty(penalty)
    };
    let connections = [redis(&server), redis(&server)];
    let [first, second] = [0, 1].map(|index| RateLimitLayer::new(policy("api", &connections[index])));
    let ban_of = async |layer: &RateLimitLayer| {
        let status = layer.handle().peek("api", "alice").await.unwrap();
        status.ban().map_or(0, |ban| ban.left().as_secs().div_ceil(86_400))
    };
    // Premature retries, until the ban has begun on the server.
    let misbehave = async |layer: &RateLimitLayer| {
        for _ in 0..4 {
            let _ = respond(layer, request(1)).await;
        }
    };
    misbehave(&first).await;
    eventually("it is banned", async || ban_of(&second).await == 7).await;
    let names = || server.run::<Vec<String>>(&["KEYS", "*:api:x"]);
    let [bans] = &names()[..] else { panic!("{:?}", names()) };
    // The ban is over, and not forgotten: its deadline on the server is the bans', and the key owes its unit.
    let times: String = server.run(&["GET", bans]);
    assert!(times.starts_with("1:"), "{times}");
    let left: u64 = server.run(&["PTTL", bans]);
    // The server rounds the end up to a millisecond, so that 14 days and one millisecond may be left.
    let (fortnight, minute) = (14 * 86_400_000, 60_000);
    assert!(left.abs_diff(fortnight) < minute, "a week of ban, and a week of quiet: {left}");
    let budget = server.run::<Vec<String>>(&["KEYS", "*:api:b"]).pop().unwrap();
    let text: String = server.run(&["GET", &budget]);
    let state = text.rsplit('!').next().unwrap();
    server.run::<()>(&["SET", &budget, state]);
    // For a while, the second process believes that the first ban lasts.
    eventually("the second ban is longer", async || {
        misbehave(&second).await;
        ban_of(&second).await == 14
    })
    .await;
    // An operator lets the key in, and its bans are forgotten.
    let _ = first.handle().unban("api", "alice").await.unwrap();
    eventually("they are forgotten", async || names().is_empty()).await;
    eventually("it is let in", async || ban_of(&second).await == 0).await;
}
