//! One decision, one timeout: how long callers wait while servers are slow, stopped, or far away.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::time::{sleep, timeout};
use tower_sluice::limiter::Ask;
use tower_sluice::store::BreakerState;
use tower_sluice::{Limiter, LimiterError, Policy, RateLimitLayer, RateLimiter};
use tower_sluice_redis::{Fault, FaultKind, Redis, RedisBuilder, RedisStore};

use crate::support::clients::{PLENTY, at_most, charged, is_fallback, key, per_client, recovers, send};
use crate::support::proxy::{Mode, Proxy};
use crate::support::redis::{RedisCluster, RedisServer, await_until};
use crate::support::timing::{eventually, some_attempt_async};

/// How far away servers are in these tests, and the timeout that leaves room for two calls on a busy machine.
pub(super) const DISTANCES: [(Duration, Duration); 2] = [(ms(3), ms(150)), (ms(30), ms(250))];

pub(super) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A cluster's nodes behind the proxies that they are known by.
fn behind_proxies(cluster: &RedisCluster, round_trip: Duration) -> Vec<Proxy> {
    let proxies: Vec<_> = cluster.nodes.iter().map(|node| Proxy::at(node.address(), round_trip)).collect();
    for (node, proxy) in cluster.nodes.iter().zip(&proxies) {
        node.run::<()>(&["CONFIG", "SET", "cluster-announce-port", &proxy.address().port().to_string()]);
    }
    let knows_all = |node: &RedisServer| {
        let text: String = node.run(&["CLUSTER", "NODES"]);
        proxies.iter().all(|proxy| text.contains(&proxy.address().to_string()))
    };
    await_until("all are known by their proxies", || cluster.nodes.iter().all(knows_all));
    proxies
}

/// A request needs two nodes, and the second is stopped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_node_asked_second_opens_its_breaker() {
    let cluster = RedisCluster::start(2, 0);
    for node in &cluster.nodes {
        node.run::<()>(&["CONFIG", "SET", "cluster-node-timeout", "60000"]);
    }
    for (round_trip, patience) in DISTANCES {
        cluster.nodes.iter().for_each(|node| node.run::<()>(&["FLUSHALL"]));
        let proxies = behind_proxies(&cluster, round_trip);
        let redis = Redis::cluster(proxies.iter().map(Proxy::url)).timeout(patience).open().unwrap();
        let all = Policy::new("all", RateLimiter::new(at_most(100_000), RedisStore::new(&redis, "all")));
        let layer = RateLimitLayer::builder([per_client(&redis, "p", at_most(100_000)), all]).verdict().build();
        recovers(&layer, "first").await;
        let all_at = usize::from(cluster.nodes[1].run::<Vec<String>>(&["KEYS", "*:all:*"]).len() == 1);
        // A client whose own key lies on the other node, so that this one is asked second.
        let other_keys = || cluster.nodes[1 - all_at].run::<u64>(&["DBSIZE"]);
        let (mut client, before) = ("first".to_owned(), u64::from(other_keys() > 0));
        for number in 0..100 {
            if other_keys() > before {
                break;
            }
            client = format!("client {number}");
            recovers(&layer, &client).await;
        }
        proxies[all_at].set(Mode::BlackHole);
        let is_open = || {
            let address = proxies[all_at].address().to_string();
            redis.health().iter().any(|node| node.name() == address && node.breaker() != BreakerState::Closed)
        };
        let mut waits = Vec::new();
        while !is_open() {
            assert!(waits.len() < 50, "{round_trip:?}: all waited, and the breaker is closed: {waits:?}");
            // Three at a time, so that the test waits for few timeouts.
            let began = Instant::now();
            assert!(join_all((0..3).map(|_| send(&layer, &client))).await.iter().all(is_fallback));
            waits.push(began.elapsed());
        }
        println!("{round_trip:?}: {waits:?}");
        assert!(*waits.iter().min().unwrap() < patience * 2, "{round_trip:?}: {waits:?}");
        proxies[all_at].set(Mode::Pass);
        recovers(&layer, &client).await;
    }
}

/// Ten callers at a time, each with another key. None waits for the timeout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_calls_open_the_breaker() {
    for (round_trip, patience) in DISTANCES {
        let server = RedisServer::start();
        let proxy = Proxy::at(server.address(), round_trip);
        let redis = Redis::single(proxy.url()).timeout(patience).open().unwrap();
        let limiter = RateLimiter::new(at_most(10), RedisStore::new(&redis, "p"));
        let asked = AtomicUsize::new(0);
        let ask = async |client: String| limiter.decide(&Ask::charge(&key(&client), 1)).decided().await;
        let ask_next = async || ask(asked.fetch_add(1, Ordering::Relaxed).to_string()).await;
        eventually("it is connected", async || ask_next().await.is_ok()).await;
        proxy.set(Mode::HalfOpen);
        eventually("the breaker opens", async || {
            join_all((0..10).map(|_| timeout(patience * 3 / 5, ask_next()))).await;
            redis.health()[0].breaker() != BreakerState::Closed
        })
        .await;
        // From now on, only probes wait, and there are few in a second.
        let (begun, mut waited) = (Instant::now(), 0);
        for _ in 0..200 {
            match timeout(patience * 3 / 5, ask_next()).await {
                Ok(answer) => assert!(answer.is_err()),
                Err(_) => waited += 1,
            }
            sleep(ms(1)).await;
        }
        println!("{round_trip:?}: {asked:?} asked, {waited} waited");
        assert!(waited < 40 + begun.elapsed().as_secs(), "{round_trip:?}: {waited} of 200 waited");
        proxy.set(Mode::Pass);
        eventually("the dead connection is replaced", async || ask("b".to_owned()).await.is_ok()).await;
    }
}

/// One key's requests, twenty at a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_waits_behind_a_probe() {
    for (round_trip, patience) in DISTANCES {
        let server = RedisServer::start();
        let proxy = Proxy::at(server.address(), round_trip);
        some_attempt_async("it opens after two timeouts, and then no other request waits", async || {
            proxy.set(Mode::Pass);
            let redis = Redis::single(proxy.url()).timeout(patience).open().unwrap();
            let limiter = RateLimiter::new(at_most(100_000), RedisStore::new(&redis, "p"));
            let ask = async || limiter.decide(&Ask::charge(&key("a"), 1)).decided().await;
            eventually("it is connected", async || ask().await.is_ok()).await;
            proxy.set(Mode::BlackHole);
            let (start, mut rounds) = (Instant::now(), 0);
            while redis.health()[0].breaker() == BreakerState::Closed {
                assert!(join_all((0..20).map(|_| ask())).await.iter().all(Result::is_err));
                rounds += 1;
                assert!(rounds < 50, "{round_trip:?}: the breaker is closed");
            }
            let opened = start.elapsed();
            // Each probe makes one caller wait, and the others find out before its end that the server does not answer.
            let (mut probes, mut waited) = (0, 0);
            eventually("three probes have failed", async || {
                let mut probe = std::pin::pin!(ask());
                if let Some(answer) = (&mut probe).now_or_never() {
                    assert!(answer.is_err());
                    return false;
                }
                probes += 1;
                tokio::select! {
                    biased;
                    answers = join_all((0..20).map(|_| ask())) => assert!(answers.iter().all(Result::is_err)),
                    answer = &mut probe => {
                        assert!(answer.is_err());
                        waited += 1;
                        return probes == 3;
                    }
                }
                assert!(probe.await.is_err());
                probes == 3
            })
            .await;
            println!(
                "{round_trip:?}: opened after {opened:?} and {rounds} rounds, {waited} waited for {probes} probes"
            );
            if opened < patience * 4 && waited == 0 {
                Ok(())
            } else {
                Err(format!("{round_trip:?}: opened after {opened:?}, {waited} waited for {probes} probes"))
            }
        })
        .await;
    }
}

/// Forty callers with separate keys. Twice, the server stands still for less than a timeout and a half.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_pause_keeps_the_breaker_closed() {
    for (round_trip, patience) in DISTANCES.map(|(round_trip, patience)| (round_trip, patience * 2)) {
        let server = RedisServer::start();
        let proxy = Proxy::at(server.address(), round_trip);
        // A busy machine may make a pause longer.
        some_attempt_async("the breaker stays closed", async || {
            let redis = Redis::single(proxy.url()).timeout(patience).open().unwrap();
            let limiter = Arc::new(RateLimiter::new(at_most(100_000), RedisStore::new(&redis, "p")));
            let warm = key("warm");
            eventually("it is connected", async || limiter.decide(&Ask::charge(&warm, 1)).decided().await.is_ok())
                .await;
            let (is_over, decided) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
            let opened = Arc::new(AtomicBool::new(false));
            let callers: Vec<_> = (0..40)
                .map(|number| {
                    let (limiter, redis, opened) = (Arc::clone(&limiter), redis.clone(), Arc::clone(&opened));
                    let (is_over, decided) = (Arc::clone(&is_over), Arc::clone(&decided));
                    tokio::spawn(async move {
                        let key = key(&number.to_string());
                        while !is_over.load(Ordering::Relaxed) {
                            let answer = limiter.decide(&Ask::charge(&key, 1)).decided().await;
                            decided.fetch_add(usize::from(answer.is_ok()), Ordering::Relaxed);
                            if redis.health()[0].breaker() != BreakerState::Closed {
                                opened.store(true, Ordering::Relaxed);
                            }
                            sleep(ms(2)).await;
                        }
                    })
                })
                .collect();
            let go_on = async || {
                let before = decided.load(Ordering::Relaxed);
                eventually("decisions go on", async || decided.load(Ordering::Relaxed) >= before + 80).await;
            };
            go_on().await;
            for _ in 0..2 {
                proxy.set(Mode::BlackHole);
                // Minus the time that an answer takes afterwards.
                sleep(patience * 7 / 5 - round_trip).await;
                proxy.set(Mode::Pass);
                go_on().await;
            }
            is_over.store(true, Ordering::Relaxed);
            join_all(callers).await;
            if opened.load(Ordering::Relaxed) { Err(format!("{round_trip:?}: it opened")) } else { Ok(()) }
        })
        .await;
    }
}

#[tokio::test]
async fn a_burst_beyond_max_in_flight_waits() {
    for (round_trip, _) in DISTANCES {
        let server = RedisServer::start();
        let proxy = Proxy::at(server.address(), round_trip);
        let redis = patient(&proxy.url()).max_in_flight(64).open().unwrap();
        let limiter = RateLimiter::new(at_most(10), RedisStore::new(&redis, "p"));
        let _ = limiter.decide(&Ask::charge(&key("warm"), 1)).decided().await.unwrap();
        let checks = (0..200).map(|number| limiter.decide(&Ask::charge(&key(&number.to_string()), 1)).decided());
        let answers = join_all(checks).await;
        let failed = answers.iter().filter(|answer| answer.is_err()).count();
        assert_eq!(failed, 0, "{round_trip:?}: of 200 on a healthy server");
    }
}

fn patient(url: &str) -> RedisBuilder {
    Redis::single(url).timeout(PLENTY).connect_timeout(PLENTY)
}

/// A database that the server does not have, and a user that may not choose one: errors that would not count after the
/// login.
#[tokio::test]
async fn a_login_that_fails_opens_the_breaker() {
    let server = RedisServer::start();
    server.run::<()>(&["ACL", "SETUSER", "app", "on", ">pw", "~*", "-@all", "+eval", "+evalsha"]);
    let database = format!("{}99", server.url());
    for login in [database, server.url().replace("//", "//app:pw@") + "3"] {
        let redis = patient(&login).open().unwrap();
        let limiter = RateLimiter::new(at_most(10), RedisStore::new(&redis, "p"));
        let connections = || server.info("total_connections_received").parse::<u64>().unwrap();
        let (begun, before, mut tried) = (Instant::now(), connections(), 0);
        for _ in 0..200 {
            let error = limiter.decide(&Ask::charge(&key("a"), 1)).decided().await.unwrap_err();
            tried += u64::from(fault(&error) != FaultKind::BreakerOpen);
            sleep(ms(1)).await;
        }
        let made = connections() - before;
        println!("{made} connections, {tried} tried");
        assert_ne!(redis.health()[0].breaker(), BreakerState::Closed);
        assert!(tried < 50 + begun.elapsed().as_secs(), "{tried} of 200 tried to log in");
        // Those that ask for the number are among them.
        assert!(made <= tried + 5, "{made} connections for {tried} that tried");
    }
}

fn fault(error: &LimiterError) -> FaultKind {
    error.source().and_then(|source| source.downcast_ref::<Fault>()).expect("a fault of Redis").kind()
}

/// Units that were leased and not spent in time are refunded within the next decision's timeout.
#[tokio::test]
async fn an_expired_lease_takes_no_second_timeout() {
    for (round_trip, patience) in DISTANCES {
        let server = RedisServer::start();
        let proxy = Proxy::at(server.address(), round_trip);
        some_attempt_async("it takes one timeout", async || {
            proxy.set(Mode::Pass);
            let redis = Redis::single(proxy.url()).timeout(patience).open().unwrap();
            let limiter = RateLimiter::new(at_most(10_000), RedisStore::new(&redis, "p").leasing(100, ms(600)));
            let ask = async || limiter.decide(&Ask::charge(&key("a"), 1)).decided().await.is_ok();
            let mut decided = 0;
            // Some of the 32 that the seventh call leases are left.
            eventually("decisions are made", async || {
                while decided < 45 && ask().await {
                    decided += 1;
                }
                decided == 45
            })
            .await;
            sleep(ms(650)).await;
            proxy.set(Mode::BlackHole);
            let began = Instant::now();
            assert!(!ask().await);
            let took = began.elapsed();
            println!("{round_trip:?}: {took:?}");
            if took < patience * 8 / 5 { Ok(()) } else { Err(format!("{round_trip:?}: {took:?}")) }
        })
        .await;
    }
}

/// A caller that is cancelled while its call takes a lease leaves the lease to later requests.
#[tokio::test]
async fn a_cancelled_request_keeps_the_lease() {
    for (round_trip, _) in DISTANCES {
        let server = RedisServer::start();
        let proxy = Proxy::at(server.address(), round_trip);
        let redis = patient(&proxy.url()).open().unwrap();
        let limiter =
            RateLimiter::new(at_most(10_000), RedisStore::new(&redis, "p").leasing(64, Duration::from_secs(600)));
        // Shows that there is a demand.
        assert!(limiter.decide(&Ask::charge(&key("a"), 1)).decided().await.unwrap().is_allowed());
        let calls = || server.runs();
        let (mut spent_at_once, before) = (0, calls());
        // Every caller that needs a call is cancelled at once, so the units that its call took are there, or lost.
        eventually("300 are paid in advance", async || {
            while let Some(decision) = limiter.decide(&Ask::charge(&key("a"), 1)).decided().now_or_never() {
                assert!(decision.unwrap().is_allowed());
                spent_at_once += 1;
            }
            // The last one's call is on its way, or was never made.
            assert!(calls() - before < 150, "{round_trip:?}: only {spent_at_once} were paid in advance");
            spent_at_once >= 300
        })
        .await;
        let charged = charged(&redis, "p", at_most(10_000), "a").await;
        println!("{round_trip:?}: {charged} charged, {spent_at_once} spent in {} calls", calls() - before);
    }
}
