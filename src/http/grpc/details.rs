//! Encodes `google.rpc.Status`, with its details, in the Protocol Buffers wire format. Nothing is decoded.

use std::time::Duration;

/// A policy that rejects the request: `QuotaFailure.Violation`.
#[derive(Clone, Debug)]
pub(crate) struct Violation<'a> {
    /// The policy's name.
    pub(crate) subject: &'a str,
    /// The remaining units, as text for people.
    pub(crate) description: String,
}

/// The most bytes for violations, except for the tag and the length of the last one. Further violations are left out.
/// Together with the bounded message, this keeps a response's fields below the 8 KiB that clients accept.
const MAX_VIOLATIONS: usize = 1_024;

/// The longest `google.protobuf.Duration`: 10,000 years, by its definition.
const MAX_SECONDS: u64 = 315_576_000_000;

/// Encodes `google.rpc.Status { code, message, details: [RetryInfo, QuotaFailure] }`, without empty details.
pub(super) fn status(code: u32, message: &str, wait: Option<Duration>, violations: &[Violation<'_>]) -> Vec<u8> {
    let mut status = Vec::with_capacity(256);
    integer(&mut status, 1, code.into());
    bytes(&mut status, 2, message.as_bytes());
    if let Some(wait) = wait {
        let mut info = Vec::new();
        bytes(&mut info, 1, &duration(wait));
        detail(&mut status, "type.googleapis.com/google.rpc.RetryInfo", &info);
    }
    if !violations.is_empty() {
        detail(&mut status, "type.googleapis.com/google.rpc.QuotaFailure", &quota_failure(violations));
    }
    status
}

/// Appends a `google.protobuf.Any` to the details.
fn detail(status: &mut Vec<u8>, type_url: &str, value: &[u8]) {
    let mut any = Vec::new();
    bytes(&mut any, 1, type_url.as_bytes());
    bytes(&mut any, 2, value);
    bytes(status, 3, &any);
}

/// Encodes a `google.protobuf.Duration`.
fn duration(span: Duration) -> Vec<u8> {
    let span = span.min(Duration::from_secs(MAX_SECONDS));
    let mut duration = Vec::new();
    integer(&mut duration, 1, span.as_secs());
    integer(&mut duration, 2, span.subsec_nanos().into());
    duration
}

/// Encodes a `google.rpc.QuotaFailure`.
fn quota_failure(violations: &[Violation<'_>]) -> Vec<u8> {
    let mut failure = Vec::new();
    for Violation { subject, description } in violations {
        let mut violation = Vec::new();
        bytes(&mut violation, 1, subject.as_bytes());
        bytes(&mut violation, 2, description.as_bytes());
        if failure.len() + violation.len() > MAX_VIOLATIONS {
            break;
        }
        bytes(&mut failure, 1, &violation);
    }
    failure
}

/// Appends a non-negative `int32` or `int64` field. Zero is encoded by leaving the field out.
fn integer(message: &mut Vec<u8>, field: u8, value: u64) {
    if value > 0 {
        message.push(field << 3);
        varint(message, value);
    }
}

/// Appends a field with a length: bytes, a string or a message. An empty one is written, too, because an empty message
/// is present, not absent.
fn bytes(message: &mut Vec<u8>, field: u8, value: &[u8]) {
    message.push(field << 3 | 2);
    varint(message, value.len() as u64);
    message.extend_from_slice(value);
}

/// Appends a number, seven bits per byte, lowest first. The top bit is set if more follow.
fn varint(message: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        message.push(0x80 | (value & 0x7f) as u8);
        value >>= 7;
    }
    message.push((value & 0x7f) as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_and_durations_match_the_documentation() {
        let encoded = |value| {
            let mut message = Vec::new();
            integer(&mut message, 1, value);
            message
        };
        // The example in the format's documentation.
        assert_eq!(encoded(150), [0x08, 0x96, 0x01]);
        assert_eq!(encoded(127), [0x08, 0x7f]);
        assert_eq!(encoded(u64::MAX).len(), 11);
        assert!(encoded(0).is_empty());

        assert_eq!(duration(Duration::new(3, 1)), [0x08, 3, 0x10, 1]);
        assert!(duration(Duration::ZERO).is_empty());
        assert_eq!(duration(Duration::MAX), duration(Duration::from_secs(MAX_SECONDS)));
    }

    #[test]
    fn violations_name_their_policies() {
        let violation = Violation { subject: "a", description: "bc".to_owned() };
        let failure = quota_failure(&[violation.clone(), violation]);
        let one = [0x0a, 7, 0x0a, 1, b'a', 0x12, 2, b'b', b'c'];
        assert_eq!(failure, [one, one].concat());
    }

    #[test]
    fn excess_violations_are_left_out() {
        // A violation has its two strings, each with a tag and a length in two bytes, or three from 128 on.
        let violation = |length: usize| Violation { subject: "a", description: "b".repeat(length) };
        assert_eq!(quota_failure(&[violation(MAX_VIOLATIONS - 6)]).len(), MAX_VIOLATIONS + 3);
        let two = [violation(MAX_VIOLATIONS - 6), violation(1)];
        assert_eq!(quota_failure(&two), quota_failure(&two[..1]));
    }
}
