//! Figures from the documentation: how much windows and buckets admit where they cannot be exact.

use std::time::Duration;

use tower_sluice::algorithm::{Algorithm, FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::limiter::{Ask, IntoLimiter};
use tower_sluice::store::MemoryStore;
use tower_sluice::testing::take_quotas;
use tower_sluice::time::ManualClock;
use tower_sluice::{Decision, Limiter, PartitionKey, Quota, RateLimiter};

use crate::common::{clock, decided};
use crate::heirs::inherit;

fn limiter<A: Algorithm>(algorithm: A, clock: &ManualClock) -> std::sync::Arc<dyn Limiter> {
    RateLimiter::new(algorithm, MemoryStore::with_capacity(64).with_clock(clock.clone())).into_limiter()
}

fn ask(limiter: &dyn Limiter, cost: u64, quota: Option<Quota>) -> Decision {
    decided(limiter.decide(&Ask::charge(&PartitionKey::from("key"), cost).under(quota)))
}

fn passing(limiter: &dyn Limiter, requests: u64, quota: Option<Quota>) -> u64 {
    (0..requests).map(|_| u64::from(ask(limiter, 1, quota).is_allowed())).sum()
}

/// `Policy::quota_fn`, `LimitsHandle`: a window's count that comes into a shorter period ends with it, and is gone when
/// the period changes back. A bucket keeps its debt.
#[test]
fn a_period_round_trip_restarts_windows() {
    fn in_a_minute<A: Algorithm>(of: fn(Quota) -> A, burst: u64) -> u64 {
        let (day, second) = (Quota::per_day(1_000), Quota::per_second(10).burst(burst));
        let (clock, mut passed) = (clock(), 0);
        let limiter = limiter(of(day), &clock);
        assert!(take_quotas(&*limiter));
        for _ in 0..10 {
            passed += passing(&*limiter, 1_100, Some(day));
            let _ = ask(&*limiter, 1, Some(second));
            clock.advance(Duration::from_secs(2));
            passed += passing(&*limiter, 20, Some(second));
            clock.advance(Duration::from_secs(2));
        }
        passed
    }
    assert_eq!(in_a_minute(FixedWindow::new, 10), 10_100);
    assert_eq!(in_a_minute(SlidingWindow::new, 10), 10_100);
    // 1,000, and the tokens that it earns while it is on the faster plan.
    assert_eq!(in_a_minute(TokenBucket::new, 10), 1_360);
}

/// A live change to the limiter's own period and back.
#[test]
fn a_live_round_trip_regrants_windows() {
    fn after<A: Algorithm>(of: fn(Quota) -> A) -> u64 {
        let (clock, day) = (clock(), Quota::per_day(1_000));
        let before = limiter(of(day), &clock);
        assert_eq!(passing(&*before, 1_100, None), 1_000);
        let between = inherit(&limiter(of(Quota::per_second(10)), &clock), &before).unwrap();
        assert_eq!(passing(&*between, 1, None), 0);
        clock.advance(Duration::from_secs(2));
        passing(&*inherit(&limiter(of(day), &clock), &between).unwrap(), 1_100, None)
    }
    assert_eq!(after(FixedWindow::new), 1_000);
    assert_eq!(after(SlidingWindow::new), 1_000);
    assert_eq!(after(TokenBucket::new), 20, "the two seconds in between");
}

/// `Policy::charge_when`: a client holds successful requests open, and renews each before its charge is paid. Then it
/// ends them one by one, and sends a failing request for each unit that comes back.
#[test]
fn only_a_bucket_banks_open_charges() {
    fn failures_at_one_instant<A: Algorithm>(of: fn(Quota) -> A) -> u64 {
        let clock = clock();
        let (limiter, key) = (limiter(of(Quota::per_minute(5)), &clock), PartitionKey::from("key"));
        let mut open = Vec::new();
        // A unit is earned each 12 seconds, for 20 minutes.
        for _ in 0..=20 * 5 {
            let mut renewed = Vec::new();
            for receipt in open.drain(..) {
                limiter.refund(&Ask::charge(&key, 1), receipt, 1);
                let again = ask(&*limiter, 1, None);
                if again.is_allowed() {
                    renewed.push(again.receipt());
                }
            }
            open = renewed;
            loop {
                let more = ask(&*limiter, 1, None);
                if !more.is_allowed() {
                    break;
                }
                open.push(more.receipt());
            }
            clock.advance(Duration::from_secs(12));
        }
        let mut failed = passing(&*limiter, 10, None);
        for receipt in open {
            limiter.refund(&Ask::charge(&key, 1), receipt, 1);
            failed += passing(&*limiter, 10, None);
        }
        failed
    }
    assert_eq!(failures_at_one_instant(TokenBucket::new), 105);
    assert!(failures_at_one_instant(FixedWindow::new) <= 5);
    assert!(failures_at_one_instant(SlidingWindow::new) <= 5);
}
