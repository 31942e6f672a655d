//! Header fields, as pure functions from a wait to a value.

use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName, HeaderValue};

/// The field that tells the exact wait, in decimal seconds to the microsecond, rounded up.
pub const X_RATE_LIMITED_FOR: HeaderName = HeaderName::from_static("x-rate-limited-for");

/// The greatest `Retry-After` that is sent. Clients keep the wait in milliseconds in a signed 32-bit
/// timer; beyond 2^31 − 1 of them, several retry at once.
const MAX_RETRY_AFTER: u64 = 2_147_483;

/// Whole seconds that cover `wait`, at least 1 (zero means "at once" to many clients) and at most
/// 2,147,483.
pub(crate) fn retry_after_seconds(wait: Duration) -> u64 {
    let ceil = wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0));
    ceil.clamp(1, MAX_RETRY_AFTER)
}

/// Sets `Retry-After` (RFC 9110, section 10.2.3) to one integer that covers `wait`, or leaves the
/// one that is there if it is an integer and greater.
///
/// It is no list: a second line would make most clients ignore both.
pub(crate) fn insert_retry_after(fields: &mut HeaderMap, wait: Duration) {
    let seconds = retry_after_seconds(wait);
    let mut lines = fields.get_all(RETRY_AFTER).iter();
    let kept = match (lines.next(), lines.next()) {
        (Some(line), None) => delay_seconds(line).is_some_and(|there| there >= seconds && there <= MAX_RETRY_AFTER),
        _ => false,
    };
    if !kept {
        fields.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
}

/// `delay-seconds = 1*DIGIT`.
fn delay_seconds(value: &HeaderValue) -> Option<u64> {
    let digits = value.as_bytes();
    let canonical = digits.iter().all(u8::is_ascii_digit) && (digits.len() == 1 || digits.first() != Some(&b'0'));
    if digits.is_empty() || !canonical {
        return None;
    }
    value.to_str().ok()?.parse().ok()
}

/// `X-Rate-Limited-For`: decimal seconds to the microsecond, rounded up and above zero, so that
/// waiting just that long is enough. Never more than `Retry-After`.
///
/// After the field of M. Perham, "The Leaky Bucket rate limiter", 2020.
pub(crate) fn rate_limited_for(wait: Duration) -> HeaderValue {
    const MICROS_PER_SECOND: u128 = 1_000_000;
    let micros = wait.as_nanos().div_ceil(1_000).clamp(1, u128::from(MAX_RETRY_AFTER) * MICROS_PER_SECOND);
    let text = format!("{}.{:06}", micros / MICROS_PER_SECOND, micros % MICROS_PER_SECOND);
    HeaderValue::try_from(text).expect("digits and a point")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_rounded_up_and_never_zero() {
        for (wait, seconds, exact) in [
            (Duration::ZERO, 1, "0.000001"),
            (Duration::from_nanos(1), 1, "0.000001"),
            (Duration::from_nanos(1_001), 1, "0.000002"),
            (Duration::from_micros(779_124), 1, "0.779124"),
            (Duration::from_secs(1), 1, "1.000000"),
            (Duration::from_nanos(1_000_000_001), 2, "1.000001"),
            (Duration::from_secs(7), 7, "7.000000"),
            (Duration::MAX, 2_147_483, "2147483.000000"),
        ] {
            assert_eq!(retry_after_seconds(wait), seconds, "{wait:?}");
            assert_eq!(rate_limited_for(wait), exact, "{wait:?}");
        }
    }

    #[test]
    fn there_is_one_retry_after_and_the_greater_integer_stays() {
        let after = |lines: &[&'static str]| {
            let mut fields = HeaderMap::new();
            for line in lines {
                fields.append(RETRY_AFTER, HeaderValue::from_static(line));
            }
            insert_retry_after(&mut fields, Duration::from_secs(5));
            let lines: Vec<_> =
                fields.get_all(RETRY_AFTER).iter().map(|line| line.to_str().unwrap().to_owned()).collect();
            lines.join("|")
        };
        assert_eq!(after(&[]), "5");
        assert_eq!(after(&["3"]), "5");
        assert_eq!(after(&["60"]), "60");
        assert_eq!(after(&["60", "70"]), "5");
        assert_eq!(after(&["1.5"]), "5");
        assert_eq!(after(&["0060"]), "5");
        assert_eq!(after(&["4294967"]), "5");
        assert_eq!(after(&["Mon, 05 Aug 2019 09:27:05 GMT"]), "5");
    }
}
