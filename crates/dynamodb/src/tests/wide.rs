//! Quotas up to 10^15 − 1 units, exact to the unit, in items that are still small.

use aws_sdk_dynamodb::types::AttributeValue;
use serde_json::Value;
use tower_sluice::Limiter;
use tower_sluice::algorithm::{FixedWindow, Portable, SlidingWindow, TokenBucket};
use tower_sluice::limiter::OverrideReason;
use tower_sluice::limiter::{Ask, Receipt};

use super::month::{MONTH_BYTES, downloads, two_processes_send_a_month};
use super::*;
use crate::hints::{ALWAYS_BUSY, Hint};
use crate::items::sealed::Items;
use crate::items::{Charge, Moment, Plan};
use crate::table::Write;

const CENTURY: Duration = Duration::from_secs(100 * 366 * 86_400);

async fn month<A: Kept>(algorithm: A, seed: u64) {
    let (service, clock) = service().await;
    two_processes_send_a_month(|| downloads(limiter(&dynamo(&service, &clock), algorithm.clone())), seed).await;
}

#[tokio::test]
async fn two_processes_send_exactly_ten_terabytes() {
    let quota = Quota::per(MONTH_BYTES, 30 * DAY);
    month(TokenBucket::new(quota), 1).await;
    month(FixedWindow::new(quota), 2).await;
    month(SlidingWindow::new(quota), 3).await;
    #[cfg(feature = "calendar")]
    month(tower_sluice::algorithm::CalendarWindow::monthly(MONTH_BYTES), 4).await;
}

async fn left<A: Kept>(limiter: &Over<A>) -> u64 {
    limiter.decide(&Ask::peek(&"key".into(), 0)).decided().await.unwrap().remaining()
}

/// At ten terabytes a month, a byte is restored in 259.2 ns.
#[tokio::test]
async fn a_byte_is_restored_to_the_nanosecond() {
    let (service, clock) = service().await;
    let process = || limiter(&dynamo(&service, &clock), TokenBucket::new(Quota::per(MONTH_BYTES, 30 * DAY)));
    assert_eq!(process().acquire(&"key".into(), MONTH_BYTES - 1).await.unwrap().remaining(), 1);
    assert!(ask(&process()).await.unwrap().is_allowed());
    assert_eq!(ask(&process()).await.unwrap().retry_after(), Some(Duration::from_nanos(260)));
    clock.advance(Duration::from_nanos(259));
    assert_eq!(ask(&process()).await.unwrap().retry_after(), Some(Duration::from_nanos(1)));
    clock.advance(Duration::from_nanos(1));
    assert!(ask(&process()).await.unwrap().is_allowed());
    // The next byte is restored at 518.4 ns.
    clock.advance(Duration::from_nanos(258));
    assert!(!ask(&process()).await.unwrap().is_allowed());
    clock.advance(Duration::from_nanos(1));
    assert!(ask(&process()).await.unwrap().is_allowed());
}

/// Units owed under a wide quota are owed under a narrow one, and the reverse.
#[tokio::test]
async fn quotas_of_both_widths_share_debts() {
    let (service, clock) = service().await;
    let dynamo = dynamo(&service, &clock);
    let with = |quota| limiter(&dynamo, TokenBucket::new(quota));
    let (narrow, wide) = (per_day(10), greatest());
    assert_eq!(admitted(&with(narrow), 4).await, 4);
    assert_eq!(left(&with(wide)).await, Quota::MAX_UNITS - 4);
    let owed = 1_000_000_000_004;
    assert_eq!(with(wide).acquire(&"key".into(), owed - 4).await.unwrap().remaining(), Quota::MAX_UNITS - owed);
    // Ten units a day pay that in some hundred million years. The item expires at the end of the clocks' range.
    let rejection = ask(&with(narrow)).await.unwrap();
    let days = rejection.retry_after().unwrap().as_secs() / 86_400;
    assert_eq!((rejection.is_allowed(), days), (false, (owed - 10) / 10));
    assert_eq!(service.items()[0]["x"]["N"].as_str(), Some("18446744134"));
    assert_eq!(left(&with(wide)).await, Quota::MAX_UNITS - owed);
}

#[tokio::test]
async fn limits_of_both_widths_share_counts() {
    async fn check<A: Kept>(of: impl Fn(Quota) -> A) {
        let (service, clock) = service().await;
        let dynamo = dynamo(&service, &clock);
        let with = |limit| limiter(&dynamo, of(Quota::per_day(limit)));
        assert_eq!(admitted(&with(10), 4).await, 4);
        let wide = with(Quota::MAX_UNITS);
        assert_eq!(wide.acquire(&"key".into(), 1 << 40).await.unwrap().remaining(), Quota::MAX_UNITS - 4 - (1 << 40));
        assert_eq!((left(&with(10)).await, admitted(&with(10), 1).await), (0, 0));
        assert_eq!(left(&with(Quota::MAX_UNITS)).await, Quota::MAX_UNITS - 4 - (1 << 40));
    }
    check(FixedWindow::new).await;
    check(SlidingWindow::new).await;
}

#[tokio::test]
async fn wide_charges_are_refunded_exactly() {
    async fn check<A: Kept>(algorithm: A) {
        let (service, clock) = service().await;
        let limiter = limiter(&dynamo(&service, &clock), algorithm);
        let (key, cost) = ("key".into(), (1 << 49) + 1);
        let receipt: Receipt = limiter.acquire(&key, cost).await.unwrap().receipt();
        for (refund, expected) in [((1 << 33) + 1, Quota::MAX_UNITS - (1 << 49) + (1 << 33)), (cost, Quota::MAX_UNITS)]
        {
            limiter.refund(&Ask::charge(&key, refund), receipt, refund);
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            assert_eq!(left(&limiter).await, expected);
        }
    }
    check(TokenBucket::new(greatest())).await;
    check(FixedWindow::new(greatest())).await;
    check(SlidingWindow::new(greatest())).await;
}

/// A write's numbers have at most 38 digits. DynamoDB would refuse longer ones.
fn check_digits(write: &Write) {
    for (place, value) in &write.values {
        if let AttributeValue::N(number) = value {
            assert!(number.len() <= 38 && number.parse::<u128>().is_ok(), "{place}: {number}");
        }
    }
}

/// Checks all writes by an algorithm at the last instant of all clocks, for more requests than fit.
fn check_writes<A: Items + Portable>(algorithm: &A) {
    let last = Moment { now: Timestamp::MAX, error: Duration::from_secs(1) };
    for (cost, at) in [1, 2, Quota::MAX_UNITS / 3, Quota::MAX_UNITS].into_iter().flat_map(|cost| {
        [last, Moment { now: Timestamp::ZERO, ..last }, Moment { now: NOW, ..last }].map(|at| (cost, at))
    }) {
        let (_, state) = algorithm.decide(None, at.now, cost);
        check_digits(&algorithm.put(state.as_ref(), at));
        let receipt = algorithm.decide(None, at.now, cost).0.receipt();
        algorithm.guess_refund(cost, receipt, at).iter().for_each(check_digits);
        let own = algorithm.hint(None, None, state.as_ref(), at);
        let others = Some(Hint::Bucket { tat: 0, busy: ALWAYS_BUSY });
        for (hint, count) in
            [None, own, others].into_iter().flat_map(|hint| [1, 7, u32::MAX].map(|count| (hint, count)))
        {
            if let Plan::Charge(write, planned) = algorithm.guess(hint, Charge { at, cost, count }) {
                assert!(u64::from(planned) * cost <= algorithm.max_cost(), "{planned} of {count} times {cost}");
                check_digits(&write);
            }
        }
    }
}

#[test]
fn no_number_has_more_than_38_digits() {
    for period in [Duration::from_nanos(1), 30 * DAY, CENTURY] {
        for limit in [1, Quota::MAX_UNITS] {
            let quota = Quota::per(limit, period);
            check_writes(&TokenBucket::new(quota.burst(Quota::MAX_UNITS)));
            check_writes(&FixedWindow::new(Quota::per(Quota::MAX_UNITS, period)));
            check_writes(&SlidingWindow::new(Quota::per(Quota::MAX_UNITS, period)));
        }
    }
    #[cfg(feature = "calendar")]
    check_writes(&tower_sluice::algorithm::CalendarWindow::monthly(Quota::MAX_UNITS));
}

/// The item's size by DynamoDB's rules: names and texts count by their bytes, and a number takes half a byte per digit,
/// and at most two bytes more.
fn size(item: &Value) -> usize {
    let value = |value: &Value| {
        let text = value["S"].as_str().map(str::len);
        text.unwrap_or_else(|| value["N"].as_str().expect("a text or a number").len().div_ceil(2) + 2)
    };
    item.as_object().expect("an item").iter().map(|(name, held)| name.len() + value(held)).sum()
}

/// A standing: four times, and a reason.
const STANDING: usize = 4 * (1 + 12) + 1 + OverrideReason::LONGEST;

/// Returns the size of an item whose limiter has this name.
async fn size_of<A: Kept>(name: &str, algorithm: A) -> usize {
    let (service, clock) = service().await;
    let limiter = RateLimiter::new(algorithm.clone(), DynamoStore::new(&dynamo(&service, &clock), name));
    for _ in 0..2 {
        assert!(limiter.acquire(&"key".into(), algorithm.max_cost() / 3).await.unwrap().is_allowed());
        clock.advance(algorithm.quota().period());
    }
    service.items().iter().map(size).max().expect("an item")
}

/// So each write takes one write unit (1,024 bytes), and each read one read unit.
#[tokio::test]
async fn the_greatest_items_are_below_a_kilobyte() {
    async fn check<A: Kept>(algorithm: A) {
        let usual = size_of("downloads", algorithm.clone()).await;
        let greatest = size_of(&"n".repeat(255), algorithm.clone()).await + STANDING;
        println!("{usual} to {greatest} bytes: {:?}", algorithm.quota());
        assert!(usual <= 160 && greatest <= 700, "{usual} to {greatest}");
    }
    for quota in [greatest(), Quota::per(Quota::MAX_UNITS, Duration::from_secs(3_600))] {
        check(TokenBucket::new(quota)).await;
        check(FixedWindow::new(quota)).await;
        check(SlidingWindow::new(quota)).await;
    }
    #[cfg(feature = "calendar")]
    check(tower_sluice::algorithm::CalendarWindow::monthly(Quota::MAX_UNITS)).await;
}
