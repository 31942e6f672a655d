//! For every request head, a rejection is in the client's protocol, and timeouts never panic.
#![no_main]

use std::time::Duration;

use http::{HeaderName, HeaderValue, Request, StatusCode, Version};
use libfuzzer_sys::fuzz_target;
use tower_sluice::algorithm::TokenBucket;
use tower_sluice::key::{CookieKey, HeaderKey, PathKey, QueryKey};
use tower_sluice::{LeakyQueue, MissingKey, Policy, Quota, RateLimitLayer};
use tower_sluice_fuzz::layer::{field, send, wait};

/// Parses the input: a policy kind and a path on the first line, then a field per line, after the first letter of its
/// name.
fn read(data: &[u8]) -> Option<(bool, Request<()>)> {
    let mut lines = data.split(|byte| *byte == b'\n');
    let (kind, path) = lines.next()?.split_first()?;
    let mut request = Request::post("/").version(Version::HTTP_2).body(()).ok()?;
    *request.uri_mut() = std::str::from_utf8(path).ok()?.parse().unwrap_or_default();
    for line in lines {
        let (letter, value) = line.split_first()?;
        let name = match letter {
            b'c' => "content-type",
            b't' => "grpc-timeout",
            b's' => "cookie",
            _ => "x-api-key",
        };
        request.headers_mut().append(HeaderName::from_static(name), HeaderValue::from_bytes(value).ok()?);
    }
    Some((*kind == b'q', request))
}

fuzz_target!(|data: &[u8]| {
    let Some((waits, request)) = read(data) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let _entered = runtime.enter();
    let quota = Quota::per_hour(1);
    let last = if waits {
        Policy::new("queue", LeakyQueue::new(quota).max_queue(1).max_wait(Duration::from_secs(86_400)))
    } else {
        Policy::new("bucket", TokenBucket::new(quota)).key(PathKey::raw())
    };
    let nine = |name| Policy::new(name, TokenBucket::new(Quota::per_hour(9))).on_missing_key(MissingKey::Skip);
    let layer = RateLimitLayer::new([
        last.status(StatusCode::TOO_MANY_REQUESTS),
        nine("by-key").key(HeaderKey::from_static("x-api-key")),
        nine("by-cookie").key(CookieKey::new("a")),
        nine("by-query").key(QueryKey::new("a")),
    ]);
    let both = [send(&layer, request.clone()), send(&layer, request.clone())];

    for answer in both.into_iter().flatten() {
        let fields = answer.headers();
        let advertised = wait(fields);
        let Some(code) = field(fields, "grpc-status") else {
            let status = answer.status().as_u16();
            assert!([200, 400, 429].contains(&status), "{status}");
            assert_eq!(advertised.is_some(), status == 429);
            continue;
        };
        // A Trailers-Only response with the request's media type.
        assert_eq!(answer.status(), StatusCode::OK);
        let asked =
            request.headers()["content-type"].as_bytes().split(|byte| *byte == b';').next().unwrap().trim_ascii();
        let sent = fields["content-type"].as_bytes();
        let asked = asked.to_ascii_lowercase();
        assert!(sent.starts_with(b"application/grpc") && asked.starts_with(sent), "{sent:?}");
        assert!(sent.iter().all(|byte| byte.is_ascii_lowercase() || b"/-+".contains(byte)));
        assert!(["3", "8"].contains(&code), "{code}");
        let pushback: i32 = field(fields, "grpc-retry-pushback-ms").unwrap().parse().unwrap();
        let micros = advertised.map(|(_, micros)| i64::try_from(micros).unwrap());
        assert_eq!(micros.map_or(-1, |micros| (micros + 999) / 1_000), pushback.into());
        assert!(field(fields, "grpc-message").unwrap().bytes().all(|byte| byte.is_ascii_graphic()));
    }
});
