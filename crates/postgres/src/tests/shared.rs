//! State that processes share beside the keys' states: free retries, references in charges by hand, and the most
//! rejected keys.

use std::convert::Infallible;

use http::{HeaderName, Request, Response};
use tokio::task::JoinSet;
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::algorithm::{FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::key::HeaderKey;
use tower_sluice::limiter::Debit;
use tower_sluice::policy::{Offenders, ShowKey};
use tower_sluice::time::{ManualClock, Timestamp};
use tower_sluice::{ChargeOnce, LimitsHandle, PartitionKey, Policy, RateLimitLayer, Verdict};

use super::*;
use crate::pool::Value;
use crate::tests::timing::eventually;

const KEY: HeaderName = HeaderName::from_static("idempotency-key");

fn policy<A: Kept>(postgres: &Postgres, name: &'static str, algorithm: A) -> Policy {
    let limiter = RateLimiter::new(algorithm, PostgresStore::new(postgres, name));
    Policy::new(name, limiter).key(HeaderKey::from_static("x-client"))
}

fn once(free_retries: u32) -> ChargeOnce {
    ChargeOnce::by_header(KEY).within(24 * 60 * MINUTE).free_retries(free_retries)
}

fn layer(policy: Policy) -> RateLimitLayer {
    RateLimitLayer::builder(policy).verdict().build()
}

/// Sends a request whose response is over at once. Returns the remaining units; `None` if it is rejected.
async fn left(layer: &RateLimitLayer, client: &str, key: &str) -> Option<u64> {
    let hello = service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(())) });
    let request = Request::post("/charges").header("x-client", client).header(KEY, key).body(()).unwrap();
    let response = layer.clone().layer(hello).oneshot(request).await.unwrap().map(drop);
    let verdict = response.extensions().get::<Verdict>().expect("the layer attaches it");
    assert!(!verdict.policies().iter().any(|policy| policy.fell_back()), "{verdict:?}");
    (response.status() == 200).then(|| verdict.policies()[0].decision().remaining())
}

/// Returns the record names that match `like`.
async fn records(postgres: &Postgres, like: &str) -> Vec<String> {
    let table = postgres.table_name();
    let rows = postgres.query(&format!("SELECT name FROM {table}_records WHERE name LIKE '{like}'")).await.unwrap();
    let name = |row: Vec<Value>| match row.into_iter().next() {
        Some(Value::Text(Some(name))) => name,
        other => panic!("{other:?}"),
    };
    rows.into_iter().map(name).collect()
}

/// Records are made in the background.
async fn recorded(postgres: &Postgres, count: usize) {
    eventually("the records are made", async || records(postgres, "%:o").await.len() == count).await;
}

/// Two processes with one table.
async fn two() -> [Postgres; 2] {
    let one = process(pool(4)).await;
    [one.clone(), one.with_pool(pool(4))]
}

async fn check_retries<A: Kept>(algorithm: A) {
    let processes = two().await;
    let [one, other] =
        processes.each_ref().map(|postgres| layer(policy(postgres, "p", algorithm.clone()).charge_once(once(2))));
    assert_eq!(left(&one, "a", "k").await, Some(9));
    recorded(&processes[0], 1).await;
    // Two retries are free, in any process, and a third is charged.
    assert_eq!(left(&other, "a", "k").await, Some(9));
    assert_eq!(left(&one, "a", "k").await, Some(9));
    assert_eq!(left(&other, "a", "k").await, Some(8));
    // Another key, and another client, are no retries.
    assert_eq!(left(&other, "a", "other").await, Some(7));
    assert_eq!(left(&other, "b", "k").await, Some(9));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retries_are_free_in_other_processes() {
    check_retries(TokenBucket::new(Quota::per_day(10))).await;
    check_retries(FixedWindow::new(Quota::per(10, YEAR))).await;
    check_retries(SlidingWindow::new(Quota::per(10, YEAR))).await;
    #[cfg(feature = "calendar")]
    check_retries(tower_sluice::algorithm::CalendarWindow::monthly(10)).await;
}

/// If two processes get many retries at once, exactly the permitted number is free. The key's budget bounds all of
/// them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn simultaneous_retries_are_free_exactly_that_often() {
    let processes = two().await;
    let layers = processes
        .each_ref()
        .map(|postgres| layer(policy(postgres, "p", FixedWindow::new(Quota::per(100, YEAR))).charge_once(once(3))));
    assert_eq!(left(&layers[0], "a", "k").await, Some(99));
    recorded(&processes[0], 1).await;
    let tasks: Vec<_> = (0..20)
        .map(|number| {
            let layer = layers[number % 2].clone();
            tokio::spawn(async move { left(&layer, "a", "k").await.is_some() })
        })
        .collect();
    for task in tasks {
        assert!(task.await.unwrap());
    }
    // 1 + 20 - 3 were charged, and this one.
    assert_eq!(left(&layers[1], "a", "last").await, Some(100 - 19));
}

/// A budget of two per year has two free retries, even if many requests are retried.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_keys_budget_bounds_its_free_retries() {
    let [one, _] = two().await;
    let limited = layer(policy(&one, "p", FixedWindow::new(Quota::per(6, YEAR))).charge_once(once(1)));
    for (number, expected) in [5, 4, 3].into_iter().enumerate() {
        assert_eq!(left(&limited, "a", &format!("k{number}")).await, Some(expected));
    }
    recorded(&one, 3).await;
    for number in 0..3 {
        assert_eq!(left(&limited, "a", &format!("k{number}")).await, Some(3), "the budget is six, too");
    }
    // The limit is used up, and a free retry passes all the same.
    for number in 3..6 {
        assert!(left(&limited, "a", &format!("k{number}")).await.is_some());
    }
    recorded(&one, 6).await;
    assert_eq!(left(&limited, "a", "new").await, None);
    assert_eq!(left(&limited, "a", "k5").await, Some(0));
}

/// A free retry that another policy rejects is free the next time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rejected_free_retry_is_put_back() {
    let [one, other] = two().await;
    let once = policy(&one, "p", FixedWindow::new(Quota::per(10, YEAR))).charge_once(once(1));
    let gate = || policy(&other, "gate", FixedWindow::new(Quota::per(2, YEAR)));
    let both = RateLimitLayer::builder([once, gate()]).verdict().build();
    assert_eq!(left(&both, "a", "k").await, Some(9));
    recorded(&one, 1).await;
    // Another request uses up the gate, so the retry is rejected there.
    assert_eq!(left(&layer(gate()), "a", "x").await, Some(0));
    assert_eq!(left(&both, "a", "k").await, None);
    let value = || async {
        let table = one.table_name();
        let rows = one.query(&format!("SELECT encode(value, 'hex') FROM {table}_records WHERE name LIKE '%:o'")).await;
        format!("{:?}", rows.unwrap())
    };
    eventually("it is back", async || value().await.contains("00000001\"")).await;
    let _ = both.handle().reset("gate", "a").await.unwrap();
    assert_eq!(left(&both, "a", "k").await, Some(9));
}

async fn look(layer: &RateLimitLayer) -> Offenders {
    layer.handle().offenders("api", 10).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peek_shows_both_processes_rejections() {
    let [one, other] = two().await.map(|postgres| {
        let limited = policy(&postgres, "api", FixedWindow::new(Quota::per(1, YEAR)));
        layer(limited.track_offenders(ShowKey::prefix(3)))
    });
    for (layer, client, times) in [(&one, "alice", 4), (&other, "alice", 5), (&other, "alfred", 3)] {
        for _ in 0..times {
            let _ = left(layer, client, "k").await;
        }
    }
    for layer in [&one, &other] {
        eventually("both parts are there", async || look(layer).await.total() == 10).await;
        let offenders = look(layer).await;
        let rows: Vec<_> = offenders.list().iter().map(|offender| (offender.key(), offender.count())).collect();
        assert_eq!((offenders.processes(), &*rows), (2, &[("ali…", 8), ("alf…", 2)][..]));
        assert!(offenders.missing().is_none());
    }
}

/// A process that has lost the table of records keeps deciding.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_records_limits_over_time_hold() {
    let [one, _] = two().await;
    let table = one.table_name();
    one.query(&format!("DROP TABLE {table}_records")).await.unwrap();
    let limited = policy(&one, "api", FixedWindow::new(Quota::per(3, YEAR)));
    let limited = layer(limited.track_offenders(ShowKey::prefix(3)));
    let mut admitted = 0;
    for _ in 0..40 {
        admitted += usize::from(left(&limited, "a", "k").await.is_some());
    }
    assert_eq!(admitted, 3);
    assert!(look(&limited).await.missing().is_some(), "a look says that the others are missing");
    // Charges with references fail, but do not stop them, either.
    let by_hand = layer(policy(&one, "p", FixedWindow::new(Quota::per(3, YEAR))));
    for job in 0..20 {
        let debit = Debit::units(1).reference(format!("job-{job}"));
        assert!(by_hand.handle().charge("p", &PartitionKey::from("a"), debit).await.is_err());
    }
    assert_eq!(left(&by_hand, "b", "k").await, Some(2));
}

/// Charges seven units for a job, and returns whether it was entered.
async fn charge(handle: &LimitsHandle, job: u64) -> bool {
    let debit = Debit::units(7).reference(format!("job-{job}"));
    !handle.charge("p", &PartitionKey::from("a"), debit).await.unwrap().is_repeated()
}

/// Each charge would make the others in its process read the key again, until their time is over: only 29 of 600 were
/// entered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn simultaneous_charges_are_all_entered() {
    let postgres = process(pool(4)).await.timeout(Duration::from_secs(20));
    let limited = layer(policy(&postgres, "p", FixedWindow::new(Quota::per(1_000_000, YEAR))));
    let handle = limited.handle();
    let mut charges = JoinSet::new();
    for job in 0..200 {
        let handle = handle.clone();
        charges.spawn(async move { charge(&handle, job).await });
    }
    let entered = charges.join_all().await;
    assert!(entered.into_iter().all(|is_entered| is_entered));
    assert_eq!(left(&limited, "a", "k").await, Some(1_000_000 - 200 * 7 - 1));
}

/// Four processes charge for the same jobs, in the same order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_manual_charge_is_entered_once() {
    const JOBS: u64 = 20;
    let one = process(pool(1)).await;
    let handle = |postgres: &Postgres| layer(policy(postgres, "p", FixedWindow::new(Quota::per(1_000, YEAR)))).handle();
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            let handle = handle(&one.clone().with_pool(pool(1)));
            tokio::spawn(async move {
                let mut entered = 0;
                for job in 0..JOBS {
                    entered += u64::from(charge(&handle, job).await);
                }
                entered
            })
        })
        .collect();
    let mut entered = 0;
    for task in tasks {
        entered += task.await.unwrap();
    }
    assert_eq!(entered, JOBS);
    let left = handle(&one).peek("p", &PartitionKey::from("a")).await.unwrap().decision().remaining();
    assert_eq!(left, 1_000 - 7 * JOBS);
    assert_eq!(records(&one, "p:%").await.len() as u64, JOBS);
}

/// The record stays in its place, and is written again, both for a key with a row and for a key without.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reference_is_known_for_seven_days() {
    let clock = ManualClock::starting_at(Timestamp::from_nanos(1_700_000_000_000_000_000));
    let postgres = process(pool(1)).await.with_clock(clock.clone()).without_sweeps();
    let handle = layer(policy(&postgres, "p", FixedWindow::new(Quota::per(1_000, YEAR)))).handle();
    assert!(charge(&handle, 1).await);
    for has_row in [true, false] {
        clock.advance(7 * 24 * 60 * MINUTE - Duration::from_micros(1));
        assert!(!charge(&handle, 1).await);
        clock.advance(Duration::from_micros(1));
        if !has_row {
            let _ = handle.reset("p", &PartitionKey::from("a")).await.unwrap();
        }
        assert!(charge(&handle, 1).await);
    }
    assert_eq!(records(&postgres, "p:%").await.len(), 1);
}
