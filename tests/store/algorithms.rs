//! Every algorithm against the published contract, and against a naive model.

use std::sync::Arc;
use std::time::Duration;

use crate::support::cases::cases;
use crate::support::effort::rounds;
use crate::support::oracle::{BucketOracle, FixedWindowOracle, Oracle, SlidingWindowOracle};
use proptest::prelude::*;
use tower_sluice::algorithm::{Algorithm, FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::limiter::{IntoLimiter, Terms};
use tower_sluice::testing::{check_algorithm, seed};
use tower_sluice::time::Timestamp;
use tower_sluice::{Decision, Limiter, Quota};

/// From one per day to ten million per second, rates that do not divide, and the types' limits.
fn quotas() -> Vec<Quota> {
    let odd = Quota::per(7, Duration::from_nanos(1_000_003));
    let century = Duration::from_secs(100 * 366 * 86_400);
    let fastest = |limit| Quota::per(limit, Duration::from_nanos(1));
    vec![
        Quota::per_second(1),
        Quota::per_second(3),
        Quota::per_second(10),
        Quota::per_second(1_000),
        Quota::per_second(10_000_000),
        Quota::per_second(u64::from(u32::MAX)),
        Quota::per_minute(7),
        Quota::per_hour(1_000),
        Quota::per_day(1),
        Quota::per_day(10_000_000_000_000),
        odd,
        fastest(u32::MAX.into()),
        fastest(Quota::MAX_UNITS),
        Quota::per(1, century),
        Quota::per(Quota::MAX_UNITS, century),
        Quota::per(Quota::MAX_UNITS - 1, century - Duration::from_nanos(1)),
    ]
}

fn bursts() -> [u64; 10] {
    [1, 2, 3, 100, 1 << 16, (1 << 31) - 1, 1 << 31, u64::from(u32::MAX), 1 << 32, Quota::MAX_UNITS]
}

#[test]
fn buckets_keep_the_contract() {
    for (number, quota) in quotas().into_iter().enumerate() {
        check_algorithm(&TokenBucket::new(quota), seed());
        // All bursts, or two, which differ from quota to quota.
        let step = rounds(9, 1);
        for burst in bursts().into_iter().skip(number % step).step_by(step) {
            check_algorithm(&TokenBucket::new(quota.burst(burst)), seed());
        }
    }
}

#[test]
fn fixed_windows_keep_the_contract() {
    for quota in quotas() {
        check_algorithm(&FixedWindow::new(quota), seed());
    }
}

#[test]
fn sliding_windows_keep_the_contract() {
    for quota in quotas() {
        check_algorithm(&SlidingWindow::new(quota), seed());
    }
}

const NANOS: u64 = 1_000_000_000;

fn at(nanos: u64) -> Timestamp {
    Timestamp::from_nanos(nanos)
}

/// Runs one key through a trace of (nanoseconds to let pass, cost).
fn run<A: Algorithm>(algorithm: &A, start: u64, trace: &[(u64, u64)]) -> Vec<Decision> {
    let (mut now, mut state) = (start, None);
    trace
        .iter()
        .map(|(pass, cost)| {
            now = now.saturating_add(*pass);
            let (decision, next) = algorithm.decide(state, at(now), *cost);
            state = next.or(state);
            decision
        })
        .collect()
}

fn agrees_with<A: Algorithm>(
    algorithm: &A,
    mut oracle: impl Oracle,
    start: u64,
    trace: &[(u64, u64)],
) -> Result<(), TestCaseError> {
    let decisions = run(algorithm, start, trace);
    let mut now = start;
    for (step, ((pass, cost), decision)) in trace.iter().zip(decisions).enumerate() {
        now += pass;
        let remaining = oracle.remaining(now);
        prop_assert_eq!(oracle.take(now, *cost), decision.is_allowed(), "step {}: {} at {}", step, cost, now);
        let spent = if decision.is_allowed() { *cost } else { 0 };
        prop_assert_eq!(remaining - spent, decision.remaining(), "step {}", step);
    }
    Ok(())
}

fn quota() -> impl Strategy<Value = Quota> {
    let limit = prop_oneof![1..20_u64, 1..10_000_000_u64, 1..=Quota::MAX_UNITS];
    let period = prop_oneof![Just(NANOS), Just(60 * NANOS), Just(86_400 * NANOS), 1..1_000_000_u64, 1..86_400 * NANOS];
    (limit, period).prop_map(|(limit, period)| Quota::per(limit, Duration::from_nanos(period)))
}

/// Traces with steps of about the quota's interval or its period.
fn trace(quota: Quota, max: u64) -> impl Strategy<Value = Vec<(u64, u64)>> {
    let period = u64::try_from(quota.period().as_nanos()).unwrap();
    let interval = period / quota.limit();
    let pass = prop_oneof![
        3 => Just(0),
        2 => 0..=interval * 2,
        1 => Just(interval),
        1 => 0..=period,
        1 => 0..=period * 3,
    ];
    let cost = prop_oneof![6 => 1..=3_u64, 1 => Just(0), 1 => 0..=max, 1 => Just(max)];
    prop::collection::vec((pass, cost), 1..120)
}

fn bucket_case() -> impl Strategy<Value = (Quota, Vec<(u64, u64)>)> {
    (quota(), prop_oneof![1..50_u64, 1..=Quota::MAX_UNITS]).prop_flat_map(|(quota, burst)| {
        let quota = quota.burst(burst);
        (Just(quota), trace(quota, burst.saturating_add(1)))
    })
}

fn window_case() -> impl Strategy<Value = (Quota, Vec<(u64, u64)>)> {
    quota().prop_flat_map(|quota| (Just(quota), trace(quota, quota.limit() + 1)))
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn buckets_agree_with_a_leaking_level((quota, trace) in bucket_case(), start in 0..2_000_000_000 * NANOS) {
        agrees_with(&TokenBucket::new(quota), BucketOracle::new(quota), start, &trace)?;
    }

    #[test]
    fn fixed_windows_agree_with_a_log((quota, trace) in window_case(), start in 0..2_000_000_000 * NANOS) {
        agrees_with(&FixedWindow::new(quota), FixedWindowOracle::new(quota), start, &trace)?;
    }

    #[test]
    fn sliding_windows_agree_with_weighted_logs((quota, trace) in window_case(), start in 0..2_000_000_000 * NANOS) {
        agrees_with(&SlidingWindow::new(quota), SlidingWindowOracle::new(quota), start, &trace)?;
    }

    #[test]
    fn one_triple_charge_equals_three_single((quota, trace) in bucket_case()) {
        let bucket = TokenBucket::new(quota.burst(quota.max_burst().max(3)));
        let (mut whole, mut parts, mut now) = (None, None, 0);
        for (pass, _) in trace {
            now += pass;
            let (decision, next) = bucket.decide(whole, at(now), 3);
            whole = next.or(whole);
            if decision.is_allowed() {
                for _ in 0..3 {
                    parts = bucket.decide(parts, at(now), 1).1;
                    prop_assert!(parts.is_some());
                }
            }
            prop_assert_eq!(whole, parts);
        }
    }

    /// Whatever is refunded, no interval sees more than the bucket allows. From its refund on, a charge counts as never
    /// made.
    #[test]
    fn refunds_admit_no_more_than_omitted_charges(
        (quota, trace) in bucket_case(), refunds in prop::collection::vec(any::<bool>(), 120)
    ) {
        let bucket = TokenBucket::new(quota);
        // If each refunded charge is left out of the history altogether, the bucket must admit everything that was
        // admitted.
        let (mut state, mut now, mut history, mut last) = (None, 0, Vec::new(), None);
        for ((pass, cost), refund) in trace.into_iter().zip(refunds) {
            now += pass;
            if let (true, Some((taken, receipt))) = (refund, last.take()) {
                state = state.map(|state| bucket.refund(state, at(now), taken, receipt));
                history.pop();
            }
            let (decision, next) = bucket.decide(state, at(now), cost);
            state = next.or(state);
            if decision.is_allowed() && cost > 0 {
                last = Some((cost, decision.receipt()));
                history.push((now, cost));
            }
        }
        let mut without = None;
        for (now, cost) in history {
            let (decision, next) = bucket.decide(without, at(now), cost);
            prop_assert!(decision.is_allowed(), "{cost} at {now} passed only because too much was refunded");
            without = next;
        }
    }
}

#[test]
fn the_sliding_estimate_matches_the_documentation() {
    // 9 before and 5 now, a quarter into the window, are 11.75. With a limit of 12 a quarter of a unit is left, so a
    // request waits until the 9 weigh 6: a third into the window.
    let window = SlidingWindow::new(Quota::per(12, Duration::from_secs(12)));
    let (_, state) = window.decide(None, at(6 * NANOS), 9);
    let (_, state) = window.decide(state, at(12 * NANOS), 3);
    let (_, state) = window.decide(state, at(15 * NANOS), 2);
    let (peek, _) = window.decide(state, at(15 * NANOS), 0);
    assert_eq!(peek.remaining(), 0);
    let (rejected, _) = window.decide(state, at(15 * NANOS), 1);
    assert_eq!(rejected.retry_after(), Some(Duration::from_secs(1)));
    let (admitted, _) = window.decide(state, at(16 * NANOS), 1);
    assert!(admitted.is_allowed());
}

#[test]
fn three_per_second_stays_exact() {
    // At one per 333,333,333 ns, the bucket would admit three more in a million seconds.
    let bucket = TokenBucket::new(Quota::per_second(3).burst(1));
    let (mut state, mut now, mut admitted) = (None, at(0), 0_u64);
    while now.as_nanos() < 1_000_000 * NANOS {
        let (decision, next) = bucket.decide(state, now, 1);
        match decision.retry_after() {
            Some(wait) => now = now.saturating_add(wait),
            None => admitted += 1,
        }
        state = next.or(state);
    }
    assert_eq!(admitted, 3_000_000);
}

#[test]
fn idle_years_earn_one_burst() {
    let year = 365 * 86_400 * NANOS;
    for idle in [1, 60 * NANOS, year, 30 * year] {
        let bucket = TokenBucket::new(Quota::per_minute(7).burst(4));
        let trace: Vec<_> = [(0, 4), (idle.max(60 * NANOS), 1)].into_iter().chain([(0, 1); 9]).collect();
        let admitted = run(&bucket, 0, &trace)[1..].iter().filter(|decision| decision.is_allowed()).count();
        assert_eq!(admitted, 4);
    }
}

#[test]
fn rejections_do_not_delay_the_next_admission() {
    for step in [1_000_000, 3_333_333] {
        let bucket = TokenBucket::new(Quota::per_second(10).burst(1));
        let trace: Vec<_> = std::iter::repeat_n((step, 1), 3_000).collect();
        let admitted = run(&bucket, 0, &trace).iter().filter(|decision| decision.is_allowed()).count() as u64;
        // One at once, and then ten for each second, at any step.
        let earned = 1 + (3_000 - 1) * step / (NANOS / 10);
        assert!(admitted <= earned && admitted + 3_000 * step / NANOS >= earned * 9 / 10, "{admitted} of {earned}");
    }
}

#[test]
fn algorithms_advertise_their_terms() {
    /// An algorithm without a kind: it promises the least.
    struct Plain;
    impl Algorithm for Plain {
        type State = ();
        fn quota(&self) -> Quota {
            Quota::per_day(7)
        }
        fn decide(&self, _: Option<()>, _: Timestamp, _: u64) -> (Decision, Option<()>) {
            (Decision::allow(7, 7), None)
        }
        fn expires_at(&self, _: &()) -> Timestamp {
            Timestamp::ZERO
        }
    }
    let quota = Quota::per_minute(7);
    assert_eq!(TokenBucket::new(quota.burst(3)).terms(), Terms::bucket(quota.burst(3)));
    assert_eq!(FixedWindow::new(quota).terms(), Terms::fixed_window(quota));
    assert_eq!(SlidingWindow::new(quota).terms(), Terms::sliding_window(quota));
    assert_eq!(Plain.terms(), Terms::sliding_window(Quota::per_day(7)));
    let shared: Arc<dyn Limiter> = FixedWindow::new(quota).into_limiter();
    assert_eq!(shared.describe().terms(), Some(Terms::fixed_window(quota)));
}
