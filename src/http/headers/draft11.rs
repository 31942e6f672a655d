//! `RateLimit-Policy` and `RateLimit` in the syntax of draft-ietf-httpapi-ratelimit-headers-11 (that of
//! -08 to -11): lists of Strings with parameters, serialized canonically (RFC 9651, section 4.1).

use super::decimal::Scratch;
use super::measure::{Advertised, Level};
use super::partition::Mark;

/// `"name"` (RFC 9651, section 4.1.6).
///
/// # Panics
///
/// If the name is not printable ASCII: a layer rejects such names.
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

/// `"name";q=10;w=1`.
pub(super) fn push_policy(out: &mut Scratch, quoted: &[u8], advertised: Advertised) {
    separate(out);
    out.push(quoted);
    out.push(b";q=");
    out.push_number(advertised.quota);
    out.push(b";w=");
    out.push_number(advertised.window);
}

/// `"name";r=`: the constant start of a member of `RateLimit`.
pub(super) fn prefix(quoted: &[u8]) -> Box<[u8]> {
    [quoted, b";r="].concat().into()
}

/// `"name";r=7;t=1`.
#[inline]
pub(super) fn push_state(out: &mut Scratch, prefix: &[u8], level: Level, mark: Option<Mark>) {
    separate(out);
    out.push(prefix);
    out.push_number(level.left.into());
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
