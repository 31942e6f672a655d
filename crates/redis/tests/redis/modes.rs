//! The modes of all limiters on Redis. Before they were checked, peeking at permits took them, and peeking at a queue
//! reserved a departure.

use std::time::Duration;

use tower_sluice::testing::check_modes;
use tower_sluice::{
    CalendarWindow, FixedWindow, LimiterExt, PartitionKey, Quota, RateLimiter, SharedConcurrency, SharedQueue,
    SlidingWindow, TokenBucket,
};
use tower_sluice_redis::{Redis, RedisStore};

use crate::support::redis::RedisServer;

const TWENTY: Quota = Quota::per_day(20).burst(20);

fn connect(server: &RedisServer) -> Redis {
    let long = Duration::from_secs(10);
    Redis::single(server.url()).timeout(long).connect_timeout(long).open().unwrap()
}

/// It changes nothing.
#[tokio::test]
async fn an_undescribed_mode_is_an_error() {
    let server = RedisServer::start();
    let redis = connect(&server);
    check_modes(&RateLimiter::new(TokenBucket::new(TWENTY), RedisStore::new(&redis, "bucket"))).await;
    check_modes(&RateLimiter::new(FixedWindow::new(Quota::per_day(20)), RedisStore::new(&redis, "fixed"))).await;
    check_modes(&RateLimiter::new(SlidingWindow::new(Quota::per_day(20)), RedisStore::new(&redis, "sliding"))).await;
    check_modes(&RateLimiter::new(CalendarWindow::monthly(20), RedisStore::new(&redis, "calendar"))).await;
    check_modes(&SharedQueue::new(redis.clone(), "queue", TWENTY)).await;
    check_modes(&SharedConcurrency::new(redis.clone(), "in flight", 20)).await;
}

/// At permits and at a queue.
#[tokio::test]
async fn peeking_calls_no_server() {
    let server = RedisServer::start();
    let redis = connect(&server);
    let key = PartitionKey::from("key");
    let (queue, permits) =
        (SharedQueue::new(redis.clone(), "queue", TWENTY), SharedConcurrency::new(redis.clone(), "in flight", 1));
    for _ in 0..10 {
        assert!(queue.peek(&key, 1).await.is_err() && permits.peek(&key, 1).await.is_err());
        assert!(queue.reset(&key).await.is_err() && permits.reset(&key).await.is_err());
    }
    assert_eq!(server.info("cmdstat_evalsha"), "");
    assert!(permits.acquire(&key, 1).await.unwrap().is_allowed(), "ten peeks took nothing");
}
