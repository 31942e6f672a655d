//! Long traces of random values and edge values: the scripts decide like Rust over a plain map.

use std::collections::HashMap;
use std::fmt::Debug;
use std::time::Duration;

use tower_sluice::algorithm::{Algorithm, CalendarWindow, FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::internal::remote::testing::ReadQuota as _;
use tower_sluice::limiter::Receipt;
use tower_sluice::{Decision, Quota};

use super::model::Model;
use super::{ALL, decide_all, refund};
use crate::script::manual_server::{ManualServer, START, at, key};
use crate::script::random::Xorshift;
use crate::script::{MOST_UNITS, ScriptCharge, Scripted, decide, variant};
use crate::support::effort::rounds;
use crate::support::trace::Trace;

/// Returns the steps per algorithm: the full number if a variant of the scripts is active, and its mistake must be
/// noticed.
fn steps_per_algorithm() -> u64 {
    if variant::seed().is_some() { 100_000 } else { rounds(8_000, 100_000) as u64 }
}
/// The number of steps with one quota, sent together.
const BATCH: u64 = 400;
/// Few, so that each key is used often.
const KEYS: u64 = 3;

const EDGES: [u64; 14] = [
    1,
    2,
    3,
    7,
    10,
    100,
    1_000_003,
    (1 << 32) - 1,
    1 << 32,
    (1 << 41) + 7,
    1 << 49,
    MOST_UNITS - 2,
    MOST_UNITS - 1,
    MOST_UNITS,
];

const PERIODS: [u64; 13] = [
    1,
    1_000,
    17_000,
    999_999_999,
    1_000_000_000,
    1_000_000_001,
    60_000_000_000,
    61_234_567_000,
    3_600_000_000_000,
    86_400_000_000_000,
    (1 << 42) * 1_000,
    (1 << 49) * 1_000 + 3_000,
    ((1 << 50) - 1) * 1_000,
];

pub(super) fn window_quota(random: &mut Xorshift) -> Quota {
    let limit = match random.below(5) {
        0 | 1 => random.pick(&EDGES),
        2 => 1 + random.below(MOST_UNITS),
        _ => 1 + random.below(50),
    };
    let period = if random.below(3) == 0 { 1 + random.below(10_000_000) * 1_000 } else { random.pick(&PERIODS) };
    Quota::per(limit, Duration::from_nanos(period))
}

pub(super) fn bucket_quota(random: &mut Xorshift) -> Quota {
    let quota = window_quota(random);
    match random.below(5) {
        0 => quota.burst(random.pick(&EDGES)),
        1 => quota.burst(1 + random.below(20)),
        2 => quota.burst(1 + random.below(MOST_UNITS)),
        _ => quota,
    }
}

pub(super) fn cost(random: &mut Xorshift, max: u64) -> u64 {
    match random.below(8) {
        0 => 0,
        1 => random.pick(&EDGES),
        2 => max,
        3 => max.saturating_add(1),
        4 => max / 2 + 1,
        5 => 1 + random.below(max),
        _ => 1 + random.below(max / 4 + 1),
    }
}

/// Advances time by nothing, a little, the price of some tokens, or several periods. Sometimes time goes back.
fn later(random: &mut Xorshift, now: u64, quota: &Quota) -> u64 {
    let period = quota.period_nanos() / 1_000 + 1;
    let token = period / quota.limit() + 1;
    let next = match random.below(16) {
        0 => now.saturating_sub(random.below(3 * period)).max(START),
        1 | 2 => now,
        3 | 4 => now + 1,
        5..=8 => now + random.below(3 * token),
        9..=13 => now + random.below(period),
        14 => (now / period + 1) * period,
        _ => now + random.below(3 * period),
    };
    if next < (1 << 52) { next } else { START }
}

/// Whether a key with this state expires when it owes nothing any more, at most two milliseconds later. Without a
/// state, whether there is no key.
pub(super) fn lives_as_long<A: Algorithm>(algorithm: &A, state: Option<&A::State>, expiry: i64) -> bool {
    let Some(state) = state else { return expiry == -2 };
    let paid = i64::try_from(algorithm.expires_at(state).as_nanos().div_ceil(1_000_000)).unwrap();
    (paid..=paid + 1).contains(&expiry)
}

/// The script's expected reply to one step.
enum Expected {
    Decisions { cost: u64, decisions: Vec<Decision> },
    Refund { is_owed: bool },
}

fn check_traces<A: Scripted + Model + Debug>(make: impl Fn(Quota) -> A, quota: impl Fn(&mut Xorshift) -> Quota) {
    let mut random = Xorshift::seeded();
    let mut server = ManualServer::new(&ALL);
    let mut steps = 0;
    let mut batch = 0;
    let mut rejections = 0_u64;
    let mut admitted = 0_u64;
    let mut refunds = 0_u64;
    let count = steps_per_algorithm();
    let mut trace = Trace::of(usize::try_from(count / BATCH).unwrap());
    while trace.goes_on([
        ("steps", steps >= count),
        ("admitted requests", admitted > count / 10),
        ("rejected requests", rejections > count / 10),
        ("refunds", refunds > count / 100),
    ]) {
        let algorithm = make(quota(&mut random));
        if algorithm.fits().is_err() {
            continue;
        }
        let quota = algorithm.quota();
        let max = algorithm.max_cost();
        let mut states: HashMap<u64, A::State> = HashMap::new();
        let mut charges: Vec<(u64, u64, Receipt)> = Vec::new();
        let mut expected = Vec::new();
        let mut now = START + random.below(1 << 50);
        for _ in 0..BATCH {
            now = later(&mut random, now, &quota);
            let id = random.below(KEYS);
            let name = key(batch * KEYS + id);
            if random.below(8) == 0 && !charges.is_empty() {
                let index =
                    if random.below(2) == 0 { charges.len() - 1 } else { random.below(charges.len() as u64) as usize };
                let (id, cost, receipt) = charges.swap_remove(index);
                let call = refund(&algorithm, &algorithm, key(batch * KEYS + id), cost, receipt, at(now)).unwrap();
                server.add(now, &call);
                server.add_expiry(&call.keys[0]);
                let mut is_owed = false;
                let is_read =
                    |state: &&mut A::State| A::REFUND_CORRECTS || algorithm.clamped(**state, at(now)) == **state;
                if let Some(state) = states.get_mut(&id).filter(is_read) {
                    *state = algorithm.clamped(*state, at(now));
                    let before = algorithm.refund(*state, at(now), 0, receipt);
                    let after = algorithm.refund(*state, at(now), cost, receipt);
                    is_owed = before != after && !algorithm.is_over(&before, at(now));
                    if is_owed {
                        *state = after;
                        if algorithm.is_nothing(&after, at(now)) {
                            states.remove(&id);
                        }
                        refunds += 1;
                    }
                }
                expected.push((now, Expected::Refund { is_owed }, states.get(&id).copied()));
                continue;
            }
            let cost = cost(&mut random, max);
            let count = if random.below(4) == 0 { 1 + random.below(5) as u32 } else { 1 };
            // The caller's clock is wrong by up to five hours.
            let asked = at(now + random.below(36_000_000_000) - 18_000_000_000);
            server.add(now, &decide(&algorithm, name.clone(), cost, count, asked));
            server.add_expiry(&name);
            let mut state = states.get(&id).map(|state| algorithm.clamped(*state, at(now)));
            if let Some(state) = state.filter(|_| (1..=max).contains(&cost)) {
                states.insert(id, state);
            }
            let mut decisions = Vec::new();
            for _ in 0..count {
                let (decision, next) = algorithm.decide(state, at(now), cost);
                if let Some(next) = next {
                    state = Some(next);
                    states.insert(id, next);
                    charges.push((id, cost, decision.receipt()));
                    admitted += 1;
                } else {
                    rejections += 1;
                }
                decisions.push(decision);
            }
            expected.push((now, Expected::Decisions { cost, decisions }, states.get(&id).copied()));
        }
        let answers = server.answers_and_expiries();
        for (step, ((answer, expiry), (now, expected, state))) in answers.iter().zip(expected).enumerate() {
            let context = || format!("{algorithm:?}, batch {batch}, step {step}, {answer:?}");
            assert_eq!(answer.now, at(now));
            match expected {
                Expected::Decisions { cost, decisions } => {
                    let count = u32::try_from(decisions.len()).unwrap();
                    let found = answer.replay(&algorithm, cost, count);
                    let found = found.as_ref().map(|(decisions, _)| &decisions[..]);
                    assert_eq!(found, Ok(&decisions[..]), "cost {cost}, {}", context());
                }
                Expected::Refund { is_owed } => assert_eq!(answer.admitted, u32::from(is_owed), "{}", context()),
            }
            assert!(lives_as_long(&algorithm, state.as_ref(), *expiry), "{expiry} for {state:?}, {}", context());
        }
        steps += BATCH;
        batch += 1;
    }
    println!("{admitted} admitted, {rejections} not, {refunds} refunded");
}

#[test]
pub(super) fn token_buckets_agree() {
    check_traces(TokenBucket::new, bucket_quota);
}

#[test]
pub(super) fn fixed_windows_agree() {
    check_traces(FixedWindow::new, window_quota);
}

#[test]
pub(super) fn sliding_windows_agree() {
    check_traces(SlidingWindow::new, window_quota);
}

/// Three keys with different algorithms are charged together or not at all. A cost of 0 only reads.
#[test]
pub(super) fn several_are_charged_all_or_none() {
    let mut random = Xorshift::seeded();
    let mut server = ManualServer::new(&ALL);
    let mut batch = 0;
    let mut charged = 0;
    let mut rejected = 0;
    let mut trace = Trace::of(50);
    while trace.goes_on([
        ("batches", batch >= 50),
        ("charged requests", charged > 500),
        ("rejected requests", rejected > 500),
    ]) {
        let quotas = [(); 3].map(|()| window_quota(&mut random));
        let bucket = TokenBucket::new(quotas[0].burst(random.pick(&EDGES)));
        let fixed = FixedWindow::new(quotas[1]);
        let sliding = SlidingWindow::new(quotas[2]);
        if bucket.fits().and(fixed.fits()).and(sliding.fits()).is_err() {
            continue;
        }
        let mut first = None;
        let mut second = None;
        let mut third = None;
        let keys = ["bucket", "fixed", "sliding"].map(|name| key(format!("{name} {batch}")));
        let mut now = START + random.below(1 << 50);
        let mut expected = Vec::new();
        for _ in 0..BATCH {
            // Time never goes back here, because the traces with one key cover the correction of states.
            now = now.max(later(&mut random, now, &quotas[batch % 3]));
            let costs = [bucket.max_cost(), fixed.max_cost(), sliding.max_cost()].map(|max| cost(&mut random, max));
            let [a, b, c] = keys.clone();
            server.add(
                now,
                &decide_all([
                    ScriptCharge::new(&bucket, a, costs[0], at(now)),
                    ScriptCharge::new(&fixed, b, costs[1], at(now)),
                    ScriptCharge::new(&sliding, c, costs[2], at(now)),
                ]),
            );
            let (one, next_first) = bucket.decide(first, at(now), costs[0]);
            let (two, next_second) = fixed.decide(second, at(now), costs[1]);
            let (three, next_third) = sliding.decide(third, at(now), costs[2]);
            let are_allowed = [one, two, three].iter().all(Decision::is_allowed);
            if are_allowed {
                first = next_first.or(first);
                second = next_second.or(second);
                third = next_third.or(third);
                charged += 1;
            } else {
                rejected += 1;
            }
            expected.push((costs, [one, two, three], are_allowed));
        }
        for (answer, (costs, decisions, are_allowed)) in server.answers().iter().zip(expected) {
            let found = [
                answer.decision(&bucket, 0, costs[0]).unwrap(),
                answer.decision(&fixed, 1, costs[1]).unwrap(),
                answer.decision(&sliding, 2, costs[2]).unwrap(),
            ];
            assert_eq!(found, decisions, "{bucket:?} {fixed:?} {sliding:?} {answer:?}");
            assert_eq!(answer.charged(are_allowed.into()), Ok(()));
        }
        let [a, b, c] = keys.map(|key| server.expiry(&key));
        assert!(lives_as_long(&bucket, first.as_ref(), a), "{a} for {first:?}, {bucket:?}");
        assert!(lives_as_long(&fixed, second.as_ref(), b), "{b} for {second:?}, {fixed:?}");
        assert!(lives_as_long(&sliding, third.as_ref(), c), "{c} for {third:?}, {sliding:?}");
        batch += 1;
    }
    println!("{charged} charged, {rejected} not");
}

/// Months, weeks and days, by the clocks of Berlin.
#[test]
pub(super) fn windows_of_the_calendar_agree() {
    const DAY: u64 = 86_400_000_000_000;
    let quota = |random: &mut Xorshift| {
        let limit = window_quota(random).limit();
        Quota::per(limit, Duration::from_nanos(random.pick(&[1, 7, 28]) * DAY))
    };
    let make = |quota: Quota| {
        let window = match quota.period().as_secs() / 86_400 {
            1 => CalendarWindow::daily(quota.limit()),
            7 => CalendarWindow::weekly(quota.limit()),
            _ => CalendarWindow::monthly(quota.limit()).anchor(31),
        };
        window.zone("Europe/Berlin").unwrap()
    };
    check_traces(make, quota);
}
