//! The field values, one by one: published vectors, tables, edge cases.

use std::num::NonZeroU64;

use serde_json::Value;

use super::bucket::Bucket;
use super::*;
use crate::http::headers::decimal::{Scratch, value_of};
use crate::http::headers::measure::{Advertised, Level};
use crate::values::Quota;

fn vectors(text: &str) -> Vec<Value> {
    serde_json::from_str::<Value>(text).unwrap().as_array().unwrap().clone()
}

/// `vectors/gcra_sequences.json` has whole request sequences, computed independently.
#[test]
fn published_sequences_match() {
    let nanos = |text: &str| {
        let (whole, part) = text.split_once('.').unwrap_or((text, ""));
        whole.parse::<u64>().unwrap() * 1_000_000_000 + format!("{part:0<9}").parse::<u64>().unwrap()
    };
    let small = |value: &Value| value.as_u64().unwrap();
    let mut steps = 0;
    for sequence in vectors(include_str!("../../../../tests/vectors/gcra_sequences.json")) {
        let period = Duration::from_secs(small(&sequence["rate"][1]));
        let quota = Quota::per(small(&sequence["rate"][0]), period).burst(small(&sequence["burst"]));
        let fields = RateLimitFields::draft11().x_ratelimit(ResetForm::DeltaSeconds);
        let writer = writer_of(&fields, &[("default", Terms::bucket(quota))]);
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
            let sent = |name: &str| fields.get(name).map(|value| value.to_str().unwrap());
            assert_eq!(sent("ratelimit-policy"), sequence["ratelimit_policy"].as_str(), "{context}");
            assert_eq!(sent("ratelimit"), step["ratelimit"].as_str(), "{context}");
            assert_eq!(sent("x-ratelimit-reset").unwrap(), step["reset_to_full"].to_string(), "{context}");
            assert_eq!(sent("retry-after"), step["retry_after"].as_str(), "{context}");
            let exact = step["x_rate_limited_for_exact"].as_str().map(|exact| {
                let (top, bottom) = exact.split_once('/').unwrap_or((exact, "1"));
                let micros = (top.parse::<u64>().unwrap() * 1_000_000).div_ceil(bottom.parse().unwrap());
                format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000)
            });
            assert_eq!(sent("x-rate-limited-for"), exact.as_deref(), "{context}");
            steps += 1;
        }
    }
    assert_eq!(steps, 40);
}

/// `vectors/draft11.json` has the draft's examples.
#[test]
fn the_drafts_examples_are_written_canonically() {
    let mut compared = 0;
    for example in vectors(include_str!("../../../../tests/vectors/draft11.json")) {
        let is_policy = example["field"] == "RateLimit-Policy";
        let canonical = example["canonical"].as_str().unwrap();
        assert!(members(canonical).is_some() || example["valid"] == false, "{canonical}");
        let keys = if is_policy { POLICY } else { STATE };
        // Examples with other parameters than ours are skipped.
        let Some(members) = numbers(canonical, keys, 1) else { continue };
        let mut out = Scratch::new();
        for (name, numbers) in members {
            let quoted = draft11::quoted(&name);
            if is_policy {
                let advertised =
                    Advertised { quota: numbers[0], window: numbers.get(1).copied().and_then(NonZeroU64::new) };
                draft11::push_policy(&mut out, &quoted, advertised, QuotaUnit::Requests);
            } else {
                let level = Level { left: numbers[0], within: numbers.get(1).copied().and_then(NonZeroU64::new) };
                draft11::push_state(&mut out, &draft11::prefix(&quoted), level, None);
            }
        }
        assert_eq!(value_of(&out), canonical);
        compared += 1;
    }
    assert_eq!(compared, 17);
}

/// The tests' parser rejects the texts in `vectors/negative.json`, which are not field values.
#[test]
fn invalid_values_are_recognised() {
    for example in vectors(include_str!("../../../../tests/vectors/negative.json")) {
        let value = example["value"].as_str().unwrap();
        let keys = if example["field"] == "RateLimit-Policy" { POLICY } else { STATE };
        let is_value = numbers(value, keys, 1).is_some_and(|members| !members.is_empty());
        assert!(!is_value, "{value}: {}", example["why"]);
        assert_eq!(List::parse(Parser::new(value)).is_ok(), example["sf_parses"] == true, "{value}");
    }
}

fn policy_of(terms: Terms) -> String {
    let writer = writer_of(&RateLimitFields::draft11(), &[("p", terms)]);
    let decision = Decision::allow(1, 1);
    let all = written(&writer, 200, &[], &[reading(0, &decision)]);
    all.split("; ").find_map(|line| line.strip_prefix("ratelimit-policy: \"p\";")).unwrap().to_owned()
}

/// Buckets advertise a window in whole seconds that fits the burst, at the enforced rate or a lower one. The table also
/// has windows with fractions of a second, and quotas for which no such window fits.
#[test]
fn policies_are_advertised_at_exact_rates() {
    let quota = |limit, seconds| Quota::per(limit, Duration::from_secs(seconds));
    let millis = |limit, millis| Quota::per(limit, Duration::from_millis(millis));
    let nanos = |limit, nanos| Quota::per(limit, Duration::from_nanos(nanos));
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
        // In 3.000000003 s, there is no whole window within an hour.
        (Terms::bucket(nanos(1, 3_000_000_003)), "q=1;w=4"),
        (Terms::bucket(nanos(u64::from(u32::MAX), 1)), "q=999999999999999;w=1"),
        (Terms::bucket(quota(1, 86_400 * 36_500).burst(u64::from(u32::MAX))), "q=317097;w=999999999999999"),
        (Terms::fixed_window(quota(100, 60)), "q=100;w=60"),
        (Terms::fixed_window(quota(5_000, 86_400)), "q=5000;w=86400"),
        (Terms::calendar_window(quota(10_000, 28 * 86_400)), "q=10000"),
        (Terms::sliding_window(millis(100, 250)), "q=400;w=1"),
        (Terms::sliding_window(millis(100, 1_500)), "q=200;w=3"),
        (Terms::sliding_window(nanos(100, 3_000_000_003)), "q=100;w=4"),
        (Terms::sliding_window(nanos(7, 1)), "q=7000000000;w=1"),
    ] {
        assert_eq!(policy_of(terms), expected, "{terms:?}");
    }
}

/// A fixed window advertises its end, and a sliding one how long the rest has to last.
#[test]
fn windows_advertise_their_time() {
    let state = |terms: Terms, decision: Decision| {
        let writer = writer_of(&RateLimitFields::draft11(), &[("p", terms)]);
        let ratelimit = writer.ratelimit([reading(0, &decision)].into_iter()).unwrap();
        ratelimit.to_str().unwrap().to_owned()
    };
    let allow = |left, reset| Decision::allow(100, left).with_reset_after(Duration::from_millis(reset));
    let fixed = Terms::fixed_window(Quota::per_minute(100));
    assert_eq!(state(fixed, allow(99, 49_001)), r#""p";r=99;t=50"#);
    assert_eq!(state(fixed, allow(0, 1)), r#""p";r=0;t=1"#);
    // There was no request yet, so no window runs.
    assert_eq!(state(fixed, allow(100, 0)), r#""p";r=100;t=60"#);
    let sliding = Terms::sliding_window(Quota::per_minute(100));
    assert_eq!(state(sliding, allow(100, 0)), r#""p";r=100;t=60"#);
    assert_eq!(state(sliding, allow(99, 119_000)), r#""p";r=99;t=60"#);
    assert_eq!(state(sliding, allow(50, 119_000)), r#""p";r=50;t=30"#);
    assert_eq!(state(sliding, allow(1, 119_000)), r#""p";r=1;t=1"#);
    assert_eq!(state(sliding, allow(0, 119_000).with_next_after(Duration::from_millis(7_001))), r#""p";r=0;t=8"#);
    assert_eq!(state(sliding, allow(0, 119_000).with_next_after(Duration::from_nanos(1))), r#""p";r=0;t=1"#);
    assert_eq!(state(sliding, allow(0, 119_001)), r#""p";r=0;t=120"#);
    for terms in [fixed, sliding, Terms::bucket(Quota::per_minute(100))] {
        let reject = |wait| Decision::reject(100, 3, wait).with_reset_after(Duration::from_secs(50));
        assert_eq!(state(terms, reject(Some(Duration::from_millis(6_001)))), r#""p";r=0;t=7"#);
        assert_eq!(state(terms, reject(Some(Duration::MAX))), r#""p";r=0;t=2147483"#);
        assert_eq!(state(terms, reject(None)), r#""p";r=0"#);
    }
}

/// A store whose clock goes in ticks returns a `reset_after` that is a tick too short. At 5 per minute with 4 left, 48
/// seconds would be rounded up to 49.
#[test]
fn a_tick_does_not_add_a_second() {
    let writer = writer_of(&RateLimitFields::draft11(), &[("p", Terms::bucket(Quota::per_minute(5)))]);
    let decision = Decision::allow(5, 4).with_reset_after(Duration::from_nanos(11_999_999_993));
    let ratelimit = writer.ratelimit([reading(0, &decision)].into_iter()).unwrap();
    assert_eq!(ratelimit, r#""p";r=4;t=48"#);
}
