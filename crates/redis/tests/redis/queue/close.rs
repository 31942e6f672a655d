//! Layers with queues on a server that are closed.

use std::convert::Infallible;
use std::future::ready;
use std::time::Duration;

use futures_util::future::join_all;
use http::{Request, Response};
use tokio::task::JoinHandle;
use tower::util::BoxCloneSyncService;
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::{FailureMode, Policy, Quota, RateLimitLayer, SharedQueue};

use super::redis;
use crate::support::redis::RedisServer;
use crate::support::timing::eventually;

type Service = BoxCloneSyncService<Request<()>, Response<String>, Infallible>;

/// Answers with an empty body; a rejection has its own body.
fn service(layer: &RateLimitLayer) -> Service {
    let inner = service_fn(|_: Request<()>| ready(Ok::<_, Infallible>(Response::new(String::new()))));
    BoxCloneSyncService::new(layer.layer(inner).map_response(|response| response.map(|_| String::new())))
}

async fn status(service: &Service) -> u16 {
    service.clone().oneshot(Request::new(())).await.unwrap().status().as_u16()
}

/// Spawns two requests, and returns once both wait.
async fn wait(service: &Service, layer: &RateLimitLayer) -> Vec<JoinHandle<u16>> {
    let waiting = || layer.backlog("q").map_or(0, |backlog| backlog.waiting());
    let before = waiting();
    let spawn = |service: Service| tokio::spawn(async move { status(&service).await });
    let requests = (0..2).map(|_| spawn(service.clone())).collect();
    eventually("they wait", async || waiting() == before + 2).await;
    requests
}

async fn all(requests: Vec<JoinHandle<u16>>) -> Vec<u16> {
    join_all(requests).await.into_iter().map(Result::unwrap).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn queues_are_closed_even_after_changes() {
    let server = RedisServer::start();
    let redis = redis(&server);
    let queue = || {
        SharedQueue::new(redis.clone(), "q", Quota::per_hour(1)).max_queue(10).max_wait(Duration::from_secs(100_000))
    };
    let layer = RateLimitLayer::new(Policy::new("q", queue()).on_failure(FailureMode::Allow));
    let (service, limits) = (service(&layer), layer.handle());
    assert_eq!(status(&service).await, 200);
    let mut waiting = wait(&service, &layer).await;
    limits.replace(Policy::new("q", queue()).on_failure(FailureMode::Allow)).unwrap();
    waiting.extend(wait(&service, &layer).await);
    layer.close();
    assert_eq!(all(waiting).await, [503; 4]);
    assert_eq!(status(&service).await, 503);
    assert_eq!(layer.limiter_failures("q"), Some(0));
}
