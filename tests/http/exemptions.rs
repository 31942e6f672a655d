//! `Policy::exempt`: which requests are exempt, and which only look like it.

use std::convert::Infallible;
use std::future::ready;
use std::net::SocketAddr;

use futures_util::FutureExt;
use http::{HeaderName, HeaderValue, Request, Response, Version};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::algorithm::TokenBucket;
use tower_sluice::key::{ClientIp, IpSource, TrustedProxies};
use tower_sluice::policy::ExemptionError;
use tower_sluice::{Exemptions, LeakyQueue, Policy, Quota, RateLimitLayer};

use crate::support::log::Log;
use crate::support::metrics::Metrics;

const INTERNAL: HeaderName = HeaderName::from_static("x-internal");
const SECRET: &str = "8c6bb4c9d2f04d0fb0a39a4d2c1be0c7";

fn policy(exemptions: Exemptions) -> Policy {
    Policy::new("p", TokenBucket::new(Quota::per_day(1))).exempt(exemptions)
}

/// A layer whose only policy has nothing left.
fn used_up(exemptions: Exemptions) -> RateLimitLayer {
    let layer = RateLimitLayer::new(policy(exemptions));
    assert!(passes(&layer, get("/charged")));
    assert!(!passes(&layer, get("/charged")));
    layer
}

fn get(path: &str) -> Request<()> {
    let mut request = Request::get(path).body(()).unwrap();
    request.extensions_mut().insert(SocketAddr::from(([203, 0, 113, 9], 4_711)));
    request
}

fn with(name: &str, values: &[&[u8]]) -> Request<()> {
    let mut request = get("/");
    for value in values {
        request.headers_mut().append(name.parse::<HeaderName>().unwrap(), HeaderValue::from_bytes(value).unwrap());
    }
    request
}

fn from(peer: &str, fields: &[(&'static str, &str)]) -> Request<()> {
    let mut request = get("/");
    request.extensions_mut().insert(SocketAddr::new(peer.parse().unwrap(), 4_711));
    for (name, value) in fields {
        request.headers_mut().append(*name, value.parse().unwrap());
    }
    request
}

fn passes(layer: &RateLimitLayer, request: Request<()>) -> bool {
    let hello = service_fn(|_: Request<()>| ready(Ok::<_, Infallible>(Response::new(()))));
    layer.layer(hello).oneshot(request).now_or_never().expect("memory answers at once").unwrap().status() == 200
}

/// The operator exempts `/healthz` and everything below `/assets/`. A router behind the layer may take these spellings
/// for those paths, or those paths for others.
#[test]
fn no_other_spelling_is_exempt() {
    let layer = used_up(Exemptions::new().path("/healthz").unwrap().path("/assets/*").unwrap());
    for exempt in [
        "/healthz",
        "/healthz?verbose",
        "http://api.example/healthz",
        "/assets/",
        "/assets/app.js",
        "/assets/app.js?/../login",
        "/assets/icons/",
        "/assets/v1..2/a.b.css",
    ] {
        assert!(passes(&layer, get(exempt)), "{exempt}");
    }
    for charged in [
        "/",
        "/healthz/",
        "/healthz/..",
        "/healthz;a=b",
        "//healthz",
        "/./healthz",
        "/a/../healthz",
        "/Healthz",
        "/HEALTHZ",
        "/%68ealthz",
        "/healthz%00",
        "/healthz%20",
        "/healthz%2f..%2flogin",
        "/healthzz",
        "/login?/healthz",
        "/assets",
        "/Assets/app.js",
        "//assets/app.js",
        "/assets//app.js",
        "/assets/..",
        "/assets/../login",
        "/assets/a/../../login",
        "/assets/./app.js",
        "/assets/.../app.js",
        "/assets/%2e%2e/login",
        "/assets/%2E%2E%2Flogin",
        "/assets/..%2flogin",
        "/assets/%252e%252e/login",
        "/assets/..;/login",
        "/assets/..;a=b/login",
        "/assets/..\\login",
        "/assets/%5c../login",
        "/assets/%c0%ae%c0%ae/login",
        "/assets/a%20b.css",
    ] {
        assert!(!passes(&layer, get(charged)), "{charged}");
    }
    // `OPTIONS *`, and a target without a path.
    for target in ["*", "api.example:443"] {
        assert!(!passes(&layer, get(target)), "{target}");
    }
}

/// The values' hashes differ in many bits. If the code compared differences that can cancel each other, one value in
/// 256 would be exempt.
#[test]
fn only_the_secret_value_is_exempt() {
    let layer = used_up(Exemptions::new().header(INTERNAL, SECRET).unwrap());
    for number in 0..3_000 {
        assert!(!passes(&layer, with("x-internal", &[format!("{SECRET}{number}").as_bytes()])), "{number}");
    }
    assert!(passes(&layer, with("x-internal", &[SECRET.as_bytes()])));
}

#[test]
fn a_header_must_match_wholly_and_once() {
    let layer = used_up(Exemptions::new().header(INTERNAL, SECRET).unwrap().header(INTERNAL, "the next one").unwrap());
    let secret = SECRET.as_bytes();
    let upper = SECRET.to_uppercase();
    let spaced = [b" \t".as_slice(), secret, b" "].concat();
    for exempt in [secret, b"the next one", &spaced] {
        assert!(passes(&layer, with("x-internal", &[exempt])), "{exempt:?}");
        assert!(passes(&layer, with("X-Internal", &[exempt])), "{exempt:?}");
    }
    for charged in [
        &[b"".as_slice()][..],
        &[&secret[1..]],
        &[&secret[..31]],
        &[&[secret, b"0"].concat()],
        &[&[b"\"", secret, b"\""].concat()],
        &[&[secret, b", x"].concat()],
        &[upper.as_bytes()],
        &[b"\xff"],
        &[secret, secret],
        &[secret, b"the next one"],
        &[b"x", secret],
    ] {
        assert!(!passes(&layer, with("x-internal", charged)), "{charged:?}");
    }
    assert!(!passes(&layer, with("x-internal2", &[secret])));
    assert!(!passes(&layer, with("cookie", &[&[b"x-internal=", secret].concat()])));
    assert!(!format!("{:?}", Exemptions::new().header(INTERNAL, SECRET).unwrap()).contains(SECRET));
}

fn networks(client: ClientIp) -> Exemptions {
    Exemptions::new().networks(client, ["10.0.0.0/8", "192.0.2.7", "2001:db8:1::/48"]).unwrap()
}

#[test]
fn no_forged_address_is_exempt() {
    let peer = used_up(networks(ClientIp::peer()));
    for exempt in ["10.0.0.1", "10.255.255.255", "::ffff:10.1.2.3", "192.0.2.7", "2001:db8:1:2::3"] {
        assert!(passes(&peer, from(exempt, &[])), "{exempt}");
    }
    let translated = ["64:ff9b::10.1.2.3", "2002:a01:203::1", "::10.1.2.3"];
    for charged in ["11.0.0.1", "9.255.255.255", "192.0.2.8", "2001:db8:2::3"].iter().chain(&translated) {
        assert!(!passes(&peer, from(charged, &[])), "{charged}");
    }
    let trusted = TrustedProxies::networks(["198.51.100.1", "10.9.9.9"]).unwrap();
    let behind = used_up(networks(ClientIp::new(IpSource::XForwardedFor, trusted)));
    // A trusted proxy has appended its peer's address.
    let list = |text| from("198.51.100.1", &[("x-forwarded-for", text)]);
    assert!(passes(&behind, list("10.1.2.3")) && passes(&behind, list("203.0.113.9, 10.1.2.3")));
    for forged in ["10.1.2.3, 203.0.113.9", "10.1.2.3,203.0.113.9, 10.9.9.9", "203.0.113.9", "10.1.2.3, unknown", ""] {
        assert!(!passes(&behind, list(forged)), "{forged}");
    }
    // A stranger forges every field, and a proxy does not report its client.
    let fields = ["x-forwarded-for", "forwarded", "x-real-ip", "via", "cf-connecting-ip", "x-client-ip"];
    for field in fields {
        for value in ["10.1.2.3", "for=10.1.2.3"] {
            assert!(!passes(&behind, from("203.0.113.9", &[(field, value)])), "{field}: {value}");
            assert!(!passes(&peer, from("203.0.113.9", &[(field, value)])), "{field}: {value}");
        }
    }
    assert!(!passes(&behind, from("198.51.100.1", &[])) && !passes(&behind, from("10.9.9.9", &[])));
    assert!(!passes(&behind, from("10.9.9.9", &[("forwarded", "for=10.1.2.3")])));
    assert!(!passes(&behind, from("10.9.9.9", &[("x-forwarded-for", "10.9.9.9, 203.0.113.9")])));
}

/// Nobody configured the proxy at 10.0.0.2, which is in the exempt network and through which all internet clients come.
#[test]
fn an_unconfigured_proxy_exempts_no_client() {
    let elsewhere = TrustedProxies::networks(["198.51.100.1"]).unwrap();
    let sources = [
        ClientIp::peer(),
        ClientIp::new(IpSource::XForwardedFor, elsewhere.clone()),
        ClientIp::new(IpSource::cf_connecting_ip(), elsewhere),
    ];
    for client in sources {
        let layer = used_up(networks(client.clone()));
        assert!(passes(&layer, from("10.0.0.2", &[])), "{client:?}");
        for (field, value) in [
            ("x-forwarded-for", "203.0.113.9"),
            ("forwarded", "for=203.0.113.9"),
            ("x-real-ip", "203.0.113.9"),
            ("via", "1.1 proxy"),
        ] {
            assert!(!passes(&layer, from("10.0.0.2", &[(field, value)])), "{client:?}: {field}");
        }
    }
    let trusted = TrustedProxies::networks(["198.51.100.1"]).unwrap();
    let layer = used_up(networks(ClientIp::new(IpSource::cf_connecting_ip(), trusted)));
    assert!(!passes(&layer, from("10.0.0.2", &[("cf-connecting-ip", "203.0.113.9")])), "the header that is read");
}

/// Without it, no network is exempt, and the log says so once.
#[test]
fn networks_need_the_peers_address() {
    let (log, _guard) = Log::start();
    let layer = RateLimitLayer::new(policy(networks(ClientIp::peer()).path("/healthz").unwrap()));
    let unknown = |path: &str| Request::get(path).body(()).unwrap();
    assert_eq!([(); 3].map(|()| passes(&layer, unknown("/"))), [true, false, false]);
    assert!(passes(&layer, unknown("/healthz")));
    let lines = log.lines();
    let [line] = &lines[..] else { panic!("{lines:?}") };
    assert!(line.contains("no request is exempt by its network") && line.contains("peer address unknown"), "{line}");
}

/// The two policy kinds that do not reject at once; another policy, which is not exempt, still charges.
#[test]
fn exempt_requests_count_as_skipped() {
    let metrics = Metrics::record();
    let exemptions = || Exemptions::new().path("/healthz").unwrap();
    let layer = RateLimitLayer::new([
        policy(exemptions()),
        Policy::new("shadow", TokenBucket::new(Quota::per_day(1))).shadow().exempt(exemptions()),
        Policy::new("queue", LeakyQueue::new(Quota::per_day(1))).exempt(exemptions()),
        Policy::new("all", TokenBucket::new(Quota::per_day(3))),
    ]);
    for expected in [true, true, true, false] {
        assert_eq!(passes(&layer, get("/healthz")), expected);
    }
    metrics.assert_results(&[
        ("p skipped", 4),
        ("shadow skipped", 4),
        ("queue skipped", 4),
        ("all allowed", 3),
        ("all rejected", 1),
    ]);
}

#[test]
fn a_live_change_adds_and_removes_exemptions() {
    let layer = used_up(Exemptions::new());
    let exempting = || policy(Exemptions::new().path("/healthz").unwrap());
    assert!(!passes(&layer, get("/healthz")));
    layer.handle().replace(exempting()).unwrap();
    assert!(passes(&layer, get("/healthz")) && !passes(&layer, get("/")));
    // The second call replaces the first.
    layer.handle().replace(exempting().exempt(Exemptions::new())).unwrap();
    assert!(!passes(&layer, get("/healthz")));
}

#[test]
fn grpc_methods_are_exempt_by_path() {
    let layer = used_up(Exemptions::new().path("/grpc.health.v1.Health/*").unwrap());
    let call = |path: &str| {
        let mut request = get(path);
        *request.method_mut() = http::Method::POST;
        *request.version_mut() = Version::HTTP_2;
        request.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
        let hello = service_fn(|_: Request<()>| ready(Ok::<_, Infallible>(Response::new(()))));
        let response = layer.layer(hello).oneshot(request).now_or_never().unwrap().unwrap();
        response.headers().get("grpc-status").map(|status| status.to_str().unwrap().to_owned())
    };
    assert_eq!(call("/grpc.health.v1.Health/Check"), None);
    assert_eq!(call("/grpc.health.v1.health/Check").as_deref(), Some("8"));
    assert_eq!(call("/sluice.example.v1.Echo/Echo").as_deref(), Some("8"));
}

#[test]
fn useless_and_all_covering_exemptions_are_errors() {
    let network = |text: &'static str| Exemptions::new().networks(ClientIp::peer(), [text]).map(drop);
    let path = |text| Exemptions::new().path(text).map(drop);
    let header = |value| Exemptions::new().header(INTERNAL, value).map(drop);
    for (result, expected) in [
        (network("10.0.0.0/33"), "\"10.0.0.0/33\" is not a network; write an address such as 192.0.2.7"),
        (
            network("10.0.0.1/8"),
            "\"10.0.0.1/8\" is an address within a network; write 10.0.0.0/8 for the network, or 10.0.0.1",
        ),
        (
            network("0.0.0.0/0"),
            "\"0.0.0.0/0\", with the networks before it, exempts half of all addresses or more; write the",
        ),
        (network("128.0.0.0/1"), "\"128.0.0.0/1\", with the networks before it, exempts half of all addresses or more"),
        (header(""), "no request can have this value of x-internal; write at least one character"),
        (header(" s3cret"), "no request can have this value of x-internal; write"),
        (header("s3cret\n"), "no request can have this value of x-internal; write"),
        (path("healthz"), "no request has the path \"healthz\"; write it as it is sent, with a slash first"),
        (path(""), "no request has the path \"\"; write it"),
        (path("/a?b"), "no request has the path \"/a?b\"; write it"),
        (path("/a#b"), "no request has the path \"/a#b\"; write it"),
        (path("/a b"), "no request has the path \"/a b\"; write it"),
        (path("/health*"), "\"/health*\" cannot be matched; write a path such as /healthz, or /assets/* for all paths"),
        (path("/*/a"), "\"/*/a\" cannot be matched; write"),
        (path("/a/../b/*"), "\"/a/../b/*\" cannot be matched; write"),
        (path("/a//*"), "\"/a//*\" cannot be matched; write"),
        (path("/%61/*"), "\"/%61/*\" cannot be matched; write"),
        (path("/*"), "/* exempts all requests; write the paths that are exempt, or remove the policy"),
    ] {
        let error: ExemptionError = result.unwrap_err();
        assert!(error.to_string().starts_with(expected), "{error}\n{expected}");
        assert!(!error.to_string().contains("s3cret"), "{error}");
    }
}
