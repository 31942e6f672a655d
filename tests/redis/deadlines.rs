//! One decision, one timeout: what callers wait for while servers are slow, stopped, or far away.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::clients::{at_most, charged, is_decided, is_guarded, key, per_client, recovers, send};
use crate::support::proxy::{Mode, Proxy};
use crate::support::redis::{RedisCluster, RedisServer, await_until};
use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::runtime::Builder;
use tokio::time::{sleep, timeout};
use tower_sluice::store::redis::{BreakerState, Redis, RedisStore};
use tower_sluice::{Ask, Limiter, PartitionKey, Policy, Quota, RateLimitLayer, RateLimiter, RedisQueue};

/// How far away servers are in these tests, and the timeout that leaves room for two calls.
const DISTANCES: [(Duration, Duration); 2] = [(ms(3), ms(50)), (ms(30), ms(100))];

const fn ms(millis: u64) -> Duration {
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
            assert!(is_guarded(&send(&layer, &client).await));
            assert!(began.elapsed() < patience * 2, "{:?}", began.elapsed());
            waited += 1;
        }
        println!("{round_trip:?}: {waited} waited for {:?}", start.elapsed());
        assert!(is_open(), "{round_trip:?}: {waited} requests waited, and the breaker is closed");
        proxies[all_at].set(Mode::Pass);
        recovers(&layer, &client).await;
    }
}

/// Ten callers at a time, each of another key, none of whom waits for the timeout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_callers_give_up_open_the_breaker() {
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
async fn nobody_waits_behind_a_probe() {
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

/// A database that the server does not have, and a user that may not choose one: errors that blame nobody after the login.
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

/// What was leased and not spent in time is given back within the one timeout of the next decision.
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

/// A caller that leaves while its call takes units in advance leaves them to those who follow.
#[tokio::test]
async fn a_caller_that_leaves_does_not_forfeit_the_lease() {
    for (round_trip, _) in DISTANCES {
        let server = RedisServer::start();
        let proxy = Proxy::at(server.address(), round_trip);
        let redis = Redis::single(proxy.url()).timeout(Duration::from_secs(2)).open().unwrap();
        let limiter =
            RateLimiter::new(at_most(10_000), RedisStore::new(&redis, "p").leasing(64, Duration::from_secs(60)));
        // Shows that there is a demand.
        assert!(limiter.decide(&Ask::charge(&key("a"), 1)).decided().await.unwrap().is_allowed());
        let (mut asked, mut spent_at_once) = (0, 0);
        // Every caller that has to ask leaves at once; so what they asked for is there, or lost.
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
async fn a_blocked_runtime_holds_up_no_other() {
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

/// What may become of the runtime that connected first, and of one that waits in line on it.
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
            // Until it has its place.
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

/// The permissions that the documentation names are enough for all that limiters and queues do.
#[tokio::test]
async fn the_documented_permissions_are_enough() {
    let server = RedisServer::start();
    let commands = ["+eval", "+evalsha", "+get", "+set", "+del", "+time"];
    server.run::<()>(&[&["ACL", "SETUSER", "app", "on", ">pw", "~sluice:*", "-@all"][..], &commands[..]].concat());
    let redis = Redis::single(server.url().replace("//", "//app:pw@")).timeout(Duration::from_secs(2)).open().unwrap();
    let layer = RateLimitLayer::builder([per_client(&redis, "a", at_most(5)), per_client(&redis, "b", at_most(3))])
        .verdict()
        .build();
    for status in [200, 200, 200, 429] {
        let response = send(&layer, "a").await;
        assert!(response.status() == status && is_decided(&response), "{response:?}");
    }
    let limiter = RateLimiter::new(at_most(5), RedisStore::new(&redis, "c"));
    let receipt = limiter.decide(&Ask::charge(&key("a"), 1)).decided().await.unwrap().receipt();
    limiter.refund(&key("a"), receipt, 1);
    let start = Instant::now();
    while charged(&redis, "c", at_most(5), "a").await > 0 {
        assert!(start.elapsed() < Duration::from_secs(5), "it is not given back");
        sleep(ms(5)).await;
    }
    assert!(limiter.decide(&Ask::reset(&key("a"))).decided().await.is_ok());
    let queue = RedisQueue::new(&redis, "q", Quota::per_hour(1)).capacity(5).max_wait(Duration::from_secs(100_000));
    let place =
        async || queue.decide(&Ask::charge(&key("a"), 1).to(tower_sluice::Mode::Shadow)).decided().await.unwrap();
    let (_, middle, _) = (place().await, place().await, place().await);
    queue.refund(&key("a"), middle.receipt(), 1);
    while queue.decide(&Ask::charge(&key("a"), 0)).decided().await.unwrap().remaining() != 4 {
        assert!(start.elapsed() < Duration::from_secs(5), "it is not given back");
        sleep(ms(5)).await;
    }
}

/// Policies whose keys lie in different slots, on a cluster of one node that is named as a single server.
#[tokio::test]
async fn one_node_of_a_cluster_may_be_named_as_a_single_server() {
    let cluster = RedisCluster::start(1, 0);
    let redis = Redis::single(cluster.nodes[0].url()).timeout(Duration::from_secs(5)).open().unwrap();
    let all = Policy::new("all", RateLimiter::new(at_most(3), RedisStore::new(&redis, "all")));
    let layer = RateLimitLayer::builder([per_client(&redis, "p", at_most(100)), all]).verdict().build();
    // What is shared by all is rejected with 503.
    for status in [200, 200, 200, 503] {
        let response = send(&layer, "a").await;
        assert!(response.status() == status && is_decided(&response), "{response:?}");
    }
    let start = Instant::now();
    while charged(&redis, "p", at_most(100), "a").await != 3 {
        assert!(start.elapsed() < Duration::from_secs(5), "it is not given back");
        sleep(ms(5)).await;
    }
}

/// A request of two policies while the slot of its keys moves: one key exists already, the other does not.
#[tokio::test]
async fn two_policies_are_decided_while_their_slot_moves() {
    let cluster = RedisCluster::start(2, 0);
    let redis = Redis::cluster(cluster.urls()).timeout(Duration::from_secs(2)).open().unwrap();
    let first = RateLimitLayer::builder(per_client(&redis, "p", at_most(100))).verdict().build();
    assert!(is_decided(&send(&first, "a").await));
    let sizes: Vec<u64> = cluster.nodes.iter().map(|node| node.run(&["DBSIZE"])).collect();
    let (from, to) = if sizes[0] > 0 { (0, 1) } else { (1, 0) };
    let names: Vec<String> = cluster.nodes[from].run(&["KEYS", "*"]);
    let slot: u64 = cluster.nodes[from].run(&["CLUSTER", "KEYSLOT", &names[0]]);
    let ids = [from, to].map(|index| cluster.nodes[index].run::<String>(&["CLUSTER", "MYID"]));
    cluster.nodes[to].run::<()>(&["CLUSTER", "SETSLOT", &slot.to_string(), "IMPORTING", &ids[0]]);
    cluster.nodes[from].run::<()>(&["CLUSTER", "SETSLOT", &slot.to_string(), "MIGRATING", &ids[1]]);
    let both = RateLimitLayer::builder([per_client(&redis, "p", at_most(100)), per_client(&redis, "new", at_most(3))])
        .verdict()
        .build();
    for status in [200, 200, 200, 429] {
        let response = send(&both, "a").await;
        assert!(response.status() == status && is_decided(&response), "{response:?}");
    }
}

/// A unit that one process gave back is not refused by another for long.
#[tokio::test]
async fn what_another_process_refunds_is_admitted_before_long() {
    let server = RedisServer::start();
    let process = || {
        let redis = Redis::single(server.url()).timeout(Duration::from_secs(2)).open().unwrap();
        RateLimiter::new(at_most(5), RedisStore::new(&redis, "p"))
    };
    let (here, there) = (process(), process());
    let mut last = None;
    for _ in 0..5 {
        last = Some(there.decide(&Ask::charge(&key("a"), 1)).decided().await.unwrap());
    }
    assert!(!here.decide(&Ask::charge(&key("a"), 1)).decided().await.unwrap().is_allowed());
    there.refund(&key("a"), last.unwrap().receipt(), 1);
    let (start, mut rejected) = (Instant::now(), 0);
    while !here.decide(&Ask::charge(&key("a"), 1)).decided().await.unwrap().is_allowed() {
        rejected += 1;
        assert!(start.elapsed() < Duration::from_secs(5), "{rejected} were rejected, with one unit free");
        sleep(ms(10)).await;
    }
    println!("{rejected} rejections in {:?}", start.elapsed());
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
}

/// The server's limit, and that of each process while it is away.
#[tokio::test]
async fn an_outage_admits_one_limit_per_process_and_that_of_the_server() {
    const LIMIT: u32 = 20;
    for processes in [1_u32, 2, 4] {
        let server = RedisServer::start();
        let proxy = Proxy::to(server.address());
        let layers: Vec<_> = (0..processes)
            .map(|_| {
                let redis = Redis::single(proxy.url()).timeout(ms(500)).open().unwrap();
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
                admitted += u32::from(send(layer, "a").await.status() == 200);
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
                admitted += u32::from(response.status() == 200);
            }
        }
        println!("{processes} processes: {admitted} of {LIMIT}");
        // An answer may have been lost when it began.
        let most = (processes + 1) * LIMIT;
        assert!((most - processes..=most).contains(&admitted), "{processes} processes: {admitted}");
    }
}
