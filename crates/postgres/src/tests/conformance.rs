//! All algorithms, over random schedules, against a plain map.

use std::sync::Mutex;

use tower_sluice::algorithm::{FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::testing::{check_backend, check_charges_by_hand, check_joint_backend, seed_of};

use super::*;
use crate::backend::PostgresBackend;

async fn check<A: Kept>(algorithm: A, seed: u64) {
    check_over(pool(8), algorithm, seed).await;
}

pub(super) async fn check_over<A: Kept>(pool: impl crate::Pool + Clone, algorithm: A, seed: u64) {
    if !is_drawn(seed) {
        return;
    }
    // A new table for each backend, so that all its keys are new. Three backends are made.
    let tables = [process(pool.clone()).await, process(pool.clone()).await, process(pool).await];
    let tables = Mutex::new(tables.to_vec());
    let make = |clock| {
        let postgres = tables.lock().unwrap().pop().expect("a table for each backend");
        PostgresBackend::new(&postgres.with_clock(clock), "test")
    };
    check_backend(algorithm, seed_of(seed), make).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn buckets_match_a_plain_map() {
    check(TokenBucket::new(quota().burst(3)), 1).await;
    check(TokenBucket::new(quota().burst(20)), 2).await;
    // A token does not take a whole number of nanoseconds.
    check(TokenBucket::new(Quota::per(3, Duration::from_nanos(1_000_000_007))), 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_greatest_buckets_match_a_plain_map() {
    check(TokenBucket::new(greatest().burst(Quota::MAX_UNITS)), 7).await;
    check(TokenBucket::new(Quota::per(7, YEAR).burst(Quota::MAX_UNITS - 1)), 8).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fixed_windows_match_a_plain_map() {
    check(FixedWindow::new(quota()), 4).await;
    check(FixedWindow::new(greatest()), 10).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sliding_windows_match_a_plain_map() {
    check(SlidingWindow::new(quota()), 5).await;
    check(SlidingWindow::new(greatest()), 11).await;
}

#[cfg(feature = "calendar")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calendar_windows_match_a_plain_map() {
    check(tower_sluice::algorithm::CalendarWindow::daily(7), 6).await;
    check(tower_sluice::algorithm::CalendarWindow::monthly(Quota::MAX_UNITS), 12).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_keys_match_a_plain_map() {
    for (seed, window) in [(31, false), (32, true)] {
        let tables = Mutex::new(vec![process(pool(8)).await, process(pool(8)).await]);
        let make = |clock| {
            let postgres = tables.lock().unwrap().pop().expect("a table for each backend");
            PostgresBackend::new(&postgres.with_clock(clock), "test")
        };
        if window {
            check_joint_backend(FixedWindow::new(quota()), seed_of(seed), make).await;
        } else {
            check_joint_backend(TokenBucket::new(quota().burst(9)), seed_of(seed), make).await;
        }
    }
}

/// By the server's clock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn charges_by_hand_pass_the_suite() {
    let backend = async || PostgresBackend::new(&process(pool(8)).await, "test");
    check_charges_by_hand(TokenBucket::new(quota().burst(9)), backend().await, seed_of(33)).await;
    check_charges_by_hand(FixedWindow::new(quota()), backend().await, seed_of(34)).await;
    check_charges_by_hand(SlidingWindow::new(quota()), backend().await, seed_of(35)).await;
    #[cfg(feature = "calendar")]
    {
        let window = tower_sluice::algorithm::CalendarWindow::daily(7);
        check_charges_by_hand(window, backend().await, seed_of(36)).await;
    }
}
