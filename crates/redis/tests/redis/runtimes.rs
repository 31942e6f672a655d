//! Redis from several runtimes, which do not delay each other's calls or waiters; and from outside any runtime.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::runtime::Builder;
use tokio::time::timeout;
use tower_sluice::limiter::{Ask, Permit};
use tower_sluice::{Limiter, LimiterExt, PartitionKey, Quota, RateLimiter, SharedConcurrency, SharedQueue};
use tower_sluice_redis::{Fault, FaultKind, Redis, RedisStore};

use super::deadlines::{DISTANCES, ms};
use crate::support::clients::{PLENTY, at_most, key};
use crate::support::proxy::Proxy;
use crate::support::redis::RedisServer;
use crate::support::timing::{eventually, some_attempt_async};

const SECOND: Duration = Duration::from_secs(1);

/// A runtime that lives, but does not run: it made the connection, and leads a key's calls.
struct Blocked {
    release: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Blocked {
    /// Runs `begin` on a separate runtime, and then blocks that runtime until this is dropped.
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
        some_attempt_async("all are decided within the timeout", async || {
            let redis = Redis::single(proxy.url()).timeout(SECOND).open().unwrap();
            let limiter = Arc::new(RateLimiter::new(at_most(10_000), RedisStore::new(&redis, "p")));
            let leader = Arc::clone(&limiter);
            let _blocked = Blocked::after(move || async move {
                eventually("it is connected", async || {
                    leader.decide(&Ask::charge(&key("a"), 1)).decided().await.is_ok()
                })
                .await;
                // Another call for that key, and a third call behind it that never ends.
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
            let outcome = format!("{round_trip:?}: {failures:?} of 40 failed, in {:?}", start.elapsed());
            println!("{outcome}");
            if failures.into_inner() == 0 { Ok(()) } else { Err(outcome) }
        })
        .await;
    }
}

/// The runtime that connected first, and has the first waiter, may be blocked, idle, or gone.
#[tokio::test]
async fn turns_survive_another_runtimes_stall() {
    for case in ["blocked", "idle", "gone", "none"] {
        some_attempt_async("turns come on time", async || turns_come_on_time(case).await).await;
    }
}

async fn turns_come_on_time(case: &str) -> Result<(), String> {
    let server = RedisServer::start();
    let proxy = Proxy::at(server.address(), ms(3));
    let redis = Redis::single(proxy.url()).timeout(PLENTY).connect_timeout(PLENTY).open().unwrap();
    let queue = Arc::new(SharedQueue::new(redis.clone(), "q", Quota::per_second(20)).max_queue(100));
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
    // A runtime is not dropped within another.
    thread::spawn(move || drop(kept)).join().unwrap();
    if left[0] < ms(300) && spread < ms(100) { Ok(()) } else { Err(format!("{case}: {left:?}")) }
}

/// Takes units, if need be at a further attempt: in a short lease, calls have short timeouts.
async fn take_in_the_end(limiter: &Arc<SharedConcurrency<Redis>>, units: u64) -> Permit<Arc<SharedConcurrency<Redis>>> {
    let mut permit = None;
    eventually("it is admitted", async || {
        permit = limiter.acquire_owned(&key("a"), units).await.ok().and_then(Permit::admitted);
        permit.is_some()
    })
    .await;
    permit.unwrap()
}

/// The blocked runtime has a request whose answer it does not read.
#[tokio::test]
async fn renewals_survive_a_blocked_runtime() {
    some_attempt_async("this machine does not stand still for half a lease", async || {
        let lease = SECOND * 2;
        let server = RedisServer::start();
        let redis = Redis::single(server.url()).timeout(PLENTY).connect_timeout(PLENTY).open().unwrap();
        let limiter = Arc::new(SharedConcurrency::new(redis.clone(), "in-flight", 9).lease(lease));
        let theirs = Arc::clone(&limiter);
        let blocked = Blocked::after(move || async move {
            let permit = take_in_the_end(&theirs, 2).await;
            let mut unread = Box::pin(theirs.acquire_owned(&key("a"), 1));
            assert!((&mut unread).now_or_never().is_none());
            tokio::task::yield_now().await;
            (permit, unread)
        });
        let permit = take_in_the_end(&limiter, 1).await;
        let counted = |server: &RedisServer| -> u32 {
            let names: Vec<String> = server.run(&["KEYS", "*:in-flight:n"]);
            let fields = |name: &String| -> Vec<String> { server.run(&["HVALS", name]) };
            let units = |field: &String| field[1..].split(':').next().unwrap().parse::<u32>().unwrap();
            names.iter().flat_map(fields).map(|field| units(&field)).sum()
        };
        let other = SharedConcurrency::new(redis.clone(), "in-flight", 9);
        let began = Instant::now();
        let mut is_lost = false;
        // Without a renewal, the lease would have ended.
        while began.elapsed() < lease * 3 / 2 && !is_lost {
            tokio::time::sleep(ms(50)).await;
            let decision = other.decide(&Ask::charge(&key("a"), 0)).decided().await.unwrap();
            is_lost = decision.remaining() > 6;
        }
        drop(blocked);
        drop(permit);
        eventually("all are released", async || counted(&server) == 0).await;
        if is_lost { Err("the lease has ended".to_owned()) } else { Ok(()) }
    })
    .await;
}

/// A line's first waiter is on the blocked runtime. A waiter on another runtime asks in its place.
#[tokio::test]
async fn waiters_survive_the_firsts_blocked_runtime() {
    let server = RedisServer::start();
    // A call on the blocked runtime is given up after this time.
    let open = || Redis::single(server.url()).timeout(SECOND).connect_timeout(PLENTY).open().unwrap();
    some_attempt_async("no call takes a second", async || {
        let limiter = Arc::new(SharedConcurrency::new(open(), "in-flight", 1).max_queue(9).max_wait(PLENTY * 6));
        let other = SharedConcurrency::new(open(), "in-flight", 1);
        let permit = other.acquire(&key("a"), 1).await.map_err(|error| error.to_string())?.admitted().unwrap();
        let theirs = Arc::clone(&limiter);
        let blocked = Blocked::after(move || async move {
            let mut first = Box::pin(theirs.acquire_owned(&key("a"), 1));
            while theirs.stats().backlog.unwrap().waiting() == 0 {
                let _ = timeout(ms(2), &mut first).await;
            }
            Some(first)
        });
        let behind = limiter.acquire(&key("a"), 1);
        drop(permit);
        let permit = behind.await.map_err(|error| error.to_string());
        drop(blocked);
        assert!(permit?.is_allowed(), "it is served");
        eventually("nothing is left", async || {
            limiter.stats().in_flight == Some(0) && limiter.stats().backlog.unwrap().waiting() == 0
        })
        .await;
        Ok(())
    })
    .await;
}

/// A lease is taken in a task, which cannot be spawned there.
#[test]
fn leasing_outside_a_runtime_is_an_error() {
    let server = RedisServer::start();
    let redis = Redis::single(server.url()).timeout(PLENTY).connect_timeout(PLENTY).open().unwrap();
    let store = RedisStore::new(&redis, "p").leasing(100, Duration::from_secs(600)).without_coalescing();
    let limiter = RateLimiter::new(at_most(10_000), store);
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    assert!(runtime.block_on(limiter.decide(&Ask::charge(&key("a"), 1)).decided()).unwrap().is_allowed());
    let outside = limiter.decide(&Ask::charge(&key("a"), 1)).decided().now_or_never().expect("it fails at once");
    let error = outside.unwrap_err();
    let fault = std::error::Error::source(&error).and_then(|source| source.downcast_ref::<Fault>()).unwrap();
    assert_eq!(fault.kind(), FaultKind::NoRuntime);
}
