//! CORS preflights count like all requests, unless a layer exempts them.

use std::net::SocketAddr;
use std::time::Duration;

use http::Version;
use tower_sluice::{MissingKey, Penalty, Policy, Quota};

use super::mounts::Mount;
use super::wire::{MESSAGE, Spelled};
use super::{Admitted, exempting, per_client, policy};

const VERSIONS: [Version; 2] = [Version::HTTP_11, Version::HTTP_2];
const PREFLIGHT: [(&str, &str); 2] = [("origin", "https://page.example"), ("access-control-request-method", "PUT")];

fn preflight(more: &[(&'static str, &'static str)]) -> Spelled {
    Spelled::new("OPTIONS", &[&PREFLIGHT, more].concat())
}

/// Uses up the only client's budget.
async fn exhaust(address: SocketAddr) {
    for version in VERSIONS {
        let _ = Spelled::new("GET", &[]).ask(address, version).await;
    }
    assert!(Spelled::new("GET", &[]).ask(address, Version::HTTP_11).await.unwrap().is_rejection());
}

/// The requests imitate a gRPC client, except for the method and two fields.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_disguised_call_reaches_tonics_echo() {
    let admitted = Admitted::default();
    let address = Mount::Tonic.serve(per_client(1), &admitted).await;
    let call = Spelled::new(
        "OPTIONS",
        &[
            ("origin", "https://page.example"),
            ("access-control-request-method", "POST"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        ],
    )
    .body(MESSAGE);
    let first = call.ask(address, Version::HTTP_2).await.unwrap();
    assert_eq!(first.field("grpc-status"), Some("0"), "tonic serves it: {first:?}");
    let mut rejected = 0;
    for _ in 1..1_000 {
        rejected += usize::from(call.ask(address, Version::HTTP_2).await.unwrap().is_rejection());
    }
    assert_eq!((admitted.count(), rejected), (1, 999));
}

/// Preflights as Chromium and Firefox send them, over HTTP/1.1 and HTTP/2.
#[tokio::test]
async fn exempt_preflights_have_a_budget() {
    for mount in Mount::ALL {
        let layer = exempting(1, 4);
        let admitted = Admitted::default();
        let address = mount.serve(layer, &admitted).await;
        let real = preflight(&[
            ("access-control-request-headers", "x-api-key,content-type"),
            ("accept", "*/*"),
            ("sec-fetch-mode", "cors"),
            ("user-agent", "Mozilla/5.0"),
            ("referer", "https://page.example/"),
        ]);
        // Over HTTP/2, hyper's body type does not tell the layer whether it has ended.
        let versions = if mount == Mount::Hyper { [Version::HTTP_11; 2] } else { VERSIONS };
        for version in versions {
            for _ in 0..2 {
                let answer = real.ask(address, version).await.unwrap();
                assert!(!answer.is_rejection() && answer.field("ratelimit").is_none(), "{mount:?}: {answer:?}");
            }
        }
        // The fifth counts, and the sixth is rejected.
        let fifth = real.ask(address, Version::HTTP_11).await.unwrap();
        assert!(fifth.field("ratelimit").is_some_and(|left| left.starts_with("\"per-client\";r=0")), "{fifth:?}");
        assert!(real.ask(address, Version::HTTP_11).await.unwrap().is_rejection(), "{mount:?}");
        assert!(Spelled::new("GET", &[]).ask(address, Version::HTTP_11).await.unwrap().is_rejection(), "{mount:?}");
        assert_eq!(admitted.count(), 5, "{mount:?}");
    }
}

#[tokio::test]
async fn only_genuine_preflights_are_exempt() {
    let with = |fields: &[(&'static str, &str)]| Spelled::new("OPTIONS", fields);
    let [origin, method] = PREFLIGHT;
    let not_exempt = [
        Spelled::new("POST", &PREFLIGHT),
        Spelled::new("GET", &PREFLIGHT),
        Spelled::new("options", &PREFLIGHT),
        with(&[]),
        with(&[origin]),
        with(&[method]),
        with(&[("origin", ""), method]),
        with(&[("origin", "page.example"), method]),
        with(&[("origin", "https://page.example/path"), method]),
        with(&[origin, origin, method]),
        with(&[origin, ("access-control-request-method", "")]),
        with(&[origin, ("access-control-request-method", "PUT, POST")]),
        with(&[origin, ("access-control-request-method", "P\tT")]),
        with(&[origin, method, method]),
        preflight(&[("content-type", "application/grpc"), ("te", "trailers")]).body(MESSAGE),
        preflight(&[("content-type", "application/grpc-web+proto")]),
        preflight(&[("content-type", "text/plain")]),
        preflight(&[("content-type", "")]),
        preflight(&[("te", "trailers")]),
        preflight(&[("authorization", "Bearer x")]),
        preflight(&[("proxy-authorization", "Basic x")]),
        preflight(&[("cookie", "a=b")]),
        preflight(&[("expect", "100-continue")]),
        preflight(&[("x-http-method-override", "POST")]),
        preflight(&[("x-http-method", "POST")]),
        preflight(&[("x-method-override", "POST")]),
        preflight(&[("content-encoding", "gzip")]),
        preflight(&[("trailer", "x")]),
        // Over HTTP/2, without a content-length.
        preflight(&[]).body(MESSAGE),
    ];
    for mount in [Mount::RouterLayer, Mount::Tonic, Mount::Hyper] {
        let admitted = Admitted::default();
        let address = mount.serve(exempting(1, 1_000), &admitted).await;
        exhaust(address).await;
        for version in VERSIONS {
            for spelled in &not_exempt {
                let answer = spelled.ask(address, version).await.unwrap();
                assert!(answer.is_rejection(), "{mount:?}, {version:?}: {spelled:?}");
            }
        }
        for spelled in [
            preflight(&[("transfer-encoding", "chunked")]).body(MESSAGE),
            preflight(&[("upgrade", "websocket"), ("connection", "upgrade")]),
        ] {
            assert!(spelled.ask(address, Version::HTTP_11).await.unwrap().is_rejection(), "{mount:?}: {spelled:?}");
        }
        assert_eq!(admitted.count(), 1, "{mount:?}");
        assert!(!preflight(&[("content-length", "0")]).ask(address, Version::HTTP_11).await.unwrap().is_rejection());
        assert_eq!(admitted.count(), 2, "{mount:?}");
    }
}

#[tokio::test]
async fn a_ban_is_not_lifted_for_preflights() {
    let penalty = || Penalty::new(Quota::per_day(1), Duration::from_secs(3_600));
    // A policy that finds no key in the preflight does not lift another policy's ban.
    let by_key = || {
        Policy::new("per-key", tower_sluice::algorithm::TokenBucket::new(Quota::per_day(9)))
            .key(tower_sluice::key::HeaderKey::from_static("x-api-key"))
            .on_missing_key(MissingKey::Skip)
            .penalty(penalty())
    };
    let layer = tower_sluice::RateLimitLayer::builder([by_key(), policy(1).penalty(penalty())])
        .exempt_preflights(Quota::per_day(1_000))
        .build();
    let admitted = Admitted::default();
    let address = Mount::RouterLayer.serve(layer, &admitted).await;
    assert!(!preflight(&[]).ask(address, Version::HTTP_2).await.unwrap().is_rejection());
    exhaust(address).await;
    let ban = Spelled::new("GET", &[]).ask(address, Version::HTTP_11).await.unwrap();
    assert!(ban.field("retry-after").unwrap().parse::<u32>().unwrap() > 0);
    for version in VERSIONS {
        assert!(preflight(&[]).ask(address, version).await.unwrap().is_rejection(), "{version:?}");
    }
    assert_eq!(admitted.count(), 2);
}
