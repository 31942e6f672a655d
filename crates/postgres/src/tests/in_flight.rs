//! Units in flight that processes count together, as records.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use tower_sluice::limiter::Permit;
use tower_sluice::testing::{Random, check_in_flight, seed_of};
use tower_sluice::time::{ManualClock, Timestamp};
use tower_sluice::{LimiterExt, PartitionKey, SharedConcurrency};

use super::timing::eventually;
use super::*;
use crate::PostgresRecords;

const HOUR: Duration = Duration::from_secs(3_600);

type Limited = SharedConcurrency<PostgresRecords>;

fn limited(postgres: &Postgres, limit: u64, lease: Duration) -> Limited {
    SharedConcurrency::new(postgres.records(), "test", limit).lease(lease)
}

async fn take(limiter: &Limited, units: u64) -> Option<Permit<&Limited>> {
    limiter.acquire(&PartitionKey::from("a"), units).await.unwrap().admitted()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_match_a_plain_map() {
    check_in_flight(process(pool(8)).await.records(), seed_of(22)).await;
}

/// Each of two processes has many requests that come and go, some after a short time and some after a longer one, and
/// some that wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_never_exceed_the_limit() {
    const LIMIT: u64 = 7;
    let one = process(pool(4)).await;
    let processes = [one.clone(), one.with_pool(pool(4))];
    let limiters = processes.map(|postgres| Arc::new(limited(&postgres, LIMIT, HOUR).max_queue(2)));
    let in_flight = Arc::new(AtomicU64::new(0));
    let most = Arc::new(AtomicU64::new(0));
    let clients: Vec<_> = (0..24)
        .map(|client| {
            let limiter = Arc::clone(&limiters[client % 2]);
            let (in_flight, most) = (Arc::clone(&in_flight), Arc::clone(&most));
            let mut random = Random::of_trial(client as u64);
            tokio::spawn(async move {
                let mut served = 0;
                for _ in 0..20 {
                    let units = 1 + random.below(3);
                    let Some(permit) = take(&limiter, units).await else { continue };
                    let now = in_flight.fetch_add(units, Ordering::SeqCst) + units;
                    most.fetch_max(now, Ordering::SeqCst);
                    for _ in 0..random.below(4) {
                        tokio::task::yield_now().await;
                    }
                    in_flight.fetch_sub(units, Ordering::SeqCst);
                    drop(permit);
                    served += 1;
                }
                served
            })
        })
        .collect();
    let mut served = 0;
    for client in clients {
        served += client.await.unwrap();
    }
    println!("{served} of {} were served, up to {most:?} units at once", 24 * 20);
    assert!(most.load(Ordering::SeqCst) <= LIMIT && served > 0);
    eventually("all units are released", async || match take(&limiters[0], LIMIT).await {
        Some(permit) => {
            drop(permit);
            true
        }
        None => false,
    })
    .await;
}

/// The process's runtime is gone, and with it every renewal. By the server's clock, which the test sets.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn units_of_dead_processes_return() {
    const LEASE: Duration = MINUTE;
    let clock = ManualClock::starting_at(Timestamp::from_nanos(1_700_000_000_000_000_000));
    let alive = process(pool(2)).await.with_clock(clock.clone()).without_sweeps();
    let dying = alive.clone();
    let dead = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let limiter = Arc::new(limited(&dying.with_pool(pool(1)), 4, LEASE));
        let permit = runtime.block_on(limiter.acquire_owned(&PartitionKey::from("a"), 3));
        permit.unwrap().admitted().expect("four are free")
    });
    let held = dead.join().unwrap();
    let alive = limited(&alive, 4, HOUR);
    clock.advance(LEASE - Duration::from_micros(1));
    assert!(take(&alive, 2).await.is_none(), "the lease has not ended");
    assert!(take(&alive, 1).await.is_some());
    clock.advance(Duration::from_micros(1));
    eventually("all are free", async || take(&alive, 4).await.is_some()).await;
    drop(held);
}
