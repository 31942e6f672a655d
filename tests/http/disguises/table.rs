//! A table with all disguises: methods, fields, protocols and mount points.

use http::Version;

use super::mounts::Mount;
use super::wire::{MESSAGE, Spelled};
use super::{Admitted, per_client};
use crate::support::effort::rounds;

const METHODS: [&str; 14] = [
    "GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND", "PURGE", "BREW",
    "options", "O",
];

const ORIGIN: (&str, &str) = ("origin", "https://page.example");
const ASKED: (&str, &str) = ("access-control-request-method", "PUT");
const GRPC: (&str, &str) = ("content-type", "application/grpc");

const FIELDS: &[&[(&str, &str)]] = &[
    &[],
    &[ORIGIN],
    &[ASKED],
    &[ORIGIN, ASKED],
    &[
        ORIGIN,
        ASKED,
        ("access-control-request-headers", "x-api-key"),
        ("access-control-request-private-network", "true"),
    ],
    &[("origin", ""), ("access-control-request-method", "")],
    &[("origin", "null"), ASKED],
    &[ORIGIN, ORIGIN, ASKED, ASKED],
    &[ORIGIN, ASKED, ("authorization", "Bearer x")],
    &[ORIGIN, ASKED, ("sec-fetch-mode", "cors"), ("sec-fetch-site", "cross-site"), ("sec-fetch-dest", "empty")],
    &[GRPC],
    &[GRPC, ("te", "trailers"), ("grpc-timeout", "1n")],
    &[ORIGIN, ASKED, GRPC, ("te", "trailers")],
    &[("content-type", "application/grpc-web")],
    &[("content-type", "application/grpc-web-text+proto"), ORIGIN, ASKED, ("x-grpc-web", "1")],
    &[("content-type", "application/grpc"), ("content-type", "application/json")],
    &[("upgrade", "websocket"), ("connection", "upgrade"), ("sec-websocket-version", "13")],
    &[("upgrade", "h2c"), ("connection", "upgrade, http2-settings"), ("http2-settings", "")],
    &[("expect", "100-continue")],
    &[("x-http-method-override", "OPTIONS"), ORIGIN, ASKED],
    &[("x-http-method", "OPTIONS"), ("x-method-override", "HEAD")],
    &[("origin", "  https://page.example\t"), ("access-control-request-method", " PUT ")],
    &[("te", "trailers"), ("trailer", "x-end")],
    &[("x-forwarded-for", "198.51.100.7"), ("forwarded", "for=198.51.100.7"), ("x-real-ip", "198.51.100.7")],
    &[("x-original-method", "OPTIONS"), ("x-original-url", "/healthz"), ("x-rewrite-url", "/healthz")],
    &[("user-agent", "kube-probe/1.30"), ("x-health-check", "1")],
    &[("purpose", "prefetch"), ("sec-purpose", "prefetch")],
    &[("accept", "text/event-stream"), ("last-event-id", "1")],
    &[("range", "bytes=0-0"), ("if-none-match", "*"), ("cache-control", "no-cache")],
    &[("x-rate-limited-for", "0"), ("retry-after", "0"), ("ratelimit", "\"per-client\";r=9")],
];

fn all() -> Vec<(Spelled, Version)> {
    let mut all = Vec::new();
    for method in METHODS {
        for fields in FIELDS {
            for version in [Version::HTTP_11, Version::HTTP_2] {
                let spelled = Spelled::new(method, fields);
                // Some fields state whether there is a body.
                if method == "POST" || fields.contains(&GRPC) {
                    all.push((spelled.clone().body(MESSAGE), version));
                }
                all.push((spelled, version));
            }
        }
    }
    all
}

/// Any request may come first: it is admitted, and all later ones are rejected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limit_one_admits_one_disguise() {
    let all = all();
    assert!(all.len() > 800, "{}", all.len());
    // Each mount point gets all requests, or a tenth of them in a short run.
    let step = rounds(10, 1);
    for (number, mount) in Mount::ALL.into_iter().enumerate() {
        let all: Vec<_> = all.iter().skip(number % step).step_by(step).collect();
        for is_reversed in [false, true] {
            let admitted = Admitted::default();
            let address = mount.serve(per_client(1), &admitted).await;
            let count = all.len();
            for i in 0..count {
                let (spelled, version) = all[if is_reversed { count - 1 - i } else { i }];
                let answer = spelled.ask(address, *version).await;
                assert!(admitted.count() <= 1, "{mount:?}, {version:?}: {spelled:?} {answer:?}");
            }
            assert_eq!(admitted.count(), 1, "{mount:?}");
        }
    }
}
