//! All algorithms, over random schedules, against a plain map.

use tower_sluice::algorithm::{FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::testing::{check_backend, seed_of};

use super::*;
use crate::backend::DynamoBackend;

/// A new table for each backend, so that all its keys are new.
fn backend(clock: &ManualClock) -> DynamoBackend {
    let service = Service::new(clock.clone());
    service.create_table();
    DynamoBackend::new(&dynamo(&service, clock), "test")
}

async fn check<A: Kept>(algorithm: A, seed: u64) {
    check_backend(algorithm, seed_of(seed), |clock| backend(&clock)).await;
}

/// The longest period.
const CENTURY: Duration = Duration::from_secs(100 * 366 * 86_400);

fn quota() -> Quota {
    Quota::per(7, Duration::from_secs(60))
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
    check(TokenBucket::new(Quota::per(7, CENTURY).burst(Quota::MAX_UNITS)), 7).await;
    check(TokenBucket::new(Quota::per(Quota::MAX_UNITS, CENTURY).burst(Quota::MAX_UNITS - 1)), 8).await;
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
