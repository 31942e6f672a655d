//! Expired rows are deleted as new ones are made.

use tower_sluice::algorithm::TokenBucket;
use tower_sluice::time::{ManualClock, Timestamp};

use super::*;
use crate::pool::Value;

async fn rows(postgres: &Postgres, table: &str) -> i64 {
    let answer = postgres.query(&format!("SELECT count(*) FROM {table}")).await.unwrap();
    match answer[0][0] {
        Value::Int(Some(rows)) => rows,
        _ => panic!("no number"),
    }
}

/// Keys as their hashes spread them.
fn spread(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

async fn charge(postgres: &Postgres, key: u64) {
    let bucket = TokenBucket::new(Quota::per_minute(10));
    let key = u128::from(spread(key)) << 64;
    apply(postgres, &bucket, key, Transition::Charge { cost: 1, count: 1 }).await.unwrap();
}

/// At a steady rate of new keys, at most a sixteenth of the rows expired more than a minute ago; the rest is for
/// chance.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn few_rows_have_expired() {
    let clock = ManualClock::starting_at(Timestamp::from_nanos(1_700_000_000_000_000_000));
    let pool = pool(2);
    let postgres = process(pool).await.with_clock(clock.clone());
    let table = postgres.table_name().to_owned();
    // A thousand rows are kept at a time: each key owes its token for six seconds, and its row stays for a minute more.
    for key in 0..4_000 {
        clock.advance(Duration::from_millis(66));
        charge(&postgres, key).await;
        // Waits for the sweep, so that a slow sweep does not suppress the next.
        while postgres.is_sweeping() {
            tokio::task::yield_now().await;
        }
    }
    let rows = rows(&postgres, &table).await;
    assert!((1_000..1_250).contains(&rows), "{rows} rows");
}

#[tokio::test]
async fn a_sweep_keeps_rows_that_count() {
    let clock = ManualClock::starting_at(Timestamp::from_nanos(1_700_000_000_000_000_000));
    let postgres = process(pool(1)).await.with_clock(clock.clone());
    let table = postgres.table_name().to_owned();
    for key in 0..10 {
        charge(&postgres, key).await;
    }
    let bucket = TokenBucket::new(Quota::per_minute(10));
    apply(&postgres, &bucket, 1, Transition::Ban { span: YEAR, growth: None }).await.unwrap();
    clock.advance(Duration::from_millis(65_999));
    let least = "0".repeat(32);
    postgres.sweep(&least, 1_000).await.unwrap();
    assert_eq!(rows(&postgres, &table).await, 11);
    clock.advance(Duration::from_millis(1));
    postgres.sweep(&least, 5).await.unwrap();
    assert!(rows(&postgres, &table).await >= 6, "it examines five rows");
    postgres.sweep(&least, 1_000).await.unwrap();
    assert_eq!(rows(&postgres, &table).await, 2, "the ban, and the row of the least key, behind which it looks");
}
