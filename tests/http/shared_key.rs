//! Policies with the same key: the layer reads it once per request, and decides as if each policy had read it.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{HeaderMap, Request, Response, StatusCode};
use proptest::prelude::*;
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::key::{HeaderKey, KeyError, KeyExtractor, PathKey, PeerIp};
use tower_sluice::store::MemoryStore;
use tower_sluice::time::ManualClock;
use tower_sluice::{
    FixedWindow, PartitionKey, Policy, Quota, RateLimitLayer, RateLimiter, RequestHead, SlidingWindow, TokenBucket,
};

use crate::support::cases::cases;

/// Counts its calls. Extractors with the same number have the same identity; one without a number has none.
#[derive(Clone)]
struct Counted {
    calls: Arc<AtomicUsize>,
    identity: Option<u8>,
}

impl KeyExtractor for Counted {
    fn extract(&self, head: &RequestHead<'_>) -> Result<PartitionKey, KeyError> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        HeaderKey::from_static("key").extract(head)
    }

    fn identity(&self) -> Option<String> {
        self.identity.map(|number| format!("Counted {number}"))
    }
}

fn request(key: Option<&str>) -> Request<()> {
    let mut request = Request::new(());
    if let Some(key) = key {
        request.headers_mut().insert("key", key.parse().unwrap());
    }
    request
}

async fn send(layer: &RateLimitLayer, request: Request<()>) -> (StatusCode, HeaderMap) {
    let ok = service_fn(|_| async { Ok::<_, Infallible>(Response::new(String::new())) });
    let response = layer.layer(ok).oneshot(request).await.unwrap();
    (response.status(), response.headers().clone())
}

/// The calls for two requests, by the second policy's change.
async fn calls(identities: [Option<u8>; 2], change: impl FnOnce(Policy) -> Policy, key: Option<&str>) -> usize {
    let calls = Arc::new(AtomicUsize::new(0));
    let policy = |index: usize| {
        let key = Counted { calls: Arc::clone(&calls), identity: identities[index] };
        Policy::new(["one", "two"][index], TokenBucket::new(Quota::per_second(10))).key(key)
    };
    let layer = RateLimitLayer::new([policy(0), change(policy(1))]);
    for _ in 0..2 {
        let _ = send(&layer, request(key)).await;
    }
    calls.load(Ordering::Relaxed)
}

#[tokio::test]
async fn equal_extractors_are_asked_once() {
    let same = [Some(1); 2];
    assert_eq!(calls(same, |policy| policy, Some("a")).await, 2);
    assert_eq!(calls([Some(1), Some(2)], |policy| policy, Some("a")).await, 4, "not equal");
    assert_eq!(calls([None; 2], |policy| policy, Some("a")).await, 4, "unknown");
    assert_eq!(calls(same, |policy| policy.when(|_| true), Some("a")).await, 4, "a condition");
    assert_eq!(calls(same, |policy| policy.cost_fn(|_| 1), Some("a")).await, 4, "a cost of its own");
    assert_eq!(calls(same, |policy| policy.quota_fn(|_| None), Some("a")).await, 4, "a quota of its own");
}

/// Each policy says how it treats a request without a key.
#[tokio::test]
async fn a_missing_key_is_looked_for_again() {
    let skips = |policy: Policy| policy.on_missing_key(tower_sluice::MissingKey::Skip);
    assert_eq!(calls([Some(1); 2], skips, None).await, 4, "the first policy rejects the request");
}

#[test]
fn identities_tell_extractors_apart() {
    let header = |name| HeaderKey::from_static(name).identity();
    assert!(header("a").is_some() && header("a") == header("a") && header("a") != header("b"));
    assert_ne!(PeerIp::new().identity(), PeerIp::new().ipv6_prefix(56).identity());
    assert_ne!(PeerIp::new().identity(), PathKey::raw().identity());
    let [a, b] = ["a", "b"].map(HeaderKey::from_static);
    assert_ne!((a.clone(), b.clone()).identity(), (b.clone(), a.clone()).identity());
    let list: Vec<Box<dyn KeyExtractor>> = vec![Box::new(a.clone()), Box::new(b.clone())];
    assert_eq!((a.clone(), b.clone()).identity(), list.identity(), "their keys are equal");
    assert_ne!(((a.clone(), b.clone()), a.clone()).identity(), (a.clone(), (b.clone(), a.clone())).identity());
    assert_eq!((a, Counted { calls: Arc::default(), identity: None }).identity(), None);
}

/// Makes three policies that share the key if `peers`, and otherwise read it each.
fn layers(clock: &ManualClock, peers: bool) -> RateLimitLayer {
    fn policy(name: &'static str, limiter: impl tower_sluice::limiter::IntoLimiter, peers: bool) -> Policy {
        let policy = Policy::new(name, limiter);
        if peers { policy.key(PeerIp::new()) } else { policy.key(PeerIp::new()).when(|_| true) }
    }
    let store = || MemoryStore::with_capacity(64).with_clock(clock.clone());
    RateLimitLayer::new([
        policy("bucket", RateLimiter::new(TokenBucket::new(Quota::per_second(2).burst(4)), store()), peers).cost(2),
        policy("fixed", RateLimiter::new(FixedWindow::new(Quota::per(5, Duration::from_secs(3))), store()), peers),
        policy("sliding", RateLimiter::new(SlidingWindow::new(Quota::per(6, Duration::from_secs(4))), store()), peers),
    ])
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn a_shared_key_changes_no_answer(steps in prop::collection::vec((0..3_u8, 0..700_u64), 1..200)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let clock = ManualClock::new();
            let (shared, apart) = (layers(&clock, true), layers(&clock, false));
            for (client, millis) in steps {
                clock.advance(Duration::from_millis(millis));
                let request = || {
                    let mut request = request(None);
                    request.extensions_mut().insert(SocketAddr::from(([192, 0, 2, client], 4711)));
                    request
                };
                prop_assert_eq!(send(&shared, request()).await, send(&apart, request()).await);
            }
            Ok(())
        })?;
    }
}
