//! Problem details in JSON (RFC 9457).

use bytes::Bytes;
use http::StatusCode;
use smallvec::SmallVec;

use crate::rejection::{Reason, Rejection};

pub(crate) const MEDIA_TYPE: &str = "application/problem+json";

/// Where draft-ietf-httpapi-ratelimit-headers-11, section 5, has its types: requested, not registered yet.
pub(crate) const DRAFT: &str = "https://iana.org/assignments/http-problem-types";

const QUOTA: (&str, &str) = ("#quota-exceeded", "Quota Exceeded");
const CAPACITY: (&str, &str) = ("#temporary-reduced-capacity", "Temporary Reduced Capacity");

/// The body of a rejection, given the whole seconds to wait, and where its types are; without that, they are
/// `about:blank`, which stands for nothing but the status.
pub(crate) fn json(rejection: &Rejection, seconds: &str, types: Option<&str>) -> Bytes {
    let class = match rejection.reason() {
        Reason::LimitExceeded if !rejection.status().is_server_error() => Some(QUOTA),
        Reason::LimitExceeded | Reason::LimiterFailed => Some(CAPACITY),
        Reason::MissingKey | Reason::AmbiguousKey | Reason::Misconfigured => None,
    };
    let (base, (fragment, title)) = match (types, class) {
        (Some(base), Some(class)) => (base, class),
        _ => ("about:blank", ("", phrase(rejection.status()))),
    };
    let mut out = Scratch::new();
    push(&mut out, &[r#"{"type":""#]);
    push_escaped(&mut out, base);
    push(&mut out, &[fragment, r#"","title":""#, title, r#"","status":"#, rejection.status().as_str()]);
    push(&mut out, &[r#","detail":""#]);
    for piece in rejection.detail_pieces(seconds) {
        push_escaped(&mut out, piece);
    }
    push(&mut out, &[r#"""#]);
    let mut before = r#","violated-policies":[""#;
    for violated in rejection.verdict().violated() {
        // A token: nothing to escape.
        push(&mut out, &[before, violated.name()]);
        before = r#"",""#;
    }
    push(&mut out, &[if rejection.verdict().is_allowed() { "}" } else { r#""]}"# }]);
    Bytes::copy_from_slice(&out)
}

fn phrase(status: StatusCode) -> &'static str {
    status.canonical_reason().unwrap_or("Rejected")
}

/// Enough for the usual body, so that it is allocated once, and as long as it is.
type Scratch = SmallVec<[u8; 512]>;

fn push(out: &mut Scratch, pieces: &[&str]) {
    for piece in pieces {
        out.extend_from_slice(piece.as_bytes());
    }
}

/// Writes the inside of a JSON string (RFC 8259, section 7).
fn push_escaped(out: &mut Scratch, text: &str) {
    let mut rest = text.as_bytes();
    while let Some(at) = rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1f)) {
        out.extend_from_slice(&rest[..at]);
        match rest[at] {
            byte @ (b'"' | b'\\') => out.extend_from_slice(&[b'\\', byte]),
            byte => push(out, &[&format!("\\u{byte:04x}")]),
        }
        rest = &rest[at + 1..];
    }
    out.extend_from_slice(rest);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_in_a_string_stays_in_it() {
        let mut out = Scratch::new();
        push_escaped(&mut out, "a\"b\\c\n\u{1}é\"");
        assert_eq!(std::str::from_utf8(&out).unwrap(), r#"a\"b\\c\u000a\u0001é\""#);
    }
}
