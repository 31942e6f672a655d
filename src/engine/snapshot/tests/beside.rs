//! The tables beside the budgets (bans, advertised waits, debts, retry records), and the policies that are left out.

use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;

use http::{HeaderName, Request, Response};
use tower_layer::Layer;
use tower_service::Service;

use super::*;
use crate::algorithm::{FixedWindow, TokenBucket};
use crate::http::key::HeaderKey;
use crate::http::{ChargeOnce, Penalty};
use crate::limiter::Limiter;

const KEY: &str = "x-key";

/// Returns a request's status, and the seconds that it has to wait.
fn send(layer: &RateLimitLayer, key: &str, retry: Option<&str>) -> (u16, u64) {
    let mut request = Request::builder().header(KEY, key);
    if let Some(retry) = retry {
        request = request.header("idempotency-key", retry);
    }
    let inner = tower_test_service();
    let mut service = layer.layer(inner);
    let mut call = std::pin::pin!(service.call(request.body(()).unwrap()));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match call.as_mut().poll(&mut context) {
        std::task::Poll::Ready(Ok(response)) => {
            let wait = response.headers().get("retry-after");
            (response.status().as_u16(), wait.map_or(0, |wait| wait.to_str().unwrap().parse().unwrap()))
        }
        other => panic!("memory answers at once, and not {other:?}"),
    }
}

#[derive(Clone)]
struct Hello;

impl Service<Request<()>> for Hello {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Infallible>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        ready(Ok(Response::new(String::new())))
    }
}

fn tower_test_service() -> Hello {
    Hello
}

fn keyed(policy: Policy) -> Policy {
    policy.key(HeaderKey::new(HeaderName::from_static(KEY)))
}

/// Restarts a layer with this policy after `down` seconds without a process.
fn restart(
    layer: &RateLimitLayer,
    clock: &ManualClock,
    down: u64,
    make: &dyn Fn(&ManualClock) -> Policy,
) -> RateLimitLayer {
    let then = crate::values::time::Clock::now(clock).as_nanos();
    let bytes = written(layer, then);
    clock.advance(nanos(down * SECOND));
    let after = RateLimitLayer::new(make(clock));
    let result = restored(&after, &bytes, then + down * SECOND).unwrap();
    assert_eq!(result.not_restored(), []);
    after
}

#[test]
fn bans_and_counted_retries_outlive_restarts() {
    let clock = clock_at(START);
    let make = |clock: &ManualClock| {
        let penalty = Penalty::new(Quota::per_hour(1), Duration::from_secs(600)).with_clock(clock.clone());
        keyed(policy("api", TokenBucket::new(Quota::per_minute(1)), store(clock))).penalty(penalty)
    };
    let layer = RateLimitLayer::new(make(&clock));
    // The second premature retry begins a ban.
    assert_eq!([(); 4].map(|()| send(&layer, "a", None).1), [0, 60, 60, 600]);
    // The first premature retry only has an advertised wait.
    assert_eq!([(); 2].map(|()| send(&layer, "b", None).1), [0, 60]);
    assert_eq!([(); 3].map(|()| send(&layer, "c", None).1), [0, 60, 60]);
    let layer = restart(&layer, &clock, 20, &make);
    assert_eq!(send(&layer, "a", None).1, 580);
    // Exact to one tick, which the field rounds up to whole seconds.
    assert_eq!([(); 2].map(|()| send(&layer, "b", None).1), [41, 600], "the retry is early by the advertised wait");
    assert_eq!(send(&layer, "c", None).1, 600, "its first early retry was counted");
    let layer = restart(&layer, &clock, 581, &make);
    assert_eq!(send(&layer, "a", None), (200, 0));
    assert_eq!(send(&layer, "c", None).1, 19);
}

#[test]
fn ban_counts_outlive_a_restart() {
    let clock = clock_at(START);
    let make = |clock: &ManualClock| {
        let seconds = Duration::from_secs;
        let penalty = Penalty::new(Quota::per_hour(1), seconds(600)).growing(2, seconds(86_400));
        let penalty = penalty.with_clock(clock.clone());
        keyed(policy("api", TokenBucket::new(Quota::per_minute(1)), store(clock))).penalty(penalty)
    };
    let layer = RateLimitLayer::new(make(&clock));
    assert_eq!([(); 4].map(|()| send(&layer, "a", None).1), [0, 60, 60, 600]);
    let layer = restart(&layer, &clock, 601, &make);
    assert_eq!([(); 3].map(|()| send(&layer, "a", None).1), [0, 60, 1_200], "the second ban");
    // The ban is forgotten a day after its end, and so is the premature retry that was free.
    let layer = restart(&layer, &clock, 1_200 + 86_401, &make);
    assert_eq!([(); 4].map(|()| send(&layer, "a", None).1), [0, 60, 60, 600]);
}

#[test]
fn debts_outlive_a_restart() {
    let clock = clock_at(START);
    let make = |clock: &ManualClock| {
        keyed(policy("api", TokenBucket::new(Quota::per_minute(60)), store(clock))).cost_after(|_| 300).owe_shortfalls()
    };
    let layer = RateLimitLayer::new(make(&clock));
    assert_eq!(send(&layer, "a", None), (200, 0));
    let wait = send(&layer, "a", None).1;
    assert!(wait >= 240, "{wait} s for a debt of 240 units");
    let layer = restart(&layer, &clock, 100, &make);
    assert_eq!(send(&layer, "a", None).1, wait - 100);
    let layer = restart(&layer, &clock, wait - 101, &make);
    assert_eq!(send(&layer, "a", None).1, 1);
    clock.advance(nanos(SECOND));
    assert_eq!(send(&layer, "a", None), (200, 0));
}

#[test]
fn retries_stay_free_once_after_restarts() {
    let clock = clock_at(START);
    let make = |clock: &ManualClock| {
        let once = ChargeOnce::by_header(HeaderName::from_static("idempotency-key")).with_clock(clock.clone());
        keyed(policy("api", FixedWindow::new(Quota::per_day(1)), store(clock))).charge_once(once)
    };
    let layer = RateLimitLayer::new(make(&clock));
    assert_eq!(send(&layer, "a", Some("one")).0, 200);
    let layer = restart(&layer, &clock, 20, &make);
    assert_eq!(send(&layer, "a", Some("one")).0, 200);
    let layer = restart(&layer, &clock, 20, &make);
    assert_eq!(send(&layer, "a", Some("one")).0, 429, "its free retry is used up");
    assert_eq!(send(&layer, "a", Some("two")).0, 429);
}

/// A custom limiter, which has no state to restore.
struct Custom;

impl Limiter for Custom {
    fn decide(&self, _: &Ask<'_>) -> Answer {
        Decision::allow(1, 1).into()
    }
}

#[test]
fn left_out_policies_are_named() {
    let clock = clock_at(START);
    let shared = RateLimiter::new(TokenBucket::new(Quota::per_hour(5)), store(&clock)).into_limiter();
    let layer = RateLimitLayer::new([
        Policy::new("custom", Arc::new(Custom)),
        Policy::new("one", Arc::clone(&shared)),
        Policy::new("other", shared),
        policy("gone", TokenBucket::new(Quota::per_hour(5)), store(&clock)),
    ]);
    let _ = charge(&layer, "one", 1, 3);
    let mut bytes = Vec::new();
    let saved = layer.snapshot(&mut bytes).unwrap();
    let reason = "its limiter keeps no table of budgets in memory";
    assert_eq!(saved.skipped(), [("custom".to_owned(), reason.to_owned())]);
    assert_eq!((saved.keys(), saved.bytes()), (2, bytes.len() as u64), "the shared limiter is in it twice");

    let shared = RateLimiter::new(TokenBucket::new(Quota::per_hour(5)), store(&clock)).into_limiter();
    let layer = RateLimitLayer::new([
        Policy::new("one", Arc::clone(&shared)),
        Policy::new("other", shared),
        policy("new", TokenBucket::new(Quota::per_hour(5)), store(&clock)),
    ]);
    let restored = layer.restore(&bytes[..]).unwrap();
    assert_eq!(restored.policies(), ["one", "other"]);
    assert_eq!(restored.not_restored(), [("new".to_owned(), "it is not in the snapshot".to_owned())]);
    let mut left_over = restored.left_over().to_vec();
    left_over.sort();
    assert_eq!(left_over, ["custom", "gone"]);
    assert_eq!(charge(&layer, "other", 1, 0).remaining(), 2);
    // It was used before.
    let again = layer.restore(&bytes[..]).unwrap();
    let reason = "its budgets: its limiter was in use before";
    assert!(again.not_restored().contains(&("one".to_owned(), reason.to_owned())), "{again}");
}

#[test]
fn another_algorithm_begins_anew() {
    let clock = clock_at(START);
    let before = RateLimitLayer::new(policy("p", TokenBucket::new(Quota::per_hour(5)), store(&clock)));
    let _ = charge(&before, "p", 1, 5);
    let bytes = written(&before, START);
    let after = RateLimitLayer::new(policy("p", FixedWindow::new(Quota::per_hour(5)), store(&clock)));
    let result = restored(&after, &bytes, START).unwrap();
    let text = "restored nothing: its budgets: its algorithm is another one than in the snapshot";
    assert_eq!(result.to_string(), text);
    assert_eq!(charge(&after, "p", 1, 0).remaining(), 5);
}

/// Whether an operator's call succeeds. In memory, it does so at once.
fn at_once<T>(call: impl Future<Output = Result<T, crate::LimiterError>>) -> bool {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    matches!(std::pin::pin!(call).poll(&mut context), std::task::Poll::Ready(Ok(_)))
}

#[test]
fn overrides_outlast_a_restart() {
    let clock = ManualClock::starting_at(crate::values::time::Timestamp::from_nanos(1_800_000_000 * SECOND));
    let make = |clock: &ManualClock| {
        let store = crate::store::MemoryStore::default().with_clock(clock.clone());
        keyed(Policy::new("api", crate::limiter::RateLimiter::new(TokenBucket::new(Quota::per_hour(1)), store)))
    };
    let layer = RateLimitLayer::new(make(&clock));
    let (hour, long) = (std::time::Duration::from_secs(3_600), "x".repeat(300));
    let limits = layer.handle();
    assert!(at_once(limits.ban("api", "a", hour, "scrapes")));
    assert!(at_once(limits.ban("api", long.as_str(), hour, "scrapes")));
    assert!(at_once(limits.allow("api", "b", hour, "a migration")));
    assert!(at_once(limits.ban("api", "c", hour / 4, "short")));
    clock.advance(nanos(900 * SECOND));
    let after = restart(&layer, &clock, 900, &make);
    assert_eq!(after.handle().exceptions("api").unwrap().len(), 3);
    assert_eq!(send(&after, "a", None), (429, 1_800));
    assert_eq!(send(&after, &long, None), (429, 1_800));
    assert_eq!([send(&after, "b", None), send(&after, "b", None)], [(200, 0); 2]);
    assert_eq!([send(&after, "c", None).0, send(&after, "c", None).0], [200, 429], "it ended meanwhile");
    let again = restart(&after, &clock, 1_800, &make);
    assert_eq!([send(&again, "a", None), send(&again, "b", None)], [(200, 0); 2], "both have ended");
}
