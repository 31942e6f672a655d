//! Keys in debt while their quotas change: a wait that one quota advertises is true under that quota.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use http::{Request, Response};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::algorithm::{Algorithm, FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::key::User;
use tower_sluice::testing::Random;
use tower_sluice::time::ManualClock;
use tower_sluice::{Penalty, Policy, Quota, RateLimitLayer, Settlement};

use super::stack::{clock, timed};
use crate::support::effort::rounds;
use crate::support::trace::Trace;

/// A request's plan, which an authentication layer attaches.
#[derive(Clone, Copy)]
struct Plan(Quota);

/// The layer's answer: a rejection's exact wait, and whether it is a ban.
struct Answer {
    wait: Option<Duration>,
    is_ban: bool,
}

/// Sends a request as alice that costs `units` in the end.
fn send(layer: &RateLimitLayer, plan: Option<Quota>, units: u64) -> Answer {
    let handler = service_fn(move |request: Request<()>| async move {
        request.extensions().get::<Settlement>().unwrap().settle("api", units).unwrap();
        Ok::<_, Infallible>(Response::new(()))
    });
    let mut request = Request::new(());
    request.extensions_mut().insert(User::new("alice"));
    plan.map(|quota| request.extensions_mut().insert(Plan(quota)));
    let response = layer.layer(handler).oneshot(request).now_or_never().expect("memory answers at once").unwrap();
    let wait = response.headers().get("x-rate-limited-for").map(|wait| {
        let (seconds, micros) = wait.to_str().unwrap().split_once('.').expect("with six decimals");
        Duration::from_secs(seconds.parse().unwrap()) + Duration::from_micros(micros.parse().unwrap())
    });
    assert_eq!(response.status() == 429, wait.is_some(), "{response:?}");
    let is_ban = response
        .extensions()
        .get::<tower_sluice::Verdict>()
        .is_some_and(|verdict| verdict.policies().iter().any(|policy| policy.ban().is_some()));
    Answer { wait, is_ban }
}

fn policy(algorithm: impl Algorithm, clock: &ManualClock) -> Policy {
    let penalty = Penalty::new(Quota::per_day(1), Duration::from_secs(86_400 * 365)).with_clock(clock.clone());
    Policy::new("api", timed(algorithm, clock))
        .key(User::key())
        .quota_fn(|request| request.extensions().get::<Plan>().map(|plan| plan.0))
        .settle_by_handler()
        .owe_shortfalls()
        .penalty(penalty)
}

fn layer(policy: Policy) -> RateLimitLayer {
    RateLimitLayer::builder(policy).verdict().build()
}

/// Waits the advertised time, and is admitted.
fn obey(layer: &RateLimitLayer, clock: &ManualClock, plan: Option<Quota>, told: Duration, context: &str) {
    clock.advance(told);
    let answer = send(layer, plan, 1);
    assert!(!answer.is_ban, "banned for waiting: {context}");
    assert_eq!(answer.wait, None, "told {told:?}: {context}");
}

/// A key owes twenty units at ten per hour when it gets ten per second. It was told 2.1 s again and again, and was
/// admitted after 7,560 s and 13,122 retries. The other way around, it was told 15 days, and admitted after 361 s.
#[test]
fn the_advertising_quota_pays_the_debt() {
    let hour = Quota::per_hour(10);
    let (second, month) = (Quota::per_second(10), Quota::per(10, Duration::from_secs(86_400 * 10)));
    for (quota, bounds) in [(second, 1..4_u64), (month, 86_400..86_400 * 40)] {
        let clock = clock();
        let layer = layer(policy(TokenBucket::new(hour), &clock));
        assert_eq!(send(&layer, None, 30).wait, None);
        let told = send(&layer, Some(quota), 1).wait.expect("it owes twenty units");
        assert!(bounds.contains(&told.as_secs()), "{told:?}");
        obey(&layer, &clock, Some(quota), told, "by quota_fn");
    }
    for (quota, bounds) in [(second, 1..4_u64), (month, 86_400..86_400 * 40)] {
        let clock = clock();
        let layer = layer(policy(TokenBucket::new(hour), &clock));
        assert_eq!(send(&layer, None, 30).wait, None);
        let _ = layer.handle().replace(policy(TokenBucket::new(quota), &clock)).unwrap();
        let told = send(&layer, None, 1).wait.expect("it owes twenty units");
        assert!(bounds.contains(&told.as_secs()), "{told:?}");
        obey(&layer, &clock, None, told, "by a live change");
    }
}

/// An obedient client whose plan changes at random while it is in debt: before its request, while it waits, and by live
/// changes. The last wait that it got under its present plan is true.
#[test]
fn waits_stay_true_through_plan_changes() {
    let quotas: Vec<Quota> = [(10, 3_600), (10, 1), (3, 60), (100, 86_400), (24, 86_400)]
        .map(|(limit, seconds)| Quota::per(limit, Duration::from_secs(seconds)))
        .into();
    let (mut told, mut changed) = (0, 0);
    let mut trace = Trace::of(rounds(60, 1_000));
    while trace.goes_on([("waits", told > 100), ("changes", changed > 100)]) {
        let seed = trace.seed();
        let (mut random, clock) = (Random::new(seed), clock());
        let new = |random: &mut Random| {
            let quota = random.pick(&quotas);
            match seed % 3 {
                0 => policy(TokenBucket::new(quota), &clock),
                1 => policy(FixedWindow::new(quota), &clock),
                _ => policy(SlidingWindow::new(quota), &clock),
            }
        };
        let layer = layer(new(&mut random));
        for step in 0..40 {
            if random.below(6) == 0 {
                let _ = layer.handle().replace(new(&mut random)).unwrap();
                changed += 1;
            }
            let plan = (random.below(3) > 0).then(|| random.pick(&quotas));
            let units = if random.below(3) == 0 { random.below(60) } else { 1 };
            let context = format!("seed {seed}, step {step}, plan {plan:?}");
            let answer = send(&layer, plan, units);
            assert!(!answer.is_ban, "banned: {context}");
            if let Some(wait) = answer.wait {
                told += 1;
                // Peeks in between, as support makes them, charge nothing and change nothing.
                clock.advance(wait / 3);
                let _ = layer.handle().peek("api", "alice").now_or_never().unwrap().unwrap();
                obey(&layer, &clock, plan, wait - wait / 3, &context);
            }
            clock.advance(Duration::from_millis(random.below(4) * random.below(3_000)));
        }
    }
}

/// A request came under the earlier plan, and is settled while the client waits under the later one.
#[test]
fn settlements_under_earlier_plans_keep_the_wait() {
    let clock = clock();
    let layer = layer(policy(TokenBucket::new(Quota::per_hour(10)), &clock).cost(5));
    let (gate, opened) = tokio::sync::oneshot::channel::<()>();
    let opened = Arc::new(std::sync::Mutex::new(Some(opened)));
    let handler = service_fn(move |request: Request<()>| {
        let opened = opened.lock().unwrap().take().unwrap();
        async move {
            let _ = opened.await;
            request.extensions().get::<Settlement>().unwrap().settle("api", 1).unwrap();
            Ok::<_, Infallible>(Response::new(()))
        }
    });
    let mut request = Request::new(());
    request.extensions_mut().insert(User::new("alice"));
    let mut held = Box::pin(layer.layer(handler).oneshot(request));
    assert!(held.as_mut().now_or_never().is_none(), "it is in flight");
    assert_eq!(send(&layer, None, 25).wait, None, "it owes twenty");
    let fast = Some(Quota::per_second(10));
    let told = send(&layer, fast, 1).wait.expect("it owes more than fits");
    assert!(told < Duration::from_secs(4), "{told:?}");
    gate.send(()).unwrap();
    assert!(held.now_or_never().is_some());
    obey(&layer, &clock, fast, told, "after a settlement");
}
