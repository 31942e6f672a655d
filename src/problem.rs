//! Problem details in JSON (RFC 9457).

use bytes::Bytes;
use smallvec::SmallVec;

use crate::headers::retry_after_seconds;
use crate::rejection::{Reason, Rejection};
use crate::text::Text;

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

    /// The body of a rejection.
    pub(crate) fn json(&self, rejection: &Rejection) -> Bytes {
        let status = rejection.status();
        let (mut blank, mut escaped, mut digits) = (Scratch::new(), Scratch::new(), Text::new());
        let begin: &[u8] = match rejection.reason() {
            Reason::LimitExceeded if self.has_types && !status.is_server_error() => &self.quota,
            Reason::Banned if self.has_types => &self.abuse,
            Reason::LimitExceeded | Reason::LimiterFailed if self.has_types => &self.capacity,
            _ => {
                push_type(&mut blank, "about:blank", "", status.canonical_reason().unwrap_or("Rejected"));
                &blank
            }
        };
        let mut pieces = Pieces::from_slice(&[begin, status.as_str().as_bytes(), br#","detail":""#]);
        if rejection.detail_of_wait().is_none() {
            push_escaped(&mut escaped, rejection.plain_detail());
            pieces.push(&escaped);
        } else {
            push_detail(rejection, &mut digits, &mut pieces);
        }
        let mut before: &[u8] = br#"","violated-policies":[""#;
        let mut end: &[u8] = br#""}"#;
        for violated in rejection.verdict().violated() {
            // A token: nothing to escape.
            pieces.extend([before, violated.name().as_bytes()]);
            (before, end) = (br#"",""#, br#""]}"#);
        }
        pieces.push(end);
        // In one allocation, which is as long as it is.
        pieces.concat().into()
    }
}

/// What a body is made of.
type Pieces<'a> = SmallVec<[&'a [u8]; 12]>;

/// The sentence for people as the body, on a line of its own.
pub(crate) fn sentence(rejection: &Rejection) -> Bytes {
    let mut digits = Text::new();
    let mut pieces = Pieces::new();
    push_detail(rejection, &mut digits, &mut pieces);
    pieces.push(b"\n");
    pieces.concat().into()
}

#[inline]
fn push_detail<'a>(rejection: &'a Rejection, digits: &'a mut Text<24>, pieces: &mut Pieces<'a>) {
    match (rejection.detail_of_wait(), rejection.retry_after()) {
        (Some(before), Some(wait)) => {
            let seconds = retry_after_seconds(wait);
            digits.push_number(seconds);
            pieces.extend([before.as_bytes(), digits, Rejection::after_seconds(seconds).as_bytes()]);
        }
        _ => pieces.push(rejection.plain_detail().as_bytes()),
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

/// Enough for most sentences.
type Scratch = Text<128>;

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
