//! Clients that join a queue and leave it again. They hold nothing and lose no turn. To meter the attempts, put a
//! bucket beside the queue.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use crate::support::effort::rounds;
use crate::support::queue::{KEY, join, settle};
use bytes::Bytes;
use futures_util::FutureExt;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use tokio::time::{Instant, advance};
use tower::{Layer, Service, service_fn};
use tower_sluice::algorithm::TokenBucket;
use tower_sluice::key::HeaderKey;
use tower_sluice::limiter::{Answer, Ask};
use tower_sluice::store::MemoryStore;
use tower_sluice::time::ManualClock;
use tower_sluice::{LeakyQueue, Limiter, Policy, Quota, RateLimitLayer, RateLimiter};

const MS: Duration = Duration::from_millis(1);

/// How many clients come and go.
fn churns() -> u32 {
    u32::try_from(rounds(20_000, 1_000_000)).unwrap()
}

/// Prints how long a test takes per join and leave. It asserts nothing, because the time depends on the machine.
fn report(what: &str, begun: std::time::Instant) {
    println!("{what}: {} ns for each that came and went", begun.elapsed().as_nanos() / u128::from(churns()));
}

#[tokio::test(start_paused = true)]
async fn joining_and_leaving_delays_no_client() {
    let queue = LeakyQueue::new(Quota::per_second(100)).max_queue(5);
    let start = Instant::now();
    assert!(matches!(queue.decide(&Ask::charge(&KEY, 1)), Answer::Ready(Ok(_))));
    let waits = tokio::spawn(join(&queue));
    settle().await;
    let begun = std::time::Instant::now();
    for round in 0..churns() {
        let mut goes = join(&queue);
        if round % 2 == 0 {
            assert!((&mut goes).now_or_never().is_none());
        }
    }
    report("behind another", begun);
    assert_eq!(queue.waiting(), 1);
    assert_eq!(waits.await.unwrap().unwrap().delay(), MS * 10);
    assert!(start.elapsed() <= MS * 11);
    // An arrival has the next turn.
    assert_eq!(join(&queue).await.unwrap().delay(), MS * 10);
    assert_eq!(queue.waiting(), 0);
}

/// Each client is the only waiter, so the driver and its timer begin and end every time. Some stay until their turn has
/// come, and leave without being polled.
#[tokio::test(start_paused = true)]
async fn an_idle_queue_loses_no_turn() {
    for is_precise in [false, true] {
        let queue = LeakyQueue::new(Quota::per_second(100)).max_queue(5);
        let queue = if is_precise { queue.precise() } else { queue };
        assert!(matches!(queue.decide(&Ask::charge(&KEY, 1)), Answer::Ready(Ok(_))));
        let begun = std::time::Instant::now();
        for round in 0..churns() {
            let goes = join(&queue);
            tokio::task::yield_now().await;
            if round % 1_000 > 0 {
                drop(goes);
            } else {
                advance(MS * 10).await;
                settle().await;
                assert_eq!(queue.waiting(), 0, "its turn has come");
                drop(goes);
                // Another request uses the turn, so that the next one must wait again.
                assert!(
                    matches!(queue.decide(&Ask::charge(&KEY, 1)), Answer::Ready(Ok(now)) if now.delay().is_zero()),
                    "{round}"
                );
            }
            tokio::task::yield_now().await;
        }
        report(if is_precise { "alone, precise" } else { "alone" }, begun);
        assert_eq!(queue.waiting(), 0);
        assert_eq!(join(&queue).await.unwrap().delay(), MS * 10);
    }
}

/// The bucket's charge stays when the client goes. So a client comes and goes only at the rate that its bucket admits,
/// and no other client is rejected or delayed for it.
#[tokio::test(start_paused = true)]
async fn a_bucket_meters_the_attempts() {
    let store = MemoryStore::with_capacity(16).with_clock(ManualClock::new());
    let bucket = RateLimiter::new(TokenBucket::new(Quota::per_second(10).burst(100)), store);
    let queue = Arc::new(LeakyQueue::new(Quota::per_second(100)).max_queue(200));
    let layer = RateLimitLayer::new([
        // The layer always charges the queue last.
        Policy::new("everybody", Arc::clone(&queue)),
        Policy::new("attempts", bucket).key(HeaderKey::from_static("x-client")),
    ]);
    let mut service = layer
        .layer(service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())) }));
    let mut call = |client: &str| service.call(Request::builder().header("x-client", client).body(()).unwrap());
    assert_eq!(call("first").await.unwrap().status(), StatusCode::OK);
    let waits = tokio::spawn(call("waits"));
    settle().await;

    let (begun, mut waited) = (std::time::Instant::now(), 0);
    for _ in 0..churns() {
        match call("churns").now_or_never() {
            None => waited += 1,
            Some(answer) => assert_eq!(answer.unwrap().status(), StatusCode::TOO_MANY_REQUESTS),
        }
    }
    report("at a layer", begun);
    assert_eq!((waited, queue.waiting()), (100, 1));

    let (start, comes) = (Instant::now(), tokio::spawn(call("comes")));
    assert_eq!(waits.await.unwrap().unwrap().status(), StatusCode::OK);
    assert_eq!(comes.await.unwrap().unwrap().status(), StatusCode::OK);
    // The next turn, because the first was used already.
    assert!(start.elapsed() <= MS * 21, "{:?}", start.elapsed());
}
