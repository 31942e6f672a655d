//! Requests in flight that several processes count together.

mod cluster;
mod leases;
mod limits;
mod outages;
mod waiting;
mod waiting_model;

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use http::{Request, Response};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::limiter::{Ask, Mode, Permit};
use tower_sluice::testing::{Random, check_in_flight, seed_of};
use tower_sluice::{Limiter, LimiterExt, PartitionKey, Policy, RateLimitLayer, SharedConcurrency};
use tower_sluice_redis::{Redis, RedisBuilder};

use crate::support::clients::PLENTY;
use crate::support::proxy::{Mode as Fault, Proxy};
use crate::support::redis::RedisServer;
use crate::support::timing::{eventually, some_attempt_async};

const SECOND: Duration = Duration::from_secs(1);

/// Longer than a test, so that no lease is renewed, and none ends.
const HOUR: Duration = Duration::from_secs(3_600);

/// Connects as another process would, with separate connections. The timeout is long, for busy machines.
fn connect(builder: RedisBuilder) -> Redis {
    builder.timeout(PLENTY).connect_timeout(PLENTY).open().unwrap()
}

fn process(server: &RedisServer, limit: u64, lease: Duration) -> SharedConcurrency<Redis> {
    SharedConcurrency::new(connect(Redis::single(server.url())), "test", limit).lease(lease)
}

fn key(name: &str) -> PartitionKey {
    PartitionKey::from(name)
}

type Taken<'a> = Permit<&'a SharedConcurrency<Redis>>;

type Owned = Permit<Arc<SharedConcurrency<Redis>>>;

async fn take(limiter: &SharedConcurrency<Redis>, units: u64) -> Option<Taken<'_>> {
    limiter.acquire(&key("a"), units).await.unwrap().admitted()
}

async fn take_owned(limiter: Arc<SharedConcurrency<Redis>>, units: u64) -> Option<Owned> {
    limiter.acquire_owned(&key("a"), units).await.unwrap().admitted()
}

/// Takes units, if need be at a further attempt: in a short lease, calls have short timeouts.
async fn take_in_the_end(limiter: &SharedConcurrency<Redis>, units: u64) -> Taken<'_> {
    let mut permit = None;
    eventually("the units are free", async || {
        permit = limiter.acquire(&key("a"), units).await.ok().and_then(Permit::admitted);
        permit.is_some()
    })
    .await;
    permit.unwrap()
}

/// The only key's fields, each with its units and the microsecond in which its lease ends.
fn fields(server: &RedisServer) -> Vec<(u64, u64)> {
    let keys: Vec<String> = server.run(&["KEYS", "sluice:*:test:n"]);
    let Some(key) = keys.first() else { return Vec::new() };
    assert_eq!(keys.len(), 1, "{keys:?}");
    let fields: Vec<String> = server.run(&["HVALS", key]);
    let parse = |field: String| {
        let mut numbers = field.strip_prefix('-').unwrap().split(':').map(|number| number.parse::<u64>().unwrap());
        let (units, end) = (numbers.next().unwrap(), numbers.next().unwrap());
        (units, end)
    };
    fields.into_iter().map(parse).collect()
}

/// The units that the server counts, including leases that have ended.
fn counted(server: &RedisServer) -> u64 {
    fields(server).iter().map(|(units, _)| units).sum()
}

/// The microsecond on the server's clock.
fn server_time(server: &RedisServer) -> u64 {
    let (seconds, micros): (u64, u64) = server.run(&["TIME"]);
    seconds * 1_000_000 + micros
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    eventually(what, async || is_so()).await;
}

fn calls(server: &RedisServer) -> u64 {
    let stats = server.info("cmdstat_evalsha");
    let count = stats.split(&['=', ','][..]).nth(1);
    count.map_or(0, |count| count.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_pass_the_conformance_suite() {
    let server = RedisServer::start();
    check_in_flight(connect(Redis::single(server.url())), seed_of(58)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_processes_never_exceed_the_limit() {
    const LIMIT: u64 = 20;
    let server = RedisServer::start();
    let processes: Vec<_> = (0..8).map(|_| Arc::new(process(&server, LIMIT, HOUR))).collect();
    let at_once = join_all(processes.iter().flat_map(|limiter| (0..30).map(move |_| take(limiter, 1)))).await;
    let permits: Vec<_> = at_once.into_iter().flatten().collect();
    assert_eq!((permits.len(), counted(&server)), (20, 20), "of 240");
    drop(permits);
    until("all are released", || counted(&server) == 0).await;

    // Requests that come and go, for longer or shorter.
    let (in_flight, most, served) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    join_all((0..8 * 12).map(|client| {
        let (limiter, in_flight, most, served) = (Arc::clone(&processes[client % 8]), &in_flight, &most, &served);
        async move {
            for round in 0..40 {
                let units = 1 + (client + round) as u64 % 3;
                let Some(permit) = take(&limiter, units).await else { continue };
                let now = in_flight.fetch_add(units, Ordering::SeqCst) + units;
                most.fetch_max(now, Ordering::SeqCst);
                served.fetch_add(1, Ordering::SeqCst);
                for _ in 0..(client + round) % 4 {
                    tokio::task::yield_now().await;
                }
                in_flight.fetch_sub(units, Ordering::SeqCst);
                drop(permit);
            }
        }
    }))
    .await;
    println!("{served:?} of {} were served, up to {most:?} units at once", 8 * 12 * 40);
    assert!(most.into_inner() <= LIMIT);
    until("all are released", || counted(&server) == 0).await;
    assert!(processes.iter().all(|limiter| limiter.stats().in_flight == Some(0)));
}

/// One request after the other, so that the model is one number for each process.
#[tokio::test]
async fn random_requests_match_the_model() {
    const LIMIT: u64 = 7;
    let server = RedisServer::start();
    let processes: Vec<_> = (0..3).map(|_| process(&server, LIMIT, HOUR)).collect();
    let mut held: Vec<(usize, Taken<'_>)> = Vec::new();
    let mut random = Random::of_trial(0);
    let mut random = |end: usize| usize::try_from(random.below(end as u64)).unwrap();
    for step in 0..400 {
        let total: u64 = held.iter().map(|(_, permit)| permit.units()).sum();
        if random(5) < 2 && !held.is_empty() {
            let (_, permit) = held.swap_remove(random(held.len()));
            let left = total - permit.units();
            drop(permit);
            until("it is released", || counted(&server) == left).await;
            continue;
        }
        let (index, cost) = (random(3), random(10) as u64);
        let decision = processes[index].decide(&Ask::charge(&key("a"), cost)).decided().await.unwrap();
        assert_eq!(decision.is_allowed(), cost <= LIMIT - total, "step {step}: {cost} beside {total}: {decision:?}");
        if decision.is_allowed() {
            assert_eq!(decision.remaining(), LIMIT - total - cost, "step {step}");
            if cost > 0 {
                processes[index].refund(&Ask::charge(&key("a"), cost), decision.receipt(), cost);
                until("it is released", || counted(&server) == total).await;
                held.push((index, take(&processes[index], cost).await.unwrap()));
            }
        } else {
            assert!(decision.retry_after().is_none() && decision.is_until_released() == (cost <= LIMIT));
        }
        let of = |process| held.iter().filter(|(its, _)| *its == process).map(|(_, permit)| permit.units()).sum();
        assert!((0..3).all(|process| processes[process].stats().in_flight == Some(of(process))), "step {step}");
    }
}

/// It waits for none when it is over.
#[tokio::test]
async fn a_request_takes_one_round_trip() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.address());
    let limiter = SharedConcurrency::new(connect(Redis::single(proxy.url())), "test", 10).lease(HOUR);
    // Brings the scripts there.
    drop(take(&limiter, 1).await);
    until("it is released", || counted(&server) == 0).await;
    let before = calls(&server);
    let mut permits = Vec::new();
    for _ in 0..10 {
        permits.push(take(&limiter, 1).await.unwrap());
    }
    assert_eq!(calls(&server), before + 10);
    // This process has them all, so no call is needed to reject.
    assert!(take(&limiter, 1).await.is_none());
    assert_eq!(calls(&server), before + 10);

    proxy.set(Fault::BlackHole);
    drop(permits);
    assert_eq!((limiter.stats().in_flight, counted(&server)), (Some(0), 10));
    proxy.set(Fault::Pass);
    until("they are released", || counted(&server) == 0).await;
    assert_eq!(calls(&server), before + 20);
}

/// Clients that hang up before the answer, while the server is a quarter of a second away.
#[tokio::test]
async fn a_request_cancelled_meanwhile_keeps_nothing() {
    let server = RedisServer::start();
    let proxy = Proxy::at(server.address(), SECOND / 4);
    let limiter = SharedConcurrency::new(connect(Redis::single(proxy.url())), "test", 50).lease(HOUR);
    drop(take(&limiter, 1).await);
    until("it is released", || counted(&server) == 0).await;
    let before = calls(&server);
    for _ in 0..20 {
        let before = calls(&server);
        let mut cancelled = Box::pin(take(&limiter, 1));
        assert!((&mut cancelled).now_or_never().is_none());
        until("it has called", || calls(&server) > before).await;
    }
    until("all have called and are released", || calls(&server) == before + 40).await;
    assert_eq!(counted(&server), 0);
    assert_eq!(limiter.stats().in_flight, Some(0));
    // A request that was never polled has not called.
    drop(limiter.acquire(&key("a"), 1));
    assert_eq!(calls(&server), before + 40);
}

#[tokio::test]
async fn threads_without_runtimes_release_units() {
    let server = RedisServer::start();
    let limiter = Arc::new(process(&server, 3, HOUR));
    let permit = take_owned(Arc::clone(&limiter), 2).await.unwrap();
    std::thread::spawn(|| drop(permit)).join().unwrap();
    until("they are released", || counted(&server) == 0).await;
    let outside = std::thread::spawn(move || limiter.decide(&Ask::charge(&key("a"), 1)).decided().now_or_never());
    assert!(outside.join().unwrap().expect("it fails at once").is_err(), "it needs a runtime");
}

#[tokio::test]
async fn an_heir_shares_units_in_flight() {
    let server = RedisServer::start();
    let redis = connect(Redis::single(server.url()));
    let before = SharedConcurrency::new(redis.clone(), "test", 2).lease(HOUR);
    let (one, two) = (take(&before, 1).await.unwrap(), take(&before, 1).await.unwrap());
    let heir = SharedConcurrency::new(redis.clone(), "test", 3).lease(HOUR);
    heir.inherit(&before).unwrap().finish();
    assert_eq!(heir.stats().in_flight, Some(2));
    let three = take(&heir, 1).await.unwrap();
    assert!(take(&heir, 1).await.is_none() && take(&before, 1).await.is_none());
    drop(one);
    assert_eq!(heir.stats().in_flight, Some(2));
    drop((two, three));
    until("all are released", || counted(&server) == 0).await;
    for stranger in [SharedConcurrency::new(redis.clone(), "other", 3), process(&server, 3, HOUR)] {
        assert!(stranger.inherit(&before).is_none(), "another name, or another connection");
    }
}

async fn send(layer: &RateLimitLayer) -> Response<tower_sluice::layer::ResponseBody<String>> {
    let inner = service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new("served".to_owned())) });
    layer.layer(inner).oneshot(Request::new(())).await.unwrap()
}

#[tokio::test]
async fn units_are_held_until_the_bodys_end() {
    let server = RedisServer::start();
    let [here, elsewhere] = [0, 1].map(|_| RateLimitLayer::new(Policy::new("in-flight", process(&server, 2, HOUR))));
    let (first, second) = (send(&here).await, send(&elsewhere).await);
    assert_eq!((first.status(), second.status()), (200.try_into().unwrap(), 200.try_into().unwrap()));
    assert_eq!(first.headers()["ratelimit-policy"], "\"in-flight\";q=2;qu=\"concurrent-requests\"");
    assert_eq!(first.headers()["ratelimit"], "\"in-flight\";r=1");
    let rejected = send(&here).await;
    assert_eq!(rejected.status(), 503);
    assert!(!rejected.headers().contains_key("retry-after"));
    assert_eq!(counted(&server), 2);
    let body = http_body_util::BodyExt::collect(second.into_body()).await.unwrap().to_bytes();
    assert_eq!(&body[..], b"served");
    until("its unit is free", || counted(&server) == 1).await;
    let third = send(&here).await;
    assert_eq!(third.status(), 200);
    drop((first, third));
    until("all are free", || counted(&server) == 0).await;
}

#[tokio::test]
async fn a_shadow_counts_and_rejects_nothing() {
    let server = RedisServer::start();
    let limiter = Arc::new(process(&server, 1, HOUR));
    let layer = RateLimitLayer::new(Policy::new("trial", Arc::clone(&limiter)).shadow());
    let (first, second) = (send(&layer).await, send(&layer).await);
    assert!(first.status() == 200 && second.status() == 200);
    assert_eq!((limiter.stats().in_flight, counted(&server)), (Some(1), 1));
    drop((first, second));
    until("it is free", || counted(&server) == 0).await;
}

/// If others write into one of our keys, that is an error, and the text stays.
#[tokio::test]
async fn a_foreign_key_is_an_error() {
    let server = RedisServer::start();
    let limiter = process(&server, 2, HOUR);
    let permit = take(&limiter, 1).await.unwrap();
    let name = server.run::<Vec<String>>(&["KEYS", "sluice:*"]).remove(0);
    for (field, value) in
        [("1:1", "1:2:3"), ("1:1", "-1:2"), ("1:1", "-1:2:3:4"), ("1:1", "-1:99999999999999999999:3"), ("x", "-1:2:3")]
    {
        server.run::<()>(&["HSET", &name, field, value]);
        let error = limiter.acquire(&key("a"), 1).await.unwrap_err();
        assert!(
            std::error::Error::source(&error).is_some_and(|source| source.to_string().contains("SLUICE")),
            "{error:?}"
        );
        server.run::<()>(&["HDEL", &name, field]);
    }
    assert!(take(&limiter, 1).await.is_some());
    server.run::<()>(&["SET", &name, "text"]);
    assert!(limiter.acquire(&key("a"), 1).await.is_err());
    assert_eq!(server.run::<String>(&["GET", &name]), "text");
    drop(permit);
}

#[tokio::test]
async fn the_fallback_counts_redis_admissions() {
    let server = RedisServer::start();
    let limiter = process(&server, 2, HOUR);
    let ask = |cost| limiter.decide(&Ask::charge(&key("a"), cost).to(Mode::Fallback)).at_once().unwrap();
    let permit = take(&limiter, 1).await.unwrap();
    assert!(!ask(3).is_allowed() && !ask(3).is_until_released());
    assert_eq!((ask(0).remaining(), ask(2).is_until_released()), (1, true));
    let admitted = ask(1);
    assert!(admitted.is_allowed() && !ask(1).is_allowed(), "what Redis has admitted counts, too");
    assert_eq!((limiter.stats().in_flight, counted(&server)), (Some(2), 1));
    // In either order of their ends, the server counts only the requests in flight.
    drop(permit);
    assert_eq!((limiter.stats().in_flight, counted(&server)), (Some(1), 1));
    limiter.refund(&Ask::charge(&key("a"), 1), admitted.receipt(), 1);
    until("none is in flight", || counted(&server) == 0).await;
}
