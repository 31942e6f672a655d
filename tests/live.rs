//! Limits that change while they are in use: limiters that take over, against a naive model, and layers by their handle.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use http::{Request, Response};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_sluice::algorithm::{Algorithm, FixedWindow, LeakyBucket, SlidingWindow, TokenBucket};
use tower_sluice::store::{MemoryStore, WhenFull};
use tower_sluice::testing::Random;
use tower_sluice::time::{Clock, ManualClock, Timestamp};
use tower_sluice::{
    Ask, Check, Decision, IntoLimiter, LeakyQueue, Limiter, PartitionKey, Policy, PolicyError, Quota, RateLimitLayer,
    RateLimiter,
};

const SECOND: u128 = 1_000_000_000;

/// What a bucket is said to do: a level of tokens that drains at the rate in force. Times are in nanoseconds and levels in
/// parts of a token, as many as make a second's drain whole at each of the rates.
#[derive(Clone, Copy, Default)]
struct Bucket {
    level: u128,
    at: u64,
}

/// Of a token. All limits below are per second and divide it.
const PARTS: u128 = SECOND;

impl Bucket {
    fn drain(&mut self, now: u64, rate: u32) {
        self.level = self.level.saturating_sub(u128::from(now - self.at) * u128::from(rate));
        self.at = now;
    }

    /// Admits, or says how long to wait.
    fn take(&mut self, cost: u32, burst: u32, rate: u32) -> Result<u32, Option<Duration>> {
        let (after, full) = (self.level + u128::from(cost) * PARTS, u128::from(burst) * PARTS);
        if cost > burst {
            Err(None)
        } else if after <= full {
            self.level = after;
            Ok(u32::try_from((full - after) / PARTS).unwrap())
        } else {
            let wait = (after - full).div_ceil(u128::from(rate));
            Err(Some(Duration::from_nanos(u64::try_from(wait).unwrap())))
        }
    }
}

fn decided(check: Check) -> Decision {
    match check {
        Check::Ready(Ok(decision)) => decision,
        other => panic!("memory answers at once, and not {other:?}"),
    }
}

fn clock() -> ManualClock {
    ManualClock::starting_at(Timestamp::from_nanos(1_700_000_000_123_456_789))
}

fn store<A: Algorithm>(algorithm: A, clock: &ManualClock) -> Arc<dyn Limiter> {
    RateLimiter::new(algorithm, MemoryStore::with_capacity(256).with_clock(clock.clone())).into_limiter()
}

fn quota(rate: u32, burst: u32) -> Quota {
    Quota::per_second(rate).burst(burst)
}

/// Rates and bursts that fit the first table, and some that do not: then all debts are carried into another.
#[test]
fn buckets_do_as_the_model_through_all_changes() {
    const RATES: [u32; 8] = [1, 2, 5, 10, 16, 100, 1_000, 50_000];
    const BURSTS: [u32; 7] = [1, 3, 20, 40, 100, 2_000, 100_000];
    for seed in 1..=40_u64 {
        let mut random = Random::new(seed);
        let clock = clock();
        let (mut rate, mut burst) = (random.pick(&RATES), random.pick(&BURSTS));
        let mut limiter = store(TokenBucket::new(quota(rate, burst)), &clock);
        let mut older = Arc::clone(&limiter);
        let mut model: HashMap<u64, Bucket> = HashMap::new();
        for step in 0..3_000 {
            let context = format!("seed {seed}, step {step}, {burst} at {rate} per second");
            let now = clock.now().as_nanos();
            if random.below(100) == 0 {
                model.values_mut().for_each(|bucket| bucket.drain(now, rate));
                (rate, burst) = (random.pick(&RATES), random.pick(&BURSTS));
                let next = if random.below(2) == 0 {
                    store(TokenBucket::new(quota(rate, burst)), &clock)
                } else {
                    store(LeakyBucket::new(quota(rate, burst)), &clock)
                };
                assert!(next.take_over(&*limiter), "{context}");
                older = std::mem::replace(&mut limiter, next);
                continue;
            }
            let id = random.below(24);
            let cost = u32::try_from(1 + random.below(u64::from(burst))).unwrap();
            let cost = random.pick(&[1, 1, 2, cost]);
            let bucket = model.entry(id).or_insert(Bucket { level: 0, at: now });
            bucket.drain(now, rate);
            // Who was on the way to the old one is judged by the new one.
            let asked = if random.below(4) == 0 { &older } else { &limiter };
            let decision = decided(asked.decide(&Ask::charge(&PartitionKey::from(id), cost)));
            match bucket.take(cost, burst, rate) {
                Ok(left) => {
                    assert!(decision.is_allowed() && decision.remaining() == left, "{context}: {decision:?}, {left}");
                    if random.below(6) == 0 {
                        asked.refund(&PartitionKey::from(id), decision.receipt(), cost);
                        bucket.level -= u128::from(cost) * PARTS;
                    }
                }
                Err(wait) => {
                    assert!(!decision.is_allowed(), "{context}: {decision:?} instead of {wait:?}");
                    assert_eq!(decision.retry_after(), wait, "{context}");
                }
            }
            // In eighths of a second, in which all of these rates make whole ticks: nothing is rounded.
            clock.advance(Duration::from_millis(random.pick(&[0, 0, 0, 125, 250, 1_000])));
        }
    }
}

/// Where clocks are read between two ticks, a change forgives nothing, and forgets less than a nanosecond of leak.
#[test]
fn a_thousand_changes_lose_less_than_a_microsecond() {
    let clock = clock();
    let key = PartitionKey::from("key");
    let mut limiter = store(TokenBucket::new(quota(7, 7)), &clock);
    assert!(decided(limiter.decide(&Ask::charge(&key, 7))).is_allowed());
    for step in 0..1_000_u32 {
        clock.advance(Duration::from_nanos(12_345 + u64::from(step)));
        let next = store(TokenBucket::new(quota(7, 7)), &clock);
        assert!(next.take_over(&*limiter));
        limiter = next;
    }
    // A second after the start all would be paid.
    let passed = clock.now().saturating_since(self::clock().now());
    let left = limiter.decide(&Ask::peek(&key, 7)).at_once().unwrap().retry_after().unwrap();
    let late = (passed + left).checked_sub(Duration::from_secs(1)).expect("paid too early");
    assert!(late < Duration::from_micros(1), "{late:?}");
}

/// Frozen clocks: whoever is admitted, and whenever the limit changes, it is as if one limiter had changed.
fn admitted_through_a_change(make: impl Fn(u32) -> Arc<dyn Limiter>, limits: [u32; 2]) -> (u32, u32) {
    const THREADS: u32 = 8;
    let (old, new) = (make(limits[0]), make(limits[1]));
    let (admitted, asked, is_over) = (AtomicU32::new(0), AtomicU32::new(0), AtomicBool::new(false));
    let start = Barrier::new(THREADS as usize + 1);
    let key = PartitionKey::from("contended");
    let before = std::thread::scope(|scope| {
        for number in 0..THREADS {
            let (old, new, key) = (&old, &new, &key);
            let (admitted, asked, is_over, start) = (&admitted, &asked, &is_over, &start);
            scope.spawn(move || {
                start.wait();
                let mut rest = 50;
                while rest > 0 {
                    // Half of them never hear of the new one.
                    let knows = number % 2 == 0 && is_over.load(Ordering::SeqCst);
                    let decision = decided(if knows { new } else { old }.decide(&Ask::charge(key, 1)));
                    asked.fetch_add(1, Ordering::Relaxed);
                    if decision.is_allowed() {
                        admitted.fetch_add(1, Ordering::SeqCst);
                    } else if is_over.load(Ordering::SeqCst) {
                        rest -= 1;
                    }
                }
            });
        }
        start.wait();
        while asked.load(Ordering::Relaxed) < 40 {
            std::hint::spin_loop();
        }
        assert!(new.take_over(&*old));
        let before = admitted.load(Ordering::SeqCst);
        is_over.store(true, Ordering::SeqCst);
        before
    });
    (before, admitted.into_inner())
}

#[test]
fn threads_are_admitted_exactly_as_much_as_the_limit_in_force_lets_them() {
    for round in 0..60_u32 {
        let bucket = |burst| store(TokenBucket::new(Quota::per_day(1).burst(burst)), &clock());
        // Up and down in one table, and up into another.
        for limits in [[200, 700], [2_000, 400 + round], [100, 5_000]] {
            let (before, total) = admitted_through_a_change(bucket, limits);
            // Whom the old limit had admitted is not called back; it may take a moment until it is counted here.
            let most = limits[1].max(if limits[1] < limits[0] { before + 8 } else { 0 });
            assert!((limits[1]..=most).contains(&total), "round {round}, {limits:?}: {total}, {before} before");
        }
        let window = |limit| store(FixedWindow::new(Quota::per_day(limit)), &clock());
        let (_, total) = admitted_through_a_change(window, [200, 700]);
        assert!((200..=700).contains(&total), "round {round}: {total}");
    }
}

/// A lowered limit leaves nothing to those who have used more, and says exactly when there is something again.
#[test]
fn who_has_used_more_than_the_new_burst_waits_until_it_is_paid() {
    for when_full in [WhenFull::ForgetLeast, WhenFull::Refuse, WhenFull::Overflow] {
        let clock = clock();
        let store = |algorithm| {
            let store = MemoryStore::with_capacity(64).when_full(when_full).with_clock(clock.clone());
            RateLimiter::new(algorithm, store)
        };
        let generous = store(TokenBucket::new(quota(10, 100)));
        let key = PartitionKey::from("key");
        let spent = decided(generous.decide(&Ask::charge(&key, 100)));
        let strict = store(TokenBucket::new(quota(1, 5)));
        assert!(strict.take_over(&generous));
        let refused = decided(strict.decide(&Ask::charge(&key, 1)));
        assert_eq!((refused.remaining(), refused.retry_after()), (0, Some(Duration::from_secs(96))));
        assert_eq!(refused.reset_after(), Duration::from_secs(100));
        assert!(decided(strict.decide(&Ask::charge(&PartitionKey::from("other"), 5))).is_allowed());
        assert!(!decided(strict.decide(&Ask::charge(&PartitionKey::from("other"), 1))).is_allowed());
        // What was charged before is given back after, all of it.
        strict.refund(&key, spent.receipt(), 100);
        assert_eq!(decided(strict.decide(&Ask::charge(&key, 0))).remaining(), 5);
        assert_eq!(strict.store().size_in_bytes(), generous.store().size_in_bytes());
    }
}

/// What a fixed window is said to do, and when its present window ends.
#[derive(Clone, Copy)]
struct Window {
    used: u32,
    ends: u64,
}

impl Window {
    fn roll(&mut self, now: u64, period: u64) {
        if now >= self.ends {
            *self = Self { used: 0, ends: (now / period + 1) * period };
        }
    }
}

#[test]
fn windows_do_as_the_model_through_all_changes() {
    for seed in 1..=40_u64 {
        let mut random = Random::new(seed);
        let clock = clock();
        let mut quota = (5, 1_000);
        let of =
            |(limit, millis): (u32, u64)| FixedWindow::new(Quota::new(limit, Duration::from_millis(millis)).unwrap());
        let mut limiter = store(of(quota), &clock);
        let mut model: HashMap<u64, Window> = HashMap::new();
        for step in 0..3_000 {
            let (now, period) = (clock.now().as_nanos(), quota.1 * 1_000_000);
            let context = format!("seed {seed}, step {step}, {quota:?}");
            if random.below(60) == 0 {
                quota = (random.pick(&[1, 3, 5, 50]), random.pick(&[500, 1_000, 1_000, 60_000]));
                let next = store(of(quota), &clock);
                assert!(next.take_over(&*limiter), "{context}");
                limiter = next;
                for window in model.values_mut() {
                    window.roll(now, period);
                    window.ends = (now / (quota.1 * 1_000_000) + 1) * (quota.1 * 1_000_000);
                }
                continue;
            }
            let id = random.below(24);
            let window = model.entry(id).or_insert(Window { used: 0, ends: 0 });
            window.roll(now, period);
            let decision = decided(limiter.decide(&Ask::charge(&PartitionKey::from(id), 1)));
            let wait = (window.used >= quota.0).then(|| Duration::from_nanos(window.ends - now));
            assert_eq!((decision.is_allowed(), decision.retry_after()), (wait.is_none(), wait), "{context}");
            window.used += u32::from(wait.is_none());
            assert_eq!(decision.remaining(), quota.0.saturating_sub(window.used), "{context}");
            clock.advance(Duration::from_millis(random.pick(&[0, 0, 1, 130, 600])));
        }
    }
}

#[test]
fn sliding_windows_go_on_with_their_estimate() {
    let clock = ManualClock::starting_at(Timestamp::from_nanos(100_000_000_000));
    let key = PartitionKey::from("key");
    let of =
        |limit, seconds| store(SlidingWindow::new(Quota::new(limit, Duration::from_secs(seconds)).unwrap()), &clock);
    let first = of(12, 1);
    assert!(decided(first.decide(&Ask::charge(&key, 9))).is_allowed());
    clock.advance(Duration::from_millis(1_250));
    assert!(decided(first.decide(&Ask::charge(&key, 5))).is_allowed());
    // 9 × ¾ + 5 = 11.75.
    let fewer = of(10, 1);
    assert!(fewer.take_over(&*first));
    assert_eq!(decided(fewer.decide(&Ask::charge(&key, 0))).remaining(), 0);
    let longer = of(20, 60);
    assert!(longer.take_over(&*fewer));
    assert_eq!(decided(longer.decide(&Ask::charge(&key, 0))).remaining(), 8);
    // Nobody came meanwhile: as it was when the quota changed, and not as it would be now.
    let short = of(20, 1);
    assert!(short.take_over(&*longer));
    clock.advance(Duration::from_secs(3));
    assert_eq!(decided(short.decide(&Ask::charge(&key, 0))).remaining(), 20);
}

#[test]
fn limiters_of_another_kind_start_anew() {
    let clock = clock();
    let bucket = store(TokenBucket::new(Quota::per_minute(1)), &clock);
    let window = store(FixedWindow::new(Quota::per_minute(1)), &clock);
    let sliding = store(SlidingWindow::new(Quota::per_minute(1)), &clock);
    assert!(!window.take_over(&*bucket) && !bucket.take_over(&*window) && !sliding.take_over(&*window));
    let used = store(TokenBucket::new(Quota::per_minute(1)), &clock);
    assert!(decided(used.decide(&Ask::charge(&PartitionKey::SHARED, 1))).is_allowed());
    assert!(!used.take_over(&*bucket), "it has debts of its own");
    assert!(!decided(used.decide(&Ask::charge(&PartitionKey::SHARED, 1))).is_allowed());
    assert!(used.take_over(&*used), "from itself, there is nothing to take over");
}

type Answer = Response<tower_sluice::ResponseBody<String>>;

async fn call<S>(service: &mut S, path: &str) -> Answer
where
    S: Service<Request<()>, Response = Answer, Error = std::convert::Infallible>,
{
    let request = Request::builder().uri(path).body(()).unwrap();
    service.ready().await.unwrap().call(request).await.unwrap()
}

fn hello()
-> impl Service<Request<()>, Response = Response<String>, Error = std::convert::Infallible, Future: Send> + Clone {
    service_fn(|_: Request<()>| async { Ok(Response::new("hello".to_owned())) })
}

/// All services go by it: those made before, and those made after, with whatever settings.
#[tokio::test]
async fn a_layer_changes_its_services_at_once_and_keeps_what_was_used() {
    let clock = clock();
    let policy = |limit| Policy::new("p", store(TokenBucket::new(Quota::per_hour(limit)), &clock));
    let layer = RateLimitLayer::new(policy(3));
    let mut before = layer.layer(hello());
    let mut other = layer.clone().layer(hello());
    for left in [2, 1, 0] {
        let answer = call(&mut before, "/").await;
        assert_eq!(answer.headers()["ratelimit"].to_str().unwrap().split(';').nth(1), Some(&*format!("r={left}")));
    }
    assert_eq!(call(&mut before, "/").await.status(), 503);

    let limits = layer.handle();
    assert_eq!(limits.replace(policy(10)).unwrap().started_anew(), [""; 0]);
    let answer = call(&mut before, "/").await;
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["ratelimit-policy"], "\"p\";q=10;w=3600");
    let answer = call(&mut other, "/").await;
    assert!(answer.headers()["ratelimit"].to_str().unwrap().starts_with("\"p\";r=5"), "{answer:?}");
    let mut after = layer.layer(hello());
    assert_eq!(call(&mut after, "/").await.headers()["ratelimit"].to_str().unwrap().split(';').nth(1), Some("r=4"));

    // What is refused changes nothing.
    let error = limits.replace([policy(20), policy(20)]).unwrap_err();
    assert_eq!(error, PolicyError::DuplicateName { name: "p".to_owned() });
    assert!(matches!(limits.replace(policy(20).cost(21)), Err(PolicyError::CostAboveBurst { .. })));
    assert!(matches!(limits.replace(Vec::new()), Err(PolicyError::NoPolicy)));
    assert_eq!(call(&mut before, "/").await.headers()["ratelimit-policy"], "\"p\";q=10;w=3600");

    // Lowered: no more is granted than what is left of the new burst.
    limits.replace(policy(4)).unwrap();
    assert_eq!(call(&mut before, "/").await.status(), 503);
}

#[tokio::test]
async fn costs_conditions_and_shadow_change_and_counts_go_on() {
    let clock = clock();
    let policy = || Policy::new("p", store(TokenBucket::new(Quota::per_hour(4)), &clock));
    let layer = RateLimitLayer::new(policy().shadow());
    let mut service = layer.layer(hello());
    for _ in 0..6 {
        assert_eq!(call(&mut service, "/").await.status(), 200);
    }
    assert_eq!(layer.shadow_denied("p"), Some(2));
    let limits = layer.handle();
    limits.replace(policy()).unwrap();
    assert_eq!(call(&mut service, "/").await.status(), 503);
    assert_eq!(layer.shadow_denied("p"), Some(2));
    limits.replace(policy().when(|head| head.uri().path() == "/api")).unwrap();
    assert_eq!(call(&mut service, "/").await.status(), 200);
    assert_eq!(call(&mut service, "/api").await.status(), 503);
    clock.advance(Duration::from_secs(1_800));
    limits.replace(policy().cost(3)).unwrap();
    assert_eq!(call(&mut service, "/").await.headers()["retry-after"], "900");
    limits.replace([policy(), Policy::new("q", store(FixedWindow::new(Quota::per_day(1)), &clock))]).unwrap();
    assert_eq!(layer.shadow_denied("q"), Some(0));
    assert_eq!(call(&mut service, "/").await.status(), 200);

    // Of another kind, and the very same limiter.
    let window = store(FixedWindow::new(Quota::per_hour(4)), &clock);
    let replaced = limits.replace(Policy::new("p", Arc::clone(&window))).unwrap();
    assert_eq!(replaced.started_anew(), ["p"]);
    assert_eq!(call(&mut service, "/").await.status(), 200);
    let replaced = limits.replace(Policy::new("p", window).cost(3)).unwrap();
    assert_eq!(replaced.started_anew(), [""; 0]);
    assert_eq!(call(&mut service, "/").await.status(), 200);
    assert_eq!(call(&mut service, "/").await.status(), 503);
}

/// An emergency and its end, by limiters that are kept.
#[tokio::test]
async fn a_limiter_that_was_in_force_before_is_in_force_again() {
    let clock = clock();
    let kept = |burst| {
        Arc::new(RateLimiter::new(
            TokenBucket::new(Quota::per_hour(burst)),
            MemoryStore::with_capacity(1_000 * burst as usize).with_clock(clock.clone()),
        ))
    };
    let (usual, strict) = (kept(10), kept(2));
    let layer = RateLimitLayer::new(Policy::new("p", Arc::clone(&usual)));
    let (mut service, limits) = (layer.layer(hello()), layer.handle());
    assert_eq!(call(&mut service, "/").await.status(), 200);
    for (limiter, admitted) in [(&strict, 1), (&usual, 8), (&strict, 0)] {
        // Also by two policies that share it.
        let replaced = limits
            .replace([Policy::new("p", Arc::clone(limiter)), Policy::new("q", Arc::clone(limiter)).cost_fn(|_| 0)]);
        assert_eq!(replaced.unwrap().started_anew(), [""; 0]);
        for _ in 0..admitted {
            assert_eq!(call(&mut service, "/").await.status(), 200);
        }
        assert_eq!(call(&mut service, "/").await.status(), 503);
        // The table is the first one's.
        assert_eq!(limiter.store().capacity(), 10_000);
    }

    let queue = |capacity| LeakyQueue::new(Quota::per_hour(1)).capacity(capacity).max_wait(Duration::from_secs(86_400));
    let [usual, strict] = [10, 2].map(|capacity| Arc::new(queue(capacity)));
    let waiting = |queue: &Arc<LeakyQueue>| queue.decide(&Ask::charge(&PartitionKey::SHARED, 1));
    let _leaves = waiting(&usual);
    let _waits: Vec<_> = (0..3).map(|_| waiting(&usual)).collect();
    assert!(strict.take_over(&*usual));
    assert_eq!(strict.waiting(), 2);
    assert!(usual.take_over(&*strict));
    let _more = waiting(&usual);
    assert_eq!((usual.waiting(), strict.waiting()), (3, 3));
}

/// One that waits is told by the policies that it came under, in turn by the new rate; the next goes by the new ones.
#[tokio::test(start_paused = true)]
async fn who_waits_finishes_under_the_policies_that_it_came_under() {
    let queue = |per_hour| LeakyQueue::new(Quota::per_hour(per_hour)).capacity(5).max_wait(Duration::from_secs(86_400));
    let layer = RateLimitLayer::new(Policy::new("before", queue(1)));
    let mut service = layer.layer(hello());
    assert_eq!(call(&mut service, "/").await.status(), 200);
    let limits = layer.handle();
    let named =
        |answer: &Answer| answer.headers()["ratelimit-policy"].to_str().unwrap().split(';').next().map(str::to_owned);

    // Of another name, it begins anew; who waits in the old one waits on, in the old one.
    let waits = tokio::spawn({
        let mut service = service.clone();
        async move { call(&mut service, "/").await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    limits.replace(Policy::new("p", queue(1))).unwrap();
    assert_eq!(named(&call(&mut service, "/").await).as_deref(), Some("\"p\""));
    assert_eq!(named(&waits.await.unwrap()).as_deref(), Some("\"before\""));

    // Of the same name, it leaves as soon as the new rate lets it.
    let waits = tokio::spawn({
        let mut service = service.clone();
        async move { (call(&mut service, "/").await, tokio::time::Instant::now()) }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    let changed = tokio::time::Instant::now();
    assert_eq!(limits.replace(Policy::new("p", queue(3_600))).unwrap().started_anew(), [""; 0]);
    let (answer, left) = waits.await.unwrap();
    assert_eq!(answer.status(), 200);
    assert!(left - changed <= Duration::from_millis(1_001), "{:?}", left - changed);
    limits.replace(Policy::new("p", TokenBucket::new(Quota::per_hour(2)))).unwrap();
    assert_eq!(call(&mut service, "/").await.headers()["ratelimit-policy"], "\"p\";q=2;w=3600");
}

/// Several policies, one of which refuses: what the others were charged before a change is given back after it.
#[tokio::test(start_paused = true)]
async fn what_was_charged_under_the_old_policies_is_given_back_under_the_new_ones() {
    let clock = clock();
    let closing = Arc::new(LeakyQueue::new(Quota::per_hour(1)).max_wait(Duration::from_secs(86_400)));
    let bucket = |limit| Policy::new("bucket", store(TokenBucket::new(Quota::per_hour(limit)), &clock));
    let layer = RateLimitLayer::new([bucket(10), Policy::new("queue", Arc::clone(&closing))]);
    let mut service = layer.layer(hello());
    assert_eq!(call(&mut service, "/").await.status(), 200);
    let waits = tokio::spawn({
        let mut service = service.clone();
        async move { call(&mut service, "/").await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    layer.handle().replace(bucket(4)).unwrap();
    let left = |answer: &Answer| answer.headers()["ratelimit"].to_str().unwrap().split(';').nth(1).map(str::to_owned);
    // Two are used, and a third by this one.
    assert_eq!(left(&call(&mut service, "/").await).as_deref(), Some("r=1"));
    closing.close();
    assert_eq!(waits.await.unwrap().status(), 503);
    assert_eq!(left(&call(&mut service, "/").await).as_deref(), Some("r=1"), "one came back, and one is used");
}

/// A window that was lowered while more was used tells a wait that is exact.
#[test]
fn windows_that_were_lowered_tell_exact_waits() {
    fn check<A: Algorithm>(before: &A, after: &A, random: &mut Random, context: &str) {
        let mut now = 1_000_000_000_000;
        let mut state = None;
        for _ in 0..random.below(6) {
            now += random.below(1_500_000_000);
            let cost = u32::try_from(1 + random.below(40)).unwrap();
            state = before.decide(state, Timestamp::from_nanos(now), cost).1.or(state);
        }
        let decide = |at| after.decide(state, Timestamp::from_nanos(at), 1).0;
        let Some(wait) = decide(now).retry_after() else { return };
        let then = now + u64::try_from(wait.as_nanos()).unwrap();
        assert!(decide(then).is_allowed() && !decide(then - 1).is_allowed(), "{context}: {wait:?}");
    }
    for seed in 1..=2_000_u64 {
        let mut random = Random::new(seed);
        let limit = u32::try_from(1 + random.below(50)).unwrap();
        let (before, after) = (Quota::per_second(100), Quota::per_second(limit));
        check(&SlidingWindow::new(before), &SlidingWindow::new(after), &mut random, &format!("sliding, seed {seed}"));
        check(&FixedWindow::new(before), &FixedWindow::new(after), &mut random, &format!("fixed, seed {seed}"));
    }
}
