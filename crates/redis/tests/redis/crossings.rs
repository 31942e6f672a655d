//! Crossings of shares of limits on Redis: one of all processes reports each.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use futures_util::future::join_all;
use http::{Request, Response};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::algorithm::{FixedWindow, TokenBucket};
use tower_sluice::key::User;
use tower_sluice::{Policy, Quota, RateLimitLayer, RateLimiter, Settlement};
use tower_sluice_redis::{Redis, RedisStore, Scripted};

use crate::support::clients::PLENTY;
use crate::support::redis::RedisServer;
use crate::support::timing::eventually;

/// All crossings that processes have reported.
type Reported = Arc<Mutex<Vec<String>>>;

/// Connects as another process would.
fn redis(server: &RedisServer) -> Redis {
    Redis::single(server.url()).timeout(PLENTY).connect_timeout(PLENTY).open().unwrap()
}

fn policy<A: Scripted>(redis: &Redis, algorithm: A, shares: &[f64], reported: &Reported) -> Policy {
    let limiter = RateLimiter::new(algorithm, RedisStore::new(redis, "api"));
    let policy = Policy::new("api", limiter)
        .key(User::key())
        .cost_fn(|request| request.uri().query().map_or(1, |cost| cost.parse().unwrap()));
    shares.iter().fold(policy, |policy, share| {
        let reported = Arc::clone(reported);
        policy.on_crossing(*share, move |crossing| {
            let key = crossing.key_text();
            let text = format!("{key} {} {}/{}", crossing.share(), crossing.used(), crossing.limit());
            reported.lock().unwrap().push(text);
        })
    })
}

async fn settle(layer: &RateLimitLayer, user: &str, cost: u64, settled: Option<u64>) -> u16 {
    let handler = service_fn(move |request: Request<()>| async move {
        if let Some(cost) = settled {
            request.extensions().get::<Settlement>().unwrap().settle("api", cost).unwrap();
        }
        Ok::<_, Infallible>(Response::new(()))
    });
    let mut request = Request::get(format!("/?{cost}")).body(()).unwrap();
    request.extensions_mut().insert(User::new(user));
    layer.clone().layer(handler).oneshot(request).await.unwrap().status().as_u16()
}

async fn send(layer: &RateLimitLayer, user: &str, cost: u64) -> u16 {
    settle(layer, user, cost, None).await
}

fn sorted(reported: &Reported) -> Vec<String> {
    let mut all = reported.lock().unwrap().clone();
    all.sort_unstable();
    all
}

/// Waits until these are reported. Claims are answered in their order, so another one before them would be there, too.
async fn assert_reported(reported: &Reported, expected: &[&str]) {
    eventually("they are reported", async || sorted(reported).len() >= expected.len()).await;
    assert_eq!(sorted(reported), expected);
}

/// A day with ten units. One process uses seven, and the other one crosses.
#[tokio::test]
async fn the_crossing_process_reports_it() {
    let server = RedisServer::start();
    let [first, second] = [(); 2].map(|()| {
        let reported = Reported::default();
        let policy = policy(&redis(&server), FixedWindow::new(Quota::per_day(10)), &[0.8, 1.0], &reported);
        (RateLimitLayer::new(policy), reported)
    });
    assert_eq!(send(&first.0, "alice", 7).await, 200);
    assert_eq!(send(&second.0, "alice", 2).await, 200);
    assert_reported(&second.1, &["alice 0.8 9/10"]).await;
    assert_eq!(send(&first.0, "alice", 2).await, 429);
    assert_eq!(send(&first.0, "alice", 1).await, 200);
    assert_reported(&first.1, &["alice 1 10/10"]).await;
    let names: Vec<String> = server.run(&["KEYS", "*:api:*:x*:record"]);
    assert_eq!(names.len(), 2, "{names:?}");
    for name in names {
        let left: u64 = server.run(&["PTTL", &name]);
        assert!((1..=86_400_000).contains(&left), "the end of the day: {left}");
    }
}

/// A refund in one process takes the key below the share, and a charge in another one above it again.
#[tokio::test]
async fn another_processs_second_crossing_is_not_reported() {
    let server = RedisServer::start();
    let reported = Reported::default();
    let [first, second] = [(); 2].map(|()| {
        let policy = policy(&redis(&server), TokenBucket::new(Quota::per_day(10)), &[0.8], &reported);
        RateLimitLayer::new(policy.settle_by_handler())
    });
    assert_eq!(settle(&first, "alice", 8, Some(1)).await, 200);
    assert_reported(&reported, &["alice 0.8 8/10"]).await;
    // The refund is made in the background.
    let left = async || second.handle().peek("api", "alice").await.unwrap().decision().remaining();
    eventually("it is refunded", async || left().await == 9).await;
    assert_eq!(settle(&second, "alice", 8, None).await, 200);
    assert_eq!(settle(&second, "bob", 8, None).await, 200);
    assert_reported(&reported, &["alice 0.8 8/10", "bob 0.8 8/10"]).await;
}

/// Two processes charge many keys concurrently: each key is reported once.
#[tokio::test]
async fn concurrent_crossings_are_reported_once() {
    let server = RedisServer::start();
    let reported = Reported::default();
    let layers = [(); 2].map(|()| {
        RateLimitLayer::new(policy(&redis(&server), FixedWindow::new(Quota::per_day(10)), &[0.5], &reported))
    });
    let keys: Vec<_> = (0..20).map(|key| format!("{key:02}")).collect();
    let all = (0..8).flat_map(|turn| keys.iter().map(move |key| (turn, key)));
    let statuses = join_all(all.map(|(turn, key)| send(&layers[turn % 2], key, 1))).await;
    assert!(statuses.iter().all(|status| *status == 200));
    let expected: Vec<_> = keys.iter().map(|key| format!("{key} 0.5 5/10")).collect();
    assert_reported(&reported, &expected.iter().map(String::as_str).collect::<Vec<_>>()).await;
}

/// A settlement charges in the background, and crosses there.
#[tokio::test]
async fn a_settlement_may_cross_a_share() {
    for owes in [false, true] {
        let server = RedisServer::start();
        let reported = Reported::default();
        let policy = policy(&redis(&server), TokenBucket::new(Quota::per_day(10)), &[0.8, 1.0], &reported);
        let policy = policy.settle_by_handler();
        let layer = RateLimitLayer::new(if owes { policy.owe_shortfalls() } else { policy });
        assert_eq!(settle(&layer, "alice", 1, Some(8)).await, 200);
        assert_reported(&reported, &["alice 0.8 8/10"]).await;
        // Less is left than the shortfall.
        assert_eq!(settle(&layer, "alice", 1, Some(8)).await, 200);
        assert_reported(&reported, &["alice 0.8 8/10", "alice 1 10/10"]).await;
    }
}

/// The server's user may use budgets, but not the names of crossings.
#[tokio::test]
async fn a_failed_claim_is_reported_alone() {
    let server = RedisServer::start();
    server.run::<()>(&[
        "ACL",
        "SETUSER",
        "app",
        "on",
        ">pw",
        "~sluice:*:api:b",
        "-@all",
        "+eval",
        "+evalsha",
        "+get",
        "+set",
        "+time",
    ]);
    let redis = Redis::single(server.url().replace("//", "//app:pw@")).timeout(PLENTY).connect_timeout(PLENTY);
    let redis = redis.open().unwrap();
    let reported = Reported::default();
    let layers =
        [(); 2].map(|()| RateLimitLayer::new(policy(&redis, TokenBucket::new(Quota::per_day(10)), &[0.8], &reported)));
    assert_eq!(send(&layers[0], "alice", 7).await, 200);
    assert_eq!(send(&layers[1], "alice", 1).await, 200);
    assert_reported(&reported, &["alice 0.8 8/10"]).await;
    assert_eq!(server.run::<Vec<String>>(&["KEYS", "*:api:*:x*:record"]), [""; 0]);
}
