//! Several servers and several processes: a layer's behaviour towards clients while primaries die and others take over.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::time::sleep;
use tower_sluice::key::{KeyError, KeyExtractor};
use tower_sluice::limiter::Ask;
use tower_sluice::{Limiter, PartitionKey, Policy, RateLimitLayer, RateLimiter, RequestHead};
use tower_sluice_redis::{FaultKind, Redis, RedisBuilder, RedisStore};

use crate::support::clients::{
    PLENTY, at_most, at_most_in_window, charged, is_decided, is_fallback, key, per_client, recovers, send,
};
use crate::support::log::Log;
use crate::support::proxy::{Mode, Proxy};
use crate::support::redis::{RedisCluster, RedisServer};
use crate::support::timing::{eventually, some_attempt_async};

struct FixedKey(&'static str);

impl KeyExtractor for FixedKey {
    fn extract(&self, _: &RequestHead<'_>) -> Result<PartitionKey, KeyError> {
        Ok(PartitionKey::from(self.0))
    }
}

fn patient(builder: RedisBuilder) -> Redis {
    builder.timeout(PLENTY).connect_timeout(PLENTY).open().unwrap()
}

/// One client's keys are in one slot, and the key of all clients is in another.
#[tokio::test]
async fn different_slots_charge_all_or_none() {
    let cluster = RedisCluster::start(3, 0);
    let redis = patient(Redis::cluster(cluster.urls()));
    let layer = RateLimitLayer::builder([
        per_client(&redis, "minute", at_most_in_window(8)),
        per_client(&redis, "day", at_most_in_window(100)),
        Policy::new("all", RateLimiter::new(at_most_in_window(30), RedisStore::new(&redis, "all"))),
    ])
    .verdict()
    .build();
    let clients: Vec<_> = (0..6).map(|number| format!("client {number}")).collect();
    let ask = async |client: &str| {
        let mut admitted = 0;
        for _ in 0..20 {
            let response = send(&layer, client).await;
            assert!(is_decided(&response), "{response:?}");
            admitted += u64::from(response.status() == 200);
        }
        admitted
    };
    // Six times eight are more than thirty: rejected by the client's own limit, or by the limit for all clients.
    let admitted = join_all(clients.iter().map(|client| ask(client))).await;
    assert_eq!(admitted.iter().sum::<u64>(), 30, "{admitted:?}");
    // Charges of rejected requests are refunded in the background.
    for (client, admitted) in clients.iter().zip(admitted) {
        for (name, limit) in [("minute", 8), ("day", 100)] {
            let is_charged = async || charged(&redis, name, at_most_in_window(limit), client).await == admitted;
            eventually(&format!("{name}: what {client} was admitted, {admitted}"), is_charged).await;
        }
    }
    let all = RateLimiter::new(at_most_in_window(30), RedisStore::new(&redis, "all").without_coalescing());
    assert_eq!(all.decide(&Ask::charge(&PartitionKey::SHARED, 0)).decided().await.unwrap().remaining(), 0);
}

/// A request that needs many nodes waits for one timeout, too.
#[tokio::test]
async fn a_stopped_cluster_costs_one_timeout() {
    const TIMEOUT: Duration = Duration::from_secs(1);
    let cluster = RedisCluster::start(3, 0);
    for node in &cluster.nodes {
        node.run::<()>(&["CONFIG", "SET", "cluster-node-timeout", "60000"]);
    }
    some_attempt_async("it costs one timeout", async || {
        let redis = Redis::cluster(cluster.urls()).timeout(TIMEOUT).open().unwrap();
        let all = |name| Policy::new(name, RateLimiter::new(at_most(30), RedisStore::new(&redis, name)));
        let by_client = |name| per_client(&redis, name, at_most(30));
        // In one slot each.
        let another = by_client("b").key(FixedKey("another"));
        let layer = RateLimitLayer::builder([by_client("by-client"), all("all"), another]).verdict().build();
        recovers(&layer, "a").await;
        cluster.nodes.iter().for_each(|node| node.signal("-STOP"));
        let start = Instant::now();
        let response = send(&layer, "a").await;
        let took = start.elapsed();
        cluster.nodes.iter().for_each(|node| node.signal("-CONT"));
        assert!(response.status() == 200 && is_fallback(&response));
        recovers(&layer, "a").await;
        if took < TIMEOUT * 7 / 4 { Ok(()) } else { Err(format!("{took:?}")) }
    })
    .await;
}

/// A primary dies under load. The fallback decides on its keys only, until its replica has taken over.
#[tokio::test]
async fn a_dead_nodes_cluster_continues() {
    let (log, _guard) = Log::start();
    let mut cluster = RedisCluster::start(3, 1);
    for node in &cluster.nodes {
        node.run::<()>(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    // A dead node does not make requests wait: it rejects connections.
    let redis = patient(Redis::cluster(cluster.urls()));
    let layer = RateLimitLayer::builder(per_client(&redis, "p", at_most(60))).verdict().build();
    let mut homes = HashMap::new();
    for client in (0..24).map(|number| format!("client {number}")) {
        let sizes = || [0, 1, 2].map(|index: usize| cluster.nodes[index].run::<u64>(&["DBSIZE"]));
        let before = sizes();
        assert!(is_decided(&send(&layer, &client).await));
        let after = sizes();
        homes.insert(client, (0..3).find(|index| after[*index] > before[*index]).expect("it is somewhere"));
    }
    let dead = homes["client 0"];
    assert!(homes.values().any(|home| *home != dead));
    cluster.nodes[dead].kill();

    let start = Instant::now();
    let (mut by_guard, mut fell_back) = (HashMap::<&String, u64>::new(), 0);
    eventually("the replica takes over", async || {
        let mut is_back = true;
        for (client, home) in &homes {
            let response = send(&layer, client).await;
            assert!(matches!(response.status().as_u16(), 200 | 429), "{response:?}");
            if is_fallback(&response) {
                assert_eq!(*home, dead, "{client} has another server");
                *by_guard.entry(client).or_default() += u64::from(response.status() == 200);
                (fell_back, is_back) = (fell_back + 1, false);
            }
        }
        is_back
    })
    .await;
    // Failures and successes alternated with every request, and two lines are logged in five seconds at the most.
    let lines = log.lines().iter().filter(|line| line.contains("limiter ")).count();
    let most = 1 + 2 * usize::try_from(start.elapsed().as_secs() / 5).unwrap();
    assert!((1..=most).contains(&lines) && fell_back > lines, "{fell_back} fell back: {:#?}", log.lines());
    // The fallback had counted the first request.
    assert!(by_guard.values().all(|admitted| *admitted <= 59), "{by_guard:?}");
    assert!(charged(&redis, "p", at_most(60), "client 0").await >= 1, "the replica had heard of it");
}

/// Charges that were not replicated are admitted again, once, and nothing else.
#[tokio::test]
async fn a_promotion_forgets_only_unreplicated_charges() {
    let mut primary = RedisServer::start();
    let replication = Proxy::to(primary.address());
    let replica = RedisServer::replica_of(replication.address(), &[]);
    // The address that moves with the primary.
    let address = Proxy::to(primary.address());
    let layers = [(); 2].map(|()| {
        let redis = patient(Redis::single(address.url()));
        RateLimitLayer::builder(per_client(&redis, "p", at_most(50))).verdict().build()
    });
    let admitted = async |times: u64| {
        let mut admitted = 0;
        for layer in layers.iter().cycle().take(usize::try_from(times).unwrap()) {
            admitted += u64::from(send(layer, "a").await.status() == 200);
        }
        admitted
    };
    for layer in &layers {
        recovers(layer, "warm").await;
    }
    assert_eq!(admitted(30).await, 30);
    let on_replica = patient(Redis::single(replica.url()));
    let is_replicated = async || charged(&on_replica, "p", at_most(50), "a").await == 30;
    eventually("the replica follows", is_replicated).await;
    replication.set(Mode::BlackHole);
    assert_eq!(admitted(15).await, 15);
    primary.kill();
    // Without a primary, each fallback knows its own process's grants: 23 and 22 of 50.
    let while_away = admitted(20).await;
    assert_eq!(while_away, 20);
    replica.run::<()>(&["REPLICAOF", "NO", "ONE"]);
    address.redirect(replica.address());
    for layer in &layers {
        recovers(layer, "warm").await;
    }
    assert_eq!(charged(&on_replica, "p", at_most(50), "a").await, 30, "fifteen were forgotten");
    assert_eq!(admitted(100).await, 20, "the replica's own count is what counts");
}

/// A probe answers as soon as the server does, and says within the timeout that it does not.
#[tokio::test]
async fn a_ping_needs_all_primaries() {
    let cluster = RedisCluster::start(2, 0);
    let single = RedisServer::start();
    let open = |builder: RedisBuilder| builder.timeout(Duration::from_millis(500)).open().unwrap();
    for (redis, server) in
        [(open(Redis::single(single.url())), &single), (open(Redis::cluster(cluster.urls())), &cluster.nodes[1])]
    {
        eventually("it answers", async || redis.ping().await.is_ok()).await;
        server.signal("-STOP");
        assert_eq!(redis.ping().await.unwrap_err().kind(), FaultKind::TimedOut);
        server.signal("-CONT");
        eventually("it answers again", async || redis.ping().await.is_ok()).await;
    }
}

/// Policies whose keys lie in different slots, on a cluster with one node that is named as a single server.
#[tokio::test]
async fn a_one_node_cluster_may_be_single() {
    let cluster = RedisCluster::start(1, 0);
    let redis = patient(Redis::single(cluster.nodes[0].url()));
    let all = Policy::new("all", RateLimiter::new(at_most(3), RedisStore::new(&redis, "all")));
    let layer = RateLimitLayer::builder([per_client(&redis, "p", at_most(100)), all]).verdict().build();
    // The shared policy rejects with 503.
    for status in [200, 200, 200, 503] {
        let response = send(&layer, "a").await;
        assert!(response.status() == status && is_decided(&response), "{response:?}");
    }
    eventually("it is refunded", async || charged(&redis, "p", at_most(100), "a").await == 3).await;
}

/// Two policies decide on a request while their keys' slot moves: one key exists already, the other does not.
#[tokio::test]
async fn two_policies_survive_a_moving_slot() {
    let cluster = RedisCluster::start(2, 0);
    let redis = patient(Redis::cluster(cluster.urls()));
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

/// A unit that one process refunded is not rejected by another for long.
#[tokio::test]
async fn another_processs_refund_is_soon_noticed() {
    let server = RedisServer::start();
    let process = || RateLimiter::new(at_most(5), RedisStore::new(&patient(Redis::single(server.url())), "p"));
    let (here, there) = (process(), process());
    let mut last = None;
    for _ in 0..5 {
        last = Some(there.decide(&Ask::charge(&key("a"), 1)).decided().await.unwrap());
    }
    assert!(!here.decide(&Ask::charge(&key("a"), 1)).decided().await.unwrap().is_allowed());
    there.refund(&Ask::charge(&key("a"), 1), last.unwrap().receipt(), 1);
    let mut rejected = 0;
    while !here.decide(&Ask::charge(&key("a"), 1)).decided().await.unwrap().is_allowed() {
        rejected += 1;
        // Three seconds; on a busy machine, fewer requests come in that time.
        assert!(rejected <= 300, "{rejected} were rejected, with one unit free");
        sleep(Duration::from_millis(10)).await;
    }
    println!("{rejected} rejections");
}
