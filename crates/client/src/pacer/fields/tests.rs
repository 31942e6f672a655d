//! Each field in each form, public APIs, and hostile values.

use std::time::{Duration, UNIX_EPOCH};

use http::HeaderValue;
use proptest::prelude::*;
use serde_json::Value;
use tower_sluice::headers::{RATELIMIT, RATELIMIT_POLICY, X_RATELIMIT_LIMIT, X_RATELIMIT_REMAINING, X_RATELIMIT_RESET};

use super::super::structured;
use super::budget::{MAX_LEFT, draft11};
use super::*;
use crate::cases::cases;

fn head(lines: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        headers.append(
            HeaderName::from_bytes(name.as_bytes()).unwrap(),
            HeaderValue::from_bytes(value.as_bytes()).unwrap(),
        );
    }
    headers
}

/// Reads a response that came 1,790,000,000 seconds after 1970 (Mon, 21 Sep 2026 14:13:20 GMT).
fn reading(status: u16, lines: &[(&str, &str)]) -> ResponseReading {
    let now = UNIX_EPOCH + Duration::from_secs(1_790_000_000);
    read(StatusCode::from_u16(status).unwrap(), &head(lines), now, &WaitStatuses::new())
}

/// Returns the remaining units, the seconds for which they last, and the spacing in milliseconds.
fn governing(lines: &[(&str, &str)]) -> Option<(u64, u64, u64)> {
    let budget = reading(200, lines).report.budget?;
    Some((budget.left, budget.reset / SECOND, budget.spacing / 1_000))
}

#[test]
fn every_generation_of_fields_is_read() {
    assert_eq!(governing(&[("ratelimit", r#""default";r=50;t=30"#)]), Some((50, 30, 0)));
    let policy = ("ratelimit-policy", r#""burst";q=100;w=60, "default";q=40;w=20"#);
    assert_eq!(governing(&[policy, ("ratelimit", r#""default";r=50;t=30"#)]), Some((40, 30, 500)));
    assert_eq!(governing(&[("ratelimit", "limit=100, remaining=50, reset=5")]), Some((50, 5, 0)));
    let policy = ("ratelimit-policy", "100;w=10");
    assert_eq!(governing(&[policy, ("ratelimit", "limit=100, remaining=50, reset=5")]), Some((50, 5, 100)));
    let legacy = |left, reset| governing(&[("x-ratelimit-remaining", left), ("x-ratelimit-reset", reset)]);
    assert_eq!(legacy("7", "60"), Some((7, 60, 0)));
    assert_eq!(legacy("7.9", "59.1"), Some((7, 60, 0)));
    assert_eq!(legacy("7", "1790000060"), Some((7, 60, 0)), "seconds since 1970");
    assert_eq!(legacy("7", "1790000059001"), Some((7, 60, 0)), "milliseconds since 1970");
    assert_eq!(legacy("7", "1789999999"), Some((7, 1, 0)), "an instant that has passed");
    assert_eq!(legacy("7", "999999999"), Some((7, MAX_RESET, 0)), "the greatest number of seconds from now");
    assert_eq!(legacy("7", "6m0s"), Some((7, 360, 0)));
    assert_eq!(legacy("7", "2026-09-21T14:14:20Z"), Some((7, 60, 0)));
    let after = ("x-ratelimit-reset-after", "1.25");
    assert_eq!(governing(&[after, ("x-ratelimit-remaining", "7"), ("x-ratelimit-reset", "9")]), Some((7, 2, 0)));
    for family in ["ratelimit-*", "x-ratelimit-*", "x-rate-limit-*", "x-ratelimit-*-requests", "x-ratelimit-requests-*"]
    {
        let fields = [("limit", "40, 40;w=20"), ("remaining", "50"), ("reset", "30")];
        let fields = fields.map(|(part, value)| (family.replace('*', part), value));
        let fields: Vec<_> = fields.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        assert_eq!(governing(&fields), Some((40, 30, 500)), "{family}");
        assert_eq!(governing(&fields[1..]), Some((50, 30, 0)), "{family}");
        assert_eq!(governing(&fields[..2]), None, "{family}");
    }
    let draft03 = [("ratelimit-limit", "100"), ("ratelimit-remaining", "50"), ("ratelimit-reset", "5")];
    assert_eq!(governing(&draft03), Some((50, 5, 0)));
    let policy = ("ratelimit-policy", "100;w=10");
    assert_eq!(governing(&[draft03[0], draft03[1], draft03[2], policy]), Some((50, 5, 100)), "of draft 06");
    // One number per quota: the tightest governs.
    let of_two = |left, reset| {
        governing(&[("x-ratelimit-limit", "1, 15000"), ("x-ratelimit-remaining", left), ("x-ratelimit-reset", reset)])
    };
    assert_eq!(of_two("1, 15000", "1, 1419704"), Some((15_000, 1_419_704, 0)));
    assert_eq!(of_two("0, 15000", "1, 1419704"), Some((0, 1, 0)));
    assert_eq!(of_two("0, 15000", "1"), None);
    assert_eq!(governing(&[("content-type", "text/plain")]), None);
}

#[test]
fn the_tightest_policy_governs() {
    let of = |field| governing(&[("ratelimit", field)]);
    assert_eq!(of(r#""burst";r=9;t=1, "day";r=100;t=36000"#), Some((100, 36_000, 0)));
    assert_eq!(of(r#""burst";r=1;t=10, "day";r=5000;t=36000"#), Some((5_000, 36_000, 0)));
    assert_eq!(of(r#""burst";r=1;t=20, "day";r=5000;t=36000"#), Some((1, 20, 0)));
    // A used-up budget comes first. If there are several, the one with the longest time governs.
    assert_eq!(of(r#""burst";r=0;t=5, "day";r=1;t=36000"#), Some((0, 5, 0)));
    assert_eq!(of(r#""burst";r=0;t=5, "minute";r=0;t=50, "day";r=1;t=36000"#), Some((0, 50, 0)));
    let both = [("ratelimit", r#""a";r=9;t=1"#), ("x-ratelimit-remaining", "1"), ("x-ratelimit-reset", "9")];
    assert_eq!(governing(&both), Some((1, 9, 0)));
}

#[test]
fn only_request_quotas_with_times_govern() {
    let in_flight = ("ratelimit-policy", r#""in-flight";q=4;qu="concurrent-requests""#);
    assert_eq!(governing(&[in_flight, ("ratelimit", r#""in-flight";r=0;t=9"#)]), None);
    let bytes = ("ratelimit-policy", r#""in";q=65535;qu="content-bytes";w=10, "out";q=9;qu="requests";w=9"#);
    assert_eq!(governing(&[bytes, ("ratelimit", r#""in";r=0;t=9, "out";r=3;t=7"#)]), Some((3, 7, 1_000)));
    assert_eq!(governing(&[("ratelimit", r#""default";r=0"#)]), None);
}

/// The wait in seconds that a rejection asks for.
fn wait(status: u16, lines: &[(&str, &str)]) -> Option<u64> {
    let ResponseReading { result, report } = reading(status, lines);
    assert_eq!(result == CallResult::Rejected, report.answer == CallAnswer::Rejected);
    (result == CallResult::Rejected).then_some(report.wait / SECOND)
}

/// Each response is accepted, rejected, or a failure.
#[test]
fn responses_are_classified() {
    use CallResult::{Accepted, Failed, Rejected};
    for (status, expected) in [
        (200, Accepted),
        (304, Accepted),
        (404, Accepted),
        (408, Accepted),
        (429, Rejected),
        (500, Failed),
        (503, Failed),
        (599, Failed),
    ] {
        assert_eq!(reading(status, &[]).result, expected, "{status}");
    }
    assert_eq!(reading(503, &[("retry-after", "1")]).result, Rejected);
    let grpc_statuses =
        [("0", Accepted), ("3", Accepted), ("4", Failed), ("8", Rejected), ("13", Failed), ("14", Failed)];
    for (status, expected) in grpc_statuses {
        assert_eq!(reading(200, &[("grpc-status", status)]).result, expected, "{status}");
    }
    // The partner forbids us to repeat the call, so for its line, that isn't a rejection.
    assert_eq!(reading(200, &[("grpc-status", "8"), ("grpc-retry-pushback-ms", "-1")]).result, Failed);
}

#[test]
fn a_rejection_says_how_long_to_wait() {
    assert_eq!(wait(429, &[("retry-after", "7")]), Some(7));
    assert_eq!(wait(503, &[("retry-after", "7")]), Some(7));
    assert_eq!(wait(200, &[("retry-after", "7")]), None);
    assert_eq!(wait(503, &[]), None, "a failure, and no limit");
    assert_eq!(wait(429, &[]), Some(0));
    // A used-up budget lasts until its own end.
    assert_eq!(wait(429, &[("ratelimit", r#""a";r=0;t=5"#)]), Some(0));
    assert_eq!(wait(503, &[("ratelimit", r#""a";r=0;t=5"#)]), Some(0));
    assert_eq!(wait(503, &[("ratelimit", r#""a";r=3;t=5"#)]), None);
    assert_eq!(wait(429, &[("retry-after", "Mon, 21 Sep 2026 14:14:20 GMT")]), Some(60));
    // By the partner's own clock, which is half a minute ahead.
    let its_clock = ("date", "Mon, 21 Sep 2026 14:13:50 GMT");
    assert_eq!(wait(429, &[its_clock, ("retry-after", "Mon, 21 Sep 2026 14:14:20 GMT")]), Some(30));
    assert_eq!(wait(429, &[("retry-after", "Mon, 21 Sep 2026 14:13:00 GMT")]), Some(1), "it has passed");
    assert_eq!(wait(429, &[("retry-after", "3"), ("retry-after", "9")]), Some(9));
    // A reset alone says when to come again.
    assert_eq!(wait(429, &[("x-ratelimit-reset", "9")]), Some(9));
}

/// Partners and their proxies write more forms than RFC 9110 allows.
#[test]
fn a_wait_is_read_in_every_dialect() {
    let micros = |lines: &[(&str, &str)]| reading(429, lines).report.wait;
    for (value, expected) in [
        ("30.0", 30_000_000),
        ("0.25", 250_000),
        ("30, 30", 30_000_000),
        ("1, 30.5", 30_500_000),
        ("30s", 30_000_000),
        ("1m30s", 90_000_000),
        ("0", 1_000_000),
        ("0.0", 1_000_000),
    ] {
        assert_eq!(micros(&[("retry-after", value)]), expected, "{value}");
    }
    for name in ["retry-after-ms", "x-ms-retry-after-ms"] {
        assert_eq!(micros(&[(name, "1250")]), 1_250_000);
        assert_eq!(micros(&[(name, "1250.5"), ("retry-after", "2")]), 1_250_500, "the more exact one");
        assert_eq!(micros(&[(name, "soon"), ("retry-after", "2")]), 2_000_000);
    }
}

#[test]
fn wait_statuses_are_settings() {
    for status in [403, 418, 503, 509, 529] {
        assert_eq!(wait(status, &[("retry-after", "60")]), Some(60), "{status}");
        assert_eq!(wait(status, &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "60")]), Some(0), "{status}");
        assert_eq!(wait(status, &[]), None, "{status}");
        assert_eq!(wait(status, &[("x-ratelimit-reset", "60")]), None, "{status}");
    }
    for status in [420, 429] {
        assert_eq!(wait(status, &[]), Some(0), "{status}");
    }
    for status in [200, 301, 400, 401, 404, 500, 502, 504] {
        assert_eq!(wait(status, &[("retry-after", "60")]), None, "{status}");
    }
    let statuses = WaitStatuses::new()
        .always(StatusCode::SERVICE_UNAVAILABLE)
        .if_stated(StatusCode::BAD_REQUEST)
        .never(StatusCode::FORBIDDEN);
    let now = UNIX_EPOCH + Duration::from_secs(1_790_000_000);
    let is_rejection = |status: u16, lines: &[(&str, &str)]| {
        let reading = read(StatusCode::from_u16(status).unwrap(), &head(lines), now, &statuses);
        reading.result == CallResult::Rejected
    };
    let stated = [("retry-after", "60")];
    assert!(is_rejection(503, &[]) && is_rejection(400, &stated) && is_rejection(429, &[]));
    assert!(!is_rejection(400, &[]) && !is_rejection(403, &stated));
}

#[test]
fn grpc_statuses_in_heads_are_rejections() {
    let wait = |lines: &[(&str, &str)]| {
        let ResponseReading { result, report } = reading(200, lines);
        (result == CallResult::Rejected).then_some(report.wait)
    };
    let exhausted = ("grpc-status", "8");
    assert_eq!(wait(&[exhausted]), Some(0));
    assert_eq!(wait(&[exhausted, ("grpc-retry-pushback-ms", "2500")]), Some(2_500_000));
    assert_eq!(wait(&[exhausted, ("grpc-retry-pushback-ms", "0")]), Some(1_000));
    assert_eq!(wait(&[exhausted, ("grpc-retry-pushback-ms", "99999999999999999999")]), Some(MAX_RESET * SECOND));
    // The pushback is the more exact of the two.
    assert_eq!(wait(&[exhausted, ("retry-after", "3"), ("grpc-retry-pushback-ms", "2001")]), Some(2_001_000));
    assert_eq!(wait(&[exhausted, ("retry-after", "3")]), Some(3_000_000));
    assert_eq!(wait(&[exhausted, ("ratelimit", r#""a";r=0;t=5"#)]), Some(0));
    // UNAVAILABLE is an outage unless it says when to come again.
    assert_eq!(wait(&[("grpc-status", "14")]), None);
    assert_eq!(wait(&[("grpc-status", "14"), ("grpc-retry-pushback-ms", "70")]), Some(70_000));
    for other in ["0", "2", "13"] {
        assert_eq!(wait(&[("grpc-status", other), ("grpc-retry-pushback-ms", "70")]), None, "{other}");
    }
    // The server forbids us to repeat the call.
    assert_eq!(wait(&[exhausted, ("grpc-retry-pushback-ms", "-1")]), None);
}

#[test]
fn hostile_values_are_capped_or_ignored() {
    let wait = |value| reading(429, &[("retry-after", value)]).report.wait / SECOND;
    assert_eq!((wait("1000000000"), wait("99999999999999999999999")), (MAX_RESET, MAX_RESET));
    for ignored in ["-5", "+5", "1e9", "1, soon", "", "soon", "1.", ".5", "0x10", "1,,2"] {
        assert_eq!(wait(ignored), 0, "{ignored}");
    }
    assert_eq!(wait("0"), 1);
    assert_eq!(
        governing(&[("ratelimit", r#""a";r=999999999999999;t=999999999999999"#)]),
        Some((MAX_LEFT, MAX_RESET, 0))
    );
    let more_than_its_limit = [("ratelimit", "limit=5, remaining=500, reset=1")];
    assert_eq!(governing(&more_than_its_limit), Some((5, 1, 0)));
    let long = format!(r#""a";r=1;t=1;x="{}""#, "x".repeat(MAX_BYTES));
    assert_eq!(governing(&[("ratelimit", &long)]), None);
    let many = vec![("ratelimit", r#""a";r=1;t=1"#); 100];
    assert_eq!(governing(&many), None);
    assert_eq!(
        governing(&[("x-ratelimit-remaining", "1"), ("x-ratelimit-remaining", "2"), ("x-ratelimit-reset", "5")]),
        None
    );
    assert_eq!(governing(&[("x-ratelimit-remaining", "-1"), ("x-ratelimit-reset", "5")]), None);
    // A cache may repeat the state from an hour ago.
    assert_eq!(governing(&[("age", "3600"), ("ratelimit", r#""a";r=0;t=5"#)]), None);
}

fn vectors(text: &str) -> Vec<Value> {
    serde_json::from_str(text).unwrap()
}

#[test]
fn the_drafts_vectors_are_read_or_ignored() {
    let examples = vectors(include_str!("../../../../../tests/vectors/draft11.json"));
    let mut read = 0;
    for case in &examples {
        let field = case["field"].as_str().unwrap();
        let text = case["value"].as_str().unwrap();
        let members = structured::list(text.as_bytes());
        assert_eq!(members.is_some(), case["sf_parses"].as_bool().unwrap(), "{text}");
        if field == "RateLimit" {
            let budgets = draft11(text.as_bytes(), &[]);
            assert_eq!(budgets.is_some(), case["valid"].as_bool().unwrap(), "{text}");
            read += budgets.map_or(0, |budgets| budgets.len());
        }
    }
    assert!(read > 3, "{read} were read");
    for case in vectors(include_str!("../../../../../tests/vectors/negative.json")) {
        let field = case["field"].as_str().unwrap();
        let text = case["value"].as_str().unwrap();
        // Draft-07 is the other syntax that is read.
        if field == "RateLimit" && !text.starts_with("limit") {
            assert_eq!(governing(&[("ratelimit", text)]), None, "{text}");
        }
    }
}

proptest! {
    #![proptest_config(cases(256))]

    /// For any response, the numbers are in bounds.
    #[test]
    fn any_head_is_read(
        status in prop::sample::select(vec![200_u16, 403, 429, 503]),
        fields in prop::collection::vec((0..12_usize, prop_oneof![
            prop::collection::vec(any::<u8>(), 0..60),
            "[\"a;=rtqw0-9, .:-]{0,40}".prop_map(String::into_bytes),
            "\"a\";r=[0-9]{1,16};t=[0-9]{1,16}".prop_map(String::into_bytes),
            "-?[0-9]{1,30}".prop_map(String::into_bytes),
            "[0-9]{1,9}(\\.[0-9]{0,12})?(ms|us|s|m|h|d)?(, ?[0-9]{1,4})?".prop_map(String::into_bytes),
            "[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(:[0-9.]{2,5})?(Z|[+-][0-9]{2}:[0-9]{2})"
                .prop_map(String::into_bytes),
        ]), 0..6),
    ) {
        let names = [
            RATELIMIT, RATELIMIT_POLICY, X_RATELIMIT_LIMIT, X_RATELIMIT_REMAINING, X_RATELIMIT_RESET,
            header::RETRY_AFTER, header::DATE, header::AGE, HeaderName::from_static("retry-after-ms"),
            HeaderName::from_static("ratelimit-remaining"), HeaderName::from_static("ratelimit-reset"),
            HeaderName::from_static("ratelimit-limit"),
        ];
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            if let Ok(value) = HeaderValue::from_bytes(&value) {
                headers.append(names[name].clone(), value);
            }
        }
        let now = UNIX_EPOCH + Duration::from_secs(1_790_000_000);
        let status = StatusCode::from_u16(status).unwrap();
        let ResponseReading { result, report } = read(status, &headers, now, &WaitStatuses::new());
        prop_assert!(report.wait <= MAX_RESET * SECOND && (result == CallResult::Rejected || report.wait == 0));
        if let Some(budget) = report.budget {
            prop_assert!(budget.left <= MAX_LEFT && (SECOND..=MAX_RESET * SECOND).contains(&budget.reset));
        }
    }
}

/// Answers from public APIs: `tests/vectors/partners.json` has the status and the fields that their documentation
/// shows, at 2026-09-21 14:13:20, and the expected reading.
#[test]
fn answers_of_public_apis_are_read() {
    let cases = vectors(include_str!("../../../../../tests/vectors/partners.json"));
    let mut partners = std::collections::BTreeSet::new();
    for case in &cases {
        let name = case["partner"].as_str().unwrap();
        partners.insert(name);
        let status = u16::try_from(case["status"].as_u64().unwrap()).unwrap();
        let fields = case["fields"].as_object().unwrap();
        let names: Vec<_> = fields.iter().map(|(name, value)| (name.to_lowercase(), value.as_str().unwrap())).collect();
        let lines: Vec<_> = names.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        let ResponseReading { result, report } = reading(status, &lines);
        assert_eq!(case["result"], format!("{result:?}").to_lowercase(), "{name}: {case}");
        assert_eq!(case["wait_ms"].as_u64().unwrap_or(0), report.wait / 1_000, "{name}: {case}");
        let budget = report.budget.map(|budget| (budget.left, budget.reset / SECOND));
        let expected = case["left"].as_u64().map(|left| (left, case["for_seconds"].as_u64().unwrap()));
        assert_eq!(budget, expected, "{name}: {case}");
    }
    assert!(partners.len() >= 40, "{} partners", partners.len());
}
