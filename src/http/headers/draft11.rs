//! `RateLimit-Policy` and `RateLimit` in the syntax of draft-ietf-httpapi-ratelimit-headers-11 (the same since -08):
//! lists of Strings with parameters, serialized canonically (RFC 9651, section 4.1).

use http::{HeaderMap, HeaderName, HeaderValue};

use super::decimal::Scratch;
use super::measure::{Advertised, Level};
use super::merge::merge_draft11;
use super::partition::Mark;
use super::{RATELIMIT, RATELIMIT_POLICY};
use crate::http::head::append_field;

/// Adds both fields to a response, and merges them with fields that are set. `state` is the value of `RateLimit`.
/// `None` if only the policies are advertised.
///
/// Nearly always both are unset. Appending finds that out with one lookup per name, while a lookup before an insertion
/// would be a second one.
#[inline]
pub(super) fn write(headers: &mut HeaderMap, policy: HeaderValue, state: Option<HeaderValue>) {
    // If the map is full, the field is left out, because that is not a reason to fail a response.
    let was_set = |appended: Result<bool, _>| appended.unwrap_or(false);
    if was_set(headers.try_append(RATELIMIT_POLICY, policy)) {
        return merge_taken_back(headers, state.as_ref());
    }
    let Some(state) = state else {
        if headers.contains_key(RATELIMIT) {
            merge_taken_back(headers, None);
        }
        return;
    };
    if was_set(headers.try_append(RATELIMIT, state)) {
        let state = take_back(headers, &RATELIMIT);
        merge_taken_back(headers, state.as_ref());
    }
}

/// Merges the appended `RateLimit-Policy`, and `state`, with the response's earlier values.
#[cold]
fn merge_taken_back(headers: &mut HeaderMap, state: Option<&HeaderValue>) {
    if let Some(policy) = take_back(headers, &RATELIMIT_POLICY) {
        merge_draft11(headers, &policy, state);
    }
}

/// Removes and returns a field's last line.
#[cold]
fn take_back(headers: &mut HeaderMap, name: &HeaderName) -> Option<HeaderValue> {
    let mut lines: Vec<_> = headers.get_all(name).iter().cloned().collect();
    let last = lines.pop();
    headers.remove(name);
    for line in lines {
        // There is room, because the line was there before.
        append_field(headers, name.clone(), line);
    }
    last
}

/// Returns `"name"` (RFC 9651, section 4.1.6).
///
/// # Panics
///
/// If the name is not printable ASCII. A layer rejects such names when it is built.
pub(super) fn quoted(name: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len() + 2);
    out.push(b'"');
    for byte in name.bytes() {
        assert!((b' '..=b'~').contains(&byte), "a policy's name has only printable ASCII: {name:?}");
        if matches!(byte, b'"' | b'\\') {
            out.push(b'\\');
        }
        out.push(byte);
    }
    out.push(b'"');
    out
}

/// The unit that a policy's quota counts: the parameter `qu` in `RateLimit-Policy` (section 3.1.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QuotaUnit {
    /// Requests, or the units that they cost under a policy. Not written, because it is the default.
    Requests,
    ContentBytes,
    ConcurrentRequests,
}

/// Appends `"name";q=10;w=1`, a member for `RateLimit-Policy`. `;qu="content-bytes"` comes before the window. `w` is
/// left out if time does not restore the units, or windows differ in length.
pub(super) fn push_policy(out: &mut Scratch, quoted: &[u8], advertised: Advertised, unit: QuotaUnit) {
    separate(out);
    out.push(quoted);
    out.push(b";q=");
    out.push_number(advertised.quota);
    match unit {
        QuotaUnit::Requests => {}
        QuotaUnit::ContentBytes => out.push(br#";qu="content-bytes""#),
        QuotaUnit::ConcurrentRequests => out.push(br#";qu="concurrent-requests""#),
    }
    if let Some(window) = advertised.window {
        out.push(b";w=");
        out.push_number(window.get());
    }
}

/// Returns `"name";r=`, the constant start of a `RateLimit` member.
pub(super) fn prefix(quoted: &[u8]) -> Box<[u8]> {
    [quoted, b";r="].concat().into()
}

/// Returns the quoted name in such a start.
pub(super) fn name_in(prefix: &[u8]) -> &[u8] {
    prefix.strip_suffix(b";r=").unwrap_or(prefix)
}

/// Appends a `RateLimit` member: `"name";r=7`, with `;t=1` and `;pk=:…:` if there is a time and a mark.
#[inline]
pub(super) fn push_state(out: &mut Scratch, prefix: &[u8], level: Level, mark: Option<Mark>) {
    separate(out);
    out.push(prefix);
    out.push_number(level.left);
    if let Some(within) = level.within {
        out.push(b";t=");
        out.push_number(within.get());
    }
    if let Some(mark) = mark {
        out.push(b";pk=");
        mark.push(out);
    }
}

fn separate(out: &mut Scratch) {
    if !out.is_empty() {
        out.push(b", ");
    }
}
