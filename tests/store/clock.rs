//! Clocks that are set back, and forward again, under a bucket in memory: it admits at most the requests that it would
//! with a clock that keeps running, and advertised waits are true by the present clock.

#![allow(clippy::cast_possible_truncation, reason = "small numbers")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tower_sluice::algorithm::{Algorithm, FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::limiter::Ask;
use tower_sluice::store::{MemoryStore, MemoryTable};
use tower_sluice::testing::{Random, seeds};
use tower_sluice::time::{Clock, ManualClock, Timestamp};
use tower_sluice::{Decision, Limiter, PartitionKey, Quota, RateLimiter};

use crate::common::{admits, charge};
use crate::support::effort::rounds;

type Bucket = RateLimiter<TokenBucket, MemoryTable<tower_sluice::algorithm::GcraState, ManualClock>>;

const SECOND: u64 = 1_000_000_000;

/// Ten per second and a burst of 20. Its table sweeps a page once in 1.6 seconds.
fn bucket(keys: usize, clock: &ManualClock) -> Bucket {
    let store = MemoryStore::with_capacity(keys).with_clock(clock.clone());
    RateLimiter::new(TokenBucket::new(Quota::per_second(10).burst(20)), store)
}

fn ask(bucket: &Bucket, key: u64, cost: u64) -> Decision {
    charge(bucket, key, cost)
}

fn admitted(bucket: &Bucket, key: u64) -> usize {
    (0..100).take_while(|_| ask(bucket, key, 1).is_allowed()).count()
}

fn set(clock: &ManualClock, seconds: f64) {
    clock.set(Timestamp::ZERO.saturating_add(Duration::from_secs_f64(seconds)));
}

#[test]
fn a_twice_reversed_clock_admits_no_burst() {
    for ahead in [13.0, 26.0, 40.0, 100.0] {
        for (back, further) in [(2.0, 13.0), (10.0, 10.0), (10.0, 20.0), (14.0, 2.0), (5.0, 30.0)] {
            let clock = ManualClock::new();
            let bucket = bucket(100, &clock);
            set(&clock, 100.0 + ahead);
            assert!(ask(&bucket, 1, 1).is_allowed());
            set(&clock, 100.0 + ahead - back);
            assert_eq!(admitted(&bucket, 2), 20);
            set(&clock, 100.0 + ahead - back - further);
            assert_eq!(admitted(&bucket, 2), 0, "{ahead} s ahead, set back by {back} and by {further} s");
            set(&clock, 100.0 + ahead);
            bucket.check_invariants();
        }
    }
}

/// For any clock readings, a key gets its burst, plus the tokens that it earns while the clock goes forward. Time that
/// the clock passes twice counts twice: a key whose debt was paid owes nothing.
#[test]
fn readings_admit_no_more_than_forward_steps() {
    const KEYS: u64 = 5;
    for seed in seeds(rounds(200, 3_000)) {
        let mut random = Random::new(seed);
        let clock = ManualClock::new();
        // One page, or several.
        let bucket = bucket([100, 4_000][seed as usize % 2], &clock);
        let (mut now, mut forward) = (300 * SECOND, 0);
        let mut latest = now;
        let mut passed = [0_u64; KEYS as usize];
        for _ in 0..60 {
            let step = random.below(30 * SECOND) >> random.below(12);
            let next = match random.below(10) {
                0..=4 => now.saturating_sub(step),
                5 => now + 5 * step,
                _ => now + step,
            };
            forward += next.saturating_sub(now);
            now = next;
            latest = latest.max(now);
            clock.set(Timestamp::from_nanos(now));
            let key = random.below(KEYS);
            for _ in 0..=random.below(30) {
                if ask(&bucket, key, 1).is_allowed() {
                    passed[key as usize] += 1;
                    // One more is allowed, because readings are rounded to ticks.
                    let (passed, entitled) = (passed[key as usize], 20 + forward / (SECOND / 10) + 1);
                    assert!(passed <= entitled, "seed {seed}: {passed} of {entitled} at {now}");
                }
            }
        }
        clock.set(Timestamp::from_nanos(latest));
        bucket.check_invariants();
    }
}

/// A key that waits as advertised is admitted, even if the clock was set back before, by any amount, and to before the
/// store was made.
#[test]
fn waits_are_true_after_a_reversal() {
    for back in [1, 5, 12, 13, 20, 26, 40, 200, 900, 999] {
        let clock = ManualClock::starting_at(Timestamp::from_nanos(1_000 * SECOND));
        let bucket = bucket(100, &clock);
        clock.advance(Duration::from_secs(3));
        assert_eq!(admitted(&bucket, 1), 20);
        clock.set(Timestamp::from_nanos((1_003 - back) * SECOND));
        for key in [1, 2] {
            assert!(admitted(&bucket, key) <= 20 * key as usize - 20, "{back} s back");
            let rejected = ask(&bucket, key, 1);
            let wait = rejected.retry_after().expect("a wait that helps");
            assert!(rejected.reset_after() >= wait);
            let peeked = bucket.decide(&Ask::peek(&PartitionKey::from(key), 1)).at_once().unwrap();
            assert_eq!((peeked.is_allowed(), peeked.retry_after()), (false, Some(wait)));
            let start = clock.now();
            clock.advance(wait - Duration::from_nanos(1));
            assert!(!ask(&bucket, key, 1).is_allowed(), "{back} s back: key {key} after less than {wait:?}");
            clock.advance(Duration::from_nanos(1));
            assert!(ask(&bucket, key, 1).is_allowed(), "{back} s back: key {key} after {wait:?}");
            clock.set(start);
        }
        clock.set(Timestamp::MAX);
        bucket.check_invariants();
    }
}

/// Shows these instants, in seconds, and then keeps showing the last one.
#[derive(Clone, Default)]
struct Scripted(Arc<Mutex<Vec<u64>>>);

impl Scripted {
    fn set(&self, mut seconds: Vec<u64>) {
        seconds.reverse();
        *self.0.lock().unwrap() = seconds;
    }

    fn left(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

impl Clock for Scripted {
    fn now(&self) -> Timestamp {
        let mut seconds = self.0.lock().unwrap();
        let next = if seconds.len() > 1 { seconds.pop() } else { seconds.last().copied() };
        Timestamp::from_nanos(next.unwrap() * 1_000_000_000)
    }
}

/// A thread may be descheduled between its clock reading and its decision, so that the debts it sees may be paid by
/// then. It must not reject because of them, but must not read the clock twice for any other rejection either.
#[test]
fn only_a_late_reading_is_rejudged() {
    judges_late_rejections_anew(TokenBucket::new(Quota::per_hour(1)));
    judges_late_rejections_anew(FixedWindow::new(Quota::per_hour(1)));
    judges_late_rejections_anew(SlidingWindow::new(Quota::per_hour(1)));
}

fn judges_late_rejections_anew<A: Algorithm>(algorithm: A) {
    let clock = Scripted::default();
    clock.set(vec![1_000_000]);
    let limiter = RateLimiter::new(algorithm, MemoryStore::with_capacity(16).with_clock(clock.clone()));
    assert!(admits(&limiter, 7));
    clock.set(vec![10, 2_000_000]);
    assert!(admits(&limiter, 7));
    clock.set(vec![2_000_001, 9_000_000]);
    assert!(!admits(&limiter, 7));
    assert_eq!(clock.left(), 1, "it was read once");
    clock.set(vec![2_000_001, 9_000_000, 9_000_000]);
    assert!(!admits(&limiter, 7));
    assert_eq!(clock.left(), 2, "it was read once");
}

/// The clock was set back by two windows, and then came a change. Used units count until their own window is over, or,
/// if the wall clock names windows, until the next one is.
#[test]
fn use_in_later_windows_survives_changes() {
    keeps_a_later_window(FixedWindow::new(Quota::per_hour(1)), 100);
    keeps_a_later_window(FixedWindow::new(Quota::per_hour(1)).staggered(), 101);
    // The window before weighs as well.
    keeps_a_later_window(SlidingWindow::new(Quota::per_hour(1)), 102);
}

fn keeps_a_later_window<A: Algorithm + Copy>(algorithm: A, free_at: u64) {
    let clock = ManualClock::starting_at(Timestamp::from_nanos(100 * 3_600 * SECOND));
    let [before, heir] =
        [(); 2].map(|()| RateLimiter::new(algorithm, MemoryStore::with_capacity(16).with_clock(clock.clone())));
    assert!(admits(&before, 7));
    clock.set(Timestamp::from_nanos(98 * 3_600 * SECOND));
    heir.inherit(&before).unwrap().finish();
    for hour in 98..=free_at {
        clock.set(Timestamp::from_nanos(hour * 3_600 * SECOND));
        assert_eq!(admits(&heir, 7), hour == free_at, "hour {hour}");
    }
    heir.check_invariants();
}
