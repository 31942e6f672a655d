//! Clients try to use more than one budget, or another client's, through the whole layer.

use std::collections::HashSet;
use std::convert::Infallible;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderName, HeaderValue, Request, Response};
use http_body_util::Full;
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::algorithm::TokenBucket;
use tower_sluice::key::{
    ClientIp, HeaderKey, IpNetwork, IpSource, KeyExtractor, PathKey, PeerIp, TrustedProxies, User,
};
use tower_sluice::testing::Random;
use tower_sluice::{PartitionKey, Policy, Quota, RateLimitLayer, RequestHead};

const PROXY: &str = "10.0.0.1";
const XFF: HeaderName = HeaderName::from_static("x-forwarded-for");

fn request(peer: IpAddr, name: &HeaderName, lines: &[impl AsRef<str>]) -> Request<()> {
    let mut request = Request::new(());
    request.extensions_mut().insert(SocketAddr::new(peer, 4_711));
    for line in lines {
        request.headers_mut().append(name, HeaderValue::from_str(line.as_ref()).unwrap());
    }
    request
}

/// How many of these requests reach the inner service, at `limit` per hour.
fn admitted(limit: u64, key: impl KeyExtractor, requests: impl IntoIterator<Item = Request<()>>) -> usize {
    let layer = RateLimitLayer::new(Policy::new("p", TokenBucket::new(Quota::per_hour(limit))).key(key));
    count_admitted(&layer, requests)
}

fn count_admitted(layer: &RateLimitLayer, requests: impl IntoIterator<Item = Request<()>>) -> usize {
    let yes = service_fn(|_| std::future::ready(Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))));
    let service = layer.layer(yes);
    let answer = |request| service.clone().oneshot(request).now_or_never().expect("memory answers at once").unwrap();
    requests.into_iter().map(answer).filter(|answer| answer.status().is_success()).count()
}

fn behind_proxies(trusted: TrustedProxies) -> ClientIp {
    ClientIp::new(IpSource::XForwardedFor, trusted)
}

fn proxies() -> TrustedProxies {
    TrustedProxies::networks(["10.0.0.0/8"]).unwrap()
}

/// A client behind a proxy forges a longer list for each request.
#[test]
fn a_thousand_forged_prefixes_are_one_client() {
    for (junk, tail) in [
        ("", "203.0.113.9"),
        ("junk, ", "203.0.113.9:80"),
        ("\"unclosed, ", "203.0.113.9"),
        ("unknown, , ", "\"203.0.113.9\""),
        ("[::1]:99999, ", "::ffff:203.0.113.9"),
    ] {
        let forged = |i: u32| format!("{}.{}.6.6, {junk}", 1 + i / 250, i % 250);
        let one_line = |i| request(PROXY.parse().unwrap(), &XFF, &[forged(i) + tail]);
        let two_lines = |i| request(PROXY.parse().unwrap(), &XFF, &[forged(i), tail.to_owned()]);
        for trusted in [proxies(), proxies().and_hops(1), TrustedProxies::hops(1), TrustedProxies::private()] {
            let key = behind_proxies(trusted);
            assert_eq!(admitted(10, key.clone(), (0..1_000).map(one_line)), 10, "{tail}");
            assert_eq!(admitted(10, key, (0..1_000).map(two_lines)), 10, "{tail}");
        }
    }
    // Connected directly, a client's key is its address, regardless of its fields and of trusted proxies.
    let direct = |i: u32| request("203.0.113.9".parse().unwrap(), &XFF, &[format!("198.51.{}.{}", i / 250, i % 250)]);
    assert_eq!(admitted(10, PeerIp::new(), (0..1_000).map(direct)), 10);
    assert_eq!(admitted(10, ClientIp::peer(), (0..1_000).map(direct)), 10);
    assert_eq!(admitted(10, behind_proxies(proxies()), (0..1_000).map(direct)), 10);
    assert_eq!(admitted(10, behind_proxies(TrustedProxies::hops(0)), (0..1_000).map(direct)), 10);
}

/// One list, split into one to four lines, with any forged elements before it in any order.
#[test]
fn rearranged_lines_are_one_client() {
    let mut random = Random::of_trial(0);
    let mut random = |end: usize| usize::try_from(random.below(end as u64)).unwrap();
    let mut keys = HashSet::new();
    for _ in 0..500 {
        let mut forged = ["6.6.6.6", "unknown", "10.0.0.7", "\"", "::1", "203.0.113.1"];
        for i in (1..forged.len()).rev() {
            forged.swap(i, random(i + 1));
        }
        let elements = [&forged[..random(7)], &["203.0.113.9", "10.0.0.3", "10.0.0.2"]].concat();
        let mut lines = vec![elements];
        for _ in 0..random(4) {
            let line = random(lines.len());
            let at = random(lines[line].len() + 1);
            let end = lines[line].split_off(at);
            lines.insert(line + 1, end);
        }
        let lines: Vec<_> = lines.iter().map(|line| line.join([",", ", ", " ,\t"][random(3)])).collect();
        let key = behind_proxies(proxies()).extract(&RequestHead::from(&request(PROXY.parse().unwrap(), &XFF, &lines)));
        keys.insert(key.unwrap());
    }
    assert_eq!(keys, HashSet::from([PartitionKey::from("203.0.113.9".parse::<IpAddr>().unwrap())]));
}

/// Neither key is trusted.
#[test]
fn requests_with_two_api_keys_are_rejected() {
    let name = HeaderName::from_static("x-api-key");
    let both = |a: &'static str, b: &'static str| request(PROXY.parse().unwrap(), &name, &[a, b]);
    let requests = (0..100).map(|i| if i % 2 == 0 { both("mine", "yours") } else { both("mine", "mine") });
    assert_eq!(admitted(10, HeaderKey::new(name.clone()), requests), 0);
}

/// A site sends from 100,000 of its addresses.
#[test]
fn prefixes_bound_a_networks_keys() {
    let base = "2001:db8:1:100::".parse::<Ipv6Addr>().unwrap().to_bits();
    let mut random = Random::of_trial(0);
    let mut within = |free_bits: u32| {
        let drawn = u128::from(random.next()) << 64 | u128::from(random.next());
        let network = base >> free_bits << free_bits;
        IpAddr::V6(Ipv6Addr::from_bits(network | drawn >> (128 - free_bits)))
    };
    let mut keys = |free_bits, prefix| {
        let key = PeerIp::new().ipv6_prefix(prefix);
        let requests = (0..100_000).map(|_| request(within(free_bits), &XFF, &[""; 0]));
        requests.map(|request| key.extract(&RequestHead::from(&request)).unwrap()).collect::<HashSet<_>>().len()
    };
    assert_eq!([keys(64, 64), keys(72, 64), keys(72, 56)], [1, 256, 1]);
    assert_eq!([keys(80, 56), keys(80, 48)], [256, 1]);
    assert!((48_000..=65_536).contains(&keys(80, 64)));
    for prefix in 32..=128 {
        let network = IpNetwork::of(within(80), prefix);
        let (first, _) = network.to_string().split_once('/').map(|(ip, len)| (ip.to_owned(), len.to_owned())).unwrap();
        assert_eq!(IpNetwork::of(first.parse().unwrap(), prefix), network);
    }
}

/// Policies per prefix with rising quotas bound a whole site, and do not affect its neighbours.
#[test]
fn stacked_prefixes_bound_a_site() {
    let tier = |name: &'static str, prefix, limit| {
        Policy::new(name, TokenBucket::new(Quota::per_hour(limit))).key(PeerIp::new().ipv6_prefix(prefix))
    };
    let layer = RateLimitLayer::new([tier("device", 64, 10), tier("home", 56, 40), tier("site", 48, 100)]);
    let from = |network: u128| {
        let base = "2001:db8:1::".parse::<Ipv6Addr>().unwrap().to_bits();
        request(Ipv6Addr::from_bits(base + (network << 64) + 1).into(), &XFF, &[""; 0])
    };
    assert_eq!(count_admitted(&layer, (0..100).map(|_| from(0))), 10);
    assert_eq!(count_admitted(&layer, (0..2_000).map(|i| from(i % 256))), 30);
    assert_eq!(count_admitted(&layer, (0..2_000).map(|i| from(256 + i))), 60);
    assert_eq!(count_admitted(&layer, (0..100).map(|_| from(1 << 16))), 10, "the site next door");

    // IPv4 addresses have no wider prefixes, so each of 256 neighbours gets a device's limit.
    let v4 = |i: u32| request([198, 51, 100, u8::try_from(i % 256).unwrap()].into(), &XFF, &[""; 0]);
    assert_eq!(count_admitted(&layer, (0..256 * 20).map(v4)), 256 * 10);
}

/// A header of any length yields a key of bounded length.
#[test]
fn a_long_header_is_a_short_key() {
    let name = HeaderName::from_static("x-api-key");
    let key = HeaderKey::new(name.clone());
    let of = |value: &str| key.extract(&RequestHead::from(&request(PROXY.parse().unwrap(), &name, &[value]))).unwrap();
    let long = "k".repeat(1 << 20);
    assert_eq!(of(&long).as_bytes().len(), 40);
    assert_eq!(of(&long), of(&long.clone()));
    assert_ne!(of(&long), of(&(long.clone() + "k")));
    assert_eq!(of(&long[..256]).as_bytes().len(), 256);
    // Keys are not normalised implicitly.
    assert_eq!(HashSet::from(["key", "Key", "KEY", "\"key\""].map(of)).len(), 4);

    let mut user = request(PROXY.parse().unwrap(), &name, &[&long]);
    user.extensions_mut().insert(User::new(long.as_str()));
    let pair = (User::key(), HeaderKey::new(name)).extract(&RequestHead::from(&user)).unwrap();
    assert_eq!(pair.as_bytes().len(), 2 * (8 + 40));
}

/// Sends these paths to a router with one limited route. Returns how many reach its handler, and how many are rejected.
async fn reached(limit: u64, route: &str, paths: impl IntoIterator<Item = String>) -> (u32, usize) {
    let policy = Policy::new("per-route", TokenBucket::new(Quota::per_hour(limit))).key(PathKey::matched());
    let calls = Arc::new(AtomicU32::new(0));
    let handler = {
        let calls = Arc::clone(&calls);
        move || async move {
            calls.fetch_add(1, Ordering::Relaxed);
        }
    };
    let app = Router::new().route(route, get(handler)).layer(RateLimitLayer::new(policy));
    let mut rejected = 0;
    for path in paths {
        let answer = app.clone().oneshot(Request::get(&path).body(Body::empty()).unwrap()).await.unwrap();
        rejected += usize::from(answer.status() == 503);
    }
    (calls.load(Ordering::Relaxed), rejected)
}

/// `//path` and other spellings use one budget, since the key is the route, not the path.
#[tokio::test]
async fn spellings_of_a_path_are_one_budget() {
    let spellings = [
        "/users/1",
        "/users/2",
        "/users/%31",
        "/users/%2531",
        "/users/1?x=1",
        "/users/1;v=1",
        "/users/1%2F..%2F2",
        "/users/.",
        "/users/..",
        "/users/%2e%2e",
        "/users/ONE",
        "/users/%00",
    ]
    .map(String::from);
    assert_eq!(reached(12, "/users/{id}", spellings.clone()).await, (12, 0), "all reach the handler");
    assert_eq!(reached(5, "/users/{id}", spellings).await, (5, 7));
    // Paths without a route share one budget: 10,000 random paths are one key.
    assert_eq!(reached(5, "/users/{id}", (0..10_000).map(|i| format!("/{i}/nowhere"))).await, (0, 9_995));
}
