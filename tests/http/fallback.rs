//! How a policy decides while its limiter fails.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use http::{Request, Response};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::algorithm::TokenBucket;
use tower_sluice::limiter::{Answer, Ask, Description, Mode, Receipt};
use tower_sluice::{
    FailureMode, LeakyQueue, Limiter, LimiterError, PartitionKey, Policy, Quota, RateLimitLayer, RateLimiter, Verdict,
};

/// A remote limiter with outages, and a local fallback.
struct Remote<G> {
    is_out: AtomicBool,
    calls: AtomicU32,
    refunds: AtomicU32,
    fallback: G,
}

impl<G: Limiter> Remote<G> {
    fn new(fallback: G) -> Arc<Self> {
        let (calls, refunds) = (AtomicU32::new(0), AtomicU32::new(0));
        Arc::new(Self { is_out: AtomicBool::new(true), calls, refunds, fallback })
    }
}

impl<G: Limiter> Limiter for Remote<G> {
    fn decide(&self, ask: &Ask<'_>) -> Answer {
        if ask.mode() == Mode::Fallback {
            return self.fallback.decide(&ask.to(Mode::Charge));
        }
        self.calls.fetch_add(1, Ordering::SeqCst);
        let is_out = self.is_out.load(Ordering::SeqCst);
        Answer::Pending(Box::pin(async move {
            tokio::task::yield_now().await;
            if is_out { Err(LimiterError::new("out of reach")) } else { Ok(tower_sluice::Decision::allow(9, 8)) }
        }))
    }

    fn describe(&self) -> Description {
        Description::new().answering(Mode::Fallback)
    }

    fn refund(&self, charged: &Ask<'_>, receipt: Receipt, units: u64) {
        self.refunds.fetch_add(1, Ordering::SeqCst);
        self.fallback.refund(charged, receipt, units);
    }
}

fn bucket(burst: u64) -> RateLimiter<TokenBucket> {
    RateLimiter::in_memory(TokenBucket::new(Quota::per_hour(burst)))
}

async fn send(layer: &RateLimitLayer) -> Response<()> {
    let inner = service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(())) });
    let service = layer.clone().layer(inner);
    service.oneshot(Request::new(())).await.unwrap().map(drop)
}

async fn statuses(layer: &RateLimitLayer, count: usize) -> Vec<u16> {
    let mut statuses = Vec::new();
    for _ in 0..count {
        statuses.push(send(layer).await.status().as_u16());
    }
    statuses
}

fn fell_back(response: &Response<()>) -> bool {
    response.extensions().get::<Verdict>().unwrap().policies()[0].fell_back()
}

#[tokio::test]
async fn the_fallback_decides_during_outages_only() {
    let remote = Remote::new(bucket(2));
    let layer = RateLimitLayer::builder(Policy::new("remote", Arc::clone(&remote))).verdict().build();
    let first = send(&layer).await;
    assert!(first.status() == 200 && fell_back(&first));
    // The fallback rejects like any limiter: 503, since all clients share the key.
    let [_, rejected] = [send(&layer).await, send(&layer).await];
    assert!(rejected.status() == 503 && fell_back(&rejected) && rejected.headers().contains_key("x-rate-limited-for"));
    assert_eq!(layer.limiter_failures("remote"), Some(3));
    assert_eq!(layer.limiter_failures("another"), None);

    remote.is_out.store(false, Ordering::SeqCst);
    let answer = send(&layer).await;
    assert!(answer.status() == 200 && !fell_back(&answer));
    assert_eq!((layer.limiter_failures("remote"), remote.calls.load(Ordering::SeqCst)), (Some(3), 4));
}

#[tokio::test]
async fn rejections_elsewhere_refund_the_fallback() {
    let remote = Remote::new(bucket(9));
    let layer = RateLimitLayer::builder([
        Policy::new("remote", Arc::clone(&remote)),
        Policy::new("broken", Remote::new(bucket(1))),
    ])
    .verdict()
    .build();
    assert_eq!(statuses(&layer, 3).await, [200, 503, 503]);
    assert_eq!(remote.fallback.decide(&Ask::peek(&PartitionKey::SHARED, 0)).at_once().unwrap().remaining(), 8);
}

/// The rest is forgiven once no units are left.
#[tokio::test]
async fn the_fallback_charges_a_shortfall_in_part() {
    let remote = Remote::new(bucket(9));
    let policy = Policy::new("remote", Arc::clone(&remote)).cost_after(|_| 20);
    let layer = RateLimitLayer::builder(policy).verdict().build();
    assert_eq!(statuses(&layer, 2).await, [200, 503]);
    assert_eq!(remote.fallback.decide(&Ask::peek(&PartitionKey::SHARED, 0)).at_once().unwrap().remaining(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_fallback_may_be_a_queue() {
    let remote = Remote::new(LeakyQueue::new(Quota::per_second(10)).max_queue(1));
    let layer = RateLimitLayer::builder(Policy::new("remote", remote)).verdict().build();
    let begun = tokio::time::Instant::now();
    assert_eq!(statuses(&layer, 3).await, [200, 200, 200]);
    assert_eq!(begun.elapsed(), Duration::from_millis(200));
}

#[tokio::test]
async fn failing_open_and_closed_skip_the_fallback() {
    let layer = |mode| {
        RateLimitLayer::builder(Policy::new("remote", Remote::new(bucket(1))).on_failure(mode)).verdict().build()
    };
    assert_eq!(statuses(&layer(FailureMode::Allow), 3).await, [200; 3]);
    let reject = layer(FailureMode::Reject);
    let rejected = send(&reject).await;
    assert!(rejected.status() == 503 && !rejected.headers().contains_key("x-rate-limited-for"));
    assert_eq!(reject.limiter_failures("remote"), Some(1));
}

/// A limit on trial keeps counting while its server is down.
#[tokio::test]
async fn shadows_fall_back_and_reject_nothing() {
    let remote = Remote::new(bucket(1));
    let layer = RateLimitLayer::builder(Policy::new("remote", Arc::clone(&remote)).shadow()).verdict().build();
    assert_eq!(statuses(&layer, 3).await, [200; 3]);
    assert_eq!(layer.shadow_rejected("remote"), Some(2));
    assert_eq!(remote.fallback.decide(&Ask::peek(&PartitionKey::SHARED, 0)).at_once().unwrap().remaining(), 0);
}
