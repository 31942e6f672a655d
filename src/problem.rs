//! Problem details in JSON (RFC 9457).

use bytes::Bytes;

use crate::rejection::{Reason, Rejection};
use crate::text::Text;

pub(crate) const MEDIA_TYPE: &str = "application/problem+json";

/// Where draft-ietf-httpapi-ratelimit-headers-11, section 5, has its types: requested, not registered yet.
pub(crate) const DRAFT: &str = "https://iana.org/assignments/http-problem-types";

const QUOTA: (&str, &str) = ("#quota-exceeded", "Quota Exceeded");
const ABUSE: (&str, &str) = ("#abnormal-usage-detected", "Abnormal Usage Detected");
const CAPACITY: (&str, &str) = ("#temporary-reduced-capacity", "Temporary Reduced Capacity");

/// Writes the bodies of rejections.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    /// What a body begins with that is of a type, up to the status.
    quota: Box<[u8]>,
    capacity: Box<[u8]>,
    abuse: Box<[u8]>,
    has_types: bool,
}

impl Problem {
    /// With types under this address; or with `about:blank`, which stands for nothing but the status.
    pub(crate) fn new(types: Option<&str>) -> Self {
        let begin = |(fragment, title): (&str, &str)| {
            let mut out = Scratch::new();
            push_type(&mut out, types.unwrap_or_default(), fragment, title);
            out.to_vec().into()
        };
        Self { quota: begin(QUOTA), capacity: begin(CAPACITY), abuse: begin(ABUSE), has_types: types.is_some() }
    }

    /// The body of a rejection, given the whole seconds to wait.
    pub(crate) fn json(&self, rejection: &Rejection, seconds: &str) -> Bytes {
        let mut out = Scratch::new();
        match rejection.reason() {
            Reason::LimitExceeded if self.has_types && !rejection.status().is_server_error() => out.push(&self.quota),
            Reason::Banned if self.has_types => out.push(&self.abuse),
            Reason::LimitExceeded | Reason::LimiterFailed if self.has_types => out.push(&self.capacity),
            _ => push_type(&mut out, "about:blank", "", rejection.status().canonical_reason().unwrap_or("Rejected")),
        }
        out.push(rejection.status().as_str().as_bytes());
        out.push(br#","detail":""#);
        for piece in rejection.detail_pieces(seconds) {
            push_escaped(&mut out, piece);
        }
        let mut before: &[u8] = br#"","violated-policies":[""#;
        for violated in rejection.verdict().violated() {
            out.push(before);
            // A token: nothing to escape.
            out.push(violated.name().as_bytes());
            before = br#"",""#;
        }
        out.push(if rejection.verdict().is_allowed() { br#""}"# } else { br#""]}"# });
        Bytes::copy_from_slice(&out)
    }
}

fn push_type(out: &mut Scratch, base: &str, fragment: &str, title: &str) {
    out.push(br#"{"type":""#);
    push_escaped(out, base);
    out.push(fragment.as_bytes());
    out.push(br#"","title":""#);
    out.push(title.as_bytes());
    out.push(br#"","status":"#);
}

/// Enough for the usual body, so that it is allocated once, and as long as it is.
type Scratch = Text<384>;

/// Writes the inside of a JSON string (RFC 8259, section 7).
fn push_escaped(out: &mut Scratch, text: &str) {
    // All at once, as nearly all texts can be: that check is made on many bytes at a time.
    if !text.bytes().fold(false, |found, byte| found | is_escaped(byte)) {
        return out.push(text.as_bytes());
    }
    for char in text.chars() {
        match char {
            '"' => out.push(br#"\""#),
            '\\' => out.push(br"\\"),
            '\0'..='\x1f' => out.push(format!("\\u{:04x}", u32::from(char)).as_bytes()),
            _ => out.push(char.encode_utf8(&mut [0; 4]).as_bytes()),
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
    fn whatever_is_in_a_string_stays_in_it() {
        let mut out = Scratch::new();
        push_escaped(&mut out, "a\"b\\c\n\u{1}é\"");
        assert_eq!(std::str::from_utf8(&out).unwrap(), r#"a\"b\\c\u000a\u0001é\""#);
    }
}
