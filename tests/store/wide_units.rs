//! Quotas above 32 bits, which no word holds: in memory they are kept as states, and decided exactly.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use tower_sluice::algorithm::{Algorithm, CalendarWindow, FixedWindow, Portable, SlidingWindow, TokenBucket};
use tower_sluice::limiter::{Ask, IntoLimiter, Receipt};
use tower_sluice::store::MemoryStore;
use tower_sluice::time::{Clock, ManualClock, Timestamp};
use tower_sluice::{Decision, Limiter, PartitionKey, Quota, RateLimiter};

use crate::common::{check_invariants, clock, decided};
use crate::heirs::inherit;
use crate::support::cases::cases;

const CENTURY: u64 = 100 * 366 * 86_400 * 1_000_000_000;
const DAY: Duration = Duration::from_secs(86_400);

/// Ten terabytes a month.
const MONTH: Quota = Quota::per(10_000_000_000_000, Duration::from_secs(30 * 86_400));

/// Draws numbers from one to `most`, of all magnitudes.
fn number(most: u64) -> impl Strategy<Value = u64> {
    prop_oneof![
        6 => (1..=most, 0..u64::BITS).prop_map(|(number, shift)| (number >> shift).max(1)),
        1 => (0..3_u64).prop_map(move |less| most.saturating_sub(less).max(1)),
    ]
}

/// A quota whose limit or burst has more than 32 bits.
fn quota() -> impl Strategy<Value = Quota> {
    let wide = || u64::from(u32::MAX) + 1..=Quota::MAX_UNITS;
    let units = prop_oneof![
        (wide(), number(Quota::MAX_UNITS)),
        (number(Quota::MAX_UNITS), wide()),
        Just((Quota::MAX_UNITS, Quota::MAX_UNITS)),
    ];
    (units, number(CENTURY))
        .prop_map(|((limit, burst), period)| Quota::per(limit, Duration::from_nanos(period)).burst(burst))
}

/// A trace step: the time since the one before, in thousandths of a period; the cost; and whether the last charge is
/// refunded instead.
type Step = (u32, u64, bool);

fn trace() -> impl Strategy<Value = (Quota, Vec<Step>)> {
    quota().prop_flat_map(|quota| {
        let burst = quota.max_burst();
        let cost = prop_oneof![
            4 => number(burst),
            2 => Just((burst / 3).max(1)),
            1 => Just(0),
            1 => Just(burst),
            1 => Just(burst + 1),
            1 => Just(u64::MAX),
        ];
        let pause = prop_oneof![3 => Just(0), 2 => 0..100_u32, 1 => 0..3_000_u32];
        (Just(quota), prop::collection::vec((pause, cost, prop::bool::weighted(0.2)), 1..40))
    })
}

/// A limiter in memory decides like the algorithm asked directly, to the last bit.
fn decides_as<A: Algorithm + Clone>(algorithm: &A, steps: &[Step]) -> Result<(), TestCaseError> {
    let clock = clock();
    let store = MemoryStore::with_capacity(16).with_clock(clock.clone());
    let (limiter, key) = (RateLimiter::new(algorithm.clone(), store), PartitionKey::from("key"));
    let (mut state, mut charges): (Option<A::State>, Vec<(u64, Receipt)>) = (None, Vec::new());
    for (pause, cost, is_refund) in steps {
        clock.advance(algorithm.quota().period() / 1_000 * *pause);
        let now = clock.now();
        match charges.pop().filter(|_| *is_refund) {
            Some((cost, receipt)) => {
                limiter.refund(&Ask::charge(&key, cost), receipt, cost);
                state = state.map(|state| algorithm.refund(state, now, cost, receipt));
            }
            None => {
                let (expected, next) = algorithm.decide(state, now, *cost);
                let peeked = decided(limiter.decide(&Ask::peek(&key, *cost)));
                let decision = decided(limiter.decide(&Ask::charge(&key, *cost)));
                prop_assert_eq!(decision, expected, "{} at {:?}", cost, now);
                prop_assert_eq!(peeked.outcome(), expected.outcome());
                state = next.or(state);
                if next.is_some() {
                    charges.push((*cost, decision.receipt()));
                }
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(500))]

    #[test]
    fn memory_decides_as_the_algorithm((quota, steps) in trace()) {
        decides_as(&TokenBucket::new(quota), &steps)?;
        let window = Quota::per(quota.limit().max(quota.max_burst()), quota.period());
        decides_as(&FixedWindow::new(window), &steps)?;
        decides_as(&SlidingWindow::new(window), &steps)?;
        decides_as(&CalendarWindow::monthly(window.limit()), &steps)?;
    }

    /// The trace passes through the states' bytes, and another quota.
    #[test]
    fn bytes_keep_wide_states((quota, steps) in trace(), other in quota()) {
        fn keep<A: Portable + Clone>(of: impl Fn(Quota) -> A, quota: Quota, other: Quota, steps: &[Step]) -> Result<(), TestCaseError>
        where
            A::State: PartialEq + std::fmt::Debug,
        {
            let (algorithm, other) = (of(quota), of(other));
            let (mut now, mut state) = (Timestamp::from_nanos(1_700_000_000_123_456_789), None);
            for (pause, cost, _) in steps {
                now = now.saturating_add(quota.period() / 1_000 * *pause);
                state = algorithm.decide(state, now, *cost).1.or(state);
                let Some(state) = state else { continue };
                let bytes = algorithm.to_bytes(&state);
                prop_assert!(bytes.len() <= 50);
                prop_assert_eq!(algorithm.from_bytes(&bytes, now), Ok(state));
                prop_assert_eq!(other.from_bytes(&bytes, now), Ok(other.inherit(state, &algorithm.quota(), now)));
            }
            Ok(())
        }
        let window = |quota: Quota| Quota::per(quota.limit(), quota.period());
        keep(TokenBucket::new, quota, other, &steps)?;
        keep(|quota| FixedWindow::new(window(quota)), quota, other, &steps)?;
        keep(|quota| SlidingWindow::new(window(quota)), quota, other, &steps)?;
    }
}

fn limiter<A: Algorithm>(algorithm: A, clock: &ManualClock) -> Arc<dyn Limiter> {
    RateLimiter::new(algorithm, MemoryStore::with_capacity(64).with_clock(clock.clone())).into_limiter()
}

fn ask(limiter: &Arc<dyn Limiter>, cost: u64) -> Decision {
    decided(limiter.decide(&Ask::charge(&PartitionKey::from("key"), cost)))
}

fn left(limiter: &Arc<dyn Limiter>) -> u64 {
    ask(limiter, 0).remaining()
}

/// Changes to a limiter with this algorithm.
fn changed<A: Algorithm>(before: &Arc<dyn Limiter>, algorithm: A, clock: &ManualClock) -> Arc<dyn Limiter> {
    let next = limiter(algorithm, clock);
    let heir = inherit(&next, before).expect("one of its kind");
    check_invariants(&*heir, clock);
    check_invariants(&**before, clock);
    heir
}

#[test]
fn buckets_keep_use_across_widths() {
    let (clock, small) = (clock(), Quota::per_hour(1_000_000));
    let words = limiter(TokenBucket::new(small), &clock);
    assert_eq!(ask(&words, 400_000).remaining(), 600_000);

    let wide = changed(&words, TokenBucket::new(MONTH), &clock);
    assert_eq!(left(&wide), MONTH.limit() - 400_000);
    assert_eq!(ask(&wide, 500_000_000_000).remaining(), MONTH.limit() - 500_000_400_000);

    // Another wide quota, and one with an equal rate.
    let twice = changed(&wide, TokenBucket::new(Quota::per(2 * MONTH.limit(), MONTH.period())), &clock);
    assert_eq!(left(&twice), 2 * MONTH.limit() - 500_000_400_000);
    let burst = changed(&twice, TokenBucket::new(Quota::per(2 * MONTH.limit(), MONTH.period()).burst(1 << 45)), &clock);
    assert_eq!(left(&burst), (1 << 45) - 500_000_400_000);

    // The debt of 57 years, which no word holds, is not forgiven by a small quota.
    let small_again = changed(&burst, TokenBucket::new(small), &clock);
    let wait = ask(&small_again, 1).retry_after().unwrap();
    // A token takes 3.6 ms.
    let exact = Duration::from_nanos((500_000_400_001 - small.limit()) * 3_600_000);
    assert!((exact..exact + Duration::from_micros(1)).contains(&wait), "{wait:?} and not {exact:?}");

    // Once it is nearly paid, the next change keeps words again.
    clock.advance(wait - Duration::from_secs(3_600));
    let words = changed(&small_again, TokenBucket::new(small), &clock);
    let wait = ask(&words, 1).retry_after().unwrap();
    let hour = Duration::from_secs(3_600);
    assert!((hour..hour + Duration::from_micros(1)).contains(&wait), "{wait:?}");
    clock.advance(wait);
    assert!(ask(&words, 1).is_allowed() && !ask(&words, 1).is_allowed());
}

/// A debt that fits into words goes there directly from a wide quota, and is exact to a tick.
#[test]
fn a_small_wide_debt_becomes_words() {
    // The limit alone is wide.
    let fast = Quota::per_second(10_000_000_000).burst(100_000_000);
    let clock = clock();
    let wide = limiter(TokenBucket::new(fast), &clock);
    assert_eq!(ask(&wide, 60_000_000).remaining(), 40_000_000);
    let slow = Quota::per_second(1_000_000).burst(100_000_000);
    let words = changed(&wide, TokenBucket::new(slow), &clock);
    assert_eq!(left(&words), 40_000_000);
    clock.advance(Duration::from_secs(10));
    assert_eq!(left(&words), 50_000_000);
    let wide = changed(&words, TokenBucket::new(fast), &clock);
    assert_eq!(left(&wide), 50_000_000);
}

/// The other form does not know how much an earlier charge still owes, so the charge stays: a refund gives back
/// nothing, and never too much.
#[test]
fn a_change_of_form_keeps_charges() {
    let clock = clock();
    let key = PartitionKey::from("key");
    let quotas = [Quota::per_hour(1_000_000), MONTH, Quota::per(2 * MONTH.limit(), MONTH.period()), Quota::per_hour(9)];
    let mut present = limiter(TokenBucket::new(quotas[0]), &clock);
    let mut used = 0;
    for (before, after) in quotas.iter().zip(&quotas[1..]) {
        let charged = ask(&present, 5);
        used += 5;
        assert_eq!(before.max_burst() - charged.remaining(), used);
        let next = changed(&present, TokenBucket::new(*after), &clock);
        next.refund(&Ask::charge(&key, 5), charged.receipt(), 5);
        present = next;
        assert_eq!(left(&present), after.max_burst().saturating_sub(used), "{after:?}");
    }
}

#[test]
fn windows_keep_use_across_widths() {
    fn check<A: Algorithm>(of: fn(Quota) -> A) {
        let clock = clock();
        let per_day = |limit| Quota::per(limit, DAY);
        let words = limiter(of(per_day(60_000)), &clock);
        assert_eq!(ask(&words, 40_000).remaining(), 20_000);
        let wide = changed(&words, of(per_day(Quota::MAX_UNITS)), &clock);
        assert_eq!(left(&wide), Quota::MAX_UNITS - 40_000);
        assert_eq!(ask(&wide, 1 << 49).remaining(), Quota::MAX_UNITS - 40_000 - (1 << 49));
        let small = changed(&wide, of(per_day(60_000)), &clock);
        assert_eq!((left(&small), ask(&small, 1).is_allowed()), (0, false));
        // The used count is still known when the limit is raised again.
        let wide = changed(&small, of(per_day(Quota::MAX_UNITS)), &clock);
        assert_eq!(left(&wide), Quota::MAX_UNITS - 40_000 - (1 << 49));
        clock.advance(3 * DAY);
        let words = changed(&wide, of(per_day(60_000)), &clock);
        assert_eq!(left(&words), 60_000);
    }
    check(FixedWindow::new);
    check(SlidingWindow::new);
}

/// Keys with their own quotas, some of them wide.
#[test]
fn keys_keep_use_across_widths() {
    fn check<A: Algorithm>(of: fn(Quota) -> A) {
        let clock = clock();
        let (narrow, wide) = (Quota::per(1_000, DAY), Quota::per(Quota::MAX_UNITS, DAY));
        let (limiter, key) = (limiter(of(narrow), &clock), PartitionKey::from("key"));
        let ask = |quota, cost| decided(limiter.decide(&Ask::charge(&key, cost).under(Some(quota))));
        assert_eq!(ask(narrow, 600).remaining(), 400);
        assert_eq!(ask(wide, 1 << 40).remaining(), Quota::MAX_UNITS - 600 - (1 << 40));
        let rejected = ask(narrow, 1);
        assert!(!rejected.is_allowed() && rejected.retry_after().is_some());
        assert_eq!(ask(narrow, u64::MAX).retry_after(), None);
        assert_eq!(ask(wide, 0).remaining(), Quota::MAX_UNITS - 600 - (1 << 40));
        check_invariants(&*limiter, &clock);
    }
    check(TokenBucket::new);
    check(FixedWindow::new);
    check(SlidingWindow::new);
}
