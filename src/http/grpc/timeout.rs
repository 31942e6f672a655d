//! `grpc-timeout`: how long the client waits for the response.

use std::time::Duration;

use http::{HeaderName, Method};

use super::Protocol;
use crate::http::head::{RequestHead, only_line, trimmed};

/// A constant, because a string would be parsed for each request.
const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// Returns how long a gRPC client waits for the response, from when it sent the request. `None` if the field is absent,
/// repeated or unreadable, or the request is plain HTTP.
pub(crate) fn timeout(head: &RequestHead<'_>) -> Option<Duration> {
    // All other methods are plain HTTP, and most requests have one of them.
    if *head.method() != Method::POST {
        return None;
    }
    let timeout = parse(trimmed(only_line(head.headers(), GRPC_TIMEOUT)?))?;
    (Protocol::detect(head) != Protocol::Http).then_some(timeout)
}

/// Parses `TimeoutValue TimeoutUnit` from PROTOCOL-HTTP2, with one to eight digits.
fn parse(text: &[u8]) -> Option<Duration> {
    let (unit, digits) = text.split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    // Eight digits in hours do not overflow a `u64` in seconds.
    let value = digits.iter().fold(0, |value, digit| value * 10 + u64::from(digit - b'0'));
    match unit {
        b'H' => Some(Duration::from_secs(value * 3_600)),
        b'M' => Some(Duration::from_secs(value * 60)),
        b'S' => Some(Duration::from_secs(value)),
        b'm' => Some(Duration::from_millis(value)),
        b'u' => Some(Duration::from_micros(value)),
        b'n' => Some(Duration::from_nanos(value)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Version};

    use super::*;

    #[test]
    fn every_unit_is_read_and_nothing_else() {
        for (text, timeout) in [
            ("1H", Duration::from_secs(3_600)),
            ("2M", Duration::from_secs(120)),
            ("3S", Duration::from_secs(3)),
            ("100m", Duration::from_millis(100)),
            ("5u", Duration::from_micros(5)),
            ("99999999n", Duration::from_nanos(99_999_999)),
            ("99999999H", Duration::from_secs(99_999_999 * 3_600)),
            ("0S", Duration::ZERO),
        ] {
            assert_eq!(parse(text.as_bytes()), Some(timeout), "{text}");
        }
        for text in ["", "S", "1", "1s", "1h", "123456789n", "-1S", "+1S", "1.5S", " 1S", "1 S", "1SS", "ü"] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn only_grpc_has_one_timeout() {
        let timeout_of = |content_type: &str, timeouts: &[&str]| {
            let request = Request::post("/").version(Version::HTTP_2).header("content-type", content_type);
            let request = timeouts.iter().fold(request, |request, timeout| request.header("grpc-timeout", *timeout));
            timeout(&RequestHead::from(&request.body(()).unwrap()))
        };
        let second = Some(Duration::from_secs(1));
        assert_eq!(timeout_of("application/grpc", &["1S"]), second);
        assert_eq!(timeout_of("application/grpc", &[" 1S\t"]), second);
        assert_eq!(timeout_of("application/grpc-web+proto", &["1S"]), second);
        assert_eq!(timeout_of("application/json", &["1S"]), None);
        assert_eq!(timeout_of("application/grpc", &[]), None);
        assert_eq!(timeout_of("application/grpc", &["1S", "2S"]), None);
    }
}
