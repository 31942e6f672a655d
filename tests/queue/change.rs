//! Queues whose quota changes while requests wait in them, on paused time. `schedules` makes random changes.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tower_sluice::limiter::Ask;
use tower_sluice::{LeakyQueue, Limiter, PartitionKey, Quota};

/// A refund gives tokens back, and at most the tokens that are still owed.
#[tokio::test(start_paused = true)]
async fn charges_before_a_change_are_refunded() {
    let key = PartitionKey::from("key");
    let slow = LeakyQueue::new(Quota::per_second(1).burst(4)).max_queue(0);
    let spent = slow.decide(&Ask::charge(&key, 3)).decided().await.unwrap();
    sleep(Duration::from_millis(500)).await;
    let fast = LeakyQueue::new(Quota::per_second(10).burst(2)).max_queue(0);
    assert!(fast.inherit(&slow).is_some());
    // The key owes two and a half, and the next request may depart when it owes one.
    let rejected = fast.decide(&Ask::charge(&key, 1)).decided().await.unwrap();
    assert_eq!(rejected.retry_after(), Some(Duration::from_millis(150)));
    fast.refund(&Ask::charge(&key, 3), spent.receipt(), 3);
    assert_eq!(fast.decide(&Ask::peek(&key, 0)).at_once().unwrap().reset_after(), Duration::ZERO);
    // Two more changes later, another charge is no longer refunded.
    let spent = fast.decide(&Ask::charge(&key, 1)).decided().await.unwrap();
    let other = LeakyQueue::new(Quota::per_second(1));
    assert!(other.inherit(&fast).is_some());
    let last = LeakyQueue::new(Quota::per_second(2));
    assert!(last.inherit(&other).is_some());
    last.refund(&Ask::charge(&key, 1), spent.receipt(), 1);
    assert_eq!(last.decide(&Ask::peek(&key, 0)).at_once().unwrap().reset_after(), Duration::from_millis(500));
    let used = LeakyQueue::new(Quota::per_second(1));
    assert!(used.decide(&Ask::charge(&key, 1)).decided().await.unwrap().is_allowed());
    assert!(used.inherit(&last).is_none(), "it has a schedule of its own");
    assert!(fast.inherit(&last).is_some(), "it has the same, from before");
}

/// Waiters wake for turns that now come sooner, and stop waiting for turns that are too late.
#[tokio::test(start_paused = true)]
async fn a_raised_rate_helps_waiters_at_once() {
    let key = PartitionKey::from("key");
    let slow = LeakyQueue::new(Quota::per_hour(1)).max_queue(5).max_wait(Duration::from_secs(86_400));
    let start = Instant::now();
    assert!(slow.decide(&Ask::charge(&key, 1)).decided().await.unwrap().is_allowed());
    let waits: Vec<_> = (0..3).map(|_| tokio::spawn(slow.decide(&Ask::charge(&key, 1)).decided())).collect();
    sleep(Duration::from_secs(1)).await;
    let fast = LeakyQueue::new(Quota::per_second(1)).max_queue(5);
    assert!(fast.inherit(&slow).is_some());
    for (n, wait) in waits.into_iter().enumerate() {
        // The key still owes the first token, less one 3,600th.
        let decision = wait.await.unwrap().unwrap();
        assert!(decision.is_allowed());
        let passed = start.elapsed().as_millis();
        assert!((1_999..=2_001).contains(&(passed - n as u128 * 1_000)), "{n} after {passed} ms");
    }
    assert_eq!((fast.waiting(), slow.waiting()), (0, 0));
}

/// If a change leaves a key less room, its youngest waiters go, and learn of it at once.
#[tokio::test(start_paused = true)]
async fn a_lowered_capacity_rejects_the_youngest_waiters() {
    let key = PartitionKey::from("key");
    let roomy = LeakyQueue::new(Quota::per_second(1)).max_queue(5);
    assert!(roomy.decide(&Ask::charge(&key, 1)).decided().await.unwrap().is_allowed());
    let waits: Vec<_> = (0..4).map(|_| tokio::spawn(roomy.decide(&Ask::charge(&key, 1)).decided())).collect();
    sleep(Duration::from_millis(1)).await;
    let start = Instant::now();
    let narrow = LeakyQueue::new(Quota::per_second(1)).max_queue(2);
    assert!(narrow.inherit(&roomy).is_some());
    let mut outcomes = Vec::new();
    for wait in waits.into_iter().rev() {
        outcomes.push((wait.await.unwrap().unwrap().is_allowed(), start.elapsed().as_millis()));
    }
    assert_eq!(outcomes, [(false, 0), (false, 0), (true, 1_999), (true, 1_999)]);
}

#[tokio::test(start_paused = true)]
async fn a_lowered_rate_rejects_late_turns() {
    let key = PartitionKey::from("key");
    let patient = |rate| LeakyQueue::new(Quota::per_second(rate)).max_queue(9).max_wait(Duration::from_secs(2));
    let fast = patient(10);
    assert!(fast.decide(&Ask::charge(&key, 1)).decided().await.unwrap().is_allowed());
    let waits: Vec<_> = (0..4).map(|_| tokio::spawn(fast.decide(&Ask::charge(&key, 1)).decided())).collect();
    sleep(Duration::from_millis(1)).await;
    let start = Instant::now();
    let slow = patient(1);
    assert!(slow.inherit(&fast).is_some());
    let mut outcomes = Vec::new();
    for wait in waits.into_iter().rev() {
        outcomes.push((wait.await.unwrap().unwrap().is_allowed(), start.elapsed().as_millis()));
    }
    // A hundredth of the first token is paid. The other turns are up to 4 s away.
    assert_eq!(outcomes, [(false, 0), (false, 0), (true, 1_990), (true, 1_990)]);
}
