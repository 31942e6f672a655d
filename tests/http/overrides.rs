//! Manual bans and allowances, by the policy's own keys.

use std::convert::Infallible;
use std::future::ready;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::algorithm::{Algorithm, SlidingWindow, TokenBucket};
use tower_sluice::key::{PeerIp, User};
use tower_sluice::limiter::{Answer, Ask};
use tower_sluice::policy::{KeyOf, KeyStatus, Operate, ShowKey};
use tower_sluice::store::{MemoryStore, MemoryTable};
use tower_sluice::time::ManualClock;
use tower_sluice::{
    Balance, FailureMode, LeakyQueue, Limiter, LimiterError, LimitsHandle, MissingKey, PartitionKey, Penalty, Policy,
    Quota, RateLimitLayer, RateLimiter, RequestHead, Verdict,
};

const HOUR: Duration = Duration::from_secs(3_600);

fn timed<A: Algorithm>(algorithm: A, clock: &ManualClock) -> Arc<RateLimiter<A, MemoryTable<A::State, ManualClock>>> {
    Arc::new(RateLimiter::new(algorithm, MemoryStore::default().with_clock(clock.clone())))
}

/// One request per hour.
fn per_user(clock: &ManualClock) -> Policy {
    Policy::new("api", timed(TokenBucket::new(Quota::per_hour(1)), clock)).key(User::key())
}

fn request(user: &str) -> Request<()> {
    let mut request = Request::new(());
    request.extensions_mut().insert(User::new(user));
    request.extensions_mut().insert("[2001:db8::7]:4711".parse::<SocketAddr>().unwrap());
    request
}

fn send(layer: &RateLimitLayer, request: Request<()>) -> Response<tower_sluice::layer::ResponseBody<String>> {
    let service = layer.layer(service_fn(|_: Request<()>| ready(Ok::<_, Infallible>(Response::new(String::new())))));
    service.oneshot(request).now_or_never().expect("memory answers at once").unwrap()
}

fn status(layer: &RateLimitLayer, user: &str) -> StatusCode {
    send(layer, request(user)).status()
}

fn at_once<T>(call: impl Future<Output = T>) -> T {
    call.now_or_never().expect("memory answers at once")
}

fn ban(limits: &LimitsHandle, key: impl KeyOf, span: Duration) -> KeyStatus {
    at_once(limits.ban("api", key, span, "scrapes the catalogue")).unwrap()
}

#[test]
fn a_ban_rejects_and_keeps_the_budget() {
    let clock = ManualClock::new();
    let layer = RateLimitLayer::builder(per_user(&clock)).verdict().build();
    let limits = layer.handle();
    let banned = ban(&limits, "alice", HOUR / 2).ban().unwrap();
    assert_eq!(
        (banned.left(), banned.reason().as_str(), banned.is_by_hand()),
        (HOUR / 2, "scrapes the catalogue", true)
    );
    clock.advance(HOUR / 4);
    let response = send(&layer, request("alice"));
    assert_eq!(response.status(), 429);
    assert_eq!(response.headers()["retry-after"], "900");
    let verdict = response.extensions().get::<Verdict>().unwrap();
    assert_eq!(verdict.policies()[0].ban().unwrap().reason(), banned.reason());
    assert_eq!(status(&layer, "bob"), StatusCode::OK);
    let exceptions = limits.exceptions("api").unwrap();
    assert_eq!(exceptions.len(), 1);
    assert_eq!((exceptions[0].0.as_str(), exceptions[0].1.left()), ("alice", HOUR / 4));
    clock.advance(HOUR / 4);
    assert!(
        at_once(limits.peek("api", "alice")).unwrap().ban().is_none() && limits.exceptions("api").unwrap().is_empty()
    );
    assert_eq!([status(&layer, "alice"), status(&layer, "alice")], [200, 429], "the unit was not used");
}

#[tokio::test]
async fn clients_do_not_see_the_reason() {
    let clock = ManualClock::new();
    let layer = RateLimitLayer::builder(per_user(&clock)).verdict().build();
    let _ = ban(&layer.handle(), "alice", HOUR);
    let body = send(&layer, request("alice")).into_body().collect().await.unwrap().to_bytes();
    let body = String::from_utf8_lossy(&body);
    assert!(body.contains("Access is suspended; retry in 1 hour") && !body.contains("scrapes"), "{body}");
}

#[test]
fn an_allowed_key_is_not_charged() {
    let clock = ManualClock::new();
    let penalty = Penalty::new(Quota::per_day(1), HOUR * 5).with_clock(clock.clone());
    let layer = RateLimitLayer::new(per_user(&clock).penalty(penalty));
    let limits = layer.handle();
    let all = |requests: usize| (0..requests).map(|_| status(&layer, "alice").as_u16()).collect::<Vec<_>>();
    assert_eq!(all(4), [200, 429, 429, 429]);
    let status_of = at_once(limits.peek("api", "alice")).unwrap();
    let banned = status_of.ban().unwrap();
    assert!(!banned.is_by_hand() && banned.left() == HOUR * 5);
    assert_eq!(status_of.by_hand_since(), None);
    let allowed = at_once(limits.allow("api", "alice", HOUR, "a migration")).unwrap();
    assert_eq!(allowed.allowance().unwrap().left(), HOUR);
    assert!(allowed.by_hand_since().is_some_and(|age| age < HOUR));
    assert_eq!(all(50), [200; 50]);
    clock.advance(HOUR);
    assert_eq!(all(2), [200, 429], "the budget is as it was, and the ban of the penalty is over");
    let _ = ban(&limits, "alice", HOUR);
    let _ = at_once(limits.allow("api", "alice", HOUR, "a mistake")).unwrap();
    assert_eq!(all(2), [200; 2]);
    let _ = ban(&limits, "alice", HOUR);
    assert_eq!(all(1), [429]);
    assert!(at_once(limits.unban("api", "alice")).unwrap().ban().is_none());
    clock.advance(HOUR);
    assert_eq!(all(1), [200]);
}

/// This includes layers whose policies otherwise decide by themselves.
#[test]
fn bans_reach_each_request_path() {
    let clock = ManualClock::new();
    let second = || Policy::new("second", timed(SlidingWindow::new(Quota::per_hour(100)), &clock)).key(User::key());
    let one = RateLimitLayer::new(second());
    let two = RateLimitLayer::new([per_user(&clock), second()]);
    for layer in [&one, &two] {
        assert_eq!(status(layer, "alice"), 200);
        let _ = at_once(layer.handle().ban("second", "alice", HOUR, "x")).unwrap();
        assert_eq!([status(layer, "alice"), status(layer, "carol")], [429, 200]);
        let inherited = if std::ptr::eq(layer, &one) { vec![second()] } else { vec![second(), per_user(&clock)] };
        layer.handle().replace(inherited).unwrap();
        assert_eq!(status(layer, "alice"), 429, "also after a live change");
        let _ = at_once(layer.handle().unban("second", "alice")).unwrap();
        clock.advance(HOUR);
        assert_eq!(
            [status(layer, "alice"), status(layer, "alice")],
            [200, if std::ptr::eq(layer, &one) { 200 } else { 429 }]
        );
    }
}

/// By text, by a request, and by the key itself.
#[test]
fn keys_are_those_the_policy_makes() {
    let clock = ManualClock::new();
    let window = || timed(SlidingWindow::new(Quota::per_hour(9)), &clock);
    let pair = Policy::new("api", window()).key((User::key(), PeerIp::new()));
    let shared = Policy::new("maybe", window()).key(User::key()).on_missing_key(MissingKey::Share);
    let layer = RateLimitLayer::new([pair, shared]);
    let limits = layer.handle();
    assert_eq!(status(&layer, "alice"), 200);
    let left = |status: Result<KeyStatus, LimiterError>| status.unwrap().decision().remaining();
    let (parts, ()) = request("alice").into_parts();
    assert_eq!(left(at_once(limits.peek("api", "alice + 2001:db8::1"))), 8);
    assert_eq!(left(at_once(limits.peek("api", &"alice + 2001:db8::/64".to_owned()))), 8);
    assert_eq!(left(at_once(limits.peek("api", &parts))), 8);
    assert_eq!(left(at_once(limits.peek("api", &request("alice")))), 8);
    assert_eq!(left(at_once(limits.peek("api", RequestHead::from(&parts)))), 8);
    assert_eq!(left(at_once(limits.peek("maybe", &PartitionKey::from("alice")))), 8);
    assert_eq!(left(at_once(limits.peek("maybe", "(shared)"))), 9);
    assert_eq!(left(at_once(limits.reset("api", &parts))), 9);

    let error = at_once(limits.peek("api", "alice")).unwrap_err();
    assert!(error.is_no_key() && error.to_string().contains("policy `api`"), "{error}");
    assert!(error.to_string().contains("alice> + <an address"), "{error}");
    let error = at_once(limits.ban("api", &Request::new(()), HOUR, "x")).unwrap_err();
    assert!(error.is_no_key() && error.to_string().contains("the request has no key"), "{error}");
    assert!(at_once(limits.unban("none", "alice")).unwrap_err().is_unknown_policy());
}

/// An operator names a key by a request, so the key is shown under that request's quota.
#[test]
fn a_requests_key_shows_its_quota() {
    let clock = ManualClock::new();
    let quota = |head: &RequestHead<'_>| head.extensions().get::<Quota>().copied();
    let layer = RateLimitLayer::new(per_user(&clock).quota_fn(quota));
    let mut rich = request("alice");
    rich.extensions_mut().insert(Quota::per_hour(50));
    assert_eq!(at_once(layer.handle().peek("api", &rich)).unwrap().decision().limit(), 50);
}

#[test]
fn impossible_overrides_are_errors_with_cures() {
    let clock = ManualClock::new();
    let layer =
        RateLimitLayer::new([per_user(&clock), Policy::new("watch", Quota::per_second(1)).key(User::key()).shadow()]);
    let limits = layer.handle();
    for (policy, span, reason, word) in [
        ("api", Duration::ZERO, "x", "0ns"),
        ("api", Duration::MAX, "x", "ban or an allowance"),
        ("api", HOUR, " ", "needs a reason"),
        ("api", HOUR, "a\nb", "one line"),
        ("watch", HOUR, "x", "shadow"),
    ] {
        for answer in [at_once(limits.ban(policy, "a", span, reason)), at_once(limits.allow(policy, "a", span, reason))]
        {
            let error = answer.unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
    assert!(limits.exceptions("api").unwrap().is_empty());
}

/// A route can be closed: the clients did not cause the ban.
#[test]
fn banning_the_shared_key_closes_a_policy() {
    let layer = RateLimitLayer::new(Policy::new("api", Quota::per_second(1_000)));
    let _ = ban(&layer.handle(), "(shared)", HOUR);
    assert_eq!(status(&layer, "alice"), 503);
    let _ = at_once(layer.handle().unban("api", "")).unwrap();
    assert_eq!(status(&layer, "alice"), 200);
}

#[test]
fn queues_take_bans_too() {
    let layer = RateLimitLayer::new(Policy::new("queue", LeakyQueue::new(Quota::per_hour(1))).key(User::key()));
    let limits = layer.handle();
    assert_eq!(status(&layer, "alice"), 200);
    let _ = at_once(limits.allow("queue", "alice", HOUR, "x")).unwrap();
    assert_eq!([status(&layer, "alice"), status(&layer, "alice")], [200, 200], "without a turn");
    let _ = at_once(limits.ban("queue", "alice", HOUR, "x")).unwrap();
    assert_eq!(status(&layer, "alice"), 429);
}

/// Operators' pages read it: see [`Operate`].
#[test]
fn the_status_of_policies_is_shown() {
    /// Counts requests, and decides on none.
    struct Broken;

    impl Limiter for Broken {
        fn decide(&self, _: &Ask<'_>) -> Answer {
            LimiterError::new("out of reach").into()
        }
    }

    let clock = ManualClock::new();
    let queue = Policy::new("queue", LeakyQueue::new(Quota::per_hour(9))).key(User::key());
    let bought = Policy::new("bought", Balance::new().with_clock(clock.clone())).key(User::key());
    let strict = Policy::new("strict", timed(SlidingWindow::new(Quota::per_hour(1)), &clock)).key(User::key());
    let broken = Policy::new("broken", Arc::new(Broken)).on_failure(FailureMode::Allow);
    let policies =
        [per_user(&clock), queue, bought.shadow(), strict.shadow().track_offenders(ShowKey::whole()), broken];
    let layer = RateLimitLayer::new(policies);
    let limits: &dyn Operate = &layer.handle();
    assert_eq!(status(&layer, "alice"), 200);

    let all = limits.policies();
    let of = |name: &str| all.iter().find(|policy| policy.name() == name).unwrap();
    let flags = |name| {
        let policy = of(name);
        let flags = [
            ("delays", policy.delays()),
            ("can reset", policy.can_reset()),
            ("keeps credits", policy.keeps_credits()),
            ("shadow", policy.is_shadow()),
            ("offenders", policy.tracks_offenders()),
            ("terms", policy.terms().is_some()),
            ("table", policy.stats().table.is_some()),
        ];
        flags.into_iter().filter(|(_, is_set)| *is_set).map(|(flag, _)| flag).collect::<Vec<_>>()
    };
    assert_eq!(all.len(), 5);
    let shown = ["api", "queue", "bought", "strict", "broken"].map(|name| flags(name).join(", "));
    let expected = [
        "can reset, terms, table",
        "delays, terms, table",
        "can reset, keeps credits, shadow, table",
        "can reset, shadow, offenders, terms, table",
        "",
    ];
    assert_eq!(shown, expected);
    assert_eq!(of("api").keys(), "a text that is not empty, such as alice");
    assert_eq!((of("broken").failures(), of("api").failures()), (1, 0));
    assert_eq!((of("strict").shadow_rejected(), of("bought").shadow_rejected()), (0, 1));

    assert!(limits.exceptions("api").unwrap().is_empty());
    let _ = ban(&layer.handle(), "alice", HOUR);
    assert_eq!(limits.exceptions("api").unwrap().len(), 1);
}
