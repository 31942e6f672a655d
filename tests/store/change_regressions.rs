//! Defects that live changes had, each with its story; through layers and their handles, as users meet them.

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use http::{Request, Response, StatusCode};
use tokio::sync::oneshot;
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::algorithm::{Algorithm, FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::key::HeaderKey;
use tower_sluice::limiter::IntoLimiter;
use tower_sluice::store::{MemoryStore, MemoryTable};
use tower_sluice::time::{Clock, ManualClock, Timestamp};
use tower_sluice::{Limiter, Policy, Quota, RateLimitLayer, RateLimiter};

use crate::common::clock;

fn limiter<A: Algorithm>(
    algorithm: A,
    capacity: usize,
    clock: impl Clock,
) -> Arc<RateLimiter<A, MemoryTable<A::State, impl Clock>>> {
    Arc::new(RateLimiter::new(algorithm, MemoryStore::with_capacity(capacity).with_clock(clock)))
}

fn policy(limiter: impl IntoLimiter) -> Policy {
    Policy::new("p", limiter).key(HeaderKey::from_static("x-api-key"))
}

/// Returns whether a request passes.
fn passes(layer: &RateLimitLayer, key: &str) -> bool {
    let hello = service_fn(|_: Request<()>| std::future::ready(Ok::<_, Infallible>(Response::new(String::new()))));
    let request = Request::builder().header("x-api-key", key).body(()).unwrap();
    let response = layer.layer(hello).oneshot(request).now_or_never().expect("memory answers at once");
    response.unwrap().status() == StatusCode::OK
}

/// Returns how many of the key's requests pass.
fn passing(layer: &RateLimitLayer, key: &str, requests: u64) -> u64 {
    (0..requests).map(|_| u64::from(passes(layer, key))).sum()
}

fn hours(limit: u64, hours: u64) -> Quota {
    Quota::per(limit, Duration::from_secs(hours * 3_600))
}

/// A login is charged if it fails. 200 logins are in flight when the period changes, and succeed hours after it, which
/// must not clear the counts since then.
#[tokio::test]
async fn old_responses_clear_no_counts() {
    let clock = clock();
    let window = |period| {
        let limiter = limiter(FixedWindow::new(hours(20, period)), 1_000, clock.clone());
        policy(limiter).charge_when(|response| response.status() == StatusCode::UNAUTHORIZED)
    };
    let layer = RateLimitLayer::new(window(1));
    let mut logins = Vec::new();
    for number in 0..200 {
        let (answer, answered) = oneshot::channel::<()>();
        let answered = answered.shared();
        let slow = service_fn(move |_: Request<()>| {
            let answered = answered.clone();
            async move {
                let _ = answered.await;
                Ok::<_, Infallible>(Response::new(String::new()))
            }
        });
        let request = Request::builder().header("x-api-key", format!("client {}", number % 40)).body(()).unwrap();
        logins.push((answer, number, tokio::spawn(layer.layer(slow).oneshot(request))));
        tokio::task::yield_now().await;
    }
    let failing = |key: &str| {
        let wrong = service_fn(|_: Request<()>| {
            let response = Response::builder().status(StatusCode::UNAUTHORIZED).body(String::new()).unwrap();
            std::future::ready(Ok::<_, Infallible>(response))
        });
        let request = Request::builder().header("x-api-key", key).body(()).unwrap();
        let response = layer.layer(wrong).oneshot(request).now_or_never().expect("memory answers at once").unwrap();
        u64::from(response.status() == StatusCode::UNAUTHORIZED)
    };
    let key = |number: u64| format!("client {}", number % 40);
    let guesses: u64 = (0..40 * 20).map(|number| failing(&key(number))).sum();
    assert_eq!(guesses, 40 * 15, "five of twenty are in flight");
    layer.handle().replace(window(2)).unwrap();
    // In a later window all clients may guess again, and use that up.
    clock.advance(Duration::from_secs(6 * 3_600));
    let guesses: u64 = (0..40 * 20).map(|number| failing(&key(number))).sum();
    assert_eq!(guesses, 40 * 20);
    let mut extra = 0;
    for (answer, number, login) in logins {
        answer.send(()).unwrap();
        login.await.unwrap().unwrap();
        extra += (0..20).map(|_| failing(&key(number))).sum::<u64>();
    }
    assert_eq!(extra, 0, "what was charged hours ago is not owed any more");
}

#[test]
fn toggling_between_limiters_clears_no_counts() {
    fn toggle<A: Algorithm>(make: impl Fn(Quota) -> A) -> [u64; 4] {
        let clock = clock();
        let strict = limiter(make(hours(10, 1)), 64, clock.clone()).into_limiter();
        let generous = limiter(make(hours(100, 2)), 64, clock.clone()).into_limiter();
        let layer = RateLimitLayer::new(policy(Arc::clone(&strict)));
        let first = passing(&layer, "a", 200);
        let replace = |next: &Arc<dyn Limiter>| {
            layer.handle().replace(policy(Arc::clone(next))).unwrap();
            passing(&layer, "a", 200)
        };
        let second = replace(&generous);
        // In a later window, and from now on at one instant.
        clock.advance(Duration::from_secs(10 * 3_600));
        let third = passing(&layer, "a", 200);
        [first, second, third, replace(&strict) + replace(&generous) + replace(&strict) + replace(&generous)]
    }
    assert_eq!(toggle(FixedWindow::new), [10, 90, 100, 0]);
    assert_eq!(toggle(SlidingWindow::new), [10, 90, 100, 0]);
    assert_eq!(toggle(TokenBucket::new), [10, 90, 100, 0]);
}

#[test]
fn replacing_a_shared_limiter_clears_nothing() {
    fn shared<A: Algorithm>(make: impl Fn(Quota) -> A) -> [u64; 2] {
        let clock = clock();
        let limiter_of = |quota| limiter(make(quota), 64, clock.clone()).into_limiter();
        let both = limiter_of(hours(10, 1));
        let (one, other) = (RateLimitLayer::new(policy(Arc::clone(&both))), RateLimitLayer::new(policy(both)));
        one.handle().replace(policy(limiter_of(hours(10, 2)))).unwrap();
        clock.advance(Duration::from_secs(10 * 3_600));
        let mut admitted = [0, 0];
        for _ in 0..1_000 {
            admitted[0] += u64::from(passes(&one, "a"));
            admitted[1] += u64::from(passes(&other, "a"));
        }
        admitted
    }
    assert_eq!(shared(FixedWindow::new), [10, 10]);
    assert_eq!(shared(SlidingWindow::new), [10, 10]);
    assert_eq!(shared(TokenBucket::new), [10, 10]);
}

#[test]
fn two_heirs_enforce_their_own_quotas() {
    fn heirs<A: Algorithm>(make: impl Fn(Quota) -> A) -> [u64; 2] {
        let clock = clock();
        let limiter_of = |quota| limiter(make(quota), 64, clock.clone()).into_limiter();
        let both = limiter_of(hours(100, 1));
        let (one, other) = (RateLimitLayer::new(policy(Arc::clone(&both))), RateLimitLayer::new(policy(both)));
        assert_eq!(passing(&one, "a", 4), 4);
        one.handle().replace(policy(limiter_of(hours(10, 1)))).unwrap();
        other.handle().replace(policy(limiter_of(hours(1_000, 1)))).unwrap();
        [passing(&one, "a", 2_000), passing(&other, "a", 2_000)]
    }
    assert_eq!(heirs(TokenBucket::new), [6, 996]);
    assert_eq!(heirs(FixedWindow::new), [6, 996]);
    assert_eq!(heirs(SlidingWindow::new), [6, 996]);
}

/// A clock that panics while it is broken.
#[derive(Clone)]
struct Fragile(ManualClock, Arc<AtomicBool>);

impl Clock for Fragile {
    fn now(&self) -> Timestamp {
        assert!(!self.1.load(Ordering::SeqCst), "the clock is broken");
        self.0.now()
    }
}

#[test]
fn a_change_that_panics_changes_nothing() {
    let (time, is_broken) = (clock(), Arc::new(AtomicBool::new(false)));
    let clock = Fragile(time, Arc::clone(&is_broken));
    let bucket = |burst| limiter(TokenBucket::new(Quota::per_hour(burst)), 64, clock.clone());
    let layer = RateLimitLayer::new(policy(bucket(10)));
    assert_eq!(passing(&layer, "a", 4), 4);
    let (next, huge) = (bucket(1_000), bucket(1_000_000));
    for broken in [Arc::clone(&next), huge] {
        is_broken.store(true, Ordering::SeqCst);
        let result = catch_unwind(AssertUnwindSafe(|| layer.handle().replace(policy(broken))));
        is_broken.store(false, Ordering::SeqCst);
        assert!(result.is_err());
        assert!(passes(&layer, "a"), "as before");
    }
    assert_eq!(passing(&layer, "a", 20), 4);
    layer.handle().replace(policy(next)).unwrap();
    assert_eq!(passing(&layer, "a", 2_000), 990);
}

#[test]
fn a_new_capacity_is_honoured() {
    let clock = clock();
    let bucket = |capacity| limiter(TokenBucket::new(Quota::per_day(1)), capacity, clock.clone());
    let layer = RateLimitLayer::new(policy(bucket(16)));
    let larger = bucket(10_000);
    let replaced = layer.handle().replace(policy(Arc::clone(&larger))).unwrap();
    assert!(replaced.kept_capacity().is_empty());
    assert_eq!(larger.capacity(), 10_000);
    let first: u64 = (0..5_000).map(|key| u64::from(passes(&layer, &key.to_string()))).sum();
    let again: u64 = (0..5_000).map(|key| u64::from(passes(&layer, &key.to_string()))).sum();
    assert_eq!((first, again, larger.evicted_live()), (5_000, 0, 0));
}

/// A typo sets one table's ticks to a token's time, and is then corrected.
#[test]
fn a_huge_quota_leaves_successors_exact() {
    let clock = clock();
    let bucket = |quota| limiter(TokenBucket::new(quota), 64, clock.clone());
    let huge = Quota::per_second(3_000_000_000).burst(4_000_000_000);
    for quota in [Quota::per_second(10).burst(10), Quota::per_minute(1).burst(1)] {
        let layer = RateLimitLayer::new(policy(bucket(huge)));
        assert!(passes(&layer, "a"));
        for _ in 0..3 {
            layer.handle().replace(policy(bucket(quota))).unwrap();
        }
        let interval = quota.period() / u32::try_from(quota.limit()).unwrap();
        // Shortly before the end of a tick that lasts for one token.
        clock.advance(interval - interval / 100);
        assert_eq!(passing(&layer, "b", 20), quota.max_burst());
        clock.advance(interval - interval / 1_000);
        assert!(!passes(&layer, "b"), "{quota:?}: too early");
        clock.advance(interval / 1_000);
        assert!(passes(&layer, "b"), "{quota:?}");
        assert!(!passes(&layer, "b"));
    }
}

#[test]
fn a_reversed_clock_clears_no_debts() {
    let day = Duration::from_secs(86_400);
    for back in [Duration::from_secs(1), day, 20 * day, 400 * day, 20_000 * day] {
        for burst in [1, 10] {
            let clock = clock();
            let bucket = |burst: u64| {
                let quota = Quota::per_hour(10).burst(burst);
                policy(limiter(TokenBucket::new(quota), 64, clock.clone()))
            };
            let layer = RateLimitLayer::new(bucket(burst));
            assert_eq!(passing(&layer, "a", 50), burst);
            let more = bucket(100 * burst);
            let before = clock.now();
            clock.set(Timestamp::from_nanos(before.as_nanos().saturating_sub(u64::try_from(back.as_nanos()).unwrap())));
            layer.handle().replace(more).unwrap();
            assert!(passing(&layer, "a", 3_000) <= 99 * burst, "{back:?}");
            let window = |period| policy(limiter(FixedWindow::new(hours(10, period)), 64, clock.clone()));
            clock.set(before);
            let layer = RateLimitLayer::new(window(1));
            assert_eq!(passing(&layer, "a", 20), 10);
            clock.set(Timestamp::from_nanos(before.as_nanos().saturating_sub(u64::try_from(back.as_nanos()).unwrap())));
            layer.handle().replace(window(2)).unwrap();
            assert_eq!(passing(&layer, "a", 20), 0, "{back:?}");
        }
    }
}
