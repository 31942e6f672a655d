//! Limiter failures, and invalid policies.

use std::sync::Arc;

use http::StatusCode;
use tower_sluice::algorithm::{FixedWindow, TokenBucket};
use tower_sluice::limiter::{Answer, Ask};
use tower_sluice::policy::PolicyError;
use tower_sluice::{FailureMode, Limiter, LimiterError, PartitionKey, Policy, Quota, RateLimitLayer, RateLimiter};

use super::{by_key, one, request, send, statuses};

struct Broken;

impl Limiter for Broken {
    fn decide(&self, _: &Ask<'_>) -> Answer {
        Answer::Pending(Box::pin(async { Err(LimiterError::new("the store is out of reach").with_source("rejected")) }))
    }
}

#[tokio::test]
async fn a_failed_limiter_never_answers_429() {
    let bucket = Arc::new(RateLimiter::in_memory(TokenBucket::new(Quota::per_hour(3))));
    let reject = RateLimitLayer::builder([by_key("bucket", Arc::clone(&bucket)), by_key("broken", Arc::new(Broken))])
        .verdict()
        .build();
    let ask = || request(&[("x-api-key", "a")]);
    for _ in 0..5 {
        let rejected = send(&reject, ask()).await;
        assert_eq!((rejected.status.as_u16(), rejected.headers["retry-after"].to_str().unwrap()), (503, "1"));
        assert!(!rejected.headers.contains_key("x-rate-limited-for"));
        // No policy has rejected the request, but it was not admitted either.
        let verdict = rejected.verdict.unwrap();
        assert!(!verdict.is_allowed() && verdict.violated().next().is_none());
    }
    // The charge before the failure was refunded.
    assert_eq!(bucket.decide(&Ask::peek(&PartitionKey::from("a"), 0)).at_once().unwrap().remaining(), 3);

    let allow =
        RateLimitLayer::builder(by_key("broken", Arc::new(Broken)).on_failure(FailureMode::Allow)).verdict().build();
    assert_eq!(statuses(&allow, [ask(), ask()]).await, [200, 200]);
}

#[test]
fn building_a_layer_rejects_invalid_policies() {
    let rejected = |policies: Vec<Policy>| RateLimitLayer::try_new(policies).unwrap_err();
    assert_eq!(rejected(vec![]), PolicyError::NoPolicy);
    let twice = rejected(vec![Policy::new("a", one()), Policy::new("b", one()), Policy::new("a", one())]);
    assert!(matches!(twice, PolicyError::DuplicateName { name, .. } if name == "a"));
    let longest = "n".repeat(64);
    assert!(RateLimitLayer::try_new(Policy::new(longest.clone(), one())).is_ok());
    for name in ["", "two words", "1st", "naïve", "quote\"", "line\nbreak", &(longest.clone() + "n")] {
        let error = rejected(vec![Policy::new(name, one())]);
        assert!(matches!(error, PolicyError::InvalidName { name: rejected, .. } if rejected == name));
    }
    let message = rejected(vec![Policy::new("é".repeat(100_000), one())]).to_string();
    assert!(message.len() < 400 && message.contains("only, 64 bytes at most"), "{message}");
    for policy in [Policy::new("a", one()), Policy::new("a", one()).cost_after(|_| 1), Policy::new("a", one()).shadow()]
    {
        let error = rejected(vec![policy.cost(0)]);
        assert!(matches!(&error, PolicyError::CostOfZero { name, .. } if name == "a"));
        assert!(error.to_string().contains("charge at least 1 for a request"), "{error}");
    }
    let too_much = rejected(vec![Policy::new("a", Quota::per_second(9).burst(2)).cost(3)]);
    assert!(matches!(too_much, PolicyError::CostAboveBurst { name, cost: 3, burst: 2, .. } if name == "a"));
    let ok = rejected(vec![Policy::new("a", one()).status(StatusCode::OK)]);
    assert!(matches!(ok, PolicyError::InvalidStatus { name, status: 200, .. } if name == "a"));
}

#[test]
#[should_panic(expected = "two policies are named `a`")]
fn the_infallible_constructor_panics_with_the_message() {
    let _layer = RateLimitLayer::builder([Policy::new("a", one()), Policy::new("a", one())]).verdict().build();
}

#[test]
#[should_panic(expected = "a window admits its whole limit at once")]
fn a_window_rejects_a_burst() {
    let _window = FixedWindow::new(Quota::per_second(10).burst(20));
}
