//! Keys whose quota is suspended are rejected without a wait and without a charge, until they have a quota again.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use http::{HeaderMap, HeaderName, Request, Response};
use http_body_util::{BodyExt, Full};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::algorithm::{Algorithm, FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::headers::{RateLimitFields, ResetForm};
use tower_sluice::key::User;
use tower_sluice::limiter::{Answer, Ask, Description};
use tower_sluice::policy::Transition;
use tower_sluice::rejection::{Reason, RejectionFormat};
use tower_sluice::store::MemoryStore;
use tower_sluice::time::{ManualClock, Timestamp};
use tower_sluice::{
    ChargeOnce, Decision, Limiter, Outcome, Penalty, Policy, Quota, RateLimitLayer, RateLimiter, Rejection, Settlement,
};

const HOUR: Duration = Duration::from_secs(3_600);

fn clock() -> ManualClock {
    let clock = ManualClock::new();
    clock.set(Timestamp::from_nanos(3_600_000_000_000 * 1_000));
    clock
}

/// A request's plan, which an authentication layer attaches.
#[derive(Clone, Copy)]
struct Plan(Quota);

fn with_plans(limiter: impl tower_sluice::limiter::IntoLimiter) -> Policy {
    Policy::new("api", limiter)
        .key(User::key())
        .cost_fn(|request| request.uri().query().map_or(1, |cost| cost.parse().unwrap()))
        .quota_fn(|request| request.extensions().get::<Plan>().map(|plan| plan.0))
}

fn policy(algorithm: impl Algorithm, clock: &ManualClock) -> Policy {
    with_plans(RateLimiter::new(algorithm, MemoryStore::default().with_clock(clock.clone())))
}

struct Reply {
    status: u16,
    headers: HeaderMap,
    body: String,
}

impl Reply {
    fn fields<const N: usize>(&self, names: [&str; N]) -> [&str; N] {
        names.map(|name| self.headers.get(name).map_or("", |value| value.to_str().unwrap()))
    }
}

fn request(plan: Option<Quota>, cost: u64) -> Request<()> {
    let mut request = Request::get(format!("/?{cost}")).body(()).unwrap();
    request.extensions_mut().insert(User::new("alice"));
    if let Some(quota) = plan {
        request.extensions_mut().insert(Plan(quota));
    }
    request
}

fn respond(layer: &RateLimitLayer, request: Request<()>) -> Reply {
    let hello =
        service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(Full::<bytes::Bytes>::from("hello"))) });
    let reply = async {
        let (head, body) = layer.layer(hello).oneshot(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Reply { status: head.status.as_u16(), headers: head.headers, body: String::from_utf8(body.to_vec()).unwrap() }
    };
    reply.now_or_never().expect("memory answers at once")
}

fn send(layer: &RateLimitLayer, plan: Option<Quota>, cost: u64) -> Reply {
    respond(layer, request(plan, cost))
}

const PAUSED: Option<Quota> = Some(Quota::suspended());

#[test]
fn a_suspended_key_keeps_its_use() {
    fn holds(algorithm: impl Algorithm) {
        let clock = clock();
        let layer = RateLimitLayer::new(policy(algorithm, &clock));
        assert_eq!(send(&layer, None, 4).status, 200);
        for cost in [1, 0, 20] {
            let reply = send(&layer, PAUSED, cost);
            assert_eq!(reply.status, 403);
            let fields = ["ratelimit-policy", "ratelimit", "retry-after", "x-rate-limited-for", "cache-control"];
            assert_eq!(reply.fields(fields), ["\"api\";q=0", "\"api\";r=0", "", "", "no-store"]);
        }
        // With another plan, and with the policy's own quota.
        let reply = send(&layer, Some(Quota::per_hour(20)), 1);
        assert!(reply.status == 200 && reply.fields(["ratelimit"])[0].starts_with("\"api\";r=15;"));
        assert_eq!(send(&layer, PAUSED, 1).status, 403);
        let reply = send(&layer, None, 1);
        assert!(reply.status == 200 && reply.fields(["ratelimit"])[0].starts_with("\"api\";r=4;"));
    }
    let quota = Quota::per_hour(10);
    holds(TokenBucket::new(quota));
    holds(FixedWindow::new(quota));
    holds(SlidingWindow::new(quota));
    #[cfg(feature = "calendar")]
    holds(tower_sluice::CalendarWindow::monthly(10));
}

#[test]
fn the_response_says_quota_suspended() {
    let policy = || policy(TokenBucket::new(Quota::per_hour(10)), &clock());
    let reply = send(&RateLimitLayer::new(policy()), PAUSED, 1);
    assert_eq!(
        reply.body,
        r#"{"type":"about:blank","title":"Forbidden","status":403,"detail":"The quota is suspended; do not retry.","violated-policies":["api"]}"#
    );
    let text = RateLimitLayer::builder(policy()).rejection_format(&RejectionFormat::Text).build();
    assert_eq!(send(&text, PAUSED, 1).body.trim_end(), "The quota is suspended; do not retry.");
    let status = RateLimitLayer::new(policy().status(http::StatusCode::PAYMENT_REQUIRED));
    assert_eq!(send(&status, PAUSED, 1).status, 402);
    // These syntaxes need a time, but there is none.
    let older =
        RateLimitLayer::builder(policy()).fields(RateLimitFields::draft07().x_ratelimit(ResetForm::DeltaSeconds));
    let reply = send(&older.build(), PAUSED, 1);
    assert_eq!(
        (reply.status, reply.fields(["ratelimit", "x-ratelimit-limit", "x-ratelimit-reset"])),
        (403, ["", "", ""])
    );
    let custom = RateLimitLayer::builder(policy()).rejection_response(|rejection: &Rejection, _| {
        assert_eq!((rejection.reason(), rejection.retry_after()), (Reason::Suspended, None));
        let violated = rejection.verdict().violated().next().unwrap();
        assert!(violated.decision().is_suspended() && violated.ban().is_none());
        Response::new("paused")
    });
    assert_eq!(send(&custom.build(), PAUSED, 1).body, "paused");
    let mut call = request(PAUSED, 1);
    (*call.method_mut(), *call.version_mut()) = (http::Method::POST, http::Version::HTTP_2);
    call.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
    let reply = respond(&RateLimitLayer::new(policy()), call);
    assert_eq!(reply.fields(["grpc-status", "grpc-retry-pushback-ms"]), ["7", "-1"]);
}

/// In either order of the policies.
#[test]
fn no_other_policy_is_charged() {
    let clock = clock();
    let other = || {
        let store = MemoryStore::default().with_clock(clock.clone());
        Policy::new("other", RateLimiter::new(TokenBucket::new(Quota::per_hour(2)), store)).key(User::key())
    };
    let api = || policy(TokenBucket::new(Quota::per_hour(10)), &clock);
    for policies in [[api(), other()], [other(), api()], [api().warn_at(0.5), other()], [other(), api().warn_at(0.5)]] {
        let layer = RateLimitLayer::new(policies);
        assert_eq!([(); 3].map(|()| send(&layer, PAUSED, 1).status), [403; 3]);
        assert_eq!([(); 3].map(|()| send(&layer, None, 1).status), [200, 200, 429]);
        assert_eq!(send(&layer, PAUSED, 1).status, 403, "the other one would reject it for some time only");
    }
}

#[test]
fn shadows_count_suspensions_and_penalties_ignore_them() {
    let shadow = RateLimitLayer::new(policy(TokenBucket::new(Quota::per_hour(10)), &clock()).shadow());
    assert_eq!(send(&shadow, PAUSED, 1).status, 200);
    assert_eq!(shadow.shadow_rejected("api"), Some(1));

    let penalty = Penalty::new(Quota::per_day(1), HOUR * 5).with_clock(clock());
    let layer = RateLimitLayer::new(policy(TokenBucket::new(Quota::per_hour(1)), &clock()).penalty(penalty));
    assert_eq!([(); 9].map(|()| send(&layer, PAUSED, 1).status), [403; 9]);
    assert_eq!([(); 4].map(|()| send(&layer, None, 1).status), [200, 429, 429, 429]);
    // The key is banned by now, and the suspension outlasts the ban.
    let (banned, suspended) = (send(&layer, None, 1), send(&layer, PAUSED, 1));
    assert!(banned.body.contains("#abnormal-usage-detected") && suspended.body.contains("The quota is suspended"));
    assert_eq!((suspended.status, suspended.fields(["retry-after"])), (403, [""]));
}

/// Events, free retries, and debts: none of these divides by a zero quota.
#[test]
fn a_policys_options_work_while_suspended() {
    let clock = clock();
    let limited = Arc::new(std::sync::Mutex::new(0));
    let counted = Arc::clone(&limited);
    let once = ChargeOnce::by_header(HeaderName::from_static("idempotency-key"));
    let layer = RateLimitLayer::builder(policy(TokenBucket::new(Quota::per_hour(10)), &clock).charge_once(once))
        .on_transition(move |event| {
            *counted.lock().unwrap() += u32::from(matches!(event.transition(), Transition::Limited { .. }));
        })
        .build();
    let retry = |plan| {
        let mut request = request(plan, 1);
        request.headers_mut().insert("idempotency-key", "one".parse().unwrap());
        respond(&layer, request).status
    };
    assert_eq!([retry(None), retry(PAUSED), retry(PAUSED), retry(None)], [200, 403, 403, 200]);
    assert_eq!(*limited.lock().unwrap(), 0, "the operator has done it");

    let layer =
        RateLimitLayer::new(policy(TokenBucket::new(Quota::per_hour(10)), &clock).settle_by_handler().owe_shortfalls());
    let handler = service_fn(|request: Request<()>| async move {
        request.extensions().get::<Settlement>().unwrap().settle("api", 25).unwrap();
        Ok::<_, Infallible>(Response::new(()))
    });
    let _ = layer.layer(handler).oneshot(request(None, 1)).now_or_never().unwrap().unwrap();
    assert_eq!([send(&layer, PAUSED, 1).status, send(&layer, None, 1).status], [403, 429]);
    clock.advance(HOUR * 16 / 10);
    assert_eq!([send(&layer, PAUSED, 1).status, send(&layer, None, 1).status], [403, 200], "time has paid the debt");
}

/// A custom limiter.
struct Custom;

impl Limiter for Custom {
    fn decide(&self, ask: &Ask<'_>) -> Answer {
        match ask.quota() {
            Some(quota) if quota.is_suspended() => Decision::suspended().into(),
            _ => Decision::allow(5, 4).into(),
        }
    }

    fn describe(&self) -> Description {
        Description::new().advertising(tower_sluice::limiter::Terms::bucket(Quota::per_hour(5))).taking_quotas()
    }
}

#[test]
fn a_custom_limiter_may_suspend_keys() {
    let layer = RateLimitLayer::new(with_plans(Arc::new(Custom)));
    assert_eq!([send(&layer, PAUSED, 1).status, send(&layer, None, 1).status], [403, 200]);
    let error = Rejection::unless_allowed("api", Decision::suspended()).unwrap_err();
    assert_eq!((error.reason(), error.status()), (Reason::Suspended, http::StatusCode::FORBIDDEN));
    assert_eq!(Decision::suspended().outcome(), Outcome::Reject { retry_after: None });
}

/// By a live change, as from a file with `suspended = true`.
#[test]
fn live_changes_suspend_and_resume_a_policy() {
    let clock = clock();
    let limiter =
        || RateLimiter::new(TokenBucket::new(Quota::per_hour(10)), MemoryStore::default().with_clock(clock.clone()));
    let api = || Policy::new("api", limiter()).key(User::key()).cost(4);
    let layer = RateLimitLayer::new(api());
    assert_eq!(send(&layer, None, 1).status, 200);
    let _ = layer.handle().replace(api().quota_fn(|_| Some(Quota::suspended()))).unwrap();
    assert_eq!(send(&layer, None, 1).status, 403);
    let _ = layer.handle().replace(api()).unwrap();
    assert_eq!([(); 2].map(|()| send(&layer, None, 1).status), [200, 429], "four of ten were used before");
}

#[test]
#[should_panic(expected = "a suspended quota is for keys")]
fn no_limiter_takes_a_suspended_quota() {
    let _ = Policy::new("api", Quota::suspended());
}
