//! Rejection bodies: problem details in JSON (RFC 9457), or one plain text sentence.

use http::StatusCode;

use super::rejection::{BANNED, EXCEEDED, OVERLOADED, OVERLOADED_LATER, Rejection};
use crate::engine::reason::Reason;

/// The base address of the problem types in draft-ietf-httpapi-ratelimit-headers-11, section 5. They are requested, but
/// not registered yet.
pub(crate) const DRAFT: &str = "https://iana.org/assignments/http-problem-types";

/// The draft's problem types: the address's fragment, and the title.
const QUOTA: (&str, &str) = ("#quota-exceeded", "Quota Exceeded");
const ABUSE: (&str, &str) = ("#abnormal-usage-detected", "Abnormal Usage Detected");
const CAPACITY: (&str, &str) = ("#temporary-reduced-capacity", "Temporary Reduced Capacity");

/// Writes problem details.
pub(crate) struct Problem {
    /// The types' base address. `None` to write `about:blank`, which stands for the status alone.
    base: Option<Box<str>>,
    /// The beginnings of most bodies, up to the wait, and whether there is a wait.
    beginnings: [(Reason, StatusCode, bool, Box<[u8]>); 5],
}

impl Problem {
    /// Writes types under the address `base`, or no types.
    pub(crate) fn new(base: Option<&str>) -> Self {
        let beginnings = [
            (Reason::LimitExceeded, StatusCode::TOO_MANY_REQUESTS, true, EXCEEDED),
            (Reason::LimitExceeded, StatusCode::SERVICE_UNAVAILABLE, true, EXCEEDED),
            (Reason::Overloaded, StatusCode::SERVICE_UNAVAILABLE, true, OVERLOADED),
            (Reason::Overloaded, StatusCode::SERVICE_UNAVAILABLE, false, OVERLOADED_LATER),
            (Reason::Banned, StatusCode::TOO_MANY_REQUESTS, true, BANNED),
        ]
        .map(|(reason, status, waits, before)| (reason, status, waits, beginning(base, reason, status, before).into()));
        Self { base: base.map(Box::from), beginnings }
    }

    /// Writes a rejection's body.
    pub(crate) fn json(&self, rejection: &Rejection) -> Vec<u8> {
        let reason = rejection.reason();
        let status = rejection.status();
        let detail = rejection.pieces();
        let wanted = (reason, status, detail.seconds.is_some());
        let known = self.beginnings.iter().find(|(reason, status, waits, _)| (*reason, *status, *waits) == wanted);
        let made;
        let begin = match known {
            Some((.., begin)) => begin,
            None => {
                made = beginning(self.base.as_deref(), reason, status, detail.before);
                &*made
            }
        };
        let wait = detail.wait();
        let violated = || rejection.verdict().violated().map(|violated| violated.name().as_bytes());
        // If there is one name, this is the exact length, so that there is one allocation.
        let names: usize = violated().map(|name| name.len() + VIOLATED.len() + 1).sum();
        let mut out = Vec::with_capacity(begin.len() + wait.len() + detail.after.len() + names + END.len());
        out.extend_from_slice(begin);
        out.extend_from_slice(&wait);
        out.extend_from_slice(detail.after.as_bytes());
        let (mut separator, mut end) = (VIOLATED, END);
        for name in violated() {
            out.extend_from_slice(separator);
            // A name is a token, so we need not escape it.
            out.extend_from_slice(name);
            (separator, end) = (br#"",""#, br#""]}"#);
        }
        out.extend_from_slice(end);
        out
    }
}

const VIOLATED: &[u8] = br#"","violated-policies":[""#;
const END: &[u8] = br#""}"#;

/// Writes a body's beginning, with the detail up to the wait, `before`.
#[cold]
fn beginning(base: Option<&str>, reason: Reason, status: StatusCode, before: &str) -> Vec<u8> {
    let kind = match reason {
        // A server error means that all clients share the limit.
        Reason::LimitExceeded if status.is_server_error() => Some(CAPACITY),
        Reason::LimitExceeded => Some(QUOTA),
        Reason::Overloaded | Reason::LimiterFailed => Some(CAPACITY),
        Reason::Banned | Reason::BannedByHand => Some(ABUSE),
        // The draft does not have a type for it, and `about:blank` with the status says enough (RFC 9457, 4.2.1).
        Reason::Suspended => None,
        Reason::MissingKey | Reason::AmbiguousKey | Reason::Misconfigured => None,
    };
    let blank = ("", status.canonical_reason().unwrap_or("Rejected"));
    let (base, (fragment, title)) = base.zip(kind).unwrap_or(("about:blank", blank));
    let mut out = br#"{"type":""#.to_vec();
    push_escaped(&mut out, base);
    for piece in [fragment, r#"","title":""#, title, r#"","status":"#, status.as_str(), r#","detail":""#] {
        out.extend_from_slice(piece.as_bytes());
    }
    push_escaped(&mut out, before);
    out
}

/// Writes the detail as plain text, with a line feed.
pub(crate) fn sentence(rejection: &Rejection) -> Vec<u8> {
    let detail = rejection.pieces();
    let wait = detail.wait();
    [detail.before.as_bytes(), &*wait, detail.after.as_bytes(), b"\n".as_slice()].concat()
}

/// Appends the inside of a JSON string (RFC 8259, section 7).
fn push_escaped(out: &mut Vec<u8>, text: &str) {
    // Fast path. The fold, unlike `any`, does not exit early, so the compiler checks many bytes at a time.
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
