//! Quotas, costs and counts that 32 bits do not hold, shared by two processes.

use std::convert::Infallible;
use std::panic;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::algorithm::{FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::limiter::{Ask, Mode, Permit};
use tower_sluice::{
    Decision, Limiter, LimiterExt, PartitionKey, Policy, Quota, RateLimitLayer, RateLimiter, SharedConcurrency,
    SharedQueue,
};
use tower_sluice_redis::{Redis, RedisStore, Scripted};

use crate::calendar::monthly;
use crate::support::clients::PLENTY;
use crate::support::redis::RedisServer;
use crate::support::timing::eventually;

/// Ten terabytes.
const LIMIT: u64 = 10_000_000_000_000;

/// The initial charge for a download of unknown size.
const ESTIMATE: u64 = 20_000;

/// Downloads. All but two are larger than 32 bits hold. They leave one byte less than the estimate for one more.
const DOWNLOADS: [u64; 6] = [3_000_000_000_017, 2_500_000_000_001, 7, 4_294_967_296, 0, 4_495_705_012_680];

/// Connects as another process would, with separate connections. The timeout is long, for busy machines.
fn redis(server: &RedisServer) -> Redis {
    Redis::single(server.url()).timeout(PLENTY).connect_timeout(PLENTY).open().unwrap()
}

/// Zeros, without the memory.
struct Zeros(u32);

impl Buf for Zeros {
    fn remaining(&self) -> usize {
        usize::try_from(self.0).unwrap()
    }

    fn chunk(&self) -> &[u8] {
        &[0; 4_096][..self.remaining().min(4_096)]
    }

    fn advance(&mut self, count: usize) {
        self.0 -= u32::try_from(count).unwrap();
    }
}

/// A rejection's text.
impl From<Bytes> for Zeros {
    fn from(text: Bytes) -> Self {
        Self(text.len().try_into().unwrap())
    }
}

/// A body with this number of bytes, in frames up to two gigabytes.
struct Download(u64);

impl Body for Download {
    type Data = Zeros;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Zeros>, Infallible>>> {
        if self.0 == 0 {
            return Poll::Ready(None);
        }
        let frame = self.0.min(2_000_000_000);
        self.0 -= frame;
        Poll::Ready(Some(Ok(Frame::data(Zeros(u32::try_from(frame).unwrap())))))
    }
}

async fn download(layer: &RateLimitLayer, bytes: u64) -> StatusCode {
    let handler = service_fn(move |_: Request<()>| async move { Ok::<_, Infallible>(Response::new(Download(bytes))) });
    let response = layer.clone().layer(handler).oneshot(Request::new(())).await.unwrap();
    let (parts, mut body) = response.into_parts();
    while body.frame().await.is_some() {}
    parts.status
}

/// Two processes with one limit per month.
fn processes<A: Scripted>(server: &RedisServer, algorithm: &A) -> [RateLimitLayer; 2] {
    [(); 2].map(|()| {
        let limiter = RateLimiter::new(algorithm.clone(), RedisStore::new(&redis(server), "month"));
        RateLimitLayer::new(Policy::new("month", limiter).cost(ESTIMATE).settle_by_content_bytes())
    })
}

async fn left(layer: &RateLimitLayer) -> u64 {
    layer.handle().peek("month", &PartitionKey::SHARED).await.unwrap().decision().remaining()
}

/// Each byte is counted once, in either process, and the other one sees it.
async fn windows_count_to_the_byte<A: Scripted>(algorithm: A) {
    let server = RedisServer::start();
    let layers = processes(&server, &algorithm);
    let mut sent = 0;
    for (number, bytes) in DOWNLOADS.into_iter().enumerate() {
        assert_eq!(download(&layers[number % 2], bytes).await, StatusCode::OK);
        sent += bytes;
        eventually("the other process sees the bytes", async || left(&layers[1 - number % 2]).await == LIMIT - sent)
            .await;
        assert_eq!(left(&layers[number % 2]).await, LIMIT - sent);
    }
    assert_eq!(LIMIT - sent, ESTIMATE - 1);
    for layer in &layers {
        assert_eq!(download(layer, 0).await, StatusCode::SERVICE_UNAVAILABLE, "the estimate does not fit");
    }
    let rest = RateLimiter::new(algorithm, RedisStore::new(&redis(&server), "month"));
    let rest = |cost| rest.decide(&Ask::charge(&PartitionKey::SHARED, cost)).decided();
    let last = rest(ESTIMATE - 1).await.unwrap();
    assert!(last.is_allowed() && last.remaining() == 0, "{last:?}");
    assert!(rest(1).await.unwrap().retry_after().is_some());
}

#[tokio::test]
async fn windows_of_terabytes_count_to_the_byte() {
    let month = Quota::per(LIMIT, Duration::from_secs(30 * 86_400));
    windows_count_to_the_byte(FixedWindow::new(month)).await;
    windows_count_to_the_byte(SlidingWindow::new(month)).await;
    windows_count_to_the_byte(monthly(LIMIT)).await;
}

/// When the server's only key will be paid for, in 1/625 microseconds; a byte costs 162 of them.
fn paid_for(server: &RedisServer) -> u64 {
    let keys: Vec<String> = server.run(&["KEYS", "sluice:*:month:b"]);
    let state: String = server.run(&["GET", &keys[0]]);
    let (micros, parts) = state.strip_prefix('-').unwrap().split_once('+').unwrap_or((&state[1..], "0"));
    // Behind its rate's mark.
    micros[3..].parse::<u64>().unwrap() * 625 + parts.parse::<u64>().unwrap()
}

/// A bucket restores 3.9 MB in each second, but each byte moves the payment time by the same amount.
#[tokio::test]
async fn buckets_of_terabytes_charge_to_the_byte() {
    let server = RedisServer::start();
    let layers = processes(&server, &TokenBucket::new(Quota::per(LIMIT, Duration::from_secs(30 * 86_400))));
    let began = Instant::now();
    let [first, others @ ..] = DOWNLOADS;
    assert_eq!(download(&layers[0], first).await, StatusCode::OK);
    eventually("the bytes are charged", async || left(&layers[1]).await < LIMIT - first + 1_000_000_000_000).await;
    let restored = left(&layers[1]).await - (LIMIT - first);
    assert!(restored <= 3_858_025 * (began.elapsed().as_secs() + 1), "{restored}");
    let begins = paid_for(&server);
    let mut sent = 0;
    for (number, bytes) in others.into_iter().enumerate() {
        assert_eq!(download(&layers[1 - number % 2], bytes).await, StatusCode::OK);
        sent += bytes;
        eventually("all bytes are charged", async || paid_for(&server) == begins + 162 * sent).await;
    }
}

/// A billion units per millisecond: each request costs more than 32 bits hold.
#[tokio::test]
async fn a_queue_spaces_wide_requests() {
    let server = RedisServer::start();
    let quota = Quota::per_second(1_000_000_000_000);
    let queues = [(); 2].map(|()| {
        SharedQueue::new(redis(&server), "test", quota).max_queue(usize::MAX).max_wait(Duration::from_secs(300))
    });
    let key = PartitionKey::from("a");
    let reserve = async |queue: &SharedQueue<Redis>, cost: u64| -> Decision {
        queue.decide(&Ask::charge(&key, cost).to(Mode::Shadow)).decided().await.unwrap()
    };
    let began = Instant::now();
    assert_eq!(reserve(&queues[0], 60_000_000_000_000).await.delay(), Duration::ZERO);
    let second = reserve(&queues[1], 100_000_000_000_000).await;
    let third = reserve(&queues[0], 1 << 33).await;
    let elapsed = began.elapsed();
    for (decision, wait) in [(second, Duration::from_secs(60)), (third, Duration::from_secs(160))] {
        assert!(decision.is_allowed());
        assert!(decision.delay() <= wait && decision.delay() + elapsed >= wait, "{decision:?}");
    }
    // A returned reservation is taken by the next request for which it is wide enough.
    queues[1].refund(&Ask::charge(&key, 100_000_000_000_000), second.receipt(), 100_000_000_000_000);
    eventually("the reservation is returned", async || {
        let again = reserve(&queues[0], 99_999_999_999_999).await;
        again.delay() <= Duration::from_secs(60)
    })
    .await;
    // At the most, the first unit and the units of 300 seconds at the rate pass.
    assert_eq!(queues[0].describe().max_cost(), Some(300_000_000_000_001));
    assert_eq!(reserve(&queues[1], 300_000_000_000_002).await.retry_after(), None);
}

#[tokio::test]
async fn two_processes_count_bytes_in_flight() {
    let server = RedisServer::start();
    let [here, there] = [(); 2].map(|()| SharedConcurrency::new(redis(&server), "bytes", LIMIT));
    let key = PartitionKey::from("a");
    let take = async |limiter, units| -> Option<Permit<&SharedConcurrency<Redis>>> {
        LimiterExt::acquire(limiter, &key, units).await.unwrap().admitted()
    };
    let first = take(&here, 6_000_000_000_001).await.unwrap();
    assert!(take(&there, 4_000_000_000_000).await.is_none());
    let second = take(&there, 3_999_999_999_999).await.unwrap();
    assert!(take(&there, 1).await.is_none() && take(&here, 1).await.is_none());
    drop(first);
    eventually("the units are released", async || take(&there, 6_000_000_000_001).await.is_some()).await;
    drop(second);
    let most = SharedConcurrency::new(redis(&server), "most", Quota::MAX_UNITS);
    assert!(take(&most, Quota::MAX_UNITS).await.is_some());
    let more = panic::catch_unwind(|| SharedConcurrency::new(redis(&server), "more", Quota::MAX_UNITS + 1));
    assert_eq!(
        *more.unwrap_err().downcast::<&str>().unwrap(),
        "the units in flight of a key are at most 999999999999999; count in greater units, such as KiB in place of bytes"
    );
}

/// If no server can keep a quota, its constructor panics, and names the bound and the cure.
#[tokio::test]
async fn unfit_quotas_name_the_cure() {
    let redis = Redis::open("redis://127.0.0.1:1").unwrap();
    let fine = Quota::per(Quota::MAX_UNITS, Duration::from_nanos(1_000_000_001));
    let message = "Redis has the time in microseconds, and this quota is exact only in 999999999999999000 parts of one, \
                   more than 4503599627370496; make the period a whole number of microseconds";
    let refusal = |build: &dyn Fn()| {
        let panic = panic::catch_unwind(panic::AssertUnwindSafe(build)).unwrap_err();
        *panic.downcast::<String>().unwrap()
    };
    let bucket = refusal(&|| drop(RateLimiter::new(TokenBucket::new(fine), RedisStore::new(&redis, "a"))));
    assert!(bucket.ends_with(message), "{bucket}");
    assert_eq!(refusal(&|| drop(SharedQueue::new(redis.clone(), "b", fine))), message);
    let error = SharedQueue::check_fit(&redis, &fine, 1, Duration::from_secs(1)).unwrap_err();
    assert_eq!(error.to_string(), message);
    // Whole microseconds are fine with these units, and so are 10^15 per day.
    let whole = Quota::per(Quota::MAX_UNITS, Duration::from_micros(1_000_001));
    for quota in [whole, Quota::per_day(Quota::MAX_UNITS)] {
        TokenBucket::new(quota).fits().unwrap();
        SlidingWindow::new(quota).fits().unwrap();
        SharedQueue::check_fit(&redis, &quota, 1, Duration::from_secs(1)).unwrap();
    }
}
