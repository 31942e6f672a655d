//! The table's items.

use serde_json::Value;
use tower_sluice::algorithm::{FixedWindow, SlidingWindow, TokenBucket};

use super::*;

/// Returns a number from an item.
fn number(item: &Value, name: &str) -> u64 {
    item[name]["N"].as_str().and_then(|number| number.parse().ok()).expect("a number")
}

async fn only_item<A: Kept>(algorithm: A) -> (Service, Value) {
    let (service, clock) = service().await;
    let limiter = limiter(&dynamo(&service, &clock), algorithm);
    assert!(ask(&limiter).await.unwrap().is_allowed());
    let items = service.items();
    assert_eq!(items.len(), 1);
    (service, items[0].clone())
}

/// DynamoDB deletes by its own clock. So an item expires a minute after the last moment at which a right clock may need
/// it.
async fn expires_after<A: Kept>(algorithm: A, needed: Duration) {
    let (_, item) = only_item(algorithm).await;
    let needed = (Duration::from_nanos(NOW.as_nanos()) + needed + Duration::from_millis(10)).as_secs() + 1;
    assert_eq!(number(&item, "x"), needed + 60, "{item}");
    assert!(item.to_string().len() < 200, "{item}");
}

#[tokio::test]
async fn items_expire_when_nothing_is_owed() {
    let until_midnight = DAY - Duration::from_nanos(NOW.as_nanos() % u64::try_from(DAY.as_nanos()).unwrap());
    expires_after(TokenBucket::new(per_day(10)), DAY / 10).await;
    expires_after(FixedWindow::new(per_day(10)), until_midnight).await;
    expires_after(SlidingWindow::new(per_day(10)), until_midnight + DAY).await;
}

/// DynamoDB deletes expired items within days, and until then they can be read.
#[tokio::test]
async fn expired_items_count_for_nothing() {
    async fn check<A: Kept>(algorithm: A) {
        let (service, clock) = service().await;
        for _ in 0..3 {
            // Another process each time, because a process remembers its rejections by the true time.
            let limiter = limiter(&dynamo(&service, &clock), algorithm.clone());
            assert_eq!(admitted(&limiter, 6).await, 5);
            clock.advance(2 * DAY);
            assert!(!service.items().is_empty());
        }
    }
    check(TokenBucket::new(per_day(5))).await;
    check(FixedWindow::new(per_day(5))).await;
    check(SlidingWindow::new(per_day(5))).await;
}

/// A sliding window's item has at most two counts, even if many windows have passed or some were skipped.
#[tokio::test]
async fn counts_of_past_windows_are_removed() {
    let (service, clock) = service().await;
    let limiter = limiter(&dynamo(&service, &clock), SlidingWindow::new(Quota::per_minute(5)));
    for minutes in [1, 1, 2, 1, 7, 1, 1, 30, 1] {
        assert!(ask(&limiter).await.unwrap().is_allowed());
        let item = &service.items()[0];
        let counts = item.as_object().unwrap().keys().filter(|name| name.starts_with('w')).count();
        assert!((1..=2).contains(&counts), "{item}");
        clock.advance(Duration::from_secs(60 * minutes));
    }
}

/// Each write returns the item as it was.
#[tokio::test]
async fn each_write_has_a_condition() {
    async fn check<A: Kept>(algorithm: A) {
        let (service, _) = only_item(algorithm).await;
        let write = service.last_write();
        assert!(write["ConditionExpression"].is_string(), "{write}");
        assert_eq!(write["ReturnValues"], "ALL_OLD");
        assert_eq!(write["ReturnValuesOnConditionCheckFailure"], "ALL_OLD");
    }
    check(TokenBucket::new(per_day(5))).await;
    check(FixedWindow::new(per_day(5))).await;
    check(SlidingWindow::new(per_day(5))).await;
}

/// The table does not contain the text that a client sends, and without the secret, a reader of the table cannot find
/// out the clients by trying.
#[tokio::test]
async fn item_keys_do_not_reveal_clients() {
    let key_with = async |secret: &str| {
        let (service, clock) = service().await;
        let limiter = limiter(&dynamo(&service, &clock).secret(secret), TokenBucket::new(per_day(5)));
        let _ = limiter.acquire(&"alice@example.com".into(), 1).await.unwrap();
        service.items()[0]["k"]["S"].as_str().unwrap().to_owned()
    };
    let (plain, one, other) = (key_with("").await, key_with("one").await, key_with("other").await);
    assert!(plain.starts_with("test:") && !plain.contains("alice"), "{plain}");
    assert!(plain != one && one != other);
}

#[tokio::test]
async fn names_and_algorithms_have_separate_items() {
    let (service, clock) = service().await;
    let dynamo = dynamo(&service, &clock);
    for name in ["a", "b"] {
        let bucket = RateLimiter::new(TokenBucket::new(per_day(1)), DynamoStore::new(&dynamo, name));
        let window = RateLimiter::new(FixedWindow::new(per_day(1)), DynamoStore::new(&dynamo, name));
        assert_eq!((admitted(&bucket, 2).await, admitted(&window, 2).await), (1, 1));
    }
    assert_eq!(service.items().len(), 4);
}
