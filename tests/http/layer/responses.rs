//! Response status, fields, body and verdict.

use std::time::Duration;

use http::{Method, StatusCode};
use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_sluice::algorithm::{SlidingWindow, TokenBucket};
use tower_sluice::key::{Global, HeaderKey};
use tower_sluice::store::MemoryStore;
use tower_sluice::time::ManualClock;
use tower_sluice::{Policy, Quota, RateLimitLayer, RateLimiter, Verdict};

use super::{hello, one, request, send};

#[tokio::test]
async fn waiting_as_advertised_is_enough() {
    let clock = ManualClock::new();
    let store = MemoryStore::with_capacity(16).with_clock(clock.clone());
    let limiter = RateLimiter::new(TokenBucket::new(Quota::per_minute(7).burst(1)), store);
    let layer = RateLimitLayer::builder(Policy::new("per-key", limiter).key(HeaderKey::from_static("x-api-key")))
        .verdict()
        .build();
    let ask = || send(&layer, request(&[("x-api-key", "a")]));
    assert_eq!(ask().await.status, 200);

    let rejected = ask().await;
    assert_eq!(rejected.status, 429);
    assert_eq!(rejected.headers["retry-after"], "9");
    assert_eq!(rejected.headers["x-rate-limited-for"], "8.571429");
    assert_eq!(rejected.headers["cache-control"], "no-store");
    assert_eq!(rejected.headers["content-type"], "application/problem+json");
    let problem: serde_json::Value = serde_json::from_str(&rejected.body).unwrap();
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!(problem["status"], 429);
    assert_eq!(problem["detail"], "The limit is used up; retry in 9 seconds.");
    assert_eq!(problem["violated-policies"], serde_json::json!(["per-key"]));

    clock.advance(Duration::from_micros(8_571_428));
    assert_eq!(ask().await.headers["x-rate-limited-for"], "0.000001");
    clock.advance(Duration::from_micros(1));
    assert_eq!(ask().await.status, 200);
    assert_eq!(ask().await.status, 429);
    clock.advance(Duration::from_secs(9));
    assert_eq!(ask().await.status, 200);
}

#[tokio::test]
async fn shared_limits_answer_503_others_429() {
    let each = |policy: Policy| async move {
        let layer = RateLimitLayer::builder(policy).verdict().build();
        let _first = send(&layer, request(&[("x-api-key", "a")])).await;
        send(&layer, request(&[("x-api-key", "a")])).await.status.as_u16()
    };
    assert_eq!(each(Policy::new("p", one()).key(HeaderKey::from_static("x-api-key"))).await, 429);
    assert_eq!(each(Policy::new("p", one()).key(Global)).await, 503);
    assert_eq!(each(Policy::new("p", one())).await, 503);
    assert_eq!(each(Policy::new("p", one()).status(StatusCode::NOT_FOUND)).await, 404);
}

#[tokio::test]
async fn responses_carry_every_layers_verdict() {
    let inner = RateLimitLayer::builder(Policy::new("inner", TokenBucket::new(Quota::per_hour(5)))).verdict().build();
    let outer = RateLimitLayer::builder(Policy::new("outer", SlidingWindow::new(Quota::per_hour(9)))).verdict().build();
    let service = ServiceBuilder::new().layer(outer).layer(inner).service(hello());
    let response = service.oneshot(request(&[])).await.unwrap();
    let verdict = response.extensions().get::<Verdict>().unwrap();
    let decisions: Vec<_> =
        verdict.policies().iter().map(|p| (p.name(), p.decision().limit(), p.decision().remaining())).collect();
    assert_eq!(decisions, [("outer", 9, 8), ("inner", 5, 4)]);
}

#[tokio::test]
async fn the_verdict_is_attached_if_enabled() {
    for (layer, is_attached) in [
        (RateLimitLayer::new(Policy::new("p", one())), false),
        (RateLimitLayer::builder(Policy::new("p", one())).verdict().build(), true),
    ] {
        for _ in ["admitted", "rejected"] {
            let response = layer.layer(hello()).oneshot(request(&[])).await.unwrap();
            assert_eq!(response.extensions().get::<Verdict>().is_some(), is_attached);
        }
    }
}

#[tokio::test]
async fn inapplicable_policies_leave_an_empty_verdict() {
    let layer = RateLimitLayer::builder(Policy::new("p", one()).when(|_| false)).verdict().build();
    let answer = send(&layer, request(&[])).await;
    assert_eq!(answer.verdict.map(|verdict| (verdict.is_allowed(), verdict.policies().len())), Some((true, 0)));
    assert!(!answer.headers.contains_key("ratelimit-policy"));
}

#[tokio::test]
async fn exempt_preflights_have_an_empty_verdict() {
    let layer =
        RateLimitLayer::builder(Policy::new("p", one())).verdict().exempt_preflights(Quota::per_hour(1)).build();
    for decisions in [0, 1] {
        let mut preflight = request(&[("origin", "https://page.example"), ("access-control-request-method", "PUT")]);
        *preflight.method_mut() = Method::OPTIONS;
        let answer = send(&layer, preflight).await;
        let verdict = answer.verdict.unwrap();
        assert_eq!((verdict.is_allowed(), verdict.policies().len()), (true, decisions));
        assert_eq!(answer.headers.contains_key("ratelimit-policy"), decisions == 1);
    }
}
