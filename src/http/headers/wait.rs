//! `Retry-After`, `X-Rate-Limited-For` and `retry-after-ms`: how long a rejected client has to wait.

use std::cell::LazyCell;
use std::time::{Duration, SystemTime};

use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::decimal::{self, Scratch, value_of};
use crate::http::head::{append_field, set_field};
use crate::values::time::seconds_ceil;

/// The field with the exact wait, in decimal seconds to the microsecond, rounded up. After the field in M. Perham, "The
/// Leaky Bucket rate limiter", 2020.
pub const X_RATE_LIMITED_FOR: HeaderName = HeaderName::from_static("x-rate-limited-for");

/// The wait in whole milliseconds, as some vendors' clients read it.
pub(super) const RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");

/// The longest wait that is advertised, in milliseconds: 2^31 − 1. Clients keep the wait in a signed 32-bit timer, and
/// several clients retry at once if it is longer.
const MAX_RETRY_AFTER_MS: u64 = 2_147_483_647;

/// The longest wait that is advertised, in whole seconds.
const MAX_RETRY_AFTER: u64 = MAX_RETRY_AFTER_MS / 1_000;

/// The longest wait after which an advised client may come back, even if the limit says more.
pub(crate) const LONGEST_ADVERTISED: Duration = Duration::from_secs(MAX_RETRY_AFTER);

/// Selects the fields that advertise a rejection's wait. `Retry-After` is always sent. By default, so is
/// `X-Rate-Limited-For`, the same wait to the microsecond.
///
/// Rejections that no wait helps do not have these fields. Rejections by a limiter that failed, or by an
/// [overloaded](crate::Overload) server, have only `Retry-After`, because the wait is a guess or an estimate. A wait
/// longer than 2,147,483 seconds (24.8 days) is advertised as 2,147,483 seconds, because many clients cannot wait
/// longer, and retry at once.
///
/// ```
/// use http::HeaderName;
/// use tower_sluice::headers::WaitFields;
///
/// let fields = WaitFields::new().exact_wait_named(HeaderName::from_static("x-retry-in")).retry_after_ms();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
#[doc(alias("Retry-After", "retry after"))]
pub struct WaitFields {
    pub(super) exact: Option<HeaderName>,
    /// The decimals of the exact wait, in seconds.
    decimals: u32,
    pub(super) millis: bool,
}

impl WaitFields {
    /// Sends `Retry-After`, and `X-Rate-Limited-For` with six decimals.
    pub const fn new() -> Self {
        Self { exact: Some(X_RATE_LIMITED_FOR), decimals: 6, millis: false }
    }

    /// Sends the exact wait under this name instead.
    pub fn exact_wait_named(self, name: HeaderName) -> Self {
        Self { exact: Some(name), ..self }
    }

    /// Sends the exact wait with three decimals instead of six, still rounded up, as a structured field Decimal (RFC
    /// 9651, section 3.3.2).
    pub fn exact_wait_in_millis(self) -> Self {
        Self { decimals: 3, ..self }
    }

    /// Leaves the exact wait out.
    pub fn without_exact_wait(self) -> Self {
        Self { exact: None, ..self }
    }

    /// Adds `retry-after-ms`, the wait in whole milliseconds, rounded up. Not standardised, but several AI services'
    /// clients prefer it to `Retry-After`.
    pub fn retry_after_ms(self) -> Self {
        Self { millis: true, ..self }
    }

    /// Sets the fields for a rejection after which the client has to wait for exactly `wait`. Calls `now` only if a
    /// `Retry-After` with a date is set already.
    pub(crate) fn write(&self, headers: &mut HeaderMap, wait: Duration, now: impl FnOnce() -> SystemTime) {
        merge_retry_after(headers, wait, now);
        if let Some(name) = &self.exact {
            set_field(headers, name.clone(), self.exact_value(wait));
        }
        if self.millis {
            set_field(headers, RETRY_AFTER_MS, millis(wait));
        }
    }

    pub(super) fn exact_value(&self, wait: Duration) -> HeaderValue {
        exact(wait, self.decimals)
    }
}

impl Default for WaitFields {
    fn default() -> Self {
        Self::new()
    }
}

/// Rounds `wait` up to whole seconds, at least 1 (zero means "at once" to many clients) and at most
/// [`MAX_RETRY_AFTER`].
pub(crate) fn retry_after_seconds(wait: Duration) -> u64 {
    seconds_ceil(wait).clamp(1, MAX_RETRY_AFTER)
}

pub(super) fn retry_after(wait: Duration) -> HeaderValue {
    decimal::value(retry_after_seconds(wait))
}

pub(super) fn millis(wait: Duration) -> HeaderValue {
    let millis = wait.as_nanos().div_ceil(1_000_000);
    decimal::value(u64::try_from(millis).unwrap_or(MAX_RETRY_AFTER_MS).clamp(1, MAX_RETRY_AFTER_MS))
}

/// Sets `Retry-After` (RFC 9110, section 10.2.3) to one integer that covers `wait` and the value that is set already,
/// in seconds or as a date in any of the three forms. Any other value is replaced.
///
/// The field is not a list, so a second line would make most clients ignore both.
pub(crate) fn merge_retry_after(headers: &mut HeaderMap, wait: Duration, now: impl FnOnce() -> SystemTime) {
    // This takes one lookup, because nearly always nothing is set yet. If the map is full, the field is left out,
    // because that is not a reason to fail a response.
    if append_field(headers, RETRY_AFTER, retry_after(wait)) {
        unite_retry_after(headers, now);
    }
}

/// Replaces all `Retry-After` lines with the longest wait among them.
#[cold]
fn unite_retry_after(headers: &mut HeaderMap, now: impl FnOnce() -> SystemTime) {
    let now = LazyCell::new(now);
    let seconds = headers.get_all(RETRY_AFTER).iter().filter_map(|line| seconds_in(line, || *now)).max();
    set_field(headers, RETRY_AFTER, decimal::value(seconds.unwrap_or(1).clamp(1, MAX_RETRY_AFTER)));
}

/// Reads a `Retry-After` as whole seconds, or as the seconds until a date, rounded up.
pub fn seconds_in(value: &HeaderValue, now: impl FnOnce() -> SystemTime) -> Option<u64> {
    if let Some(seconds) = decimal::parse(value.as_bytes().trim_ascii()) {
        return Some(seconds);
    }
    Some(seconds_ceil(date(value)?.duration_since(now()).unwrap_or(Duration::ZERO)))
}

/// Reads a date, in any of the three forms in RFC 9110.
pub fn date(value: &HeaderValue) -> Option<SystemTime> {
    httpdate::parse_http_date(value.to_str().ok()?).ok()
}

/// Writes the exact wait in decimal seconds, with three decimals or six. They are rounded up and above zero, so that
/// waiting exactly that long is enough, and never more than `Retry-After`.
fn exact(wait: Duration, decimals: u32) -> HeaderValue {
    // The nanoseconds in the last decimal.
    let grain = if decimals == 3 { 1_000_000 } else { 1_000 };
    let mut seconds = wait.as_secs();
    let mut grains = wait.subsec_nanos().div_ceil(grain);
    if grains == 1_000_000_000 / grain {
        (seconds, grains) = (seconds.saturating_add(1), 0);
    }
    if seconds >= MAX_RETRY_AFTER {
        (seconds, grains) = (MAX_RETRY_AFTER, 0);
    } else if seconds == 0 {
        grains = grains.max(1);
    }
    let mut out = Scratch::new();
    out.push_number(seconds);
    out.push(b".");
    out.push_padded(grains.into(), decimals);
    value_of(&out)
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use proptest::prelude::*;

    use super::*;
    use crate::http::headers::tests::listed;
    use crate::util::cases::cases;

    #[test]
    fn waits_are_rounded_up_and_never_zero() {
        for (wait, seconds, exact, millis) in [
            (Duration::ZERO, 1, "0.000001", "0.001"),
            (Duration::from_nanos(1), 1, "0.000001", "0.001"),
            (Duration::from_nanos(1_001), 1, "0.000002", "0.001"),
            (Duration::from_micros(779_124), 1, "0.779124", "0.780"),
            (Duration::from_nanos(999_999_001), 1, "1.000000", "1.000"),
            (Duration::from_secs(1), 1, "1.000000", "1.000"),
            (Duration::from_nanos(1_000_000_001), 2, "1.000001", "1.001"),
            (Duration::from_secs(7), 7, "7.000000", "7.000"),
            (Duration::new(2_147_482, 999_999_999), 2_147_483, "2147483.000000", "2147483.000"),
            (Duration::MAX, 2_147_483, "2147483.000000", "2147483.000"),
        ] {
            assert_eq!(retry_after_seconds(wait), seconds, "{wait:?}");
            assert_eq!(super::exact(wait, 6), exact, "{wait:?}");
            assert_eq!(super::exact(wait, 3), millis, "{wait:?}");
        }
    }

    /// Returns the field after merging a wait of five seconds with these lines, at 09:27:00.
    fn after(lines: &[&'static str]) -> String {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(RETRY_AFTER, HeaderValue::from_static(line));
        }
        let now = httpdate::parse_http_date("Mon, 05 Aug 2019 09:27:00 GMT").unwrap();
        merge_retry_after(&mut headers, Duration::from_secs(5), || now);
        let lines: Vec<_> = headers.get_all(RETRY_AFTER).iter().map(|line| line.to_str().unwrap()).collect();
        lines.join("|")
    }

    /// It covers the value that was set before.
    #[test]
    fn there_is_one_retry_after() {
        assert_eq!(after(&[]), "5");
        assert_eq!(after(&["3"]), "5");
        assert_eq!(after(&["60"]), "60");
        assert_eq!(after(&["60", "70"]), "70");
        assert_eq!(after(&["70", "soon"]), "70");
        assert_eq!(after(&["0060"]), "60");
        assert_eq!(after(&["4294967"]), "2147483");
        assert_eq!(after(&["99999999999999999999999"]), "2147483");
        for unreadable in ["1.5", "-60", "+60", "1, 60", "", "soon", "60s", "Mon, 05 Aug 2019 09:28:00"] {
            assert_eq!(after(&[unreadable]), "5", "{unreadable:?}");
        }
    }

    #[test]
    fn all_date_forms_count() {
        assert_eq!(after(&["Mon, 05 Aug 2019 09:28:00 GMT"]), "60");
        assert_eq!(after(&["Monday, 05-Aug-19 09:28:00 GMT"]), "60");
        assert_eq!(after(&["Mon Aug  5 09:28:00 2019"]), "60");
        // These dates are in the past, or sooner than ours.
        assert_eq!(after(&["Mon, 05 Aug 2019 09:26:00 GMT"]), "5");
        assert_eq!(after(&["Mon, 05 Aug 2019 09:27:04 GMT"]), "5");
        assert_eq!(after(&["Fri, 05 Aug 2033 09:27:04 GMT"]), "2147483");
    }

    #[test]
    fn fractional_seconds_are_rounded_up() {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, HeaderValue::from_static("Thu, 01 Jan 1970 00:01:00 GMT"));
        merge_retry_after(&mut headers, Duration::ZERO, || UNIX_EPOCH + Duration::from_millis(500));
        assert_eq!(headers[RETRY_AFTER], "60");
    }

    #[test]
    fn only_dates_read_the_clock() {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, HeaderValue::from_static("7"));
        merge_retry_after(&mut headers, Duration::ZERO, || unreachable!("no date is set"));
        assert_eq!(headers[RETRY_AFTER], "7");
    }

    #[test]
    fn a_rejection_has_the_configured_fields() {
        let written = |choice: &WaitFields| {
            let mut headers = HeaderMap::new();
            choice.write(&mut headers, Duration::from_micros(1_200_001), || UNIX_EPOCH);
            listed(&headers)
        };
        assert_eq!(written(&WaitFields::default()), "retry-after: 2; x-rate-limited-for: 1.200001");
        let renamed = WaitFields::new().exact_wait_named(HeaderName::from_static("x-retry-in")).exact_wait_in_millis();
        assert_eq!(written(&renamed), "retry-after: 2; x-retry-in: 1.201");
        let plain = WaitFields::new().without_exact_wait();
        assert_eq!(written(&plain), "retry-after: 2");
        assert_eq!(written(&plain.retry_after_ms()), "retry-after: 2; retry-after-ms: 1201");
    }

    /// In nanoseconds.
    const SECOND: u64 = 1_000_000_000;

    proptest! {
        #![proptest_config(cases(256))]

        /// 0 < X-Rate-Limited-For ≤ Retry-After < X-Rate-Limited-For + 1, and both are at least the wait.
        #[test]
        fn exact_and_rounded_waits_agree(wait in prop_oneof![
            1..3 * SECOND,
            1..MAX_RETRY_AFTER * SECOND,
        ]) {
            let span = Duration::from_nanos(wait);
            let seconds = retry_after_seconds(span);
            prop_assert!(seconds * SECOND >= wait);
            for (value, grain) in [(exact(span, 6), 1_000), (exact(span, 3), 1_000_000)] {
                let text = value.to_str().unwrap();
                let exact = text.replace('.', "").parse::<u64>().unwrap() * grain;
                prop_assert!(exact >= wait && exact - wait < grain, "{text} for {wait} ns");
                prop_assert!(exact > 0 && exact <= seconds * SECOND);
                // A wait just below the last grain is advertised as the whole second.
                prop_assert!(seconds * SECOND < exact + SECOND);
            }
        }
    }
}
