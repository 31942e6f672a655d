//! Configuration mistakes are logged once, with their cure, and without a key or an address.
//!
//! Most are logged once per process, so one test covers them.

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
use tower_sluice::algorithm::{FixedWindow, TokenBucket};
use tower_sluice::key::{
    ClientIp, ExtensionKey, HeaderKey, IpSource, KeyError, KeyExtractor, PathKey, PeerIp, TrustedProxies, key_fn,
};
use tower_sluice::rejection::RejectionBody;
use tower_sluice::store::MemoryStore;
use tower_sluice::{
    Exemptions, MissingKey, PartitionKey, Policy, Quota, RateLimitLayer, RateLimiter, RequestHead, Settlement,
};

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

/// Sends ten requests from each of these peers, and returns the log.
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

/// Each mistake is logged once.
#[test]
fn mistakes_are_logged_without_addresses() {
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

    // No header at all. Fewer requests may be health checks.
    for _ in 0..9 {
        assert_eq!(logged_by(&key, &["192.0.2.7"], &[("x-api-key", "secret")]), NOTHING);
    }
    let log = logged_by(&key, &["192.0.2.7"], &[]);
    assert_once(&log, &["configured=x-forwarded-for", "first 100 requests", "let the proxy set this header"]);

    // The wrong header.
    assert_eq!(logged_by(&key, &["192.0.2.7"], &[XFF]), NOTHING);
    assert_eq!(logged_by(&key, &["192.0.2.7"], &[]), NOTHING);
    assert_eq!(logged_by(&key, &["192.0.2.7"], &[("x-forwarded-for", "unknown"), ("forwarded", "for=_x")]), NOTHING);
    let log = logged_by(&key, &["192.0.2.7"], &[("forwarded", "for=203.0.113.7")]);
    assert_once(&log, &["configured=x-forwarded-for", "seen=forwarded", "IpSource"]);

    // An unreadable list does not count as a short one.
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
    let [first] = &thousand(1)[..] else { panic!("one line") };
    assert!(first.contains("INFO tower_sluice: PathKey::matched: the first request had no matched route"), "{first}");
    assert_eq!(thousand(98), NOTHING);
    assert_once(&thousand(2_000), &["none of the first 100", "Router::layer"]);
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

/// The process logs it once per policy.
#[test]
fn one_key_for_all_is_logged() {
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

/// Checks the two lines about requests without a key: the first is for information, and the second is a warning.
#[track_caller]
fn assert_keyless(log: &[String], words: &[&str]) {
    let [first, hundredth] = log else { panic!("{log:#?}") };
    assert!(first.trim_start().starts_with("INFO tower_sluice: the first request of a policy had no key"), "{first}");
    assert!(hundredth.trim_start().starts_with("WARN tower_sluice: none of the first 100 requests had"), "{hundredth}");
    assert!(first.contains("#the-first-request-of-a-policy-had-no-key"), "{first}");
    assert!(hundredth.contains("#no-request-had-a-key"), "{hundredth}");
    for (line, word) in log.iter().flat_map(|line| words.iter().map(move |word| (line, word))) {
        assert!(line.contains(word), "{word}: {line}");
    }
}

/// Checks the lines at the first request and at the hundredth, and that no other request brings one.
#[track_caller]
fn assert_keyless_requests(policy: Policy, request: impl Fn() -> Request<()>, words: &[&str]) {
    let layer = RateLimitLayer::new(policy);
    let many = |count: usize| std::iter::repeat_with(&request).take(count);
    let mut log = send_all(&layer, many(1));
    assert_eq!(send_all(&layer, many(98)), NOTHING);
    log.extend(send_all(&layer, many(1)));
    assert_eq!(send_all(&layer, many(1_000)), NOTHING);
    assert_keyless(&log, words);
}

/// The limit was outside the layer that inserts the account, or that layer inserted it in an `Arc`: all requests were
/// answered 400, and nothing was logged.
#[test]
fn an_extension_never_inserted_is_reported() {
    let policy = || Policy::new("by-account", TokenBucket::new(Quota::per_hour(1_000_000))).key(accounts());
    let shared = || with(Arc::new(Account { id: 7 }));
    let words = ["policy=\"by-account\"", "Account\"", "outside", "Arc", "answered 400"];
    assert_keyless_requests(policy(), shared, &words);
    // A successor may have a different mistake.
    let layer = RateLimitLayer::new(policy());
    let thousand = || send_all(&layer, std::iter::repeat_with(shared).take(1_000));
    assert_keyless(&thousand(), &words);
    layer.handle().replace(policy()).unwrap();
    assert_keyless(&thousand(), &words);
    // As a part of a key.
    let both = Policy::new("both", Quota::per_hour(1_000_000)).key((HeaderKey::from_static("x-api-key"), accounts()));
    assert_keyless_requests(both, shared, &["policy=\"both\"", "Account\""]);
}

/// 1,100 requests passed without a limit, and nothing was logged.
#[test]
fn a_misspelt_header_is_reported() {
    let by = |key: &'static str| Policy::new("api", Quota::per_hour(1)).key(HeaderKey::from_static(key));
    let api_key = || request("192.0.2.7", &[("x-api-key", "secret")]);
    let words = ["policy=\"api\"", "problem=header x-api-kye is missing", "check how the key is spelled"];
    let said = |fate: &'static str| [&words[..], &[fate]].concat();
    assert_keyless_requests(by("x-api-kye"), api_key, &said("answered 400"));
    let skip = by("x-api-kye").on_missing_key(MissingKey::Skip);
    assert_keyless_requests(skip, api_key, &said("passed unlimited"));
    assert_keyless_requests(by("x-api-kye").shadow(), api_key, &said("passed unlimited"));
    let share = by("x-api-kye").on_missing_key(MissingKey::Share);
    assert_keyless_requests(share, api_key, &said("charged to one budget that they share"));
    // A gateway that adds the header to the client's own.
    let twice = || request("192.0.2.7", &[("x-api-key", "secret"), ("x-api-key", "secret")]);
    let log = ["problem=header x-api-key was sent more than once", "answered 400"];
    assert_keyless_requests(by("x-api-key").on_missing_key(MissingKey::Skip), twice, &log);
    assert_eq!(send(&RateLimitLayer::new(by("x-api-key")), ["secret"; 900]), NOTHING);
}

#[test]
fn an_empty_key_function_is_reported() {
    struct Tenant;

    impl KeyExtractor for Tenant {
        fn extract(&self, _: &RequestHead<'_>) -> Result<PartitionKey, KeyError> {
            Err(KeyError::Missing { what: "the tenant".into() })
        }
    }

    let policy = || Policy::new("api", Quota::per_hour(1));
    let any = || request("192.0.2.7", &[]);
    assert_keyless_requests(policy().key(key_fn(|_| None::<PartitionKey>)), any, &["what the key function looks for"]);
    assert_keyless_requests(policy().key(Tenant), any, &["problem=the tenant is missing"]);
    // Of the two policies, one finds its key.
    let layer = RateLimitLayer::new([
        policy().key(Tenant).on_missing_key(MissingKey::Skip),
        Policy::new("all", Quota::per_hour(1)),
    ]);
    assert_keyless(&send_all(&layer, std::iter::repeat_with(any).take(500)), &["policy=\"api\"", "the tenant"]);
}

#[test]
fn a_key_found_later_silences_the_warning() {
    let by_account = || Policy::new("by-account", TokenBucket::new(Quota::per_hour(1_000_000))).key(accounts());
    let anonymous = || std::iter::repeat_with(|| request("192.0.2.7", &[]));
    let mut found = 0;
    for missing in [MissingKey::Reject, MissingKey::Skip, MissingKey::Share] {
        for found_after in [0, 1, 50, 99] {
            let layer = RateLimitLayer::new(by_account().on_missing_key(missing));
            let one = std::iter::once_with(|| with(Account { id: 7 }));
            let requests = anonymous().take(found_after).chain(one).chain(anonymous().take(5_000));
            let log = send_all(&layer, requests);
            // The first was anonymous, and nobody can know yet that this is not a mistake.
            assert_eq!(log.len(), usize::from(found_after > 0), "{found_after}: {log:#?}");
            assert!(log.iter().all(|line| line.contains("Nothing is wrong if its client is anonymous")), "{log:#?}");
            found += 1;
        }
    }
    assert_eq!(found, 12);
}

#[test]
fn a_condition_never_met_is_reported_once() {
    let policy = || Policy::new("uploads", TokenBucket::new(Quota::per_hour(1_000_000)));
    let gets = |count: usize| std::iter::repeat_with(|| request("192.0.2.7", &[])).take(count);
    let puts = || policy().when(|request| request.method() == http::Method::PUT);
    let never = RateLimitLayer::new(puts());
    assert_eq!(send_all(&never, gets(999)), NOTHING);
    let [line] = &send_all(&never, gets(5_000))[..] else { panic!("one line") };
    assert!(
        line.trim_start().starts_with("INFO tower_sluice: a policy has applied to none of the first 1,000"),
        "{line}"
    );
    assert!(line.contains("policy=\"uploads\"") && line.contains("`when`"), "{line}");
    // Exemptions that leave out all.
    let exempt = policy().exempt(Exemptions::new().path("/").unwrap());
    assert_eq!(send_all(&RateLimitLayer::new(exempt), gets(5_000)).len(), 1);
    // One request has met it.
    let sometimes = RateLimitLayer::new(puts());
    let put = std::iter::once_with(|| {
        let mut put = request("192.0.2.7", &[]);
        *put.method_mut() = http::Method::PUT;
        put
    });
    assert_eq!(send_all(&sometimes, gets(998).chain(put).chain(gets(5_000))), NOTHING);
    assert_eq!(send_all(&RateLimitLayer::new(policy()), gets(5_000)), NOTHING);
}

/// 300 units stayed charged for ever although 120 were used: the error said so, and every example threw it away.
#[test]
fn settling_an_unknown_policy_is_reported_twice() {
    let tokens = || Policy::new("tokens", FixedWindow::new(Quota::per_hour(1_000_000))).cost(300).settle_by_handler();
    let send = |layer: &RateLimitLayer, count: usize, settle: fn(&Settlement)| {
        let service = layer.layer(service_fn(move |request: Request<()>| {
            settle(request.extensions().get::<Settlement>().unwrap());
            std::future::ready(Ok::<_, Infallible>(Response::new(Full::<Bytes>::default())))
        }));
        logged(|| {
            for _ in 0..count {
                drop(
                    service.clone().oneshot(request("192.0.2.7", &[])).now_or_never().expect("memory answers at once"),
                );
            }
        })
    };
    let layer = RateLimitLayer::new(tokens());
    let wrong = |settlement: &Settlement| drop(settlement.settle("tokns", 120));
    let first = send(&layer, 1, wrong);
    assert_once(&first, &["policy=\"tokns\"", "known=\"", "tokens", "reports=1", "settle_all"]);
    assert_eq!(send(&layer, 98, wrong), NOTHING);
    assert_once(&send(&layer, 900, wrong), &["policy=\"tokns\"", "reports=100"]);
    let right = |settlement: &Settlement| assert_eq!(settlement.settle_all(120), 1);
    assert_eq!(send(&layer, 900, right), NOTHING);
    // The policy is there, and has not charged this request.
    let rows = RateLimitLayer::new(Policy::new("rows", Quota::per_hour(1_000_000)).settle_by_handler());
    assert_eq!(send(&rows, 900, |settlement| drop(settlement.settle("tokens", 120))), NOTHING);
}

/// Each layer had its own table, so no request was ever rejected.
#[test]
fn layers_built_per_request_are_reported_once() {
    let build = || Policy::new("per-request", TokenBucket::new(Quota::per_hour(1)));
    let layers = |count: usize| {
        logged(|| {
            for _ in 0..count {
                assert_eq!(send(&RateLimitLayer::new(build()), ["a"]), NOTHING);
            }
        })
    };
    assert_eq!(layers(99), NOTHING);
    // Layers that share a limiter count together.
    let shared = Arc::new(RateLimiter::new(TokenBucket::new(Quota::per_hour(1)), MemoryStore::with_capacity(64)));
    for _ in 0..1_000 {
        let layer = RateLimitLayer::new(Policy::new("per-request", Arc::clone(&shared)));
        assert_eq!(send(&layer, ["a"]), NOTHING);
    }
    assert_once(&layers(500), &["policy=\"per-request\"", "layers=100", "build the layer once"]);
}

/// `/login` at 5 per hour and all else at 100 per second, for one key: 18,000 logins an hour passed, and nothing was
/// logged.
#[test]
fn request_dependent_quotas_are_logged() {
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

/// The process logs it once per policy, and again for a successor.
#[test]
fn keys_missing_by_configuration_are_logged() {
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

/// The process logs it once, with its cure.
#[test]
fn a_missing_peer_address_is_logged() {
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
fn a_full_store_is_logged_once() {
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
fn a_self_nested_layer_is_reported_once() {
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
    // A layer beside itself, as on two routes, or around another layer is not a mistake.
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
