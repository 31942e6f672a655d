//! `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset`: not standardised, and older than all drafts.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderName};

use super::decimal;
use super::fields::ResetForm;
use super::merge::is_stricter;
use crate::http::head::set_field;
use crate::values::Decision;
use crate::values::time::seconds_ceil;

/// The field with the limit of the policy that is closest to exhaustion, as many APIs have it.
pub const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
/// The field with that policy's remaining units.
pub const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
/// The field with the time at which that policy's quota is whole again, or the seconds until then.
pub const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// Clients take greater numbers for seconds since 1970.
const MAX_DELTA: Duration = Duration::from_secs(1_000_000_000);

/// Sets one policy's fields, unless stricter ones are set already. Calls `now` only for seconds since 1970.
pub(super) fn write(
    headers: &mut HeaderMap,
    form: ResetForm,
    decision: &Decision,
    remaining: u64,
    now: impl FnOnce() -> SystemTime,
) {
    if is_stricter(headers, &REMAINING, remaining) {
        return;
    }
    let reset = reset_seconds(form, decision.reset_after(), now);
    set_field(headers, LIMIT, decimal::value(decision.limit()));
    set_field(headers, REMAINING, decimal::value(remaining));
    set_field(headers, RESET, decimal::value(reset));
}

/// Returns `X-RateLimit-Reset` for a key that has its full quota again after `span`, in whole seconds, rounded up.
fn reset_seconds(form: ResetForm, span: Duration, now: impl FnOnce() -> SystemTime) -> u64 {
    let delta = span.min(MAX_DELTA);
    match form {
        ResetForm::DeltaSeconds => seconds_ceil(delta),
        ResetForm::EpochSeconds => {
            // A clock before 1970 is wrong in any case.
            let now = now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
            seconds_ceil(now.saturating_add(delta))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resets_are_rounded_up_deltas() {
        let now = || UNIX_EPOCH + Duration::from_millis(1_790_000_000_250);
        let cases = [
            (Duration::ZERO, 0, 1_790_000_001),
            (Duration::from_millis(700), 1, 1_790_000_001),
            (Duration::from_millis(750), 1, 1_790_000_001),
            (Duration::from_millis(751), 1, 1_790_000_002),
            (Duration::from_millis(1_001), 2, 1_790_000_002),
            (Duration::MAX, 1_000_000_000, 2_790_000_001),
        ];
        for (span, delta, epoch) in cases {
            assert_eq!(reset_seconds(ResetForm::DeltaSeconds, span, now), delta, "{span:?}");
            assert_eq!(reset_seconds(ResetForm::EpochSeconds, span, now), epoch, "{span:?}");
        }
        let before_1970 = || UNIX_EPOCH - Duration::from_secs(5);
        assert_eq!(reset_seconds(ResetForm::EpochSeconds, Duration::from_secs(9), before_1970), 9);
    }
}
