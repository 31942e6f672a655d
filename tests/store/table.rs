//! The memory store's tables under load: floods, races, and full tables.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tower_sluice::algorithm::{Algorithm, FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::store::{MemoryStore, MemoryTable, WhenFull};
use tower_sluice::testing::IntervalChecker;
use tower_sluice::time::{Clock, ManualClock, Monotonic, Timestamp};
use tower_sluice::{Decision, Limiter, Quota, RateLimiter};

use crate::common::{admits, charge, clock};
use crate::support::effort::rounds;

fn ask(limiter: &impl Limiter, key: u64) -> Decision {
    charge(limiter, key, 1)
}

type Limited<A> = RateLimiter<A, MemoryTable<<A as Algorithm>::State, ManualClock>>;

fn limited<A: Algorithm>(algorithm: A, keys: usize) -> Limited<A> {
    RateLimiter::new(algorithm, MemoryStore::with_capacity(keys).with_clock(clock()))
}

/// How many keys may share another one's slot, and so be rejected: the documented probability is at most 16 / 2^28 per
/// new key, which is 0.6 for ten million. More than ten practically never meet by chance.
const SHARING: u64 = 10;

/// None of the keys is lost.
#[test]
fn keys_take_17_bytes_each() {
    let quota = Quota::per_hour(1);
    let count = rounds(30_000, 1_000_000);
    keeps_all(TokenBucket::new(quota), count);
    keeps_all(FixedWindow::new(quota), count);
    keeps_all(SlidingWindow::new(quota), count);
    keeps_all(SlidingWindow::new(quota).staggered(), count);
}

fn keeps_all<A: Algorithm>(algorithm: A, count: usize) {
    let limiter = limited(algorithm, count);
    let keys = count as u64;
    let admitted = (0..keys).filter(|key| admits(&limiter, *key)).count() as u64;
    assert!((keys - SHARING..=keys).contains(&admitted), "{admitted} admitted");
    assert_eq!(limiter.evicted_live(), 0);
    assert!(!(0..keys).any(|key| admits(&limiter, key)));
    let bytes = limiter.size_in_bytes();
    assert!((8 * count..=17 * count + 20_480).contains(&bytes), "{bytes} bytes");
}

/// When two threads insert a key at once, it must not get two slots.
#[test]
fn concurrently_inserted_keys_are_charged_once() {
    are_charged_once(TokenBucket::new(Quota::per_hour(1)), rounds(2, 10) as u64);
    are_charged_once(FixedWindow::new(Quota::per_hour(1)), rounds(1, 3) as u64);
    are_charged_once(SlidingWindow::new(Quota::per_hour(1)), rounds(1, 3) as u64);
}

fn are_charged_once<A: Algorithm + Copy>(algorithm: A, rounds: u64) {
    let count = self::rounds(30_000, 1_000_000);
    for round in 0..rounds {
        let limiter = limited(algorithm, 2 * count);
        let count = count as u64;
        let keys = round * count..(round + 1) * count;
        let ask_for_all = || keys.clone().map(|key| admits(&limiter, key)).collect::<Vec<_>>();
        let [mine, theirs] = std::thread::scope(|scope| {
            let threads = [scope.spawn(ask_for_all), scope.spawn(ask_for_all)];
            threads.map(|thread| thread.join().unwrap())
        });
        // Key by key: a key that is rejected because it shares a slot must not hide a key that is admitted twice.
        let twice = mine.iter().zip(&theirs).filter(|(mine, theirs)| **mine && **theirs).count();
        assert_eq!(twice, 0, "round {round}");
        let admitted = mine.iter().zip(&theirs).filter(|(mine, theirs)| **mine || **theirs).count() as u64;
        assert!(admitted >= count - SHARING, "round {round}: only {admitted} admitted at all");
        assert_eq!(limiter.evicted_live(), 0);
        limiter.check_invariants();
    }
}

/// Four threads decide on a few keys while the clock advances, ten million times with all rounds. At every step each
/// key gets exactly the requests that the algorithm alone would admit, and no interval gets too many.
#[test]
fn no_interval_admits_too_much() {
    admits_what_the_algorithm_does(TokenBucket::new(Quota::per_second(1_000).burst(64)), rounds(80, 1_000) as u64);
    let window = Quota::per(64, Duration::from_millis(64));
    admits_what_the_algorithm_does(FixedWindow::new(window), rounds(40, 500) as u64);
    admits_what_the_algorithm_does(SlidingWindow::new(window), rounds(40, 500) as u64);
}

fn admits_what_the_algorithm_does<A: Algorithm + Copy>(algorithm: A, rounds: u64) {
    const KEYS: usize = 8;
    const PER_ROUND: u64 = 2_500;
    let clock = clock();
    let limiter = RateLimiter::new(algorithm, MemoryStore::with_capacity(64).with_clock(clock.clone()));
    let admitted: [AtomicU64; KEYS] = Default::default();
    let barrier = Barrier::new(5);
    let mut checkers = vec![IntervalChecker::new(algorithm.quota(), algorithm.worst_burst()); KEYS];
    let mut models = [None; KEYS];

    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (limiter, barrier, admitted) = (&limiter, &barrier, &admitted);
            scope.spawn(move || {
                for round in 0..rounds {
                    barrier.wait();
                    for step in 0..PER_ROUND {
                        let key = (step * 7 + round + thread) % KEYS as u64;
                        if admits(limiter, key) {
                            admitted[usize::try_from(key).unwrap()].fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    barrier.wait();
                }
            });
        }
        for round in 0..rounds {
            barrier.wait();
            barrier.wait();
            let now = clock.now();
            for key in 0..KEYS {
                let taken = admitted[key].swap(0, Ordering::Relaxed);
                let free = algorithm.decide(models[key], now, 0).0.remaining();
                // In each round, every key gets more requests than it can have.
                assert_eq!(taken, free, "round {round}, key {key}");
                models[key] = algorithm.decide(models[key], now, taken).1.or(models[key]);
                checkers[key].admit(now, taken);
            }
            if round % 50 == 0 {
                // All threads wait for the next round.
                limiter.check_invariants();
            }
            // Mostly a few tokens' worth; sometimes nothing, or more than the burst.
            clock.advance(Duration::from_millis([3, 17, 0, 1, 90, 5][usize::try_from(round % 6).unwrap()]));
        }
    });
}

/// On the running clock, which the store reads somewhere between the two readings here. So the test asserts: among all
/// questions asked after *a* and answered before *b*, at most burst + rate × (b − a) are admitted.
#[test]
fn no_interval_of_real_time_admits_more() {
    let quota = Quota::per_second(200_000).burst(100);
    let limiter = RateLimiter::in_memory(TokenBucket::new(quota));
    let run = || {
        let mut log = Vec::new();
        let mut asked = 0;
        // Until enough are admitted, which a fast machine takes more questions for.
        while log.len() < 1_000 || asked < rounds(20_000, 300_000) {
            let before = Monotonic.now();
            if admits(&limiter, 1) {
                log.push((before, Monotonic.now()));
            }
            asked += 1;
        }
        log
    };
    let mut log = std::thread::scope(|scope| {
        let threads = [scope.spawn(run), scope.spawn(run)];
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    limiter.check_invariants();
    // From each start, count the answers by each end: quadratic, so on stretches of the log.
    log.sort_unstable();
    for stretch in log.windows(400).step_by(97) {
        let (from, mut ends) = (stretch[0].0, stretch.iter().map(|(_, end)| *end).collect::<Vec<_>>());
        ends.sort_unstable();
        for (count, until) in (1_u64..).zip(ends) {
            let earned = until.saturating_since(from).as_nanos() * 200_000 / 1_000_000_000;
            assert!(u128::from(count) <= 100 + earned + 1, "{count} in {:?}", until.saturating_since(from));
        }
    }
}

/// Keys that no longer owe anything make room, however long ago they paid: the stored times repeat, and must not look
/// like debts then.
#[test]
fn repeating_stored_times_are_no_debts() {
    let quota = Quota::per_second(10).burst(20);
    let clock = clock();
    let limiter =
        RateLimiter::new(TokenBucket::new(quota), MemoryStore::with_capacity(1_000).with_clock(clock.clone()));
    let mut naps = vec![Duration::ZERO];
    for shift in 0..58 {
        naps.extend([Duration::from_nanos(1 << shift), Duration::from_nanos((1 << shift) + 1_500_000_000)]);
    }
    for nap in naps {
        for key in 0..100 {
            let full = (0..20).all(|_| admits(&limiter, key));
            assert!(full && !admits(&limiter, key), "key {key} before a nap of {nap:?}");
        }
        limiter.check_invariants();
        // Long enough for all to be paid, and then some.
        clock.advance(Duration::from_secs(2) + nap);
    }
    assert_eq!(limiter.evicted_live(), 0);
}

/// A clock that is set to its end does no harm either.
#[test]
fn a_reversed_clock_neither_hangs_nor_admits() {
    let clock = clock();
    let quota = Quota::per_second(10).burst(20);
    let store = MemoryStore::with_capacity(1_000).with_clock(clock.clone());
    let limiter = RateLimiter::new(TokenBucket::new(quota), store);
    let start = clock.now();
    clock.advance(Duration::from_secs(3_600));
    let late = clock.now();
    assert!((0..20).all(|_| admits(&limiter, 1)));
    for back in [1, 2, 3, 5, 60, 3_000, 4_000] {
        clock.set(Timestamp::from_nanos(late.as_nanos() - back * 1_000_000_000));
        assert!(!admits(&limiter, 1), "set back by {back} s");
    }
    clock.set(start);
    assert!(!admits(&limiter, 1));
    clock.set(late);
    assert!(!admits(&limiter, 1));
    clock.advance(Duration::MAX);
    assert!((0..20).all(|_| admits(&limiter, 1)) && !admits(&limiter, 1));
    limiter.check_invariants();
    clock.set(late);
    assert!(!admits(&limiter, 1));
    clock.set(Timestamp::MAX);
    limiter.check_invariants();
}

/// Debts survive from one table epoch to the next, and the one after that.
#[test]
fn debts_are_kept_while_owed() {
    let quota = Quota::per_day(100).burst(100);
    let (bucket, clock) = (TokenBucket::new(quota), clock());
    let limiter = RateLimiter::new(bucket, MemoryStore::with_capacity(100).with_clock(clock.clone()));
    let mut state = None;
    assert!((0..100).all(|_| admits(&limiter, 7)));
    for _ in 0..100 {
        state = bucket.decide(state, clock.now(), 1).1;
    }
    for hour in 0..300_u64 {
        clock.advance(Duration::from_secs(3_600 + hour * 7));
        let expected = bucket.decide(state, clock.now(), 1);
        let decision = ask(&limiter, 7);
        assert_eq!((decision.is_allowed(), decision.remaining()), (expected.0.is_allowed(), expected.0.remaining()));
        state = expected.1.or(state);
        limiter.check_invariants();
    }
}

/// There are twice more fresh keys than slots, each spending 1 of 20: keys that owe all 20 stay limited.
#[test]
fn a_flood_evicts_no_greatest_debts() {
    evicts_none_of_the_keys_that_owe_most(TokenBucket::new(Quota::per_hour(20)));
    evicts_none_of_the_keys_that_owe_most(FixedWindow::new(Quota::per_hour(20)));
    evicts_none_of_the_keys_that_owe_most(SlidingWindow::new(Quota::per_hour(20)));
    evicts_none_of_the_keys_that_owe_most(FixedWindow::new(Quota::per_hour(20)).staggered());
}

fn evicts_none_of_the_keys_that_owe_most<A: Algorithm>(algorithm: A) {
    let limiter = limited(algorithm, 10_000);
    let heavy = u64::MAX - 1_000..u64::MAX;
    assert!(heavy.clone().all(|key| (0..20).all(|_| admits(&limiter, key))));
    assert!((0..40_000).filter(|key| admits(&limiter, *key)).count() as u64 >= 40_000 - SHARING);
    assert!(limiter.evicted_live() > 0);
    assert_eq!(heavy.filter(|key| admits(&limiter, *key)).count(), 0);
    limiter.check_invariants();
}

/// New keys are rejected until a slot is free.
#[test]
fn reject_turns_new_keys_away() {
    rejects_new_keys(TokenBucket::new(Quota::per_hour(1)));
    rejects_new_keys(FixedWindow::new(Quota::per_hour(1)));
    rejects_new_keys(SlidingWindow::new(Quota::per_hour(1)));
    rejects_new_keys(SlidingWindow::new(Quota::per_hour(1)).staggered());
}

fn rejects_new_keys<A: Algorithm>(algorithm: A) {
    let clock = clock();
    let store = MemoryStore::with_capacity(1_000).when_full(WhenFull::Reject).with_clock(clock.clone());
    let limiter = RateLimiter::new(algorithm, store);
    let admitted = (0..20_000).filter(|key| admits(&limiter, *key)).count();
    assert!((1_900..=2_048).contains(&admitted), "{admitted} of 2,000 slots");
    assert_eq!(limiter.evicted_live(), 0);
    // A key that shares another one's slot is rejected, and is not turned away.
    let rejected = 20_000 - admitted as u64;
    let turned_away = limiter.turned_away();
    assert!((rejected - SHARING..=rejected).contains(&turned_away), "{turned_away} of {rejected}");
    // Exact for the keys in the table; new keys are rejected until a slot is free.
    assert_eq!((0..20_000).filter(|key| admits(&limiter, *key)).count(), 0);
    let rejected = ask(&limiter, 50_000);
    let wait = rejected.retry_after().unwrap();
    assert!(wait <= rejected.reset_after() && wait <= Duration::from_secs(7_200), "{rejected:?}");
    clock.advance(wait);
    assert!(admits(&limiter, 50_000));
    limiter.check_invariants();
}

/// New keys share these budgets.
#[test]
fn overflow_shares_512_budgets() {
    new_keys_share(TokenBucket::new(Quota::per_hour(1)));
    new_keys_share(FixedWindow::new(Quota::per_hour(1)));
    new_keys_share(SlidingWindow::new(Quota::per_hour(1)));
    new_keys_share(SlidingWindow::new(Quota::per_hour(1)).staggered());
}

fn new_keys_share<A: Algorithm>(algorithm: A) {
    let store = MemoryStore::with_capacity(1_000).when_full(WhenFull::Overflow).with_clock(clock());
    let limiter = RateLimiter::new(algorithm, store);
    let admitted = (0..200_000).filter(|key| admits(&limiter, *key)).count();
    // The table's own slots, and 512 more that are shared.
    assert!((2_400..=2_560).contains(&admitted), "{admitted} admitted");
    assert_eq!(limiter.evicted_live(), 0);
    limiter.check_invariants();
}
