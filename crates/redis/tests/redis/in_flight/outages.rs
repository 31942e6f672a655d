//! Servers that are unreachable, or lose their data.

use tower_sluice::FailureMode;
use tower_sluice::store::BreakerState;

use super::*;

/// Half of it is not long, and a busy machine does not miss its end.
const LEASE: Duration = Duration::from_secs(4);

fn limiter(server: &RedisServer, limit: u64) -> SharedConcurrency<Redis> {
    process(server, limit, LEASE)
}

#[tokio::test]
async fn counts_return_after_a_data_loss() {
    let mut server = RedisServer::start();
    let [here, there] = [0, 1].map(|_| limiter(&server, 5));
    let (one, two) = (take_in_the_end(&here, 2).await, take_in_the_end(&there, 1).await);
    server.restart();
    assert_eq!(counted(&server), 0);
    until("both processes have renewed", || counted(&server) == 3).await;
    assert_eq!(fields(&server).len(), 2);
    let rest = take_in_the_end(&here, 2).await;
    assert!(!there.acquire(&key("a"), 1).await.is_ok_and(|permit| permit.is_allowed()));
    drop((one, two, rest));
    until("all are released", || counted(&server) == 0).await;
}

/// Requests come all the time, so there is never a moment without a call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_come_back_on_a_busy_key() {
    let server = RedisServer::start();
    let limiter = Arc::new(process(&server, 1_000, LEASE));
    let permit = take_in_the_end(&limiter, 100).await;
    let busy: Vec<_> = (0..8)
        .map(|_| {
            let limiter = Arc::clone(&limiter);
            tokio::spawn(async move {
                loop {
                    drop(limiter.acquire(&key("a"), 1).await);
                }
            })
        })
        .collect();
    until("they come", || calls(&server) > 200).await;
    server.run::<()>(&["FLUSHALL"]);
    until("the hundred are renewed", || counted(&server) >= 100).await;
    for busy in busy {
        busy.abort();
        let _ = busy.await;
    }
    until("the busy ones are over", || counted(&server) == 100).await;
    drop(permit);
    until("all are released", || counted(&server) == 0).await;
    assert_eq!(limiter.stats().in_flight, Some(0));
}

/// The answers are lost: the calls have run, and no process knows.
#[tokio::test]
async fn a_renewal_repairs_a_lost_answer() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.address());
    let redis = Redis::single(proxy.url()).timeout(SECOND).open().unwrap();
    let limiter = SharedConcurrency::new(redis.clone(), "test", 5).lease(LEASE);
    let (kept, released) = (take_in_the_end(&limiter, 1).await, take_in_the_end(&limiter, 1).await);
    proxy.set(Fault::Swallow);
    let taken = tokio::join!(limiter.acquire(&key("a"), 2), until("the call has run", || counted(&server) == 4)).0;
    assert!(taken.is_err(), "no answer comes");
    // This call is lost, too.
    drop(released);
    proxy.set(Fault::Reset);
    until("the connection is gone", || redis.health()[0].is_connected() == Some(false)).await;
    proxy.set(Fault::Pass);
    until("only what is held is counted", || counted(&server) == 1).await;
    // Units that the renewal has repaired are not released once more. The first call may find its connection reset.
    let rest = take_in_the_end(&limiter, 4).await;
    drop((kept, rest));
    until("all are released", || counted(&server) == 0).await;
}

#[tokio::test]
async fn a_layer_falls_back_to_its_process() {
    let mut server = RedisServer::start();
    let limiter = Arc::new(limiter(&server, 3));
    let falling_back = RateLimitLayer::new(Policy::new("in-flight", Arc::clone(&limiter)));
    let rejecting = RateLimitLayer::new(Policy::new("in-flight", Arc::clone(&limiter)).on_failure(FailureMode::Reject));
    let before = [send(&falling_back).await, send(&falling_back).await];
    assert!(before.iter().all(|response| response.status() == 200));
    server.kill();
    let during = send(&falling_back).await;
    assert_eq!(during.status(), 200);
    let rejected = send(&falling_back).await;
    assert_eq!(rejected.status(), 503);
    assert!(rejected.headers().contains_key("ratelimit") && !rejected.headers().contains_key("retry-after"));
    let [first, second] = before;
    drop(first);
    // This is another limit: a unit in this process is free, so the request fails, and is not rejected.
    let failed = send(&rejecting).await;
    assert!(failed.status() == 503 && !failed.headers().contains_key("ratelimit"), "{failed:?}");
    assert_eq!(limiter.stats().in_flight, Some(2));

    server.restart();
    until("Redis is told what is in flight", || counted(&server) == 2).await;
    drop((second, during));
    until("all are released", || counted(&server) == 0).await;
    until("it is called again", || limiter.stats().nodes[0].breaker() == BreakerState::Closed).await;
    assert_eq!(limiter.stats().in_flight, Some(0));
}
