//! Live changes through layer handles. `tests/store/change_*.rs` test how limiters change.

use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_sluice::algorithm::{Algorithm, FixedWindow, TokenBucket};
use tower_sluice::limiter::{Ask, IntoLimiter};
use tower_sluice::policy::PolicyError;
use tower_sluice::store::MemoryStore;
use tower_sluice::time::{ManualClock, Timestamp};
use tower_sluice::{LeakyQueue, Limiter, PartitionKey, Policy, Quota, RateLimitLayer, RateLimiter};

fn clock() -> ManualClock {
    ManualClock::starting_at(Timestamp::from_nanos(1_700_000_000_123_456_789))
}

fn store<A: Algorithm>(algorithm: A, clock: &ManualClock) -> Arc<dyn Limiter> {
    RateLimiter::new(algorithm, MemoryStore::with_capacity(256).with_clock(clock.clone())).into_limiter()
}

type Answer = Response<tower_sluice::layer::ResponseBody<String>>;

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

/// A change applies to all of a layer's services, no matter when they were made.
#[tokio::test]
async fn a_change_keeps_what_was_used() {
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
    assert_eq!(limits.replace(policy(10)).unwrap().not_inherited(), [""; 0]);
    let answer = call(&mut before, "/").await;
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["ratelimit-policy"], "\"p\";q=10;w=3600");
    let answer = call(&mut other, "/").await;
    assert!(answer.headers()["ratelimit"].to_str().unwrap().starts_with("\"p\";r=5"), "{answer:?}");
    let mut after = layer.layer(hello());
    assert_eq!(call(&mut after, "/").await.headers()["ratelimit"].to_str().unwrap().split(';').nth(1), Some("r=4"));

    // A rejected policy set changes nothing.
    let error = limits.replace([policy(20), policy(20)]).unwrap_err();
    assert!(matches!(error, PolicyError::DuplicateName { name, .. } if name == "p"));
    assert!(matches!(limits.replace(policy(20).cost(21)), Err(PolicyError::CostAboveBurst { .. })));
    assert!(matches!(limits.replace(Vec::<Policy>::new()), Err(PolicyError::NoPolicy)));
    assert_eq!(call(&mut before, "/").await.headers()["ratelimit-policy"], "\"p\";q=10;w=3600");

    // After the limit is lowered, the key gets at most the rest of the new burst.
    limits.replace(policy(4)).unwrap();
    assert_eq!(call(&mut before, "/").await.status(), 503);
}

/// The counters keep their values.
#[tokio::test]
async fn costs_conditions_and_shadows_change_live() {
    let clock = clock();
    let policy = || Policy::new("p", store(TokenBucket::new(Quota::per_hour(4)), &clock));
    let layer = RateLimitLayer::new(policy().shadow());
    let mut service = layer.layer(hello());
    for _ in 0..6 {
        assert_eq!(call(&mut service, "/").await.status(), 200);
    }
    assert_eq!(layer.shadow_rejected("p"), Some(2));
    let limits = layer.handle();
    limits.replace(policy()).unwrap();
    assert_eq!(call(&mut service, "/").await.status(), 503);
    assert_eq!(layer.shadow_rejected("p"), Some(2));
    limits.replace(policy().when(|head| head.uri().path() == "/api")).unwrap();
    assert_eq!(call(&mut service, "/").await.status(), 200);
    assert_eq!(call(&mut service, "/api").await.status(), 503);
    clock.advance(Duration::from_secs(1_800));
    limits.replace(policy().cost(3)).unwrap();
    assert_eq!(call(&mut service, "/").await.headers()["retry-after"], "900");
    limits.replace([policy(), Policy::new("q", store(FixedWindow::new(Quota::per_day(1)), &clock))]).unwrap();
    assert_eq!(layer.shadow_rejected("q"), Some(0));
    assert_eq!(call(&mut service, "/").await.status(), 200);

    // A limiter of another kind, and then the first one again.
    let window = store(FixedWindow::new(Quota::per_hour(4)), &clock);
    let replaced = limits.replace(Policy::new("p", Arc::clone(&window))).unwrap();
    assert_eq!(replaced.not_inherited(), ["p"]);
    assert_eq!(call(&mut service, "/").await.status(), 200);
    let replaced = limits.replace(Policy::new("p", window).cost(3)).unwrap();
    assert_eq!(replaced.not_inherited(), [""; 0]);
    assert_eq!(call(&mut service, "/").await.status(), 200);
    assert_eq!(call(&mut service, "/").await.status(), 503);
}

/// An emergency limit replaces the usual one and back again; both limiters are kept.
#[tokio::test]
async fn a_former_limiter_applies_again() {
    let clock = clock();
    let kept = |burst| {
        Arc::new(RateLimiter::new(
            TokenBucket::new(Quota::per_hour(burst)),
            MemoryStore::with_capacity(1_000 * usize::try_from(burst).unwrap()).with_clock(clock.clone()),
        ))
    };
    let (usual, strict) = (kept(10), kept(2));
    let layer = RateLimitLayer::new(Policy::new("p", Arc::clone(&usual)));
    let (mut service, limits) = (layer.layer(hello()), layer.handle());
    assert_eq!(call(&mut service, "/").await.status(), 200);
    for (limiter, admitted) in [(&strict, 1), (&usual, 8), (&strict, 0)] {
        // Two policies share the limiter.
        let replaced = limits
            .replace([Policy::new("p", Arc::clone(limiter)), Policy::new("q", Arc::clone(limiter)).cost_fn(|_| 0)]);
        assert_eq!(replaced.unwrap().not_inherited(), [""; 0]);
        for _ in 0..admitted {
            assert_eq!(call(&mut service, "/").await.status(), 200);
        }
        assert_eq!(call(&mut service, "/").await.status(), 503);
        // Each limiter has its own capacity.
        assert_eq!(limiter.capacity(), if Arc::ptr_eq(limiter, &usual) { 10_000 } else { 2_000 });
    }

    let queue =
        |capacity| LeakyQueue::new(Quota::per_hour(1)).max_queue(capacity).max_wait(Duration::from_secs(86_400));
    let [usual, strict] = [10, 2].map(|capacity| Arc::new(queue(capacity)));
    let waiting = |queue: &Arc<LeakyQueue>| queue.decide(&Ask::charge(&PartitionKey::SHARED, 1));
    let _leaves = waiting(&usual);
    let _waits: Vec<_> = (0..3).map(|_| waiting(&usual)).collect();
    assert!(strict.inherit(&*usual).is_some());
    assert_eq!(strict.waiting(), 2);
    assert!(usual.inherit(&*strict).is_some());
    let _more = waiting(&usual);
    assert_eq!((usual.waiting(), strict.waiting()), (3, 3));
}

/// The waiter's departure follows the new rate. The next request uses the new policies.
#[tokio::test(start_paused = true)]
async fn a_waiter_is_answered_under_its_policies() {
    let queue =
        |per_hour| LeakyQueue::new(Quota::per_hour(per_hour)).max_queue(5).max_wait(Duration::from_secs(86_400));
    let layer = RateLimitLayer::new(Policy::new("before", queue(1)));
    let mut service = layer.layer(hello());
    assert_eq!(call(&mut service, "/").await.status(), 200);
    let limits = layer.handle();
    let named =
        |answer: &Answer| answer.headers()["ratelimit-policy"].to_str().unwrap().split(';').next().map(str::to_owned);

    // A policy with a new name starts afresh, so the waiter stays in the old queue.
    let waits = tokio::spawn({
        let mut service = service.clone();
        async move { call(&mut service, "/").await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    limits.replace(Policy::new("p", queue(1))).unwrap();
    assert_eq!(named(&call(&mut service, "/").await).as_deref(), Some("\"p\""));
    assert_eq!(named(&waits.await.unwrap()).as_deref(), Some("\"before\""));

    // A policy with the old name inherits, so the waiter departs as soon as the new rate allows.
    let waits = tokio::spawn({
        let mut service = service.clone();
        async move { (call(&mut service, "/").await, tokio::time::Instant::now()) }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    let changed = tokio::time::Instant::now();
    assert_eq!(limits.replace(Policy::new("p", queue(3_600))).unwrap().not_inherited(), [""; 0]);
    let (answer, left) = waits.await.unwrap();
    assert_eq!(answer.status(), 200);
    assert!(left - changed <= Duration::from_millis(1_001), "{:?}", left - changed);
    limits.replace(Policy::new("p", TokenBucket::new(Quota::per_hour(2)))).unwrap();
    assert_eq!(call(&mut service, "/").await.headers()["ratelimit-policy"], "\"p\";q=2;w=3600");
}

/// Requests wait in a queue that two changes have replaced.
#[tokio::test(start_paused = true)]
async fn queues_that_were_replaced_are_closed() {
    let queue = |name| Policy::new(name, LeakyQueue::new(Quota::per_hour(1)).max_wait(Duration::from_secs(86_400)));
    let layer = RateLimitLayer::new(queue("a"));
    let (mut service, limits) = (layer.layer(hello()), layer.handle());
    assert_eq!(call(&mut service, "/").await.status(), 200);
    let waits = tokio::spawn({
        let mut service = service.clone();
        async move { call(&mut service, "/").await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    limits.replace(queue("b")).unwrap();
    limits.replace(queue("c")).unwrap();
    limits.close();
    assert_eq!(waits.await.unwrap().status(), 503);
}

/// Charges made before a change are refunded after it if another policy rejects.
#[tokio::test(start_paused = true)]
async fn heirs_refund_charges_from_before_a_change() {
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
    // Two units are used, and this request uses a third.
    assert_eq!(left(&call(&mut service, "/").await).as_deref(), Some("r=1"));
    closing.close();
    assert_eq!(waits.await.unwrap().status(), 503);
    assert_eq!(left(&call(&mut service, "/").await).as_deref(), Some("r=1"), "one was refunded, and one is used");
}
