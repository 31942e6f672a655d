//! Properties that hold for all quotas, names and decisions.

use proptest::prelude::*;

use super::bucket::Bucket;
use super::*;
use crate::values::{PartitionKey, Quota};

const NANOS: u128 = 1_000_000_000;

fn quota() -> impl Strategy<Value = Quota> {
    let limit = prop_oneof![3 => 1..20_u32, 2 => 1..1_000_000_u32, 1 => any::<u32>().prop_map(|limit| limit.max(1))];
    let seconds = |seconds: u64| Just(Duration::from_secs(seconds));
    let period = prop_oneof![
        6 => prop_oneof![seconds(1), seconds(10), seconds(60), seconds(3_600), seconds(86_400)],
        2 => (1..100_000_u64).prop_map(Duration::from_millis),
        2 => (1..90_000_000_000_000_u64).prop_map(Duration::from_nanos),
    ];
    let burst = prop_oneof![Just(None), (1..30_u32).prop_map(Some), any::<u32>().prop_map(|burst| Some(burst.max(1)))];
    (limit, period, burst).prop_map(|(limit, period, burst)| {
        let quota = Quota::new(limit, period).unwrap();
        burst.map_or(quota, |burst| quota.burst(burst))
    })
}

/// Waits and costs in proportion to a bucket's interval and burst, so that all states occur.
fn trace(quota: Quota) -> impl Strategy<Value = Vec<(u64, u32)>> {
    let period = u64::try_from(quota.period().as_nanos()).unwrap();
    let interval = period / u64::from(quota.limit());
    let pass = prop_oneof![4 => Just(0), 2 => 0..=interval * 2, 1 => Just(interval), 1 => 0..=period];
    let burst = quota.max_burst();
    let cost = prop_oneof![6 => 1..=3_u32, 1 => Just(0), 2 => 0..=burst, 1 => Just(burst), 1 => Just(burst - 1)];
    prop::collection::vec((pass, cost), 1..30)
}

fn is_exact(quota: &Quota, q: u64, w: u64) -> bool {
    u128::from(q) * quota.period().as_nanos() == u128::from(quota.limit()) * u128::from(w) * NANOS
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// For every trace of a bucket, its fields can be parsed, are true, and have the numbers of the oracle.
    #[test]
    fn the_fields_of_a_bucket_are_true_and_those_of_the_oracle(
        (quota, trace) in quota().prop_flat_map(|quota| (Just(quota), trace(quota))),
        name in "[ -~]{1,20}",
    ) {
        let writer = writer_of(&RateLimitFields::draft11(), &[(&name, Terms::bucket(quota))]);
        let mut bucket = Bucket::new(quota);
        let mut now = 0_u64;
        for (pass, cost) in trace {
            now += pass;
            let decision = bucket.decide(now, cost);
            let mut fields = HeaderMap::new();
            writer.write(StatusCode::OK, &mut fields, [reading(0, &decision)].into_iter(), at_2026);

            let text = |name: HeaderName| fields[name].to_str().unwrap().to_owned();
            let policy = numbers(&text(RATELIMIT_POLICY), POLICY, 2).unwrap();
            let state = numbers(&text(RATELIMIT), STATE, 1).unwrap();
            prop_assert_eq!((policy.len(), state.len()), (1, 1));
            prop_assert!(policy[0].0 == name && state[0].0 == name, "{:?}", state);
            let (q, w) = (policy[0].1[0], policy[0].1[1]);
            let (r, t) = (state[0].1[0], state[0].1.get(1).copied());

            // The rate is never more than what is enforced, and the burst fits in.
            let (limit, period) = (u128::from(quota.limit()), quota.period().as_nanos());
            prop_assert!(w >= 1 && u128::from(q) * period <= limit * u128::from(w) * NANOS);
            prop_assert!(q >= u64::from(quota.max_burst()) || w == 999_999_999_999_999);
            prop_assert!(r <= u64::from(decision.remaining()));
            match (decision.is_allowed(), t) {
                (true, Some(t)) => {
                    let (left, within) = bucket.expected(now);
                    prop_assert_eq!(u128::from(r), left);
                    // A state may be advertised a tick of its store too early, which is nearly always the same second.
                    let full = u128::from(quota.max_burst()) * period / limit;
                    let free = full.saturating_sub(decision.reset_after().as_nanos());
                    let earliest = free.saturating_sub((full >> 32) + 2).div_ceil(NANOS);
                    let (t, most) = (u128::from(t), 999_999_999_999_999);
                    // A `Decision` keeps a reset of more than 584 years in milliseconds, rounded up: with none left, that can
                    // add a second.
                    let is_coarse = decision.reset_after().as_nanos() > u128::from(u64::MAX);
                    let is_rounded_up = is_coarse && left == 0 && t == within + 1;
                    prop_assert!(t <= within.min(most) || is_rounded_up, "{t} > {within}");
                    prop_assert!(t >= within.min(most) || left > 0 && t >= earliest.min(most), "{t} < {within}");
                    if is_exact(&quota, q, w) && t < most {
                        prop_assert!(u128::from(r) * u128::from(w) <= u128::from(q) * t);
                    }
                }
                (true, None) => prop_assert!(false, "an admission has a `t`"),
                (false, t) => {
                    prop_assert_eq!(r, 0);
                    prop_assert_eq!(t, decision.retry_after().map(retry_after_seconds));
                    // A lone client that waits for the advertised time is admitted.
                    if let Some(wait) = t.filter(|wait| *wait < 2_147_483) {
                        let mut later = Bucket { quota, paid_at: bucket.paid_at };
                        prop_assert!(later.decide(now + wait * 1_000_000_000, cost).is_allowed());
                    }
                }
            }
        }
    }

    /// A client that spreads what a sliding window has left over the advertised time keeps to its rate.
    #[test]
    fn sliding_windows_invite_no_more_than_their_rate(quota in quota(), left in 1..u32::MAX, reset: u32) {
        let left = left % quota.limit() + 1;
        let writer = writer_of(&RateLimitFields::draft11(), &[("p", Terms::sliding_window(quota))]);
        let decision = Decision::allow(quota.limit(), left).with_reset_after(Duration::from_millis(reset.into()));
        let mut fields = HeaderMap::new();
        writer.write(StatusCode::OK, &mut fields, [reading(0, &decision)].into_iter(), at_2026);
        let policy = numbers(fields[RATELIMIT_POLICY].to_str().unwrap(), POLICY, 2).unwrap();
        let state = numbers(fields[RATELIMIT].to_str().unwrap(), STATE, 2).unwrap();
        let (q, w, r, t) = (policy[0].1[0], policy[0].1[1], state[0].1[0], state[0].1[1]);
        prop_assert_eq!(r, u64::from(left));
        prop_assert!(u128::from(q) * quota.period().as_nanos() <= u128::from(quota.limit()) * u128::from(w) * NANOS);
        if is_exact(&quota, q, w) {
            prop_assert!(u128::from(r) * u128::from(w) <= u128::from(q) * u128::from(t));
            // And no longer than it takes.
            prop_assert!(t == 1 || u128::from(r) * u128::from(w) > u128::from(q) * u128::from(t - 1));
        }
    }

    /// Any decision of any limiter, in any generation, is written canonically and can be parsed.
    #[test]
    fn every_decision_is_written_canonically(
        policies in prop::collection::vec((
            ("[ -~]{1,12}", quota(), 0..3_u8),
            (any::<bool>(), any::<u32>(), any::<u32>()),
            (any::<u64>(), any::<Option<u64>>(), any::<u64>(), any::<bool>()),
        ), 1..4),
    ) {
        let terms = |quota: Quota, shape: u8| match shape {
            0 => Terms::bucket(quota),
            1 => Terms::fixed_window(quota),
            _ => Terms::sliding_window(quota),
        };
        let announced: Vec<_> =
            policies.iter().map(|((name, quota, shape), ..)| (name.as_str(), terms(*quota, *shape))).collect();
        let decisions: Vec<_> = policies.iter().map(|(_, (allow, limit, left), (reset, wait, next, _))| {
            let (limit, left) = (*limit.max(left), *limit.min(left));
            let decision = if *allow {
                Decision::allow(limit, left).with_next_after(Duration::from_nanos(*next))
            } else {
                Decision::deny(limit, left, wait.map(Duration::from_nanos))
            };
            decision.with_reset_after(Duration::from_nanos(*reset))
        }).collect();
        let fields = RateLimitFields::draft11().partition_key_by([1; 16]);
        let draft11 = writer_of(&fields, &announced);
        let readings = || policies.iter().zip(&decisions).enumerate().map(|(index, ((_, _, (.., marked)), decision))| {
            let mark = if *marked { draft11.mark(&PartitionKey::from(index as u64)) } else { None };
            Reading { policy: index, decision, mark }
        });

        let mut fields = HeaderMap::new();
        draft11.write(StatusCode::OK, &mut fields, readings(), at_2026);
        for name in [RATELIMIT, RATELIMIT_POLICY] {
            let text = fields[&name].to_str().unwrap();
            let members = members(text);
            prop_assert!(members.is_some(), "{text}");
            let members = members.unwrap();
            let names: Vec<_> = members.iter().map(|(name, _)| name.as_str()).collect();
            let expected: Vec<_> = announced.iter().map(|(name, _)| *name).collect();
            prop_assert_eq!(names, expected);
            let allowed = if name == RATELIMIT { ["r", "t", "pk"].as_slice() } else { &["q", "w"] };
            for (_, parameters) in members {
                let keys: Vec<_> = parameters.iter().map(|(key, _)| key.as_str()).collect();
                let in_order: Vec<_> = allowed.iter().copied().filter(|key| keys.contains(key)).collect();
                prop_assert_eq!(&keys, &in_order);
                prop_assert_eq!(keys[0], allowed[0]);
            }
        }

        let fields = RateLimitFields::draft07().x_rate_limit(ResetForm::EpochSeconds);
        let mut older = HeaderMap::new();
        writer_of(&fields, &announced).write(StatusCode::OK, &mut older, readings(), at_2026);
        for (name, value) in &older {
            let text = value.to_str().unwrap();
            let canonical = if name == RATELIMIT {
                sfv::Dictionary::parse(Parser::new(text)).unwrap().serialize()
            } else {
                List::parse(Parser::new(text)).unwrap().serialize()
            };
            prop_assert_eq!(canonical.as_deref(), Some(text));
        }
    }
}
