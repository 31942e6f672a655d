//! Bans and allowances by hand on Redis: made in one process, in force in all.

use std::convert::Infallible;
use std::time::Duration;

use http::{Request, Response};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::algorithm::{FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::key::User;
use tower_sluice::{FailureMode, Policy, Quota, RateLimitLayer, RateLimiter, SharedQueue, Verdict};
use tower_sluice_redis::{Redis, RedisStore, Scripted};

use crate::support::clients::PLENTY;
use crate::support::redis::RedisServer;
use crate::support::timing::eventually;

const HOUR: Duration = Duration::from_secs(3_600);

/// Connects as another process would.
fn redis(server: &RedisServer) -> Redis {
    Redis::single(server.url()).timeout(PLENTY).connect_timeout(PLENTY).open().unwrap()
}

/// Three requests a day.
fn policy<A: Scripted>(server: &RedisServer, name: &'static str, algorithm: A) -> Policy {
    Policy::new(name, RateLimiter::new(algorithm, RedisStore::new(&redis(server), name))).key(User::key())
}

fn process(server: &RedisServer) -> RateLimitLayer {
    let quota = Quota::per_day(3);
    let policies = [
        policy(server, "bucket", TokenBucket::new(quota)),
        policy(server, "fixed", FixedWindow::new(quota)),
        policy(server, "sliding", SlidingWindow::new(quota)),
    ];
    RateLimitLayer::builder(policies).verdict().build()
}

async fn respond(layer: &RateLimitLayer, user: &str) -> Response<tower_sluice::layer::ResponseBody<()>> {
    let mut request = Request::new(());
    request.extensions_mut().insert(User::new(user));
    let hello = service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(())) });
    layer.clone().layer(hello).oneshot(request).await.unwrap()
}

async fn status(layer: &RateLimitLayer, user: &str) -> u16 {
    respond(layer, user).await.status().as_u16()
}

#[tokio::test]
async fn all_processes_follow_at_their_next_request() {
    let server = RedisServer::start();
    let (first, second) = (process(&server), process(&server));
    assert_eq!(status(&second, "alice").await, 200);
    for policy in ["bucket", "fixed", "sliding"] {
        let reason = "scrapes, at 100 %: \"all\"! @night é";
        let _ = first.handle().ban(policy, "alice", HOUR, reason).await.unwrap();
        let response = respond(&second, "alice").await;
        assert_eq!(response.status(), 429, "{policy}");
        let ban = response.extensions().get::<Verdict>().unwrap().violated().next().unwrap().ban().unwrap();
        assert_eq!(ban.reason().as_str(), reason);
        assert!(ban.left() <= HOUR && ban.left() > HOUR / 2, "{ban:?}");
        let peeked = second.handle().peek(policy, "alice").await.unwrap();
        assert_eq!(peeked.ban().unwrap().reason(), ban.reason());
        let _ = second.handle().unban(policy, "alice").await.unwrap();
        eventually("the first process follows", async || {
            first.handle().peek(policy, "alice").await.unwrap().ban().is_none()
        })
        .await;
    }
    // The budgets are as they were.
    eventually("a unit is charged", async || status(&second, "alice").await == 200).await;
    for policy in ["bucket", "fixed", "sliding"] {
        assert_eq!(first.handle().peek(policy, "alice").await.unwrap().decision().remaining(), 1, "{policy}");
    }
}

#[tokio::test]
async fn only_other_limits_charge_allowed_keys() {
    let server = RedisServer::start();
    let (first, second) = (process(&server), process(&server));
    let allowed = first.handle().allow("fixed", "alice", HOUR, "a migration").await.unwrap();
    assert_eq!(allowed.allowance().unwrap().reason().as_str(), "a migration");
    for layer in [&second, &first, &second] {
        assert_eq!(status(layer, "alice").await, 200);
    }
    let left = async |policy: &str| second.handle().peek(policy, "alice").await.unwrap().decision().remaining();
    assert_eq!([left("bucket").await, left("fixed").await, left("sliding").await], [0, 3, 0]);
    assert_eq!(status(&first, "alice").await, 429);
    for policy in ["bucket", "sliding"] {
        let _ = second.handle().allow(policy, "alice", HOUR, "a migration").await.unwrap();
    }
    for _ in 0..20 {
        assert_eq!(status(&second, "alice").await, 200);
    }
    // A key that is used up is noticed to be allowed after half a second.
    eventually("the first process follows", async || status(&first, "alice").await == 200).await;
    let _ = second.handle().unban("bucket", "alice").await.unwrap();
    assert_eq!(status(&second, "alice").await, 429);
}

#[tokio::test]
async fn one_limit_alone_and_no_budget_before() {
    let server = RedisServer::start();
    let process = || RateLimitLayer::new(policy(&server, "bucket", TokenBucket::new(Quota::per_day(1))));
    let (first, second) = (process(), process());
    let _ = first.handle().unban("bucket", "nobody").await.unwrap();
    let _ = first.handle().allow("bucket", "alice", HOUR, "x").await.unwrap();
    for _ in 0..5 {
        assert_eq!(status(&second, "alice").await, 200);
    }
    let _ = first.handle().ban("bucket", "alice", HOUR, "y").await.unwrap();
    assert_eq!(status(&second, "alice").await, 429);
    let _ = first.handle().unban("bucket", "alice").await.unwrap();
    assert_eq!(server.run::<u64>(&["DBSIZE"]), 0, "no key is left for nothing");
    eventually("it passes", async || status(&second, "alice").await == 200).await;
    let _ = second.handle().ban("bucket", "alice", HOUR, "z").await.unwrap();
    assert!(first.handle().reset("bucket", "alice").await.unwrap().ban().is_none());
    eventually("it passes", async || status(&second, "alice").await == 200).await;
}

/// A ban that a process has seen outlasts an outage, and is listed.
#[tokio::test]
async fn a_ban_by_hand_outlasts_an_outage() {
    let mut server = RedisServer::start();
    let process = || {
        let bucket = policy(&server, "bucket", TokenBucket::new(Quota::per_day(100)));
        RateLimitLayer::new(bucket.on_failure(FailureMode::Allow))
    };
    let (first, second) = (process(), process());
    let _ = first.handle().ban("bucket", "alice", HOUR, "x").await.unwrap();
    assert_eq!(status(&second, "alice").await, 429);
    for layer in [&first, &second] {
        let exceptions = layer.handle().exceptions("bucket").unwrap();
        assert_eq!((exceptions.len(), exceptions[0].0.as_str()), (1, "alice"));
    }
    server.kill();
    for layer in [&first, &second] {
        assert_eq!(status(layer, "alice").await, 429);
        assert_eq!(status(layer, "bob").await, 200);
    }
    assert!(first.handle().unban("bucket", "alice").await.is_err());
}

/// A queue on Redis does not keep bans, so each process has its own.
#[tokio::test]
async fn a_queue_keeps_bans_in_the_process() {
    let server = RedisServer::start();
    let process = || {
        let queue = SharedQueue::new(redis(&server), "queue", Quota::per_second(1_000));
        RateLimitLayer::new(Policy::new("queue", queue).key(User::key()))
    };
    let (first, second) = (process(), process());
    let _ = first.handle().ban("queue", "alice", HOUR, "x").await.unwrap();
    assert_eq!([status(&first, "alice").await, status(&second, "alice").await], [429, 200]);
}
