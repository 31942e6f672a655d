//! The bodies of rejections: problem details in JSON (RFC 9457), or one sentence of plain text.

use smallvec::SmallVec;

use super::rejection::{Reason, Rejection};

/// The base of the problem types of draft-ietf-httpapi-ratelimit-headers-11, section 5: requested, not registered yet.
pub(crate) const DRAFT: &str = "https://iana.org/assignments/http-problem-types";

/// The problem types of the draft: the fragment of the address, and the title.
const QUOTA: (&str, &str) = ("#quota-exceeded", "Quota Exceeded");
const ABUSE: (&str, &str) = ("#abnormal-usage-detected", "Abnormal Usage Detected");
const CAPACITY: (&str, &str) = ("#temporary-reduced-capacity", "Temporary Reduced Capacity");

/// Writes problem details.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    /// `None` to write `about:blank`, which means just the status.
    types: Option<Types>,
}

/// The beginnings of the bodies of each type, up to the status.
#[derive(Clone, Debug)]
struct Types {
    quota: Box<[u8]>,
    capacity: Box<[u8]>,
    abuse: Box<[u8]>,
}

impl Problem {
    /// Writes types under the address `base`, or none.
    pub(crate) fn new(base: Option<&str>) -> Self {
        let types = base.map(|base| {
            let begin = |(fragment, title): (&str, &str)| {
                let mut out = Vec::new();
                push_type(&mut out, base, fragment, title);
                out.into()
            };
            Types { quota: begin(QUOTA), capacity: begin(CAPACITY), abuse: begin(ABUSE) }
        });
        Self { types }
    }

    /// Writes the body of a rejection.
    pub(crate) fn json(&self, rejection: &Rejection) -> Vec<u8> {
        let (status, detail) = (rejection.status(), rejection.pieces());
        let (mut blank, mut escaped) = (Vec::new(), Vec::new());
        let begin: &[u8] = match (&self.types, rejection.reason()) {
            // A server error: all clients share the limit.
            (Some(types), Reason::LimitExceeded) if status.is_server_error() => &types.capacity,
            (Some(types), Reason::LimitExceeded) => &types.quota,
            (Some(types), Reason::LimiterFailed) => &types.capacity,
            (Some(types), Reason::Banned) => &types.abuse,
            (Some(_), Reason::MissingKey | Reason::AmbiguousKey | Reason::Misconfigured) | (None, _) => {
                push_type(&mut blank, "about:blank", "", status.canonical_reason().unwrap_or("Rejected"));
                &blank
            }
        };
        let wait = detail.wait();
        let before: &[u8] = if detail.seconds.is_some() {
            detail.before.as_bytes()
        } else {
            push_escaped(&mut escaped, detail.before);
            &escaped
        };
        let status = status.as_str().as_bytes();
        let mut pieces =
            Pieces::from_slice(&[begin, status, br#","detail":""#, before, &wait, detail.after.as_bytes()]);
        let (mut separator, mut end): (&[u8], &[u8]) = (br#"","violated-policies":[""#, br#""}"#);
        for violated in rejection.verdict().violated() {
            // A token: nothing to escape.
            pieces.extend([separator, violated.name().as_bytes()]);
            (separator, end) = (br#"",""#, br#""]}"#);
        }
        pieces.push(end);
        pieces.concat()
    }
}

/// The pieces of a body, which are put together in one allocation of the exact length.
type Pieces<'a> = SmallVec<[&'a [u8]; 16]>;

/// Writes the detail as plain text, with a line feed.
pub(crate) fn sentence(rejection: &Rejection) -> Vec<u8> {
    let detail = rejection.pieces();
    let wait = detail.wait();
    [detail.before.as_bytes(), &*wait, detail.after.as_bytes(), b"\n".as_slice()].concat()
}

fn push_type(out: &mut Vec<u8>, base: &str, fragment: &str, title: &str) {
    out.extend_from_slice(br#"{"type":""#);
    push_escaped(out, base);
    out.extend_from_slice(fragment.as_bytes());
    out.extend_from_slice(br#"","title":""#);
    out.extend_from_slice(title.as_bytes());
    out.extend_from_slice(br#"","status":"#);
}

/// Appends the inside of a JSON string (RFC 8259, section 7).
fn push_escaped(out: &mut Vec<u8>, text: &str) {
    // The common case. The fold, unlike `any`, has no early exit, so the compiler checks many bytes at a time.
    if !text.bytes().fold(false, |found, byte| found | is_escaped(byte)) {
        return out.extend_from_slice(text.as_bytes());
    }
    for char in text.chars() {
        match char {
            '"' => out.extend_from_slice(br#"\""#),
            '\\' => out.extend_from_slice(br"\\"),
            '\0'..='\x1f' => out.extend_from_slice(format!("\\u{:04x}", u32::from(char)).as_bytes()),
            _ => out.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

const fn is_escaped(byte: u8) -> bool {
    matches!(byte, b'"' | b'\\' | 0..=0x1f)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_escaped() {
        let mut out = Vec::new();
        push_escaped(&mut out, "a\"b\\c\n\u{1}é\"");
        assert_eq!(std::str::from_utf8(&out).unwrap(), r#"a\"b\\c\u000a\u0001é\""#);
    }
}
