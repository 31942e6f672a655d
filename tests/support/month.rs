//! A monthly limit of ten terabytes, charged by bodies that report a length and hold no bytes.

use std::convert::Infallible;
use std::future::{poll_fn, ready};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http::{Request, Response};
use http_body::{Body, Frame};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::key::User;
use tower_sluice::layer::ResponseBody;
use tower_sluice::testing::Random;
use tower_sluice::{Limiter, Policy, RateLimitLayer};

/// The limit: more than 2^43.
pub(crate) const MONTH_BYTES: u64 = 10_000_000_000_000;

/// The charge when a request comes.
const ESTIMATE: u64 = 20_000;

/// A buffer that reports this many bytes, and holds none in memory.
struct Bulk(usize);

impl Buf for Bulk {
    fn remaining(&self) -> usize {
        self.0
    }

    fn chunk(&self) -> &[u8] {
        &[]
    }

    fn advance(&mut self, count: usize) {
        self.0 -= count;
    }
}

impl From<Bytes> for Bulk {
    fn from(bytes: Bytes) -> Self {
        Self(bytes.len())
    }
}

/// A body with two frames.
struct BulkBody {
    frames: [u64; 2],
    sent: usize,
}

impl Body for BulkBody {
    type Data = Bulk;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bulk>, Infallible>>> {
        let next = self.frames.get(self.sent).map(|bytes| Bulk(usize::try_from(*bytes).expect("64 bits")));
        self.sent += 1;
        Poll::Ready(next.map(|data| Ok(Frame::data(data))))
    }
}

/// One process, with this limiter for bytes.
pub(crate) fn downloads(limiter: impl Limiter) -> RateLimitLayer {
    let policy = Policy::new("downloads", Arc::new(limiter)).key(User::key()).cost(ESTIMATE).settle_by_content_bytes();
    RateLimitLayer::new(policy)
}

/// A process's response, whose body was not read yet.
type Answer = Response<ResponseBody<BulkBody>>;

/// Sends a request whose response has this many bytes.
async fn answer(layer: &RateLimitLayer, bytes: u64) -> Answer {
    let handler = service_fn(move |_: Request<()>| {
        let body = BulkBody { frames: [bytes / 3, bytes - bytes / 3], sent: 0 };
        ready(Ok::<_, Infallible>(Response::new(body)))
    });
    let mut request = Request::new(());
    request.extensions_mut().insert(User::new("alice"));
    layer.clone().layer(handler).oneshot(request).await.expect("no error")
}

/// Reads the body to its end. Returns the status.
async fn ended(answer: Answer) -> u16 {
    let (status, mut body) = (answer.status().as_u16(), pin!(answer.into_body()));
    while poll_fn(|cx| body.as_mut().poll_frame(cx)).await.is_some() {}
    status
}

async fn download(layer: &RateLimitLayer, bytes: u64) -> u16 {
    ended(answer(layer, bytes).await).await
}

/// Waits until background charges are made, when no other task has anything to do.
async fn settled() {
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
}

async fn left(layer: &RateLimitLayer) -> u64 {
    settled().await;
    layer.handle().peek("downloads", "alice").await.expect("no call fails").decision().remaining()
}

/// Two processes made by `process` send ten terabytes concurrently, and both know to the byte how much is left.
pub(crate) async fn two_processes_send_a_month(process: impl Fn() -> RateLimitLayer, seed: u64) {
    let (one, other, mut random) = (process(), process(), Random::of_trial(seed));
    let mut expected = MONTH_BYTES;
    while expected > 1_000_000_000_000 {
        // Every second one is shorter than the estimate, and most are longer than 32 bits.
        let sizes = [random.below(2 * ESTIMATE), random.below(490_000_000_000)];
        let statuses = tokio::join!(download(&one, sizes[0]), download(&other, sizes[1]));
        assert_eq!(statuses, (200, 200));
        expected -= sizes[0] + sizes[1];
        assert_eq!((left(&one).await, left(&other).await), (expected, expected));
    }
    assert_eq!(download(&one, expected - 60_001).await, 200);
    assert_eq!(left(&other).await, 60_001);
    assert_eq!((download(&one, 10_000).await, download(&other, 10_000).await, left(&one).await), (200, 200, 40_001));
    // Both estimates fit. Beyond these, both costs together leave one byte.
    let (first, second) = (answer(&one, 30_000).await, answer(&other, 30_000).await);
    let policy = first.headers()["ratelimit-policy"].to_str().expect("text");
    assert!(policy.contains("q=10000000000000;qu=\"content-bytes\""), "{policy}");
    assert_eq!(tokio::join!(ended(first), ended(second)), (200, 200));
    assert_eq!((left(&one).await, left(&other).await), (0, 0));
    assert_eq!((download(&one, 1).await, download(&other, 1).await, download(&process(), 1).await), (429, 429, 429));
}
