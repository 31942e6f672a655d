//! The fields of draft-ietf-httpapi-ratelimit-headers-07, which describe one policy.

use http::{HeaderMap, HeaderValue};

use super::append::is_stricter;
use super::decimal::{Scratch, value_of};
use super::measure::Advertised;
use super::{RATELIMIT, RATELIMIT_POLICY};

/// The policy that the fields describe.
pub(super) struct Standing<'a> {
    /// Made by [`policy`].
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

/// Sets both fields, unless stricter ones are there.
pub(super) fn write(fields: &mut HeaderMap, standing: &Standing<'_>) {
    if !is_stricter(fields, &RATELIMIT, standing.remaining) {
        fields.insert(RATELIMIT_POLICY, standing.policy.clone());
        fields.insert(RATELIMIT, state(standing));
    }
}

/// `limit=100, remaining=50, reset=5`.
fn state(standing: &Standing<'_>) -> HeaderValue {
    let mut out = Scratch::new();
    out.push(b"limit=");
    out.push_number(standing.limit);
    out.push(b", remaining=");
    out.push_number(standing.remaining.into());
    out.push(b", reset=");
    out.push_number(standing.reset);
    value_of(&out)
}
