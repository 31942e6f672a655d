//! How many keys a queue remembers, and what becomes of those beyond.

use std::time::Duration;

use tokio::time::advance;
use tower_sluice::{Check, Decision, LeakyQueue, Limiter, PartitionKey, Quota};

const HOUR: Duration = Duration::from_secs(3_600);

fn ready(queue: &LeakyQueue, key: impl Into<PartitionKey>) -> Decision {
    match queue.check(&key.into(), 1) {
        Check::Ready(result) => result.unwrap(),
        Check::Pending(_) => panic!("expected an answer at once, but have to wait"),
    }
}

/// How many of five rounds of requests pass, of as many keys as this, all within the hour for which one is enough.
fn passing(queue: &LeakyQueue, keys: u64) -> usize {
    (0..5).map(|_| (0..keys).filter(|key| ready(queue, *key).is_allowed()).count()).sum()
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_keys_passes_once_for_each_key_that_is_remembered() {
    let queue = LeakyQueue::new(Quota::per_hour(1));
    assert_eq!(passing(&queue, 70_000), 65_536);
    advance(HOUR).await;
    assert!(ready(&queue, 69_999).is_allowed());
}
