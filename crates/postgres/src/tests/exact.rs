//! Eight processes contend for one key by the server's clock, and are together admitted exactly the limit.

use tower_sluice::algorithm::{FixedWindow, SlidingWindow, TokenBucket};

use super::*;

const PROCESSES: u64 = 8;
const REQUESTS: u64 = 200;
const LIMIT: u64 = 777;

/// The greatest limit admits exactly 777 requests with this cost.
const COST: u64 = Quota::MAX_UNITS / LIMIT;

/// Each process has its own pool, breaker and negative cache; they share only the table. Half of them share calls among
/// their requests, eight at a time.
async fn exactly<A: Kept>(algorithm: A, cost: u64) {
    let url = PostgresServer::shared().url();
    let first = process(pool(1)).await;
    let admitted = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for process in 0..PROCESSES {
        let postgres = first.clone().with_pool(pool_of(&url, 4));
        let store = PostgresStore::new(&postgres, "test");
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
    assert_eq!(admitted.load(Ordering::Relaxed), LIMIT);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn eight_processes_get_exactly_one_bucket() {
    exactly(TokenBucket::new(Quota::per_day(LIMIT)), 1).await;
    exactly(TokenBucket::new(greatest()), COST).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn eight_processes_get_exactly_one_window() {
    exactly(FixedWindow::new(Quota::per(LIMIT, YEAR)), 1).await;
    exactly(SlidingWindow::new(Quota::per(LIMIT, YEAR)), 1).await;
}

#[cfg(feature = "calendar")]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn eight_processes_get_exactly_one_calendar_window() {
    exactly(tower_sluice::algorithm::CalendarWindow::monthly(LIMIT), 1).await;
}

/// This process's clock shows another window than the server's present one, so the process does not know its end.
#[cfg(feature = "calendar")]
#[tokio::test]
async fn a_wrong_clock_needs_another_call() {
    use tower_sluice::algorithm::CalendarWindow;
    use tower_sluice::time::{ManualClock, Timestamp};

    let postgres = process(pool(1)).await.with_clock_here(ManualClock::starting_at(Timestamp::from_nanos(1 << 59)));
    let algorithm = CalendarWindow::daily(3);
    let mut receipts = Vec::new();
    for key in [1, 1, 2] {
        let applied = apply(&postgres, &algorithm, key, Transition::Charge { cost: 2, count: 1 }).await.unwrap();
        receipts.push(algorithm.decide(applied.old, applied.now, 2).0.receipt());
        assert_eq!(applied.charged, u32::from(receipts.len() != 2));
    }
    let refund = Transition::Refund { cost: 2, receipt: receipts[0] };
    apply(&postgres, &algorithm, 1, refund).await.unwrap();
    let applied = apply(&postgres, &algorithm, 1, Transition::Charge { cost: 3, count: 1 }).await.unwrap();
    assert_eq!(applied.charged, 1, "all was refunded");
}
