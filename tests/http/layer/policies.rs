//! Several policies, shadows, conditions and costs.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use http::{Request, Response, StatusCode};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_sluice::algorithm::{FixedWindow, LeakyBucket, SlidingWindow, TokenBucket};
use tower_sluice::key::PeerIp;
use tower_sluice::limiter::{Answer, Ask, Description, Mode, Receipt};
use tower_sluice::store::MemoryStore;
use tower_sluice::time::ManualClock;
use tower_sluice::{
    Concurrency, Decision, LeakyQueue, Limiter, PartitionKey, Policy, Quota, RateLimitLayer, RateLimiter,
};

use super::{by_key, hello, one, request, send, statuses};

/// If two policies reject, the one for which waiting is useless sets the status, before one that waits for a release.
#[tokio::test]
async fn an_unhelpful_wait_sets_the_status() {
    let layer = RateLimitLayer::new([
        Policy::new("in-flight", Concurrency::new(1)),
        Policy::new("units", FixedWindow::new(Quota::per_hour(3)))
            .cost_fn(|request| request.uri().path()[1..].parse::<u64>().unwrap())
            .status(StatusCode::PAYLOAD_TOO_LARGE),
    ]);
    let send = |cost: &str| {
        let service = service_fn(|_: Request<()>| pending::<Result<Response<()>, Infallible>>());
        layer.layer(service).oneshot(Request::get(format!("/{cost}")).body(()).unwrap())
    };
    let mut in_flight = Box::pin(send("1"));
    assert!((&mut in_flight).now_or_never().is_none());
    assert_eq!(send("1").await.unwrap().status(), 503);
    assert_eq!(send("4").await.unwrap().status(), 413);
}

#[tokio::test]
async fn several_policies_charge_all_or_none() {
    let layer = RateLimitLayer::builder([
        Policy::new("shared", LeakyBucket::new(Quota::per_hour(5))),
        by_key("each", one()),
        by_key("each-day", FixedWindow::new(Quota::per_day(2))),
    ])
    .verdict()
    .build();
    let ask = |key: &'static str| request(&[("x-api-key", key)]);
    // Nine requests by `a` are rejected without charging the shared policy.
    assert_eq!(
        statuses(&layer, std::iter::repeat_with(|| ask("a")).take(10)).await,
        [[200].as_slice(), &[429; 9]].concat()
    );
    assert_eq!(statuses(&layer, [ask("b"), ask("c"), ask("d"), ask("e"), ask("f")]).await, [200, 200, 200, 200, 503]);

    let rejected = send(&layer, ask("a")).await;
    let verdict = rejected.verdict.unwrap();
    let violated: Vec<_> = verdict.violated().map(|policy| policy.name()).collect();
    assert_eq!(violated, ["shared", "each"]);
    // The third policy would have admitted it: it reports the remaining quota, and has nothing to refund.
    let each_day = verdict.policies()[2].decision();
    assert!(each_day.is_allowed() && each_day.remaining() == 1 && each_day.receipt() == Receipt::NONE);
    // The response advertises the longest wait, with its policy's status.
    assert_eq!((rejected.status.as_u16(), rejected.headers["retry-after"].to_str().unwrap()), (429, "3600"));
}

/// Admits a peek and rejects the charge, as if a concurrent request came in between.
struct Fickle {
    given_back: AtomicU32,
}

impl Limiter for Fickle {
    fn decide(&self, ask: &Ask<'_>) -> Answer {
        match ask.mode() {
            Mode::Peek => Decision::allow(1, 0).into(),
            _ => Decision::reject(1, 0, Some(Duration::from_secs(1))).into(),
        }
    }
    fn describe(&self) -> Description {
        Description::new().answering(Mode::Peek)
    }
    fn refund(&self, _: &Ask<'_>, _: Receipt, _: u64) {
        self.given_back.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn a_lost_race_refunds_every_charge() {
    let clock = ManualClock::new();
    let store = || MemoryStore::with_capacity(16).with_clock(clock.clone());
    let bucket = Arc::new(RateLimiter::new(TokenBucket::new(Quota::per_hour(3)), store()));
    let fixed = Arc::new(RateLimiter::new(
        FixedWindow::new(Quota::per_hour(3)),
        MemoryStore::with_capacity(16).with_clock(clock.clone()),
    ));
    let sliding = Arc::new(RateLimiter::new(
        SlidingWindow::new(Quota::per_hour(3)),
        MemoryStore::with_capacity(16).with_clock(clock.clone()),
    ));
    let queue = Arc::new(LeakyQueue::new(Quota::per_hour(3).burst(3)));
    let fickle = Arc::new(Fickle { given_back: AtomicU32::new(0) });
    let layer = RateLimitLayer::builder([
        Policy::new("bucket", Arc::clone(&bucket)).cost(2),
        Policy::new("fixed", Arc::clone(&fixed)).cost(2),
        Policy::new("sliding", Arc::clone(&sliding)).cost(2),
        Policy::new("queue", Arc::clone(&queue)).cost(2),
        Policy::new("fickle", Arc::clone(&fickle)),
    ])
    .verdict()
    .build();
    for _ in 0..5 {
        assert_eq!(send(&layer, request(&[])).await.status, 503);
    }
    let left =
        |limiter: &dyn Limiter| limiter.decide(&Ask::peek(&PartitionKey::SHARED, 0)).at_once().unwrap().remaining();
    assert_eq!([left(&*bucket), left(&*fixed), left(&*sliding)], [3, 3, 3]);
    assert_eq!(fickle.given_back.load(Ordering::Relaxed), 0, "what was not charged must not be given back");
    assert_eq!(queue.waiting(), 0);
}

/// It leaves the queue.
#[tokio::test(start_paused = true)]
async fn a_cancelled_waiter_stays_charged() {
    let queue = Arc::new(LeakyQueue::new(Quota::per_hour(1)).max_wait(Duration::MAX));
    let bucket = Arc::new(RateLimiter::in_memory(TokenBucket::new(Quota::per_hour(10))));
    // Declared first, but charged last, so that no request waits only to be rejected.
    let layer =
        RateLimitLayer::builder([Policy::new("queue", Arc::clone(&queue)), Policy::new("bucket", Arc::clone(&bucket))])
            .verdict()
            .build();
    let mut service = layer.layer(hello());
    assert_eq!(service.ready().await.unwrap().call(request(&[])).await.unwrap().status(), 200);
    let mut waiting = Box::pin(service.ready().await.unwrap().call(request(&[])));
    assert!((&mut waiting).now_or_never().is_none());
    assert_eq!(queue.waiting(), 1);
    drop(waiting);
    assert_eq!(queue.waiting(), 0);
    assert_eq!(bucket.decide(&Ask::peek(&PartitionKey::SHARED, 0)).at_once().unwrap().remaining(), 8);
}

#[tokio::test]
async fn a_shadow_counts_and_rejects_nothing() {
    let layer = RateLimitLayer::builder([
        by_key("shadow", one()).shadow(),
        by_key("shadow-queue", LeakyQueue::new(Quota::per_hour(1)).max_queue(1)).shadow(),
        Policy::new("shadow-without-peer", one()).key(PeerIp::new()).shadow(),
        by_key("enforced", TokenBucket::new(Quota::per_hour(4))),
    ])
    .verdict()
    .build();
    let ask = || request(&[("x-api-key", "a")]);
    assert_eq!(statuses(&layer, std::iter::repeat_with(ask).take(6)).await, [200, 200, 200, 200, 429, 429]);
    // Requests that other policies reject are not charged to a shadow.
    assert_eq!(layer.shadow_rejected("shadow"), Some(3));
    assert_eq!(layer.shadow_rejected("enforced"), Some(0));
    assert_eq!(layer.shadow_rejected("unknown"), None);
}

#[tokio::test]
async fn a_shadow_queue_delays_no_request() {
    let layer = RateLimitLayer::builder(
        Policy::new("queue", LeakyQueue::new(Quota::per_hour(1)).max_queue(2).max_wait(Duration::MAX)).shadow(),
    )
    .verdict()
    .build();
    let mut delays = Vec::new();
    for _ in 0..4 {
        let answer = send(&layer, request(&[])).await;
        assert_eq!(answer.status, 200);
        let decision = *answer.verdict.unwrap().policies()[0].decision();
        delays.push((decision.is_allowed(), decision.delay().as_secs().div_ceil(3_600)));
    }
    assert_eq!(delays, [(true, 0), (true, 1), (true, 2), (false, 0)]);
    assert_eq!(layer.shadow_rejected("queue"), Some(1));
}

#[tokio::test]
async fn conditions_and_costs_are_per_request() {
    let layer = RateLimitLayer::builder(
        Policy::new("writes", TokenBucket::new(Quota::per_hour(10)))
            .when(|head| head.method() == http::Method::POST)
            .cost_fn(|head| if head.uri().path() == "/import" { 6 } else { 1 }),
    )
    .verdict()
    .build();
    let get = || request(&[]);
    let post = |path: &str| Request::builder().method("POST").uri(path).body(()).unwrap();
    let answered = statuses(&layer, [get(), post("/import"), post("/import"), post("/"), get(), post("/")]).await;
    assert_eq!(answered, [200, 200, 503, 200, 200, 200]);
    assert_eq!(send(&layer, post("/")).await.verdict.unwrap().policies()[0].decision().remaining(), 1);
    let fixed =
        RateLimitLayer::builder(Policy::new("p", TokenBucket::new(Quota::per_hour(10))).cost(4)).verdict().build();
    assert_eq!(statuses(&fixed, [get(), get(), get()]).await, [200, 200, 503]);
}
