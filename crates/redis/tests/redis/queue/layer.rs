//! A queue on Redis in a layer, and its fallback while Redis fails.

use super::*;

#[tokio::test]
async fn the_fallback_has_the_same_backlog() {
    let mut server = RedisServer::start();
    let queue = queue(&server, Quota::per_hour(1)).max_queue(3);
    for _ in 0..2 {
        assert!(take(&queue, "a").await.is_allowed());
    }
    server.kill();
    assert!(queue.decide(&Ask::charge(&key("a"), 1)).decided().await.is_err());
    let fallback = async |name, patience| {
        queue.decide(&Ask::charge(&key(name), 1).to(Mode::Fallback).within(patience)).decided().await.unwrap()
    };
    let wait = fallback("a", Some(HOUR)).await.retry_after().expect("two are before it");
    assert!(wait <= HOUR + SECOND && wait > HOUR - 60 * SECOND, "{wait:?}");

    // The fallback's admissions are refunded to the fallback.
    let first = fallback("b", None).await;
    assert!(first.is_allowed() && fallback("b", Some(SECOND)).await.retry_after().is_some());
    server.restart();
    queue.refund(&Ask::charge(&key("b"), 1), first.receipt(), 1);
    assert!(fallback("b", Some(SECOND)).await.is_allowed());

    let mut waits = Box::pin(queue.decide(&Ask::charge(&key("a"), 1).to(Mode::Fallback)).decided());
    assert!((&mut waits).now_or_never().is_none());
    assert_eq!(queue.waiting(), 1);
    drop(waits);
    assert_eq!(queue.waiting(), 0);
}

/// The namesake must be on the same Redis. The timeline is on the server, so an heir needs only the fallback's counts
/// from its predecessor.
#[tokio::test]
async fn a_queue_inherits_only_from_its_namesake() {
    let server = RedisServer::start();
    let (here, elsewhere) = (redis(&server), redis(&server));
    let queue = |redis: &Redis, name| {
        SharedQueue::new(redis.clone(), name, Quota::per_hour(1)).max_queue(3).max_wait(100 * HOUR)
    };
    let before = queue(&here, "test");
    let fallback = async |queue: &SharedQueue<Redis>| {
        let key = key("a");
        let ask = Ask::charge(&key, 1).to(Mode::Fallback).within(Some(SECOND));
        queue.decide(&ask).decided().await.unwrap().is_allowed()
    };
    assert!(fallback(&before).await);
    for stranger in [queue(&here, "other"), queue(&elsewhere, "test")] {
        assert!(stranger.inherit(&before).is_none());
        assert!(fallback(&stranger).await);
    }
    let heir = queue(&here, "test");
    assert!(heir.inherit(&before).is_some());
    assert!(!fallback(&heir).await, "one per hour has departed");
}

#[tokio::test]
async fn statistics_count_waiters_and_name_servers() {
    let server = RedisServer::start();
    let queue = queue(&server, Quota::per_hour(1)).max_queue(9);
    let _ = take(&queue, "a").await;
    let waiter = join(&queue, "a").await;
    let stats = queue.stats();
    assert_eq!(stats.backlog.map(|backlog| backlog.waiting()), Some(1));
    assert_eq!(stats.nodes.len(), 1);
    // As a layer closes it.
    Limiter::close(&queue);
    let answer = tokio::time::timeout(60 * SECOND, waiter).await.expect("at once").unwrap();
    assert!(answer.unwrap_err().is_closed());
}

async fn send(layer: &RateLimitLayer) -> Response<()> {
    let inner = service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(())) });
    layer.layer(inner).oneshot(Request::new(())).await.unwrap().map(drop)
}

#[tokio::test]
async fn a_layer_waits_and_reports_the_wait() {
    let mut answers = Vec::new();
    some_attempt_async("the third comes before the second has left", async || {
        let server = RedisServer::start();
        let queue = Arc::new(queue(&server, Quota::per_second(2)).max_queue(1));
        // Connects, and brings the script there: before that, the first call may be overtaken.
        let _ = take(&queue, "another").await;
        let layer = RateLimitLayer::builder(Policy::new("partner", queue)).server_timing().build();
        let began = Instant::now();
        answers = join_all((0..3).map(|_| send(&layer))).await;
        let statuses: Vec<_> = answers.iter().map(|it| it.status().as_u16()).collect();
        assert!(began.elapsed() >= SECOND / 2 && statuses[..2] == [200, 200], "{statuses:?}");
        if statuses[2] == 503 { Ok(()) } else { Err(format!("{:?}", began.elapsed())) }
    })
    .await;
    let timing = |it: &Response<()>| it.headers().get("server-timing").map(|it| it.to_str().unwrap().to_owned());
    assert_eq!(timing(&answers[0]), None);
    let waited = timing(&answers[1]).unwrap();
    assert!(waited.starts_with("ratelimit;dur="), "{waited}");
    assert_eq!(answers[1].headers()["ratelimit-policy"], "\"partner\";q=2;w=1");
    assert!(answers[1].headers().contains_key("ratelimit"));
    assert_eq!(answers[2].headers()["retry-after"], "1");
}

#[tokio::test]
async fn a_shadow_policy_delays_no_request() {
    let server = RedisServer::start();
    let queue = Arc::new(queue(&server, Quota::per_hour(1)).max_queue(2));
    let layer = RateLimitLayer::new(Policy::new("trial", Arc::clone(&queue)).shadow());
    for _ in 0..5 {
        let answer = tokio::time::timeout(60 * SECOND, send(&layer)).await.expect("it does not wait");
        assert_eq!(answer.status(), 200);
    }
    // But the next request waits as if the policy were enforced.
    assert!(!queue.decide(&Ask::charge(&PartitionKey::SHARED, 1)).decided().await.unwrap().is_allowed());
}

#[tokio::test]
async fn a_layer_falls_back_without_redis() {
    let mut server = RedisServer::start();
    let queue = Arc::new(queue(&server, Quota::per_hour(2).burst(2)).max_queue(0));
    let falling_back = RateLimitLayer::new(Policy::new("falling_back", Arc::clone(&queue)));
    let rejecting = RateLimitLayer::new([
        Policy::new("bucket", TokenBucket::new(Quota::per_hour(10))),
        Policy::new("rejecting", queue).on_failure(FailureMode::Reject),
    ]);
    assert_eq!(send(&falling_back).await.status(), 200);
    server.kill();
    assert_eq!(send(&falling_back).await.status(), 200);
    let rejected = send(&falling_back).await;
    assert!(rejected.headers().contains_key("x-rate-limited-for"), "the fallback is full: {rejected:?}");
    let failed = send(&rejecting).await;
    assert!(failed.status() == 503 && !failed.headers().contains_key("x-rate-limited-for"));
}
