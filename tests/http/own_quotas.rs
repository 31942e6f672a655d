//! `Policy::quota_fn` through the layer: each customer has its own quota.

use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use http::{HeaderMap, Request, Response, StatusCode};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::algorithm::{Algorithm, FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::headers::{Advertise, RateLimitFields, ResetForm};
use tower_sluice::key::User;
use tower_sluice::limiter::{Answer, Ask, IntoLimiter};
use tower_sluice::policy::PolicyError;
use tower_sluice::store::MemoryStore;
use tower_sluice::time::{ManualClock, Timestamp};
use tower_sluice::{
    Concurrency, Decision, Limiter, PartitionKey, Policy, Quota, RateLimitLayer, RateLimiter, SlowDown,
};

/// An authentication layer attaches the customer's plan.
#[derive(Clone, Copy)]
struct Plan(Quota);

const FREE: Quota = Quota::per_hour(2);
const PAID: Quota = Quota::per_hour(5);
const HUGE: Quota = Quota::per_hour(3_600);

fn clock() -> ManualClock {
    ManualClock::starting_at(Timestamp::from_nanos(1_700_000_000_000_000_000))
}

fn limiter<A: Algorithm>(algorithm: A, clock: &ManualClock) -> Arc<dyn Limiter> {
    RateLimiter::new(algorithm, MemoryStore::with_capacity(64).with_clock(clock.clone())).into_limiter()
}

fn policy(limiter: impl IntoLimiter) -> Policy {
    Policy::new("api", limiter)
        .key(User::key())
        .status(StatusCode::TOO_MANY_REQUESTS)
        .quota_fn(|request| request.extensions().get::<Plan>().map(|plan| plan.0))
}

/// Sends a request by a user who is authenticated under a plan; its service answers with this status.
async fn send(layer: &RateLimitLayer, user: &str, plan: Option<Quota>, status: u16) -> (u16, HeaderMap) {
    let mut request = Request::get("/").body(()).unwrap();
    request.extensions_mut().insert(User::new(user));
    if let Some(quota) = plan {
        request.extensions_mut().insert(Plan(quota));
    }
    let answer = move |_| ready(Ok::<_, Infallible>(Response::builder().status(status).body(String::new()).unwrap()));
    let response = layer.layer(service_fn(answer)).oneshot(request).await.unwrap();
    (response.status().as_u16(), response.headers().clone())
}

/// The values in these fields.
fn fields<const N: usize>(headers: &HeaderMap, names: [&str; N]) -> [String; N] {
    names.map(|name| headers.get(name).map_or("", |value| value.to_str().unwrap()).to_owned())
}

/// Decisions and fields both show that quota.
#[tokio::test]
async fn each_key_uses_its_own_quota() {
    async fn holds(limiter: Arc<dyn Limiter>) {
        let layer = RateLimitLayer::new(policy(limiter));
        for (user, plan, limit) in
            [("a", Some(FREE), 2), ("b", Some(PAID), 5), ("c", None, 3), ("d", Some(HUGE), 3_600)]
        {
            for used in 1..=limit {
                let (status, headers) = send(&layer, user, plan, 200).await;
                let [advertised, left] = fields(&headers, ["ratelimit-policy", "ratelimit"]);
                assert_eq!((status, advertised), (200, format!("\"api\";q={limit};w=3600")), "{user}");
                assert!(left.starts_with(&format!("\"api\";r={};", limit - used)), "{user}: {left}");
            }
            let (status, headers) = send(&layer, user, plan, 200).await;
            assert_eq!((status, fields(&headers, ["ratelimit-policy"])), (429, [format!("\"api\";q={limit};w=3600")]));
        }
    }
    let (clock, own) = (clock(), Quota::per_hour(3));
    holds(limiter(TokenBucket::new(own), &clock)).await;
    holds(limiter(FixedWindow::new(own), &clock)).await;
    holds(limiter(FixedWindow::new(own).staggered(), &clock)).await;
    holds(limiter(SlidingWindow::new(own), &clock)).await;
}

/// The commonest quota for a sold API: a monthly number that depends on the plan.
#[cfg(feature = "calendar")]
#[tokio::test]
async fn calendar_windows_have_a_limit_per_key() {
    let clock = clock();
    let layer = RateLimitLayer::new(policy(limiter(tower_sluice::algorithm::CalendarWindow::monthly(3), &clock)));
    for (user, plan, limit) in [("a", Some(FREE), 2), ("b", Some(PAID), 5), ("c", None, 3)] {
        for left in (0..limit).rev() {
            let (status, headers) = send(&layer, user, plan, 200).await;
            let [advertised, reported] = fields(&headers, ["ratelimit-policy", "ratelimit"]);
            assert_eq!((status, advertised), (200, format!("\"api\";q={limit}")), "{user}");
            assert!(reported.starts_with(&format!("\"api\";r={left};")), "{user}: {reported}");
        }
        assert_eq!(send(&layer, user, plan, 200).await.0, 429);
    }
    // Upgraded within the month: two of five are used.
    assert_eq!(send(&layer, "a", Some(PAID), 200).await.0, 200);
}

/// The advertised waits are true after the change.
#[tokio::test]
async fn a_changed_plan_keeps_what_was_used() {
    let clock = clock();
    let layer = RateLimitLayer::new(policy(limiter(TokenBucket::new(Quota::per_hour(3)), &clock)));
    for _ in 0..2 {
        assert_eq!(send(&layer, "a", Some(FREE), 200).await.0, 200);
    }
    assert_eq!(send(&layer, "a", Some(FREE), 200).await.0, 429);
    // Upgraded: two of five are used.
    for left in [2, 1, 0] {
        let (status, headers) = send(&layer, "a", Some(PAID), 200).await;
        assert_eq!((status, &fields(&headers, ["ratelimit"])[0][..9]), (200, &*format!("\"api\";r={left}")));
    }
    // Downgraded: the key owes five tokens, and two fit. Time pays four in two hours. The rejection converts the key,
    // so a request fits then.
    let (status, headers) = send(&layer, "a", Some(FREE), 200).await;
    assert_eq!((status, fields(&headers, ["retry-after"])), (429, ["7200".to_owned()]));
    clock.advance(Duration::from_secs(7_199));
    assert_eq!(send(&layer, "a", Some(FREE), 200).await.0, 429);
    clock.advance(Duration::from_secs(1));
    assert_eq!(send(&layer, "a", Some(FREE), 200).await.0, 200);
    // Without a plan, the policy's own quota applies. The key owes two of three.
    assert_eq!(send(&layer, "a", None, 200).await.0, 200);
    assert_eq!(send(&layer, "a", None, 200).await.0, 429);
}

/// A plan that is read from shared state may change at any time, even during a decision.
#[tokio::test]
async fn requests_look_a_plan_up_once() {
    let lookups = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&lookups);
    let plans = [Some(PAID), None, Some(FREE)];
    let bucket = TokenBucket::new(Quota::per_hour(3));
    let api = policy(bucket).quota_fn(move |_| plans[counted.fetch_add(1, Relaxed) as usize % 3]);
    let other = Policy::new("other", TokenBucket::new(Quota::per_hour(1_000))).charge_when(|_| true);
    let layer =
        RateLimitLayer::builder([api.charge_when(|response| response.status() == 200), other]).verdict().build();
    let mut served = 0;
    for request in 1..=99 {
        let (status, headers) = send(&layer, "a", None, 200).await;
        assert_eq!(lookups.load(Relaxed), request, "one look-up for each request");
        let limit = [5, 3, 2][(request as usize - 1) % 3];
        let advertised = &fields(&headers, ["ratelimit-policy"])[0];
        assert!(advertised.starts_with(&format!("\"api\";q={limit};w=3600")), "request {request}: {advertised}");
        served += u32::from(status == 200);
    }
    assert_eq!(served, 5, "the greatest quota is that of all together");
}

#[tokio::test]
async fn older_fields_advertise_the_keys_quota() {
    let clock = clock();
    let api = || policy(limiter(TokenBucket::new(Quota::per_hour(3)), &clock));
    let of = |fields: RateLimitFields| RateLimitLayer::builder(api()).fields(fields).build();
    let layer = of(RateLimitFields::draft07());
    let (_, headers) = send(&layer, "a", Some(PAID), 200).await;
    assert_eq!(fields(&headers, ["ratelimit-policy", "ratelimit"]), ["5;w=3600", "limit=5, remaining=4, reset=2880"]);
    let layer = of(RateLimitFields::draft11().x_ratelimit(ResetForm::DeltaSeconds));
    let (_, headers) = send(&layer, "a", Some(PAID), 200).await;
    let names = ["ratelimit-policy", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];
    assert_eq!(fields(&headers, names), ["\"api\";q=5;w=3600", "5", "4", "720"]);
    let layer = of(RateLimitFields::draft11().advertise(Advertise::Below { percent: 50 }));
    for (used, is_advertised) in [(1, false), (2, false), (3, true)] {
        let (_, headers) = send(&layer, "a", Some(PAID), 200).await;
        assert_eq!(headers.contains_key("ratelimit-policy"), is_advertised, "{used} of 5 used");
    }
}

/// The fields show it in place of the policy's quota.
#[tokio::test]
async fn several_policies_advertise_the_keys_quota() {
    let clock = clock();
    let all = Policy::new("all", limiter(TokenBucket::new(Quota::per_minute(100)), &clock));
    let layer = RateLimitLayer::new([policy(limiter(TokenBucket::new(Quota::per_hour(3)), &clock)), all]);
    for (plan, limit) in [(Some(PAID), 5), (None, 3)] {
        let user = if plan.is_some() { "a" } else { "b" };
        let (_, headers) = send(&layer, user, plan, 200).await;
        let expected = format!("\"api\";q={limit};w=3600, \"all\";q=100;w=60");
        assert_eq!(fields(&headers, ["ratelimit-policy"]), [expected]);
    }
}

/// More quotas than the crate caches texts for.
#[tokio::test]
async fn any_number_of_quotas_is_advertised() {
    let layer = RateLimitLayer::new(policy(TokenBucket::new(Quota::per_hour(3))));
    for round in 0..2 {
        for limit in 10..310 {
            let (_, headers) = send(&layer, &limit.to_string(), Some(Quota::per_hour(limit)), 200).await;
            let [advertised, left] = fields(&headers, ["ratelimit-policy", "ratelimit"]);
            assert_eq!(advertised, format!("\"api\";q={limit};w=3600"));
            assert!(left.starts_with(&format!("\"api\";r={}", limit - 1 - round)), "{limit}: {left}");
        }
    }
}

/// The refund is made under the quota of the request that was charged.
#[tokio::test]
async fn an_uncharged_response_refunds_its_quota() {
    let clock = clock();
    for bucket in [true, false] {
        let own = Quota::per_hour(1);
        let limiter =
            if bucket { limiter(TokenBucket::new(own), &clock) } else { limiter(SlidingWindow::new(own), &clock) };
        let layer = RateLimitLayer::new(policy(limiter).charge_when(|response| response.status() == 401));
        for _ in 0..20 {
            let (status, headers) = send(&layer, "a", Some(PAID), 200).await;
            assert_eq!((status, &fields(&headers, ["ratelimit"])[0][..9]), (200, "\"api\";r=5"));
        }
        for _ in 0..5 {
            assert_eq!(send(&layer, "a", Some(PAID), 401).await.0, 401);
        }
        assert_eq!(send(&layer, "a", Some(PAID), 401).await.0, 429);
    }
}

#[tokio::test]
async fn final_costs_use_their_requests_quota() {
    let clock = clock();
    let layer = RateLimitLayer::new(policy(limiter(FixedWindow::new(Quota::per_hour(1)), &clock)).cost_after(|_| 4));
    let (status, headers) = send(&layer, "a", Some(PAID), 200).await;
    assert_eq!((status, &fields(&headers, ["ratelimit"])[0][..9]), (200, "\"api\";r=1"));
    let (status, headers) = send(&layer, "a", Some(PAID), 200).await;
    assert_eq!((status, &fields(&headers, ["ratelimit"])[0][..9]), (200, "\"api\";r=0"));
    assert_eq!(send(&layer, "a", Some(PAID), 200).await.0, 429);
}

/// They can reset the key, too.
#[tokio::test]
async fn support_staff_see_the_keys_quota() {
    let clock = clock();
    let layer = RateLimitLayer::new(policy(limiter(TokenBucket::new(Quota::per_hour(3)), &clock)));
    for _ in 0..5 {
        assert_eq!(send(&layer, "a", Some(PAID), 200).await.0, 200);
    }
    let key = PartitionKey::from("a");
    let peeked = layer.handle().peek("api", &key).await.unwrap();
    assert_eq!((peeked.decision().limit(), peeked.decision().remaining()), (5, 0));
    assert_eq!(layer.handle().peek("api", &PartitionKey::from("new")).await.unwrap().decision().limit(), 3);
    assert_eq!(layer.handle().reset("api", &key).await.unwrap().decision().remaining(), 3);
    assert_eq!(layer.handle().peek("api", &key).await.unwrap().decision().remaining(), 3);
    assert_eq!(send(&layer, "a", Some(PAID), 200).await.0, 200);
    assert_eq!(layer.handle().peek("api", &key).await.unwrap().decision().remaining(), 4);
}

/// The policy changes from its own quota to the keys' quotas and back.
#[tokio::test]
async fn live_changes_of_quotas_keep_use() {
    let clock = clock();
    let fixed = |limit| {
        Policy::new("api", limiter(TokenBucket::new(Quota::per_hour(limit)), &clock))
            .key(User::key())
            .status(StatusCode::TOO_MANY_REQUESTS)
    };
    let own = |limit| policy(limiter(TokenBucket::new(Quota::per_hour(limit)), &clock));
    let layer = RateLimitLayer::new(fixed(3));
    let left = async |plan| fields(&send(&layer, "a", plan, 200).await.1, ["ratelimit"])[0][..9].to_owned();
    assert_eq!(left(Some(PAID)).await, "\"api\";r=2");
    for (next, plan, expected) in [
        // One is used before each change, and one after it.
        (own(3), Some(PAID), "\"api\";r=3"),
        (own(7), Some(PAID), "\"api\";r=2"),
        (fixed(9), Some(PAID), "\"api\";r=5"),
        (own(4), None, "\"api\";r=0"),
    ] {
        assert!(layer.handle().replace(next).unwrap().not_inherited().is_empty());
        assert_eq!(left(plan).await, expected);
    }
}

#[test]
fn limiters_without_quotas_are_rejected() {
    struct Custom;
    impl Limiter for Custom {
        fn decide(&self, _: &Ask<'_>) -> Answer {
            Decision::allow(1, 1).into()
        }
    }
    for limiter in [
        SlowDown::new(Quota::per_second(1)).into_limiter(),
        Concurrency::new(4).into_limiter(),
        Arc::new(Custom).into_limiter(),
    ] {
        let error = RateLimitLayer::try_new(policy(limiter)).unwrap_err();
        assert!(matches!(error, PolicyError::Conflict { name, option: "quota_fn", .. } if name == "api"));
    }
}

/// `Policy::quota_fn` documents that a key has one quota, and that a quota that depends on the request limits nothing.
/// At 5 per hour, five logins pass each second, 18,000 an hour, if a request to another path comes before each.
#[tokio::test]
async fn a_quota_per_request_limits_nothing() {
    let (login, other) = (Some(Quota::per_hour(5)), Some(Quota::per_second(100)));
    let logins = async |is_alternating: bool| {
        let clock = clock();
        let layer = RateLimitLayer::new(policy(limiter(TokenBucket::new(HUGE), &clock)));
        let mut admitted = 0;
        for _ in 0..300 {
            if is_alternating {
                assert_eq!(send(&layer, "ada", other, 200).await.0, 200);
            }
            // Between two requests, the debt is paid at the last request's rate.
            clock.advance(Duration::from_millis(100));
            admitted += u32::from(send(&layer, "ada", login, 200).await.0 == 200);
            clock.advance(Duration::from_millis(100));
        }
        admitted
    };
    assert_eq!((logins(false).await, logins(true).await), (5, 300), "in a minute");
}
