//! The cost of decisions, by counting requests.

use std::sync::Arc;

use tower_sluice::algorithm::{FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::limiter::{Ask, Mode};
use tower_sluice::testing::Random;
use tower_sluice::{Limiter, PartitionKey};

use super::effort::rounds;
use super::service::Counts;
use super::*;

/// Returns the writes per thousand admitted requests, and how many were admitted. `processes` processes take turns at
/// random, at `percent` percent of the limit, with about one request in ten milliseconds, at random.
async fn writes_per_thousand(processes: u64, percent: u64, count: u64, seed: u64) -> (u64, u64) {
    let (service, clock) = service().await;
    let mut random = Random::of_trial(seed);
    // The burst is large enough that no random cluster is rejected.
    let quota = Quota::per(10_000 / percent, Duration::from_secs(1)).burst(1_000);
    let limiters: Vec<_> =
        (0..processes).map(|_| limiter(&dynamo(&service, &clock), TokenBucket::new(quota))).collect();
    let mut requests = 0;
    while requests < count {
        clock.advance(Duration::from_millis(1));
        if random.below(10) == 0 {
            let process = usize::try_from(random.below(processes)).unwrap();
            assert!(ask(&limiters[process]).await.unwrap().is_allowed());
            requests += 1;
        }
    }
    (u64::from(service.counts().writes) * 1_000 / requests, requests)
}

#[tokio::test]
async fn one_process_writes_once_per_bucket_decision() {
    for percent in [5, 50, 80, 95] {
        let (writes, _) = writes_per_thousand(1, percent, rounds(150, 1_500) as u64, percent).await;
        assert_eq!(writes, 1_000, "at {percent} % of the limit");
    }
}

/// A bucket takes at most one and a half writes per decision: at half of the limit, a process that knows nothing about
/// the others is wrong half of the time.
#[tokio::test]
async fn many_processes_rarely_write_twice() {
    for processes in [4, 32] {
        for percent in [5, 50, 80, 95].into_iter().step_by(rounds(3, 1)) {
            let (writes, requests) = writes_per_thousand(processes, percent, 1_500, percent).await;
            println!("{processes} processes, {percent} % of the limit: {writes} writes per 1,000 of {requests}");
            // Chance may add two in a hundred.
            assert!(writes <= 1_520, "{processes} processes at {percent} % of the limit: {writes} per 1,000");
        }
    }
}

async fn requests_of<A: Kept>(algorithm: A, processes: usize, requests: usize) -> Counts {
    let (service, clock) = service().await;
    let limiters: Vec<_> = (0..processes).map(|_| limiter(&dynamo(&service, &clock), algorithm.clone())).collect();
    for request in 0..requests {
        clock.advance(Duration::from_millis(250));
        assert!(ask(&limiters[request % processes]).await.unwrap().is_allowed());
    }
    service.counts()
}

/// A hundred windows of four requests.
#[tokio::test]
async fn windows_take_one_write_per_decision() {
    let quota = Quota::per_second(100);
    for processes in [1, 4] {
        let at_first = u32::try_from(processes).unwrap();
        let counts = requests_of(FixedWindow::new(quota), processes, 400).await;
        assert_eq!(counts, Counts { writes: 400, unmet: 0, reads: at_first }, "{processes} processes");
        // And one read per window and process.
        let counts = requests_of(SlidingWindow::new(quota), processes, 400).await;
        assert_eq!((counts.writes, counts.unmet), (400, 0), "{processes} processes");
        assert!((100..=101 * at_first).contains(&counts.reads), "{processes} processes: {counts:?}");
    }
    #[cfg(feature = "calendar")]
    {
        let counts = requests_of(tower_sluice::algorithm::CalendarWindow::daily(1_000), 4, 400).await;
        assert_eq!(counts, Counts { writes: 400, unmet: 0, reads: 4 });
    }
}

/// After a limit of one, a thousand rejections write nothing, and a read verifies the rejection once per half second.
async fn rejections_write_nothing<A: Kept>(algorithm: A) {
    let (service, clock) = service().await;
    let limiter = limiter(&dynamo(&service, &clock), algorithm);
    assert_eq!(admitted(&limiter, 1).await, 1);
    service.forget_counts();
    let begun = std::time::Instant::now();
    assert_eq!(admitted(&limiter, 1_000).await, 0);
    let most = 1 + u32::try_from(begun.elapsed().as_millis() / 500).unwrap();
    let Counts { writes, reads, .. } = service.counts();
    assert!(writes == 0 && reads <= most, "{writes} writes, {reads} reads");
}

#[tokio::test]
async fn known_rejections_write_nothing() {
    rejections_write_nothing(TokenBucket::new(per_day(1))).await;
    rejections_write_nothing(FixedWindow::new(per_day(1))).await;
    rejections_write_nothing(SlidingWindow::new(per_day(1))).await;
}

/// Half a second later, or after a refund, a read verifies the rejection, because it costs less than a write that does
/// nothing.
#[tokio::test]
async fn a_rejection_is_verified_by_a_read() {
    async fn check<A: Kept>(algorithm: A) {
        let (service, clock) = service().await;
        let limiter = limiter(&dynamo(&service, &clock), algorithm);
        let first = ask(&limiter).await.unwrap();
        clock.advance(Duration::from_secs(3 * 86_400));
        assert_eq!(admitted(&limiter, 3).await, 2);
        service.forget_counts();
        // Time has paid for it, so there is nothing to refund; but this process may no longer know about a rejection.
        limiter.refund(&Ask::charge(&"key".into(), 1), first.receipt(), 1);
        assert_eq!(admitted(&limiter, 1).await, 0);
        assert_eq!(service.counts(), Counts { writes: 0, unmet: 0, reads: 1 });
    }
    check(TokenBucket::new(per_day(2))).await;
    check(FixedWindow::new(per_day(2))).await;
    check(SlidingWindow::new(per_day(2))).await;
}

/// A login is charged, and refunded if it succeeds. With a bucket, 200 such logins took 599 writes, three each, because
/// the next charge was predicted by the debt from before the refund.
#[tokio::test]
async fn a_refunded_charge_takes_two_writes() {
    async fn check<A: Kept>(algorithm: A) {
        let (service, clock) = service().await;
        let limiter = limiter(&dynamo(&service, &clock), algorithm);
        for login in 0..=200 {
            let decision = ask(&limiter).await.unwrap();
            limiter.refund(&Ask::charge(&"key".into(), 1), decision.receipt(), 1);
            // The refund is made in the background within a few steps.
            for _ in 0..50 {
                tokio::task::yield_now().await;
            }
            if login == 0 {
                // The first one reads, to know that the clock is right.
                service.forget_counts();
            }
        }
        assert_eq!(service.counts(), Counts { writes: 400, unmet: 0, reads: 0 });
        assert_eq!(admitted(&limiter, 1_001).await, 1_000);
    }
    check(TokenBucket::new(per_day(1_000))).await;
    check(FixedWindow::new(per_day(1_000))).await;
    check(SlidingWindow::new(per_day(1_000))).await;
}

/// An attacker uses up many keys, and keeps sending with each. Verifying costs a read per key. For one in ten of 1,000
/// keys it cost a write that does nothing, which is five times as expensive, since hints lose their places to other
/// keys.
#[tokio::test]
async fn used_up_keys_are_verified_by_reads() {
    let (service, clock) = service().await;
    let limiter = limiter(&dynamo(&service, &clock), TokenBucket::new(per_day(1)));
    let keys: Vec<_> = (0..1_000_u64).map(PartitionKey::from).collect();
    for key in &keys {
        assert!(limiter.acquire(key, 1).await.unwrap().is_allowed());
    }
    service.forget_counts();
    for key in &keys {
        // `Mode::UpTo` asks although the rejection is known, without waiting for half a second.
        assert!(!limiter.decide(&Ask::charge(key, 1).to(Mode::UpTo)).decided().await.unwrap().is_allowed());
    }
    assert_eq!(service.counts(), Counts { writes: 0, unmet: 0, reads: 1_000 });
    // A key that another process has reset is charged after the read.
    let other = super::limiter(&dynamo(&service, &clock), TokenBucket::new(per_day(1)));
    let _ = other.decide(&Ask::reset(&keys[0])).decided().await.unwrap();
    service.forget_counts();
    assert!(limiter.decide(&Ask::charge(&keys[0], 1).to(Mode::UpTo)).decided().await.unwrap().is_allowed());
    assert_eq!(service.counts().reads, 1);
}

/// Leases of fifty take three writes per hundred decisions.
#[tokio::test]
async fn leases_take_few_writes() {
    let (service, clock) = service().await;
    let store = DynamoStore::new(&dynamo(&service, &clock), "test").leasing(50, Duration::from_secs(60));
    let limiter = RateLimiter::new(TokenBucket::new(per_day(1_000_000)), store);
    assert_eq!(admitted(&limiter, 10_000).await, 10_000);
    let writes = service.counts().writes;
    assert!(writes <= 300, "{writes} writes for 10,000 decisions");
}

/// Sixty-four requests come together: the first makes its own call, and the others share one.
#[tokio::test]
async fn requests_that_come_together_share_a_write() {
    let (service, clock) = service().await;
    let limiter = Arc::new(limiter(&dynamo(&service, &clock), TokenBucket::new(per_day(40))));
    let tasks: Vec<_> = (0..64)
        .map(|_| {
            let limiter = Arc::clone(&limiter);
            tokio::spawn(async move { ask(&limiter).await.unwrap().is_allowed() })
        })
        .collect();
    let mut admitted = 0;
    for task in tasks {
        admitted += u32::from(task.await.unwrap());
    }
    assert_eq!(admitted, 40);
    // The shared call first expects that all fit, and then learns how many do.
    assert_eq!(service.counts(), Counts { writes: 2, unmet: 0, reads: 1 });
}
