//! The layer as a Tower service: readiness, cloning, bodies and static promises.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use http::{Request, Response};
use http_body_util::Empty;
use tokio_test::{assert_pending, assert_ready, assert_ready_ok};
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};
use tower_sluice::algorithm::TokenBucket;
use tower_sluice::key::KeyExtractor;
use tower_sluice::layer::{RateLimit, ResponseBody, ResponseFuture};
use tower_sluice::rejection::RejectionBody;
use tower_sluice::{LeakyQueue, Limiter, Policy, Quota, RateLimitLayer, Rejection, Verdict};

use super::{Body, hello, one, request};

#[tokio::test]
async fn readiness_follows_the_inner_service() {
    let layer = RateLimitLayer::builder(Policy::new("p", one())).verdict().build();
    let (mut service, mut handle) = tower_test::mock::spawn_layer::<Request<()>, Response<Body>, _>(layer);
    handle.allow(0);
    assert_pending!(service.poll_ready());
    handle.allow(1);
    assert_ready_ok!(service.poll_ready());
    handle.send_error("gone");
    assert!(assert_ready!(service.poll_ready()).is_err());
}

#[tokio::test]
async fn only_admitted_requests_reach_the_inner_service() {
    let layer = RateLimitLayer::builder(Policy::new("p", one())).verdict().build();
    let (mut service, mut handle) = tower_test::mock::spawn_layer::<Request<()>, Response<Body>, _>(layer);
    assert_ready_ok!(service.poll_ready());
    let mut first = tokio_test::task::spawn(service.call(request(&[])));
    assert_pending!(first.poll());
    let (_, respond) = handle.next_request().await.unwrap();
    respond.send_response(Response::new(Body::from("hello")));
    assert_eq!(first.await.unwrap().status(), 200);

    assert_ready_ok!(service.poll_ready());
    let second = service.call(request(&[])).await.unwrap();
    assert_eq!(second.status(), 503);
    assert!(handle.next_request().now_or_never().is_none(), "a rejected request reached the inner service");
}

/// The mock panics if it is called without having been polled ready, as a clone would be.
#[tokio::test(start_paused = true)]
async fn the_readied_service_is_called_after_waiting() {
    let layer = RateLimitLayer::builder(Policy::new("queue", LeakyQueue::new(Quota::per_second(10)))).verdict().build();
    let (mut service, mut handle) = tower_test::mock::spawn_layer::<Request<()>, Response<Body>, _>(layer);
    handle.allow(2);
    assert_ready_ok!(service.poll_ready());
    let _first = service.call(request(&[]));
    assert_ready_ok!(service.poll_ready());
    let second = tokio::spawn(service.call(request(&[])));
    let _first_request = handle.next_request().await.unwrap();
    tokio::time::advance(Duration::from_millis(99)).await;
    assert!(handle.next_request().now_or_never().is_none(), "called before its turn");
    tokio::time::advance(Duration::from_millis(2)).await;
    let (_, respond) = handle.next_request().await.unwrap();
    respond.send_response(Response::new(Body::from("hello")));
    assert_eq!(second.await.unwrap().unwrap().status(), 200);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_keeps_its_service_permit() {
    let queue = LeakyQueue::new(Quota::per_second(10));
    let service = ServiceBuilder::new()
        .layer(RateLimitLayer::builder(Policy::new("queue", queue)).verdict().build())
        .concurrency_limit(2)
        .service(hello());
    let start = tokio::time::Instant::now();
    let calls = (0..4).map(|_| tokio::spawn(service.clone().oneshot(request(&[]))));
    for call in calls.collect::<Vec<_>>() {
        assert_eq!(call.await.unwrap().unwrap().status(), 200);
    }
    assert_eq!(start.elapsed(), Duration::from_millis(300));
}

#[tokio::test]
async fn buffers_and_load_shedding_go_anywhere() {
    let layer = RateLimitLayer::builder(Policy::new("p", TokenBucket::new(Quota::per_hour(2)))).verdict().build();
    let service = ServiceBuilder::new().buffer(8).layer(layer.clone()).service(hello());
    assert_eq!(service.clone().oneshot(request(&[])).await.unwrap().status(), 200);
    let service = ServiceBuilder::new().layer(layer).load_shed().buffer(8).service(hello());
    assert_eq!(service.clone().oneshot(request(&[])).await.unwrap().status(), 200);
    assert_eq!(service.oneshot(request(&[])).await.unwrap().status(), 503);
}

#[tokio::test]
async fn request_bodies_need_not_implement_body() {
    // It implements neither `Body` nor `Send`, because the layer does not touch it before the decision.
    struct Untouchable(#[allow(dead_code)] std::rc::Rc<()>);
    let layer = RateLimitLayer::builder(Policy::new("p", one())).verdict().build();
    let service = layer
        .layer(service_fn(|_: Request<Untouchable>| async { Ok::<_, Infallible>(Response::new(Body::from("hello"))) }));
    assert_eq!(service.clone().oneshot(Request::new(Untouchable(Default::default()))).await.unwrap().status(), 200);
    assert_eq!(service.oneshot(Request::new(Untouchable(Default::default()))).await.unwrap().status(), 503);
}

#[tokio::test]
async fn a_layers_services_share_its_budget() {
    let layer = RateLimitLayer::builder(Policy::new("p", TokenBucket::new(Quota::per_hour(3)))).verdict().build();
    let mut admitted = 0;
    for _ in 0..1_000 {
        let service = layer.clone().layer(hello()).clone();
        admitted += u32::from(service.oneshot(request(&[])).await.unwrap().status() == 200);
    }
    assert_eq!(admitted, 3);
}

#[test]
fn static_promises() {
    fn is_send<T: Send>() {}
    fn is_shared<T: Send + Sync + 'static>() {}
    type Inner = tower::util::BoxCloneSyncService<Request<()>, Response<Body>, Infallible>;
    is_shared::<RateLimitLayer>();
    is_shared::<RateLimit<Inner>>();
    is_send::<ResponseFuture<Inner, ()>>();
    is_shared::<Arc<dyn Limiter>>();
    is_shared::<Box<dyn KeyExtractor>>();
    // A response is `Sync` if the inner service's response is.
    is_shared::<Response<ResponseBody<Body>>>();
    is_shared::<RejectionBody>();
    is_shared::<Verdict>();
    is_shared::<Rejection>();
    // A struct can name the type without parameters.
    struct App {
        _limits: RateLimitLayer,
    }
    let _app = App { _limits: RateLimitLayer::builder(Policy::new("p", one())).verdict().build() };
}

/// axum, reqwest and others need boxed bodies that are `Send`, some of them also `Sync`.
#[tokio::test]
async fn responses_can_be_boxed_as_sync() {
    use http_body_util::BodyExt;
    use http_body_util::combinators::BoxBody;

    let layer = RateLimitLayer::new(Policy::new("p", one()));
    for status in [200, 503] {
        let response = layer.layer(hello()).oneshot(request(&[])).await.unwrap();
        assert_eq!(response.status(), status);
        let boxed: BoxBody<Bytes, Infallible> = response.into_body().boxed();
        assert!(!boxed.collect().await.unwrap().to_bytes().is_empty());
    }
}

#[test]
fn an_empty_inner_body_compiles() {
    // Many inner services answer with `Empty`; the response body is generic over it.
    let layer = RateLimitLayer::builder(Policy::new("p", one())).verdict().build();
    let service =
        layer.layer(service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new())) }));
    let response = service.oneshot(request(&[])).now_or_never().unwrap().unwrap();
    assert!(http_body::Body::is_end_stream(response.body()));
}
