//! Requests in flight on a cluster.

use super::*;
use crate::support::redis::RedisCluster;

fn processes(cluster: &RedisCluster, limit: u64) -> [Arc<SharedConcurrency<Redis>>; 2] {
    [0, 1].map(|_| {
        let redis = connect(Redis::cluster(cluster.urls()));
        Arc::new(SharedConcurrency::new(redis.clone(), "test", limit).lease(HOUR).max_queue(100).max_wait(60 * SECOND))
    })
}

/// The units that a node counts, over all keys.
fn counted_on(node: &RedisServer) -> u64 {
    let of_key = |key: &String| -> u64 {
        let mut connection = node.connection();
        // Its slot may be on its way there.
        redis::cmd("ASKING").query::<()>(&mut connection).unwrap();
        // It may have gone, or moved, since it was listed.
        let fields: Vec<String> = redis::cmd("HVALS").arg(key).query(&mut connection).unwrap_or_default();
        fields.iter().map(|field| field[1..].split(':').next().unwrap().parse::<u64>().unwrap()).sum()
    };
    node.run::<Vec<String>>(&["KEYS", "sluice:*:test:n"]).iter().map(of_key).sum()
}

fn is_idle(limiter: &Arc<SharedConcurrency<Redis>>) -> bool {
    let stats = limiter.stats();
    stats.in_flight == Some(0) && stats.backlog.unwrap().waiting() == 0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_never_exceed_any_keys_limit() {
    const LIMIT: u64 = 3;
    let cluster = RedisCluster::start(3, 0);
    let processes = processes(&cluster, LIMIT);
    let in_flight: Arc<[AtomicU64; 6]> = Arc::default();
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..48 {
        let (limiter, in_flight) = (Arc::clone(&processes[task % 2]), Arc::clone(&in_flight));
        tasks.spawn(async move {
            for round in 0..8 {
                let client = (task / 2 + round) % 6;
                let permit = limiter.acquire(&PartitionKey::from(client as u64), 1).await.unwrap().admitted();
                let permit = permit.expect("it waits until it is served");
                assert!(in_flight[client].fetch_add(1, Ordering::SeqCst) < LIMIT, "client {client}");
                tokio::task::yield_now().await;
                in_flight[client].fetch_sub(1, Ordering::SeqCst);
                drop(permit);
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    until("all are released", || cluster.nodes.iter().all(|node| counted_on(node) == 0)).await;
    assert!(processes.iter().all(is_idle));
    let used = cluster.nodes.iter().filter(|node| calls(node) > 0).count();
    assert!(used >= 2, "the clients are on several nodes");
}

/// Units in flight move along with their key's slot, and a waiter finds them there.
#[tokio::test]
async fn units_survive_a_moving_slot_exactly() {
    let cluster = RedisCluster::start(2, 0);
    let [here, there] = processes(&cluster, 2);
    let (one, two) = (take(&here, 1).await.unwrap(), take(&there, 1).await.unwrap());
    let theirs = Arc::clone(&there);
    let waiter = tokio::spawn(take_owned(theirs, 2));
    until("it waits", || there.stats().backlog.unwrap().waiting() == 1).await;

    let from = (0..2).find(|index| counted_on(&cluster.nodes[*index]) == 2).expect("both units are there");
    let [from, to] = [from, 1 - from].map(|index| &cluster.nodes[index]);
    let name = from.run::<Vec<String>>(&["KEYS", "sluice:*:test:n"]).remove(0);
    let slot = from.run::<u64>(&["CLUSTER", "KEYSLOT", &name]).to_string();
    let [old, new] = [from, to].map(|node| node.run::<String>(&["CLUSTER", "MYID"]));
    to.run::<()>(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &old]);
    from.run::<()>(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &new]);
    let port = to.address().port().to_string();
    from.run::<()>(&["MIGRATE", "127.0.0.1", &port, &name, "0", "5000"]);
    // The slot is half moved. One unit is released on its new node, which only a redirection names.
    drop(one);
    until("it is released", || counted_on(to) == 1).await;
    for node in [to, from] {
        node.run::<()>(&["CLUSTER", "SETSLOT", &slot, "NODE", &new]);
    }
    assert!(!waiter.is_finished(), "one unit is still held");
    drop(two);
    let permit = waiter.await.unwrap().expect("it has its turn");
    assert_eq!((counted_on(to), counted_on(from)), (2, 0));
    assert!(here.decide(&Ask::charge(&key("a"), 0)).decided().await.unwrap().remaining() == 0);
    drop(permit);
    until("all are released", || cluster.nodes.iter().all(|node| counted_on(node) == 0)).await;
    assert!(is_idle(&here) && is_idle(&there));
}
