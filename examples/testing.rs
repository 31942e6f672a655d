//! How to test limits: a service whose tests set its clock, and a queue in paused time. Nothing sleeps. The guide's
//! page `testing` explains it.
//!
//! ```sh
//! cargo test -p examples --bin testing
//! cargo run -p examples --bin testing
//! ```

use std::net::SocketAddr;

use axum::{Router, routing::get};
use tower_sluice::key::PeerIp;
use tower_sluice::store::MemoryStore;
use tower_sluice::time::{Clock, Monotonic};
use tower_sluice::{LeakyQueue, Policy, Quota, RateLimitLayer, RateLimiter, TokenBucket};

const QUOTA: Quota = Quota::per_second(10).burst(20);

/// The service, on any clock: `app(Monotonic)` in production.
fn app(clock: impl Clock) -> Router {
    let limiter = RateLimiter::new(TokenBucket::new(QUOTA), MemoryStore::default().with_clock(clock));
    let layer = RateLimitLayer::new(Policy::new("per-client", limiter).key(PeerIp::new()));
    // Reports leave one by one, five per second; up to ten wait.
    let reports = RateLimitLayer::new(Policy::new("reports", LeakyQueue::new(Quota::per_second(5)).max_queue(10)));
    let reports = Router::new().route("/report", get(|| async { "a report" })).layer(reports);
    Router::new().route("/", get(|| async { "hello" })).layer(layer).merge(reports)
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let listener = tokio::net::TcpListener::bind(address).await?;
    let url = format!("http://{}", listener.local_addr()?);
    println!("listening on {url}");
    println!("try: for i in $(seq 25); do curl -s -o /dev/null -w '%{{http_code}} ' {url}/; done");
    println!("try: for i in $(seq 5); do curl -s -o /dev/null -w '%{{time_total}} ' {url}/report; done");
    axum::serve(listener, app(Monotonic).into_make_service_with_connect_info::<SocketAddr>()).await
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::body::Body;
    use axum::extract::ConnectInfo;
    use axum::http::Request;
    use tokio::time::Instant;
    use tower::ServiceExt; // for `oneshot`
    use tower_sluice::time::ManualClock;

    use super::*;

    /// A request from this address, as the server would make it.
    fn from(address: [u8; 4], path: &str) -> Request<Body> {
        let mut request = Request::get(path).body(Body::empty()).unwrap();
        request.extensions_mut().insert(ConnectInfo(SocketAddr::from((address, 4711))));
        request
    }

    #[tokio::test]
    async fn each_client_has_a_burst_of_twenty() {
        let clock = ManualClock::new();
        let app = app(clock.clone());
        for _ in 0..20 {
            assert_eq!(app.clone().oneshot(from([192, 0, 2, 1], "/")).await.unwrap().status(), 200);
        }
        let rejected = app.clone().oneshot(from([192, 0, 2, 1], "/")).await.unwrap();
        assert_eq!(rejected.status(), 429);
        assert_eq!(rejected.headers()["x-rate-limited-for"], "0.100000");
        // Another client has its own.
        assert_eq!(app.clone().oneshot(from([192, 0, 2, 2], "/")).await.unwrap().status(), 200);

        clock.advance(Duration::from_nanos(99_999_999));
        assert_eq!(app.clone().oneshot(from([192, 0, 2, 1], "/")).await.unwrap().status(), 429);
        clock.advance(Duration::from_nanos(1));
        assert_eq!(app.clone().oneshot(from([192, 0, 2, 1], "/")).await.unwrap().status(), 200);
    }

    #[tokio::test(start_paused = true)]
    async fn reports_leave_200_ms_apart() {
        let (app, begin) = (app(Monotonic), Instant::now());
        for number in 0..5 {
            assert_eq!(app.clone().oneshot(from([192, 0, 2, 1], "/report")).await.unwrap().status(), 200);
            let late = begin.elapsed() - number * Duration::from_millis(200);
            assert!(late <= Duration::from_millis(2), "report {number} is {late:?} late");
        }
    }
}
