//! The records beside the table.

use tower_sluice::limiter::Credit;
use tower_sluice::store::remote::{CallLimits, Records};
use tower_sluice::testing::{check_records, seed_of};
use tower_sluice::time::{ManualClock, Timestamp};
use tower_sluice::{SharedBalance, TokenBucket};

use super::*;

fn limits() -> CallLimits {
    CallLimits::until(Instant::now() + MINUTE)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_match_a_plain_map() {
    check_records(process(pool(8)).await.records(), seed_of(21)).await;
}

/// A record has its lifetime by the server's clock. Afterwards it does not exist, although its row may still be there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_ends_with_its_lifetime() {
    let clock = ManualClock::starting_at(Timestamp::from_nanos(1_700_000_000_000_000_000));
    let records = process(pool(1)).await.with_clock(clock.clone()).without_sweeps().records();
    let swap =
        async |old: Option<&[u8]>, new: Option<&[u8]>| records.swap("a:b:c", old, new, MINUTE, limits()).await.unwrap();
    assert!(swap(None, Some(b"1")).await);
    clock.advance(MINUTE - Duration::from_micros(1));
    assert_eq!(records.read("a:b:c", limits()).await.unwrap().value.as_deref(), Some(&b"1"[..]));
    assert!(swap(Some(b"1"), Some(b"2")).await, "its lifetime begins anew");
    clock.advance(MINUTE);
    assert_eq!(records.read("a:b:c", limits()).await.unwrap().value, None);
    assert!(!swap(Some(b"2"), Some(b"3")).await);
    assert!(!swap(Some(b"2"), None).await);
    assert!(swap(None, Some(b"4")).await);
    assert!(records.swap("a:b:d", None, Some(b""), Duration::MAX, limits()).await.unwrap());
    clock.advance(100 * YEAR);
    assert_eq!(records.read("a:b:d", limits()).await.unwrap().value.as_deref(), Some(&b""[..]));
}

/// An invalid name for a record is the caller's mistake, and does not affect other limiters.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_impossible_name_opens_no_breaker() {
    let records = process(pool(1)).await.records();
    for name in ["a\0b".to_owned(), "n".repeat(9_000)] {
        for _ in 0..12 {
            let error = records.swap(&name, None, Some(b"1"), MINUTE, limits()).await.unwrap_err();
            assert_eq!(kind(&error), FaultKind::Encoding);
        }
    }
    assert!(records.swap("a:b:c", None, Some(b"1"), MINUTE, limits()).await.unwrap());
}

/// Each request panicked, because the sum of the timeout and the time has no end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timeout_may_be_endless() {
    let postgres = process(pool(2)).await.timeout(Duration::MAX);
    let limiter = limiter(&postgres, TokenBucket::new(quota()));
    assert!(limiter.acquire(&"a".into(), 1).await.unwrap().is_allowed());
    let balance = SharedBalance::new(postgres.records(), "bought");
    assert_eq!(balance.credit(&"a".into(), Credit::units(1)).await.unwrap().remaining(), 1);
}
