//! Faults of the network.

use super::proxy::{Mode, Proxy};
use super::*;

fn through(proxy: &Proxy) -> Redis {
    Redis::single(proxy.url()).timeout(Duration::from_millis(100)).open().unwrap()
}

/// Waits until the first call succeeds: the first connection may take longer than a call.
async fn warm(redis: &Redis) {
    recovers(redis, "warm").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_connection_opens_the_breaker() {
    let mut server = RedisServer::start();
    let redis = Redis::single(server.url()).open().unwrap();
    server.kill();
    assert_eq!(fails_until_open(&redis, "a").await, [FaultKind::Unreachable; 5]);
    let start = Instant::now();
    let mut asked = 0;
    for _ in 0..20_000 {
        match charge(&redis, "a").await.expect_err("no server is there") {
            FaultKind::BreakerOpen => {}
            reason => {
                assert_eq!(reason, FaultKind::Unreachable);
                asked += 1;
            }
        }
    }
    let each = start.elapsed() / 20_000;
    assert!(each < Duration::from_micros(50), "{each:?} for a call that is not made");
    assert!(asked < 20, "{asked} probes in {:?}", start.elapsed());
    server.restart();
    let took = recovers(&redis, "a").await;
    assert!(took < RECOVERY + Duration::from_secs(1), "{took:?}");
    assert_eq!(state(&redis), BreakerState::Closed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_black_hole_costs_one_timeout_per_call_until_the_breaker_opens() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.address());
    let redis = through(&proxy);
    warm(&redis).await;
    proxy.set(Mode::BlackHole);
    let start = Instant::now();
    let (mut timeouts, mut longest) = (0, Duration::ZERO);
    for _ in 0..1_000 {
        let began = Instant::now();
        if charge(&redis, "a").await == Err(FaultKind::TimedOut) {
            timeouts += 1;
        }
        longest = longest.max(began.elapsed());
    }
    // Five until it opens, and then the probes, each after a pause.
    assert!((5..15).contains(&timeouts), "{timeouts} calls of 1,000 waited");
    assert!(longest < Duration::from_millis(600), "a call took {longest:?}");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    proxy.set(Mode::Pass);
    let took = recovers(&redis, "a").await;
    assert!(took < RECOVERY + Duration::from_secs(1), "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_open_connection_is_replaced() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.address());
    let redis = through(&proxy);
    warm(&redis).await;
    // The connection is dead for good, without a sign of it: it must be replaced.
    proxy.set(Mode::HalfOpen);
    fails_until_open(&redis, "a").await;
    proxy.set(Mode::Pass);
    let took = recovers(&redis, "a").await;
    assert!(took < RECOVERY + Duration::from_secs(1), "{took:?}");
    assert!(proxy.connections() > 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_calls_to_a_slow_server_are_bounded() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.address());
    let redis = Redis::single(proxy.url()).timeout(Duration::from_millis(100)).max_in_flight(256).open().unwrap();
    warm(&redis).await;
    // On a busy machine, a call may look at the time only long after its timeout, and must not find an answer then.
    proxy.set(Mode::Latency(Duration::from_secs(2)));
    let start = Instant::now();
    let calls: Vec<_> = (0..10_000)
        .map(|_| {
            let redis = redis.clone();
            tokio::spawn(async move {
                let reason = charge(&redis, "a").await.expect_err("it is too slow");
                assert!(redis.health()[0].in_flight() <= 256);
                reason
            })
        })
        .collect();
    let mut waited = 0_u128;
    for call in calls {
        match call.await.unwrap() {
            FaultKind::TimedOut => waited += 1,
            FaultKind::TooManyInFlight | FaultKind::BreakerOpen => {}
            other => panic!("{other:?}"),
        }
    }
    // As many as may be in flight per timeout, and a probe or two. The breaker opens long before all have waited. On a
    // busy machine, later waves begin before the failures of earlier ones are noticed.
    let waves = start.elapsed().as_millis() / 100 + 1;
    assert!(waited <= 256 * waves + 10 && waited < 5_000, "{waited} waited in {waves} waves");
    assert_eq!(redis.health()[0].in_flight(), 0);
    proxy.set(Mode::Pass);
    recovers(&redis, "a").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flapping_opens_the_breaker_once_per_outage_at_most() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.address());
    let redis = through(&proxy);
    let (mut charges, mut unknown, mut opened) = (0, 0, 0);
    let start = Instant::now();
    let mut was = BreakerState::Closed;
    while start.elapsed() < Duration::from_secs(6) {
        let is_up = start.elapsed().as_millis() / 500 % 2 == 0;
        proxy.set(if is_up { Mode::Pass } else { Mode::Reset });
        match charge(&redis, "a").await {
            Ok(_) => charges += 1,
            Err(FaultKind::TimedOut | FaultKind::Disconnected) => unknown += 1,
            Err(_) => {}
        }
        let is = state(&redis);
        opened += u32::from(is == BreakerState::Open && was == BreakerState::Closed);
        was = is;
        sleep(Duration::from_millis(1)).await;
    }
    assert!(opened <= 6, "opened {opened} times, but was down six times");
    assert!(charges > 0);
    let excess = charged(&server, "a") - charges;
    assert!((0..=unknown).contains(&excess), "{excess} more were charged, for {unknown} of unknown outcome");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_is_a_charge_that_is_kept() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.address());
    let redis = through(&proxy);
    recovers(&redis, "warm").await;
    proxy.set(Mode::Swallow);
    let reasons = fails_until_open(&redis, "a").await;
    assert_eq!(reasons, [FaultKind::TimedOut; 5]);
    servers::await_until("all arrived", || charged(&server, "a") >= 5);
    // Nothing is on its way any more: it is the only connection, and in order.
    sleep(Duration::from_millis(100)).await;
    assert_eq!(charged(&server, "a"), 5, "charged once each");
    proxy.set(Mode::Pass);
    recovers(&redis, "a").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_is_never_followed_by_a_second_charge() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.address());
    let redis = Redis::single(proxy.url()).timeout(PLENTY).open().unwrap();
    let (mut charges, mut unknown) = (0, 0);
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
    let redis = Redis::single(proxy.url()).timeout(PLENTY).connect_timeout(PLENTY).open().unwrap();
    for sum in 1..=50 {
        assert_eq!(charge(&redis, "a").await, Ok(sum));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_connection_is_replaced_without_a_failure() {
    let server = RedisServer::start();
    let redis = patient(&server);
    for sum in 1..=20 {
        assert_eq!(charge(&redis, "a").await, Ok(sum));
        // As a server or a load balancer does with connections that were idle for long.
        server.run::<i64>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        servers::await_until("it is noticed", || !redis.health()[0].is_connected());
    }
    assert_eq!(state(&redis), BreakerState::Closed);
}
