//! Byte quotas that do not fit into 32 bits, through the layer.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::algorithm::{Algorithm, CalendarWindow, FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::headers::{RateLimitFields, ResetForm};
use tower_sluice::store::MemoryStore;
use tower_sluice::time::{ManualClock, Timestamp};
use tower_sluice::{Policy, Quota, RateLimitLayer, RateLimiter};

const TERABYTE: u64 = 1_000_000_000_000;

/// Zeros, without the memory.
struct Zeros(usize);

impl Buf for Zeros {
    fn remaining(&self) -> usize {
        self.0
    }

    fn chunk(&self) -> &[u8] {
        &[0; 4_096][..self.0.min(4_096)]
    }

    fn advance(&mut self, count: usize) {
        self.0 -= count;
    }
}

/// A rejection's text.
impl From<Bytes> for Zeros {
    fn from(text: Bytes) -> Self {
        Self(text.len())
    }
}

/// A body with this number of frames of half a terabyte.
struct Frames(u64);

impl Body for Frames {
    type Data = Zeros;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Zeros>, Infallible>>> {
        let Some(left) = self.0.checked_sub(1) else { return Poll::Ready(None) };
        self.0 = left;
        Poll::Ready(Some(Ok(Frame::data(Zeros(usize::try_from(TERABYTE / 2).unwrap())))))
    }
}

/// Sends a request whose response has this number of terabytes.
async fn download(layer: &RateLimitLayer, terabytes: u64) -> http::response::Parts {
    let handler =
        service_fn(move |_: Request<()>| async move { Ok::<_, Infallible>(Response::new(Frames(2 * terabytes))) });
    let response = layer.clone().layer(handler).oneshot(Request::new(())).await.unwrap();
    let (parts, mut body) = response.into_parts();
    while body.frame().await.is_some() {}
    parts
}

/// Ten terabytes per month.
async fn serves_ten_terabytes<A: Algorithm>(algorithm: A, policy_field: &str) {
    let clock = ManualClock::starting_at(Timestamp::from_nanos(1_767_225_600_000_000_000));
    let limiter = Arc::new(RateLimiter::new(algorithm, MemoryStore::with_capacity(16).with_clock(clock.clone())));
    let policy = Policy::new("month", limiter).cost(20_000).settle_by_content_bytes();
    let fields = RateLimitFields::draft11().x_ratelimit(ResetForm::DeltaSeconds);
    let layer = RateLimitLayer::builder(policy).fields(fields).build();
    for served in 1..=10 {
        let parts = download(&layer, 1).await;
        assert_eq!(parts.status, StatusCode::OK);
        assert_eq!(parts.headers["ratelimit-policy"].to_str().unwrap(), policy_field);
        let left = 10 * TERABYTE - (served - 1) * TERABYTE - 20_000;
        let state = parts.headers["ratelimit"].to_str().unwrap();
        assert!(state.starts_with(&format!("\"month\";r={left};t=")), "{state}");
        assert_eq!(parts.headers["x-ratelimit-limit"], "10000000000000");
        assert_eq!(parts.headers["x-ratelimit-remaining"].to_str().unwrap(), left.to_string());
        let left = layer.handle().peek("month", "").await.unwrap().decision().remaining();
        assert_eq!(left, 10 * TERABYTE - served * TERABYTE);
    }
    // A wait is advertised as 24.8 days at most, and windows are longer.
    let mut waits = 0;
    loop {
        let parts = download(&layer, 0).await;
        if parts.status == StatusCode::OK {
            break;
        }
        assert_eq!(parts.status, StatusCode::SERVICE_UNAVAILABLE, "a limit of all clients together");
        let wait: u64 = parts.headers["retry-after"].to_str().unwrap().parse().unwrap();
        clock.advance(Duration::from_secs(wait));
        waits += 1;
    }
    assert!((1..=2).contains(&waits), "{waits}");
}

#[tokio::test]
async fn ten_terabytes_are_charged_exactly() {
    let month = Quota::per(10 * TERABYTE, Duration::from_secs(31 * 86_400));
    let field = r#""month";q=10000000000000;qu="content-bytes";w=2678400"#;
    serves_ten_terabytes(TokenBucket::new(month), field).await;
    serves_ten_terabytes(FixedWindow::new(month), field).await;
    serves_ten_terabytes(SlidingWindow::new(month), field).await;
    serves_ten_terabytes(CalendarWindow::monthly(10 * TERABYTE), r#""month";q=10000000000000;qu="content-bytes""#)
        .await;
}
