//! The partner's limits, as a response reports them. Total: a field that is malformed, too long or absurd is ignored,
//! as if it were not there.

use std::cmp::Reverse;
use std::time::{SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};

use super::meter::CallResult;
use super::pace::{Budget, CallReport};
use super::structured::{self, Bare, ListMember};
use crate::http::head::only_line;
use crate::http::headers::{
    RATELIMIT, RATELIMIT_POLICY, X_RATELIMIT_LIMIT, X_RATELIMIT_REMAINING, X_RATELIMIT_RESET, date, parse_digits,
    seconds_in,
};

/// A field with more bytes than this, over all its lines, is ignored.
const MAX_BYTES: usize = 2_048;

/// More units left than this are counted as this many.
const MAX_LEFT: u64 = 1_000_000_000;

/// No window is taken to be longer, in seconds: the longest month.
const MAX_RESET: u64 = 31 * 86_400;

/// `X-RateLimit-Reset` from here on is an instant, in seconds since 1970 (this one is in 2001); below, it is a number
/// of seconds from now.
const FIRST_EPOCH_SECOND: u64 = 1_000_000_000;

/// From here on, it is an instant in milliseconds.
const FIRST_EPOCH_MILLI: u64 = 100_000_000_000;

/// The pause after a 429 that reports units left, and not how long to wait, in seconds.
const UNEXPLAINED: u64 = 1;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_RETRY_PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// Microseconds in a second.
const SECOND: u64 = 1_000_000;

/// The meaning of a response for its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ResponseReading {
    /// Whether the partner accepted the call, rejected it because of a limit, or failed.
    pub(super) result: CallResult,
    pub(super) report: CallReport,
}

/// Reads the head of a response that came at `received`.
///
/// A 429 is a rejection. A 503 is one if it has a `Retry-After`, or reports that a quota is used up. On other
/// responses, `Retry-After` is about something else and pauses nothing. A response of gRPC without messages has its
/// status in the head: RESOURCE_EXHAUSTED is treated as a 429, and UNAVAILABLE as a 503, with the pushback in place of
/// `Retry-After`.
pub(super) fn read(status: StatusCode, headers: &HeaderMap, received: SystemTime) -> ResponseReading {
    // Instants are compared with the partner's own clock, if the response has its time.
    let now = headers.get(header::DATE).and_then(date).unwrap_or(received);
    // A cache repeats the state from when it stored the response: this is an answer that reports no budget.
    let is_stored = number(headers, &header::AGE).is_some_and(|age| age > 0);
    let budget = if is_stored { None } else { tightest(quotas(headers, now)) };
    let is_used_up = budget.is_some_and(|budget| budget.left == 0);
    let wait = headers.get_all(header::RETRY_AFTER).iter().filter_map(|line| seconds_in(line, || now)).max();
    // At least a second: zero would mean to repeat the call at once.
    let wait = wait.map(|seconds| seconds.clamp(1, MAX_RESET) * SECOND);
    let (status, pushback) = in_grpc(headers).unwrap_or((status, Pushback::Unset));
    let wait = if let Pushback::Wait(micros) = pushback { Some(micros) } else { wait };
    let is_rejection = match status {
        _ if matches!(pushback, Pushback::Forbidden) => false,
        StatusCode::TOO_MANY_REQUESTS => true,
        StatusCode::SERVICE_UNAVAILABLE => wait.is_some() || is_used_up,
        _ => false,
    };
    let pause = match wait {
        _ if !is_rejection => 0,
        Some(micros) => micros,
        // With units left, the budget that rejects is not among those that are reported.
        None if budget.is_some_and(|budget| budget.left > 0) => UNEXPLAINED * SECOND,
        None => 0,
    };
    let result = if is_rejection {
        CallResult::Rejected
    } else if is_failure(status, headers) {
        CallResult::Failed
    } else {
        CallResult::Accepted
    };
    let is_unexplained = is_rejection && wait.is_none() && budget.is_none();
    ResponseReading { result, report: CallReport { is_answer: true, pause, is_unexplained, budget } }
}

/// Whether the partner did not carry the call out, for reasons of its own. Other 4xx are about the request.
fn is_failure(status: StatusCode, headers: &HeaderMap) -> bool {
    match number(headers, &GRPC_STATUS) {
        // DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, INTERNAL, UNAVAILABLE.
        Some(status) => matches!(status, 4 | 8 | 13 | 14),
        None => status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error(),
    }
}

/// A server's instruction about repeating a call in gRPC (gRFC A6).
enum Pushback {
    Unset,
    /// In microseconds.
    Wait(u64),
    /// Not at all.
    Forbidden,
}

/// Reads the status of gRPC in a head, as the status of HTTP that means the same, with the pushback.
fn in_grpc(headers: &HeaderMap) -> Option<(StatusCode, Pushback)> {
    let status = match number(headers, &GRPC_STATUS)? {
        8 => StatusCode::TOO_MANY_REQUESTS,
        14 => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::OK,
    };
    let pushback = match short_line(headers, &GRPC_RETRY_PUSHBACK) {
        None => Pushback::Unset,
        Some(line) => match parse_digits(line.as_bytes()) {
            // At least a millisecond: zero would mean to repeat the call at once.
            Some(millis) => Pushback::Wait(millis.clamp(1, MAX_RESET * 1_000) * 1_000),
            // A negative number, or anything else.
            None => Pushback::Forbidden,
        },
    };
    Some((status, pushback))
}

/// Returns the budget that allows the least: the longest time without any call, or else the lowest rate.
fn tightest(budgets: impl IntoIterator<Item = Budget>) -> Option<Budget> {
    let spread = |budget: &Budget| Reverse(budget.reset / (budget.left + 1));
    budgets.into_iter().min_by_key(|budget| (budget.left > 0, spread(budget)))
}

/// Returns the budgets of all policies that count requests and report how long the remaining units have to last.
fn quotas(headers: &HeaderMap, now: SystemTime) -> Vec<Budget> {
    let field = lines(headers, &RATELIMIT).unwrap_or_default();
    let policies = lines(headers, &RATELIMIT_POLICY).unwrap_or_default();
    let policies = structured::list(&policies).unwrap_or_default();
    let mut budgets = if field.trim_ascii().starts_with(b"\"") {
        draft11(&field, &policies).unwrap_or_default()
    } else {
        draft07(&field, &policies).into_iter().collect()
    };
    budgets.extend(x_ratelimit(headers, now));
    budgets
}

/// Joins all lines of a field (RFC 9110, section 5.3); `None` if they are too long.
fn lines(headers: &HeaderMap, name: &HeaderName) -> Option<Vec<u8>> {
    let lines = || headers.get_all(name).iter().map(HeaderValue::as_bytes);
    let length: usize = lines().map(|line| line.len() + 1).sum();
    (length <= MAX_BYTES).then(|| lines().collect::<Vec<_>>().join(&b','))
}

/// Makes a budget, with numbers in bounds. A window of zero seconds counts as a window that ends within a second.
fn budget(left: u64, reset: u64, limit: Option<u64>, spacing: u64) -> Budget {
    let left = left.min(limit.unwrap_or(MAX_LEFT)).min(MAX_LEFT);
    Budget { left, reset: reset.clamp(1, MAX_RESET) * SECOND, spacing }
}

/// Returns the mean time between calls by a quota of `limit` in `window` seconds, rounded up; 0 if it is absent.
fn spacing(limit: u64, window: u64) -> u64 {
    match (limit, window) {
        (1.., 1..=MAX_RESET) => (window * SECOND).div_ceil(limit),
        _ => 0,
    }
}

/// Reads `"name";r=..;t=..`, with `"name";q=..;w=..` of the other field. `None` if a member does not follow the draft.
fn draft11(field: &[u8], policies: &[ListMember<'_>]) -> Option<Vec<Budget>> {
    let mut budgets = Vec::new();
    for state in structured::list(field)? {
        let Bare::String(_) = &state.value else { return None };
        let left = state.count("r").ok()??;
        let reset = state.count("t").ok()?;
        let policy = policies.iter().find(|policy| policy.value == state.value);
        // Of bytes, or of requests in flight, a client cannot say how many its calls will take.
        let is_of_requests = match policy.and_then(|policy| policy.parameter("qu")) {
            None => true,
            Some(Bare::String(unit)) => matches!(unit.as_slice(), b"requests" | b"request"),
            Some(_) => false,
        };
        // Without a time, nothing follows for when to send.
        if let (Some(reset), true) = (reset, is_of_requests) {
            let of_policy = |key| policy.and_then(|policy| policy.count(key).ok()?);
            let (limit, window) = (of_policy("q"), of_policy("w"));
            budgets.push(budget(left, reset, limit, spacing(limit.unwrap_or(0), window.unwrap_or(0))));
        }
    }
    Some(budgets)
}

/// Reads `limit=.., remaining=.., reset=..`, with `limit;w=..` of the other field.
fn draft07(field: &[u8], policies: &[ListMember<'_>]) -> Option<Budget> {
    let members = structured::dictionary(field)?;
    // Of a key that comes twice, the last one counts (RFC 9651, section 4.2.2).
    let count = |key: &str| members.iter().rev().find(|member| member.key == key.as_bytes())?.value.count().ok();
    let limit = count("limit")?;
    let left = count("remaining")?;
    let reset = count("reset")?;
    let policy = policies.iter().find(|policy| policy.value.count() == Ok(limit));
    let window = policy.and_then(|policy| policy.count("w").ok()?).unwrap_or(0);
    Some(budget(left, reset, Some(limit), spacing(limit, window)))
}

/// Reads `X-RateLimit-Remaining` and `X-RateLimit-Reset`, and `X-RateLimit-Limit` if it is there.
fn x_ratelimit(headers: &HeaderMap, now: SystemTime) -> Option<Budget> {
    let (left, _) = decimal(headers, &X_RATELIMIT_REMAINING)?;
    let (reset, has_rest) = decimal(headers, &X_RATELIMIT_RESET)?;
    let reset = reset.saturating_add(u64::from(has_rest));
    let since_1970 = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let reset = match reset {
        FIRST_EPOCH_MILLI.. => reset.div_ceil(1_000).saturating_sub(since_1970),
        FIRST_EPOCH_SECOND.. => reset.saturating_sub(since_1970),
        _ => reset,
    };
    Some(budget(left, reset, decimal(headers, &X_RATELIMIT_LIMIT).map(|(limit, _)| limit), 0))
}

/// Reads a field of one number, which may have decimals: its whole part, and whether the rest is more than zero.
fn decimal(headers: &HeaderMap, name: &HeaderName) -> Option<(u64, bool)> {
    let text = short_line(headers, name)?.as_bytes().trim_ascii();
    let (whole, decimals) = match text.iter().position(|byte| *byte == b'.') {
        Some(point) => (&text[..point], Some(&text[point + 1..])),
        None => (text, None),
    };
    let rest = decimals.map_or(Some(0), parse_digits)?;
    Some((parse_digits(whole)?, rest > 0))
}

/// Reads a field of one whole number.
fn number(headers: &HeaderMap, name: &HeaderName) -> Option<u64> {
    parse_digits(short_line(headers, name)?.as_bytes().trim_ascii())
}

/// The value of a field that occurs exactly once, unless it is too long.
fn short_line<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a HeaderValue> {
    only_line(headers, name).filter(|line| line.len() <= MAX_BYTES)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;
    use crate::util::cases::cases;

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
        read(StatusCode::from_u16(status).unwrap(), &head(lines), now)
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
        assert_eq!(governing(&[("content-type", "text/plain")]), None);
    }

    #[test]
    fn the_tightest_policy_governs() {
        let of = |field| governing(&[("ratelimit", field)]);
        assert_eq!(of(r#""burst";r=9;t=1, "day";r=100;t=36000"#), Some((100, 36_000, 0)));
        assert_eq!(of(r#""burst";r=1;t=10, "day";r=5000;t=36000"#), Some((5_000, 36_000, 0)));
        assert_eq!(of(r#""burst";r=1;t=20, "day";r=5000;t=36000"#), Some((1, 20, 0)));
        // A budget that is used up comes first, and of several the one with the longest time.
        assert_eq!(of(r#""burst";r=0;t=5, "day";r=1;t=36000"#), Some((0, 5, 0)));
        assert_eq!(of(r#""burst";r=0;t=5, "minute";r=0;t=50, "day";r=1;t=36000"#), Some((0, 50, 0)));
        let both = [("ratelimit", r#""a";r=9;t=1"#), ("x-ratelimit-remaining", "1"), ("x-ratelimit-reset", "9")];
        assert_eq!(governing(&both), Some((1, 9, 0)));
    }

    #[test]
    fn quotas_of_other_units_or_without_a_time_do_not_govern() {
        let in_flight = ("ratelimit-policy", r#""in-flight";q=4;qu="concurrent-requests""#);
        assert_eq!(governing(&[in_flight, ("ratelimit", r#""in-flight";r=0;t=9"#)]), None);
        let bytes = ("ratelimit-policy", r#""in";q=65535;qu="content-bytes";w=10, "out";q=9;qu="requests";w=9"#);
        assert_eq!(governing(&[bytes, ("ratelimit", r#""in";r=0;t=9, "out";r=3;t=7"#)]), Some((3, 7, 1_000)));
        assert_eq!(governing(&[("ratelimit", r#""default";r=0"#)]), None);
    }

    /// The first pause after an answer. Without a report, the pace decides how it goes on.
    fn pause_of(report: CallReport) -> u64 {
        if report.is_unexplained { UNEXPLAINED * SECOND } else { report.pause }
    }

    #[test]
    fn a_response_is_accepted_rejected_or_a_failure() {
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
        // The partner forbids to repeat the call: for its line, that is no rejection.
        assert_eq!(reading(200, &[("grpc-status", "8"), ("grpc-retry-pushback-ms", "-1")]).result, Failed);
    }

    #[test]
    fn a_rejection_pauses_for_as_long_as_it_reports() {
        let pause = |status, lines: &[(&str, &str)]| {
            let ResponseReading { result, report } = reading(status, lines);
            (result == CallResult::Rejected).then_some(pause_of(report) / SECOND)
        };
        assert_eq!(pause(429, &[("retry-after", "7")]), Some(7));
        assert_eq!(pause(503, &[("retry-after", "7")]), Some(7));
        assert_eq!(pause(200, &[("retry-after", "7")]), None);
        assert_eq!(pause(503, &[]), None, "a failure, and no limit");
        assert_eq!(pause(429, &[]), Some(UNEXPLAINED));
        // A budget that is used up lasts until its own end.
        assert_eq!(pause(429, &[("ratelimit", r#""a";r=0;t=5"#)]), Some(0));
        assert_eq!(pause(503, &[("ratelimit", r#""a";r=0;t=5"#)]), Some(0));
        assert_eq!(pause(429, &[("ratelimit", r#""a";r=3;t=5"#)]), Some(UNEXPLAINED));
        assert_eq!(pause(429, &[("retry-after", "Mon, 21 Sep 2026 14:14:20 GMT")]), Some(60));
        // By the partner's own clock, which is half a minute ahead.
        let its_clock = ("date", "Mon, 21 Sep 2026 14:13:50 GMT");
        assert_eq!(pause(429, &[its_clock, ("retry-after", "Mon, 21 Sep 2026 14:14:20 GMT")]), Some(30));
        assert_eq!(pause(429, &[("retry-after", "Mon, 21 Sep 2026 14:13:00 GMT")]), Some(1), "it has passed");
        assert_eq!(pause(429, &[("retry-after", "3"), ("retry-after", "9")]), Some(9));
    }

    #[test]
    fn a_grpc_status_in_the_head_is_a_rejection() {
        let pause = |lines: &[(&str, &str)]| {
            let ResponseReading { result, report } = reading(200, lines);
            (result == CallResult::Rejected).then_some(pause_of(report))
        };
        let exhausted = ("grpc-status", "8");
        assert_eq!(pause(&[exhausted]), Some(UNEXPLAINED * SECOND));
        assert_eq!(pause(&[exhausted, ("grpc-retry-pushback-ms", "2500")]), Some(2_500_000));
        assert_eq!(pause(&[exhausted, ("grpc-retry-pushback-ms", "0")]), Some(1_000));
        assert_eq!(pause(&[exhausted, ("grpc-retry-pushback-ms", "99999999999999999999")]), Some(MAX_RESET * SECOND));
        // The pushback is the more exact of the two.
        assert_eq!(pause(&[exhausted, ("retry-after", "3"), ("grpc-retry-pushback-ms", "2001")]), Some(2_001_000));
        assert_eq!(pause(&[exhausted, ("retry-after", "3")]), Some(3_000_000));
        assert_eq!(pause(&[exhausted, ("ratelimit", r#""a";r=0;t=5"#)]), Some(0));
        // UNAVAILABLE is an outage unless it says when to come again.
        assert_eq!(pause(&[("grpc-status", "14")]), None);
        assert_eq!(pause(&[("grpc-status", "14"), ("grpc-retry-pushback-ms", "70")]), Some(70_000));
        for other in ["0", "2", "13"] {
            assert_eq!(pause(&[("grpc-status", other), ("grpc-retry-pushback-ms", "70")]), None, "{other}");
        }
        // A server that forbids to repeat the call.
        assert_eq!(pause(&[exhausted, ("grpc-retry-pushback-ms", "-1")]), None);
    }

    #[test]
    fn hostile_values_are_capped_or_ignored() {
        let wait = |value| pause_of(reading(429, &[("retry-after", value)]).report) / SECOND;
        assert_eq!((wait("1000000000"), wait("99999999999999999999999")), (MAX_RESET, MAX_RESET));
        for ignored in ["-5", "+5", "1e9", "1, 2", "", "soon", "1.5", "0x10"] {
            assert_eq!(wait(ignored), UNEXPLAINED, "{ignored}");
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
        // A cache may repeat the state of an hour ago.
        assert_eq!(governing(&[("age", "3600"), ("ratelimit", r#""a";r=0;t=5"#)]), None);
    }

    fn vectors(text: &str) -> Vec<Value> {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn the_vectors_of_the_draft_are_read_or_ignored_as_a_whole() {
        let examples = vectors(include_str!("../../../tests/vectors/draft11.json"));
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
        for case in vectors(include_str!("../../../tests/vectors/negative.json")) {
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

        /// Whatever a partner sends, the numbers are in bounds.
        #[test]
        fn any_head_is_read(
            status in prop::sample::select(vec![200_u16, 429, 503]),
            fields in prop::collection::vec((0..8_usize, prop_oneof![
                prop::collection::vec(any::<u8>(), 0..60),
                "[\"a;=rtqw0-9, .:-]{0,40}".prop_map(String::into_bytes),
                "\"a\";r=[0-9]{1,16};t=[0-9]{1,16}".prop_map(String::into_bytes),
                "-?[0-9]{1,30}".prop_map(String::into_bytes),
            ]), 0..6),
        ) {
            let names = [
                RATELIMIT, RATELIMIT_POLICY, X_RATELIMIT_LIMIT, X_RATELIMIT_REMAINING, X_RATELIMIT_RESET,
                header::RETRY_AFTER, header::DATE, header::AGE,
            ];
            let mut headers = HeaderMap::new();
            for (name, value) in fields {
                if let Ok(value) = HeaderValue::from_bytes(&value) {
                    headers.append(names[name].clone(), value);
                }
            }
            let now = UNIX_EPOCH + Duration::from_secs(1_790_000_000);
            let ResponseReading { result, report } = read(StatusCode::from_u16(status).unwrap(), &headers, now);
            prop_assert!(report.pause <= MAX_RESET * SECOND && (result == CallResult::Rejected || report.pause == 0));
            prop_assert!(!report.is_unexplained || report.pause == 0 && report.budget.is_none());
            if let Some(budget) = report.budget {
                prop_assert!(budget.left <= MAX_LEFT && (SECOND..=MAX_RESET * SECOND).contains(&budget.reset));
            }
        }
    }
}
