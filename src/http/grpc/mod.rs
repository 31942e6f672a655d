//! Rejections for gRPC clients: one layer answers HTTP, gRPC and gRPC-Web, each natively.
//!
//! A `POST` over HTTP/2 or later with one content type `application/grpc` is gRPC, and a `POST` over any version with
//! `application/grpc-web` or `application/grpc-web-text` is gRPC-Web; each with or without `+proto` and the like. Any
//! other request is plain HTTP. This is decided per request, so that all three can share a port, a route and a budget.
//!
//! A layer inside `tonic_web::GrpcWebLayer` sees gRPC-Web over HTTP/1.1 as a request that no gRPC client sends, and
//! rejects it in plain HTTP. Put the rate limit outside.
//!
#![cfg_attr(feature = "tonic", doc = "```no_run")]
#![cfg_attr(not(feature = "tonic"), doc = "```ignore")]
//! use tower_sluice::{Policy, Quota, RateLimitLayer, algorithm::TokenBucket, key::PeerIp};
//!
//! # async fn serve() -> Result<(), tonic::transport::Error> {
//! # let (_, health) = tonic_health::server::health_reporter();
//! let quota = Quota::per_second(10).burst(20);
//! let layer = RateLimitLayer::new(Policy::new("per-client", TokenBucket::new(quota)).key(PeerIp::new()));
//! tonic::transport::Server::builder()
//!     .layer(layer)
//!     .add_service(health)
//!     .serve("127.0.0.1:3000".parse().unwrap())
//!     .await
//! # }
//! ```
//!
//! [`PeerIp`](crate::key::PeerIp) finds the peer under tonic's server with the crate feature `tonic`. Nothing else
//! here needs this feature, or tonic: gRPC servers built on axum or hyper are limited in the same way.
//!
//! # The answer
//!
//! A rejection is HTTP 200 with one block of headers and no body ("Trailers-Only", which clients
//! retry; for gRPC-Web the same fields, under the content type of the request: with its `+proto`, `+json` or `+thrift`,
//! and without any other suffix):
//!
//! | field | value |
//! |---|---|
//! | `grpc-status` | [8 or 14](GrpcStatus) if a limit is exceeded; 14 if a limiter failed, 3 if the request has no key or has it twice, 13 if the server is not set up to provide the key |
//! | `grpc-message` | the sentence that HTTP clients find as `detail` |
//! | `grpc-status-details-bin` | a `google.rpc.Status` with the same code and message, with `RetryInfo` (the exact wait) and `QuotaFailure` (a violation for each policy; its subject is the policy's name) |
//! | `grpc-retry-pushback-ms` | the wait in milliseconds, rounded up, from 1 to 2^31 − 1 (24.8 days); −1, "do not retry", if no wait helps |
//!
//! `Retry-After`, `X-Rate-Limited-For` and `Cache-Control` go with them, as metadata.
//!
//! Code 8 is also sent where HTTP clients get 503 because all clients share the limit: it means an exhausted quota as
//! well as an exhausted system, and clients of OpenTelemetry retry it, given
//! `RetryInfo`. If no wait helps, the code is always 8, since 14 invites to retry.
//!
//! # Clients
//!
//! A client obeys `grpc-retry-pushback-ms` automatically if its service config lists the code as
//! retryable:
//!
//! ```json
//! {"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 3, "initialBackoff": "1s", "maxBackoff": "10s",
//!   "backoffMultiplier": 2, "retryableStatusCodes": ["RESOURCE_EXHAUSTED"]}}]}
//! ```
//!
//! # Deadlines
//!
//! A request whose `grpc-timeout` would pass while it waits in a [`LeakyQueue`](crate::LeakyQueue) is rejected at
//! once, with the time after which it would depart within that timeout.
//!
//! # Sources
//!
//! gRPC over HTTP/2 and gRPC-Web (PROTOCOL-HTTP2, PROTOCOL-WEB), gRFC A6 (pushback), google.rpc's
//! `status.proto` and `error_details.proto`.

mod details;
mod timeout;

use std::fmt::Write;
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue, Method, Response, Version};

pub(crate) use self::details::Violation;
pub(crate) use self::timeout::deadline;

use crate::http::head::{RequestHead, trimmed};
use crate::util::base64;

/// The code that gRPC clients get if a limit is exceeded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum GrpcStatus {
    /// RESOURCE_EXHAUSTED (8), which google.rpc has for quotas, and which does not count as an error of
    /// the server. The default.
    #[default]
    ResourceExhausted,
    /// UNAVAILABLE (14), which many clients retry by default. OpenTelemetry counts it as an error of
    /// the server.
    Unavailable,
}

/// The codes that this crate sends (google.rpc.Code).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    InvalidArgument = 3,
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

/// The protocol of a request, and so of its rejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http,
    Grpc,
    /// With the content type of the response.
    GrpcWeb(&'static str),
}

/// The media types of gRPC-Web that are echoed (PROTOCOL-WEB). `-text` has no format but `proto`.
const WEB: [&str; 6] = [
    "application/grpc-web",
    "application/grpc-web+proto",
    "application/grpc-web+json",
    "application/grpc-web+thrift",
    "application/grpc-web-text",
    "application/grpc-web-text+proto",
];

impl Protocol {
    /// Recognises the protocol by the method, the version and the media type, which together no other client sends. The
    /// parameters of the media type are ignored, and so is case (RFC 9110, section 8.3.1).
    pub(crate) fn of(head: &RequestHead<'_>) -> Self {
        if *head.method() != Method::POST {
            return Self::Http;
        }
        let mut lines = head.headers().get_all(CONTENT_TYPE).iter();
        let (Some(content_type), None) = (lines.next(), lines.next()) else { return Self::Http };
        let media_type = trimmed(content_type).split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        let Some(subtype) = strip_prefix(media_type, "application/grpc") else { return Self::Http };
        let web = strip_prefix(subtype, "-web");
        let text = web.and_then(|web| strip_prefix(web, "-text"));
        if !matches!(text.or(web).unwrap_or(subtype), [] | [b'+', ..]) {
            return Self::Http;
        }
        let known = || WEB.into_iter().find(|known| media_type.eq_ignore_ascii_case(known.as_bytes()));
        match (web, text) {
            // gRPC needs trailers, and HTTP/1.1 clients do not get them.
            (None, _) if head.version() < Version::HTTP_2 => Self::Http,
            (None, _) => Self::Grpc,
            (Some(_), None) => Self::GrpcWeb(known().unwrap_or(WEB[0])),
            (Some(_), Some(_)) => Self::GrpcWeb(known().unwrap_or(WEB[4])),
        }
    }
}

/// Returns the rest of `text` after `prefix`, ignoring case.
fn strip_prefix<'a>(text: &'a [u8], prefix: &str) -> Option<&'a [u8]> {
    let (start, rest) = text.split_at_checked(prefix.len())?;
    start.eq_ignore_ascii_case(prefix.as_bytes()).then_some(rest)
}

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_STATUS_DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
const GRPC_RETRY_PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// The most bytes of a message: clients that accept 8 KiB of headers would otherwise drop the whole response.
const MAX_MESSAGE: usize = 1_024;

/// A rejection as a gRPC status.
#[derive(Debug)]
pub(crate) struct Status<'a> {
    pub(crate) code: Code,
    pub(crate) message: &'a str,
    /// `None` if no wait helps.
    pub(crate) wait: Option<Duration>,
    pub(crate) violations: &'a [Violation<'a>],
}

impl Status<'_> {
    /// Makes the response to a request in `protocol`.
    pub(crate) fn response(&self, protocol: Protocol) -> Response<()> {
        let end = (0..=MAX_MESSAGE.min(self.message.len())).rev().find(|end| self.message.is_char_boundary(*end));
        let message = &self.message[..end.unwrap_or(0)];
        let details = details::status(self.code as u32, message, self.wait, self.violations);

        let mut response = Response::new(());
        let fields = response.headers_mut();
        fields.insert(CONTENT_TYPE, content_type(protocol));
        fields.insert(GRPC_STATUS, HeaderValue::from(self.code as u32));
        fields.insert(GRPC_MESSAGE, percent_encoded(message));
        fields.insert(GRPC_STATUS_DETAILS, binary(&details));
        fields.insert(GRPC_RETRY_PUSHBACK, HeaderValue::from(pushback_ms(self.wait)));
        response
    }
}

fn content_type(protocol: Protocol) -> HeaderValue {
    match protocol {
        Protocol::GrpcWeb(content_type) => HeaderValue::from_static(content_type),
        Protocol::Grpc | Protocol::Http => HeaderValue::from_static("application/grpc"),
    }
}

/// Returns the pushback of gRFC A6 in signed 32-bit milliseconds; a negative number forbids to retry. Never zero, on
/// which some clients hang.
fn pushback_ms(wait: Option<Duration>) -> i32 {
    wait.map_or(-1, |wait| i32::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX).max(1))
}

/// Percent-encodes a message (PROTOCOL-HTTP2, "Status-Message"), spaces included, so that none is trimmed at an end.
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
    use http::Request;

    use super::*;

    fn protocol_of(method: Method, version: Version, content_types: &[&str]) -> Protocol {
        let request = Request::builder().method(method).version(version);
        let request = content_types.iter().fold(request, |request, value| request.header("Content-Type", *value));
        Protocol::of(&RequestHead::from(&request.body(()).unwrap()))
    }

    fn protocol(content_type: &str) -> Protocol {
        protocol_of(Method::POST, Version::HTTP_2, &[content_type])
    }

    #[test]
    fn the_method_and_the_version_decide_too() {
        let (grpc, web) = ("application/grpc", "application/grpc-web");
        for version in [Version::HTTP_09, Version::HTTP_10, Version::HTTP_11] {
            assert_eq!(protocol_of(Method::POST, version, &[grpc]), Protocol::Http);
            assert_eq!(protocol_of(Method::POST, version, &[web]), Protocol::GrpcWeb(web));
        }
        for version in [Version::HTTP_2, Version::HTTP_3] {
            assert_eq!(protocol_of(Method::POST, version, &[grpc]), Protocol::Grpc);
            for method in [Method::GET, Method::OPTIONS, Method::PUT] {
                assert_eq!(protocol_of(method.clone(), version, &[grpc]), Protocol::Http);
                assert_eq!(protocol_of(method, version, &[web]), Protocol::Http);
            }
        }
        assert_eq!(protocol_of(Method::POST, Version::HTTP_2, &[grpc, grpc]), Protocol::Http);
        assert_eq!(protocol_of(Method::POST, Version::HTTP_2, &[]), Protocol::Http);
    }

    #[test]
    fn the_media_type_decides_the_protocol() {
        for grpc in ["application/grpc", "application/grpc+proto", "Application/GRPC+json", " application/grpc ; a=b"] {
            assert_eq!(protocol(grpc), Protocol::Grpc, "{grpc}");
        }
        for (web, echoed) in [
            ("application/grpc-web", "application/grpc-web"),
            ("application/grpc-web+proto; charset=utf-8", "application/grpc-web+proto"),
            ("application/grpc-web-text", "application/grpc-web-text"),
            ("APPLICATION/gRPC-Web-Text+proto", "application/grpc-web-text+proto"),
            ("application/grpc-web+json", "application/grpc-web+json"),
            ("application/grpc-web+<b>", "application/grpc-web"),
            ("application/grpc-web-text+json", "application/grpc-web-text"),
        ] {
            assert_eq!(protocol(web), Protocol::GrpcWeb(echoed), "{web}");
        }
        for http in [
            "",
            "application/json",
            "application/grpcfoo",
            "application/grpc-webfoo",
            "application/grpc-text",
            "application/grp",
            "text/plain; x=application/grpc",
            "application/connect+proto",
        ] {
            assert_eq!(protocol(http), Protocol::Http, "{http}");
        }
        assert_eq!(Protocol::of(&RequestHead::from(&Request::new(()))), Protocol::Http);
    }

    #[test]
    fn pushback_covers_the_wait_and_is_never_zero() {
        for (wait, pushback) in [
            (Some(Duration::ZERO), 1),
            (Some(Duration::from_nanos(1)), 1),
            (Some(Duration::from_millis(1)), 1),
            (Some(Duration::from_nanos(1_000_001)), 2),
            (Some(Duration::from_micros(779_124)), 780),
            (Some(Duration::from_micros(542_360)), 543),
            (Some(Duration::from_secs(7)), 7_000),
            (Some(Duration::from_millis(2_147_483_647)), i32::MAX),
            (Some(Duration::from_millis(2_147_483_648)), i32::MAX),
            (Some(Duration::MAX), i32::MAX),
            (None, -1),
        ] {
            assert_eq!(pushback_ms(wait), pushback, "{wait:?}");
        }
    }

    #[test]
    fn messages_are_percent_encoded() {
        assert_eq!(percent_encoded("rate limit exceeded"), "rate%20limit%20exceeded");
        assert_eq!(percent_encoded("100 %\n~ü"), "100%20%25%0A~%C3%BC");
    }

    /// A client decoded the details to a RetryInfo of 0.7 s.
    #[test]
    fn a_whole_response() {
        let status = Status {
            code: Code::ResourceExhausted,
            message: "rate limit exceeded",
            wait: Some(Duration::from_millis(700)),
            violations: &[],
        };
        let response = status.response(Protocol::Grpc);
        // Its type excludes a body.
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
    fn a_response_stays_below_the_header_limit_of_clients() {
        let (long, names) = ("ü%".repeat(5_000), "n".repeat(500));
        let violations = vec![Violation { subject: &names, description: names.clone() }; 50];
        let status = Status { code: Code::Internal, message: &long, wait: None, violations: &violations };
        let response = status.response(Protocol::Grpc);
        let size: usize = response.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum();
        assert!(size < 8_192, "{size} bytes");
    }
}
