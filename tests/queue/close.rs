//! Layers, handles and configurations that are closed: their queues reject all waiting requests.

use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use tower::util::BoxCloneSyncService;
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::algorithm::TokenBucket;
use tower_sluice::limiter::Ask;
use tower_sluice::{FailureMode, LeakyQueue, Limiter, LimiterError, PartitionKey, Policy, Quota, RateLimitLayer};

use crate::support::queue::settle;

type Service = BoxCloneSyncService<Request<()>, Response<String>, Infallible>;

/// Answers with an empty body; a rejection has its own body.
fn service(layer: &RateLimitLayer) -> Service {
    let inner = service_fn(|_: Request<()>| ready(Ok::<_, Infallible>(Response::new(String::new()))));
    let answered = layer.layer(inner).map_response(|response| response.map(|_| String::new()));
    BoxCloneSyncService::new(answered)
}

fn queue() -> LeakyQueue {
    LeakyQueue::new(Quota::per_hour(1)).max_queue(100).max_wait(Duration::from_secs(1_000_000))
}

async fn status(service: &Service) -> u16 {
    service.clone().oneshot(Request::new(())).await.unwrap().status().as_u16()
}

/// Spawns this number of requests that wait.
async fn wait(service: &Service, count: usize) -> Vec<tokio::task::JoinHandle<u16>> {
    let tasks = (0..count).map(|_| {
        let service = service.clone();
        tokio::spawn(async move { status(&service).await })
    });
    let tasks = tasks.collect();
    settle().await;
    tasks
}

async fn all(tasks: Vec<tokio::task::JoinHandle<u16>>) -> Vec<u16> {
    let mut statuses = Vec::new();
    for task in tasks {
        let status = tokio::time::timeout(Duration::from_secs(10), task).await;
        statuses.push(status.expect("it is answered at once").unwrap());
    }
    statuses
}

/// This holds in every failure mode.
#[tokio::test]
async fn closing_rejects_waiters_and_arrivals() {
    for mode in [FailureMode::LocalFallback, FailureMode::Reject, FailureMode::Allow] {
        let bucket = TokenBucket::new(Quota::per_hour(10));
        let bucket = Arc::new(tower_sluice::RateLimiter::in_memory(bucket));
        let layer = RateLimitLayer::new([
            Policy::new("bucket", Arc::clone(&bucket)),
            Policy::new("queue", queue()).on_failure(mode),
            Policy::new("watching", queue()).shadow(),
        ]);
        let service = service(&layer);
        assert_eq!(status(&service).await, 200);
        let waiting = wait(&service, 3).await;
        assert_eq!(layer.backlog("queue").unwrap().waiting(), 3);
        layer.close();
        assert_eq!(all(waiting).await, [503; 3], "{mode:?}");
        assert_eq!(status(&service).await, 503, "{mode:?}");
        // Their charges were refunded, and this does not count as a failure.
        assert_eq!(bucket.decide(&Ask::peek(&PartitionKey::SHARED, 0)).at_once().unwrap().remaining(), 9);
        assert_eq!([layer.limiter_failures("queue"), layer.limiter_failures("watching")], [Some(0); 2]);
        layer.handle().close();
        assert_eq!(status(&service).await, 503);
    }
}

#[tokio::test]
async fn limiters_without_a_queue_ignore_a_close() {
    let layer = RateLimitLayer::new(Policy::new("bucket", TokenBucket::new(Quota::per_hour(2))));
    let service = service(&layer);
    layer.close();
    assert_eq!([status(&service).await, status(&service).await, status(&service).await], [200, 200, 503]);
}

#[tokio::test]
async fn closed_queues_stay_closed_after_changes() {
    let layer = RateLimitLayer::new(Policy::new("q", queue()));
    let (service, limits) = (service(&layer), layer.handle());
    limits.close();
    for policies in [
        vec![Policy::new("q", queue().max_queue(5))],
        vec![Policy::new("another", queue())],
        vec![Policy::new("q", TokenBucket::new(Quota::per_hour(100))), Policy::new("new", Arc::new(queue()))],
    ] {
        limits.replace(policies).unwrap();
        assert_eq!(status(&service).await, 503);
    }
    limits.replace(Policy::new("q", TokenBucket::new(Quota::per_hour(100)))).unwrap();
    assert_eq!(status(&service).await, 200, "nothing of it waits");
}

#[tokio::test]
async fn waiters_of_a_replaced_queue_are_rejected() {
    let layer = RateLimitLayer::new(Policy::new("q", queue()));
    let (service, limits) = (service(&layer), layer.handle());
    assert_eq!(status(&service).await, 200);
    let first = wait(&service, 2).await;
    let replaced = limits.replace(Policy::new("b", TokenBucket::new(Quota::per_hour(1)))).unwrap();
    assert_eq!((replaced.removed(), replaced.not_inherited()), (["q".to_owned()].as_slice(), [].as_slice()));
    limits.replace(Policy::new("q", queue())).unwrap();
    assert_eq!(status(&service).await, 200);
    let second = wait(&service, 2).await;
    limits.close();
    assert_eq!([all(first).await, all(second).await], [[503; 2]; 2]);
}

#[test]
fn a_closed_limiters_error_is_recognisable() {
    let closed = LimiterError::closed("over").with_source("why");
    assert!(closed.is_closed() && closed.to_string() == "over");
    assert!(!LimiterError::new("broken").is_closed());
}
