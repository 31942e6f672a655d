//! Support peeks at a key and sees when the next unit comes.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::algorithm::{Algorithm, FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::key::User;
use tower_sluice::limiter::{Answer, Ask, Description, Mode, Terms};
use tower_sluice::time::ManualClock;
use tower_sluice::{Decision, LeakyQueue, Limiter, LimitsHandle, Policy, Quota, RateLimitLayer};

use super::stack::{clock, timed};

const TICK: Duration = Duration::from_micros(1);

fn layer(algorithm: impl Algorithm, own_quota: bool, clock: &ManualClock) -> RateLimitLayer {
    let quota = algorithm.quota();
    let policy = Policy::new("api", timed(algorithm, clock)).key(User::key());
    RateLimitLayer::new(if own_quota { policy.quota_fn(move |_| Some(quota)) } else { policy })
}

fn passes_in(limits: &LimitsHandle) -> Duration {
    let status = limits.peek("api", "alice").now_or_never().unwrap().unwrap();
    status.passes_in().expect("time restores the next unit")
}

fn charge(limits: &LimitsHandle, units: u64) {
    let mut request = http::Request::new(());
    request.extensions_mut().insert(User::new("alice"));
    let charged = limits.charge("api", &request, units).now_or_never().unwrap();
    let _ = charged.unwrap();
}

/// A unit is there at the time that the peek showed, and not before.
fn is_true(algorithm: impl Algorithm, own_quota: bool, units: u64) {
    let clock = clock();
    let layer = layer(algorithm, own_quota, &clock);
    let limits = layer.handle();
    charge(&limits, units);
    let wait = passes_in(&limits);
    assert!(wait > TICK, "{units} units: {wait:?}");
    clock.advance(wait - TICK);
    let left = passes_in(&limits);
    assert!(!left.is_zero() && left <= 2 * TICK, "{units} units: {left:?} after {wait:?} without a tick");
    clock.advance(2 * TICK);
    assert_eq!(passes_in(&limits), Duration::ZERO, "{units} units, after {wait:?}");
}

/// It showed the end of a sliding window, 19 hours late, and no time at all for keys with their own quotas.
#[test]
fn a_look_shows_the_next_units_time() {
    let quota = Quota::per_day(100);
    // Used up, and beyond: the other units are owed, and time pays them.
    for units in [100, 130, 1_234] {
        for own_quota in [false, true] {
            is_true(TokenBucket::new(quota), own_quota, units);
            is_true(TokenBucket::new(quota.burst(7)), own_quota, units);
            is_true(FixedWindow::new(quota), own_quota, units);
            is_true(SlidingWindow::new(quota), own_quota, units);
        }
        #[cfg(feature = "calendar")]
        is_true(tower_sluice::CalendarWindow::monthly(100), false, units);
    }
}

/// Half the limit is used at a window's end, and the other half in the next one. The next unit comes as the first half
/// fades, not when the window ends.
#[test]
fn a_sliding_look_shows_the_fading() {
    let clock = clock();
    let layer = layer(SlidingWindow::new(Quota::per_hour(100)), false, &clock);
    let limits = layer.handle();
    charge(&limits, 50);
    clock.advance(Duration::from_secs(3_600));
    let left = limits.peek("api", "alice").now_or_never().unwrap().unwrap().decision().remaining();
    charge(&limits, left);
    let wait = passes_in(&limits);
    assert!(wait <= Duration::from_secs(72), "a unit of fifty in an hour: {wait:?}");
}

/// Support saw the ban's end, at which the limit was still used up.
#[test]
fn a_banned_keys_look_shows_the_pass() {
    let clock = clock();
    let layer = layer(TokenBucket::new(Quota::per_day(2)), false, &clock);
    let limits = layer.handle();
    charge(&limits, 2);
    let ban = |seconds| {
        let _ = limits.ban("api", "alice", Duration::from_secs(seconds), "tests").now_or_never().unwrap().unwrap();
    };
    ban(10);
    // In steps of the table's clock.
    assert_eq!(passes_in(&limits).as_millis(), 43_200_000);
    ban(60_000);
    assert_eq!(passes_in(&limits).as_millis(), 60_000_000);
}

/// A queue whose customer has its own pace: the peek showed nothing.
#[tokio::test(start_paused = true)]
async fn a_full_queue_shows_its_next_place() {
    let queue = LeakyQueue::new(Quota::per_minute(1)).max_queue(1).max_wait(Duration::from_secs(600));
    let pace = Quota::per(1, Duration::from_secs(10));
    let layer = RateLimitLayer::new(Policy::new("api", queue).key(User::key()).quota_fn(move |_| Some(pace)));
    let request = || {
        let mut request = http::Request::new(());
        request.extensions_mut().insert(User::new("alice"));
        request
    };
    let send = || {
        let handler = service_fn(|_: http::Request<()>| async { Ok::<_, Infallible>(http::Response::new(())) });
        layer.layer(handler).oneshot(request())
    };
    assert_eq!(send().await.unwrap().status(), 200);
    let mut waiting = Box::pin(send());
    assert!(waiting.as_mut().now_or_never().is_none(), "it waits for its turn");
    let status = layer.handle().peek("api", &request()).await.unwrap();
    let wait = status.passes_in().expect("its pace is known");
    assert!(status.decision().remaining() == 0 && !wait.is_zero() && wait <= Duration::from_secs(10), "{status:?}");
    tokio::time::advance(wait).await;
    assert_eq!(waiting.await.unwrap().status(), 200);
    assert!(Box::pin(send()).now_or_never().is_none(), "it waits, and is not rejected");
}

/// A limiter that reports when the key owes nothing, but not when the next unit is there.
struct TellsReset(u64);

impl Limiter for TellsReset {
    fn decide(&self, _: &Ask<'_>) -> Answer {
        Decision::allow(self.0, 0).with_reset_after(Duration::from_secs(60)).into()
    }

    fn describe(&self) -> Description {
        Description::new().advertising(Terms::bucket(Quota::per_minute(3))).answering(Mode::Peek)
    }
}

#[test]
fn the_next_unit_follows_from_the_reset() {
    // Three units take a minute. If the limit is not the bucket's, nothing is known.
    for (limit, wait) in [(3, Some(20)), (4, None)] {
        let layer = RateLimitLayer::new(Policy::new("api", Arc::new(TellsReset(limit))).key(User::key()));
        let status = layer.handle().peek("api", "alice").now_or_never().unwrap().unwrap();
        assert_eq!(status.passes_in(), wait.map(Duration::from_secs));
    }
}
