//! Runtimes that end, calls that are cancelled, and log lines.

use tokio::runtime::Builder;

use super::proxy::{Mode, Proxy};
use super::servers::await_until;
use super::*;
use crate::support::log::Log;

#[test]
fn runtimes_come_and_go() {
    let server = RedisServer::start();
    let redis = patient(&server);
    for sum in 1..=5 {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        assert_eq!(runtime.block_on(charge(&redis, "a")), Ok(sum));
    }
    // A runtime that exists but does not run delays no other runtime.
    let idle = Builder::new_current_thread().enable_all().build().unwrap();
    let redis = patient(&server);
    assert_eq!(idle.block_on(charge(&redis, "b")), Ok(1));
    let other = Builder::new_current_thread().enable_all().build().unwrap();
    for sum in 1..=5 {
        assert_eq!(other.block_on(charge(&redis, "c")), Ok(sum));
    }
    assert_eq!(idle.block_on(charge(&redis, "b")), Ok(2));
}

#[test]
fn outside_a_runtime_calls_are_faults() {
    let redis = Redis::open("redis://127.0.0.1:1").unwrap();
    let call = add("a");
    let mut future = std::pin::pin!(redis.call(&call));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let std::task::Poll::Ready(Err(fault)) = future.as_mut().poll(&mut context) else {
        panic!("it waits");
    };
    assert_eq!(fault.kind(), FaultKind::NoRuntime);
}

/// The sum of such a timeout and the time would overflow.
#[tokio::test]
async fn endless_timeouts_are_cut() {
    let builder = Redis::single(format!("redis://127.0.0.1:{}", servers::free_port()));
    let redis = builder.timeout(Duration::MAX).connect_timeout(Duration::MAX).open().unwrap();
    assert_eq!(charge(&redis, "a").await, Err(FaultKind::Unreachable));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_calls_leave_nothing_behind() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.address());
    // The timeout is long, so these calls do not fail by themselves.
    let redis = Redis::single(proxy.url()).timeout(PLENTY * 6).max_in_flight(4);
    let redis = redis.connect_timeout(PLENTY).open().unwrap();
    assert_eq!(charge(&redis, "a").await, Ok(1));
    proxy.set(Mode::BlackHole);
    for _ in 0..100 {
        let call = add("a");
        let given_up = tokio::time::timeout(Duration::from_millis(1), redis.call(&call)).await;
        assert!(given_up.is_err(), "{given_up:?}");
    }
    assert_eq!(redis.health()[0].in_flight(), Some(0));
    proxy.set(Mode::Pass);
    assert!(charge(&redis, "a").await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connecting_continues_for_later_calls() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.address());
    // Connecting takes longer than a call may.
    proxy.set(Mode::Latency(Duration::from_millis(200)));
    let redis = Redis::single(proxy.url()).timeout(Duration::from_millis(50)).connect_timeout(PLENTY).open().unwrap();
    assert_eq!(charge(&redis, "a").await, Err(FaultKind::TimedOut));
    await_until("it is connected", || redis.health()[0].is_connected() == Some(true));
    assert_eq!(proxy.connections(), 1);
}

#[test]
fn transitions_are_logged_once_without_passwords() {
    let (log, _guard) = Log::start();
    let lines = || {
        let lines = log.lines();
        assert!(!lines.iter().any(|line| line.contains("geheim")), "{lines:?}");
        lines
    };
    let mut server = RedisServer::with(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
    server.run::<()>(&["CONFIG", "SET", "requirepass", "geheim"]);
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let url = server.url().replace("//", "//:geheim@");
        let redis = Redis::single(url).timeout(PLENTY).connect_timeout(PLENTY).open().unwrap();
        assert_eq!(charge(&redis, "a").await, Ok(1));
        eventually("it is warned of", async || !lines().is_empty()).await;
        let [evicts] = &lines()[..] else { panic!("{:?}", lines()) };
        assert!(evicts.contains("WARN") && evicts.contains("allkeys-lru"), "{evicts}");
        server.kill();
        // Probes that fail are not logged.
        let mut failed = 0;
        eventually("probes fail", async || {
            failed += u32::from(charge(&redis, "a").await.unwrap_err() != FaultKind::BreakerOpen);
            failed >= 8
        })
        .await;
        let [_, given_up] = &lines()[..] else { panic!("{:?}", lines()) };
        let address = server.address().to_string();
        assert!(given_up.contains("keeps failing") && given_up.contains(&address), "{given_up}");
        server.restart();
        recovers(&redis, "a").await;
        let [_, _, back] = &lines()[..] else { panic!("{:?}", lines()) };
        assert!(back.contains("is back") && back.contains(&address), "{back}");
    });
}
