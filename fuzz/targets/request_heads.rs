//! Whatever a head says: a refusal speaks the client's protocol, and no timeout breaks anything.
#![no_main]

use std::time::Duration;

use arbitrary::Arbitrary;
use http::{HeaderName, HeaderValue, Request, StatusCode};
use libfuzzer_sys::fuzz_target;
use tower_sluice::algorithm::TokenBucket;
use tower_sluice::key::{HeaderKey, PathKey};
use tower_sluice::{LeakyQueue, MissingKey, Policy, Quota, RateLimitLayer};
use tower_sluice_fuzz::layer::{field, send, wait};

#[derive(Arbitrary, Debug)]
struct Case<'a> {
    path: &'a str,
    fields: Vec<(Name, &'a [u8])>,
    waits: Option<u16>,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Name {
    ContentType,
    GrpcTimeout,
    ApiKey,
}

fuzz_target!(|case: Case<'_>| {
    let mut request = Request::new(());
    *request.uri_mut() = case.path.parse().unwrap_or_default();
    for (name, value) in &case.fields {
        let name = match name {
            Name::ContentType => "content-type",
            Name::GrpcTimeout => "grpc-timeout",
            Name::ApiKey => "x-api-key",
        };
        let Ok(value) = HeaderValue::from_bytes(value) else { continue };
        request.headers_mut().append(HeaderName::from_static(name), value);
    }

    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let _entered = runtime.enter();
    let quota = Quota::per_hour(1);
    let last = match case.waits {
        None => Policy::new("bucket", TokenBucket::new(quota)).key(PathKey::raw()),
        Some(wait) => {
            Policy::new("queue", LeakyQueue::new(quota).capacity(1).max_wait(Duration::from_secs(wait.into())))
        }
    };
    let by_key = Policy::new("by-key", TokenBucket::new(Quota::per_hour(9)))
        .key(HeaderKey::from_static("x-api-key"))
        .on_missing_key(MissingKey::Skip);
    let layer = RateLimitLayer::new([last.status(StatusCode::TOO_MANY_REQUESTS), by_key]);
    let both = [send(&layer, request.clone()), send(&layer, request.clone())];

    for answer in both.into_iter().flatten() {
        let fields = answer.headers();
        let told = wait(fields);
        let Some(code) = field(fields, "grpc-status") else {
            let status = answer.status().as_u16();
            assert!([200, 400, 429].contains(&status), "{status}");
            assert_eq!(told.is_some(), status == 429);
            continue;
        };
        // A Trailers-Only answer of the request's own kind.
        assert_eq!(answer.status(), StatusCode::OK);
        let asked = request.headers()["content-type"].to_str().unwrap().split(';').next().unwrap().trim();
        let told_type = field(fields, "content-type").unwrap();
        assert!(told_type == asked || told_type == "application/grpc", "{told_type}");
        assert!(asked.to_ascii_lowercase().starts_with("application/grpc"));
        assert!(["3", "8"].contains(&code), "{code}");
        let pushback: i32 = field(fields, "grpc-retry-pushback-ms").unwrap().parse().unwrap();
        let micros = told.map(|(_, micros)| i64::try_from(micros).unwrap());
        assert_eq!(micros.map_or(-1, |micros| (micros + 999) / 1_000), pushback.into());
        assert!(field(fields, "grpc-message").unwrap().bytes().all(|byte| byte.is_ascii_graphic()));
    }
});
