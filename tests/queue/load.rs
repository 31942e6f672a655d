//! The leaky queue beside greedy, absent and failing clients.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use crate::support::queue::{KEY, join, settle};
use bytes::Bytes;
use futures_util::FutureExt;
use http::{Request, Response};
use http_body_util::Full;
use tokio::time::{Instant, advance};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::key::HeaderKey;
use tower_sluice::limiter::{Answer, Ask, Pending};
use tower_sluice::{LeakyQueue, Limiter, PartitionKey, Policy, Quota, RateLimitLayer};

const MS: Duration = Duration::from_millis(1);

/// A future is dropped before its first poll, between any two polls, and after its turn has come unseen. Requests
/// behind it must depart in order and on time, and nothing must be left.
#[tokio::test(start_paused = true)]
async fn a_waiter_may_be_dropped_anywhere() {
    for (looks, millis) in (0..4).flat_map(|looks| (0..25).map(move |millis| (looks, millis))) {
        let queue = LeakyQueue::new(Quota::per_second(100)).max_queue(5);
        let start = Instant::now();
        assert!(matches!(queue.decide(&Ask::charge(&KEY, 1)), Answer::Ready(Ok(_))));
        let mut dropped = join(&queue);
        let others = [tokio::spawn(join(&queue)), tokio::spawn(join(&queue))];
        for _ in 0..looks {
            assert!((&mut dropped).now_or_never().is_none());
        }
        for _ in 0..millis {
            advance(MS).await;
            settle().await;
        }
        drop(dropped);
        queue.check_invariants();
        let mut delays = Vec::new();
        for waiter in others {
            delays.push(waiter.await.unwrap().unwrap().delay());
        }
        // Its turn was at 10 ms, and the next waiter got the rest of that turn.
        let first = millis.clamp(10, 20);
        assert_eq!(delays, [MS * first, MS * (first + 10)], "{looks} looks, dropped at {millis} ms");
        assert_eq!(queue.waiting(), 0);
        assert!(start.elapsed() < MS * 60);
    }
}

/// Jain's index, (Σx)² / (n Σx²), is one if all shares are equal.
#[tokio::test(start_paused = true)]
async fn equal_keys_get_equal_shares() {
    let queue = LeakyQueue::new(Quota::per_second(10)).max_queue(5);
    let mut served = [0_u64; 100];
    let mut waiting: Vec<(usize, Pending)> = Vec::new();
    for milli in 0..2_000_u64 {
        // All keys send ten times faster than allowed, and those with greater numbers send several requests in a row.
        for key in 0..100_u64 {
            if milli % 100 < key / 10 + 1 {
                let index = usize::try_from(key).unwrap();
                match queue.decide(&Ask::charge(&key.into(), 1)) {
                    Answer::Ready(decision) => served[index] += u64::from(decision.unwrap().is_allowed()),
                    Answer::Pending(pending) => waiting.push((index, pending)),
                }
            }
        }
        advance(MS).await;
        settle().await;
        waiting.retain_mut(|(index, pending)| match pending.now_or_never() {
            None => true,
            Some(decision) => {
                served[*index] += u64::from(decision.unwrap().is_allowed());
                false
            }
        });
        queue.check_invariants();
    }
    let (sum, squares): (u64, u64) = (served.iter().sum(), served.iter().map(|x| x * x).sum());
    assert!(sum >= 100 * 19, "{sum} of 2,000 were served");
    assert!(sum * sum * 100 >= 99 * 100 * squares, "{served:?}");
}

/// A key that is flooded ten thousand times a second, beside one with a request now and then.
#[tokio::test(start_paused = true)]
async fn a_hot_key_delays_no_cold_one() {
    let queue = Arc::new(LeakyQueue::new(Quota::per_second(10)).max_queue(50));
    let (hot, cold) = (PartitionKey::from("hot"), PartitionKey::from("cold"));
    let (mut flood, mut asked) = (Vec::new(), Vec::new());
    for milli in 0..10_000_u64 {
        for _ in 0..10 {
            if let Answer::Pending(pending) = queue.decide(&Ask::charge(&hot, 1)) {
                flood.push(pending);
            }
        }
        // Six per second, two in a row: the second must wait for its interval.
        if milli % 333 < 2 {
            let (queue, cold) = (Arc::clone(&queue), cold.clone());
            asked.push(tokio::spawn(async move {
                let start = Instant::now();
                assert!(queue.decide(&Ask::charge(&cold, 1)).decided().await.unwrap().is_allowed());
                start.elapsed()
            }));
        }
        advance(MS).await;
        settle().await;
        if milli % 50 == 0 {
            flood.retain_mut(|pending| pending.now_or_never().is_none());
        }
    }
    let mut waits = Vec::new();
    for asked in asked {
        waits.push(asked.await.unwrap());
    }
    waits.sort();
    let p99 = waits[waits.len() * 99 / 100];
    assert!(p99 <= MS * 100 + MS * 5, "{p99:?}");
    drop(flood);
    assert_eq!(queue.waiting(), 0);
}

/// Waiting tasks are dropped with their runtime, in any order, and so is the driver.
#[test]
fn a_runtime_drops_ten_thousand_waiters() {
    for workers in [1, 2] {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(workers).enable_all().build().unwrap();
        let queue = Arc::new(LeakyQueue::new(Quota::per_hour(1)).max_queue(10_000).max_wait(Duration::MAX));
        runtime.block_on(async {
            assert!(matches!(queue.decide(&Ask::charge(&KEY, 1)), Answer::Ready(Ok(_))));
            let tasks: Vec<_> = (0..10_000).map(|_| tokio::spawn(join(&queue))).collect();
            settle().await;
            assert_eq!((tasks.len(), queue.waiting()), (10_000, 10_000));
        });
        drop(runtime);
        assert_eq!(queue.waiting(), 0);
        assert_eq!(Arc::strong_count(&queue), 1);
    }
}

/// The driver is dropped with its runtime. A waiter that sleeps on another runtime must be woken, so that its own
/// runtime continues.
#[test]
fn another_runtimes_waiters_are_woken() {
    let builder = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (first, second) = (builder(), builder());
    // No turn comes until both wait.
    let queue = LeakyQueue::new(Quota::per_second(1)).max_queue(9).max_wait(Duration::from_secs(10));
    let leads = {
        let _guard = first.enter();
        assert!(matches!(queue.decide(&Ask::charge(&KEY, 1)), Answer::Ready(Ok(_))));
        join(&queue)
    };
    first.block_on(settle());
    let sleeps = second.spawn(join(&queue));
    second.block_on(settle());
    drop((leads, first));
    // This bounds the test: a sleeper that is not woken would sleep for ever.
    let woken = second.block_on(async { tokio::time::timeout(Duration::from_secs(30), sleeps).await });
    assert!(woken.expect("it was not woken").unwrap().unwrap().is_allowed());
    assert_eq!(queue.waiting(), 0);
}

/// All thousand turns come within one millisecond, which is the timer's tick.
#[tokio::test(start_paused = true)]
async fn other_tasks_run_between_releases() {
    let queue = Arc::new(LeakyQueue::new(Quota::per_second(1_000_000)).max_queue(1_000));
    assert!(matches!(queue.decide(&Ask::charge(&KEY, 1)), Answer::Ready(Ok(_))));
    let waiters: Vec<_> = (0..1_000).map(|_| tokio::spawn(join(&queue))).collect();
    let watched = Arc::clone(&queue);
    let watcher = tokio::spawn(async move {
        let mut seen = vec![watched.waiting()];
        while watched.waiting() > 0 {
            tokio::task::yield_now().await;
            seen.push(watched.waiting());
        }
        seen.dedup();
        seen
    });
    settle().await;
    advance(MS).await;
    // A batch is 256, and the first may be released before the watcher looks again.
    let seen = watcher.await.unwrap();
    assert!(seen.windows(2).all(|pair| pair[0] - pair[1] <= 2 * 256), "{seen:?}");
    for waiter in waiters {
        assert!(waiter.await.unwrap().unwrap().is_allowed());
    }
}

/// A panic in the inner service does not affect the queue.
#[tokio::test(start_paused = true)]
async fn a_panic_costs_its_own_request_only() {
    let queue = Arc::new(LeakyQueue::new(Quota::per_second(100)).max_queue(5));
    let policy = Policy::new("queue", Arc::clone(&queue)).key(HeaderKey::from_static("x-key"));
    let inner = service_fn(|request: Request<()>| async move {
        assert!(!request.headers().contains_key("x-panic"), "as asked for");
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("hello")))
    });
    let service = RateLimitLayer::new(policy).layer(inner);
    let send = |panics: bool| {
        let mut request = Request::builder().header("x-key", "a");
        if panics {
            request = request.header("x-panic", "1");
        }
        tokio::spawn(service.clone().oneshot(request.body(()).unwrap()))
    };
    let start = Instant::now();
    let sent = [send(true), send(true), send(false), send(true), send(false)];
    let mut ends = Vec::new();
    for sent in sent {
        let answer = sent.await;
        ends.push((answer.is_ok(), start.elapsed().as_millis() / 10 * 10));
    }
    assert_eq!(ends, [(false, 0), (false, 10), (true, 20), (false, 30), (true, 40)]);
    assert_eq!(queue.waiting(), 0);
}
