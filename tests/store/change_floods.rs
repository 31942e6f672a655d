//! Live changes and keys' own quotas while floods of other keys fill the table.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

use tower_sluice::algorithm::{Algorithm, FixedWindow, FixedWindowState, SlidingWindow, TokenBucket};
use tower_sluice::limiter::{Ask, IntoLimiter};
use tower_sluice::store::{MemoryStore, WhenFull};
use tower_sluice::testing::take_quotas;
use tower_sluice::time::{ManualClock, Timestamp};
use tower_sluice::{Decision, Limiter, PartitionKey, Quota, RateLimiter};

use crate::common::{check_invariants, clock, decided};
use crate::heirs::inherit;
use crate::support::effort::rounds;

fn limiter<A: Algorithm>(algorithm: A, keys: usize, when_full: WhenFull, clock: &ManualClock) -> Arc<dyn Limiter> {
    let store = MemoryStore::with_capacity(keys).when_full(when_full).with_clock(clock.clone());
    RateLimiter::new(algorithm, store).into_limiter()
}

fn ask(limiter: &Arc<dyn Limiter>, key: u64, cost: u64, quota: Option<Quota>) -> Decision {
    decided(limiter.decide(&Ask::charge(&PartitionKey::from(key), cost).under(quota)))
}

/// Returns how many of the key's requests pass.
fn passing(limiter: &Arc<dyn Limiter>, key: u64, requests: u64, quota: Option<Quota>) -> u64 {
    (0..requests).map(|_| u64::from(ask(limiter, key, 1, quota).is_allowed())).sum()
}

/// Each change copied all earlier debts and a full table besides. After 128 changes, each between floods, a page had
/// more copies than it could count, and 157 to 571 of 1,000 debtors were forgiven, by their place in the table. None
/// was counted as evicted, because each change began to count at zero.
#[test]
fn floods_evict_and_count_least_debts() {
    const SLOTS: u64 = 512;
    const DEBTORS: u64 = 100;
    fn check<A: Algorithm>(of: impl Fn(u64) -> A, has_quotas: bool, changes: usize) {
        let clock = clock();
        let made = |limit| {
            let limiter = limiter(of(limit), 256, WhenFull::EvictLeast, &clock);
            assert!(!has_quotas || take_quotas(&*limiter));
            limiter
        };
        let mut limiter = made(10);
        for key in 0..DEBTORS {
            assert!(ask(&limiter, key, 10, None).is_allowed());
        }
        let (mut fresh, mut keys, mut counted) = (1_000_u64.., DEBTORS, 0);
        for change in 0..changes {
            for key in fresh.by_ref().take(1_024) {
                let _ = ask(&limiter, key, 1, None);
            }
            keys += 1_024;
            limiter = inherit(&made(if change % 2 == 0 { 11 } else { 10 }), &limiter).unwrap();
            let evicted = limiter.stats().table.unwrap().evicted_live;
            assert!(evicted >= counted, "{evicted} were evicted after change {change}, and {counted} before");
            counted = evicted;
            // Every key owes something by now, so the table holds all that it did not evict. Two keys may share a slot
            // by chance.
            let held = keys - evicted;
            assert!((DEBTORS..=SLOTS + 16).contains(&held), "{held} keys are held after change {change}");
        }
        let limit = if changes % 2 == 0 { 10 } else { 11 };
        let forgiven = (0..DEBTORS).filter(|key| ask(&limiter, *key, limit - 9, None).is_allowed()).count();
        assert!(forgiven <= 1, "{forgiven} of {DEBTORS} debtors are forgiven");
        check_invariants(&*limiter, &clock);
    }
    let many = 2 * rounds(70, 150);
    check(|limit| TokenBucket::new(Quota::per_day(limit)), false, many);
    check(|limit| FixedWindow::new(Quota::per_day(limit)), false, many);
    check(|limit| SlidingWindow::new(Quota::per_day(limit)), false, many);
    let few = rounds(4, 140);
    check(|limit| TokenBucket::new(Quota::per_day(limit)), true, few);
    check(|limit| SlidingWindow::new(Quota::per_day(limit)), true, few);
    // In nanoseconds, counts do not fit into words.
    check(|limit| FixedWindow::new(Quota::per(limit, Duration::from_nanos(10))), false, few);
}

/// If keys have their own quotas, those that have used the least of theirs are forgotten.
#[test]
fn floods_forget_no_strict_limit() {
    let clock = clock();
    let (own, strict, generous) = (Quota::per_day(7), Some(Quota::per_day(5)), Some(Quota::per_day(10_000)));
    let made = || {
        let limiter = limiter(TokenBucket::new(own), 256, WhenFull::EvictLeast, &clock);
        assert!(take_quotas(&*limiter));
        limiter
    };
    let mut limiter = made();
    assert!((0..100).all(|key| passing(&limiter, key, 6, strict) == 5));
    let mut fresh = 1_000_u64..;
    for _ in 0..4 {
        fresh.by_ref().take(1_024).for_each(|key| assert_eq!(passing(&limiter, key, 2, generous), 2));
        limiter = inherit(&made(), &limiter).unwrap();
    }
    // Two keys may share a slot by chance.
    assert!((0..100).map(|key| passing(&limiter, key, 5, strict)).sum::<u64>() <= 5);
}

/// When the table is full, new keys share budgets. A budget took on the plan of the key that asked last, whose rate
/// paid for the units that others had spent. So a key with five per day passed whenever a key with a faster plan asked
/// in between.
#[test]
fn a_shared_budget_has_one_quota() {
    let clock = clock();
    let limiter = limiter(TokenBucket::new(Quota::per_day(7)), 8, WhenFull::Overflow, &clock);
    assert!(take_quotas(&*limiter));
    let (strict, fast) = (Some(Quota::per_day(5)), Some(Quota::per_second(1_000_000)));
    for key in 0..100 {
        let _ = ask(&limiter, key, 1, strict);
    }
    let mut passed = 0;
    for _ in 0..10 {
        passed += passing(&limiter, 1_000, 5, strict);
        // Some of these keys share each of the 512 budgets.
        for key in 10_000..22_000 {
            let _ = ask(&limiter, key, 1, fast);
        }
        clock.advance(Duration::from_millis(1));
    }
    assert!(passed <= 5, "{passed} of 5");
}

/// A key that had inherited, and found no room, was judged by the greater count: its inherited or its shared one. After
/// 17 of 20 before the change, it passed 20 more.
#[test]
fn an_inheriting_key_keeps_its_limit() {
    fn check<A: Algorithm>(of: impl Fn(u64) -> A, has_quotas: bool) {
        let clock = clock();
        let [before, heir] = [(); 2].map(|()| {
            let limiter = limiter(of(20), 8, WhenFull::Overflow, &clock);
            assert!(!has_quotas || take_quotas(&*limiter));
            limiter
        });
        let key = 7;
        assert_eq!(passing(&before, key, 17, None), 17);
        let heir = inherit(&heir, &before).unwrap();
        let others: Vec<_> = (100..200).map(|key| (key, ask(&heir, key, 1, None).receipt())).collect();
        let remaining = ask(&heir, key, 0, None).remaining();
        assert!(remaining <= 3, "{remaining}");
        let passed = passing(&heir, key, 40, None);
        assert!(passed <= 3, "17 and {passed} of 20");
        let rejected = ask(&heir, key, 1, None);
        assert!(rejected.retry_after().is_some_and(|wait| !wait.is_zero()), "{rejected:?}");
        // Now buckets have room, and the key's share of the spent budget counts besides the inherited units.
        for (other, receipt) in others {
            heir.refund(&Ask::charge(&PartitionKey::from(other), 1), receipt, 1);
        }
        let more = passing(&heir, key, 40, None);
        assert!(passed + more <= 3, "17, {passed} and {more} of 20");
        check_invariants(&*heir, &clock);
    }
    check(|limit| FixedWindow::new(Quota::per(limit, Duration::from_nanos(10))), false);
    check(|limit| SlidingWindow::new(Quota::per(limit, Duration::from_nanos(10))), false);
    check(|limit| TokenBucket::new(Quota::per_day(limit)), true);
    check(|limit| FixedWindow::new(Quota::per_day(limit)), true);
    check(|limit| TokenBucket::new(Quota::per_day(limit)), false);
    check(|limit| FixedWindow::new(Quota::per_day(limit)), false);
}

/// A small quota's words held at most 2^18 tokens of a great quota's debt: 737,856 of a million were free after a
/// change there and back.
#[test]
fn a_debt_survives_a_smaller_quota() {
    let (great, clock) = (1_000_000, clock());
    for small in [Quota::per_day(10), Quota::per_day(500_000), Quota::per_second(1), Quota::per_day(1)] {
        let made = |quota| limiter(TokenBucket::new(quota), 256, WhenFull::EvictLeast, &clock);
        let before = made(Quota::per_day(great));
        assert!(ask(&before, 7, great - 1, None).is_allowed());
        let between = inherit(&made(small), &before).unwrap();
        let rejected = ask(&between, 7, 1, None);
        let excess = great - small.max_burst();
        let wait = small.period().as_secs() / small.limit() * excess;
        let told = rejected.retry_after().map_or(0, |wait| wait.as_secs());
        assert!(told >= wait, "{told} s of {wait} under {small:?}");
        let after = inherit(&made(Quota::per_day(great)), &between).unwrap();
        assert_eq!(ask(&after, 7, 0, None).remaining(), 1, "there and back by {small:?}");
        check_invariants(&*after, &clock);
    }
}

/// Counts, for each thread, how often a state is looked at.
#[derive(Clone)]
struct Counting {
    window: FixedWindow,
    looks: Arc<Mutex<HashMap<ThreadId, u64>>>,
    total: Arc<AtomicU64>,
}

impl Algorithm for Counting {
    type State = FixedWindowState;

    fn quota(&self) -> Quota {
        self.window.quota()
    }

    fn decide(
        &self,
        state: Option<FixedWindowState>,
        now: Timestamp,
        cost: u64,
    ) -> (Decision, Option<FixedWindowState>) {
        self.window.decide(state, now, cost)
    }

    fn expires_at(&self, state: &FixedWindowState) -> Timestamp {
        *self.looks.lock().unwrap().entry(thread::current().id()).or_default() += 1;
        self.total.fetch_add(1, Ordering::Relaxed);
        self.window.expires_at(state)
    }

    fn can_inherit(&self, from: &Quota) -> bool {
        self.window.can_inherit(from)
    }

    fn inherit(&self, state: FixedWindowState, from: &Quota, now: Timestamp) -> FixedWindowState {
        self.window.inherit(state, from, now)
    }

    fn under(&self, quota: Quota) -> Option<Self> {
        Some(Self { window: self.window.under(quota)?, ..self.clone() })
    }
}

/// The first question under a quota copied all keys before it was answered: 0.1 s for a million keys.
#[test]
fn the_first_question_copies_its_pages() {
    const KEYS: u64 = 20_000;
    let clock = clock();
    for is_prepared in [false, true] {
        let (looks, total) = (Arc::default(), Arc::default());
        let algorithm = Counting { window: FixedWindow::new(Quota::per_day(10)), looks, total };
        let looks = Arc::clone(&algorithm.looks);
        let limiter = limiter(algorithm, 40_000, WhenFull::EvictLeast, &clock);
        (0..KEYS).for_each(|key| assert!(ask(&limiter, key, 4, None).is_allowed()));
        if is_prepared {
            assert!(take_quotas(&*limiter));
        }
        looks.lock().unwrap().clear();
        let five = Some(Quota::per_day(5));
        assert_eq!(ask(&limiter, 7, 1, five).remaining(), 0);
        let here = looks.lock().unwrap().get(&thread::current().id()).copied().unwrap_or(0);
        // Two pages of 512 slots, and the key's own two sets.
        let most = if is_prepared { 100 } else { 2 * 512 + 100 };
        assert!(here <= most, "{here} states were looked at, prepared: {is_prepared}");
        // Two keys may share a slot by chance, once in thousands of runs.
        let forgiven = (0..KEYS).filter(|key| ask(&limiter, *key, 7, None).is_allowed()).count();
        assert!(forgiven <= 2, "{forgiven} keys have lost what they have used");
    }
}
