//! The records beside the states of keys.

use std::sync::Arc;

use tokio::time::Instant;
use tower_sluice::limiter::{Ask, Credit, Mode};
use tower_sluice::store::remote::{CallLimits, Records};
use tower_sluice::testing::{check_accounts, check_departures, check_in_flight, check_records, seed_of};
use tower_sluice::{Limiter, PartitionKey, SharedBalance, SharedConcurrency, SharedQueue};

use super::service::{Counts, Fate};
use super::*;
use crate::DynamoRecords;

const MINUTE: Duration = Duration::from_secs(60);

fn limits() -> CallLimits {
    CallLimits::until(Instant::now() + MINUTE)
}

async fn records() -> (DynamoRecords, Service, ManualClock) {
    let (service, clock) = service().await;
    (dynamo(&service, &clock).records(), service, clock)
}

/// By this machine's clock, since leases end while a suite runs.
async fn by_wall_clock() -> [DynamoRecords; 2] {
    let (service, _) = service().await;
    service.send_no_date();
    [(), ()].map(|()| Dynamo::new(service.client(), TABLE).timeout(MINUTE).records())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_match_a_plain_map() {
    check_records(records().await.0, seed_of(31)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_keep_accounts() {
    check_accounts(records().await.0, seed_of(32)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_count_units_in_flight() {
    let [records, _] = by_wall_clock().await;
    check_in_flight(records, seed_of(33)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn departures_match_a_plain_list() {
    check_departures(by_wall_clock().await, seed_of(34)).await;
}

/// A record has its lifetime by the clock. Afterwards it does not exist, although DynamoDB may delete its item days
/// later.
#[tokio::test]
async fn a_record_ends_with_its_lifetime() {
    let (records, service, clock) = records().await;
    let swap =
        async |old: Option<&[u8]>, new: Option<&[u8]>| records.swap("a:b:c", old, new, MINUTE, limits()).await.unwrap();
    let read = async |name: &str| records.read(name, limits()).await.unwrap().value;
    assert!(swap(None, Some(b"1")).await);
    clock.advance(MINUTE - Duration::from_nanos(1));
    assert_eq!(read("a:b:c").await.as_deref(), Some(&b"1"[..]));
    assert!(swap(Some(b"1"), Some(b"2")).await, "its lifetime begins anew");
    clock.advance(MINUTE);
    assert_eq!(read("a:b:c").await, None);
    assert!(!swap(Some(b"2"), Some(b"3")).await);
    assert!(!swap(Some(b"2"), None).await);
    assert!(swap(None, Some(b"4")).await);
    // This record never ends, and is empty.
    assert!(records.swap("a:b:d", None, Some(b""), Duration::MAX, limits()).await.unwrap());
    clock.advance(100 * 365 * DAY);
    assert_eq!(read("a:b:d").await.as_deref(), Some(&b""[..]));
    let expiries: Vec<_> = service.items().iter().map(|item| item["x"]["N"].as_str().map(str::to_owned)).collect();
    assert_eq!(expiries.iter().filter(|expiry| expiry.is_none()).count(), 1, "{expiries:?}");
}

/// A new process's clock is an hour ahead, so its first swap would end an hour late.
#[tokio::test]
async fn a_wrong_clock_swaps_nothing() {
    let (_, service, clock) = records().await;
    let wrong = ManualClock::starting_at(clock.now());
    wrong.advance(60 * MINUTE);
    let wrong = dynamo(&service, &wrong).records();
    let error = wrong.swap("a:b:c", None, Some(b"1"), MINUTE, limits()).await.unwrap_err();
    assert_eq!(kind(&error), FaultKind::WrongClock);
    assert!(service.items().is_empty());
}

/// An invalid name for a record is the caller's mistake, and does not affect other limiters.
#[tokio::test]
async fn an_impossible_name_opens_no_breaker() {
    let (records, ..) = records().await;
    for _ in 0..12 {
        let error = records.swap(&"n".repeat(2_001), None, Some(b"1"), MINUTE, limits()).await.unwrap_err();
        assert_eq!(kind(&error), FaultKind::Misconfigured);
    }
    assert!(records.swap("a:b:c", None, Some(b"1"), MINUTE, limits()).await.unwrap());
}

/// A limiter's item is never another limiter's record, with any names.
#[tokio::test]
async fn limiters_and_records_share_no_item() {
    let (service, clock) = service().await;
    let dynamo = dynamo(&service, &clock);
    let limiter = limiter(&dynamo, tower_sluice::TokenBucket::new(per_day(2)));
    let balance = SharedBalance::new(dynamo.records(), "test");
    assert_eq!(balance.credit(&"key".into(), Credit::units(5)).await.unwrap().remaining(), 5);
    assert_eq!(admitted(&limiter, 3).await, 2);
    assert_eq!(balance.acquire(&"key".into(), 1).await.unwrap().remaining(), 4);
    assert_eq!(service.items().len(), 2);
}

/// The guide states these prices.
#[tokio::test]
async fn limiters_on_records_have_known_costs() {
    let (records, service, _) = records().await;
    let key = PartitionKey::from("key");
    let counted = async |expected: [u32; 2], what: &str| {
        // Lets the background tasks finish.
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
        let Counts { reads, writes, .. } = service.counts();
        assert_eq!([reads, writes], expected, "{what}");
        service.forget_counts();
    };
    // Two processes. The first knows without a call that its own requests fill the limit.
    let [in_flight, other] = [(), ()].map(|()| SharedConcurrency::new(records.clone(), "in-flight", 1));
    let held = in_flight.acquire(&key, 1).await.unwrap();
    counted([1, 1], "a request is admitted").await;
    assert!(!other.acquire(&key, 1).await.unwrap().is_allowed());
    counted([1, 0], "a request is rejected").await;
    drop(held);
    counted([1, 1], "it is over").await;
    let queues = [(), ()].map(|()| SharedQueue::new(records.clone(), "queue", Quota::per_second(10)).max_queue(1));
    for (process, expected, what) in [
        (0, [1, 1], "departs at once"),
        (0, [1, 1], "waits"),
        (1, [1, 0], "finds the queue full"),
        (1, [0, 0], "likewise"),
    ] {
        let arrival = queues[process].decide(&Ask::charge(&key, 1).to(Mode::Shadow)).decided().await.unwrap();
        assert_eq!(arrival.is_allowed(), process == 0);
        counted(expected, what).await;
    }
    let balance = SharedBalance::new(records, "bought");
    let payment = || balance.credit(&key, Credit::units(1).reference("invoice-1"));
    assert_eq!(payment().await.unwrap().remaining(), 1);
    counted([2, 3], "a credit with a reference").await;
    assert_eq!(payment().await.unwrap().remaining(), 1);
    counted([2, 0], "the same again").await;
    assert!(balance.acquire(&key, 1).await.unwrap().is_allowed());
    counted([1, 1], "a request").await;
    assert!(!balance.acquire(&key, 1).await.unwrap().is_allowed());
    counted([1, 0], "a request without units").await;
}

/// If the answer to the swap is lost, the payment is entered once, even if it is reported again.
#[tokio::test]
async fn a_payment_with_lost_answers_counts_once() {
    let (records, service, _) = records().await;
    let balance = Arc::new(SharedBalance::new(records, "bought"));
    let credit = || Credit::units(10).reference("invoice-1");
    for lost in 0..6 {
        let mut call = 0;
        service.decide(move |_| {
            call += 1;
            if call == lost + 1 { Fate::AnswerLost } else { Fate::Answered }
        });
        let _ = balance.credit(&"key".into(), credit()).await;
    }
    service.all(Fate::Answered);
    assert_eq!(balance.credit(&"key".into(), credit()).await.unwrap().remaining(), 10);
    assert_eq!(balance.acquire(&"key".into(), 1).await.unwrap().remaining(), 9);
}
