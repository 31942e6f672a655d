//! A leaky queue's choices: a burst at once, and closing it; and how clients see them through the layer.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use crate::support::effort::rounds;
use crate::support::queue::{KEY, join, settle};
use bytes::Bytes;
use futures_util::FutureExt;
use http::{Request, Response};
use http_body_util::Full;
use tokio::time::advance;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_sluice::limiter::{Answer, Ask, Mode};
use tower_sluice::testing::{Random, seeds};
use tower_sluice::{LeakyQueue, Limiter, Policy, Quota, RateLimitLayer};

const MS: Duration = Duration::from_millis(1);
type Body = Full<Bytes>;

fn is_admitted_now(queue: &LeakyQueue) -> bool {
    matches!(queue.decide(&Ask::charge(&KEY, 1)), Answer::Ready(Ok(decision)) if decision.is_allowed())
}

async fn pass(span: Duration) {
    for _ in 0..span.as_millis() {
        advance(MS).await;
        settle().await;
    }
}

/// nginx's `limit_req` with `burst` and `delay`, as in its source: each request adds one to an excess that leaks at the
/// rate. Above `burst` it is rejected, and above `delay` it waits until the rest has leaked. The units are 1/`INTERVAL`
/// request and whole milliseconds, so that nothing is rounded.
struct Nginx {
    excess: Option<u64>,
    last: u64,
    burst: u64,
    delay: u64,
}

const INTERVAL: u64 = 10;

impl Nginx {
    /// Returns the milliseconds to wait; `None` for a rejection.
    fn arrive(&mut self, now: u64) -> Option<u64> {
        let excess = self.excess.map_or(0, |excess| (excess + INTERVAL).saturating_sub(now - self.last));
        if excess > self.burst * INTERVAL {
            return None;
        }
        (self.excess, self.last) = (Some(excess), now);
        Some(excess.saturating_sub(self.delay * INTERVAL))
    }
}

/// nginx's `burst=B delay=D` corresponds to a burst of D + 1 here (ours counts the first request) and a capacity of B −
/// D.
#[tokio::test(start_paused = true)]
async fn burst_and_capacity_match_nginx() {
    for seed in seeds(rounds(150, 2_000)) {
        let mut random = Random::new(seed);
        let delay = random.below(9);
        let mut nginx = Nginx { excess: None, last: 0, burst: delay + random.below(6), delay };
        let waiters = usize::try_from(nginx.burst - delay).unwrap();
        let quota = Quota::per_second(100).burst(delay + 1);
        let queue = LeakyQueue::new(quota).max_queue(waiters);
        assert_eq!(queue.describe().terms().unwrap().quota().unwrap().max_burst(), nginx.burst + 1);
        let (mut now, mut waiting) = (0, Vec::new());
        for _ in 0..60 {
            let expected = nginx.arrive(now);
            let foretold = queue.decide(&Ask::peek(&KEY, 1)).at_once().unwrap();
            assert_eq!(foretold.is_allowed(), expected.is_some(), "seed {seed} at {now} ms");
            if let Some(wait) = expected {
                assert_eq!(foretold.delay(), Duration::from_millis(wait), "seed {seed} at {now} ms");
            }
            waiting.push(queue.decide(&Ask::charge(&KEY, 1)).decided().boxed());
            let millis = [0, 0, 0, 1, 7, 12][usize::try_from(random.below(6)).unwrap()];
            pass(Duration::from_millis(millis)).await;
            now += millis;
            queue.check_invariants();
        }
    }
}

/// The bucket may look free at the moment at which a waiter is due, but the turn is the waiter's.
#[tokio::test(start_paused = true)]
async fn no_request_overtakes_a_waiter() {
    let queue = LeakyQueue::new(Quota::per_second(100).burst(3)).max_queue(5);
    assert!((0..3).all(|_| is_admitted_now(&queue)));
    let mut waiter = join(&queue);
    // The clock advances, and no task runs: the waiter is due, and its timer has not fired.
    assert!(advance(10 * MS).now_or_never().is_none());
    let late = queue.decide(&Ask::charge(&KEY, 1));
    assert!(matches!(late, Answer::Pending(_)), "{late:?}");
    assert_eq!((&mut waiter).now_or_never().unwrap().unwrap().delay(), 10 * MS);
}

/// The closed queue keeps nothing.
#[tokio::test(start_paused = true)]
async fn a_closed_queue_ends_all_waits() {
    let queue = Arc::new(LeakyQueue::new(Quota::per_second(100)).max_queue(5));
    let handle = Arc::clone(&queue);
    assert!(is_admitted_now(&queue));
    let mut granted = join(&queue);
    pass(10 * MS).await;
    let waiting = [tokio::spawn(join(&queue)), tokio::spawn(join(&queue))];
    let unpolled = join(&queue);
    assert!(matches!(queue.decide(&Ask::charge(&KEY, 1).to(Mode::Shadow)), Answer::Ready(Ok(_))));
    settle().await;

    handle.close();
    handle.close();
    assert_eq!(queue.waiting(), 0);
    settle().await;
    for waiter in waiting {
        assert!(waiter.is_finished());
        assert_eq!(waiter.await.unwrap().unwrap_err().to_string(), "the queue was closed");
    }
    assert!(unpolled.now_or_never().unwrap().is_err());
    // A waiter whose turn had come departs.
    assert!((&mut granted).now_or_never().unwrap().unwrap().is_allowed());
    for cost in [0, 1, u64::from(u32::MAX)] {
        assert!(matches!(queue.decide(&Ask::charge(&KEY, cost)), Answer::Ready(Err(_))), "{cost}");
        assert!(matches!(queue.decide(&Ask::charge(&KEY, cost).to(Mode::Shadow)), Answer::Ready(Err(_))), "{cost}");
    }
    assert_eq!(queue.decide(&Ask::peek(&KEY, 1)).at_once(), None);
    // The driver has ended, and only this test still holds the queue.
    assert_eq!(Arc::strong_count(&queue), 2);
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0);
}

fn hello() -> impl Service<Request<()>, Response = Response<Body>, Error = Infallible, Future: Send> + Clone + Send {
    service_fn(|_| async { Ok(Response::new(Body::from("hello"))) })
}

#[tokio::test(start_paused = true)]
async fn full_queues_answer_429_closed_ones_503() {
    let queue = Arc::new(LeakyQueue::new(Quota::per_second(100)).max_queue(1));
    let policy = Policy::new("queue", Arc::clone(&queue)).status(http::StatusCode::TOO_MANY_REQUESTS);
    let service = RateLimitLayer::new(policy).layer(hello());
    let send = || tokio::spawn(service.clone().oneshot(Request::new(())));
    assert_eq!(send().await.unwrap().unwrap().status(), 200);
    let (waits, late) = (send(), send());
    settle().await;
    assert!(!waits.is_finished() && late.is_finished());
    let rejected = late.await.unwrap().unwrap();
    assert_eq!((rejected.status().as_u16(), rejected.headers()["retry-after"].to_str().unwrap()), (429, "1"));
    queue.close();
    for closed in [waits, send()] {
        assert_eq!(closed.await.unwrap().unwrap().status(), 503);
    }
    assert_eq!(queue.waiting(), 0);
}
