//! Redis from several runtimes, none of which delays the calls, or the waiters, of another; and from outside of any.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::clients::{at_most, key};
use crate::support::proxy::Proxy;
use crate::support::redis::RedisServer;
use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::runtime::Builder;
use tokio::time::timeout;
use tower_sluice::store::redis::{Fault, FaultKind, Redis, RedisStore};
use tower_sluice::{Ask, Limiter, PartitionKey, Quota, RateLimiter, RedisConcurrency, RedisQueue};

use super::deadlines::{DISTANCES, ms};

/// A runtime that lives, but does not run: it made the connection, and leads the calls of a key.
struct Blocked {
    release: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Blocked {
    /// Runs `begin` on a runtime of its own, then blocks it for as long as this lives.
    fn after<F: Future<Output = T>, T>(begin: impl FnOnce() -> F + Send + 'static) -> Self {
        let release = Arc::new(AtomicBool::new(false));
        let (is_released, (sender, blocked)) = (Arc::clone(&release), std::sync::mpsc::channel());
        let thread = thread::spawn(move || {
            Builder::new_current_thread().enable_all().build().unwrap().block_on(async move {
                let kept = begin().await;
                sender.send(()).unwrap();
                while !is_released.load(Ordering::Relaxed) {
                    thread::sleep(ms(1));
                }
                drop(kept);
            });
        });
        blocked.recv().unwrap();
        Self { release, thread: Some(thread) }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        self.release.store(true, Ordering::Relaxed);
        let ended = self.thread.take().unwrap().join();
        assert!(thread::panicking() || ended.is_ok());
    }
}

#[tokio::test]
async fn a_blocked_runtime_delays_no_other() {
    for (round_trip, _) in DISTANCES {
        let server = RedisServer::start();
        let proxy = Proxy::at(server.address(), round_trip);
        let redis = Redis::single(proxy.url()).timeout(Duration::from_secs(1)).open().unwrap();
        let limiter = Arc::new(RateLimiter::new(at_most(10_000), RedisStore::new(&redis, "p")));
        let leader = Arc::clone(&limiter);
        let _blocked = Blocked::after(move || async move {
            let _ = leader.decide(&Ask::charge(&key("a"), 1)).decided().await.unwrap();
            // Another call of that key, and one that follows it, and is never heard of again.
            let mut calls = [
                leader.decide(&Ask::charge(&key("a"), 1)).decided(),
                leader.decide(&Ask::charge(&key("a"), 1)).decided(),
            ]
            .map(Box::pin);
            for call in &mut calls {
                assert!(call.now_or_never().is_none());
            }
            tokio::task::yield_now().await;
            calls
        });
        let failures = AtomicUsize::new(0);
        let start = Instant::now();
        join_all((0..20).map(|number| {
            let (limiter, failures) = (&limiter, &failures);
            async move {
                for name in ["a", &number.to_string()] {
                    if limiter.decide(&Ask::charge(&key(name), 1)).decided().await.is_err() {
                        failures.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        }))
        .await;
        println!("{round_trip:?}: {failures:?} of 40 failed, in {:?}", start.elapsed());
        assert_eq!(failures.into_inner(), 0, "{round_trip:?}: of 40, while another runtime was blocked");
    }
}

/// The runtime that connected first, and has the first waiter, may be blocked, idle, or gone.
#[tokio::test]
async fn turns_in_a_queue_come_on_time_whatever_another_runtime_does() {
    for case in ["blocked", "idle", "gone", "none"] {
        let server = RedisServer::start();
        let proxy = Proxy::at(server.address(), ms(3));
        let redis = Redis::single(proxy.url()).timeout(Duration::from_secs(1)).open().unwrap();
        let queue = Arc::new(RedisQueue::new(&redis, "q", Quota::per_second(20)).capacity(100));
        let first = Arc::clone(&queue);
        let begin = || async move {
            assert!(first.decide(&Ask::charge(&PartitionKey::SHARED, 1)).decided().await.unwrap().is_allowed());
            let mut waits = Box::pin(first.decide(&Ask::charge(&PartitionKey::SHARED, 1)).decided());
            // Until it has its reservation.
            let _ = timeout(ms(20), &mut waits).await;
            Some(waits)
        };
        let mut kept: Vec<Box<dyn std::any::Any + Send>> = Vec::new();
        match case {
            "blocked" => kept.push(Box::new(Blocked::after(begin))),
            "none" => {}
            _ => {
                let other = thread::spawn(move || {
                    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
                    let waits = runtime.block_on(begin());
                    (runtime, waits)
                });
                let (runtime, waits) = other.join().unwrap();
                if case == "gone" {
                    runtime.shutdown_background();
                } else {
                    kept.push(Box::new(runtime));
                }
                kept.push(Box::new(waits));
            }
        }
        let start = Instant::now();
        let waits = (0..6).map(|_| async {
            let decision = queue.decide(&Ask::charge(&PartitionKey::SHARED, 1)).decided().await;
            assert!(decision.as_ref().is_ok_and(|it| it.is_allowed()), "{case}: {decision:?}");
            start.elapsed()
        });
        let mut left = join_all(waits).await;
        left.sort_unstable();
        // The first turn is not known exactly; the others come at intervals of 50 ms.
        let gaps: Vec<_> = left.iter().zip(0..).map(|(left, turn)| left.saturating_sub(ms(50) * turn)).collect();
        let spread = *gaps.iter().max().unwrap() - *gaps.iter().min().unwrap();
        println!("{case}: the first after {:?}, then within {spread:?} of their turns", left[0]);
        assert!(left[0] < ms(300) && spread < ms(100), "{case}: {left:?}");
        // A runtime is not dropped within another.
        thread::spawn(move || drop(kept)).join().unwrap();
    }
}

/// The runtime that is blocked has a request whose answer it does not read.
#[tokio::test]
async fn what_is_in_flight_is_renewed_while_another_runtime_is_blocked() {
    let server = RedisServer::start();
    let redis = Redis::single(server.url()).timeout(Duration::from_secs(1)).open().unwrap();
    let limiter = Arc::new(RedisConcurrency::new(&redis, "in-flight", 9).lease(Duration::from_secs(2)));
    let theirs = Arc::clone(&limiter);
    let blocked = Blocked::after(move || async move {
        let permit = theirs.acquire(&key("a"), 2).await.unwrap().unwrap();
        let mut unread = Box::pin(theirs.acquire(&key("a"), 1));
        assert!((&mut unread).now_or_never().is_none());
        tokio::task::yield_now().await;
        (permit, unread)
    });
    let permit = limiter.acquire(&key("a"), 1).await.unwrap().unwrap();
    let counted = |server: &RedisServer| -> u32 {
        let names: Vec<String> = server.run(&["KEYS", "*:in-flight:n"]);
        let fields = |name: &String| -> Vec<String> { server.run(&["HVALS", name]) };
        let units = |field: &String| field[1..].split(':').next().unwrap().parse::<u32>().unwrap();
        names.iter().flat_map(fields).map(|field| units(&field)).sum()
    };
    let other = RedisConcurrency::new(&redis, "in-flight", 9);
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(5) {
        tokio::time::sleep(ms(50)).await;
        let decision = other.decide(&Ask::charge(&key("a"), 0)).decided().await.unwrap();
        assert!(decision.remaining() <= 6, "after {:?}: {decision:?}", began.elapsed());
    }
    drop(blocked);
    drop(permit);
    while counted(&server) > 0 {
        assert!(began.elapsed() < Duration::from_secs(15), "{} are not released", counted(&server));
        tokio::time::sleep(ms(5)).await;
    }
}

/// The first of a line is on the runtime that is blocked. A waiter of another runtime asks in its place.
#[tokio::test]
async fn waiters_for_units_are_served_while_the_runtime_of_the_first_is_blocked() {
    let server = RedisServer::start();
    let open = || Redis::single(server.url()).timeout(Duration::from_secs(1)).open().unwrap();
    let limiter = Arc::new(RedisConcurrency::new(&open(), "in-flight", 1).queue(9));
    let other = RedisConcurrency::new(&open(), "in-flight", 1);
    let permit = other.acquire(&key("a"), 1).await.unwrap().unwrap();
    let theirs = Arc::clone(&limiter);
    let blocked = Blocked::after(move || async move {
        let mut first = Box::pin(theirs.acquire(&key("a"), 1));
        while theirs.stats().backlog.unwrap().waiting() == 0 {
            let _ = timeout(ms(2), &mut first).await;
        }
        Some(first)
    });
    let behind = limiter.acquire(&key("a"), 1);
    drop(permit);
    let permit = timeout(Duration::from_secs(15), behind).await.expect("it is served").unwrap();
    assert!(permit.is_some());
    drop(blocked);
    drop(permit);
    let began = Instant::now();
    while limiter.stats().in_flight != Some(0) || limiter.stats().backlog.unwrap().waiting() > 0 {
        assert!(began.elapsed() < Duration::from_secs(15), "{:?}", limiter.stats());
        tokio::time::sleep(ms(5)).await;
    }
}

/// A lease is taken in a task, which cannot be spawned there.
#[test]
fn a_leased_key_is_an_error_outside_of_a_runtime() {
    let server = RedisServer::start();
    let redis = Redis::single(server.url()).timeout(Duration::from_secs(5)).open().unwrap();
    let store = RedisStore::new(&redis, "p").leasing(100, Duration::from_secs(600)).without_coalescing();
    let limiter = RateLimiter::new(at_most(10_000), store);
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    assert!(runtime.block_on(limiter.decide(&Ask::charge(&key("a"), 1)).decided()).unwrap().is_allowed());
    let outside = limiter.decide(&Ask::charge(&key("a"), 1)).decided().now_or_never().expect("it fails at once");
    let error = outside.unwrap_err();
    let fault = std::error::Error::source(&error).and_then(|source| source.downcast_ref::<Fault>()).unwrap();
    assert_eq!(fault.kind(), FaultKind::NoRuntime);
}
