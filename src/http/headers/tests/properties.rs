//! Properties that hold for all quotas, names and decisions.

use std::cmp::Ordering;

use proptest::prelude::*;

use super::bucket::{Bucket, LARGEST, LONGEST_WAIT, NANOS};
use super::*;
use crate::http::headers::partition::Mark;
use crate::util::cases::cases;
use crate::values::{PartitionKey, Quota};

/// For `pk`. A writer with a secret does not intern constants, whose number per process is bounded, and other tests
/// need them.
const SECRET: [u8; 16] = [1; 16];

fn quota() -> impl Strategy<Value = Quota> {
    let limit = prop_oneof![3 => 1..20_u64, 2 => 1..1_000_000_u64, 1 => 1..=Quota::MAX_UNITS];
    let seconds = |seconds: u64| Just(Duration::from_secs(seconds));
    let period = prop_oneof![
        6 => prop_oneof![seconds(1), seconds(10), seconds(60), seconds(3_600), seconds(86_400)],
        2 => (1..100_000_u64).prop_map(Duration::from_millis),
        2 => (1..90_000_000_000_000_u64).prop_map(Duration::from_nanos),
    ];
    let burst = prop_oneof![Just(None), (1..30_u64).prop_map(Some), (1..=Quota::MAX_UNITS).prop_map(Some)];
    (limit, period, burst).prop_map(|(limit, period, burst)| {
        let quota = Quota::per(limit, period);
        // Decisions keep times up to 584 million years.
        let periods = Duration::from_millis(u64::MAX / 2).as_nanos() / period.as_nanos();
        let longest = u64::try_from(periods.saturating_mul(limit.into())).unwrap_or(u64::MAX);
        burst.map_or(quota, |burst| quota.burst(burst.min(longest)))
    })
}

/// A writer for draft-11's fields with one policy.
fn writer_of_one(terms: Terms) -> Arc<Writer> {
    writer_of(&RateLimitFields::draft11().partition_key_by(SECRET), &[("p", terms)])
}

/// The numbers in draft-11's fields for one policy.
#[derive(Clone, Copy, Debug)]
struct Sent {
    q: u128,
    w: u128,
    r: u128,
    t: Option<u128>,
}

impl Sent {
    fn computed(writer: &Writer, decision: &Decision) -> Self {
        let mut fields = HeaderMap::new();
        writer.write(StatusCode::OK, &mut fields, [reading(0, decision)].into_iter(), at_2026);
        let only_member = |name: HeaderName, keys: &[&str], required| {
            let members = numbers(fields[name].to_str().unwrap(), keys, required).unwrap();
            let [(_, parameters)] = &members[..] else { panic!("not one policy: {members:?}") };
            parameters.iter().copied().map(u128::from).collect::<Vec<_>>()
        };
        let policy = only_member(RATELIMIT_POLICY, POLICY, 2);
        let state = only_member(RATELIMIT, STATE, 1);
        Self { q: policy[0], w: policy[1], r: state[0], t: state.get(1).copied() }
    }

    /// Compares the advertised rate, q / w, with the quota's.
    fn compare_rate(&self, quota: &Quota) -> Ordering {
        let advertised = self.q * quota.period().as_nanos();
        let enforced = u128::from(quota.limit()) * self.w * NANOS;
        advertised.cmp(&enforced)
    }

    /// Whether a client that takes the remaining units in `t` seconds is faster than the advertised rate.
    fn invites_too_much(&self, t: u128) -> bool {
        self.r * self.w > self.q * t
    }
}

/// A quota, and requests to a bucket with it.
#[derive(Debug)]
struct Trace {
    quota: Quota,
    requests: Vec<Request>,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    /// The time since the previous request, in nanoseconds.
    after: u64,
    cost: u64,
}

/// A request that the oracle has decided, and the fields that were sent.
struct Answered {
    now: u64,
    cost: u64,
    bucket: Bucket,
    decision: Decision,
    sent: Sent,
}

/// Waits and costs in proportion to a bucket's interval and burst, so that all states occur.
fn trace() -> impl Strategy<Value = Trace> {
    quota().prop_flat_map(|quota| {
        let period = u64::try_from(quota.period().as_nanos()).unwrap();
        let interval = period / quota.limit();
        let after = prop_oneof![4 => Just(0), 2 => 0..=interval * 2, 1 => Just(interval), 1 => 0..=period];
        let burst = quota.max_burst();
        let cost = prop_oneof![6 => 1..=3_u64, 1 => Just(0), 2 => 0..=burst, 1 => Just(burst), 1 => Just(burst - 1)];
        let request = (after, cost).prop_map(|(after, cost)| Request { after, cost });
        prop::collection::vec(request, 1..30).prop_map(move |requests| Trace { quota, requests })
    })
}

impl Trace {
    fn replay(&self) -> Vec<Answered> {
        let writer = writer_of_one(Terms::bucket(self.quota));
        let (mut bucket, mut now) = (Bucket::new(self.quota), 0);
        let answer = |&Request { after, cost }: &Request| {
            now += after;
            let decision = bucket.decide(now, cost);
            Answered { now, cost, bucket, decision, sent: Sent::computed(&writer, &decision) }
        };
        self.requests.iter().map(answer).collect()
    }

    fn admissions(&self) -> impl Iterator<Item = Answered> + use<> {
        self.replay().into_iter().filter(|answered| answered.decision.is_allowed())
    }

    fn rejections(&self) -> impl Iterator<Item = Answered> + use<> {
        self.replay().into_iter().filter(|answered| !answered.decision.is_allowed())
    }
}

/// A policy, and a decision on it that any limiter might make.
#[derive(Debug)]
struct Decided {
    name: String,
    terms: Terms,
    decision: Decision,
    is_marked: bool,
}

fn decided() -> impl Strategy<Value = Decided> {
    let shapes: [fn(Quota) -> Terms; 3] = [Terms::bucket, Terms::fixed_window, Terms::sliding_window];
    let terms = (quota(), prop::sample::select(shapes.to_vec())).prop_map(|(quota, terms_of)| terms_of(quota));
    ("[ -~]{1,20}", terms, decision(), any::<bool>()).prop_map(|(name, terms, decision, is_marked)| Decided {
        name,
        terms,
        decision,
        is_marked,
    })
}

fn decision() -> impl Strategy<Value = Decision> {
    let nanos = || any::<u64>().prop_map(Duration::from_nanos);
    let limit_and_left = || (any::<u64>(), any::<u64>()).prop_map(|(a, b)| (a.max(b), a.min(b)));
    let allow = (limit_and_left(), nanos())
        .prop_map(|((limit, left), next)| Decision::allow(limit, left).with_next_after(next));
    let reject = (limit_and_left(), prop::option::of(nanos()))
        .prop_map(|((limit, left), wait)| Decision::reject(limit, left, wait));
    (prop_oneof![allow, reject], nanos()).prop_map(|(decision, reset)| decision.with_reset_after(reset))
}

fn announced(policies: &[Decided]) -> Vec<(&str, Terms)> {
    policies.iter().map(|policy| (policy.name.as_str(), policy.terms)).collect()
}

/// Returns the policies' readings, with this mark on the policies that have one.
fn readings(policies: &[Decided], mark: Option<Mark>) -> impl Iterator<Item = PolicyReading<'_>> + Clone {
    policies.iter().enumerate().map(move |(policy, Decided { decision, is_marked, .. })| PolicyReading {
        policy,
        decision,
        quota: None,
        mark: mark.filter(|_| *is_marked),
    })
}

proptest! {
    #![proptest_config(cases(if cfg!(miri) { 8 } else { 2_000 }))]

    #[test]
    fn advertised_rate_never_exceeds_quota(quota in quota()) {
        for terms in [Terms::bucket(quota), Terms::fixed_window(quota), Terms::sliding_window(quota)] {
            let sent = Sent::computed(&writer_of_one(terms), &Decision::allow(1, 1));
            prop_assert!(sent.w >= 1 && sent.compare_rate(&quota).is_le(), "{terms:?}: {sent:?}");
        }
    }

    #[test]
    fn a_buckets_quota_holds_its_burst(quota in quota()) {
        let sent = Sent::computed(&writer_of_one(Terms::bucket(quota)), &Decision::allow(1, 1));
        prop_assert!(sent.q >= u128::from(quota.max_burst()) || sent.w == LARGEST, "{sent:?}");
    }

    #[test]
    fn admissions_advertise_the_oracles_numbers(trace in trace()) {
        for Answered { now, bucket, sent, .. } in trace.admissions() {
            let (left, within) = bucket.expected(now);
            prop_assert_eq!(sent.r, left);
            prop_assert!(sent.t.is_some_and(|t| within.contains(&t)), "{sent:?}, not within {within:?}");
        }
    }

    #[test]
    fn buckets_keep_to_the_advertised_rate(trace in trace()) {
        for Answered { sent, .. } in trace.admissions() {
            // This holds unless the rate was rounded down, or `t` is cut off.
            if let Some(t) = sent.t.filter(|t| sent.compare_rate(&trace.quota).is_eq() && *t < LARGEST) {
                prop_assert!(!sent.invites_too_much(t), "{sent:?}");
            }
        }
    }

    #[test]
    fn rejections_advertise_the_wait_rounded_up(trace in trace()) {
        for Answered { decision, sent, .. } in trace.rejections() {
            let seconds = |wait: Duration| wait.as_nanos().div_ceil(NANOS).clamp(1, LONGEST_WAIT);
            prop_assert_eq!((sent.r, sent.t), (0, decision.retry_after().map(seconds)));
        }
    }

    #[test]
    fn lone_waiting_clients_are_admitted(trace in trace()) {
        for Answered { now, cost, mut bucket, sent, .. } in trace.rejections() {
            if let Some(wait) = sent.t.filter(|wait| *wait < LONGEST_WAIT) {
                let then = now + u64::try_from(wait * NANOS).unwrap();
                prop_assert!(bucket.decide(then, cost).is_allowed(), "{sent:?}");
            }
        }
    }

    /// A client that spreads a sliding window's remaining units over the advertised time keeps to its rate.
    #[test]
    fn sliding_windows_keep_to_their_rate(quota in quota(), left in 1..Quota::MAX_UNITS, reset: u32) {
        let left = left % quota.limit() + 1;
        let decision = Decision::allow(quota.limit(), left).with_reset_after(Duration::from_millis(reset.into()));
        let sent = Sent::computed(&writer_of_one(Terms::sliding_window(quota)), &decision);
        prop_assert_eq!(sent.r, u128::from(left));
        let t = sent.t.expect("an admission has a `t`");
        if sent.compare_rate(&quota).is_eq() {
            prop_assert!(!sent.invites_too_much(t), "{sent:?}");
            prop_assert!(t == 1 || sent.invites_too_much(t - 1), "longer than it takes: {sent:?}");
        }
    }

    #[test]
    fn draft11_is_written_canonically(policies in prop::collection::vec(decided(), 1..4)) {
        let announced = announced(&policies);
        let writer = writer_of(&RateLimitFields::draft11().partition_key_by(SECRET), &announced);
        let mark = writer.mark(&PartitionKey::from("alice"));
        let mut fields = HeaderMap::new();
        writer.write(StatusCode::OK, &mut fields, readings(&policies, mark), at_2026);
        for (name, allowed) in [(RATELIMIT, ["r", "t", "pk"].as_slice()), (RATELIMIT_POLICY, ["q", "w"].as_slice())] {
            let text = fields[&name].to_str().unwrap();
            let members = members(text);
            prop_assert!(members.is_some(), "{text}");
            let members = members.unwrap();
            let names: Vec<_> = members.iter().map(|(name, _)| name.as_str()).collect();
            let expected: Vec<_> = announced.iter().map(|(name, _)| *name).collect();
            prop_assert_eq!(names, expected);
            for (_, parameters) in members {
                let keys: Vec<_> = parameters.iter().map(|(key, _)| key.as_str()).collect();
                let in_order: Vec<_> = allowed.iter().copied().filter(|key| keys.contains(key)).collect();
                prop_assert_eq!(&keys, &in_order);
                prop_assert_eq!(keys[0], allowed[0]);
            }
        }
    }

    #[test]
    fn older_fields_are_written_canonically(policies in prop::collection::vec(decided(), 1..4)) {
        let fields = RateLimitFields::draft07().x_ratelimit(ResetForm::EpochSeconds);
        let mut older = HeaderMap::new();
        let writer = writer_of(&fields, &announced(&policies));
        writer.write(StatusCode::OK, &mut older, readings(&policies, None), at_2026);
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
