//! Decisions on different keys that are made at the same time share a call: for a limiter, for several policies, for a
//! queue.

use std::convert::Infallible;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use http::{Request, Response};
use tokio::runtime::Builder;
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::algorithm::{FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::key::ExtensionKey;
use tower_sluice::limiter::Ask;
use tower_sluice::store::BreakerState;
use tower_sluice::{
    Decision, FailureMode, Limiter, LimiterError, PartitionKey, Policy, Quota, RateLimitLayer, RateLimiter, SharedQueue,
};
use tower_sluice_redis::{Fault, FaultKind, Redis, RedisStore, RedisTable, Scripted};

use crate::support::clients::PLENTY;
use crate::support::redis::RedisServer;
use crate::support::timing::eventually;

fn redis(server: &RedisServer) -> Redis {
    Redis::single(server.url()).timeout(PLENTY).connect_timeout(PLENTY).open().unwrap()
}

fn limiter<A: Scripted>(redis: &Redis, algorithm: A) -> RateLimiter<A, RedisTable<A::State>> {
    RateLimiter::new(algorithm, RedisStore::new(redis, "test"))
}

async fn ask(limiter: &impl Limiter, key: PartitionKey) -> Result<Decision, LimiterError> {
    limiter.decide(&Ask::charge(&key, 1)).decided().await
}

/// Asks for all these keys at once.
async fn ask_all(limiter: &impl Limiter, keys: impl Iterator<Item = u64>) -> Vec<Result<Decision, LimiterError>> {
    join_all(keys.map(|key| ask(limiter, PartitionKey::from(key)))).await
}

/// Returns how many scripts were run, once the server knows the script.
fn calls(server: &RedisServer) -> u64 {
    let stat = server.info("cmdstat_evalsha");
    stat.strip_prefix("calls=").and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or(0)
}

fn fault(error: &LimiterError) -> FaultKind {
    use std::error::Error;

    error.source().and_then(|source| source.downcast_ref::<Fault>()).expect("a fault of Redis").kind()
}

#[tokio::test]
async fn concurrent_requests_share_bundles_of_32() {
    let server = RedisServer::start();
    let limiter = limiter(&redis(&server), TokenBucket::new(Quota::per_day(2)));
    let _ = ask(&limiter, PartitionKey::from("first")).await.unwrap();
    let before = calls(&server);
    for (round, remaining) in [(1, 1), (2, 0)] {
        let decisions = ask_all(&limiter, 0..65).await;
        assert!(decisions.iter().all(|decision| decision.as_ref().unwrap().remaining() == remaining));
        // One alone, and 64 in two bundles.
        assert_eq!(calls(&server) - before, 3 * round);
    }
    assert!(ask_all(&limiter, 0..65).await.iter().all(|decision| !decision.as_ref().unwrap().is_allowed()));
    // One after the other, so no request waits for another.
    for key in 100..110 {
        assert!(ask(&limiter, PartitionKey::from(key)).await.unwrap().is_allowed());
    }
    assert_eq!(calls(&server) - before, 6 + 10);
}

#[tokio::test]
async fn a_request_dropped_before_sending_is_free() {
    let server = RedisServer::start();
    let limiter = limiter(&redis(&server), SlidingWindow::new(Quota::per_day(10)));
    let keys = [0, 1, 2, 3].map(PartitionKey::from);
    let asks = keys.each_ref().map(|key| Ask::charge(key, 1));
    let mut asked = asks.each_ref().map(|ask| Box::pin(limiter.decide(ask).decided()));
    for decision in &mut asked {
        assert!(decision.now_or_never().is_none());
    }
    let [first, second, third, dropped] = asked;
    drop(dropped);
    for decision in [first, second, third] {
        assert_eq!(decision.await.unwrap().remaining(), 9);
    }
    assert_eq!(ask(&limiter, PartitionKey::from(3)).await.unwrap().remaining(), 9, "charged once, and not before");
}

#[tokio::test]
async fn a_foreign_key_fails_alone() {
    let server = RedisServer::start();
    let redis = redis(&server);
    let limiter = limiter(&redis, TokenBucket::new(Quota::per_day(10)));
    assert!(ask(&limiter, PartitionKey::from(7_u64)).await.unwrap().is_allowed());
    let [name]: [String; 1] = server.run::<Vec<String>>(&["KEYS", "*"]).try_into().unwrap();
    server.run::<()>(&["DEL", &name]);
    server.run::<u32>(&["RPUSH", &name, "not a state"]);
    for remaining in [9, 8] {
        let decisions = ask_all(&limiter, 0..20).await;
        for (key, decision) in decisions.into_iter().enumerate() {
            match decision {
                Ok(decision) => assert_eq!((decision.remaining(), key == 7), (remaining, false)),
                Err(error) => assert_eq!((fault(&error), key), (FaultKind::Script, 7), "{error}"),
            }
        }
    }
    assert_eq!(redis.health()[0].breaker(), BreakerState::Closed);
}

/// It wants a call's keys in one slot, and answers that once.
#[tokio::test]
async fn a_clusters_only_node_gets_single_keys() {
    let server = RedisServer::with(&["--cluster-enabled", "yes"]);
    server.run::<()>(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    let limiter = limiter(&redis(&server), TokenBucket::new(Quota::per_day(10)));
    eventually("the cluster is well", async || ask(&limiter, PartitionKey::from("first")).await.is_ok()).await;
    for remaining in [9, 8] {
        let decisions = ask_all(&limiter, 0..40).await;
        assert!(decisions.iter().all(|decision| decision.as_ref().unwrap().remaining() == remaining), "{decisions:?}");
    }
}

/// A server that stops takes all a bundle's calls with it. They fail in time, each is counted, and the circuit breaker
/// opens.
#[tokio::test]
async fn an_unanswered_bundle_opens_the_breaker() {
    let server = RedisServer::start();
    let timeout = Duration::from_millis(200);
    let redis = Redis::single(server.url()).timeout(timeout).open().unwrap();
    let limiter = limiter(&redis, TokenBucket::new(Quota::per_day(10)));
    eventually("it is connected", async || ask(&limiter, PartitionKey::from("first")).await.is_ok()).await;
    server.signal("-STOP");
    // Two bundles fail, one after the other. On a busy machine, a failure may not be evidence about the server.
    for _ in 0..20 {
        let decisions = ask_all(&limiter, 0..65).await;
        assert!(decisions.iter().all(Result::is_err), "{decisions:?}");
        if redis.health()[0].breaker() != BreakerState::Closed {
            break;
        }
    }
    assert_ne!(redis.health()[0].breaker(), BreakerState::Closed);
    assert_eq!(redis.health()[0].in_flight(), Some(0));
    server.signal("-CONT");
}

/// The task that would send the bundle is dropped with its runtime. Callers on other runtimes must not wait forever.
#[test]
fn a_bundle_ends_with_its_runtime() {
    let server = RedisServer::start();
    let limiter = limiter(&redis(&server), TokenBucket::new(Quota::per_day(10)));
    let keys = [0, 1, 2].map(PartitionKey::from);
    let asks = keys.each_ref().map(|key| Ask::charge(key, 1));
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let _ = runtime.block_on(ask(&limiter, PartitionKey::from("first"))).unwrap();
    let mut asked = asks.each_ref().map(|ask| Box::pin(limiter.decide(ask).decided()));
    {
        let _entered = runtime.enter();
        for decision in &mut asked {
            assert!(decision.now_or_never().is_none());
        }
    }
    drop(runtime);
    let [_, second, third] = asked;
    for decision in [second, third] {
        let error = decision.now_or_never().expect("an end").unwrap_err();
        assert_eq!(fault(&error), FaultKind::Cancelled);
    }
}

/// Three policies: per client, per client and window, and one for all clients.
fn layer(redis: &Redis) -> RateLimitLayer {
    let client = || ExtensionKey::new(|client: &u64| PartitionKey::from(*client));
    let bucket = RateLimiter::new(TokenBucket::new(Quota::per_day(2)), RedisStore::new(redis, "bucket"));
    let window = RateLimiter::new(FixedWindow::new(Quota::per(1_000, 100 * DAY)), RedisStore::new(redis, "window"));
    let global = RateLimiter::new(TokenBucket::new(Quota::per(150, 100 * DAY)), RedisStore::new(redis, "global"));
    RateLimitLayer::new([
        Policy::new("bucket", bucket).key(client()).on_failure(FailureMode::Reject),
        Policy::new("window", window).key(client()).on_failure(FailureMode::Reject),
        Policy::new("global", global).key(ExtensionKey::new(|_: &u64| PartitionKey::from("all"))),
    ])
}

const DAY: Duration = Duration::from_secs(86_400);

/// Sends these clients' requests at once, and returns their status.
async fn send_all(layer: &RateLimitLayer, clients: impl Iterator<Item = u64>) -> Vec<u16> {
    let send = async |client| {
        let service = layer.layer(service_fn(async |_: Request<()>| Ok::<_, Infallible>(Response::new(()))));
        let mut request = Request::new(());
        request.extensions_mut().insert::<u64>(client);
        service.oneshot(request).await.unwrap().status().as_u16()
    };
    join_all(clients.map(send)).await
}

/// Ten requests with three keys each fill a bundle. A rejection by one policy charges none of the others, not even in a
/// bundle.
#[tokio::test]
async fn several_policies_requests_share_calls() {
    let server = RedisServer::start();
    let layer = layer(&redis(&server));
    assert_eq!(send_all(&layer, [999].into_iter()).await, [200]);
    let before = calls(&server);
    for round in 1..=2 {
        assert_eq!(send_all(&layer, 0..61).await, [200; 61]);
        // One alone, and sixty in six bundles.
        assert_eq!(calls(&server) - before, 7 * round);
    }
    // Each of these clients has used up its bucket, which the process knows; each new one may send two more.
    assert_eq!(send_all(&layer, 0..61).await, [429; 61]);
    // The global budget has 150 - 1 - 122 left, because rejections have not taken any.
    let admitted = send_all(&layer, 1_000..1_040).await.iter().filter(|status| **status == 200).count();
    assert_eq!(admitted, 27);
}

#[tokio::test]
async fn requests_with_foreign_keys_fail_alone() {
    let server = RedisServer::start();
    let redis = redis(&server);
    let layer = layer(&redis);
    assert_eq!(send_all(&layer, [7].into_iter()).await, [200]);
    let names = server.run::<Vec<String>>(&["KEYS", "*:window:*"]);
    server.run::<()>(&["DEL", &names[0]]);
    server.run::<u32>(&["RPUSH", &names[0], "not a state"]);
    let statuses = send_all(&layer, 0..30).await;
    for (client, status) in statuses.into_iter().enumerate() {
        assert_eq!(status, if client == 7 { 503 } else { 200 }, "{client}");
    }
    assert_eq!(redis.health()[0].breaker(), BreakerState::Closed);
    // The failed request charged nothing, so this client's second request is admitted.
    server.run::<u32>(&["DEL", &names[0]]);
    assert_eq!(send_all(&layer, [7].into_iter()).await, [200]);
}

/// A server that stops takes all a bundle's requests with it, in time.
#[tokio::test]
async fn several_policies_unanswered_bundle_fails_in_time() {
    let server = RedisServer::start();
    let redis = Redis::single(server.url()).timeout(Duration::from_millis(200)).open().unwrap();
    let layer = layer(&redis);
    eventually("it is connected", async || send_all(&layer, [999].into_iter()).await == [200]).await;
    server.signal("-STOP");
    for _ in 0..20 {
        assert_eq!(send_all(&layer, 0..40).await, [503; 40]);
        if redis.health()[0].breaker() != BreakerState::Closed {
            break;
        }
    }
    assert_ne!(redis.health()[0].breaker(), BreakerState::Closed);
    assert_eq!(redis.health()[0].in_flight(), Some(0));
    server.signal("-CONT");
}

#[tokio::test]
async fn a_clusters_only_node_gets_single_requests() {
    let server = RedisServer::with(&["--cluster-enabled", "yes"]);
    server.run::<()>(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    let layer = layer(&redis(&server));
    eventually("the cluster is well", async || send_all(&layer, [999].into_iter()).await == [200]).await;
    assert_eq!(send_all(&layer, 0..40).await, [200; 40]);
}

#[tokio::test]
async fn arrivals_at_a_queue_share_calls() {
    let server = RedisServer::start();
    let queue = SharedQueue::new(redis(&server), "test", Quota::per(1, 100 * DAY).burst(2)).max_queue(0);
    assert!(ask(&queue, PartitionKey::from("first")).await.unwrap().is_allowed());
    let before = calls(&server);
    for (round, remaining) in [(1, 1), (2, 0)] {
        let decisions = ask_all(&queue, 0..65).await;
        assert!(decisions.iter().all(|decision| decision.as_ref().unwrap().remaining() == remaining));
        // One alone, and 64 in two bundles.
        assert_eq!(calls(&server) - before, 3 * round);
    }
    assert!(ask_all(&queue, 0..65).await.iter().all(|decision| !decision.as_ref().unwrap().is_allowed()));
    // One key's arrivals line up in their order, even in a bundle.
    let queue = SharedQueue::new(redis(&server), "order", Quota::per(1, DAY).burst(40)).max_queue(0);
    let _ = ask(&queue, PartitionKey::from("first")).await.unwrap();
    let decisions = join_all((0..40).map(|_| ask(&queue, PartitionKey::from("one")))).await;
    let remaining: Vec<_> = decisions.iter().map(|decision| decision.as_ref().unwrap().remaining()).collect();
    assert_eq!(remaining[1..], (0..39).rev().collect::<Vec<_>>());
}

#[tokio::test]
async fn an_arrival_at_a_foreign_key_fails() {
    let server = RedisServer::start();
    let queue = SharedQueue::new(redis(&server), "test", Quota::per(1, DAY).burst(10));
    assert!(ask(&queue, PartitionKey::from(7_u64)).await.unwrap().is_allowed());
    let [name]: [String; 1] = server.run::<Vec<String>>(&["KEYS", "*"]).try_into().unwrap();
    for foreign in ["hello", "-1 1+0:2+0,", "-1 x"] {
        server.run::<()>(&["SET", &name, foreign]);
        for (key, decision) in ask_all(&queue, 0..20).await.into_iter().enumerate() {
            match decision {
                Ok(_) => assert_ne!(key, 7),
                Err(error) => assert_eq!((fault(&error), key), (FaultKind::Script, 7), "{error}"),
            }
        }
        assert_eq!(server.run::<String>(&["GET", &name]), foreign);
    }
}

/// A waiter that leaves while its bundle is being made returns its reservation.
#[tokio::test]
async fn a_waiter_leaving_its_bundle_returns_reservations() {
    let server = RedisServer::start();
    let queue = SharedQueue::new(redis(&server), "test", Quota::per(1, DAY).burst(10));
    let _ = ask(&queue, PartitionKey::from("first")).await.unwrap();
    let keys = [0, 1, 2].map(PartitionKey::from);
    let asks = keys.each_ref().map(|key| Ask::charge(key, 1));
    let mut asked = asks.each_ref().map(|ask| Box::pin(queue.decide(ask).decided()));
    for decision in &mut asked {
        assert!(decision.now_or_never().is_none());
    }
    let [first, second, left] = asked;
    drop(left);
    for decision in [first, second] {
        assert_eq!(decision.await.unwrap().remaining(), 9);
    }
    let look = async || {
        let key = PartitionKey::from(2);
        queue.decide(&Ask::charge(&key, 0)).decided().await.unwrap().remaining()
    };
    eventually("it is returned", async || look().await == 10).await;
}
