//! `RateLimit-Policy` and `RateLimit` in the syntax of draft-ietf-httpapi-ratelimit-headers-07: two fields that
//! describe one policy.

use http::{HeaderMap, HeaderValue};

use super::decimal::{Scratch, value_of};
use super::measure::Advertised;
use super::merge::is_stricter;
use super::{RATELIMIT, RATELIMIT_POLICY};
use crate::http::head::set_field;

/// The field values for the policy that they describe.
pub(super) struct PolicyStanding<'a> {
    /// `RateLimit-Policy`, made by [`policy`].
    pub(super) policy: Option<&'a HeaderValue>,
    pub(super) limit: u64,
    pub(super) remaining: u64,
    /// Seconds.
    pub(super) reset: u64,
}

/// Makes `RateLimit-Policy: 100;w=60`. `None` if there is no `w`, because time does not restore the units, or because
/// windows differ in length.
pub(super) fn policy(advertised: Advertised) -> Option<HeaderValue> {
    let mut out = Scratch::new();
    out.push_number(advertised.quota);
    out.push(b";w=");
    out.push_number(advertised.window?.get());
    Some(value_of(&out))
}

/// Sets both fields, unless stricter ones are set already.
pub(super) fn write(headers: &mut HeaderMap, standing: &PolicyStanding<'_>) {
    if !is_stricter(headers, &RATELIMIT, standing.remaining) {
        match standing.policy {
            Some(policy) => set_field(headers, RATELIMIT_POLICY, policy.clone()),
            // A field that is set describes another policy.
            None => drop(headers.remove(RATELIMIT_POLICY)),
        }
        set_field(headers, RATELIMIT, ratelimit(standing));
    }
}

/// Makes `RateLimit: limit=100, remaining=50, reset=5`.
fn ratelimit(standing: &PolicyStanding<'_>) -> HeaderValue {
    let mut out = Scratch::new();
    out.push(b"limit=");
    out.push_number(standing.limit);
    out.push(b", remaining=");
    out.push_number(standing.remaining);
    out.push(b", reset=");
    out.push_number(standing.reset);
    value_of(&out)
}
