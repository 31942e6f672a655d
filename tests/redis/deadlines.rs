//! One decision, one timeout: how long callers wait while servers are slow, stopped, or far away.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::clients::{at_most, charged, is_fallback, key, per_client, recovers, send};
use crate::support::proxy::{Mode, Proxy};
use crate::support::redis::{RedisCluster, RedisServer, await_until};
use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::time::{sleep, timeout};
use tower_sluice::store::redis::{BreakerState, Redis, RedisStore};
use tower_sluice::{Ask, Limiter, Policy, RateLimitLayer, RateLimiter};

/// How far away servers are in these tests, and the timeout that leaves room for two calls.
pub(super) const DISTANCES: [(Duration, Duration); 2] = [(ms(3), ms(50)), (ms(30), ms(100))];

pub(super) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The nodes of a cluster behind proxies that they are known by.
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

/// A request that needs two nodes, the second of which is stopped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_node_asked_second_opens_its_breaker() {
    for (round_trip, patience) in DISTANCES {
        let cluster = RedisCluster::start(2, 0);
        for node in &cluster.nodes {
            node.run::<()>(&["CONFIG", "SET", "cluster-node-timeout", "60000"]);
        }
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
            redis.health().iter().any(|node| node.address() == address && node.breaker() != BreakerState::Closed)
        };
        let (start, mut waited) = (Instant::now(), 0);
        while !is_open() && start.elapsed() < Duration::from_secs(5) {
            let began = Instant::now();
            assert!(is_fallback(&send(&layer, &client).await));
            assert!(began.elapsed() < patience * 2, "{:?}", began.elapsed());
            waited += 1;
        }
        println!("{round_trip:?}: {waited} waited for {:?}", start.elapsed());
        assert!(is_open(), "{round_trip:?}: {waited} requests waited, and the breaker is closed");
        proxies[all_at].set(Mode::Pass);
        recovers(&layer, &client).await;
    }
}

/// Ten callers at a time, each with another key, none of which waits for the timeout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_calls_open_the_breaker() {
    for (round_trip, patience) in DISTANCES {
        let server = RedisServer::start();
        let proxy = Proxy::at(server.address(), round_trip);
        let redis = Redis::single(proxy.url()).timeout(patience).open().unwrap();
        let limiter = Arc::new(RateLimiter::new(at_most(10), RedisStore::new(&redis, "p")));
        while limiter.decide(&Ask::charge(&key("warm"), 1)).decided().await.is_err() {}
        proxy.set(Mode::HalfOpen);
        let until = Instant::now() + Duration::from_secs(3);
        let caller = |number: usize| {
            let limiter = Arc::clone(&limiter);
            tokio::spawn(async move {
                let (mut waited, mut asked) = (0, 0);
                while Instant::now() < until {
                    let check = limiter.decide(&Ask::charge(&key(&format!("{number} {asked}")), 1)).decided();
                    waited += usize::from(timeout(patience * 3 / 5, check).await.is_err());
                    asked += 1;
                    sleep(ms(1)).await;
                }
                (waited, asked)
            })
        };
        let callers: Vec<_> = (0..10).map(caller).collect();
        let (mut waited, mut asked) = (0, 0);
        for caller in callers {
            let (more, of) = caller.await.unwrap();
            (waited, asked) = (waited + more, asked + of);
        }
        println!("{round_trip:?}: {waited} of {asked} waited");
        assert!(waited < asked / 5, "{round_trip:?}: {waited} of {asked} waited");
        proxy.set(Mode::Pass);
        let start = Instant::now();
        while limiter.decide(&Ask::charge(&key("b"), 1)).decided().await.is_err() {
            assert!(start.elapsed() < crate::support::clients::RECOVERY, "the dead connection is not replaced");
            sleep(ms(2)).await;
        }
    }
}

/// Twenty callers of one key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_waits_behind_a_probe() {
    for (round_trip, patience) in DISTANCES {
        let server = RedisServer::start();
        let proxy = Proxy::at(server.address(), round_trip);
        let redis = Redis::single(proxy.url()).timeout(patience).open().unwrap();
        let limiter = Arc::new(RateLimiter::new(at_most(100_000), RedisStore::new(&redis, "p")));
        while limiter.decide(&Ask::charge(&key("a"), 1)).decided().await.is_err() {}
        proxy.set(Mode::BlackHole);
        let start = Instant::now();
        let is_open = Arc::new(AtomicBool::new(false));
        let callers: Vec<_> = (0..20)
            .map(|_| {
                let (limiter, redis, is_open) = (Arc::clone(&limiter), redis.clone(), Arc::clone(&is_open));
                tokio::spawn(async move {
                    let (mut waited, mut asked, mut opened) = (0, 0, None);
                    while start.elapsed() < Duration::from_secs(3) {
                        let counts = is_open.load(Ordering::Relaxed);
                        let began = Instant::now();
                        assert!(limiter.decide(&Ask::charge(&key("a"), 1)).decided().await.is_err());
                        assert!(began.elapsed() < patience * 2, "{:?}", began.elapsed());
                        if counts {
                            waited += usize::from(began.elapsed() > ms(20));
                            asked += 1;
                        } else if redis.health()[0].breaker() != BreakerState::Closed {
                            is_open.store(true, Ordering::Relaxed);
                            opened.get_or_insert(start.elapsed());
                        }
                        sleep(ms(1)).await;
                    }
                    (waited, asked, opened)
                })
            })
            .collect();
        let (mut waited, mut asked, mut opened) = (0, 0, Duration::MAX);
        for caller in callers {
            let (more, of, when) = caller.await.unwrap();
            (waited, asked, opened) = (waited + more, asked + of, opened.min(when.unwrap_or(Duration::MAX)));
        }
        println!("{round_trip:?}: opened after {opened:?}, then {waited} of {asked} waited");
        // Each probe makes one caller wait.
        assert!(waited <= 20, "{round_trip:?}: {waited} of {asked} waited while the breaker was open");
        assert!(opened < patience * 4, "{round_trip:?}: opened after {opened:?}");
    }
}

/// Forty callers of their own keys; ten times, the server stands still for less than a timeout and a half.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_pause_of_the_server_does_not_open_the_breaker() {
    for (round_trip, patience) in DISTANCES {
        let server = RedisServer::start();
        let proxy = Proxy::at(server.address(), round_trip);
        let redis = Redis::single(proxy.url()).timeout(patience).open().unwrap();
        let limiter = Arc::new(RateLimiter::new(at_most(100_000), RedisStore::new(&redis, "p")));
        while limiter.decide(&Ask::charge(&key("warm"), 1)).decided().await.is_err() {}
        let is_over = Arc::new(AtomicBool::new(false));
        let callers: Vec<_> = (0..40)
            .map(|number| {
                let (limiter, is_over) = (Arc::clone(&limiter), Arc::clone(&is_over));
                tokio::spawn(async move {
                    let key = key(&number.to_string());
                    while !is_over.load(Ordering::Relaxed) {
                        let _ = limiter.decide(&Ask::charge(&key, 1)).decided().await;
                        sleep(ms(2)).await;
                    }
                })
            })
            .collect();
        let mut opened = 0;
        for _ in 0..10 {
            proxy.set(Mode::BlackHole);
            // Less what an answer takes that comes afterwards.
            sleep(patience * 7 / 5 - round_trip).await;
            proxy.set(Mode::Pass);
            let end = Instant::now() + ms(150);
            let mut was_open = false;
            while Instant::now() < end {
                was_open |= redis.health()[0].breaker() != BreakerState::Closed;
                sleep(ms(1)).await;
            }
            opened += usize::from(was_open);
            while redis.health()[0].breaker() != BreakerState::Closed {
                sleep(ms(5)).await;
            }
        }
        is_over.store(true, Ordering::Relaxed);
        join_all(callers).await;
        println!("{round_trip:?}: opened {opened} of 10 times");
        // A busy machine may make a pause longer.
        assert!(opened <= 3, "{round_trip:?}: opened {opened} of 10 times");
    }
}

#[tokio::test]
async fn a_burst_beyond_max_in_flight_waits_for_a_moment() {
    for (round_trip, _) in DISTANCES {
        let server = RedisServer::start();
        let proxy = Proxy::at(server.address(), round_trip);
        let redis = Redis::single(proxy.url()).timeout(Duration::from_secs(2)).max_in_flight(64).open().unwrap();
        let limiter = RateLimiter::new(at_most(10), RedisStore::new(&redis, "p"));
        let _ = limiter.decide(&Ask::charge(&key("warm"), 1)).decided().await.unwrap();
        let checks = (0..200).map(|number| limiter.decide(&Ask::charge(&key(&number.to_string()), 1)).decided());
        let answers = join_all(checks).await;
        let failed = answers.iter().filter(|answer| answer.is_err()).count();
        assert_eq!(failed, 0, "{round_trip:?}: of 200 on a healthy server");
    }
}

/// A database that the server does not have, and a user that may not choose one: errors that would not count after the
/// login.
#[tokio::test]
async fn a_login_that_fails_opens_the_breaker() {
    let server = RedisServer::start();
    server.run::<()>(&["ACL", "SETUSER", "app", "on", ">pw", "~*", "-@all", "+eval", "+evalsha"]);
    let database = format!("{}99", server.url());
    for login in [database, server.url().replace("//", "//app:pw@") + "3"] {
        let redis = Redis::single(&login).timeout(Duration::from_secs(2)).open().unwrap();
        let limiter = RateLimiter::new(at_most(10), RedisStore::new(&redis, "p"));
        let connections = || server.info("total_connections_received").parse::<u64>().unwrap();
        let (before, start) = (connections(), Instant::now());
        while start.elapsed() < Duration::from_secs(1) {
            assert!(limiter.decide(&Ask::charge(&key("a"), 1)).decided().await.is_err());
            sleep(ms(1)).await;
        }
        let made = connections() - before;
        println!("{made} connections");
        assert!(redis.health()[0].breaker() != BreakerState::Closed);
        assert!(made < 50, "{made} connections in a second");
    }
}

/// What was leased and not spent in time is refunded within the one timeout of the next decision.
#[tokio::test]
async fn an_expired_lease_takes_no_second_timeout() {
    for (round_trip, patience) in DISTANCES {
        let server = RedisServer::start();
        let proxy = Proxy::at(server.address(), round_trip);
        let redis = Redis::single(proxy.url()).timeout(patience).open().unwrap();
        let limiter = RateLimiter::new(at_most(10_000), RedisStore::new(&redis, "p").leasing(100, ms(600)));
        let start = Instant::now();
        let mut decided = 0;
        // Of the 32 that the seventh call leases, some are left.
        while decided < 45 {
            assert!(start.elapsed() < Duration::from_secs(10), "the server does not answer");
            decided += usize::from(limiter.decide(&Ask::charge(&key("a"), 1)).decided().await.is_ok());
        }
        sleep(ms(650)).await;
        proxy.set(Mode::BlackHole);
        let began = Instant::now();
        assert!(limiter.decide(&Ask::charge(&key("a"), 1)).decided().await.is_err());
        let took = began.elapsed();
        println!("{round_trip:?}: {took:?}");
        assert!(took < patience * 8 / 5, "{round_trip:?}: {took:?}");
    }
}

/// A caller that is cancelled while its call takes a lease leaves the lease to later requests.
#[tokio::test]
async fn a_cancelled_request_does_not_forfeit_the_lease() {
    for (round_trip, _) in DISTANCES {
        let server = RedisServer::start();
        let proxy = Proxy::at(server.address(), round_trip);
        let redis = Redis::single(proxy.url()).timeout(Duration::from_secs(2)).open().unwrap();
        let limiter =
            RateLimiter::new(at_most(10_000), RedisStore::new(&redis, "p").leasing(64, Duration::from_secs(60)));
        // Shows that there is a demand.
        assert!(limiter.decide(&Ask::charge(&key("a"), 1)).decided().await.unwrap().is_allowed());
        let (mut asked, mut spent_at_once) = (0, 0);
        // Every caller that needs a call is cancelled at once; so what its call took is there, or lost.
        for _ in 0..400 {
            asked += 1;
            match limiter.decide(&Ask::charge(&key("a"), 1)).decided().now_or_never() {
                Some(_) => spent_at_once += 1,
                // Its call is on its way, or was never made.
                None => sleep(round_trip * 2 + ms(20)).await,
            }
        }
        let charged = charged(&redis, "p", at_most(10_000), "a").await;
        println!("{round_trip:?}: {charged} charged, {spent_at_once} of {asked} spent");
        assert!(spent_at_once > 250, "{round_trip:?}: {spent_at_once} of {asked} were paid in advance");
    }
}
