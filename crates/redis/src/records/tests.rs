use tower_sluice::testing::{check_records, seed_of};

use super::*;
use crate::support::servers::{RedisCluster, RedisServer};

fn limits() -> CallLimits {
    CallLimits::until(tokio::time::Instant::now() + Duration::from_secs(60))
}

fn open(server: &RedisServer) -> RedisRecords {
    Redis::single(server.url()).timeout(Duration::from_secs(5)).open().unwrap().records()
}

async fn swap(records: &RedisRecords, name: &str, old: Option<&[u8]>, new: Option<&[u8]>, lifetime: Duration) -> bool {
    records.swap(name, old, new, lifetime, limits()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn they_pass_the_suite() {
    let server = RedisServer::start();
    check_records(open(&server), seed_of(24)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_spreads_them_over_all_nodes() {
    let cluster = RedisCluster::start(3, 0);
    let redis = Redis::cluster(cluster.urls()).timeout(Duration::from_secs(5)).open().unwrap();
    check_records(redis.records(), seed_of(25)).await;
    for node in &cluster.nodes {
        let records: Vec<String> = node.run(&["KEYS", "sluice:{*}:race:*:record"]);
        assert!(!records.is_empty(), "{}", node.url());
    }
}

/// In milliseconds, rounded up; from 35 years on, forever.
#[tokio::test]
async fn a_record_expires_with_its_lifetime() {
    let server = RedisServer::start();
    let records = open(&server);
    let hour = Duration::from_secs(3_600);
    let most = Duration::from_millis(LONGEST);
    for (name, lifetime, expected) in [
        ("hour", hour, 3_600_000),
        ("more", hour + Duration::from_nanos(1), 3_600_001),
        ("most", most, 1 << 40),
        ("forever", most + Duration::from_nanos(1), -1),
        ("max", Duration::MAX, -1),
    ] {
        assert!(swap(&records, name, None, Some(b"a"), lifetime).await);
        let left: i64 = server.run(&["PTTL", records.key(name).as_str()]);
        assert!(left <= expected && left > expected - 60_000, "{name}: {left}");
        // The last value's lifetime counts.
        assert!(swap(&records, name, Some(b"a"), Some(b"b"), Duration::from_secs(7_200)).await);
        let left: i64 = server.run(&["PTTL", records.key(name).as_str()]);
        assert!(left <= 7_200_000 && left > 7_140_000, "{name}: {left}");
    }
    assert!(swap(&records, "none", None, Some(b"a"), Duration::ZERO).await);
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(records.read("none", limits()).await.unwrap().value, None);
}

#[tokio::test]
async fn names_and_secrets_share_no_record() {
    let server = RedisServer::start();
    let records = open(&server);
    assert!(swap(&records, "api:-:r", None, Some(b"a"), Duration::MAX).await);
    let secret =
        Redis::single(server.url()).secret(b"secret").timeout(Duration::from_secs(5)).open().unwrap().records();
    assert_eq!(secret.read("api:-:r", limits()).await.unwrap().value, None);
    assert_eq!(records.read("api:-:r:1", limits()).await.unwrap().value, None);
    assert_eq!(open(&server).read("api:-:r", limits()).await.unwrap().value.as_deref(), Some(&b"a"[..]));
    let keys: Vec<String> = server.run(&["KEYS", "*"]);
    assert!(keys.len() == 1 && keys[0].ends_with("}:api:-:r:record"), "{keys:?}");
}

/// It may be another program's.
#[tokio::test]
async fn a_foreign_value_stays() {
    let server = RedisServer::start();
    let records = open(&server);
    server.run::<()>(&["HSET", records.key("a").as_str(), "field", "b"]);
    assert!(records.read("a", limits()).await.is_err());
    for [old, new] in [[None, Some(&b"c"[..])], [Some(&b"b"[..]), None], [None, None]] {
        assert!(records.swap("a", old, new, Duration::MAX, limits()).await.is_err());
    }
    assert_eq!(server.run::<String>(&["HGET", records.key("a").as_str(), "field"]), "b");
}
