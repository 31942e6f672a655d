//! Clients of a layer whose policies are keyed by the header `x-client`.

use std::convert::Infallible;
use std::time::Duration;

use http::{HeaderName, Request, Response};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::algorithm::{FixedWindow, TokenBucket};
use tower_sluice::key::HeaderKey;
use tower_sluice::limiter::Ask;
use tower_sluice::{Limiter, PartitionKey, Policy, Quota, RateLimitLayer, RateLimiter, Verdict};
use tower_sluice_redis::{Redis, RedisStore, Scripted};

use super::timing::eventually;

/// A timeout that no call misses, even on a busy machine.
pub const PLENTY: Duration = Duration::from_secs(10);

pub fn per_client<A: Scripted>(redis: &Redis, name: &'static str, algorithm: A) -> Policy {
    with_store(name, algorithm, RedisStore::new(redis, name))
}

pub fn with_store<A: Scripted>(name: &'static str, algorithm: A, store: RedisStore) -> Policy {
    Policy::new(name, RateLimiter::new(algorithm, store)).key(HeaderKey::new(HeaderName::from_static("x-client")))
}

/// A bucket that refills nothing during a test.
pub fn at_most(limit: u64) -> TokenBucket {
    TokenBucket::new(Quota::per(limit, Duration::from_secs(10_000 * limit)))
}

/// A 100-day window, so that it hardly ever ends during a test.
pub fn at_most_in_window(limit: u64) -> FixedWindow {
    FixedWindow::new(Quota::per(limit, Duration::from_secs(100 * 86_400)))
}

/// Sends one request. The layer must attach its verdict.
pub async fn send(layer: &RateLimitLayer, client: &str) -> Response<()> {
    let inner = service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(())) });
    let request = Request::builder().header("x-client", client).body(()).unwrap();
    layer.clone().layer(inner).oneshot(request).await.unwrap().map(drop)
}

/// Whether the local fallback decided for any policy.
pub fn is_fallback(response: &Response<()>) -> bool {
    let verdict = response.extensions().get::<Verdict>().expect("the layer attaches its verdict");
    verdict.policies().iter().any(|policy| policy.fell_back())
}

/// Whether the store decided.
pub fn is_decided(response: &Response<()>) -> bool {
    // A 503 without a decision has no `X-Rate-Limited-For`.
    !is_fallback(response) && (response.status() == 200 || response.headers().contains_key("x-rate-limited-for"))
}

/// Sends until the store decides again.
pub async fn recovers(layer: &RateLimitLayer, client: &str) {
    eventually("the store decides again", async || is_decided(&send(layer, client).await)).await;
}

/// The units charged to a client, as the store reports them.
pub async fn charged<A: Scripted>(redis: &Redis, name: &str, algorithm: A, client: &str) -> u64 {
    let limiter = RateLimiter::new(algorithm, RedisStore::new(redis, name).without_coalescing());
    let decision = limiter.decide(&Ask::charge(&key(client), 0)).decided().await.expect("the server answers");
    decision.limit() - decision.remaining()
}

/// A client's partition key.
pub fn key(client: &str) -> PartitionKey {
    PartitionKey::from(client)
}
