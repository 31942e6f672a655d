//! With the clock standing still, exactly the limit is admitted, however many threads ask.

use tower_sluice::algorithm::{Algorithm, FixedWindow, GcraState, SlidingWindow, TokenBucket};
use tower_sluice::limiter::{Answer, Ask};
use tower_sluice::store::MemoryStore;
use tower_sluice::testing::{admitted_by_threads, check_algorithm, check_limiter, seed, seed_of};
use tower_sluice::time::Timestamp;
use tower_sluice::{Decision, LeakyQueue, Limiter, Outcome, PartitionKey, Quota, RateLimiter};

use std::time::Duration;

use crate::common::{clock, decided};
use crate::support::effort::rounds;

const THREADS: usize = 32;
const ATTEMPTS: u64 = 10_000;
const LIMIT: u64 = 1_000;

fn admits_exactly_the_limit(algorithm: impl Algorithm + Copy) {
    for run in 0..rounds(3, 200) {
        let limiter = RateLimiter::new(algorithm, MemoryStore::with_capacity(64).with_clock(clock()));
        let admitted = admitted_by_threads(&limiter, THREADS, ATTEMPTS);
        assert_eq!(admitted, LIMIT, "run {run}");
        limiter.check_invariants();
    }
}

#[test]
fn token_bucket_is_exact() {
    admits_exactly_the_limit(TokenBucket::new(Quota::per_minute(LIMIT)));
}

#[test]
fn fixed_window_is_exact() {
    admits_exactly_the_limit(FixedWindow::new(Quota::per_minute(LIMIT)));
}

#[test]
fn staggered_windows_are_exact() {
    admits_exactly_the_limit(FixedWindow::new(Quota::per_minute(LIMIT)).staggered());
    admits_exactly_the_limit(SlidingWindow::new(Quota::per_minute(LIMIT)).staggered());
}

/// Their counts do not fit into a word.
#[test]
fn windows_in_the_locked_table_are_exact() {
    let quota = |micros| Quota::per(LIMIT, Duration::from_micros(micros));
    admits_exactly_the_limit(FixedWindow::new(quota(1)));
    admits_exactly_the_limit(SlidingWindow::new(quota(1_000)));
}

#[test]
fn sliding_window_is_exact() {
    admits_exactly_the_limit(SlidingWindow::new(Quota::per_minute(LIMIT)));
}

/// At one per hour the clock effectively stands still: one request departs at once, and the rest wait.
#[test]
fn leaky_queue_is_exact() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    for run in 0..rounds(2, 200) {
        let queue =
            LeakyQueue::new(Quota::per_hour(1)).max_queue(usize::try_from(LIMIT).unwrap() - 1).max_wait(Duration::MAX);
        let ask = || {
            let _guard = runtime.enter();
            let answers = (0..ATTEMPTS).map(|_| queue.decide(&Ask::charge(&PartitionKey::from("contended"), 1)));
            answers.filter(|answer| !matches!(answer, Answer::Ready(Ok(d)) if !d.is_allowed())).collect::<Vec<_>>()
        };
        let accepted = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(ask)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        assert_eq!(accepted.iter().map(Vec::len).sum::<usize>(), usize::try_from(LIMIT).unwrap(), "run {run}");
    }
}

#[test]
fn the_memory_store_keeps_the_contract() {
    let quota = Quota::per_minute(7);
    keeps_the_contract(TokenBucket::new(quota.burst(3)), 1);
    keeps_the_contract(TokenBucket::new(quota.burst(300)), 2);
    keeps_the_contract(FixedWindow::new(quota), 3);
    keeps_the_contract(SlidingWindow::new(quota), 4);
}

fn keeps_the_contract(algorithm: impl Algorithm + Copy, seed: u64) {
    check_limiter(&algorithm, seed_of(seed), |clock| {
        RateLimiter::new(algorithm, MemoryStore::with_capacity(256).with_clock(clock))
    });
}

/// A bucket that grants a request two units at most, although more may be left.
#[derive(Clone, Copy)]
struct TwoAtMost(TokenBucket);

impl Algorithm for TwoAtMost {
    type State = GcraState;

    fn quota(&self) -> Quota {
        self.0.quota()
    }

    fn max_cost(&self) -> u64 {
        2
    }

    fn decide(&self, state: Option<GcraState>, now: Timestamp, cost: u64) -> (Decision, Option<GcraState>) {
        let is_too_much = cost > 2;
        let (decision, next) = self.0.decide(state, now, if is_too_much { 0 } else { cost });
        let remaining = decision.remaining().min(2);
        let limited = match decision.outcome() {
            Outcome::Allow if !is_too_much => Decision::allow(2, remaining),
            _ => Decision::reject(2, remaining, decision.retry_after()),
        };
        (limited.with_reset_after(decision.reset_after()), next)
    }

    fn expires_at(&self, state: &GcraState) -> Timestamp {
        self.0.expires_at(state)
    }
}

/// An algorithm may grant one request less than the burst.
#[test]
fn suites_accept_requests_below_the_burst() {
    let algorithm = TwoAtMost(TokenBucket::new(Quota::per_minute(7)));
    check_algorithm(&algorithm, seed());
    keeps_the_contract(algorithm, 5);
}

/// When two threads insert a key at once, it must not get two slots.
#[test]
fn a_concurrently_inserted_key_is_charged_once() {
    const KEYS: u64 = 200_000;
    let bucket = TokenBucket::new(Quota::per_hour(1).burst(1));
    let limiter = RateLimiter::new(bucket, MemoryStore::with_capacity(400_000).with_clock(clock()));
    let ask_for_all = || (0..KEYS).filter(|key| admits(&limiter, &PartitionKey::from(*key))).count() as u64;
    let admitted = std::thread::scope(|scope| {
        let threads = [scope.spawn(ask_for_all), scope.spawn(ask_for_all)];
        threads.into_iter().map(|thread| thread.join().unwrap()).sum::<u64>()
    });
    // Two keys share a slot with a probability of 10^-8 each; `table.rs` compares key by key.
    assert!((KEYS - 3..=KEYS).contains(&admitted), "{admitted} of {KEYS}");
    assert_eq!(limiter.evicted_live(), 0);
    limiter.check_invariants();
}

fn admits(limiter: &impl Limiter, key: &PartitionKey) -> bool {
    decided(limiter.decide(&Ask::charge(key, 1))).is_allowed()
}

/// The size is fixed, and under a flood the keys that owe the most stay limited.
#[test]
fn a_flood_frees_no_heavy_key() {
    const CAPACITY: u64 = 4_096;
    let bucket = TokenBucket::new(Quota::per_hour(20).burst(20));
    let limiter = RateLimiter::new(bucket, MemoryStore::with_capacity(4_096).with_clock(clock()));
    let size = limiter.size_in_bytes();
    let heavy = |key: u64| PartitionKey::from(u64::MAX - key);
    for key in 0..400 {
        assert!((0..20).all(|_| admits(&limiter, &heavy(key))));
    }
    // Up to the capacity nothing is lost ...
    let mut fresh = 0_u64;
    for _ in 400..CAPACITY {
        fresh += 1;
        assert!(admits(&limiter, &PartitionKey::from(fresh)));
    }
    assert_eq!(limiter.evicted_live(), 0);
    // ... and with eight times more keys, only the flood's own small debts are lost.
    let new_keys = fresh + 1..=fresh + 8 * CAPACITY;
    let admitted = new_keys.filter(|key| admits(&limiter, &PartitionKey::from(*key))).count() as u64;
    // Except for the few keys that share a slot.
    assert!(admitted >= 8 * CAPACITY - 3, "a new client must not be locked out");
    assert!(limiter.evicted_live() > 0);
    assert!((0..400).all(|key| !admits(&limiter, &heavy(key))));
    assert_eq!(limiter.size_in_bytes(), size);
    limiter.check_invariants();
}

/// A panic inside an algorithm must not poison the keys that share its set.
#[test]
fn a_panicking_algorithm_leaves_the_store_usable() {
    struct Fuse;
    impl Algorithm for Fuse {
        type State = ();
        fn quota(&self) -> Quota {
            Quota::per_second(1)
        }
        fn decide(&self, _: Option<()>, _: Timestamp, cost: u64) -> (tower_sluice::Decision, Option<()>) {
            if cost > 1 {
                // A panic that the hook does not print.
                std::panic::resume_unwind(Box::new("blown on purpose"));
            }
            (tower_sluice::Decision::allow(1, 1), Some(()))
        }
        fn expires_at(&self, (): &()) -> Timestamp {
            Timestamp::MAX
        }
    }
    let limiter = RateLimiter::new(Fuse, MemoryStore::with_capacity(8));
    for key in 0..100_u64 {
        let blown =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| limiter.decide(&Ask::charge(&key.into(), 2))));
        assert!(blown.is_err());
        assert!(admits(&limiter, &key.into()));
    }
    limiter.check_invariants();
}
