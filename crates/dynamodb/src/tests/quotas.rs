//! Changing quotas, per-key quotas, refunds and resets.

use tower_sluice::algorithm::{FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::limiter::{Ask, Receipt};
use tower_sluice::store::BreakerState;
use tower_sluice::{Limiter, PartitionKey};

use super::service::Fate;
use super::*;

/// Returns the key's remaining units.
async fn left<A: Kept>(limiter: &Over<A>) -> u64 {
    limiter.decide(&Ask::peek(&"key".into(), 0)).decided().await.unwrap().remaining()
}

/// While a change is rolled out, some processes have the old quota, and some the new one.
#[tokio::test]
async fn another_quota_keeps_the_owed_tokens() {
    let (service, clock) = service().await;
    let dynamo = dynamo(&service, &clock);
    let with = |quota| limiter(&dynamo, TokenBucket::new(quota));
    let (old, new) = (with(per_day(10)), with(Quota::per_hour(100).burst(20)));
    assert_eq!(admitted(&old, 4).await, 4);
    assert_eq!(left(&new).await, 16);
    assert_eq!(admitted(&new, 5).await, 5);
    assert_eq!(left(&old).await, 1);
    assert_eq!((admitted(&old, 5).await, admitted(&new, 20).await, left(&old).await), (1, 10, 0));
    // A hundred are restored per hour.
    clock.advance(Duration::from_secs(3_600));
    assert_eq!(left(&new).await, 20);
    // The debt is unchanged, and the bucket smaller. We use another process, because a process remembers its rejections
    // by the true time.
    let new = with(Quota::per_hour(100).burst(20));
    let small = with(Quota::per_hour(100).burst(5));
    assert_eq!((admitted(&new, 18).await, left(&small).await, left(&new).await), (18, 0, 2));
}

/// A debt greater than the new bucket is kept, too. It is not taken for a debt from the future, and from the first
/// request on, it is paid at the new rate, even if that request is rejected.
#[tokio::test]
async fn a_debt_above_the_bucket_is_kept() {
    let (service, clock) = service().await;
    let dynamo = dynamo(&service, &clock);
    let with = |quota| limiter(&dynamo, TokenBucket::new(quota));
    assert_eq!(admitted(&with(per_day(1_000)), 90).await, 90);
    service.forget_counts();
    let small = with(Quota::per_hour(1).burst(10));
    let wait = ask(&small).await.unwrap().retry_after().expect("it is rejected");
    assert_eq!(wait, Duration::from_secs(81 * 3_600));
    assert_eq!(service.counts().writes, 2, "one that does not apply, and one that keeps the debt as it is now");
    // The debt is paid in 90 hours, and DynamoDB must not delete the item sooner.
    let expiry: u64 = service.items()[0]["x"]["N"].as_str().unwrap().parse().unwrap();
    assert!(expiry > NOW.as_nanos() / 1_000_000_000 + 90 * 3_600, "{expiry}");
    clock.advance(wait - Duration::from_nanos(1));
    assert!(!ask(&with(Quota::per_hour(1).burst(10))).await.unwrap().is_allowed());
    clock.advance(Duration::from_nanos(1));
    assert!(ask(&with(Quota::per_hour(1).burst(10))).await.unwrap().is_allowed());
    assert_eq!(left(&with(per_day(1_000))).await, 990);
}

/// Others change the item before each write by this process. It wrote without a pause until its time was over, reported
/// that DynamoDB had not answered, and after five such decisions its circuit breaker opened.
#[tokio::test(start_paused = true)]
async fn contention_has_its_own_error() {
    let (service, clock) = service().await;
    let dynamo = dynamo(&service, &clock).timeout(Duration::from_millis(100));
    let with = |quota| limiter(&dynamo, TokenBucket::new(quota));
    assert_eq!(admitted(&with(per_day(1_000)), 5).await, 5);
    let new = with(per_day(2_000));
    let (others, key) = (service.clone(), service.items()[0]["k"].clone());
    let change = serde_json::json!({
        "TableName": TABLE, "Key": { "k": key }, "UpdateExpression": "SET t = t + :one",
        "ExpressionAttributeValues": { ":one": { "N": "1" } },
    });
    service.decide(move |operation| {
        if operation == "UpdateItem" {
            others.call(operation, &change);
        }
        Fate::Delayed(Duration::from_millis(1))
    });
    for _ in 0..10 {
        assert_eq!(kind(&ask(&new).await.unwrap_err()), FaultKind::Contention);
    }
    assert_eq!(dynamo.health().breaker(), BreakerState::Closed);
    let sharing = |limiter: &Over<TokenBucket>| {
        let sharing = limiter.stats().sharing.unwrap();
        (sharing.conversions, sharing.lost_swaps)
    };
    assert!(sharing(&new).0 == 0 && sharing(&new).1 >= 20, "{:?}", sharing(&new));
    service.all(Fate::Answered);
    let converting = with(per_day(2_000));
    assert!(ask(&converting).await.unwrap().is_allowed());
    assert_eq!((sharing(&converting), left(&converting).await), ((1, 0), 1_993), "what others have added counts");
}

/// Another period starts a new window.
#[tokio::test]
async fn a_window_survives_another_limit() {
    async fn check<A: Kept>(of: impl Fn(Quota) -> A) {
        let (service, clock) = service().await;
        let dynamo = dynamo(&service, &clock);
        let with = |quota| limiter(&dynamo, of(quota));
        let (old, new) = (with(Quota::per_hour(10)), with(Quota::per_hour(15)));
        assert_eq!((admitted(&old, 8).await, left(&new).await), (8, 7));
        assert_eq!((admitted(&new, 20).await, left(&old).await, admitted(&old, 1).await), (7, 0, 0));
        assert_eq!(left(&with(Quota::per_minute(10))).await, 10);
    }
    check(FixedWindow::new).await;
    check(SlidingWindow::new).await;
}

#[tokio::test]
async fn a_key_may_have_its_own_quota() {
    let (service, clock) = service().await;
    let limiter = limiter(&dynamo(&service, &clock), TokenBucket::new(per_day(2)));
    let (key, own) = (PartitionKey::from("customer"), Some(per_day(5)));
    let mut admitted = 0;
    for _ in 0..10 {
        admitted += u64::from(limiter.decide(&Ask::charge(&key, 1).under(own)).decided().await.unwrap().is_allowed());
    }
    assert_eq!(admitted, 5);
    assert_eq!(super::admitted(&limiter, 10).await, 2);
}

/// A caller that asks for the remaining units does not know which quota the key has.
#[tokio::test]
async fn the_last_quota_shows_the_remaining_units() {
    async fn check<A: Kept>(algorithm: A) {
        let (service, clock) = service().await;
        let limiter = limiter(&dynamo(&service, &clock), algorithm);
        let (key, own) = (PartitionKey::from("key"), Some(per_day(5)));
        assert!(limiter.decide(&Ask::charge(&key, 1).under(own)).decided().await.unwrap().is_allowed());
        let mut counts = Vec::new();
        for ask in [Ask::peek(&key, 0), Ask::peek(&key, 0).under(own)] {
            let decision = limiter.decide(&ask).decided().await.unwrap();
            counts.push((decision.limit(), decision.remaining()));
        }
        assert_eq!(counts, [(2, 1), (5, 4)]);
    }
    check(TokenBucket::new(per_day(2))).await;
    check(FixedWindow::new(per_day(2))).await;
    check(SlidingWindow::new(per_day(2))).await;
}

/// Charges, and waits until the refund is complete.
async fn refunded<A: Kept>(service: &Service, limiter: &Over<A>, receipt: Receipt, cost: u64) {
    service.forget_counts();
    limiter.refund(&Ask::charge(&"key".into(), cost), receipt, cost);
    // Its task is on this runtime, so it is done when no other task has anything to do.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

async fn refunds_return_what_is_owed<A: Kept>(algorithm: A, other: A, period: Duration) {
    let (service, clock) = service().await;
    let dynamo = dynamo(&service, &clock);
    let limiter = limiter(&dynamo, algorithm);
    let decision = limiter.acquire(&"key".into(), 4).await.unwrap();
    assert_eq!(left(&limiter).await, 6);
    refunded(&service, &limiter, decision.receipt(), 3).await;
    assert_eq!((service.counts().writes, left(&limiter).await), (1, 9));
    // This refunds more than is owed, but the key does not gain units.
    refunded(&service, &limiter, decision.receipt(), 4).await;
    assert_eq!(left(&limiter).await, 10);
    // After a charge under another quota with the same rate.
    let decision = limiter.acquire(&"key".into(), 4).await.unwrap();
    let another = super::limiter(&dynamo, other);
    assert!(ask(&another).await.unwrap().is_allowed());
    refunded(&service, &limiter, decision.receipt(), 4).await;
    assert_eq!(left(&limiter).await, 9);
    // Units that time has paid are not refunded again.
    let decision = limiter.acquire(&"key".into(), 4).await.unwrap();
    clock.advance(3 * period);
    refunded(&service, &limiter, decision.receipt(), 4).await;
    assert_eq!((service.counts().writes, left(&limiter).await), (0, 10));
    // Units that were reset are not refunded again, either.
    let decision = limiter.acquire(&"key".into(), 4).await.unwrap();
    let _ = limiter.decide(&Ask::reset(&"key".into())).decided().await.unwrap();
    assert_eq!(left(&limiter).await, 10);
    refunded(&service, &limiter, decision.receipt(), 4).await;
    assert_eq!(left(&limiter).await, 10);
}

#[tokio::test]
async fn refunds_return_the_charges_debt() {
    let (quota, other, hour) = (Quota::per_hour(10), Quota::per_hour(20), Duration::from_secs(3_600));
    refunds_return_what_is_owed(TokenBucket::new(quota), TokenBucket::new(quota.burst(20)), hour).await;
    refunds_return_what_is_owed(FixedWindow::new(quota), FixedWindow::new(other), hour).await;
    refunds_return_what_is_owed(SlidingWindow::new(quota), SlidingWindow::new(other), hour).await;
    #[cfg(feature = "calendar")]
    {
        use tower_sluice::algorithm::CalendarWindow;
        refunds_return_what_is_owed(CalendarWindow::daily(10), CalendarWindow::daily(20), 24 * hour).await;
    }
}

/// At another rate, we do not know how much of a charge time has paid.
#[tokio::test]
async fn a_buckets_charge_survives_another_rate() {
    let (service, clock) = service().await;
    let dynamo = dynamo(&service, &clock);
    let with = |quota| limiter(&dynamo, TokenBucket::new(quota));
    let (old, new) = (with(per_day(10)), with(per_day(20)));
    let decision = old.acquire(&"key".into(), 4).await.unwrap();
    assert!(ask(&new).await.unwrap().is_allowed());
    refunded(&service, &old, decision.receipt(), 4).await;
    assert_eq!((left(&old).await, left(&new).await), (5, 15));
}

/// A sliding window's charge counts until the window after its own ends, and so does its refund.
#[tokio::test]
async fn a_refund_finds_its_charges_window() {
    let (service, clock) = service().await;
    let limiter = limiter(&dynamo(&service, &clock), SlidingWindow::new(Quota::per_hour(10)));
    let decision = limiter.acquire(&"key".into(), 10).await.unwrap();
    clock.advance(Duration::from_secs(3_600));
    assert!(left(&limiter).await < 10);
    refunded(&service, &limiter, decision.receipt(), 10).await;
    assert_eq!(left(&limiter).await, 10);
}

/// A first policy is charged, a second one rejects, and the first charge is refunded, as a layer does.
#[tokio::test]
async fn a_later_rejection_refunds_the_first_policy() {
    let (service, clock) = service().await;
    let dynamo = dynamo(&service, &clock);
    let broad = limiter(&dynamo, TokenBucket::new(per_day(10)));
    let narrow = RateLimiter::new(FixedWindow::new(per_day(2)), DynamoStore::new(&dynamo, "narrow"));
    for _ in 0..5 {
        let first = ask(&broad).await.unwrap();
        assert!(first.is_allowed());
        if !ask(&narrow).await.unwrap().is_allowed() {
            refunded(&service, &broad, first.receipt(), 1).await;
        }
    }
    assert_eq!((left(&broad).await, left(&narrow).await), (8, 0));
}

#[test]
#[should_panic(expected = "leave out `.staggered()`")]
fn staggered_windows_are_not_accepted() {
    let clock = ManualClock::new();
    let _ = limiter(&dynamo(&Service::new(clock.clone()), &clock), FixedWindow::new(per_day(1)).staggered());
}
