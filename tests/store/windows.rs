//! Fixed and sliding windows in the memory store: they decide as the algorithms do, in all numbers.

use std::time::Duration;

use tower_sluice::algorithm::{Algorithm, FixedWindow, SlidingWindow};
use tower_sluice::limiter::{Ask, Receipt};
use tower_sluice::store::{MemoryStore, MemoryTable, WhenFull};
use tower_sluice::testing::Random;
use tower_sluice::time::{Clock, ManualClock, Timestamp};
use tower_sluice::{Decision, Limiter, Outcome, PartitionKey, Quota, RateLimiter};

use crate::common::{admits, charge, clock};
use crate::support::effort::rounds;

type Limited<A> = RateLimiter<A, MemoryTable<<A as Algorithm>::State, ManualClock>>;

fn limiter<A: Algorithm>(algorithm: A, keys: usize) -> (Limited<A>, ManualClock) {
    let clock = clock();
    (RateLimiter::new(algorithm, MemoryStore::with_capacity(keys).with_clock(clock.clone())), clock)
}

/// The numbers that clients see in a decision.
fn numbers(decision: &Decision) -> (Outcome, u64, u64, Duration) {
    (decision.outcome(), decision.limit(), decision.remaining(), decision.reset_after())
}

/// Draws a clock step: none, within a window, over some windows, and over enough for a word's count to repeat.
fn step(random: &mut Random, period: u64) -> u64 {
    let within = random.below(period);
    match random.below(16) {
        0..=5 => 0,
        6..=9 => within / 8,
        10 | 11 => within,
        12 => period - 1,
        13 => (random.below(4)) * period + within,
        14 => (1 << random.below(36)) * u128::from(period).min(1 << 20) as u64,
        _ => 1,
    }
}

/// Charges, peeks, refunds and resets. The clock only goes forward. If it were set back, the algorithm would see its
/// earlier states again. The table would not, because it clears words when an epoch begins, and after a refund in
/// whole.
fn decides_like<A: Algorithm + Copy>(algorithm: A, seed: u64) {
    const KEYS: usize = 4;
    let (limiter, clock) = limiter(algorithm, 64);
    let (quota, mut random) = (algorithm.quota(), Random::of_trial(seed));
    let period = u64::try_from(quota.period().as_nanos()).unwrap();
    let mut states = [None; KEYS];
    let mut charges: Vec<(usize, u64, Receipt, Receipt)> = Vec::new();
    for round in 0..rounds(300, 3_000) {
        let now = clock.now().as_nanos().saturating_add(step(&mut random, period));
        // A table reads no later time from its wall clock: the rest is for a clock that is set back.
        let now = Timestamp::from_nanos(now.min(u64::MAX / 2));
        clock.set(now);
        let index = usize::try_from(random.below(KEYS as u64)).unwrap();
        let key = PartitionKey::from(index as u64);
        let cost = match random.below(8) {
            0 => 0,
            1..=4 => 1,
            5 => 1 + random.below(quota.limit()),
            6 => quota.limit() / 2 + 1,
            _ => random.below(1 << 32),
        };
        match random.below(20) {
            0 => {
                if let Some((index, cost, receipt, expected)) = charges.pop() {
                    limiter.refund(&Ask::charge(&PartitionKey::from(index as u64), cost), receipt, cost);
                    states[index] = states[index].map(|state| algorithm.refund(state, now, cost, expected));
                }
            }
            1 => {
                let _ = limiter.decide(&Ask::reset(&key));
                states[index] = None;
                // After a reset, the key's earlier charges cannot be refunded. The charges to one in 256 other keys
                // cannot, either.
                charges.clear();
            }
            2 => {
                let expected = algorithm.decide(states[index], now, cost).0;
                assert_eq!(
                    numbers(&limiter.decide(&Ask::peek(&key, cost)).at_once().unwrap()),
                    numbers(&expected),
                    "round {round} at {now:?}"
                );
            }
            _ => {
                let (expected, next) = algorithm.decide(states[index], now, cost);
                let decision = charge(&limiter, index as u64, cost);
                assert_eq!(
                    numbers(&decision),
                    numbers(&expected),
                    "{quota:?}, seed {seed}, round {round} at {now:?}, cost {cost}, {:?}",
                    states[index].is_some()
                );
                if next.is_some() {
                    states[index] = next;
                    charges.push((index, cost, decision.receipt(), expected.receipt()));
                }
            }
        }
        if round % 100 == 0 {
            limiter.check_invariants();
        }
    }
    limiter.check_invariants();
    assert_eq!(limiter.evicted_live(), 0);
}

/// Windows with all lengths and limits, whether they fit into words or not.
#[test]
fn decisions_match_the_algorithm() {
    let hours = |hours: u64| Duration::from_secs(3_600 * hours);
    for (limit, period) in [
        (1, Duration::from_nanos(1)),
        (3, Duration::from_nanos(1_000)),
        (511, Duration::from_millis(1)),
        (512, Duration::from_millis(1)),
        (7, Duration::from_nanos(1_000_003)),
        (5, Duration::from_millis(100)),
        (1, Duration::from_secs(1)),
        (16_383, Duration::from_secs(1)),
        (16_384, Duration::from_secs(1)),
        (100, Duration::from_secs(5)),
        (65_535, Duration::from_secs(5)),
        (65_536, Duration::from_secs(5)),
        (u64::from(u32::MAX), Duration::from_secs(5)),
        (60, Duration::from_secs(60)),
        (65_535, hours(1)),
        (10_000, hours(24)),
        (10, hours(24 * 365)),
        (u64::from(u32::MAX), hours(24 * 365)),
    ] {
        let quota = Quota::per(limit, period);
        for seed in 0..4 {
            decides_like(FixedWindow::new(quota), seed);
            decides_like(SlidingWindow::new(quota), seed);
        }
    }
}

/// A key's windows begin at one of 512 instants. All decisions match the algorithm's on a clock that is ahead by that
/// much.
fn decides_like_one_of_512<A: Algorithm + Copy>(algorithm: A, seed: u64) {
    let (limiter, clock) = limiter(algorithm, 64);
    let (quota, mut random) = (algorithm.quota(), Random::of_trial(seed));
    let period = u64::try_from(quota.period().as_nanos()).unwrap();
    let mut candidates: Vec<_> =
        (0..512).map(|group| (algorithm.phase(group * (u64::MAX / 512)), None::<A::State>)).collect();
    for round in 0..500 {
        let now = clock.now().as_nanos().saturating_add(step(&mut random, period));
        let now = Timestamp::from_nanos(now.min(u64::MAX / 2));
        clock.set(now);
        let cost = random.below(3);
        let decision = charge(&limiter, seed, cost);
        candidates.retain_mut(|(phase, state)| {
            let (expected, next) = algorithm.decide(*state, now.saturating_add(*phase), cost);
            *state = next.or(*state);
            numbers(&expected) == numbers(&decision)
        });
        assert!(!candidates.is_empty(), "round {round} at {now:?}: {decision:?}");
    }
    assert_eq!(candidates.len(), 1);
    limiter.check_invariants();
}

/// Apart from that, they decide as the algorithm.
#[test]
fn staggered_windows_shift_the_clock() {
    for (limit, period) in [(3, 10_000_000), (5, 5_000_000_000), (65_535, 5_000_000_000), (7, 60_000_000_000)] {
        let quota = Quota::per(limit, Duration::from_nanos(period));
        for seed in 0..20 {
            decides_like_one_of_512(FixedWindow::new(quota).staggered(), seed);
            decides_like_one_of_512(SlidingWindow::new(quota).staggered(), seed);
        }
    }
}

/// Windows that have ended make room, however long ago they ended: the stored indices repeat, and must not look like
/// present windows then.
fn ended_windows_make_room<A: Algorithm>(algorithm: A) {
    let limit = algorithm.quota().limit();
    let (limiter, clock) = limiter(algorithm, 1_000);
    let mut naps = vec![Duration::ZERO];
    for shift in 0..58 {
        naps.extend([Duration::from_nanos(1 << shift), Duration::from_nanos((1 << shift) + 1_500_000_000)]);
    }
    for nap in naps {
        for key in 0..100 {
            let full = charge(&limiter, key, limit).is_allowed();
            assert!(full && !admits(&limiter, key), "key {key} before a nap of {nap:?}");
        }
        limiter.check_invariants();
        // Until nothing weighs any more, and then some.
        clock.advance(2 * limiter.algorithm().quota().period() + nap);
    }
    assert_eq!(limiter.evicted_live(), 0);
}

#[test]
fn repeating_indices_are_no_present_windows() {
    for seconds in [1, 5, 60] {
        for limit in [1, 20, 16_383] {
            let quota = Quota::per(limit, Duration::from_secs(seconds));
            ended_windows_make_room(FixedWindow::new(quota));
            ended_windows_make_room(SlidingWindow::new(quota));
            ended_windows_make_room(FixedWindow::new(quota).staggered());
            ended_windows_make_room(SlidingWindow::new(quota).staggered());
        }
    }
    ended_windows_make_room(SlidingWindow::new(Quota::per(65_535, Duration::from_secs(5))));
    ended_windows_make_room(FixedWindow::new(Quota::per(u64::from(u32::MAX), Duration::from_secs(5))));
}

/// A clock that is set back, or to the end of its range, hangs no request and admits none more. Windows that the wall
/// clock names count an hour twice if it passes twice (`wall_clock.rs`).
fn survives_any_clock<A: Algorithm>(algorithm: A) {
    let limit = algorithm.quota().limit();
    let counts_twice = algorithm.follows_wall_clock();
    let (limiter, clock) = limiter(algorithm, 1_000);
    let start = clock.now();
    clock.advance(Duration::from_secs(3_600));
    let late = clock.now();
    assert!(charge(&limiter, 1, limit).is_allowed());
    for back in [1, 2, 3, 5, 9, 60, 3_000, 4_000] {
        clock.set(Timestamp::from_nanos(late.as_nanos() - back * 1_000_000_000));
        let rejected = charge(&limiter, 1, 1);
        assert!(!rejected.is_allowed(), "set back by {back} s");
        // The advertised wait is true by the clock as it stands.
        clock.advance(rejected.retry_after().unwrap() - Duration::from_nanos(1));
        assert!(!admits(&limiter, 1), "set back by {back} s, too early");
    }
    for again in [start, late] {
        clock.set(again);
        assert!(!admits(&limiter, 1) || counts_twice);
    }
    clock.advance(Duration::MAX);
    assert!(charge(&limiter, 1, limit).is_allowed() && !admits(&limiter, 1));
    limiter.check_invariants();
    clock.set(late);
    assert!(!admits(&limiter, 1));
    clock.set(Timestamp::MAX);
    limiter.check_invariants();
}

/// A clock that is set to its end does no harm either.
#[test]
fn a_reversed_clock_neither_hangs_nor_admits() {
    for (limit, seconds) in [(20, 2), (16_383, 1), (65_535, 5), (7, 60), (100, 3_600)] {
        let quota = Quota::per(limit, Duration::from_secs(seconds));
        survives_any_clock(FixedWindow::new(quota));
        survives_any_clock(SlidingWindow::new(quota));
        survives_any_clock(FixedWindow::new(quota).staggered());
        survives_any_clock(SlidingWindow::new(quota).staggered());
    }
}

/// A key that shares a budget is judged by its own group's windows, and so are the keys that it shares with.
#[test]
fn staggered_budgets_go_by_their_start() {
    fn shares<A: Algorithm>(algorithm: A) {
        let clock = clock();
        let store = MemoryStore::with_capacity(100).when_full(WhenFull::Overflow).with_clock(clock.clone());
        let limiter = RateLimiter::new(algorithm, store);
        for round in 0..rounds(6, 20) as u64 {
            let new_keys = round * 20_000..(round + 1) * 20_000;
            let rejected: Vec<_> =
                new_keys.filter_map(|key| Some((key, charge(&limiter, key, 1).retry_after()?))).collect();
            assert!(rejected.len() > 19_000);
            // After its wait, one key that shares a budget is admitted.
            let (key, wait) = rejected[usize::try_from(round * 97).unwrap()];
            clock.advance(wait - Duration::from_nanos(1));
            assert!(!admits(&limiter, key), "round {round}: too early");
            clock.advance(Duration::from_nanos(1));
            assert!(admits(&limiter, key), "round {round}: after {wait:?}");
            limiter.check_invariants();
            clock.advance(Duration::from_secs(60 + round));
        }
        assert_eq!(limiter.evicted_live(), 0);
    }
    shares(FixedWindow::new(Quota::per_minute(1)).staggered());
    shares(SlidingWindow::new(Quota::per_minute(1)).staggered());
    shares(FixedWindow::new(Quota::per_minute(1)));
}
