//! Bans and debts that processes share, because the budgets' items hold them.

use std::convert::Infallible;
use std::future::ready;

use http::{HeaderMap, Request, Response};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::algorithm::{FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::key::User;
use tower_sluice::{Penalty, Policy, RateLimitLayer, Settlement};

use super::*;

/// Longer than any wait without a ban.
const BAN: Duration = Duration::from_secs(7 * 86_400);

/// One process with ten units a day. A request's query is its cost.
pub(super) fn process<A: Kept>(service: &Service, clock: &ManualClock, algorithm: A) -> RateLimitLayer {
    let policy = Policy::new("api", limiter(&dynamo(service, clock), algorithm)).key(User::key());
    let policy = policy.cost_fn(|request| request.uri().query().map_or(1, |cost| cost.parse().unwrap()));
    RateLimitLayer::new(policy.penalty(Penalty::new(per_day(1), BAN)).settle_by_handler().owe_shortfalls())
}

/// Sends a request that is charged `cost` and turns out to cost `settled`. Returns the seconds in `Retry-After`; zero
/// if it passes.
pub(super) async fn wait(layer: &RateLimitLayer, cost: u64, settled: u64) -> u64 {
    let handler = service_fn(move |request: Request<()>| {
        request.extensions().get::<Settlement>().unwrap().settle("api", settled).unwrap();
        ready(Ok::<_, Infallible>(Response::new(())))
    });
    let mut request = Request::get(format!("/?{cost}")).body(()).unwrap();
    request.extensions_mut().insert(User::new("alice"));
    let response = layer.clone().layer(handler).oneshot(request).await.unwrap();
    let headers: HeaderMap = response.headers().clone();
    headers.get("retry-after").map_or(0, |wait| wait.to_str().unwrap().parse().unwrap())
}

/// Background work is done when no other task has anything to do.
pub(super) async fn settled() {
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
}

fn is_ban(wait: u64) -> bool {
    (6 * 86_400 + 1..=7 * 86_400).contains(&wait)
}

async fn bans<A: Kept>(algorithm: A, letter: &str) {
    let (service, clock) = service().await;
    let process = || process(&service, &clock, algorithm.clone());
    let first = process();
    assert_eq!(wait(&first, 5, 5).await, 0);
    for _ in 0..2 {
        let wait = wait(&first, 10, 10).await;
        assert!(wait > 0 && !is_ban(wait), "{letter}: {wait}");
    }
    assert!(is_ban(wait(&first, 10, 10).await));
    settled().await;
    let second = process();
    service.forget_counts();
    assert!(is_ban(wait(&second, 1, 1).await), "{letter}");
    let counts = service.counts();
    assert_eq!(counts.reads + counts.writes, 1, "{letter}: as each decision takes");
    assert!(!second.handle().peek("api", "alice").await.unwrap().decision().is_allowed());
    // In the window after the next, and at its end.
    clock.advance(2 * DAY);
    let left = wait(&process(), 1, 1).await;
    assert!(left > 4 * 86_400 && left <= 5 * 86_400, "{letter}: {left}");
    clock.advance(5 * DAY);
    assert_eq!(wait(&process(), 10, 10).await, 0, "{letter}: all is restored by the end");
    assert!(wait(&process(), 1, 1).await > 0, "{letter}");
}

/// They need no further request.
#[tokio::test]
async fn all_processes_reject_a_banned_key() {
    bans(TokenBucket::new(per_day(10)), "bucket").await;
    bans(SlidingWindow::new(per_day(10)), "sliding window").await;
    bans(FixedWindow::new(per_day(10)), "fixed window").await;
}

async fn resets<A: Kept>(algorithm: A) {
    let (service, clock) = service().await;
    let process = || process(&service, &clock, algorithm.clone());
    let first = process();
    for _ in 0..4 {
        let _ = wait(&first, 10, 10).await;
    }
    settled().await;
    assert!(is_ban(wait(&process(), 1, 1).await));
    assert!(process().handle().reset("api", "alice").await.unwrap().decision().is_allowed());
    assert_eq!(wait(&process(), 1, 1).await, 0);
    assert_eq!(service.items().len(), 1, "no item of a later window is left");
}

#[tokio::test]
async fn one_reset_lifts_the_ban_everywhere() {
    resets(TokenBucket::new(per_day(10))).await;
    resets(SlidingWindow::new(per_day(10))).await;
    resets(FixedWindow::new(per_day(10))).await;
}

async fn debts<A: Kept>(algorithm: A, letter: &str) {
    let (service, clock) = service().await;
    let process = || process(&service, &clock, algorithm.clone());
    assert_eq!(wait(&process(), 1, 25).await, 0);
    settled().await;
    let second = process();
    service.forget_counts();
    let left = wait(&second, 1, 1).await;
    assert!(left > 86_400 && left < 3 * 86_400, "{letter}: {left}");
    let counts = service.counts();
    assert_eq!(counts.reads + counts.writes, 1, "{letter}");
    // Another debt adds to it.
    clock.advance(Duration::from_secs(left - 1));
    assert!(wait(&process(), 1, 1).await > 0, "{letter}");
    clock.advance(Duration::from_secs(1));
    assert_eq!(wait(&process(), 1, 25).await, 0, "{letter}: the wait is true");
    settled().await;
    let left = wait(&process(), 1, 1).await;
    assert!(left > 86_400 && left < 4 * 86_400, "{letter}: {left}");
}

#[tokio::test]
async fn all_processes_see_a_debt() {
    debts(TokenBucket::new(per_day(10)), "bucket").await;
    debts(SlidingWindow::new(per_day(10)), "sliding window").await;
    debts(FixedWindow::new(per_day(10)), "fixed window").await;
}
