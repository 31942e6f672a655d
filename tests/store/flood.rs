//! How a flood of fresh keys affects a memory store that is too small for it. Prints the tables behind the one in
//! `WhenFull`:
//!
//!     FULL_TESTS=1 cargo test --test store flood -- --nocapture

use std::time::Duration;

use tower_sluice::algorithm::{Algorithm, FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::limiter::{Answer, Ask};
use tower_sluice::store::{MemoryStore, MemoryTable, WhenFull};
use tower_sluice::time::{ManualClock, Timestamp};
use tower_sluice::{Limiter, Quota, RateLimiter};

use crate::support::effort::rounds;

const SECONDS: u64 = 20;
const STEPS_PER_SECOND: u64 = 20;

struct Flood {
    burst: u64,
    /// How much each fresh key spends; it never comes again.
    spends: u64,
    /// How many keys are live at a time, in tenths of the slots.
    tenths: u64,
    when_full: WhenFull,
}

#[derive(Debug)]
struct Outcome {
    /// Evicted live keys: per thousand arrivals, and in all.
    evicted: u64,
    evicted_in_all: u64,
    /// Admitted requests per key that asked twenty times a second, on average, in tenths.
    admitted_tenths: u64,
    /// Fresh keys whose first request was rejected, per thousand.
    locked_out: u64,
}

impl Flood {
    /// Runs the flood for twenty seconds, at one per second and key.
    fn run(&self) -> Outcome {
        self.run_against(TokenBucket::new(Quota::per_second(1).burst(self.burst)))
    }

    fn run_against<A: Algorithm>(&self, algorithm: A) -> Outcome {
        let clock = ManualClock::starting_at(Timestamp::from_nanos(1_700_000_000_000_000_000));
        // With fewer slots, the slowest flood would have no key in a step.
        let slots = rounds(1_000, 20_000).max(1_000) as u64;
        let abusive = slots / 200;
        let capacity = usize::try_from(slots / 2).unwrap();
        let store = MemoryStore::with_capacity(capacity).when_full(self.when_full).with_clock(clock.clone());
        let limiter = RateLimiter::new(algorithm, store);
        // A fresh key is live for one second per unit that it spends.
        let per_step = slots * self.tenths / 10 / self.spends / STEPS_PER_SECOND;
        let (mut fresh, mut locked_out, mut admitted) = (1_000_000_u64, 0, 0);
        for _ in 0..SECONDS * STEPS_PER_SECOND {
            for _ in 0..per_step {
                fresh += 1;
                let passed = (0..self.spends).filter(|_| asks(&limiter, fresh)).count();
                locked_out += u64::from(passed == 0);
            }
            admitted += (0..abusive).filter(|key| asks(&limiter, *key)).count() as u64;
            clock.advance(Duration::from_millis(1_000 / STEPS_PER_SECOND));
        }
        limiter.check_invariants();
        let arrivals = fresh - 1_000_000;
        Outcome {
            evicted: limiter.evicted_live() * 1_000 / arrivals,
            evicted_in_all: limiter.evicted_live(),
            admitted_tenths: admitted * 10 / abusive,
            locked_out: locked_out * 1_000 / arrivals,
        }
    }
}

fn asks<A: Algorithm>(limiter: &RateLimiter<A, MemoryTable<A::State, ManualClock>>, key: u64) -> bool {
    matches!(limiter.decide(&Ask::charge(&key.into(), 1)), Answer::Ready(Ok(decision)) if decision.is_allowed())
}

/// Such keys owe more than the flood's keys.
#[test]
fn keys_above_the_flood_stay_limited() {
    println!(
        "| live keys per slot | burst | a sprayed key spends | live keys evicted, of arrivals | an abusive key passes | entitled to |"
    );
    println!("|---|---|---|---|---|---|");
    for (burst, spends) in [(1, 1), (2, 1), (2, 2), (5, 1), (5, 5), (20, 1), (20, 20)] {
        for tenths in [5, 7, 10, 20, 50].into_iter().step_by(rounds(3, 1)) {
            let outcome = Flood { burst, spends, tenths, when_full: WhenFull::EvictLeast }.run();
            let entitled = burst + SECONDS;
            println!(
                "| {}.{} | {burst} | {spends} | {}.{} % | {}.{} | {entitled} |",
                tenths / 10,
                tenths % 10,
                outcome.evicted / 10,
                outcome.evicted % 10,
                outcome.admitted_tenths / 10,
                outcome.admitted_tenths % 10
            );
            assert_eq!(outcome.locked_out, 0, "a new key must not be locked out");
            if tenths == 5 {
                assert_eq!(outcome.evicted_in_all, 0, "at half load nothing is lost");
            }
            // Where all owe one unit, a key passes each time that the flood replaces the table.
            if burst == 1 {
                assert!(outcome.admitted_tenths <= entitled * tenths.max(10) * 11 / 10, "{outcome:?}");
            }
            if spends * 4 <= burst {
                assert!(outcome.admitted_tenths <= 10 * entitled, "{outcome:?}");
            }
        }
    }
}

/// New keys pay for it.
#[test]
fn reject_and_overflow_keep_every_limit() {
    println!("| when full | live keys per slot | an abusive key passes | entitled to | new keys locked out |");
    println!("|---|---|---|---|---|");
    for when_full in [WhenFull::EvictLeast, WhenFull::Reject, WhenFull::Overflow] {
        for tenths in [5, 20, 50] {
            let outcome = Flood { burst: 1, spends: 1, tenths, when_full }.run();
            println!(
                "| {when_full:?} | {}.{} | {}.{} | 21 | {}.{} % |",
                tenths / 10,
                tenths % 10,
                outcome.admitted_tenths / 10,
                outcome.admitted_tenths % 10,
                outcome.locked_out / 10,
                outcome.locked_out % 10
            );
            if when_full != WhenFull::EvictLeast {
                assert!(outcome.admitted_tenths <= 210 && outcome.evicted_in_all == 0, "{outcome:?}");
            }
        }
    }
}

/// Keys ask `asks` times in each step under their own quota. Meanwhile fresh keys with another quota send one request
/// each; per second, they are ten times more than the table has slots. Returns how many requests pass in all.
fn passed_beside<A: Algorithm>(algorithm: A, own: Quota, keys: u64, asks: u64, fresh: Option<Quota>) -> u64 {
    let clock = ManualClock::starting_at(Timestamp::from_nanos(1_700_000_000_000_000_000));
    let store = MemoryStore::with_capacity(200).with_clock(clock.clone());
    let limiter = RateLimiter::new(algorithm, store);
    let mut next = 1_000_000_u64..;
    let ask = |key: u64, quota| {
        let key = key.into();
        let ask = Ask::charge(&key, 1).under(Some(quota));
        u64::from(matches!(limiter.decide(&ask), Answer::Ready(Ok(decision)) if decision.is_allowed()))
    };
    let mut passed = 0;
    for _ in 0..rounds(6, 20) as u64 * STEPS_PER_SECOND {
        passed += (0..keys).map(|key| (0..asks).map(|_| ask(key, own)).sum::<u64>()).sum::<u64>();
        if let Some(fresh) = fresh {
            next.by_ref().take(200).for_each(|key| assert_eq!(ask(key, fresh), 1, "a new key must not be locked out"));
        }
        clock.advance(Duration::from_millis(1_000 / STEPS_PER_SECOND));
    }
    passed
}

/// A customer at the limit was forgotten for slower keys that had sent one request each. Bucket debts were compared by
/// the time until they are paid, so it passed 19,919 requests instead of 2,100. A strict limit was forgotten for
/// generous ones, because window debts were compared by the count.
#[test]
fn own_quotas_hold_in_any_flood() {
    fn check<A: Algorithm + Copy>(algorithm: A) {
        let customer = Quota::per_second(100);
        let strict = Quota::per_day(5);
        let entitled = passed_beside(algorithm, customer, 1, 20, None);
        let floods = [
            Quota::per_day(1),
            Quota::per_day(5),
            Quota::per_hour(100),
            Quota::per_minute(1),
            Quota::per_second(1),
            Quota::per_second(100),
            Quota::per_second(10_000),
        ];
        for fresh in floods.into_iter().step_by(rounds(3, 1)) {
            let passed = passed_beside(algorithm, customer, 1, 20, Some(fresh));
            println!("{fresh:?}: {passed} of {entitled}");
            assert!(passed.abs_diff(entitled) * 100 <= entitled, "{passed} of {entitled} beside {fresh:?}");
            assert_eq!(passed_beside(algorithm, strict, 40, 5, Some(fresh)), 200, "beside {fresh:?}");
        }
    }
    check(TokenBucket::new(Quota::per_second(1)));
    check(FixedWindow::new(Quota::per_second(1)));
    check(SlidingWindow::new(Quota::per_second(1)));
}

/// A window has one second per unit, so a key has the value of a bucket's key above.
#[test]
fn windows_hold_or_lock_none_out() {
    for (burst, spends) in [(1, 1), (5, 1), (5, 5)] {
        let quota = Quota::per(burst, Duration::from_secs(burst));
        // The whole limit in each window that the run touches.
        let entitled = burst * (SECONDS / burst + 1);
        for when_full in [WhenFull::EvictLeast, WhenFull::Reject, WhenFull::Overflow] {
            for tenths in [1, rounds(15, 50) as u64] {
                let flood = Flood { burst, spends, tenths, when_full };
                let outcomes = [
                    flood.run_against(FixedWindow::new(quota)),
                    flood.run_against(SlidingWindow::new(quota)),
                    flood.run_against(FixedWindow::new(quota).staggered()),
                ];
                for outcome in outcomes {
                    let what = format!("{when_full:?}, {tenths} tenths, {spends} of {burst}: {outcome:?}");
                    if when_full == WhenFull::EvictLeast {
                        assert_eq!(outcome.locked_out, 0, "{what}");
                    } else {
                        assert!(outcome.admitted_tenths <= 10 * entitled && outcome.evicted_in_all == 0, "{what}");
                    }
                    // Keys are live for two windows of this length, however much they spend.
                    if 2 * tenths * burst <= 5 * spends {
                        assert_eq!(outcome.evicted_in_all, 0, "{what}");
                    }
                }
            }
        }
    }
}
