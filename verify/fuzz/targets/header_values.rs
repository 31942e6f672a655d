//! For every quota, cost and time, a response's fields parse, and a client that waits for the advertised time is
//! admitted.
#![no_main]

use std::time::Duration;

use arbitrary::Arbitrary;
use http::{Request, StatusCode};
use libfuzzer_sys::fuzz_target;
use tower_sluice::algorithm::{FixedWindow, LeakyBucket, SlidingWindow, TokenBucket};
use tower_sluice::key::HeaderKey;
use tower_sluice::store::MemoryStore;
use tower_sluice::time::{ManualClock, Timestamp};
use tower_sluice::limiter::IntoLimiter;
use tower_sluice::{Limiter, Policy, Quota, RateLimitLayer, RateLimiter};
use tower_sluice_fuzz::layer::{check_rate_limit_fields, send, wait};

#[derive(Arbitrary, Debug)]
struct Case<'a> {
    algorithm: Algorithm,
    name: &'a str,
    limit: u64,
    period: Unit,
    burst: Option<u64>,
    start: u64,
    steps: Vec<Step>,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Algorithm {
    TokenBucket,
    LeakyBucket,
    FixedWindow,
    SlidingWindow,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Unit {
    Nanos(u64),
    Millis(u16),
    Seconds(u32),
}

#[derive(Arbitrary, Debug)]
struct Step {
    passes: Unit,
    key: u8,
    cost: u64,
    waits_exactly: bool,
}

impl From<Unit> for Duration {
    fn from(unit: Unit) -> Self {
        match unit {
            Unit::Nanos(nanos) => Self::from_nanos(nanos),
            Unit::Millis(millis) => Self::from_millis(millis.into()),
            Unit::Seconds(seconds) => Self::from_secs(seconds.into()),
        }
    }
}

fn limiter(algorithm: Algorithm, quota: Quota, clock: &ManualClock) -> std::sync::Arc<dyn Limiter> {
    macro_rules! with_clock {
        ($algorithm:expr) => {
            RateLimiter::new($algorithm, MemoryStore::with_capacity(1_024).with_clock(clock.clone())).into_limiter()
        };
    }
    match algorithm {
        Algorithm::TokenBucket => with_clock!(TokenBucket::new(quota)),
        Algorithm::LeakyBucket => with_clock!(LeakyBucket::new(quota)),
        Algorithm::FixedWindow => with_clock!(FixedWindow::new(quota)),
        Algorithm::SlidingWindow => with_clock!(SlidingWindow::new(quota)),
    }
}

fuzz_target!(|case: Case<'_>| {
    let Ok(mut quota) = Quota::try_per(case.limit % (Quota::MAX_UNITS + 1), case.period.into()) else { return };
    if let (Some(burst), Algorithm::TokenBucket | Algorithm::LeakyBucket) = (case.burst, case.algorithm) {
        let Ok(with_burst) = quota.try_burst(burst % (Quota::MAX_UNITS + 1)) else { return };
        quota = with_burst;
    }
    // The memory store's times wrap at 2^61 nanoseconds, 73 years.
    let end = 1 << 61;
    let clock = ManualClock::starting_at(Timestamp::from_nanos(case.start % end));
    let mut now = case.start % end;
    let policy = Policy::new(case.name, limiter(case.algorithm, quota, &clock))
        .key(HeaderKey::from_static("x-api-key"))
        .cost_fn(|head| head.headers()["x-cost"].to_str().unwrap().parse().unwrap());
    let Ok(layer) = RateLimitLayer::try_new(policy) else { return };

    for step in case.steps.iter().take(32) {
        let ask = || {
            let request = Request::builder().header("x-api-key", u16::from(step.key % 4)).header("x-cost", step.cost);
            let answer = send(&layer, request.body(()).unwrap()).expect("memory answers at once");
            check_rate_limit_fields(answer.headers());
            answer
        };
        let mut advance =
            |span: Duration| match u64::try_from(span.as_nanos()).ok().and_then(|span| now.checked_add(span)) {
                Some(later) if later < end => {
                    now = later;
                    clock.advance(span);
                    true
                }
                _ => false,
            };
        if !advance(step.passes.into()) {
            return;
        }
        let answer = ask();
        let advertised = wait(answer.headers());
        if answer.status() == StatusCode::OK {
            assert_eq!(advertised, None);
            continue;
        }
        assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS);
        // A lone client that waits for exactly the advertised time is admitted. (Both values stay below 24.8 days.)
        let Some((seconds, micros)) = advertised else { continue };
        let span = if step.waits_exactly { Duration::from_micros(micros) } else { Duration::from_secs(seconds) };
        if seconds < 2_147_483 && advance(span) {
            assert_eq!(ask().status(), StatusCode::OK, "after {span:?} at {now}");
        }
    }
});
