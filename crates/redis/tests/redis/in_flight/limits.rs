//! Keys with their own limits, in several processes.

use tower_sluice::Decision;

use super::*;

async fn charge(limiter: &SharedConcurrency<Redis>, units: u64, limit: Option<u64>) -> Decision {
    limiter.decide(&Ask::charge(&key("a"), units).limited_to(limit)).decided().await.unwrap()
}

fn release(limiter: &SharedConcurrency<Redis>, decision: &Decision, units: u64) {
    limiter.refund(&Ask::charge(&key("a"), units), decision.receipt(), units);
}

/// While a plan changes, each process judges by the limit that it has, and both count all units.
#[tokio::test]
async fn processes_with_different_limits_count_together() {
    let server = RedisServer::start();
    let [here, there] = [(); 2].map(|()| process(&server, 2, HOUR));
    let first = charge(&here, 2, Some(3)).await;
    assert_eq!((first.is_allowed(), first.limit(), first.remaining()), (true, 3, 1));
    for (limit, left) in [(Some(1), 0), (Some(2), 0), (None, 0)] {
        let full = charge(&there, 1, limit).await;
        assert_eq!((full.is_until_released(), full.limit(), full.remaining()), (true, limit.unwrap_or(2), left));
    }
    let suspended = charge(&there, 1, Some(0)).await;
    assert!(suspended.is_suspended() && !suspended.is_allowed() && suspended.retry_after().is_none());
    let second = charge(&there, 1, Some(4)).await;
    assert_eq!((second.is_allowed(), second.remaining()), (true, 1));
    assert!(charge(&here, 1, Some(3)).await.is_until_released());
    release(&here, &first, 2);
    let third = some(async || charge(&here, 1, Some(2)).await).await;
    assert_eq!(third.remaining(), 0);
    // The fallback counts this process's units in flight, under the key's limit.
    let ask = |limit| here.decide(&Ask::charge(&key("a"), 1).to(Mode::Fallback).limited_to(Some(limit)));
    assert!(ask(1).decided().await.unwrap().is_until_released());
    assert!(ask(2).decided().await.unwrap().is_allowed());
}

/// Asks until the server has received a release.
async fn some(ask: impl AsyncFn() -> Decision) -> Decision {
    let mut found = None;
    eventually("the units are free", async || {
        found = Some(ask().await).filter(Decision::is_allowed);
        found.is_some()
    })
    .await;
    found.unwrap()
}

/// A first waiter with a low limit keeps those behind it waiting, and a live change does not raise it.
#[tokio::test]
async fn a_waiter_keeps_its_first_limit() {
    let server = RedisServer::start();
    let redis = connect(Redis::single(server.url()));
    let of =
        |limit| Arc::new(SharedConcurrency::new(redis.clone(), "test", limit).lease(HOUR).max_queue(9).max_wait(HOUR));
    let limiter = of(2);
    let held = [charge(&limiter, 1, Some(5)).await, charge(&limiter, 1, Some(5)).await];
    let wait = |limiter: &Arc<SharedConcurrency<Redis>>, limit| {
        let limiter = Arc::clone(limiter);
        tokio::spawn(async move { charge(&limiter, 1, limit).await })
    };
    let waiting = async |count| {
        eventually("it waits", async || limiter.stats().backlog.unwrap().waiting() == count).await;
    };
    let low = wait(&limiter, Some(1));
    waiting(1).await;
    let high = wait(&limiter, Some(5));
    waiting(2).await;
    let heir = of(9);
    heir.inherit(&*limiter).unwrap().finish();
    release(&limiter, &held[0], 1);
    until("it is released", || counted(&server) == 1).await;
    assert!(!low.is_finished() && !high.is_finished());
    release(&limiter, &held[1], 1);
    assert_eq!(low.await.unwrap().limit(), 1);
    let high = high.await.unwrap();
    assert_eq!((high.limit(), high.remaining()), (5, 3));
}
