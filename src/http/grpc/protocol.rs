//! Recognises a request's protocol: gRPC, gRPC-Web or plain HTTP.

use http::header::CONTENT_TYPE;
use http::{HeaderMap, Method, Version};

use crate::http::head::{RequestHead, only_line, trimmed};

/// A request's protocol, which its rejection uses, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http,
    Grpc,
    /// With the response's content type.
    GrpcWeb(&'static str),
}

impl Protocol {
    /// Recognises the protocol by the method, the version and the media type, which together no other client sends.
    /// Media type parameters are ignored, and so is case (RFC 9110, section 8.3.1).
    pub(crate) fn detect(head: &RequestHead<'_>) -> Self {
        if *head.method() != Method::POST {
            return Self::Http;
        }
        let Some(content_type) = only_line(head.headers(), CONTENT_TYPE) else { return Self::Http };
        let media_type = trimmed(content_type).split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        let Some(subtype) = strip_prefix(media_type, "application/grpc") else { return Self::Http };
        let web = strip_prefix(subtype, "-web");
        let text = web.and_then(|web| strip_prefix(web, "-text"));
        if !matches!(text.or(web).unwrap_or(subtype), [] | [b'+', ..]) {
            return Self::Http;
        }
        let known = || ECHOED.into_iter().find(|known| media_type.eq_ignore_ascii_case(known.as_bytes()));
        match (web, text) {
            // gRPC needs trailers, and HTTP/1.1 clients do not get them.
            (None, _) if head.version() < Version::HTTP_2 => Self::Http,
            (None, _) => Self::Grpc,
            (Some(_), None) => Self::GrpcWeb(known().unwrap_or(WEB)),
            (Some(_), Some(_)) => Self::GrpcWeb(known().unwrap_or(WEB_TEXT)),
        }
    }
}

/// Whether a response is a gRPC response with its status in the trailers, because the head does not have one. In
/// gRPC-Web, trailers are a part of the body.
pub(crate) fn has_status_in_trailers(fields: &HeaderMap) -> bool {
    let media_type = only_line(fields, CONTENT_TYPE).map(trimmed).unwrap_or_default();
    let is_grpc = matches!(strip_prefix(media_type, "application/grpc"), Some([] | [b'+' | b';', ..]));
    is_grpc && !fields.contains_key("grpc-status")
}

const WEB: &str = "application/grpc-web";
const WEB_TEXT: &str = "application/grpc-web-text";

/// The gRPC-Web media types that are echoed (PROTOCOL-WEB). `-text` has no format but `proto`.
const ECHOED: [&str; 6] = [
    WEB,
    "application/grpc-web+proto",
    "application/grpc-web+json",
    "application/grpc-web+thrift",
    WEB_TEXT,
    "application/grpc-web-text+proto",
];

/// Returns the rest of `text` after `prefix`, ignoring case.
fn strip_prefix<'a>(text: &'a [u8], prefix: &str) -> Option<&'a [u8]> {
    let (start, rest) = text.split_at_checked(prefix.len())?;
    start.eq_ignore_ascii_case(prefix.as_bytes()).then_some(rest)
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn protocol_of(method: Method, version: Version, content_types: &[&str]) -> Protocol {
        let request = Request::builder().method(method).version(version);
        let request = content_types.iter().fold(request, |request, value| request.header("Content-Type", *value));
        Protocol::detect(&RequestHead::from(&request.body(()).unwrap()))
    }

    fn protocol(content_type: &str) -> Protocol {
        protocol_of(Method::POST, Version::HTTP_2, &[content_type])
    }

    #[test]
    fn method_and_version_decide_too() {
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
        assert_eq!(Protocol::detect(&RequestHead::from(&Request::new(()))), Protocol::Http);
    }
}
