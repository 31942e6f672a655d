//! Windows through live changes, against a naive model; and which limiters inherit from which.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tower_sluice::algorithm::{Algorithm, FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::limiter::{Ask, IntoLimiter};
use tower_sluice::store::{MemoryStore, WhenFull};
use tower_sluice::testing::{Random, seeds};
use tower_sluice::time::{Clock, ManualClock, Timestamp};
use tower_sluice::{Limiter, PartitionKey, Quota, RateLimiter};

use crate::common::{check_invariants, clock, decided};
use crate::heirs::inherit;

fn store<A: Algorithm>(algorithm: A, clock: &ManualClock) -> Arc<dyn Limiter> {
    RateLimiter::new(algorithm, MemoryStore::with_capacity(256).with_clock(clock.clone())).into_limiter()
}

fn quota(rate: u64, burst: u64) -> Quota {
    Quota::per_second(rate).burst(burst)
}

/// A key that has used more than a lowered limit has nothing left, and its wait is exact.
#[test]
fn usage_beyond_the_burst_is_paid_first() {
    for when_full in [WhenFull::EvictLeast, WhenFull::Reject, WhenFull::Overflow] {
        let clock = clock();
        let store = |algorithm| {
            let store = MemoryStore::with_capacity(64).when_full(when_full).with_clock(clock.clone());
            RateLimiter::new(algorithm, store)
        };
        let generous = store(TokenBucket::new(quota(10, 100)));
        let key = PartitionKey::from("key");
        let spent = decided(generous.decide(&Ask::charge(&key, 100)));
        let strict = store(TokenBucket::new(quota(1, 5)));
        assert!(strict.inherit(&generous).is_some());
        let rejected = decided(strict.decide(&Ask::charge(&key, 1)));
        assert_eq!((rejected.remaining(), rejected.retry_after()), (0, Some(Duration::from_secs(96))));
        assert_eq!(rejected.reset_after(), Duration::from_secs(100));
        assert!(decided(strict.decide(&Ask::charge(&PartitionKey::from("other"), 5))).is_allowed());
        assert!(!decided(strict.decide(&Ask::charge(&PartitionKey::from("other"), 1))).is_allowed());
        // Charges made before the change are refunded after it in full.
        strict.refund(&Ask::charge(&key, 100), spent.receipt(), 100);
        assert_eq!(decided(strict.decide(&Ask::charge(&key, 0))).remaining(), 5);
        assert_eq!(strict.size_in_bytes(), generous.size_in_bytes());
        strict.check_invariants();
    }
}

/// A fixed window's count, and when its present window ends.
#[derive(Clone, Copy)]
struct Window {
    used: u64,
    ends: u64,
}

impl Window {
    fn roll(&mut self, now: u64, period: u64) {
        if now >= self.ends {
            *self = Self { used: 0, ends: (now / period + 1) * period };
        }
    }
}

#[test]
fn windows_agree_with_the_model() {
    for seed in seeds(40) {
        let mut random = Random::new(seed);
        let clock = clock();
        let mut quota = (5, 1_000);
        let of = |(limit, millis): (u64, u64)| FixedWindow::new(Quota::per(limit, Duration::from_millis(millis)));
        let mut limiter = store(of(quota), &clock);
        let mut model: HashMap<u64, Window> = HashMap::new();
        for step in 0..3_000 {
            let (now, period) = (clock.now().as_nanos(), quota.1 * 1_000_000);
            let context = format!("seed {seed}, step {step}, {quota:?}");
            if random.below(60) == 0 {
                quota = (random.pick(&[1, 3, 5, 50]), random.pick(&[500, 1_000, 1_000, 60_000]));
                let next = store(of(quota), &clock);
                limiter = inherit(&next, &limiter).unwrap_or_else(|| panic!("{context}"));
                for window in model.values_mut() {
                    window.roll(now, period);
                    window.ends = (now / (quota.1 * 1_000_000) + 1) * (quota.1 * 1_000_000);
                }
                continue;
            }
            let id = random.below(24);
            let window = model.entry(id).or_insert(Window { used: 0, ends: 0 });
            window.roll(now, period);
            let decision = decided(limiter.decide(&Ask::charge(&PartitionKey::from(id), 1)));
            let wait = (window.used >= quota.0).then(|| Duration::from_nanos(window.ends - now));
            assert_eq!((decision.is_allowed(), decision.retry_after()), (wait.is_none(), wait), "{context}");
            window.used += u64::from(wait.is_none());
            assert_eq!(decision.remaining(), quota.0.saturating_sub(window.used), "{context}");
            clock.advance(Duration::from_millis(random.pick(&[0, 0, 1, 130, 600])));
            if step % 50 == 0 {
                check_invariants(&*limiter, &clock);
            }
        }
        check_invariants(&*limiter, &clock);
    }
}

#[test]
fn sliding_windows_inherit_their_estimate() {
    let clock = ManualClock::starting_at(Timestamp::from_nanos(100_000_000_000));
    let key = PartitionKey::from("key");
    let of = |limit, seconds| store(SlidingWindow::new(Quota::per(limit, Duration::from_secs(seconds))), &clock);
    let first = of(12, 1);
    assert!(decided(first.decide(&Ask::charge(&key, 9))).is_allowed());
    clock.advance(Duration::from_millis(1_250));
    assert!(decided(first.decide(&Ask::charge(&key, 5))).is_allowed());
    // 9 × ¾ + 5 = 11.75.
    let fewer = of(10, 1);
    assert!(fewer.inherit(&*first).is_some());
    assert_eq!(decided(fewer.decide(&Ask::charge(&key, 0))).remaining(), 0);
    let longer = of(20, 60);
    assert!(longer.inherit(&*fewer).is_some());
    assert_eq!(decided(longer.decide(&Ask::charge(&key, 0))).remaining(), 8);
    // No request came meanwhile, so the estimate dates from the change and not from now.
    let short = of(20, 1);
    assert!(short.inherit(&*longer).is_some());
    clock.advance(Duration::from_secs(3));
    assert_eq!(decided(short.decide(&Ask::charge(&key, 0))).remaining(), 20);
}

#[test]
fn limiters_of_another_kind_do_not_inherit() {
    let clock = clock();
    let bucket = store(TokenBucket::new(Quota::per_minute(1)), &clock);
    let window = store(FixedWindow::new(Quota::per_minute(1)), &clock);
    let sliding = store(SlidingWindow::new(Quota::per_minute(1)), &clock);
    assert!(inherit(&window, &bucket).is_none() && inherit(&bucket, &window).is_none());
    assert!(inherit(&sliding, &window).is_none());
}

/// A limiter with its own debts cannot take another one's as well, because no client has spent both.
#[test]
fn a_used_limiter_gets_a_new_heir() {
    let clock = clock();
    let per_hour = |limit| store(TokenBucket::new(Quota::per_hour(limit)), &clock);
    let (used, old, key) = (per_hour(5), per_hour(100), PartitionKey::SHARED);
    assert!(decided(used.decide(&Ask::charge(&key, 2))).is_allowed());
    assert!(decided(old.decide(&Ask::charge(&key, 4))).is_allowed());
    let heir = inherit(&used, &old).unwrap();
    assert!(!Arc::ptr_eq(&heir, &used));
    assert_eq!(
        (
            decided(heir.decide(&Ask::charge(&key, 0))).remaining(),
            decided(used.decide(&Ask::charge(&key, 0))).remaining()
        ),
        (1, 3)
    );
    // An unused one inherits itself; the second time, for another layer, it has already done so.
    let fresh = per_hour(8);
    assert!(Arc::ptr_eq(&inherit(&fresh, &old).unwrap(), &fresh));
    assert!(decided(fresh.decide(&Ask::charge(&key, 1))).is_allowed());
    assert!(Arc::ptr_eq(&inherit(&fresh, &old).unwrap(), &fresh));
    assert_eq!(decided(fresh.decide(&Ask::charge(&key, 0))).remaining(), 3);
    assert!(Arc::ptr_eq(&inherit(&fresh, &fresh).unwrap(), &fresh), "from itself, there is nothing to inherit");
}

/// Counts from before a limit change are refunded after it.
#[test]
fn window_refunds_survive_a_limit_change() {
    fn refund<A: Algorithm>(make: impl Fn(Quota) -> A) {
        let (clock, key) = (clock(), PartitionKey::from("key"));
        let limiter = |limit| store(make(Quota::per_hour(limit)), &clock);
        let first = limiter(10);
        let spent = decided(first.decide(&Ask::charge(&key, 7)));
        let second = inherit(&limiter(20), &first).unwrap();
        // Before the key is in the table, and after.
        second.refund(&Ask::charge(&key, 3), spent.receipt(), 3);
        assert_eq!(decided(second.decide(&Ask::charge(&key, 0))).remaining(), 16);
        assert!(decided(second.decide(&Ask::charge(&key, 1))).is_allowed());
        second.refund(&Ask::charge(&key, 4), spent.receipt(), 4);
        assert_eq!(decided(second.decide(&Ask::charge(&key, 0))).remaining(), 19);
        let third = inherit(&limiter(5), &second).unwrap();
        assert_eq!(decided(third.decide(&Ask::charge(&key, 0))).remaining(), 4);
        let _ = third.decide(&Ask::reset(&key));
        assert_eq!(decided(third.decide(&Ask::charge(&key, 5))).remaining(), 0, "what is reset does not come back");
    }
    refund(FixedWindow::new);
    refund(SlidingWindow::new);
}

/// Copies of four table sizes are kept; a further capacity change takes effect once one copy's debts are paid.
#[test]
fn capacity_change_chains_are_bounded() {
    fn chain<A: Algorithm>(make: impl Fn(Quota) -> A) {
        let (clock, key) = (clock(), PartitionKey::from("key"));
        let limiter = |capacity| {
            let store = MemoryStore::with_capacity(capacity).with_clock(clock.clone());
            RateLimiter::new(make(Quota::per_hour(10)), store).into_limiter()
        };
        let capacity = |limiter: &Arc<dyn Limiter>| limiter.stats().table.unwrap().capacity;
        let mut in_force = limiter(100);
        assert!(decided(in_force.decide(&Ask::charge(&key, 1))).is_allowed());
        let mut capacities = Vec::new();
        for next in [200, 300, 400, 500, 600, 200] {
            in_force = inherit(&limiter(next), &in_force).unwrap();
            capacities.push(capacity(&in_force));
            assert!(decided(in_force.decide(&Ask::charge(&PartitionKey::from(next as u64), 1))).is_allowed());
        }
        assert_eq!(capacities, [200, 300, 400, 400, 400, 200]);
        assert_eq!(decided(in_force.decide(&Ask::charge(&key, 0))).remaining(), 9);
        assert_eq!(decided(in_force.decide(&Ask::charge(&PartitionKey::from(300_u64), 0))).remaining(), 9);
        clock.advance(Duration::from_secs(3 * 3_600));
        in_force = inherit(&limiter(700), &in_force).unwrap();
        assert_eq!(capacity(&in_force), 700);
        assert_eq!(decided(in_force.decide(&Ask::charge(&key, 0))).remaining(), 10);
    }
    chain(TokenBucket::new);
    chain(FixedWindow::new);
    chain(SlidingWindow::new);
}

/// More is used than the lowered limit allows.
#[test]
fn waits_are_exact_after_lowering_a_limit() {
    fn check<A: Algorithm>(before: &A, after: &A, random: &mut Random, context: &str) {
        let mut now = 1_000_000_000_000;
        let mut state = None;
        for _ in 0..random.below(6) {
            now += random.below(1_500_000_000);
            let cost = 1 + random.below(40);
            state = before.decide(state, Timestamp::from_nanos(now), cost).1.or(state);
        }
        let decide = |at| after.decide(state, Timestamp::from_nanos(at), 1).0;
        let Some(wait) = decide(now).retry_after() else { return };
        let then = now + u64::try_from(wait.as_nanos()).unwrap();
        assert!(decide(then).is_allowed() && !decide(then - 1).is_allowed(), "{context}: {wait:?}");
    }
    for seed in seeds(2_000) {
        let mut random = Random::new(seed);
        let limit = 1 + random.below(50);
        let (before, after) = (Quota::per_second(100), Quota::per_second(limit));
        check(&SlidingWindow::new(before), &SlidingWindow::new(after), &mut random, &format!("sliding, seed {seed}"));
        check(&FixedWindow::new(before), &FixedWindow::new(after), &mut random, &format!("fixed, seed {seed}"));
    }
}
