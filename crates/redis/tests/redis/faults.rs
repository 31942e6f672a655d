//! A layer's behaviour towards clients while its Redis fails.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::time::sleep;
use tower_sluice::algorithm::TokenBucket;
use tower_sluice::limiter::Ask;
use tower_sluice::store::BreakerState;
use tower_sluice::{FailureMode, Limiter, LimiterExt, Overload, Policy, Quota, RateLimitLayer, RateLimiter, Verdict};
use tower_sluice_redis::{Fault, FaultKind, Redis, RedisStore};

use crate::support::clients::{
    PLENTY, at_most, at_most_in_window, charged, is_decided, is_fallback, key, per_client, recovers, send, with_store,
};
use crate::support::log::Log;
use crate::support::proxy::{Mode, Proxy};
use crate::support::redis::RedisServer;
use crate::support::timing::eventually;
use crate::support::trace::Trace;

const TIMEOUT: Duration = Duration::from_millis(200);

/// With a timeout that a busy machine does not miss all the time.
fn through(proxy: &Proxy) -> Redis {
    Redis::single(proxy.url()).timeout(TIMEOUT).open().unwrap()
}

/// For faults that are noticed at once, without a timeout.
fn patient_through(proxy: &Proxy) -> Redis {
    Redis::single(proxy.url()).timeout(PLENTY).connect_timeout(PLENTY).open().unwrap()
}

fn patient(server: &RedisServer) -> Redis {
    Redis::single(server.url()).timeout(PLENTY).connect_timeout(PLENTY).open().unwrap()
}

/// Three processes, twenty clients and 2,400 requests, with a server that fails and recovers. A decision takes one
/// timeout at most, and once the breaker is open, each process admits its local limit.
async fn holds_through(begin: impl FnOnce(&mut RedisServer, &Proxy), end: impl FnOnce(&mut RedisServer, &Proxy)) {
    const LIMIT: usize = 10;
    const ROUNDS: usize = 40;
    let mut server = RedisServer::start();
    let proxy = Proxy::to(server.address());
    let processes: Vec<_> = (0..3)
        .map(|_| RateLimitLayer::builder(per_client(&through(&proxy), "p", at_most(10))).verdict().build())
        .collect();
    let clients: Vec<_> = (0..20).map(|number| format!("client {number}")).collect();
    for layer in &processes {
        recovers(layer, "warm").await;
    }
    begin(&mut server, &proxy);
    let waits = AtomicUsize::new(0);
    let ask = async |layer: &RateLimitLayer, client: &str| {
        let (mut admitted, mut fell_back) = (0, 0);
        for _ in 0..ROUNDS {
            let began = Instant::now();
            let response = send(layer, client).await;
            waits.fetch_add(usize::from(began.elapsed() >= TIMEOUT), Ordering::Relaxed);
            fell_back += usize::from(is_fallback(&response));
            match response.status().as_u16() {
                200 => admitted += 1,
                429 => {
                    assert_eq!(admitted, LIMIT, "the fallback's quota is not used up");
                    assert!(is_fallback(&response) && response.headers().contains_key("retry-after"));
                }
                other => panic!("{other}"),
            }
        }
        (admitted, fell_back)
    };
    let asked = processes.iter().flat_map(|layer| clients.iter().map(move |client| (layer, client)));
    for (admitted, fell_back) in join_all(asked.map(|(layer, client)| ask(layer, client))).await {
        assert_eq!((admitted, fell_back), (LIMIT, ROUNDS));
    }
    // Each client waits for a timeout or two, and afterwards only the probes wait.
    let asked = processes.len() * clients.len() * ROUNDS;
    println!("{waits:?} of {asked} waited");
    assert!(waits.into_inner() < asked / 4);
    end(&mut server, &proxy);
    for layer in &processes {
        recovers(layer, "warm").await;
        for client in &clients {
            recovers(layer, client).await;
        }
    }
}

#[tokio::test]
async fn the_fallback_decides_without_the_server() {
    holds_through(|server, _| server.kill(), |server, _| server.restart()).await;
}

#[tokio::test]
async fn the_fallback_decides_while_redis_is_stopped() {
    holds_through(|server, _| server.signal("-STOP"), |server, _| server.signal("-CONT")).await;
}

#[tokio::test]
async fn the_fallback_decides_in_a_black_hole() {
    holds_through(|_, proxy| proxy.set(Mode::BlackHole), |_, proxy| proxy.set(Mode::Pass)).await;
}

#[tokio::test]
async fn the_fallback_decides_over_half_open_connections() {
    holds_through(|_, proxy| proxy.set(Mode::HalfOpen), |_, proxy| proxy.set(Mode::Pass)).await;
}

#[tokio::test]
async fn the_fallback_decides_over_reset_connections() {
    holds_through(|_, proxy| proxy.set(Mode::Reset), |_, proxy| proxy.set(Mode::Pass)).await;
}

/// An outage's cost depends on the breaker, not on the number of requests, and no request waits.
#[tokio::test]
async fn an_open_breaker_sends_nothing() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.address());
    let redis = through(&proxy);
    let layer = RateLimitLayer::builder(per_client(&redis, "p", at_most(10))).verdict().build();
    recovers(&layer, "a").await;
    // The server gets everything that is sent.
    proxy.set(Mode::Swallow);
    while redis.health()[0].breaker() == BreakerState::Closed {
        assert!(is_fallback(&send(&layer, "b").await));
    }
    let (bytes, connections) = (proxy.bytes(), proxy.connections());
    let (begun, mut probes) = (Instant::now(), 0);
    for number in 0..2_000 {
        match send(&layer, &format!("{}", number % 100)).now_or_never() {
            Some(response) => assert!(is_fallback(&response)),
            None => probes += 1,
        }
    }
    // Two thousand calls would have sent more than 200 KB. A connection may have been on its way before.
    let seconds = begun.elapsed().as_secs();
    assert!(probes <= 20 + seconds, "{probes} of 2,000 had to wait, in {seconds} s");
    let sent = proxy.bytes() - bytes;
    assert!(sent <= 1_000 * (probes + 1), "{sent} bytes for {probes} probes");
    assert!(proxy.connections() - connections <= probes + 1);
}

/// A charge is made once at the most, and kept, even if its answer is lost.
#[tokio::test]
async fn the_server_counts_lost_answers() {
    async fn counts(server: &RedisServer, name: &'static str, coalesces: bool, mode: FailureMode) {
        const LIMIT: u64 = 100_000;
        let proxy = Proxy::to(server.address());
        let redis = through(&proxy);
        let store = RedisStore::new(&redis, name);
        let store = if coalesces { store } else { store.without_coalescing() };
        let layer = RateLimitLayer::builder(with_store(name, at_most_in_window(LIMIT), store).on_failure(mode))
            .verdict()
            .build();
        let (mut admitted, mut failed, mut swallowed) = (0, 0, 0);
        let mut trace = Trace::of(40);
        while trace.goes_on([("calls that are swallowed", swallowed > 0)]) {
            let round = trace.step();
            // A connection that has lost something is never used again, because TCP loses nothing in the middle.
            recovers(&layer, "other").await;
            let three = join_all((0..3).map(|_| send(&layer, "a")));
            let responses = match round % 4 {
                0 => {
                    proxy.set(Mode::Swallow);
                    let before = proxy.bytes();
                    let responses = three.await;
                    // On a busy machine, the timeout may end before the first call is sent.
                    swallowed += u64::from(proxy.bytes() > before);
                    responses
                }
                1 => three.await,
                _ => {
                    // Cut at some moment between the call and its answer.
                    let moment = Duration::from_micros(round as u64 * 37 % 1_000);
                    let cut = async {
                        sleep(moment).await;
                        proxy.set(Mode::Reset);
                    };
                    futures_util::future::join(three, cut).await.0
                }
            };
            for response in &responses {
                match (response.status().as_u16(), is_decided(response)) {
                    (200, true) => admitted += 1,
                    (200, false) => failed += 1,
                    (503, _) if mode == FailureMode::Reject => failed += 1,
                    (other, _) => panic!("{other}"),
                }
            }
            if round % 4 != 1 {
                proxy.set(Mode::Reset);
                eventually("the connection is gone", async || redis.health()[0].is_connected() == Some(false)).await;
                proxy.set(Mode::Pass);
            }
        }
        assert!(failed >= 30, "{failed}: at least all that were swallowed");
        let direct = patient(server);
        let charged = async || charged(&direct, name, at_most_in_window(LIMIT), "a").await;
        eventually("what was swallowed is charged", async || charged().await >= admitted + swallowed).await;
        // Calls on connections that were cut may still be on their way.
        sleep(Duration::from_millis(200)).await;
        let excess = charged().await - admitted;
        assert!(excess <= failed, "{name}: {excess} more were charged, but only {failed} failed");
    }
    let server = &RedisServer::start();
    tokio::join!(
        counts(server, "fallback", true, FailureMode::LocalFallback),
        counts(server, "fallback-alone", false, FailureMode::LocalFallback),
        counts(server, "reject", true, FailureMode::Reject),
        counts(server, "reject-alone", false, FailureMode::Reject),
    );
}

/// Two processes, four outages, under load, and few log lines.
#[tokio::test]
async fn flapping_admits_shared_and_local_limits() {
    const LIMIT: u64 = 20;
    const OUTAGES: usize = 4;
    let (log, _guard) = Log::start();
    let server = RedisServer::start();
    let proxy = Proxy::to(server.address());
    let connections = [(); 2].map(|()| patient_through(&proxy));
    let processes = connections.each_ref().map(|redis| {
        let policy = per_client(redis, "p", at_most(LIMIT));
        RateLimitLayer::builder(policy.status(http::StatusCode::CONFLICT)).verdict().build()
    });
    for layer in &processes {
        recovers(layer, "warm").await;
    }
    let start = Instant::now();
    let is_over = AtomicBool::new(false);
    // By process: the fallback's responses, and the store's.
    let seen = [(); 2].map(|()| [const { AtomicUsize::new(0) }; 2]);
    let flap = async {
        for mode in [Mode::Reset, Mode::Pass].repeat(OUTAGES) {
            proxy.set(mode);
            let kind = usize::from(mode == Mode::Pass);
            let count = || [0, 1].map(|process| seen[process][kind].load(Ordering::Relaxed));
            let before = count();
            let is_seen = async || {
                let is_closed = |redis: &Redis| redis.health()[0].breaker() == BreakerState::Closed;
                connections.iter().all(|redis| is_closed(redis) == (mode == Mode::Pass))
                    && count().iter().zip(before).all(|(now, before)| *now >= before + 200)
            };
            eventually(if mode == Mode::Pass { "both recover" } else { "both fall back" }, is_seen).await;
        }
        is_over.store(true, Ordering::Relaxed);
    };
    let admitted = AtomicU64::new(0);
    // One in ten is the same client, and the others are new ones, on which Redis decides each time.
    let load = async |process: usize, number: usize| {
        for turn in 0.. {
            if is_over.load(Ordering::Relaxed) {
                break;
            }
            let client = if number < 2 { "0".to_owned() } else { format!("{process} {number} {turn}") };
            let response = send(&processes[process], &client).await;
            match response.status().as_u16() {
                200 if number < 2 => drop(admitted.fetch_add(1, Ordering::Relaxed)),
                200 | 409 => {}
                other => panic!("{other}"),
            }
            seen[process][usize::from(!is_fallback(&response))].fetch_add(1, Ordering::Relaxed);
            sleep(Duration::from_millis(2)).await;
        }
    };
    let clients = (0..2).flat_map(|process| (0..20).map(move |number| (process, number)));
    let clients = clients.map(|(process, number)| load(process, number));
    futures_util::future::join(flap, join_all(clients)).await;
    let admitted = admitted.into_inner();
    // The server's grants, and each process's own, which are not reported to the server.
    assert!((1..=3 * LIMIT).contains(&admitted), "{admitted}");
    for layer in &processes {
        recovers(layer, "warm").await;
    }
    let lines = log.lines();
    let about = |words: &str| lines.iter().filter(|line| line.contains(words)).count();
    // A policy fails once, and has recovered if there was no failure for five seconds.
    let pauses = usize::try_from(start.elapsed().as_secs() / 5).unwrap();
    assert!((2..=2 + 2 * pauses).contains(&about("limiter failed")), "{lines:#?}");
    assert!(about("limiter recovered") <= 2 + 2 * pauses, "{lines:#?}");
    // Each process's breaker opens and closes in each outage.
    assert_eq!(about("store: a node"), 2 * 2 * OUTAGES, "{lines:#?}");
    assert!(lines.len() <= 4 + 4 * pauses + 2 * 2 * OUTAGES, "{lines:#?}");
}

/// A client that brings Redis down gains at most one process's limit.
#[tokio::test]
async fn a_flood_during_an_outage_is_bounded() {
    let server = RedisServer::start();
    let redis = Redis::single(server.url()).timeout(Duration::from_millis(500)).open().unwrap();
    let layer = RateLimitLayer::builder(per_client(&redis, "p", at_most(100))).verdict().build();
    recovers(&layer, "warm").await;
    let before = layer.limiter_failures("p").unwrap();
    server.signal("-STOP");
    let responses = join_all((0..5_000).map(|_| send(&layer, "a"))).await;
    server.signal("-CONT");
    assert!(responses.iter().all(|response| matches!(response.status().as_u16(), 200 | 429) && is_fallback(response)));
    assert_eq!(responses.iter().filter(|response| response.status() == 200).count(), 100);
    assert_eq!(layer.limiter_failures("p"), Some(before + 5_000));
}

/// They do not reach the server.
#[tokio::test]
async fn cached_rejections_end_when_advertised() {
    let server = RedisServer::start();
    let redis = patient(&server);
    let calls = || server.info("total_commands_processed").parse::<u64>().unwrap();
    let day = RateLimitLayer::builder(per_client(&redis, "day", at_most(1))).verdict().build();
    assert_eq!(send(&day, "a").await.status(), 200);
    let (before, began) = (calls(), Instant::now());
    for _ in 0..5_000 {
        let response = send(&day, "a").await;
        assert!(response.status() == 429 && is_decided(&response));
    }
    // A rejection is verified every half second. A script counts as one command, and so do those in it.
    let made = calls() - before;
    let most = 10 * (2 + u64::try_from(began.elapsed().as_millis() / 500).unwrap());
    assert!(made <= most, "{made} commands");

    let short = RateLimitLayer::builder(per_client(&redis, "short", TokenBucket::new(Quota::per_second(25).burst(1))))
        .verdict()
        .build();
    for round in 0..25 {
        assert_eq!(send(&short, "a").await.status(), 200, "round {round}: came at the advertised time");
        // Rejected by the server at first, and then by the negative cache.
        let mut retry_at = None;
        for _ in 0..round % 4 + 1 {
            let response = send(&short, "a").await;
            if response.status() == 200 {
                // A busy machine took longer than the wait.
                retry_at = None;
                continue;
            }
            let wait = response.headers()["x-rate-limited-for"].to_str().unwrap().parse::<f64>().unwrap();
            retry_at = Some(Instant::now() + Duration::from_secs_f64(wait));
        }
        match retry_at {
            Some(at) => sleep(at.saturating_duration_since(Instant::now())).await,
            None => sleep(Duration::from_millis(40)).await,
        }
    }
}

/// As if the server's clock had been an hour ahead.
#[tokio::test]
async fn a_future_state_locks_out_one_refill() {
    let server = RedisServer::start();
    let bucket = TokenBucket::new(Quota::per_second(2).burst(5));
    let layer = || RateLimitLayer::builder(per_client(&patient(&server), "p", bucket)).verdict().build();
    assert_eq!(send(&layer(), "a").await.status(), 200);
    let names: Vec<String> = server.run(&["KEYS", "*"]);
    let [name] = &names[..] else { panic!("{names:?}") };
    let due: i64 = server.run(&["GET", name]);
    server.run::<()>(&["SET", name, &(due - 3_600_000_000).to_string()]);
    let layer = layer();
    let rejected = send(&layer, "a").await;
    assert_eq!(rejected.status(), 429);
    // Empty, but not emptier: the next token is there in half a second.
    let wait = rejected.headers()["x-rate-limited-for"].to_str().unwrap().parse::<f64>().unwrap();
    assert!(wait <= 0.5, "{wait}");
    sleep(Duration::from_secs_f64(wait)).await;
    assert_eq!(send(&layer, "a").await.status(), 200);
    assert!(server.run::<i64>(&["PTTL", name]) <= 2_502, "and it expires as any other");
}

#[tokio::test]
async fn an_evicting_server_is_no_error() {
    let server = RedisServer::with(&["--maxmemory", "4mb", "--maxmemory-policy", "allkeys-lru"]);
    let layer = RateLimitLayer::builder(per_client(&patient(&server), "p", at_most(5))).verdict().build();
    let (mut thousand, evicted) = (0, || server.info("evicted_keys").parse::<u64>().unwrap());
    while evicted() < 5_000 {
        let clients = (0..1_000).map(|number| format!("{}", thousand * 1_000 + number));
        let responses = join_all(clients.map(|client| async { send(&layer, &{ client }).await })).await;
        assert!(responses.iter().all(|response| response.status() == 200 && is_decided(response)));
        thousand += 1;
        assert!(thousand < 100, "nothing is evicted");
    }
    assert_eq!(layer.limiter_failures("p"), Some(0));
}

/// The fallback decides.
#[tokio::test]
async fn a_full_server_has_its_own_reason() {
    let server = RedisServer::start();
    let redis = patient(&server);
    let layer = RateLimitLayer::builder(per_client(&redis, "p", at_most(3))).verdict().build();
    assert!(is_decided(&send(&layer, "a").await));
    server.run::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    let mut statuses = Vec::new();
    for _ in 0..4 {
        let response = send(&layer, "a").await;
        assert!(is_fallback(&response));
        statuses.push(response.status().as_u16());
    }
    assert_eq!(statuses, [200, 200, 429, 429], "the fallback has counted the first");

    let limiter = RateLimiter::new(at_most(3), RedisStore::new(&patient(&server), "p"));
    let error = limiter.decide(&Ask::charge(&key("b"), 1)).decided().await.unwrap_err();
    let fault = error.source().and_then(|source| source.downcast_ref::<Fault>()).expect("a fault");
    assert_eq!((fault.kind(), fault.kind().label()), (FaultKind::OutOfMemory, "oom"));
    server.run::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    recovers(&layer, "a").await;
}

/// During an outage, too, all policies are charged or none.
#[tokio::test]
async fn several_policies_fall_back_together() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.address());
    let redis = patient_through(&proxy);
    let layer = RateLimitLayer::builder([
        per_client(&redis, "day", at_most(100)),
        per_client(&redis, "minute", at_most(5)),
        per_client(&redis, "year", at_most(200)),
    ])
    .verdict()
    .build();
    recovers(&layer, "warm").await;
    assert!(is_decided(&send(&layer, "a").await));
    proxy.set(Mode::Reset);
    let responses = join_all((0..50).map(|_| send(&layer, "a"))).await;
    assert!(responses.iter().all(is_fallback));
    assert_eq!(responses.iter().filter(|response| response.status() == 200).count(), 4);
    // Charges that "minute" rejected were refunded to the others; the last may be reported as it was before.
    let rejected = send(&layer, "a").await;
    let verdict = rejected.extensions().get::<Verdict>().unwrap();
    let left = |name| verdict.policies().iter().find(|policy| policy.name() == name).unwrap().decision().remaining();
    assert!(left("minute") == 0 && left("day") >= 94, "{verdict:?}");
}

/// If a policy on a dead server rejects, a living server's charge is refunded.
#[tokio::test]
async fn a_failures_rejection_is_refunded_elsewhere() {
    let (living, dead) = (RedisServer::start(), RedisServer::start());
    let (here, proxy) = (patient(&living), Proxy::to(dead.address()));
    let there = patient_through(&proxy);
    let layer = RateLimitLayer::builder([
        per_client(&here, "here", at_most(100)),
        per_client(&there, "there", at_most(100)).on_failure(FailureMode::Reject),
    ])
    .verdict()
    .build();
    recovers(&layer, "a").await;
    let before = charged(&here, "here", at_most(100), "a").await;
    proxy.set(Mode::Reset);
    for _ in 0..20 {
        assert_eq!(send(&layer, "a").await.status(), 503);
    }
    let is_refunded = async || charged(&here, "here", at_most(100), "a").await <= before;
    eventually("it is refunded", is_refunded).await;
}

/// A request that an overloaded server sheds is charged nowhere, even if its quota is on Redis.
#[tokio::test]
async fn a_shed_request_is_refunded_on_redis() {
    let server = RedisServer::start();
    let redis = patient(&server);
    let overload = Arc::new(Overload::new().limits(1..=1).max_queue(0));
    let policies = [per_client(&redis, "here", at_most_in_window(100)), Policy::new("overload", Arc::clone(&overload))];
    let layer = RateLimitLayer::new(policies);
    assert_eq!(send(&layer, "a").await.status(), 200);
    let before = charged(&redis, "here", at_most_in_window(100), "a").await;
    // Another caller has the only unit.
    let held = overload.acquire(&"somebody".into(), 1).await.unwrap();
    for _ in 0..20 {
        assert_eq!(send(&layer, "a").await.status(), 503);
    }
    let is_refunded = async || charged(&redis, "here", at_most_in_window(100), "a").await == before;
    eventually("it is refunded", is_refunded).await;
    drop(held);
    assert_eq!(send(&layer, "a").await.status(), 200);
}

/// Layers are replaced while the server fails and recovers, and requests are cancelled in the middle.
#[tokio::test]
async fn layers_replaced_during_faults_leave_nothing() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.address());
    let tasks = tokio::runtime::Handle::current().metrics();
    let before = tasks.num_alive_tasks();
    let redis = through(&proxy);
    let modes = [Mode::Pass, Mode::Swallow, Mode::Pass, Mode::Reset, Mode::BlackHole, Mode::Pass, Mode::HalfOpen];
    // More than the last layer's limit, as it cannot be known how many requests reach the server during the faults.
    let layer = |limit| RateLimitLayer::builder(per_client(&redis, "p", at_most(limit))).verdict().build();
    let first = layer(400);
    for _ in 0..150 {
        recovers(&first, "a").await;
    }
    drop(first);
    for round in 0..70_u64 {
        proxy.set(modes[usize::try_from(round).unwrap() / 2 % modes.len()]);
        // A lower limit each time: units that were spent under the older ones count.
        let layer = Arc::new(layer(400 - round));
        let requests: Vec<_> = (0..20)
            .map(|_| {
                let layer = Arc::clone(&layer);
                tokio::spawn(async move { send(&layer, "a").await.status().as_u16() })
            })
            .collect();
        sleep(Duration::from_millis((round % 7) * 3)).await;
        for (index, request) in requests.into_iter().enumerate() {
            if index % 3 == 0 {
                request.abort();
            } else if round % 5 == 0 {
                assert!(matches!(request.await.unwrap(), 200 | 429));
            }
        }
    }
    proxy.set(Mode::Pass);
    let is_idle = async || redis.health().iter().all(|node| node.in_flight() == Some(0));
    eventually("no call is in flight", is_idle).await;
    let last = layer(100);
    eventually("the store rejects, since more than 100 were admitted", async || {
        let response = send(&last, "a").await;
        assert!(!is_decided(&response) || response.status() == 429, "{response:?}");
        is_decided(&response)
    })
    .await;
    drop((last, redis));
    eventually("all tasks have ended", async || tasks.num_alive_tasks() <= before).await;
}

/// The server's limit, and each process's while it is away.
#[tokio::test]
async fn an_outage_admits_one_limit_per_process() {
    const LIMIT: u64 = 20;
    for processes in [1_u64, 2, 4] {
        let server = RedisServer::start();
        let proxy = Proxy::to(server.address());
        let layers: Vec<_> = (0..processes)
            .map(|_| {
                let redis = patient_through(&proxy);
                RateLimitLayer::builder(per_client(&redis, "p", at_most(LIMIT))).verdict().build()
            })
            .collect();
        let mut admitted = 0;
        for layer in &layers {
            recovers(layer, "warm").await;
        }
        proxy.set(Mode::Reset);
        for layer in &layers {
            for _ in 0..LIMIT * 2 {
                admitted += u64::from(send(layer, "a").await.status() == 200);
            }
        }
        proxy.set(Mode::Pass);
        for layer in &layers {
            recovers(layer, "warm").await;
        }
        for layer in &layers {
            for _ in 0..LIMIT * 2 {
                let response = send(layer, "a").await;
                assert!(is_decided(&response));
                admitted += u64::from(response.status() == 200);
            }
        }
        println!("{processes} processes: {admitted} of {LIMIT}");
        // An answer may have been lost when it began.
        let most = (processes + 1) * LIMIT;
        assert!((most - processes..=most).contains(&admitted), "{processes} processes: {admitted}");
    }
}
