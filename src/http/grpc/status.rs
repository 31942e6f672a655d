//! A rejection as a gRPC status: its codes, and the response that carries it.

use std::fmt::Write;
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Response};

use super::details::{self, Violation};
use super::protocol::Protocol;
use crate::http::head::{set_field, trimmed};
use crate::util::base64;

/// The code that gRPC clients get if a limit is exceeded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[doc(alias("RESOURCE_EXHAUSTED", "UNAVAILABLE"))]
pub enum GrpcStatus {
    /// RESOURCE_EXHAUSTED (8), which google.rpc has for quotas, and which does not count as a server error. The
    /// default.
    #[default]
    ResourceExhausted,
    /// UNAVAILABLE (14), which many clients retry by default. OpenTelemetry counts it as a server error.
    Unavailable,
}

/// The codes that this crate sends (google.rpc.Code).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    InvalidArgument = 3,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    Internal = 13,
    Unavailable = 14,
}

impl From<GrpcStatus> for Code {
    fn from(status: GrpcStatus) -> Self {
        match status {
            GrpcStatus::ResourceExhausted => Self::ResourceExhausted,
            GrpcStatus::Unavailable => Self::Unavailable,
        }
    }
}

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// The codes that OpenTelemetry counts as gRPC server errors: UNKNOWN, DEADLINE_EXCEEDED, UNIMPLEMENTED, INTERNAL,
/// UNAVAILABLE and DATA_LOSS. RESOURCE_EXHAUSTED is not among them, because mostly it is the client's quota.
/// <https://opentelemetry.io/docs/specs/semconv/rpc/grpc/>
const SERVER_ERRORS: [&[u8]; 6] = [b"2", b"4", b"12", b"13", b"14", b"15"];

/// Whether a response's head or trailers have a status for which the server is to blame.
pub(crate) fn is_server_error(fields: &HeaderMap) -> bool {
    fields.get(GRPC_STATUS).is_some_and(|code| SERVER_ERRORS.contains(&trimmed(code)))
}
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_STATUS_DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
const GRPC_RETRY_PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// A message's greatest length, in bytes. Otherwise, clients that accept 8 KiB of headers would drop the whole
/// response.
const MAX_MESSAGE: usize = 1_024;

/// When a rejected client may retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GrpcRetry {
    After(Duration),
    /// No wait helps.
    Never,
    /// At an unknown time, so the client backs off as it sees fit.
    Unknown,
}

impl GrpcRetry {
    /// The wait, if a wait helps and is known.
    pub(crate) const fn wait(self) -> Option<Duration> {
        match self {
            Self::After(wait) => Some(wait),
            Self::Never | Self::Unknown => None,
        }
    }
}

/// A rejection as a gRPC status.
#[derive(Debug)]
pub(crate) struct Status<'a> {
    pub(crate) code: Code,
    pub(crate) message: &'a str,
    pub(crate) retry: GrpcRetry,
    pub(crate) violations: &'a [Violation<'a>],
}

impl Status<'_> {
    /// Makes the response to a request in `protocol`.
    pub(crate) fn response(&self, protocol: Protocol) -> Response<()> {
        let message = shortened(self.message);
        let details = details::status(self.code as u32, message, self.retry.wait(), self.violations);

        let mut response = Response::new(());
        let headers = response.headers_mut();
        set_field(headers, CONTENT_TYPE, content_type(protocol));
        set_field(headers, GRPC_STATUS, HeaderValue::from(self.code as u32));
        set_field(headers, GRPC_MESSAGE, percent_encoded(message));
        set_field(headers, GRPC_STATUS_DETAILS, binary(&details));
        if let Some(pushback) = pushback_ms(self.retry) {
            set_field(headers, GRPC_RETRY_PUSHBACK, HeaderValue::from(pushback));
        }
        response
    }
}

/// Cuts a message off after `MAX_MESSAGE` bytes, at the end of a character.
fn shortened(message: &str) -> &str {
    let end = (0..=MAX_MESSAGE.min(message.len())).rev().find(|end| message.is_char_boundary(*end));
    &message[..end.unwrap_or(0)]
}

fn content_type(protocol: Protocol) -> HeaderValue {
    match protocol {
        Protocol::GrpcWeb(content_type) => HeaderValue::from_static(content_type),
        Protocol::Grpc | Protocol::Http => HeaderValue::from_static("application/grpc"),
    }
}

/// Returns the pushback from gRFC A6 in signed 32-bit milliseconds. A negative number forbids retries. It is never
/// zero, which would ask for a retry at once. Without a pushback, the client waits by its own policy.
fn pushback_ms(retry: GrpcRetry) -> Option<i32> {
    match retry {
        GrpcRetry::After(wait) => Some(i32::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX).max(1)),
        GrpcRetry::Never => Some(-1),
        GrpcRetry::Unknown => None,
    }
}

/// Percent-encodes a message (PROTOCOL-HTTP2, "Status-Message"), including spaces, so that its end is never trimmed.
fn percent_encoded(message: &str) -> HeaderValue {
    let mut text = String::with_capacity(message.len() * 2);
    for byte in message.bytes() {
        if byte.is_ascii_graphic() && byte != b'%' {
            text.push(char::from(byte));
        } else {
            write!(text, "%{byte:02X}").expect("a string takes all that is written");
        }
    }
    HeaderValue::try_from(text).expect("visible ASCII")
}

/// Encodes binary metadata: base64 without padding.
fn binary(bytes: &[u8]) -> HeaderValue {
    let text: Vec<u8> =
        (0..base64::length(bytes.len())).map(|index| base64::character(base64::STANDARD, bytes, index)).collect();
    HeaderValue::try_from(text).expect("letters, digits, plus and slash")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_codes_blame_the_server() {
        let fields = |code: &'static str| HeaderMap::from_iter([(GRPC_STATUS, HeaderValue::from_static(code))]);
        let blamed: Vec<_> = (0..=16).filter(|code: &u32| is_server_error(&fields(code.to_string().leak()))).collect();
        assert_eq!(blamed, [2, 4, 12, 13, 14, 15]);
        assert!(
            is_server_error(&fields(" 13")) && !is_server_error(&fields("013")) && !is_server_error(&HeaderMap::new())
        );
    }

    #[test]
    fn pushback_covers_waits_and_is_positive() {
        for (wait, pushback) in [
            (Duration::ZERO, 1),
            (Duration::from_nanos(1), 1),
            (Duration::from_millis(1), 1),
            (Duration::from_nanos(1_000_001), 2),
            (Duration::from_secs(7), 7_000),
            (Duration::from_millis(2_147_483_647), i32::MAX),
            (Duration::from_millis(2_147_483_648), i32::MAX),
            (Duration::MAX, i32::MAX),
        ] {
            assert_eq!(pushback_ms(GrpcRetry::After(wait)), Some(pushback), "{wait:?}");
        }
        assert_eq!((pushback_ms(GrpcRetry::Never), pushback_ms(GrpcRetry::Unknown)), (Some(-1), None));
    }

    #[test]
    fn messages_are_percent_encoded() {
        assert_eq!(percent_encoded("rate limit exceeded"), "rate%20limit%20exceeded");
        assert_eq!(percent_encoded("100 %\n~ü"), "100%20%25%0A~%C3%BC");
    }

    #[test]
    fn long_messages_are_cut_between_characters() {
        for (message, length) in [
            ("a".repeat(MAX_MESSAGE), MAX_MESSAGE),
            ("a".repeat(MAX_MESSAGE + 1), MAX_MESSAGE),
            ("a".repeat(MAX_MESSAGE - 1) + "ü", MAX_MESSAGE - 1),
            ("a".repeat(MAX_MESSAGE - 2) + "ü", MAX_MESSAGE),
        ] {
            assert_eq!(shortened(&message).len(), length);
        }
    }

    /// A gRPC client has decoded these details to a RetryInfo of 0.7 s.
    #[test]
    fn a_whole_response() {
        let status = Status {
            code: Code::ResourceExhausted,
            message: "rate limit exceeded",
            retry: GrpcRetry::After(Duration::from_millis(700)),
            violations: &[],
        };
        let response = status.response(Protocol::Grpc);
        // The response's type excludes a body.
        assert_eq!(response.status().as_u16(), 200);
        let fields: Vec<_> =
            response.headers().iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
        let details =
            "CAgSE3JhdGUgbGltaXQgZXhjZWVkZWQaNAoodHlwZS5nb29nbGVhcGlzLmNvbS9nb29nbGUucnBjLlJldHJ5SW5mbxIICgYQgM7kzQI";
        assert_eq!(
            fields,
            [
                ("content-type", "application/grpc"),
                ("grpc-status", "8"),
                ("grpc-message", "rate%20limit%20exceeded"),
                ("grpc-status-details-bin", details),
                ("grpc-retry-pushback-ms", "700"),
            ]
        );
    }

    #[test]
    fn responses_respect_clients_header_limits() {
        let (long, names) = ("ü%".repeat(5_000), "n".repeat(500));
        let violations = vec![Violation { subject: &names, description: names.clone() }; 50];
        let status = Status { code: Code::Internal, message: &long, retry: GrpcRetry::Never, violations: &violations };
        let response = status.response(Protocol::Grpc);
        let size: usize = response.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum();
        assert!(size < 8_192, "{size} bytes");
    }
}
