//! Costs beyond a charge that a server keeps: charged there as far as units are left, and owed beyond.

use std::convert::Infallible;
use std::time::Duration;

use http::{HeaderMap, Request, Response, StatusCode};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::algorithm::TokenBucket;
use tower_sluice::key::User;
use tower_sluice::store::redis::{Redis, RedisStore};
use tower_sluice::{Policy, Quota, RateLimitLayer, RateLimiter, Settlement};

use crate::support::clients::PLENTY;
use crate::support::redis::RedisServer;
use crate::support::timing::eventually;

const DAY: Duration = Duration::from_secs(86_400);

/// Sends a request that turns out to cost so much.
async fn send(layer: &RateLimitLayer, cost: u32) -> (StatusCode, HeaderMap) {
    let handler = service_fn(move |request: Request<()>| async move {
        request.extensions().get::<Settlement>().unwrap().settle("units", cost).unwrap();
        Ok::<_, Infallible>(Response::new(()))
    });
    let mut request = Request::new(());
    request.extensions_mut().insert(User::new("alice"));
    let response = layer.clone().layer(handler).oneshot(request).await.unwrap();
    (response.status(), response.headers().clone())
}

/// Of 25 units, the bucket has ten. The rest is known once the server has answered, in the background.
#[tokio::test]
async fn a_shortfall_is_charged_on_the_server_and_its_rest_is_owed() {
    let server = RedisServer::start();
    let redis = Redis::single(server.url()).timeout(PLENTY).connect_timeout(PLENTY).open().unwrap();
    let layer = || {
        let bucket = RateLimiter::new(TokenBucket::new(Quota::per_day(10)), RedisStore::new(&redis, "units"));
        RateLimitLayer::new(Policy::new("units", bucket).key(User::key()).settled_by_handler().owe_shortfalls())
    };
    let (first, second) = (layer(), layer());
    assert_eq!(send(&first, 25).await.0, 200);
    let alice = "alice".into();
    let peek = async || first.peek("units", &alice).await.unwrap();
    eventually("the debt is known", async || peek().await.reset_after() > DAY).await;
    let left = peek().await;
    assert_eq!(left.remaining(), 0);
    assert!(left.reset_after() > DAY * 24 / 10 && left.reset_after() <= DAY * 25 / 10, "{left:?}");
    let (status, headers) = send(&first, 1).await;
    let wait: u64 = headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!(status == 429 && wait > 86_400 && wait <= 16 * 8_640, "{status}, {wait} s");
    // Another process knows what was charged on the server, and nothing of the debt.
    let (status, headers) = send(&second, 1).await;
    let wait: u64 = headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!(status == 429 && wait <= 8_640, "{status}, {wait} s");
    let _ = first.reset("units", &alice).await.unwrap();
    assert_eq!(send(&first, 1).await.0, 200);
}
