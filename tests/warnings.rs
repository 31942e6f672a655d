//! Configuration mistakes are logged once, with their cure, and without a key or an address.
//!
//! Most of them are logged once per process, so one test covers those.

#![cfg(all(feature = "http", feature = "tracing"))]

#[path = "support/log.rs"]
mod log;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderName, HeaderValue, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::algorithm::TokenBucket;
use tower_sluice::key::{
    ClientIp, ExtensionKey, HeaderKey, IpSource, KeyError, KeyExtractor, PathKey, PeerIp, TrustedProxies,
};
use tower_sluice::rejection::RejectionBody;
use tower_sluice::store::MemoryStore;
use tower_sluice::{MissingKey, PartitionKey, Policy, Quota, RateLimitLayer, RateLimiter, RequestHead};

use crate::log::Log;

/// Everything that is logged at `INFO` and above while `during` runs.
fn logged(during: impl FnOnce()) -> Vec<String> {
    let (log, _guard) = Log::start();
    during();
    log.lines()
}

fn request(peer: &str, headers: &[(&'static str, &'static str)]) -> Request<()> {
    let mut request = Request::new(());
    request.extensions_mut().insert(SocketAddr::new(peer.parse().unwrap(), 4_711));
    for (name, value) in headers {
        request.headers_mut().append(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    request
}

/// The log of ten requests from each of these peers.
#[track_caller]
fn logged_by(key: &impl KeyExtractor, peers: &[&str], headers: &[(&'static str, &'static str)]) -> Vec<String> {
    let log = logged(|| {
        for peer in peers.iter().cycle().take(10 * peers.len()) {
            drop(key.extract(&RequestHead::from(&request(peer, headers))));
        }
    });
    for secret in peers.iter().copied().chain(headers.iter().map(|(_, value)| *value)) {
        assert!(!log.concat().contains(secret), "{log:?}");
    }
    log
}

#[track_caller]
fn assert_once(log: &[String], words: &[&str]) {
    let [line] = log else { panic!("{log:?}") };
    assert!(line.trim_start().starts_with("WARN tower_sluice: "), "{line}");
    for word in words {
        assert!(line.contains(word), "{word}: {line}");
    }
}

const XFF: (&str, &str) = ("x-forwarded-for", "203.0.113.7");
const NOTHING: [&str; 0] = [];

#[test]
fn mistakes_are_logged_once_and_without_addresses() {
    // The peer's address as the key.
    assert_eq!(logged_by(&PeerIp::new(), &["203.0.113.9", "2001:db8::9"], &[XFF]), NOTHING);
    assert_eq!(logged_by(&PeerIp::new(), &["10.1.2.3", "::1"], &[("x-api-key", "secret")]), NOTHING);
    let log = logged_by(&PeerIp::new(), &["::ffff:10.1.2.3", "127.0.0.1"], &[("forwarded", "for=203.0.113.7")]);
    assert_once(&log, &["network=\"private\"", "header=forwarded", "shares one budget", "ClientIp", "TrustedProxies"]);
    for key in [ClientIp::peer(), ClientIp::new(IpSource::Peer, TrustedProxies::private())] {
        assert_eq!(logged_by(&key, &["10.1.2.3"], &[XFF]), NOTHING, "logged already");
    }

    // The wrong proxy, once for private and once for public addresses.
    let key = ClientIp::new(IpSource::XForwardedFor, TrustedProxies::networks(["192.0.2.0/24"]).unwrap());
    assert_eq!(logged_by(&key, &["10.1.2.3", "203.0.113.9"], &[("x-real-ip", "203.0.113.7")]), NOTHING);
    let log = logged_by(&key, &["203.0.113.9"], &[XFF]);
    assert_once(&log, &["network=\"public\"", "header=x-forwarded-for", "not trusted", "TrustedProxies", "forgery"]);
    assert_once(&logged_by(&key, &["fd00::1", "203.0.113.9"], &[XFF]), &["network=\"private\""]);
    assert_eq!(logged_by(&key, &["127.0.0.1", "203.0.113.9"], &[XFF]), NOTHING);

    // The wrong header.
    assert_eq!(logged_by(&key, &["192.0.2.7"], &[XFF]), NOTHING);
    assert_eq!(logged_by(&key, &["192.0.2.7"], &[]), NOTHING);
    assert_eq!(logged_by(&key, &["192.0.2.7"], &[("x-forwarded-for", "unknown"), ("forwarded", "for=_x")]), NOTHING);
    let log = logged_by(&key, &["192.0.2.7"], &[("forwarded", "for=203.0.113.7")]);
    assert_once(&log, &["configured=x-forwarded-for", "seen=forwarded", "IpSource"]);

    // An unreadable list is not a short one.
    let counting = ClientIp::new(IpSource::Forwarded, TrustedProxies::hops(3));
    assert_eq!(logged_by(&counting, &["192.0.2.7"], &[("forwarded", "for=\"203.0.113.7")]), NOTHING);

    // More proxies than there are.
    let counting = ClientIp::new(IpSource::XForwardedFor, TrustedProxies::hops(3));
    assert_once(&logged_by(&counting, &["192.0.2.7"], &[XFF]), &["hops=3", "fewer elements"]);

    // A layer around the router instead of inside.
    let thousand = |requests: usize| {
        logged(|| {
            for _ in 0..requests {
                PathKey::matched().extract(&RequestHead::from(&request("192.0.2.7", &[]))).unwrap();
            }
        })
    };
    assert_eq!(thousand(999), NOTHING);
    assert_once(&thousand(2_000), &["Router::layer"]);
}

/// Sends requests with these keys through a layer. Returns the log.
fn send(layer: &RateLimitLayer, keys: impl IntoIterator<Item = &'static str>) -> Vec<String> {
    send_all(layer, keys.into_iter().map(|key| request("192.0.2.7", &[("x-api-key", key)])))
}

/// Sends these requests through a layer. Returns the log.
fn send_all(layer: &RateLimitLayer, requests: impl IntoIterator<Item = Request<()>>) -> Vec<String> {
    let ok =
        service_fn(|_: Request<()>| std::future::ready(Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))));
    let service = layer.layer(ok);
    logged(|| {
        for request in requests {
            drop(service.clone().oneshot(request).now_or_never().expect("memory answers at once"));
        }
    })
}

#[test]
fn one_key_for_all_requests_is_logged_once_per_policy() {
    let bucket = || TokenBucket::new(Quota::per_second(10));
    let by_key = || RateLimitLayer::new(Policy::new("by-key", bucket()).key(HeaderKey::from_static("x-api-key")));
    let same = by_key();
    assert_eq!(send(&same, ["secret-key"; 999]), NOTHING);
    let log = send(&same, ["secret-key"; 2_000]);
    assert_once(&log, &["policy=\"by-key\"", "same key"]);
    assert!(!log[0].contains("secret-key"));
    assert_eq!(send(&by_key(), ["a", "b"].into_iter().cycle().take(3_000)), NOTHING);
    assert_eq!(send(&RateLimitLayer::new(Policy::new("all", bucket())), ["a"; 3_000]), NOTHING);
}

#[derive(Clone)]
struct Account {
    id: u64,
}

fn accounts() -> ExtensionKey<Account> {
    ExtensionKey::new(|account| account.id.into())
}

/// A request with this extension and a key in a header.
fn with<T: Clone + Send + Sync + 'static>(extension: T) -> Request<()> {
    let mut request = request("192.0.2.7", &[("x-api-key", "a")]);
    request.extensions_mut().insert(extension);
    request
}

/// The limit was outside of the layer that inserts the account, or that layer inserted an `Arc` of it: all requests
/// were answered 400, and nothing was logged.
#[test]
fn an_extension_that_no_request_has_is_reported_once_with_its_type() {
    let policy = || Policy::new("by-account", TokenBucket::new(Quota::per_hour(1_000_000))).key(accounts());
    let shared = || with(Arc::new(Account { id: 7 }));
    let many = |count: usize| std::iter::repeat_with(shared).take(count);

    let layer = RateLimitLayer::new(policy());
    assert_eq!(send_all(&layer, many(99)), NOTHING);
    let log = send_all(&layer, many(1_000));
    assert_once(
        &log,
        &["policy=\"by-account\"", "Account", "outside", "Arc", "answered 400", "#no-request-had-its-extension"],
    );
    // The mistake of a successor may be another one.
    layer.handle().replace(policy()).unwrap();
    assert_once(&send_all(&layer, many(1_000)), &["policy=\"by-account\""]);

    // As a part of a key.
    let both = Policy::new("both", Quota::per_hour(1_000_000)).key((HeaderKey::from_static("x-api-key"), accounts()));
    assert_once(&send_all(&RateLimitLayer::new(both), many(1_000)), &["policy=\"both\"", "Account"]);

    // A policy that skips such requests limits nothing: that may be right, so it is reported after more of them.
    let skipping = RateLimitLayer::new(policy().on_missing_key(MissingKey::Skip));
    assert_eq!(send_all(&skipping, many(999)), NOTHING);
    assert_once(&send_all(&skipping, many(2_000)), &["policy=\"by-account\"", "Account"]);

    // A shadow rejects none.
    let shadow = RateLimitLayer::new(policy().shadow());
    assert_eq!(send_all(&shadow, many(999)), NOTHING);
    assert_once(&send_all(&shadow, many(2_000)), &["policy=\"by-account\"", "passed unlimited"]);
}

#[test]
fn requests_without_an_extension_that_another_had_are_not_reported() {
    let policy = || Policy::new("by-account", TokenBucket::new(Quota::per_hour(1_000_000))).key(accounts());
    for found_after in [0, 50, 99] {
        let layer = RateLimitLayer::new(policy());
        let anonymous = || std::iter::repeat_with(|| request("192.0.2.7", &[]));
        let one = std::iter::once_with(|| with(Account { id: 7 }));
        let requests = anonymous().take(found_after).chain(one).chain(anonymous().take(5_000));
        assert_eq!(send_all(&layer, requests), NOTHING, "{found_after}");
    }
    // A field that clients leave out is no mistake of the server.
    let by_header =
        Policy::new("by-header", Quota::per_hour(1_000_000)).key((HeaderKey::from_static("x-id"), accounts()));
    assert_eq!(send_all(&RateLimitLayer::new(by_header), (0..5_000).map(|_| request("192.0.2.7", &[]))), NOTHING);
}

/// `/login` at 5 per hour and all else at 100 per second, for one key: 18,000 logins an hour passed, and nothing was
/// logged.
#[test]
fn a_quota_that_depends_on_the_request_is_logged_once_per_policy() {
    let layer = |quota: fn(&str) -> Option<Quota>| {
        let quota = move |request: &RequestHead<'_>| quota(request.headers()["x-plan"].to_str().unwrap());
        let policy =
            Policy::new("api", TokenBucket::new(Quota::per_second(10_000))).key(HeaderKey::from_static("x-api-key"));
        RateLimitLayer::new(policy.quota_fn(quota))
    };
    let send = |layer: &RateLimitLayer, requests: usize| {
        let ok = service_fn(|_: Request<()>| std::future::ready(Ok::<_, Infallible>(Response::new(String::new()))));
        let service = layer.layer(ok);
        logged(|| {
            for number in 0..requests {
                let fields =
                    [("x-api-key", ["secret-a", "secret-b"][number % 2]), ("x-plan", ["1", "2", "3"][number % 3])];
                let response = service.clone().oneshot(request("192.0.2.7", &fields));
                assert_eq!(response.now_or_never().expect("memory answers at once").unwrap().status(), 200);
            }
        })
    };
    let by_request = layer(|plan| (plan == "1").then(|| Quota::per_hour(50_000)));
    let log = send(&by_request, 3_000);
    assert_once(&log, &["policy=\"api\"", "goes back and forth", "a policy for each kind of request"]);
    assert!(!log[0].contains("secret"), "{log:?}");
    assert_eq!(send(&layer(|_| Some(Quota::per_second(20_000))), 3_000), NOTHING);
}

#[test]
fn a_missing_key_by_configuration_is_logged_once_per_policy_and_again_for_its_successor() {
    struct Broken(&'static str);

    impl KeyExtractor for Broken {
        fn extract(&self, _: &RequestHead<'_>) -> Result<PartitionKey, KeyError> {
            Err(KeyError::Misconfigured { problem: self.0.into() })
        }
    }

    let policy = |problem| Policy::new("p", TokenBucket::new(Quota::per_second(10))).key(Broken(problem));
    let layer = RateLimitLayer::new(policy("no peer address"));
    let is_about = |log: &[String], problem: &str| {
        let [line] = log else { panic!("{log:?}") };
        assert!(line.contains("ERROR tower_sluice: ") && line.contains(problem), "{line}");
    };
    is_about(&send(&layer, ["a"; 10]), "no peer address");
    assert_eq!(send(&layer, ["a"; 10]), NOTHING);
    layer.handle().replace(policy("no matched route")).unwrap();
    is_about(&send(&layer, ["a"; 10]), "no matched route");
    assert_eq!(send(&layer, ["a"; 10]), NOTHING);
}

#[test]
fn a_missing_peer_address_is_logged_once_with_its_cure() {
    let layer = RateLimitLayer::new(Policy::new("by-peer", TokenBucket::new(Quota::per_second(10))).key(PeerIp::new()));
    let ok =
        service_fn(|_: Request<()>| std::future::ready(Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))));
    let log = logged(|| {
        for _ in 0..3 {
            let response = layer.layer(ok).oneshot(Request::new(())).now_or_never().expect("memory answers at once");
            assert_eq!(response.unwrap().status(), 500);
        }
    });
    let [line] = &*log else { panic!("{log:?}") };
    assert!(line.trim_start().starts_with("ERROR tower_sluice: "), "{line}");
    assert!(line.contains("by-peer") && line.contains("into_make_service_with_connect_info"), "{line}");
    let page = "https://docs.rs/tower-sluice/latest/tower_sluice/guide/misconfigured/#requests-have-no-key";
    assert!(line.contains(page), "{line}");
}

#[test]
fn a_store_that_fills_up_is_logged_once() {
    let limiter = RateLimiter::new(TokenBucket::new(Quota::per_hour(1)), MemoryStore::with_capacity(64));
    let log = logged(|| {
        for key in 0..10_000_u32 {
            let _ = limiter.check(&key.into());
        }
    });
    assert_once(&log, &["a memory store is filling up", "raise its capacity"]);
}

/// Each was logged, so that a client that was rejected at will could fill the log.
#[test]
fn rejections_whose_bodies_fail_are_logged_once() {
    let layer = RateLimitLayer::builder(Policy::new("p", TokenBucket::new(Quota::per_hour(1))))
        .rejection_response(|rejection, _| {
            let frames = [Ok(Frame::data(Bytes::from("half"))), Err("broken")];
            let body = RejectionBody::new(StreamBody::new(futures_util::stream::iter(frames)));
            Response::builder().status(rejection.status()).body(body).unwrap()
        })
        .build();
    let ok =
        service_fn(|_: Request<()>| std::future::ready(Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))));
    let log = logged(|| {
        for sent in ["", "half", "half", "half"] {
            let response =
                layer.layer(ok).oneshot(request("192.0.2.7", &[])).now_or_never().expect("memory answers at once");
            let body = response.unwrap().into_body().collect().now_or_never().expect("all frames are there");
            assert_eq!(body.unwrap().to_bytes(), sent);
        }
    });
    assert_once(&log, &["the body of a custom rejection failed", "error=broken"]);
}

#[test]
fn a_layer_that_is_mounted_around_itself_is_reported_once() {
    let limit = |name| RateLimitLayer::new(Policy::new(name, TokenBucket::new(Quota::per_second(1_000))));
    let (layer, other) = (limit("twice"), limit("once"));
    let ok =
        service_fn(|_: Request<()>| std::future::ready(Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))));
    let ten = |service: tower::util::BoxCloneSyncService<Request<()>, (), Infallible>| {
        logged(|| {
            for _ in 0..10 {
                service
                    .clone()
                    .oneshot(request("192.0.2.7", &[]))
                    .now_or_never()
                    .expect("memory answers at once")
                    .unwrap();
            }
        })
    };
    // A layer beside itself, as on two routes, or around another layer is no mistake.
    let beside = || tower::util::BoxCloneSyncService::new(layer.layer(other.layer(ok)).map_response(drop));
    assert_eq!([ten(beside()), ten(beside())].concat(), NOTHING);
    // A layer around itself is one, even with another layer in between.
    let around = || {
        let inner = other.layer(layer.clone().layer(ok));
        tower::util::BoxCloneSyncService::new(layer.layer(inner).map_response(drop))
    };
    assert_once(&ten(around()), &["policy=\"twice\"", "mounted around itself", "mount it once"]);
    assert_eq!(ten(around()), NOTHING);
}
