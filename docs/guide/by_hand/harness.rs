// What the programs of `docs/guide/by_hand.md` share: services behind either limiter, and clients that send requests.
// Time is tokio's, paused: it passes only by `advance`.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::Request;
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use tokio::time::{Instant, advance};
use tower::ServiceExt;
use tower_sluice::key::PeerIp;
use tower_sluice::store::MemoryStore;
use tower_sluice::time::{Clock, Timestamp};
use tower_sluice::{Policy, Quota, RateLimitLayer, RateLimiter, TokenBucket};

use limiter::{SimpleLimiter, rate_limit};

mod limiter {
    include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/guide/by_hand/limiter.rs"));
}

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(86_400);

/// Asserts that the limiter made by hand fails the check, and that this crate passes it. `check` gets a service on paused
/// time.
fn compare(check: impl AsyncFn(Router) -> bool, by_hand: impl Fn() -> Router, ours: impl Fn() -> Router) {
    let page = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/guide/by_hand.md"));
    let limiter = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/guide/by_hand/limiter.rs"));
    assert!(page.contains(limiter), "the page shows another limiter");
    assert!(!paused(async || check(by_hand()).await), "the limiter made by hand passes");
    assert!(paused(async || check(ours()).await), "this crate fails");
}

/// Runs a future on paused time, from zero on.
fn paused<T>(run: impl AsyncFn() -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.unwrap().block_on(run())
}

/// Makes a limiter by hand.
fn simple(limit: u32, window: Duration) -> SimpleLimiter {
    SimpleLimiter { limit, window, clients: Default::default() }
}

/// A service behind limiters made by hand. The last is the outermost, as layers are in axum.
fn by_hand<const N: usize>(limiters: [SimpleLimiter; N]) -> Router {
    let app = Router::new().fallback(async || "hello");
    limiters.into_iter().fold(app, |app, limiter| app.layer(from_fn_with_state(limiter, rate_limit)))
}

/// The same service behind a layer of this crate.
fn by_layer(layer: RateLimitLayer) -> Router {
    Router::new().fallback(async || "hello").layer(layer)
}

/// A table for a thousand keys, on the time of the tests.
fn memory() -> MemoryStore<TokioTime> {
    MemoryStore::with_capacity(1_000).with_clock(TokioTime(Instant::now()))
}

/// Tokio's clock. The limiter made by hand reads it, too.
#[derive(Clone, Copy)]
struct TokioTime(Instant);

impl Clock for TokioTime {
    fn now(&self) -> Timestamp {
        Timestamp::ZERO.saturating_add(self.0.elapsed())
    }
}

/// Sends a request from this address, perhaps with X-Forwarded-For.
async fn send(app: &Router, peer: &str, forwarded: Option<&str>) -> Response {
    let peer: IpAddr = peer.parse().unwrap();
    let mut request = Request::get("/").extension(ConnectInfo(SocketAddr::from((peer, 4711))));
    if let Some(list) = forwarded {
        request = request.header("x-forwarded-for", list);
    }
    app.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
}

/// Sends a request from this address with X-Forwarded-For, and returns 1 if it is admitted.
async fn forwarded(app: &Router, peer: &str, list: &str) -> u32 {
    u32::from(send(app, peer, Some(list)).await.status() == 200)
}

/// Sends that many requests at once from this address, and returns how many are admitted.
async fn burst(app: &Router, peer: &str, requests: u32) -> u32 {
    let mut admitted = 0;
    for _ in 0..requests {
        admitted += u32::from(send(app, peer, None).await.status() == 200);
    }
    admitted
}

/// Sends a request from this address, which must be rejected, and returns the wait in its response.
async fn rejected(app: &Router, peer: &str) -> Duration {
    let response = send(app, peer, None).await;
    assert_eq!(response.status(), 429);
    Duration::from_secs(response.headers()["retry-after"].to_str().unwrap().parse().unwrap())
}
