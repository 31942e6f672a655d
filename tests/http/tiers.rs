//! `Tiers`: one policy per plan.

use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use http::{Request, Response};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::algorithm::TokenBucket;
use tower_sluice::key::User;
use tower_sluice::{Policy, PolicyError, Quota, RateLimitLayer, RequestHead, Tiers};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Plan {
    Free,
    Paid,
    Old,
}

fn policy(name: &'static str, limit: u32) -> Policy {
    Policy::new(name, TokenBucket::new(Quota::per_hour(limit))).key(User::key())
}

fn tiers() -> Tiers<Option<Plan>> {
    Tiers::new(|request| request.extensions().get::<Plan>().copied(), policy("others", 1))
        .tier(Some(Plan::Free), policy("free", 2))
        .tier(Some(Plan::Paid), policy("paid", 4).when(|request| request.uri().path() != "/free-for-all"))
}

async fn send(layer: &RateLimitLayer, path: &str, plan: Option<Plan>) -> (u16, String) {
    let mut request = Request::get(path).body(()).unwrap();
    request.extensions_mut().insert(User::new("a"));
    if let Some(plan) = plan {
        request.extensions_mut().insert(plan);
    }
    let hello = service_fn(|_| ready(Ok::<_, Infallible>(Response::new(String::new()))));
    let response = layer.layer(hello).oneshot(request).await.unwrap();
    let policy = response.headers().get("ratelimit").map_or("", |value| value.to_str().unwrap());
    (response.status().as_u16(), policy.split(';').next().unwrap().to_owned())
}

#[tokio::test]
async fn each_plan_has_its_own_limit_and_exactly_one_applies() {
    let layer = RateLimitLayer::new(tiers());
    for (plan, name, limit) in [
        (Some(Plan::Free), "\"free\"", 2),
        (Some(Plan::Paid), "\"paid\"", 4),
        // Requests with an unknown plan, or none, share the default policy.
        (Some(Plan::Old), "\"others\"", 1),
        (None, "\"others\"", 0),
    ] {
        for _ in 0..limit {
            assert_eq!(send(&layer, "/", plan).await, (200, name.to_owned()));
        }
        assert_eq!(send(&layer, "/", plan).await, (429, name.to_owned()));
    }
    assert_eq!(send(&layer, "/free-for-all", Some(Plan::Paid)).await, (200, String::new()));
}

#[test]
fn tiers_are_reported_under_the_names_of_their_policies() {
    let same = tiers().tier(Some(Plan::Old), policy("free", 3));
    assert_eq!(RateLimitLayer::try_new(same).unwrap_err(), PolicyError::DuplicateName { name: "free".to_owned() });
}

#[test]
#[should_panic = "policy `again` is for a plan that has a policy already"]
fn a_plan_has_one_policy() {
    let _ = tiers().tier(Some(Plan::Free), policy("again", 3));
}

/// A plan that is read from shared state may change at any time, also during a decision.
#[tokio::test]
async fn a_plan_that_changes_during_a_decision_is_looked_up_once_and_one_policy_applies() {
    let lookups = Arc::new(AtomicU32::new(0));
    let plan_of = {
        let lookups = Arc::clone(&lookups);
        move |_: &RequestHead<'_>| [Plan::Paid, Plan::Free][lookups.fetch_add(1, Relaxed) as usize % 2]
    };
    let tiers = Tiers::new(plan_of, policy("others", 1))
        .tier(Plan::Free, policy("free", 2))
        .tier(Plan::Paid, policy("paid", 4));
    let layer = RateLimitLayer::new(tiers);
    let mut served = 0;
    for request in 1..=100 {
        let (status, judged_by) = send(&layer, "/", None).await;
        assert_ne!(judged_by, "", "request {request} was judged by no policy");
        assert_eq!(lookups.load(Relaxed), request, "one look-up for each request");
        served += u32::from(status == 200);
    }
    assert_eq!(served, 2 + 4);
}
