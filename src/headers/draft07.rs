//! The fields of draft-ietf-httpapi-ratelimit-headers-07 and -06: those of one policy.

use http::{HeaderMap, HeaderName, HeaderValue};

use super::decimal::{self, Scratch, value_of};
use super::measure::Advertised;
use super::merge::is_stricter;
use super::{RATELIMIT, RATELIMIT_POLICY};

const LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("ratelimit-reset");

/// What both drafts tell of a policy.
pub(super) struct Standing<'a> {
    /// By [`policy`].
    pub(super) policy: &'a HeaderValue,
    pub(super) limit: u64,
    pub(super) remaining: u32,
    /// Seconds.
    pub(super) reset: u64,
}

/// `RateLimit-Policy: 100;w=60`.
pub(super) fn policy(advertised: Advertised) -> HeaderValue {
    let mut out = Scratch::new();
    out.push_number(advertised.quota);
    out.push(b";w=");
    out.push_number(advertised.window);
    value_of(&out)
}

/// Sets draft-07's fields, unless stricter ones are there.
pub(super) fn write_07(fields: &mut HeaderMap, standing: &Standing<'_>) {
    if !is_stricter(fields, &RATELIMIT, standing.remaining) {
        fields.insert(RATELIMIT_POLICY, standing.policy.clone());
        fields.insert(RATELIMIT, state_07(standing));
    }
}

/// `limit=100, remaining=50, reset=5`.
pub(super) fn state_07(standing: &Standing<'_>) -> HeaderValue {
    let mut out = Scratch::new();
    out.push(b"limit=");
    out.push_number(standing.limit);
    out.push(b", remaining=");
    out.push_number(standing.remaining.into());
    out.push(b", reset=");
    out.push_number(standing.reset);
    value_of(&out)
}

/// Sets draft-06's fields, unless stricter ones are there.
pub(super) fn write_06(fields: &mut HeaderMap, standing: &Standing<'_>) {
    if !is_stricter(fields, &REMAINING, standing.remaining) {
        fields.insert(RATELIMIT_POLICY, standing.policy.clone());
        fields.insert(LIMIT, decimal::value(standing.limit));
        fields.insert(REMAINING, decimal::value(standing.remaining.into()));
        fields.insert(RESET, decimal::value(standing.reset));
    }
}
