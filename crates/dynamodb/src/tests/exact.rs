//! Eight processes contend for one key, and are together admitted exactly the limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tower_sluice::algorithm::{FixedWindow, SlidingWindow, TokenBucket};

use super::effort::rounds;
use super::*;

const PROCESSES: u64 = 8;
const REQUESTS: u64 = 1_000;
const LIMIT: u64 = 777;

/// The greatest limit admits exactly 777 requests with this cost.
const COST: u64 = Quota::MAX_UNITS / LIMIT;

/// Each process has its own client, breaker, negative cache and hints; they share only the table. Half of them share
/// calls among their requests, eight at a time.
async fn exactly<A: Kept>(algorithm: A, cost: u64) {
    for run in 0..rounds(1, 50) {
        let (service, clock) = service().await;
        let admitted = Arc::new(AtomicU64::new(0));
        let mut tasks = Vec::new();
        for process in 0..PROCESSES {
            let store = DynamoStore::new(&dynamo(&service, &clock), "test");
            let shares_calls = process % 2 == 0;
            let store = if shares_calls { store } else { store.without_coalescing() };
            let limiter = Arc::new(RateLimiter::new(algorithm.clone(), store));
            let lines = if shares_calls { 8 } else { 1 };
            for _ in 0..lines {
                let (limiter, admitted) = (Arc::clone(&limiter), Arc::clone(&admitted));
                tasks.push(tokio::spawn(async move {
                    for _ in 0..REQUESTS / lines {
                        let decision = limiter.acquire(&"key".into(), cost).await.expect("no call fails");
                        admitted.fetch_add(decision.is_allowed().into(), Ordering::Relaxed);
                    }
                }));
            }
        }
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(admitted.load(Ordering::Relaxed), LIMIT, "run {run}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn eight_processes_get_exactly_one_bucket() {
    exactly(TokenBucket::new(per_day(LIMIT)), 1).await;
    exactly(TokenBucket::new(greatest()), COST).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn eight_processes_get_exactly_one_fixed_window() {
    exactly(FixedWindow::new(per_day(LIMIT)), 1).await;
    exactly(FixedWindow::new(greatest()), COST).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn eight_processes_get_exactly_one_sliding_window() {
    exactly(SlidingWindow::new(per_day(LIMIT)), 1).await;
    exactly(SlidingWindow::new(greatest()), COST).await;
}

#[cfg(feature = "calendar")]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn eight_processes_get_exactly_one_calendar_window() {
    exactly(tower_sluice::algorithm::CalendarWindow::daily(LIMIT), 1).await;
    exactly(tower_sluice::algorithm::CalendarWindow::monthly(Quota::MAX_UNITS), COST).await;
}
