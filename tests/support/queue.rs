//! Waiters in a [`LeakyQueue`].

use tower_sluice::limiter::{Answer, Ask, Pending};
use tower_sluice::{LeakyQueue, Limiter, PartitionKey};

pub const KEY: PartitionKey = PartitionKey::SHARED;

/// Returns the future of a request that has to wait.
pub fn join(queue: &LeakyQueue) -> Pending {
    match queue.decide(&Ask::charge(&KEY, 1)) {
        Answer::Pending(pending) => pending,
        Answer::Ready(result) => panic!("expected to wait, but got {result:?}"),
    }
}

/// Lets the tasks that can run do so.
pub async fn settle() {
    for _ in 0..8 {
        tokio::task::yield_now().await;
    }
}
