//! Credits and charges by hand, in memory, and their effect on later requests.

use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use http::{Request, Response, StatusCode};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::algorithm::{Algorithm, FixedWindow, TokenBucket};
use tower_sluice::key::User;
use tower_sluice::limiter::{Credit, Debit};
use tower_sluice::policy::KeyStatus;
use tower_sluice::store::{MemoryStore, MemoryTable};
use tower_sluice::time::ManualClock;
use tower_sluice::{
    Balance, Concurrency, LeakyQueue, LimitsHandle, Policy, Quota, RateLimitLayer, RateLimiter, Settlement,
};

const HOUR: Duration = Duration::from_secs(3_600);

fn timed<A: Algorithm>(algorithm: A, clock: &ManualClock) -> RateLimiter<A, MemoryTable<A::State, ManualClock>> {
    RateLimiter::new(algorithm, MemoryStore::default().with_clock(clock.clone()))
}

/// Ten per hour.
fn api(clock: &ManualClock) -> Policy {
    Policy::new("api", timed(TokenBucket::new(Quota::per_hour(10)), clock)).key(User::key())
}

fn request(user: &str) -> Request<()> {
    let mut request = Request::new(());
    request.extensions_mut().insert(User::new(user));
    request
}

fn send(layer: &RateLimitLayer, user: &str) -> Response<tower_sluice::layer::ResponseBody<String>> {
    let service = layer.layer(service_fn(|_: Request<()>| ready(Ok::<_, Infallible>(Response::new(String::new())))));
    service.oneshot(request(user)).now_or_never().expect("memory answers at once").unwrap()
}

fn status(layer: &RateLimitLayer, user: &str) -> StatusCode {
    send(layer, user).status()
}

fn at_once<T>(call: impl Future<Output = T>) -> T {
    call.now_or_never().expect("memory answers at once")
}

fn charge(limits: &LimitsHandle, policy: &str, debit: impl Into<Debit>) -> KeyStatus {
    at_once(limits.charge(policy, "alice", debit)).unwrap()
}

fn left(limits: &LimitsHandle, policy: &str) -> u64 {
    at_once(limits.peek(policy, "alice")).unwrap().decision().remaining()
}

/// A plain policy, alone and beside another one: after the charge, its requests leave the fast path until time has paid
/// the debt.
#[test]
fn a_charge_beyond_the_limit_is_owed() {
    let other = |clock: &ManualClock| {
        Policy::new("day", timed(FixedWindow::new(Quota::per_day(1_000)), clock)).key(User::key())
    };
    for is_alone in [true, false] {
        let clock = ManualClock::new();
        let mut policies = vec![api(&clock)];
        policies.extend((!is_alone).then(|| other(&clock)));
        let layer = RateLimitLayer::new(policies);
        let limits = layer.handle();
        assert_eq!(charge(&limits, "api", 4).decision().remaining(), 6);
        assert_eq!(status(&layer, "alice"), 200);
        assert_eq!(charge(&limits, "api", 25).decision().remaining(), 0, "five are left, so twenty are owed");
        let rejection = send(&layer, "alice");
        assert_eq!(rejection.status(), 429);
        assert_eq!(rejection.headers()["retry-after"], (21 * 360).to_string());
        assert_eq!(status(&layer, "bob"), 200);
        clock.advance(HOUR * 21 / 10 - Duration::from_nanos(1));
        assert_eq!(status(&layer, "alice"), 429);
        clock.advance(Duration::from_nanos(1));
        assert_eq!([status(&layer, "alice"), status(&layer, "alice")], [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS]);
        clock.advance(HOUR * 2);
        assert_eq!(left(&limits, "api"), 10);
        for _ in 0..10 {
            assert_eq!(status(&layer, "alice"), 200, "the bucket is full again");
        }
        assert_eq!(status(&layer, "alice"), 429);
    }
}

#[test]
fn a_manual_debt_survives_changes_until_reset() {
    let clock = ManualClock::new();
    let layer = RateLimitLayer::new(api(&clock));
    let limits = layer.handle();
    let _ = charge(&limits, "api", 30);
    limits.replace(api(&clock)).unwrap();
    clock.advance(HOUR);
    assert_eq!((status(&layer, "alice"), status(&layer, "bob")), (StatusCode::TOO_MANY_REQUESTS, StatusCode::OK));
    assert_eq!(at_once(limits.reset("api", "alice")).unwrap().decision().remaining(), 10);
    assert_eq!(status(&layer, "alice"), 200);
}

/// Costs that are settled while the key is in debt count towards that debt, and do not add to it.
#[test]
fn a_shortfall_in_debt_is_forgiven() {
    let clock = ManualClock::new();
    let layer = RateLimitLayer::new(api(&clock).settle_by_handler());
    let limits = layer.handle();
    let service = layer.layer(service_fn(|request: Request<()>| {
        request.extensions().get::<Settlement>().unwrap().settle("api", 100).unwrap();
        ready(Ok::<_, Infallible>(Response::new(String::new())))
    }));
    let response = service.oneshot(request("alice")).now_or_never().unwrap().unwrap();
    let _ = charge(&limits, "api", 11);
    drop(response);
    assert_eq!(at_once(limits.peek("api", "alice")).unwrap().decision().reset_after(), HOUR * 12 / 10);
}

#[test]
fn a_reference_is_charged_once() {
    let clock = ManualClock::new();
    let limits = RateLimitLayer::new([api(&clock), Policy::new("bought", Balance::new()).key(User::key())]).handle();
    let job = || Debit::units(3).reference("job-4711");
    assert!(!charge(&limits, "api", job()).is_repeated());
    assert!(charge(&limits, "api", job()).is_repeated());
    limits.replace([api(&clock), Policy::new("bought", Balance::new()).key(User::key())]).unwrap();
    let again = charge(&limits, "api", job());
    assert_eq!((again.is_repeated(), again.decision().remaining()), (true, 7));
    assert!(!at_once(limits.charge("api", "bob", job())).unwrap().is_repeated(), "another key");
    let entered = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let status = charge(&limits, "api", Debit::units(1).reference("job-4712"));
                entered.fetch_add(u64::from(!status.is_repeated()), std::sync::atomic::Ordering::Relaxed);
            });
        }
    });
    assert_eq!((entered.into_inner(), left(&limits, "api")), (1, 6));
}

#[test]
fn a_balance_is_credited_used_and_overdrawn() {
    let bought = || Policy::new("bought", Balance::new()).key(User::key());
    let layer = RateLimitLayer::new(bought());
    let limits = layer.handle();
    assert_eq!(status(&layer, "alice"), 429);
    assert_eq!(send(&layer, "alice").headers().get("retry-after"), None, "no wait helps");
    let payment = || Credit::units(3).expires_in(HOUR).reference("invoice-17");
    let credited = at_once(limits.credit("bought", "alice", payment())).unwrap();
    assert_eq!((credited.is_repeated(), credited.decision().remaining()), (false, 3));
    assert!(at_once(limits.credit("bought", "alice", payment())).unwrap().is_repeated());
    assert_eq!(status(&layer, "alice"), 200);
    limits.replace(bought()).unwrap();
    assert_eq!(left(&limits, "bought"), 2);
    let _ = charge(&limits, "bought", 5);
    assert_eq!(status(&layer, "alice"), 429);
    let credited = at_once(limits.credit("bought", "alice", Credit::units(4))).unwrap();
    assert_eq!(credited.decision().remaining(), 1);
    assert_eq!([status(&layer, "alice"), status(&layer, "alice")], [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS]);
}

/// For a request that a later policy rejects, and for one whose final cost is lower.
#[test]
fn units_of_a_balance_are_given_back() {
    let clock = ManualClock::new();
    let bought = Arc::new(Balance::new());
    let policies = [
        Policy::new("bought", Arc::clone(&bought)).key(User::key()).cost(5).settle_by_handler(),
        Policy::new("api", timed(TokenBucket::new(Quota::per_hour(1)), &clock)).key(User::key()),
    ];
    let layer = RateLimitLayer::new(policies);
    let limits = layer.handle();
    let _ = at_once(limits.credit("bought", "alice", Credit::units(20))).unwrap();
    let service = layer.layer(service_fn(|request: Request<()>| {
        request.extensions().get::<Settlement>().unwrap().settle("bought", 2).unwrap();
        ready(Ok::<_, Infallible>(Response::new(String::new())))
    }));
    let response = service.clone().oneshot(request("alice")).now_or_never().unwrap().unwrap();
    assert_eq!(left(&limits, "bought"), 15);
    drop(response);
    assert_eq!(left(&limits, "bought"), 18);
    assert_eq!(service.oneshot(request("alice")).now_or_never().unwrap().unwrap().status(), 429);
    assert_eq!(left(&limits, "bought"), 18);
}

#[test]
fn a_balance_owes_shortfalls_if_configured() {
    for (owes, after_a_credit) in [(true, 3), (false, 10)] {
        let policy = Policy::new("bought", Balance::new()).key(User::key()).settle_by_handler();
        let layer = RateLimitLayer::new(if owes { policy.owe_shortfalls() } else { policy });
        let limits = layer.handle();
        let _ = at_once(limits.credit("bought", "alice", Credit::units(5))).unwrap();
        let service = layer.layer(service_fn(|request: Request<()>| {
            request.extensions().get::<Settlement>().unwrap().settle("bought", 12).unwrap();
            ready(Ok::<_, Infallible>(Response::new(String::new())))
        }));
        drop(service.oneshot(request("alice")).now_or_never().unwrap().unwrap());
        assert_eq!(left(&limits, "bought"), 0);
        let credited = at_once(limits.credit("bought", "alice", Credit::units(10))).unwrap();
        assert_eq!(credited.decision().remaining(), after_a_credit, "{owes}");
    }
}

#[test]
fn impossible_charges_are_errors_with_a_reason() {
    let clock = ManualClock::new();
    let own_quota = timed(TokenBucket::new(Quota::per_hour(10)), &clock);
    let policies = [
        api(&clock),
        Policy::new("line", LeakyQueue::new(Quota::per_second(10))).key(User::key()),
        Policy::new("open", Concurrency::new(3)).key(User::key()),
        Policy::new("plans", own_quota).key(User::key()).quota_fn(|_| Some(Quota::per_hour(100))),
    ];
    let limits = RateLimitLayer::new(policies).handle();
    let error = at_once(limits.credit("api", "alice", Credit::units(5))).unwrap_err();
    assert!(error.is_unsupported() && error.to_string().contains("a `Balance`"), "{error}");
    for policy in ["line", "open"] {
        let error = at_once(limits.charge(policy, "alice", 5)).unwrap_err();
        assert!(error.is_unsupported() && error.to_string().contains("by hand"), "{error}");
    }
    let error = at_once(limits.charge("plans", "alice", 5)).unwrap_err().to_string();
    assert!(error.contains("name the key by a request"), "{error}");
    let status = at_once(limits.charge("plans", &request("alice"), 130)).unwrap();
    assert_eq!(status.decision().remaining(), 0);
    assert_eq!(at_once(limits.peek("plans", &request("alice"))).unwrap().decision().reset_after(), HOUR * 13 / 10);
    for debit in [Debit::units(0), Debit::units(1).reference("")] {
        assert!(at_once(limits.charge("api", "alice", debit)).is_err());
    }
    let _ = at_once(limits.allow("api", "alice", HOUR, "a migration")).unwrap();
    let error = at_once(limits.charge("api", "alice", 5)).unwrap_err().to_string();
    assert!(error.contains("end the allowance first"), "{error}");
    assert!(at_once(limits.charge("nothing", "alice", 5)).unwrap_err().is_unknown_policy());
    assert!(at_once(limits.credit("api", "", Credit::units(5))).unwrap_err().is_no_key());
}
