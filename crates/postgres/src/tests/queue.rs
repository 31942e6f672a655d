//! Queues that processes share, over records.

use tower_sluice::limiter::{Ask, Mode};
use tower_sluice::testing::{check_departures, seed_of};
use tower_sluice::time::{ManualClock, Timestamp};
use tower_sluice::{Decision, Limiter, PartitionKey, SharedQueue};

use super::*;
use crate::PostgresRecords;

const HOUR: Duration = Duration::from_secs(3_600);

type Queue = SharedQueue<PostgresRecords>;

/// Two processes with one table.
async fn two() -> [Postgres; 2] {
    let one = process(pool(4)).await;
    [one.clone(), one.with_pool(pool(4))]
}

fn queue(postgres: &Postgres, quota: Quota) -> Arc<Queue> {
    Arc::new(SharedQueue::new(postgres.records(), "test", quota).max_queue(500).max_wait(1_000 * HOUR))
}

async fn decide(queue: &Queue, key: &str, mode: Mode) -> Decision {
    let key = PartitionKey::from(key);
    queue.decide(&Ask::charge(&key, 1).to(mode)).decided().await.expect("a server")
}

/// Sixty tasks in each process ask at once, and so share no turn. Returns each task's result.
async fn all<T: Send + 'static>(queues: &[Arc<Queue>; 2], mode: Mode, done: fn(Decision) -> T) -> Vec<T> {
    let tasks: Vec<_> = (0..120)
        .map(|index| {
            let queue = Arc::clone(&queues[index % 2]);
            tokio::spawn(async move { done(decide(&queue, "a", mode).await) })
        })
        .collect();
    let mut results = Vec::new();
    for task in tasks {
        results.push(task.await.expect("no task panics"));
    }
    results
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn departures_match_a_plain_list() {
    check_departures(two().await.map(|postgres| postgres.records()), seed_of(22)).await;
}

/// By a clock that stands still, their turns are known to the nanosecond.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_share_exact_departures() {
    let clock = ManualClock::starting_at(Timestamp::from_nanos(1_700_000_000_000_000_000));
    let queues = two().await.map(|postgres| queue(&postgres.with_clock(clock.clone()), Quota::per_second(3)));
    let mut delays = all(&queues, Mode::Shadow, |decision| decision.delay()).await;
    delays.sort_unstable();
    let turns: Vec<_> = (0..120_u64).map(|index| Duration::from_nanos((index * 1_000_000_000).div_ceil(3))).collect();
    assert_eq!(delays, turns);
}

/// No task leaves before its turn. If the machine stalls, the queue may run empty.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_two_waiters_depart_too_close() {
    let interval = Duration::from_millis(5);
    let queues = two().await.map(|postgres| queue(&postgres, Quota::per(1, interval)));
    let began = Instant::now();
    let mut left_at = all(&queues, Mode::Charge, |decision| {
        assert!(decision.is_allowed());
        Instant::now()
    })
    .await;
    left_at.sort_unstable();
    for (index, left_at) in (0..).zip(left_at) {
        let earliest = began + interval * index;
        // The server's clock is this machine's, truncated to the microsecond.
        assert!(left_at + Duration::from_micros(1) >= earliest, "{index} left {:?} too early", earliest - left_at);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schedule_in_the_past_is_over() {
    let clock = ManualClock::starting_at(Timestamp::from_nanos(1_700_000_000_000_000_000));
    let [one, other] = two().await.map(|postgres| queue(&postgres.with_clock(clock.clone()), Quota::per_hour(1)));
    assert!(decide(&one, "a", Mode::Shadow).await.delay().is_zero());
    assert_eq!(decide(&other, "a", Mode::Shadow).await.delay(), HOUR);
    clock.advance(2 * HOUR);
    assert!(decide(&other, "a", Mode::Shadow).await.delay().is_zero());
}
