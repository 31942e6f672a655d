//! Decisions on different keys that are made at the same time share a call.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::runtime::Builder;
use tower_sluice::algorithm::{SlidingWindow, TokenBucket};
use tower_sluice::limiter::Ask;
use tower_sluice::store::BreakerState;
use tower_sluice::store::redis::{Fault, FaultKind, Redis, RedisStore, RedisTable, Scripted};
use tower_sluice::{Decision, Limiter, LimiterError, PartitionKey, Quota, RateLimiter};

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

/// Asks for all of these keys at once.
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
async fn what_is_asked_while_a_call_is_in_flight_is_asked_in_bundles_of_32() {
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
    // One after the other, none waits for another.
    for key in 100..110 {
        assert!(ask(&limiter, PartitionKey::from(key)).await.unwrap().is_allowed());
    }
    assert_eq!(calls(&server) - before, 6 + 10);
}

#[tokio::test]
async fn a_request_that_is_dropped_before_its_bundle_was_sent_is_not_charged() {
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
async fn the_key_that_holds_something_else_fails_alone() {
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

/// It wants the keys of a call in one slot, and answers that once.
#[tokio::test]
async fn the_one_node_of_a_cluster_is_asked_for_single_keys() {
    let server = RedisServer::with(&["--cluster-enabled", "yes"]);
    server.run::<()>(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    let limiter = limiter(&redis(&server), TokenBucket::new(Quota::per_day(10)));
    eventually("the cluster is well", async || ask(&limiter, PartitionKey::from("first")).await.is_ok()).await;
    for remaining in [9, 8] {
        let decisions = ask_all(&limiter, 0..40).await;
        assert!(decisions.iter().all(|decision| decision.as_ref().unwrap().remaining() == remaining), "{decisions:?}");
    }
}

/// A server that stops takes all calls of a bundle with it, each is counted, and the circuit breaker opens.
#[tokio::test]
async fn a_bundle_without_an_answer_fails_in_time_and_opens_the_breaker() {
    let server = RedisServer::start();
    let timeout = Duration::from_millis(200);
    let redis = Redis::single(server.url()).timeout(timeout).open().unwrap();
    let limiter = limiter(&redis, TokenBucket::new(Quota::per_day(10)));
    eventually("it is connected", async || ask(&limiter, PartitionKey::from("first")).await.is_ok()).await;
    server.signal("-STOP");
    // Two bundles fail, one after the other. On a busy machine, a failure may say nothing about the server.
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

/// The task that would send the bundle is dropped with its runtime; what waits for it elsewhere must not wait for ever.
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
