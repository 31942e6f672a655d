//! The fields as clients see them, read back by a parser that is not ours.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use proptest::prelude::*;
use serde_json::Value;
use sfv::{BareItem, FieldType, GenericBareItem, List, ListEntry, Parser};

use super::decimal::{Scratch, value_of};
use super::measure::{Advertised, Level};
use super::*;
use crate::decision::Decision;
use crate::partition::PartitionKey;
use crate::quota::Quota;
use crate::terms::Terms;

const NANOS: u128 = 1_000_000_000;

/// A bucket as one would explain it: a number of nanoseconds times `limit`, that runs down with time.
struct Bucket {
    quota: Quota,
    paid_at: u128,
}

impl Bucket {
    const fn new(quota: Quota) -> Self {
        Self { quota, paid_at: 0 }
    }

    fn interval(&self) -> u128 {
        self.quota.period().as_nanos()
    }

    fn units(&self, nanos: u64) -> u128 {
        u128::from(nanos) * u128::from(self.quota.limit())
    }

    fn decide(&mut self, now: u64, cost: u32) -> Decision {
        let (now, limit) = (self.units(now), u128::from(self.quota.limit()));
        let capacity = u128::from(self.quota.max_burst()) * self.interval();
        let after = self.paid_at.saturating_sub(now) + u128::from(cost) * self.interval();
        let span = |units: u128| {
            let nanos = units.div_ceil(limit);
            Duration::new(u64::try_from(nanos / NANOS).unwrap(), u32::try_from(nanos % NANOS).unwrap())
        };
        let is_allowed = after <= capacity;
        if is_allowed {
            self.paid_at = now + after;
        }
        let debt = self.paid_at.saturating_sub(now);
        let left = u32::try_from((capacity - debt) / self.interval()).unwrap();
        let burst = self.quota.max_burst();
        let decision = if is_allowed {
            Decision::allow(burst, left)
        } else {
            Decision::deny(burst, left, (cost <= burst).then(|| span(after - capacity)))
        };
        decision.with_reset_after(span(debt))
    }

    /// REQ-14 word for word: the r and t of an admission.
    fn told(&self, now: u64) -> (u128, u128) {
        let second = NANOS * u128::from(self.quota.limit());
        let capacity = u128::from(self.quota.max_burst()) * self.interval();
        let free = capacity - self.paid_at.saturating_sub(self.units(now));
        match free / self.interval() {
            0 => (0, (self.interval() - free).div_ceil(second).max(1)),
            left => (left, free.div_ceil(second)),
        }
    }
}

fn writer(fields: &RateLimitFields, policies: &[(&str, Terms)]) -> Writer {
    Writer::new(fields, policies.iter().map(|(name, terms)| (*name, Some(*terms))))
}

fn reading(policy: usize, decision: &Decision) -> Reading<'_> {
    Reading { policy, decision, next_after: None, mark: None }
}

fn at_2026() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_790_000_000)
}

/// All fields that a response of this status and with these lines has in the end.
fn written(writer: &Writer, status: u16, lines: &[(&'static str, &'static str)], readings: &[Reading<'_>]) -> String {
    let mut fields = HeaderMap::new();
    for (name, value) in lines {
        fields.append(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    writer.write(StatusCode::from_u16(status).unwrap(), &mut fields, readings.iter().copied(), at_2026);
    listed(&fields)
}

/// `name: value; name: value`, by name.
pub(super) fn listed(fields: &HeaderMap) -> String {
    let mut lines: Vec<_> = fields.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
    lines.sort_unstable();
    lines.into_iter().map(|(name, value)| format!("{name}: {value}")).collect::<Vec<_>>().join("; ")
}

type Parameters = Vec<(String, BareItem)>;

/// The members of a list of Strings with parameters, if that is what `value` is, written as it should be.
fn members(value: &str) -> Option<Vec<(String, Parameters)>> {
    let list: List = Parser::new(value).parse().ok()?;
    if list.serialize()? != value {
        return None;
    }
    list.into_iter()
        .map(|entry| match entry {
            ListEntry::Item(item) => {
                let parameters = item.params.into_iter().map(|(key, value)| (key.to_string(), value)).collect();
                Some((item.bare_item.as_string()?.as_str().to_owned(), parameters))
            }
            ListEntry::InnerList(_) => None,
        })
        .collect()
}

/// A member of numbers: its name, and its parameters by these keys in this order; of the last ones, any
/// number may be missing.
fn numbers(value: &str, keys: &[&str], required: usize) -> Option<Vec<(String, Vec<u64>)>> {
    let number = |value: &BareItem| match value {
        GenericBareItem::Integer(number) => u64::try_from(i64::from(*number)).ok(),
        _ => None,
    };
    members(value)?
        .into_iter()
        .map(|(name, parameters)| {
            let in_order = parameters.iter().zip(keys).all(|((key, _), expected)| key == expected);
            let fits = in_order && (required..=keys.len()).contains(&parameters.len());
            let numbers = parameters.iter().map(|(_, value)| number(value)).collect::<Option<Vec<_>>>()?;
            fits.then_some((name, numbers))
        })
        .collect()
}

const POLICY: &[&str] = &["q", "w"];
const STATE: &[&str] = &["r", "t"];

fn vectors(text: &str) -> Vec<Value> {
    serde_json::from_str::<Value>(text).unwrap().as_array().unwrap().clone()
}

/// `vectors/gcra_sequences.json`: whole conversations, worked out independently.
#[test]
fn the_published_sequences_are_told_to_the_letter() {
    let nanos = |text: &str| {
        let (whole, part) = text.split_once('.').unwrap_or((text, ""));
        whole.parse::<u64>().unwrap() * 1_000_000_000 + format!("{part:0<9}").parse::<u64>().unwrap()
    };
    let small = |value: &Value| u32::try_from(value.as_u64().unwrap()).unwrap();
    let mut steps = 0;
    for sequence in vectors(include_str!("../../tests/vectors/gcra_sequences.json")) {
        let period = Duration::from_secs(small(&sequence["rate"][1]).into());
        let quota = Quota::new(small(&sequence["rate"][0]), period).unwrap().burst(small(&sequence["burst"]));
        let fields = RateLimitFields::draft11().x_rate_limit(ResetForm::DeltaSeconds);
        let writer = writer(&fields, &[("default", Terms::bucket(quota))]);
        let mut bucket = Bucket::new(quota);
        for step in sequence["steps"].as_array().unwrap() {
            let context = format!("{} at {}", sequence["name"], step["at"]);
            let decision = bucket.decide(nanos(step["at"].as_str().unwrap()), 1);
            let mut fields = HeaderMap::new();
            let status = if decision.is_allowed() { StatusCode::OK } else { StatusCode::TOO_MANY_REQUESTS };
            writer.write(status, &mut fields, [reading(0, &decision)].into_iter(), at_2026);
            if let Some(wait) = decision.retry_after() {
                WaitFields::new().write(&mut fields, wait, at_2026);
            }

            assert_eq!(u64::from(status.as_u16()), step["status"].as_u64().unwrap(), "{context}");
            let told = |name: &str| fields.get(name).map(|value| value.to_str().unwrap());
            assert_eq!(told("ratelimit-policy"), sequence["ratelimit_policy"].as_str(), "{context}");
            assert_eq!(told("ratelimit"), step["ratelimit"].as_str(), "{context}");
            assert_eq!(told("x-ratelimit-reset").unwrap(), step["reset_to_full"].to_string(), "{context}");
            assert_eq!(told("retry-after"), step["retry_after"].as_str(), "{context}");
            let exact = step["x_rate_limited_for_exact"].as_str().map(|exact| {
                let (top, bottom) = exact.split_once('/').unwrap_or((exact, "1"));
                let micros = (top.parse::<u64>().unwrap() * 1_000_000).div_ceil(bottom.parse().unwrap());
                format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000)
            });
            assert_eq!(told("x-rate-limited-for"), exact.as_deref(), "{context}");
            steps += 1;
        }
    }
    assert_eq!(steps, 40);
}

/// `vectors/draft11.json`: what the draft prints, we write in its canonical form.
#[test]
fn the_examples_of_the_draft_are_written_canonically() {
    let mut compared = 0;
    for example in vectors(include_str!("../../tests/vectors/draft11.json")) {
        let is_policy = example["field"] == "RateLimit-Policy";
        let canonical = example["canonical"].as_str().unwrap();
        assert!(members(canonical).is_some() || example["valid"] == false, "{canonical}");
        let keys = if is_policy { POLICY } else { STATE };
        // Those with other parameters than ours are left out.
        let Some(members) = numbers(canonical, keys, 1) else { continue };
        let mut out = Scratch::new();
        for (name, numbers) in members {
            let quoted = draft11::quoted(&name);
            if is_policy {
                let advertised = Advertised { quota: numbers[0], window: numbers[1] };
                draft11::push_policy(&mut out, &quoted, advertised, None);
            } else {
                let level = Level { left: u32::try_from(numbers[0]).unwrap(), within: numbers.get(1).copied() };
                draft11::push_state(&mut out, &draft11::prefix(&quoted), level, None);
            }
        }
        assert_eq!(value_of(&out), canonical);
        compared += 1;
    }
    assert_eq!(compared, 17);
}

/// `vectors/negative.json`: what our own output is held to below tells these apart from it.
#[test]
fn what_is_no_value_of_these_fields_is_recognised() {
    for example in vectors(include_str!("../../tests/vectors/negative.json")) {
        let value = example["value"].as_str().unwrap();
        let keys = if example["field"] == "RateLimit-Policy" { POLICY } else { STATE };
        let is_value = numbers(value, keys, 1).is_some_and(|members| !members.is_empty());
        assert!(!is_value, "{value}: {}", example["why"]);
        assert_eq!(List::parse(Parser::new(value)).is_ok(), example["sf_parses"] == true, "{value}");
    }
}

fn policy_of(terms: Terms, fields: RateLimitFields) -> String {
    let writer = writer(&fields, &[("p", terms)]);
    let decision = Decision::allow(1, 1);
    let all = written(&writer, 200, &[], &[reading(0, &decision)]);
    all.split("; ").find_map(|line| line.strip_prefix("ratelimit-policy: \"p\";")).unwrap().to_owned()
}

/// The table of REQ-15, windows that are no whole seconds, and what does not fit anywhere.
#[test]
fn a_policy_is_advertised_at_its_very_rate() {
    let quota = |limit, seconds| Quota::new(limit, Duration::from_secs(seconds)).unwrap();
    let millis = |limit, millis| Quota::new(limit, Duration::from_millis(millis)).unwrap();
    let nanos = |limit, nanos| Quota::new(limit, Duration::from_nanos(nanos)).unwrap();
    for (terms, expected) in [
        (Terms::bucket(quota(10, 10).burst(10)), "q=10;w=10"),
        (Terms::bucket(quota(1, 1).burst(5)), "q=5;w=5"),
        (Terms::bucket(quota(100, 1).burst(10)), "q=100;w=1"),
        (Terms::bucket(quota(5, 60).burst(5)), "q=5;w=60"),
        (Terms::bucket(quota(1, 3).burst(1)), "q=1;w=3"),
        (Terms::bucket(quota(5, 2).burst(1)), "q=5;w=2"),
        (Terms::bucket(quota(7, 3).burst(2)), "q=7;w=3"),
        (Terms::bucket(quota(1, 86_400).burst(1)), "q=1;w=86400"),
        (Terms::bucket(quota(10, 1).burst(20)), "q=20;w=2"),
        (Terms::bucket(millis(3, 250)), "q=12;w=1"),
        (Terms::bucket(millis(1, 1_500)), "q=2;w=3"),
        // 3.000000003 s: no whole window within an hour.
        (Terms::bucket(nanos(1, 3_000_000_003)), "q=1;w=4"),
        (Terms::bucket(nanos(u32::MAX, 1)), "q=999999999999999;w=1"),
        (Terms::bucket(quota(1, 86_400 * 36_500).burst(u32::MAX)), "q=317097;w=999999999999999"),
        (Terms::fixed_window(quota(100, 60)), "q=100;w=60"),
        (Terms::fixed_window(quota(5_000, 86_400)), "q=5000;w=86400"),
        (Terms::sliding_window(millis(100, 250)), "q=400;w=1"),
        (Terms::sliding_window(millis(100, 1_500)), "q=200;w=3"),
        (Terms::sliding_window(nanos(100, 3_000_000_003)), "q=100;w=4"),
        (Terms::sliding_window(nanos(7, 1)), "q=7000000000;w=1"),
    ] {
        assert_eq!(policy_of(terms, RateLimitFields::draft11()), expected, "{terms:?}");
    }
    let with_burst = |terms| policy_of(terms, RateLimitFields::draft11().burst());
    assert_eq!(with_burst(Terms::bucket(quota(100, 1).burst(10))), "q=100;w=1;sluice-burst=10");
    assert_eq!(with_burst(Terms::bucket(quota(1, 1).burst(5))), "q=5;w=5");
}

#[test]
fn windows_tell_when_they_end_or_how_long_what_is_left_has_to_last() {
    let state = |terms: Terms, decision: Decision, next_after: Option<u64>| {
        let writer = writer(&RateLimitFields::draft11(), &[("p", terms)]);
        let next_after = next_after.map(Duration::from_millis);
        assert!(next_after.is_none() || writer.wants_next(0, &decision));
        let state = writer.state([Reading { next_after, ..reading(0, &decision) }].into_iter()).unwrap();
        state.value.to_str().unwrap().to_owned()
    };
    let allow = |left, reset| Decision::allow(100, left).with_reset_after(Duration::from_millis(reset));
    let fixed = Terms::fixed_window(Quota::per_minute(100));
    assert_eq!(state(fixed, allow(99, 49_001), None), r#""p";r=99;t=50"#);
    assert_eq!(state(fixed, allow(0, 1), None), r#""p";r=0;t=1"#);
    // Nobody asked yet: no window runs.
    assert_eq!(state(fixed, allow(100, 0), None), r#""p";r=100;t=60"#);
    let sliding = Terms::sliding_window(Quota::per_minute(100));
    assert_eq!(state(sliding, allow(100, 0), None), r#""p";r=100;t=60"#);
    assert_eq!(state(sliding, allow(99, 119_000), None), r#""p";r=99;t=60"#);
    assert_eq!(state(sliding, allow(50, 119_000), None), r#""p";r=50;t=30"#);
    assert_eq!(state(sliding, allow(1, 119_000), None), r#""p";r=1;t=1"#);
    assert_eq!(state(sliding, allow(0, 119_000), Some(7_001)), r#""p";r=0;t=8"#);
    assert_eq!(state(sliding, allow(0, 119_000), Some(0)), r#""p";r=0;t=1"#);
    assert_eq!(state(sliding, allow(0, 119_001), None), r#""p";r=0;t=120"#);
    for terms in [fixed, sliding, Terms::bucket(Quota::per_minute(100))] {
        let deny = |wait| Decision::deny(100, 3, wait).with_reset_after(Duration::from_secs(50));
        assert_eq!(state(terms, deny(Some(Duration::from_millis(6_001))), None), r#""p";r=0;t=7"#);
        assert_eq!(state(terms, deny(Some(Duration::MAX)), None), r#""p";r=0;t=2147483"#);
        assert_eq!(state(terms, deny(None), None), r#""p";r=0"#);
    }
}

/// A store whose clock goes in ticks hands out a tick too much: 5 per minute, 4 left, and 48 seconds that
/// would have been rounded up to 49.
#[test]
fn a_tick_does_not_make_a_second() {
    let writer = writer(&RateLimitFields::draft11(), &[("p", Terms::bucket(Quota::per_minute(5)))]);
    let decision = Decision::allow(5, 4).with_reset_after(Duration::from_nanos(11_999_999_993));
    let state = writer.state([reading(0, &decision)].into_iter()).unwrap();
    assert_eq!(state.value, r#""p";r=4;t=48"#);
}

#[test]
fn all_policies_that_judged_are_listed_in_order() {
    let day = Terms::fixed_window(Quota::per_day(5_000));
    let second = Terms::bucket(Quota::per_second(10));
    let writer =
        Writer::new(&RateLimitFields::default(), [("per-second", Some(second)), ("hidden", None), ("day", Some(day))]);
    let (a, b) = (Decision::allow(10, 9), Decision::allow(5_000, 77).with_reset_after(Duration::from_secs(60)));
    let policy = r#"ratelimit-policy: "per-second";q=10;w=1, "day";q=5000;w=86400"#;
    assert_eq!(
        written(&writer, 200, &[], &[reading(0, &a), reading(1, &a), reading(2, &b)]),
        format!(r#"ratelimit: "per-second";r=9;t=1, "day";r=77;t=60; {policy}"#)
    );
    assert_eq!(written(&writer, 200, &[], &[reading(2, &b)]), format!(r#"ratelimit: "day";r=77;t=60; {policy}"#));
    // Judged by none that is advertised, or not at all.
    assert_eq!(written(&writer, 200, &[], &[reading(1, &a)]), "");
    assert_eq!(written(&writer, 200, &[], &[]), "");
    assert_eq!(written(&writer, 103, &[], &[reading(0, &a)]), "");
    // What a layer further in wrote stays in front.
    assert_eq!(
        written(
            &writer,
            200,
            &[("ratelimit", r#""in";r=0;t=9"#), ("ratelimit-policy", r#""in";q=1;w=9"#)],
            &[reading(2, &b)]
        ),
        r#"ratelimit: "in";r=0;t=9, "day";r=77;t=60; ratelimit-policy: "in";q=1;w=9, "per-second";q=10;w=1, "day";q=5000;w=86400"#
    );
}

#[test]
fn a_redirect_is_not_held_up() {
    let terms = Terms::fixed_window(Quota::per_minute(10));
    let left = |left| Decision::allow(10, left).with_reset_after(Duration::from_secs(9));
    let draft11 = writer(&RateLimitFields::draft11(), &[("p", terms)]);
    let policy = r#"ratelimit-policy: "p";q=10;w=60"#;
    assert_eq!(written(&draft11, 301, &[], &[reading(0, &left(0))]), policy);
    assert_eq!(written(&draft11, 301, &[], &[reading(0, &left(1))]), format!(r#"ratelimit: "p";r=1;t=9; {policy}"#));
    assert_eq!(written(&draft11, 200, &[], &[reading(0, &left(0))]), format!(r#"ratelimit: "p";r=0;t=9; {policy}"#));
    let draft07 = writer(&RateLimitFields::draft07(), &[("p", terms)]);
    assert_eq!(written(&draft07, 301, &[], &[reading(0, &left(0))]), "");
}

#[test]
fn the_older_fields_tell_of_the_policy_that_is_closest_to_exhaustion() {
    let policies = [
        ("second", Terms::bucket(Quota::per_second(10))),
        ("minute", Terms::fixed_window(Quota::per_minute(100))),
        ("hour", Terms::fixed_window(Quota::per_hour(1_000))),
    ];
    let draft07 = writer(&RateLimitFields::draft07(), &policies);
    let draft06 = writer(&RateLimitFields::draft06(), &policies);
    let legacy = writer(&RateLimitFields::none().x_rate_limit(ResetForm::EpochSeconds), &policies);
    let hyphen = writer(&RateLimitFields::none().x_rate_hyphen_limit(ResetForm::DeltaSeconds), &policies);
    let second = Decision::allow(10, 5).with_reset_after(Duration::from_millis(500));
    let minute = Decision::allow(100, 49).with_reset_after(Duration::from_millis(30_500));
    let hour = Decision::allow(1_000, 600).with_reset_after(Duration::from_secs(1_800));

    let all = [reading(0, &second), reading(1, &minute), reading(2, &hour)];
    assert_eq!(
        written(&draft07, 200, &[], &all),
        "ratelimit: limit=100, remaining=49, reset=31; ratelimit-policy: 100;w=60"
    );
    assert_eq!(
        written(&draft06, 200, &[], &all),
        "ratelimit-limit: 100; ratelimit-policy: 100;w=60; ratelimit-remaining: 49; ratelimit-reset: 31"
    );
    assert_eq!(
        written(&legacy, 200, &[], &all),
        "x-ratelimit-limit: 100; x-ratelimit-remaining: 49; x-ratelimit-reset: 1790000031"
    );
    assert_eq!(
        written(&hyphen, 200, &[], &all[..1]),
        "x-rate-limit-limit: 10; x-rate-limit-remaining: 5; x-rate-limit-reset: 1"
    );

    // One that refuses comes before one that has less left; of those that refuse, the longest wait.
    let refused = |left, wait| Decision::deny(1_000, left, wait).with_reset_after(Duration::from_secs(1_800));
    let empty = Decision::allow(100, 0).with_reset_after(Duration::from_secs(30));
    let (short, long) = (refused(3, Some(Duration::from_secs(5))), refused(3, Some(Duration::from_secs(6))));
    let never = refused(3, None);
    let state = |readings: &[Reading<'_>]| written(&draft07, 429, &[], readings);
    assert_eq!(
        state(&[reading(1, &empty), reading(2, &short)]),
        "ratelimit: limit=1000, remaining=0, reset=5; ratelimit-policy: 1000;w=3600"
    );
    assert!(state(&[reading(1, &short), reading(2, &long)]).contains("limit=1000, remaining=0, reset=6"));
    assert!(state(&[reading(1, &never), reading(2, &long)]).contains("limit=100, remaining=0, reset=1800"));

    // What is there and tells of less stays; what tells of more does not.
    let inner = |remaining| [("x-ratelimit-limit", "9"), ("x-ratelimit-remaining", remaining)];
    assert_eq!(written(&legacy, 200, &inner("2"), &all), "x-ratelimit-limit: 9; x-ratelimit-remaining: 2");
    assert!(written(&legacy, 200, &inner("50"), &all).contains("remaining: 49; x-ratelimit-reset"));
}

#[test]
fn the_fields_are_told_when_that_was_asked_for() {
    let terms = Terms::bucket(Quota::per_minute(10));
    let other = Terms::bucket(Quota::per_minute(1_000));
    let told = |tell: Tell, decision: Decision| {
        let fields = RateLimitFields::draft11().x_rate_limit(ResetForm::DeltaSeconds).tell(tell);
        let writer = writer(&fields, &[("p", terms), ("q", other)]);
        let plenty = Decision::allow(1_000, 999);
        let all = written(&writer, 200, &[], &[reading(0, &decision), reading(1, &plenty)]);
        assert!(all.is_empty() || !writer.is_silent());
        !all.is_empty()
    };
    let denied = Decision::deny(10, 0, Some(Duration::from_secs(6)));
    for tell in [Tell::Always, Tell::Refused, Tell::Below { percent: 20 }] {
        assert!(told(tell, denied), "{tell:?}");
    }
    assert!(told(Tell::Always, Decision::allow(10, 10)));
    assert!(!told(Tell::Refused, Decision::allow(10, 0)));
    assert!(!told(Tell::Below { percent: 20 }, Decision::allow(10, 2)));
    assert!(told(Tell::Below { percent: 20 }, Decision::allow(10, 1)));
    assert!(!told(Tell::Never, denied));

    let is_silent = |fields: RateLimitFields| writer(&fields, &[("p", terms)]).is_silent();
    assert!(is_silent(RateLimitFields::none()) && is_silent(RateLimitFields::default().tell(Tell::Never)));
    assert!(!is_silent(RateLimitFields::none().x_rate_limit(ResetForm::DeltaSeconds)));
    assert!(Writer::new(&RateLimitFields::default(), [("p", None)]).is_silent());
}

#[test]
fn partition_keys_are_hashed_and_kept_from_caches() {
    let terms = Terms::bucket(Quota::per_minute(10));
    let keyed = writer(&RateLimitFields::draft11().partition_key_by([7; 16]), &[("p", terms)]);
    let decision = Decision::allow(10, 9).with_reset_after(Duration::from_secs(6));
    let mark = keyed.mark(&PartitionKey::from("alice"));
    assert!(mark.is_some());
    let readings = [Reading { mark, ..reading(0, &decision) }];
    let state = |lines: &[(&'static str, &'static str)]| {
        let all = written(&keyed, 200, lines, &readings);
        all.split("; ").find_map(|line| line.strip_prefix("ratelimit: ")).unwrap().to_owned()
    };
    let told = state(&[("cache-control", "private, max-age=60")]);
    let parameters = &members(&told).unwrap()[0].1;
    assert!(matches!(&parameters[..], [_, _, (key, GenericBareItem::ByteSequence(mark))]
        if key == "pk" && mark.len() == 8));
    assert_eq!(state(&[("cache-control", "public")]), r#""p";r=9;t=54"#);

    assert!(writer(&RateLimitFields::draft11(), &[("p", terms)]).mark(&PartitionKey::SHARED).is_none());
    let random = writer(&RateLimitFields::draft11().partition_key(), &[("p", terms)]);
    assert_ne!(random.mark(&PartitionKey::from("alice")), mark);
    assert!(!format!("{:?}", RateLimitFields::draft11().partition_key_by([77; 16])).contains("77"));
}

#[test]
fn what_scripts_may_read_has_all_names() {
    let names = EXPOSED_HEADERS.map(|name| name.to_string());
    assert_eq!(
        names.join(", "),
        "retry-after, ratelimit, ratelimit-policy, x-ratelimit-limit, x-ratelimit-remaining, x-ratelimit-reset, \
         x-rate-limited-for, grpc-status, grpc-message, grpc-status-details-bin, grpc-retry-pushback-ms"
    );
}

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

/// Windows and waits in proportion to a bucket's interval, so that all states come up.
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

    /// Whatever a bucket does, what is told of it can be read, is true, and is REQ-14's.
    #[test]
    fn buckets_are_told_as_required(
        (quota, trace) in quota().prop_flat_map(|quota| (Just(quota), trace(quota))),
        name in "[ -~]{1,20}",
    ) {
        let writer = writer(&RateLimitFields::draft11(), &[(&name, Terms::bucket(quota))]);
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
                    let (left, within) = bucket.told(now);
                    prop_assert_eq!(u128::from(r), left);
                    // A state may be told a tick of its store too early, which is nearly always the same second.
                    let full = u128::from(quota.max_burst()) * period / limit;
                    let free = full.saturating_sub(decision.reset_after().as_nanos());
                    let earliest = free.saturating_sub((full >> 32) + 2).div_ceil(NANOS);
                    let (t, most) = (u128::from(t), 999_999_999_999_999);
                    prop_assert!(t <= within.min(most), "{t} > {within}");
                    prop_assert!(t == within.min(most) || left > 0 && t >= earliest.min(most), "{t} < {within}");
                    if is_exact(&quota, q, w) && t < most {
                        prop_assert!(u128::from(r) * u128::from(w) <= u128::from(q) * t);
                    }
                }
                (true, None) => prop_assert!(false, "an admission tells for how long"),
                (false, t) => {
                    prop_assert_eq!(r, 0);
                    prop_assert_eq!(t, decision.retry_after().map(retry_after_seconds));
                    // A client alone that waits as told is admitted.
                    if let Some(wait) = t.filter(|wait| *wait < 2_147_483) {
                        let mut later = Bucket { quota, paid_at: bucket.paid_at };
                        prop_assert!(later.decide(now + wait * 1_000_000_000, cost).is_allowed());
                    }
                }
            }
        }
    }

    /// Any decision of any limiter, in any generation: it can be read back, and is written canonically.
    #[test]
    fn whatever_is_decided_can_be_read(
        policies in prop::collection::vec((
            ("[ -~]{1,12}", quota(), 0..3_u8),
            (any::<bool>(), any::<u32>(), any::<u32>()),
            (any::<u64>(), any::<Option<u64>>(), any::<Option<u64>>(), any::<bool>()),
        ), 1..4),
        burst: bool,
    ) {
        let terms = |quota: Quota, shape: u8| match shape {
            0 => Terms::bucket(quota),
            1 => Terms::fixed_window(quota),
            _ => Terms::sliding_window(quota),
        };
        let announced: Vec<_> =
            policies.iter().map(|((name, quota, shape), ..)| (name.as_str(), terms(*quota, *shape))).collect();
        let decisions: Vec<_> = policies.iter().map(|(_, (allow, limit, left), (reset, wait, ..))| {
            let (limit, left) = (*limit.max(left), *limit.min(left));
            let decision = if *allow {
                Decision::allow(limit, left)
            } else {
                Decision::deny(limit, left, wait.map(Duration::from_nanos))
            };
            decision.with_reset_after(Duration::from_nanos(*reset))
        }).collect();
        let fields = RateLimitFields::draft11().partition_key_by([1; 16]);
        let draft11 = writer(&if burst { fields.burst() } else { fields }, &announced);
        let readings = || policies.iter().zip(&decisions).enumerate().map(|(index, ((_, _, (.., next, marked)), decision))| {
            let mark = if *marked { draft11.mark(&PartitionKey::from(index as u64)) } else { None };
            Reading { policy: index, decision, next_after: next.map(Duration::from_nanos), mark }
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
            let allowed = if name == RATELIMIT { ["r", "t", "pk"] } else { ["q", "w", "sluice-burst"] };
            for (_, parameters) in members {
                let keys: Vec<_> = parameters.iter().map(|(key, _)| key.as_str()).collect();
                let in_order: Vec<_> = allowed.into_iter().filter(|key| keys.contains(key)).collect();
                prop_assert_eq!(&keys, &in_order);
                prop_assert_eq!(keys[0], allowed[0]);
            }
        }

        let generations = [RateLimitFields::draft07(), RateLimitFields::draft06()];
        for fields in generations.map(|fields| fields.x_rate_limit(ResetForm::EpochSeconds)) {
            let mut older = HeaderMap::new();
            writer(&fields, &announced).write(StatusCode::OK, &mut older, readings(), at_2026);
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
}
