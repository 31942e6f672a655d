//! Three primaries, each with a third of the slots.

use std::sync::atomic::{AtomicU32, Ordering};

use super::servers::{RedisCluster, await_until};
use super::*;

fn open(cluster: &RedisCluster) -> Redis {
    Redis::cluster(cluster.urls()).timeout(PLENTY).connect_timeout(PLENTY).open().unwrap()
}

/// Returns a name whose key is at this node.
fn name_at(cluster: &RedisCluster, node: usize) -> String {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    loop {
        let name = format!("key {}", NUMBER.fetch_add(1, Ordering::Relaxed));
        if cluster.owner_of(key(&name).slot()) == node {
            return name;
        }
    }
}

fn commands(server: &RedisServer, name: &str) -> u32 {
    let stat = server.info(&format!("cmdstat_{name}"));
    stat.strip_prefix("calls=").and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or(0)
}

/// Three nodes take a while to start, so all tests with live nodes share them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_go_to_their_keys_nodes() {
    let cluster = RedisCluster::start(3, 0);
    every_slot_has_its_node(&cluster).await;
    one_url_is_enough(&cluster).await;
    keys_of_one_slot_go_together(&cluster).await;
    a_slot_on_its_way(&cluster).await;
    one_node_hangs(&cluster).await;
}

async fn every_slot_has_its_node(cluster: &RedisCluster) {
    let redis = open(cluster);
    for number in 0..300 {
        assert_eq!(charge(&redis, &format!("many {number}")).await, Ok(1));
    }
    for (index, node) in cluster.nodes.iter().enumerate() {
        let keys: u32 = node.run(&["DBSIZE"]);
        assert!(keys > 50, "{keys} keys at node {index}");
        // Each node has its own scripts, and got the first call by hash and in full. No node was called for another
        // node's key.
        assert_eq!(commands(node, "eval"), 1);
        assert_eq!(commands(node, "evalsha"), keys);
    }
    assert_eq!(redis.health().len(), 3);
}

async fn one_url_is_enough(cluster: &RedisCluster) {
    let redis = Redis::cluster([cluster.nodes[1].url()]).timeout(PLENTY).connect_timeout(PLENTY).open().unwrap();
    for node in 0..3 {
        assert_eq!(charge(&redis, &name_at(cluster, node)).await, Ok(1));
    }
    // Opened as a single server, the node reports other nodes' keys as a misconfiguration.
    let single = patient(&cluster.nodes[0]);
    assert_eq!(charge(&single, &name_at(cluster, 1)).await, Err(FaultKind::Misconfigured));
}

async fn keys_of_one_slot_go_together(cluster: &RedisCluster) {
    static BOTH: Script = Script::new("redis.call('INCR', KEYS[1]) return redis.call('INCR', KEYS[2])");
    let names = |limiter| KeyNames::new("test", limiter, b"");
    let key = |limiter, name: &str| names(limiter).key(names(limiter).tag(&PartitionKey::from(name)), 'b');
    let redis = open(cluster);
    let name = name_at(cluster, 2);
    let one = key("one", &name);
    let other = key("other", &name);
    assert!(redis.share_a_node(one.slot(), other.slot()));
    let both = ScriptCall { script: &BOTH, keys: smallvec![one, other], args: smallvec![], texts: Vec::new() };
    assert_eq!(redis.call(&both).await, Ok(Value::Int(1)));
    let here = key("one", &name_at(cluster, 0));
    let there = key("one", &name_at(cluster, 1));
    assert!(!redis.share_a_node(here.slot(), there.slot()));
    assert!(Redis::open("redis://localhost").unwrap().share_a_node(here.slot(), there.slot()));
}

async fn a_slot_on_its_way(cluster: &RedisCluster) {
    let redis = open(cluster);
    let [from, to] = [&cluster.nodes[0], &cluster.nodes[1]];
    let [from_id, to_id] = [from, to].map(|node| node.run::<String>(&["CLUSTER", "MYID"]));
    let name = name_at(cluster, 0);
    let slot = key(&name).slot().to_string();
    assert_eq!(charge(&redis, &name).await, Ok(1));
    to.run::<()>(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]);
    from.run::<()>(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]);
    assert_eq!(charge(&redis, &name).await, Ok(2), "it is still there");
    let port = to.address().port().to_string();
    from.run::<()>(&["MIGRATE", "127.0.0.1", &port, key(&name).as_str(), "0", "5000"]);
    // The next calls are redirected. The first of them sends the script in full.
    to.run::<()>(&["SCRIPT", "FLUSH"]);
    assert_eq!(charge(&redis, &name).await, Ok(3));
    assert_eq!(charge(&redis, &name).await, Ok(4));
    assert!(commands(to, "asking") >= 2);
    may_not_ask(cluster, &name).await;
    for node in [to, from, &cluster.nodes[2]] {
        node.run::<()>(&["CLUSTER", "SETSLOT", &slot, "NODE", &to_id]);
    }
    assert_eq!(charge(&redis, &name).await, Ok(5), "it has moved");
    let mut sum = 5;
    let rejected = || from.info("errorstat_MOVED");
    // Before long, calls go to the new node at once.
    loop {
        let before = rejected();
        sum += 1;
        assert_eq!(charge(&redis, &name).await, Ok(sum));
        if rejected() == before {
            break;
        }
        assert!(sum < 10_000, "still the wrong node is asked");
        sleep(POLL).await;
    }
    assert!(redis.health().iter().all(|node| node.breaker() == BreakerState::Closed), "no node has failed");
}

/// A user without the permission for `ASKING` calls for a key whose node answers `ASK`.
async fn may_not_ask(cluster: &RedisCluster, name: &str) {
    for node in &cluster.nodes {
        node.run::<()>(&["ACL", "SETUSER", "narrow", "on", ">geheim", "~*", "+@all", "-asking"]);
    }
    let urls = cluster.urls().into_iter().map(|url| url.replace("//", "//narrow:geheim@"));
    let redis = Redis::cluster(urls).timeout(PLENTY).connect_timeout(PLENTY).open().unwrap();
    assert_eq!(charge(&redis, name).await, Err(FaultKind::NoPermission));
}

/// A node that hangs does not affect the others.
async fn one_node_hangs(cluster: &RedisCluster) {
    let redis = Redis::cluster(cluster.urls()).timeout(Duration::from_millis(500)).open().unwrap();
    let names = [0, 1, 2].map(|node| name_at(cluster, node));
    for name in &names {
        recovers(&redis, name).await;
    }
    // Long enough that the cluster does not give the node up during this test.
    for node in &cluster.nodes {
        node.run::<()>(&["CONFIG", "SET", "cluster-node-timeout", "60000"]);
    }
    cluster.nodes[0].signal("-STOP");
    let breaker = |server: &RedisServer| {
        let address = server.address().to_string();
        redis.health().iter().find(|node| node.name() == address).unwrap().breaker()
    };
    while breaker(&cluster.nodes[0]) == BreakerState::Closed {
        // All at once, to wait for few timeouts.
        let calls = join_all((0..5).map(|_| charge(&redis, &names[0]))).await;
        assert!(calls.iter().all(Result::is_err));
    }
    // A machine may stall for half a second at a time.
    some_attempt_async("no call to the others fails", async || {
        let mut failed = 0;
        for _ in 0..50 {
            failed += u32::from(charge(&redis, &names[1]).await.is_err());
            failed += u32::from(charge(&redis, &names[2]).await.is_err());
            assert!(charge(&redis, &names[0]).await.is_err());
        }
        if failed == 0 { Ok(()) } else { Err(format!("{failed} of 100")) }
    })
    .await;
    for name in &names[1..] {
        recovers(&redis, name).await;
    }
    assert_eq!((breaker(&cluster.nodes[1]), breaker(&cluster.nodes[2])), (BreakerState::Closed, BreakerState::Closed));
    cluster.nodes[0].signal("-CONT");
    recovers(&redis, &names[0]).await;
    await_until("all is well", || breaker(&cluster.nodes[0]) == BreakerState::Closed);
}
