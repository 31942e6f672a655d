//! Policy keys, and requests without one.

use std::net::SocketAddr;
use std::sync::Arc;

use http::Request;
use tower_sluice::key::{ExtensionKey, Global, HeaderKey, KeyExtractor, PeerIp, User, key_fn};
use tower_sluice::{MissingKey, PartitionKey, Policy, Quota, RateLimitLayer, RequestHead};

use super::{one, request, send, statuses};

fn from_peer(address: &str) -> Request<()> {
    let mut request = request(&[]);
    request.extensions_mut().insert(address.parse::<SocketAddr>().unwrap());
    request
}

#[tokio::test]
async fn each_address_has_its_own_bucket() {
    let layer = RateLimitLayer::per_client(Quota::per_hour(1).burst(2));
    let peers = ["1.2.3.4:1", "1.2.3.4:2", "1.2.3.4:3", "1.2.3.5:1"];
    assert_eq!(statuses(&layer, peers.map(from_peer)).await, [200, 200, 429, 200]);

    let rejected = send(&layer, from_peer("1.2.3.4:4")).await;
    assert_eq!(rejected.headers["ratelimit"], "\"per-client\";r=0;t=3600");
    assert_eq!(rejected.headers["retry-after"], "3600");
}

#[test]
fn a_keys_pointer_is_that_key() {
    fn assert_is<K: KeyExtractor>(key: &K, of: &dyn KeyExtractor) {
        let request = request(&[("x-api-key", "a")]);
        let head = RequestHead::from(&request);
        assert_eq!((key.extract(&head), key.is_shared()), (of.extract(&head), of.is_shared()));
    }
    let header = HeaderKey::from_static("x-api-key");
    assert_is(&Arc::new(header.clone()), &header);
    assert_is(&(Arc::new(header.clone()) as Arc<dyn KeyExtractor>), &header);
    assert_is(&(Box::new(header.clone()) as Box<dyn KeyExtractor>), &header);
    assert_is(&Arc::new(Global), &Global);
}

#[tokio::test]
async fn each_key_has_its_own_budget() {
    let by_header =
        RateLimitLayer::builder(Policy::new("p", one()).key(HeaderKey::from_static("x-api-key"))).verdict().build();
    let ask = |key: &'static str| request(&[("x-api-key", key)]);
    assert_eq!(statuses(&by_header, [ask("a"), ask("a"), ask("b"), ask("A")]).await, [200, 429, 200, 200]);

    let by_peer = RateLimitLayer::builder(Policy::new("p", one()).key(PeerIp::new())).verdict().build();
    let peers = [
        "1.2.3.4:1",
        "1.2.3.4:2",
        "[::ffff:1.2.3.4]:3",
        "1.2.3.5:1",
        "[2001:db8::1]:1",
        "[2001:db8::2]:1",
        "[2001:db8:0:1::1]:1",
    ];
    assert_eq!(statuses(&by_peer, peers.map(from_peer)).await, [200, 429, 429, 200, 200, 429, 200]);

    #[derive(Clone)]
    struct Account {
        id: u64,
    }
    let by_account =
        RateLimitLayer::builder(Policy::new("p", one()).key(ExtensionKey::new(|account: &Account| account.id)))
            .verdict()
            .build();
    let of = |id| {
        let mut request = request(&[]);
        request.extensions_mut().insert(Account { id });
        request
    };
    assert_eq!(statuses(&by_account, [of(1), of(1), of(2), request(&[])]).await, [200, 429, 200, 400]);

    let by_user = RateLimitLayer::builder(Policy::new("p", one()).key(User::key())).verdict().build();
    let user = |name: &str| {
        let mut request = request(&[]);
        request.extensions_mut().insert(User::new(name));
        request
    };
    assert_eq!(statuses(&by_user, [user("a"), user("a"), user("b")]).await, [200, 429, 200]);

    let by_both = RateLimitLayer::builder(
        Policy::new("p", one()).key((HeaderKey::from_static("a"), HeaderKey::from_static("b"))),
    )
    .verdict()
    .build();
    let pair = |a: &str, b: &str| request(&[("a", a), ("b", b)]);
    assert_eq!(statuses(&by_both, [pair("x", "yz"), pair("xy", "z"), pair("x", "yz")]).await, [200, 200, 429]);

    let by_function =
        RateLimitLayer::builder(Policy::new("p", one()).key(key_fn(|head| head.uri().query().map(PartitionKey::from))))
            .verdict()
            .build();
    let query = |query: &str| Request::builder().uri(format!("/?{query}")).body(()).unwrap();
    assert_eq!(statuses(&by_function, [query("q"), query("q"), query("r"), request(&[])]).await, [200, 429, 200, 400]);
}

#[tokio::test]
async fn a_missing_key_follows_the_policy() {
    let policy = || Policy::new("p", one()).key(HeaderKey::from_static("x-api-key"));
    let bare = || request(&[]);

    let reject = RateLimitLayer::builder(policy()).verdict().build();
    let rejected = send(&reject, bare()).await;
    assert_eq!(rejected.status, 400);
    assert!(rejected.body.contains("header x-api-key is missing"), "{}", rejected.body);
    assert!(!rejected.headers.contains_key("retry-after"));

    let skip = RateLimitLayer::builder(policy().on_missing_key(MissingKey::Skip)).verdict().build();
    assert_eq!(statuses(&skip, [bare(), bare(), bare()]).await, [200, 200, 200]);

    let share = RateLimitLayer::builder(policy().on_missing_key(MissingKey::Share)).verdict().build();
    let empty = request(&[("x-api-key", "")]);
    assert_eq!(statuses(&share, [bare(), empty, request(&[("x-api-key", "a")])]).await, [200, 503, 200]);
}

#[tokio::test]
async fn a_duplicate_key_is_always_rejected() {
    for choice in [MissingKey::Reject, MissingKey::Skip, MissingKey::Share] {
        let layer = RateLimitLayer::builder(
            Policy::new("p", one()).key(HeaderKey::from_static("x-api-key")).on_missing_key(choice),
        )
        .verdict()
        .build();
        let twice = send(&layer, request(&[("x-api-key", "a"), ("x-api-key", "b")])).await;
        assert_eq!(twice.status, 400);
        assert!(twice.body.contains("more than once"), "{}", twice.body);
        assert!(!twice.verdict.unwrap().is_allowed());
    }
}

/// The response does not disclose the cure.
#[tokio::test]
async fn missing_peer_addresses_answer_500() {
    for choice in [MissingKey::Reject, MissingKey::Skip, MissingKey::Share] {
        let layer = RateLimitLayer::builder(Policy::new("p", one()).key(PeerIp::new()).on_missing_key(choice))
            .verdict()
            .build();
        let rejected = send(&layer, request(&[])).await;
        assert_eq!(rejected.status, 500);
        assert!(rejected.body.contains(r#""detail":"The server is misconfigured.""#), "{}", rejected.body);
        let verdict = rejected.verdict.unwrap();
        assert!(!verdict.is_allowed() && verdict.policies().is_empty());
    }
}
