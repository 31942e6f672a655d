//! Checks the number of keys that a queue remembers, and how it decides on further keys.

use std::time::Duration;

use crate::support::log::Log;
use crate::support::trace::Trace;
use tokio::time::advance;
use tower_sluice::limiter::{Answer, Ask, Pending};
use tower_sluice::store::{TableStats, WhenFull};
use tower_sluice::{Decision, LeakyQueue, Limiter, PartitionKey, Quota};

const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3_600);

fn ready(queue: &LeakyQueue, key: impl Into<PartitionKey>) -> Decision {
    match queue.decide(&Ask::charge(&key.into(), 1)) {
        Answer::Ready(result) => result.unwrap(),
        Answer::Pending(_) => panic!("expected an answer at once, but have to wait"),
    }
}

fn pending(queue: &LeakyQueue, key: impl Into<PartitionKey>) -> Pending {
    match queue.decide(&Ask::charge(&key.into(), 1)) {
        Answer::Pending(pending) => pending,
        Answer::Ready(result) => panic!("expected to wait, but got {result:?}"),
    }
}

fn table(queue: &LeakyQueue) -> TableStats {
    queue.stats().table.expect("a queue has a table")
}

/// The capacity, the live keys, how many requests evicted a key, and how many found no room.
fn counts(queue: &LeakyQueue) -> [u64; 4] {
    let TableStats { capacity, live_keys, evicted_live, turned_away, .. } = table(queue);
    [capacity, live_keys, evicted_live, turned_away]
}

/// Sends five rounds of 70,000 keys, all within the hour in which each key may send one request. Returns how many pass.
async fn passing(queue: &LeakyQueue) -> usize {
    let mut passed = 0;
    for _ in 0..5 {
        for key in 0..70_000_u64 {
            passed += usize::from(ready(queue, key).is_allowed());
            if key % 100 == 0 {
                advance(MS).await;
            }
        }
    }
    passed
}

#[tokio::test(start_paused = true)]
async fn a_flood_passes_once_per_remembered_key() {
    let queue = LeakyQueue::new(Quota::per_hour(1)).max_wait(Duration::ZERO);
    assert_eq!(passing(&queue).await, 65_536);
    assert_eq!(counts(&queue), [65_536, 65_536, 0, 5 * (70_000 - 65_536)]);
    // Once they have paid, there is room again.
    advance(HOUR).await;
    assert_eq!(table(&queue).live_keys, 0);
    assert!(ready(&queue, 69_999_u64).is_allowed());
    assert_eq!(table(&queue).live_keys, 1);
}

#[tokio::test(start_paused = true)]
async fn all_keys_are_remembered_with_room() {
    let queue = LeakyQueue::new(Quota::per_hour(1)).max_wait(Duration::ZERO).max_keys(70_000);
    assert_eq!(passing(&queue).await, 70_000);
    assert_eq!(counts(&queue), [70_000, 70_000, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn keys_beyond_max_keys_may_overflow() {
    let queue = LeakyQueue::new(Quota::per_hour(1)).max_wait(Duration::ZERO).when_full(WhenFull::Overflow);
    let mut passed = passing(&queue).await;
    assert_eq!(counts(&queue), [65_536, 65_536, 0, 5 * (70_000 - 65_536)]);
    // Until a key has hashed to each of the 512 shared FIFOs.
    let mut trace = Trace::of(5_000);
    while trace.goes_on([("shared FIFOs that are used", passed >= 65_536 + 512)]) {
        passed += usize::from(ready(&queue, 70_000 + trace.step() as u64).is_allowed());
    }
    assert_eq!(passed, 65_536 + 512);
}

/// Evictions are counted then.
#[tokio::test(start_paused = true)]
async fn keys_are_forgotten_only_if_set() {
    let queue = LeakyQueue::new(Quota::per_hour(1)).max_wait(Duration::ZERO).when_full(WhenFull::EvictLeast);
    let passed = passing(&queue).await;
    // First come, first forgotten, as documented.
    assert!(passed > 300_000, "{passed}");
    assert_eq!(counts(&queue), [65_536, 65_536, passed as u64 - 65_536, 0]);
}

#[tokio::test(start_paused = true)]
async fn the_key_that_owes_least_is_forgotten() {
    let queue = LeakyQueue::new(Quota::per_second(1).burst(3)).max_keys(3).when_full(WhenFull::EvictLeast);
    for (key, requests) in [("much", 3), ("little", 1), ("more", 2)] {
        assert!((0..requests).all(|_| ready(&queue, key).is_allowed()));
    }
    assert_eq!(ready(&queue, "new").remaining(), 3);
    assert_eq!((table(&queue).evicted_live, table(&queue).live_keys), (1, 3));
    assert_eq!(queue.decide(&Ask::peek(&"much".into(), 0)).at_once().unwrap().remaining(), 1);
    assert_eq!(queue.decide(&Ask::peek(&"little".into(), 0)).at_once().unwrap().remaining(), 4, "it is as good as new");
}

#[tokio::test(start_paused = true)]
async fn a_rejected_key_finds_room_as_advertised() {
    let queue = LeakyQueue::new(Quota::per_second(10)).max_keys(2);
    assert!(ready(&queue, "a").is_allowed());
    advance(MS * 30).await;
    assert!(ready(&queue, "b").is_allowed());
    let peeked = queue.decide(&Ask::peek(&"c".into(), 1)).at_once().unwrap();
    assert_eq!(table(&queue).turned_away, 0, "a peek is no request");
    let rejected = ready(&queue, "c");
    assert_eq!((rejected.is_allowed(), rejected.remaining()), (false, 0));
    assert_eq!((rejected.retry_after(), peeked.retry_after()), (Some(MS * 70), Some(MS * 70)));
    // A cost of zero needs no room.
    assert!(matches!(queue.decide(&Ask::charge(&"c".into(), 0)), Answer::Ready(Ok(free)) if free.is_allowed()));
    assert!(!ready(&queue, "c").is_allowed());
    advance(MS * 69).await;
    assert_eq!(ready(&queue, "c").retry_after(), Some(MS));
    advance(MS).await;
    assert!(ready(&queue, "c").is_allowed());
    assert_eq!(counts(&queue), [2, 2, 0, 3]);
}

/// However many new keys come, a key with waiters is kept, and so is its debt.
#[tokio::test(start_paused = true)]
async fn a_key_with_waiters_is_kept() {
    for when_full in [WhenFull::Reject, WhenFull::EvictLeast] {
        let queue = LeakyQueue::new(Quota::per_second(10)).max_keys(2).when_full(when_full);
        let mut waiters = Vec::new();
        for key in ["a", "b"] {
            assert!(ready(&queue, key).is_allowed());
            waiters.push(pending(&queue, key));
        }
        // Both depart at 100 ms, and have paid at 200 ms.
        let rejected = ready(&queue, "c");
        assert_eq!(rejected.retry_after(), Some(MS * 200), "{when_full:?}");
        for waiter in waiters {
            assert_eq!(waiter.await.unwrap().delay(), MS * 100);
        }
        assert_eq!(ready(&queue, "c").is_allowed(), when_full == WhenFull::EvictLeast);
        advance(MS * 100).await;
        assert!(ready(&queue, "d").is_allowed());
    }
}

/// A key that shares a FIFO is refunded there.
#[tokio::test(start_paused = true)]
async fn a_refund_goes_to_the_charged_fifo() {
    let queue = LeakyQueue::new(Quota::per_hour(1)).max_keys(1).when_full(WhenFull::Overflow);
    assert!(ready(&queue, "a").is_allowed());
    let charged = ready(&queue, "b");
    assert!(charged.is_allowed());
    assert!(!ready(&queue, "b").is_allowed());
    queue.refund(&Ask::charge(&"b".into(), 1), charged.receipt(), 1);
    assert!(ready(&queue, "b").is_allowed());
    assert_eq!((counts(&queue), queue.waiting()), ([1, 1, 0, 3], 0));
}

#[tokio::test(start_paused = true)]
async fn a_changed_key_capacity_applies_from_then() {
    let few = LeakyQueue::new(Quota::per_hour(1)).max_wait(Duration::ZERO).max_keys(2);
    assert!((0..2_u64).all(|key| ready(&few, key).is_allowed()));
    assert!(!ready(&few, 2_u64).is_allowed());
    let more = LeakyQueue::new(Quota::per_hour(1)).max_wait(Duration::ZERO).max_keys(3);
    assert!(more.inherit(&few).is_some());
    assert!(ready(&more, 2_u64).is_allowed());
    assert!(!ready(&more, 3_u64).is_allowed());
    assert!(!ready(&more, 0_u64).is_allowed(), "what was spent is kept");
    assert_eq!(counts(&more), [3, 3, 0, 2]);
}

#[test]
fn the_first_lack_of_room_is_logged() {
    let (log, _subscriber) = Log::start();
    for (before, when_full) in [WhenFull::Reject, WhenFull::Overflow, WhenFull::EvictLeast].into_iter().enumerate() {
        let queue = LeakyQueue::new(Quota::per_hour(1)).max_wait(Duration::ZERO).max_keys(2).when_full(when_full);
        for key in 0..9_u64 {
            let _ = ready(&queue, key);
            assert_eq!(log.lines().len(), before + usize::from(key >= 2), "{when_full:?}, key {key}");
        }
    }
    let lines = log.lines();
    assert_eq!(lines.len(), 3, "one for each queue: {lines:?}");
    assert!(lines.iter().all(|line| line.contains("raise its max_keys")), "{lines:?}");
}
