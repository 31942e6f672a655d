//! Failovers, and servers that recover.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::thread;

use super::proxy::{Mode, Proxy};
use super::servers::{RedisCluster, await_until};
use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_loses_only_unreplicated_charges() {
    let mut primary = RedisServer::start();
    let link = Proxy::to(primary.address());
    let replica = RedisServer::replica_of(link.address(), &[]);
    let before = patient(&primary);
    for sum in 1..=50 {
        assert_eq!(charge(&before, "a").await, Ok(sum));
    }
    await_until("the replica heard of them", || charged(&replica, "a") == 50);
    link.set(Mode::BlackHole);
    for sum in 51..=70 {
        assert_eq!(charge(&before, "a").await, Ok(sum));
    }
    primary.kill();
    replica.run::<()>(&["REPLICAOF", "NO", "ONE"]);
    let after = patient(&replica);
    assert_eq!(charge(&after, "a").await, Ok(51), "exactly twenty were lost");
}

fn patient_with(builder: RedisBuilder) -> Redis {
    builder.timeout(PLENTY).connect_timeout(PLENTY).open().unwrap()
}

/// Whether the sentinel names that server as the primary.
fn names(sentinel: &RedisServer, server: &RedisServer) -> bool {
    let (host, port): (String, u16) = sentinel.run(&["SENTINEL", "get-master-addr-by-name", "main"]);
    format!("{host}:{port}") == server.address().to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failover_is_followed_through_sentinels() {
    let mut primary = RedisServer::with(&["--requirepass", ""]);
    let replica = RedisServer::replica_of(primary.address(), &[]);
    let sentinels = [(); 2].map(|()| RedisServer::sentinel("main", primary.address()));
    for sentinel in &sentinels {
        await_until("it knows the replica", || {
            let info: String = sentinel.run(&["INFO", "sentinel"]);
            info.contains("slaves=1,sentinels=2")
        });
    }
    // An absent sentinel does no harm.
    let urls = [format!("redis://127.0.0.1:{}", servers::free_port()), sentinels[0].url(), sentinels[1].url()];
    let redis = patient_with(Redis::sentinel("main", urls.clone()));
    assert_eq!(charge(&redis, "a").await, Ok(1));
    assert_eq!(redis.health()[0].name(), primary.address().to_string());
    await_until("the replica heard of it", || charged(&replica, "a") == 1);
    primary.kill();
    let mut unknown = 0;
    eventually("the new primary is called", async || match charge(&redis, "a").await {
        Ok(_) => true,
        Err(reason) => {
            unknown += i64::from(matches!(reason, FaultKind::Disconnected | FaultKind::TimedOut));
            false
        }
    })
    .await;
    assert_eq!(redis.health()[0].name(), replica.address().to_string());
    let charged = charged(&replica, "a");
    assert!((2..=2 + unknown).contains(&charged), "{charged}, with {unknown} of unknown outcome");
    // As a URL, with a database. The sentinel that did not lead the failover hears about it later than the other.
    for sentinel in &sentinels {
        await_until("it names the new primary", || names(sentinel, &replica));
    }
    let second = patient_with(Redis::sentinel("redis://main/2", urls));
    assert_eq!(charge(&second, "a").await, Ok(1));
}

/// The silent sentinel fails last, and must not make a wrong name look like an outage.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_primary_name_is_misconfigured() {
    let primary = RedisServer::start();
    let sentinel = RedisServer::sentinel("main", primary.address());
    let silent = Proxy::to(sentinel.address());
    silent.set(Mode::BlackHole);
    let address = sentinel.address().to_string();
    some_attempt_async("the sentinel answers before the other one is given up", async || {
        let redis = Redis::sentinel("other", [sentinel.url(), silent.url()]).timeout(PLENTY);
        let redis = redis.connect_timeout(Duration::from_millis(500)).open().unwrap();
        let fault = redis.call(&add("a")).await.unwrap_err();
        if fault.kind() != FaultKind::Misconfigured {
            return Err(fault.to_string());
        }
        assert!(fault.to_string().contains(&address) && fault.to_string().contains("`other`"), "{fault}");
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hanging_sentinel_is_named() {
    let server = RedisServer::start();
    let silent = Proxy::to(server.address());
    silent.set(Mode::BlackHole);
    for address in [silent.address(), silent_after_login()] {
        let redis = Redis::sentinel("main", [format!("redis://{address}")]);
        let redis = redis.timeout(PLENTY).connect_timeout(Duration::from_millis(300)).open().unwrap();
        let fault = redis.call(&add("a")).await.unwrap_err();
        assert_eq!(fault.kind(), FaultKind::TimedOut, "{fault}");
        assert!(fault.to_string().contains(&address.to_string()), "{fault}");
    }
}

/// Starts a server for one client, which accepts the names that the `redis` crate sends, and answers nothing else.
fn silent_after_login() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let mut buffer = [0; 1_024];
        while let Ok(length @ 1..) = client.read(&mut buffer) {
            for _ in String::from_utf8_lossy(&buffer[..length]).matches("SETINFO") {
                client.write_all(b"+OK\r\n").unwrap();
            }
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sentinels_login_has_its_own_fault() {
    let primary = RedisServer::start();
    let sentinel = RedisServer::sentinel("main", primary.address());
    let with_login = sentinel.url().replace("//", "//:geheim@");
    sentinel.run::<()>(&["ACL", "SETUSER", "default", "resetpass", ">geheim"]);
    let open = |url: String| patient_with(Redis::sentinel("main", [url]));
    assert_eq!(charge(&open(sentinel.url()), "a").await, Err(FaultKind::Unauthenticated));
    assert_eq!(charge(&open(with_login), "a").await, Ok(1));
}

/// A planned failover: the old primary lives on as a replica, and says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_demoted_primary_asks_the_sentinels() {
    let primary = RedisServer::start();
    let replica = RedisServer::replica_of(primary.address(), &[]);
    let sentinel = RedisServer::sentinel("main", primary.address());
    await_until("it knows the replica", || sentinel.run::<String>(&["INFO", "sentinel"]).contains("slaves=1"));
    let redis = patient_with(Redis::sentinel("main", [sentinel.url()]));
    assert_eq!(charge(&redis, "a").await, Ok(1));
    await_until("it fails over", || sentinel.try_run::<()>(&["SENTINEL", "FAILOVER", "main"]).is_ok());
    await_until("it names the new primary", || names(&sentinel, &replica));
    // The sentinel makes it a replica, too, but only after eight seconds.
    let port = replica.address().port().to_string();
    await_until("the old primary follows", || {
        let _ = primary.try_run::<()>(&["REPLICAOF", "127.0.0.1", &port]);
        primary.info("role") == "slave"
    });
    await_until("the new primary leads", || replica.info("role") == "master");
    recovers(&redis, "a").await;
    assert_eq!(redis.health()[0].name(), replica.address().to_string());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recovery_makes_one_connection_per_client() {
    let mut server = RedisServer::start();
    // Like eight processes, these clients share no state.
    let all: Vec<_> = (0..8).map(|_| patient(&server)).collect();
    for redis in &all {
        assert!(charge(redis, "a").await.is_ok());
    }
    // Calls until fifty rounds in a row were served after the outage.
    let was_down = Arc::new(AtomicBool::new(false));
    let hammer = |redis: Redis, was_down: Arc<AtomicBool>| async move {
        let mut served = 0;
        while served < 50 {
            let calls = (0..20).map(|_| {
                let redis = redis.clone();
                tokio::spawn(async move { charge(&redis, "a").await.is_ok() })
            });
            let mut is_served = was_down.load(Ordering::Relaxed);
            for call in calls.collect::<Vec<_>>() {
                is_served &= call.await.unwrap();
            }
            served = if is_served { served + 1 } else { 0 };
            sleep(Duration::from_millis(1)).await;
        }
    };
    let hammering: Vec<_> = all.iter().map(|redis| tokio::spawn(hammer(redis.clone(), was_down.clone()))).collect();
    server.kill();
    eventually("all have given it up", async || all.iter().all(|redis| state(redis) != BreakerState::Closed)).await;
    server.restart();
    was_down.store(true, Ordering::Relaxed);
    for task in hammering {
        tokio::time::timeout(PLENTY * 6, task).await.expect("they recover").unwrap();
    }
    // Each client made one connection. The test itself made a few.
    let connections: u32 = server.info("total_connections_received").parse().unwrap();
    assert!((8..=13).contains(&connections), "{connections} connections");
}

/// Six nodes take a while to start, so one test covers all their failures.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_move_to_replicas_of_dead_nodes() {
    let mut cluster = RedisCluster::start(3, 1);
    let redis = patient_with(Redis::cluster(cluster.urls()));
    let name_at = |node: usize| {
        let names = (0..).map(|number| format!("key {number}"));
        names.into_iter().find(|name| cluster.owner_of(key(name).slot()) == node).unwrap()
    };
    let names = [0, 1, 2].map(name_at);
    for name in &names {
        recovers(&redis, name).await;
    }
    await_until("the replica heard of it", || {
        cluster.nodes[3].info("master_repl_offset") == cluster.nodes[0].info("master_repl_offset")
    });
    cluster.nodes[0].kill();
    eventually("the replica is called", async || charge(&redis, &names[0]).await.is_ok()).await;
    for name in &names {
        recovers(&redis, name).await;
    }
    assert!(charged(&cluster.nodes[3], &names[0]) >= 2, "the replica took over the charges");
    // Most of the others die as well.
    for index in [1, 4, 5] {
        cluster.nodes[index].kill();
    }
    await_until("the rest gives up", || cluster.nodes[2].cluster_info("cluster_state") == "fail");
    eventually("its answer says so", async || charge(&redis, &names[2]).await == Err(FaultKind::ClusterDown)).await;
    // The breaker opens before long.
    fails_until_open_at(&redis, &names[2], cluster.nodes[2].address().to_string()).await;
}

async fn fails_until_open_at(redis: &Redis, name: &str, address: String) {
    for _ in 0..200 {
        assert!(charge(redis, name).await.is_err());
        if redis.health().iter().any(|node| node.name() == address && node.breaker() != BreakerState::Closed) {
            return;
        }
    }
    panic!("{redis:?}");
}
