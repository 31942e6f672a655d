use std::time::Duration;

use tower_sluice::algorithm::{FixedWindow, Portable, SlidingWindow, TokenBucket};
use tower_sluice::limiter::Credit;
use tower_sluice::store::remote::RemoteStore;
use tower_sluice::testing::{
    check_accounts, check_backend, check_charges_by_hand, check_departures, check_joint_backend, check_records, seed_of,
};
use tower_sluice::time::{ManualClock, Timestamp};
use tower_sluice::{LimiterExt, Quota, RateLimiter, SharedBalance, SharedConcurrency, SharedQueue};

use super::MapServer;

async fn check<A: Portable + Clone>(algorithm: A, seed: u64) {
    check_backend(algorithm.clone(), seed_of(seed), MapServer::new).await;
    check_joint_backend(algorithm.clone(), seed_of(seed), MapServer::new).await;
    check_charges_by_hand(algorithm, server(), seed_of(seed)).await;
}

fn server() -> MapServer {
    MapServer::new(ManualClock::starting_at(Timestamp::from_nanos(1 << 60)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_over_time_pass_the_suites() {
    let quota = Quota::per(7, Duration::from_secs(60));
    check(TokenBucket::new(quota.burst(9)), 41).await;
    check(FixedWindow::new(quota), 42).await;
    check(SlidingWindow::new(quota), 43).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_pass_the_suites() {
    check_records(server(), seed_of(44)).await;
    check_accounts(server(), seed_of(45)).await;
    let queues = server();
    check_departures([queues.clone(), queues], seed_of(46)).await;
}

/// Each request panicked: this server has no timeout, so the sum of timeout and time overflows.
#[tokio::test]
async fn limiters_work_without_a_timeout() {
    let (server, quota) = (server(), Quota::per_second(9));
    let store = RemoteStore::new(server.clone()).records(server.clone(), "pace");
    let bought = SharedBalance::new(server.clone(), "bought");
    assert_eq!(bought.credit(&"a".into(), Credit::units(5)).await.unwrap().remaining(), 5);
    let pace = RateLimiter::new(TokenBucket::new(quota), store);
    assert!(pace.acquire(&"a".into(), 1).await.unwrap().is_allowed());
    let in_flight = SharedConcurrency::new(server.clone(), "in-flight", 1);
    assert!(in_flight.acquire(&"a".into(), 1).await.unwrap().is_allowed());
    let queue = SharedQueue::new(server, "queue", quota);
    assert!(queue.acquire(&"a".into(), 1).await.unwrap().is_allowed());
}
