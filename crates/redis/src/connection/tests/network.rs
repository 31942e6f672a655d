//! Network faults.

use futures_util::FutureExt;

use super::proxy::{Mode, Proxy};
use super::*;

/// A timeout that each call without an answer waits for. Ten times a call's duration on a busy machine.
const TIMEOUT: Duration = Duration::from_millis(200);

fn through(proxy: &Proxy) -> Redis {
    Redis::single(proxy.url()).timeout(TIMEOUT).open().unwrap()
}

/// For faults that are noticed at once, without a timeout.
fn patient_through(proxy: &Proxy) -> Redis {
    Redis::single(proxy.url()).timeout(PLENTY).connect_timeout(PLENTY).open().unwrap()
}

/// Waits until the first call succeeds: the first connection may take longer than a call.
async fn warm(redis: &Redis) {
    recovers(redis, "warm").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_connection_opens_the_breaker() {
    const CALLS: u32 = 1_000;
    let mut server = RedisServer::start();
    let redis = patient(&server);
    assert_eq!(charge(&redis, "a").await, Ok(1));
    let start = Instant::now();
    for _ in 0..CALLS {
        assert!(charge(&redis, "a").await.is_ok());
    }
    let made = start.elapsed();
    server.kill();
    servers::await_until("it is noticed", || redis.health()[0].is_connected() == Some(false));
    assert_eq!(fails_until_open(&redis, "a").await, [FaultKind::Unreachable; 5]);
    let mut probes = 0;
    some_attempt_async("a call that is not made takes less time than one that is", async || {
        let start = Instant::now();
        for _ in 0..CALLS {
            let call = add("a");
            let mut call = std::pin::pin!(redis.call(&call));
            let reason = match (&mut call).now_or_never() {
                Some(answer) => answer.expect_err("no server is there").kind(),
                None => {
                    probes += 1;
                    call.await.expect_err("no server is there").kind()
                }
            };
            assert!(matches!(reason, FaultKind::BreakerOpen | FaultKind::Unreachable), "{reason:?}");
        }
        let rejected = start.elapsed();
        if rejected < made / 2 { Ok(()) } else { Err(format!("{rejected:?}, and {made:?} for calls that are made")) }
    })
    .await;
    println!("{probes} calls were probes");
    server.restart();
    recovers(&redis, "a").await;
    assert_eq!(state(&redis), BreakerState::Closed);
}

/// Once the breaker is open, calls fail at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn black_holes_cost_one_timeout_per_call() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.address());
    let redis = through(&proxy);
    warm(&redis).await;
    proxy.set(Mode::BlackHole);
    let mut waits = Vec::new();
    // Five calls wait until the breaker opens, and then the probes, each after a pause. All others fail at once.
    let mut rejected = 0;
    while rejected < 200 {
        let began = Instant::now();
        match charge(&redis, "a").await {
            Err(FaultKind::BreakerOpen) => rejected += 1,
            Err(FaultKind::TimedOut) => waits.push(began.elapsed()),
            // On a busy machine, some calls fail in another way.
            Err(_) => {}
            Ok(_) => panic!("nothing answers"),
        }
        assert!(rejected > 0 || waits.len() < 300, "the breaker stays closed");
    }
    assert!(waits.len() >= 5, "{waits:?}");
    assert!(*waits.iter().min().unwrap() < TIMEOUT * 2, "{waits:?}");
    proxy.set(Mode::Pass);
    recovers(&redis, "a").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_open_connection_is_replaced() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.address());
    let redis = through(&proxy);
    warm(&redis).await;
    // The connection is dead for good, without any sign: it must be replaced.
    proxy.set(Mode::HalfOpen);
    fail_until_open(&redis, "a", 3).await;
    proxy.set(Mode::Pass);
    recovers(&redis, "a").await;
    assert!(proxy.connections() > 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_to_a_slow_server_are_bounded() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.address());
    let redis = Redis::single(proxy.url()).timeout(TIMEOUT).max_in_flight(256).open().unwrap();
    warm(&redis).await;
    // On a busy machine, a call may read the time only long after its timeout, and must not find an answer then.
    proxy.set(Mode::Latency(Duration::from_secs(3_600)));
    let calls: Vec<_> = (0..10_000)
        .map(|_| {
            let redis = redis.clone();
            tokio::spawn(async move {
                let reason = charge(&redis, "a").await.expect_err("it is too slow");
                assert!(redis.health()[0].in_flight() <= Some(256));
                reason
            })
        })
        .collect();
    for call in calls {
        let reason = call.await.unwrap();
        assert!(
            matches!(reason, FaultKind::TimedOut | FaultKind::TooManyInFlight | FaultKind::BreakerOpen),
            "{reason:?}"
        );
    }
    assert_eq!(redis.health()[0].in_flight(), Some(0));
    proxy.set(Mode::Pass);
    recovers(&redis, "other").await;
    // The maximum number of calls in flight, the same number again when the first of them give up, and a probe or two.
    // A busy machine begins more before it notices that the first have failed.
    let sent = charged(&server, "a");
    assert!((1..5_000).contains(&sent), "{sent} of 10,000 were sent");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flapping_opens_the_breaker_once_per_outage() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.address());
    let redis = patient_through(&proxy);
    let mut charges = 0;
    let mut unknown = 0;
    let mut opened = 0;
    let mut call = async || {
        let was = state(&redis);
        match charge(&redis, "a").await {
            Ok(_) => charges += 1,
            Err(FaultKind::TimedOut | FaultKind::Disconnected) => unknown += 1,
            Err(_) => {}
        }
        let is = state(&redis);
        opened += u32::from(was == BreakerState::Closed && is != BreakerState::Closed);
        sleep(Duration::from_millis(1)).await;
        is
    };
    for _ in 0..6 {
        eventually("it works", async || call().await == BreakerState::Closed).await;
        for _ in 0..50 {
            call().await;
        }
        proxy.set(Mode::Reset);
        eventually("the breaker opens", async || matches!(call().await, BreakerState::Open { .. })).await;
        for _ in 0..100 {
            call().await;
        }
        proxy.set(Mode::Pass);
    }
    assert_eq!(opened, 6, "it was down six times");
    assert!(charges > 0);
    let excess = charged(&server, "a") - charges;
    assert!((0..=unknown).contains(&excess), "{excess} more were charged, for {unknown} of unknown outcome");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_keeps_its_charge() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.address());
    // Long enough for each call to be sent.
    let redis = Redis::single(proxy.url()).timeout(Duration::from_secs(1)).open().unwrap();
    warm(&redis).await;
    proxy.set(Mode::Swallow);
    let reasons = fail_until_open(&redis, "a", 3).await;
    assert!(reasons.iter().all(|reason| *reason == FaultKind::TimedOut), "{reasons:?}");
    let lost = i64::try_from(reasons.len()).unwrap();
    servers::await_until("all arrived", || charged(&server, "a") >= lost);
    proxy.set(Mode::Pass);
    recovers(&redis, "b").await;
    assert_eq!(charged(&server, "a"), lost, "charged once each");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_never_charges_twice() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.address());
    let redis = patient_through(&proxy);
    let mut charges = 0;
    let mut unknown = 0;
    for round in 0..20 {
        // While calls are in flight.
        let calls: Vec<_> = (0..20)
            .map(|_| {
                let redis = redis.clone();
                tokio::spawn(async move { charge(&redis, "a").await })
            })
            .collect();
        if round % 2 == 0 {
            proxy.set(Mode::Reset);
        }
        for call in calls {
            match call.await.unwrap() {
                Ok(_) => charges += 1,
                Err(FaultKind::Disconnected | FaultKind::TimedOut) => unknown += 1,
                Err(_) => {}
            }
        }
        proxy.set(Mode::Pass);
        recovers(&redis, "other").await;
    }
    let excess = charged(&server, "a") - charges;
    assert!(charges > 0 && (0..=unknown).contains(&excess), "{charges} + {unknown}: {excess} more were charged");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_may_arrive_byte_by_byte() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.address());
    proxy.set(Mode::Slices);
    let redis = patient_through(&proxy);
    for sum in 1..=50 {
        assert_eq!(charge(&redis, "a").await, Ok(sum));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_connection_is_replaced_silently() {
    let server = RedisServer::start();
    let redis = patient(&server);
    for sum in 1..=20 {
        assert_eq!(charge(&redis, "a").await, Ok(sum));
        // Like a server or a load balancer that closes idle connections.
        server.run::<i64>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        servers::await_until("it is noticed", || redis.health()[0].is_connected() == Some(false));
    }
    assert_eq!(state(&redis), BreakerState::Closed);
}
