//! The most rejected keys, over all processes that share a limit on Redis.

use std::time::Duration;

use tower_sluice::policy::{Offenders, ShowKey};
use tower_sluice::{FailureMode, Penalty, Policy, Quota, RateLimitLayer, SharedConcurrency, SharedQueue};
use tower_sluice_redis::{Redis, RedisStore};

use crate::support::clients::{PLENTY, at_most, per_client, send};
use crate::support::redis::{RedisCluster, RedisServer};
use crate::support::timing::eventually;

/// Connects as another process would.
fn connect(server: &RedisServer) -> Redis {
    Redis::single(server.url()).timeout(PLENTY).connect_timeout(PLENTY).open().unwrap()
}

fn layer(policy: Policy) -> RateLimitLayer {
    RateLimitLayer::builder(policy.track_offenders(ShowKey::prefix(3))).verdict().build()
}

fn process(redis: &Redis) -> RateLimitLayer {
    layer(per_client(redis, "api", at_most(1)))
}

async fn look(layer: &RateLimitLayer) -> Offenders {
    layer.handle().offenders("api", 10).await.unwrap()
}

fn rows(offenders: &Offenders) -> Vec<(&str, u64)> {
    offenders.list().iter().map(|offender| (offender.key(), offender.count())).collect()
}

async fn send_times(layer: &RateLimitLayer, client: &str, times: usize) {
    for _ in 0..times {
        let _ = send(layer, client).await;
    }
}

#[tokio::test]
async fn one_process_shows_all_rejections() {
    let server = RedisServer::start();
    let [one, other] = [(); 2].map(|()| process(&connect(&server)));
    // Its budget is the same everywhere: one request by the first, and none by the second.
    send_times(&one, "alice", 4).await;
    send_times(&other, "alice", 5).await;
    send_times(&other, "alfred", 3).await;
    for layer in [&one, &other] {
        eventually("both parts are there", async || look(layer).await.total() == 10).await;
        let offenders = look(layer).await;
        assert_eq!((offenders.processes(), offenders.max_error()), (2, 0));
        assert_eq!(rows(&offenders), [("ali…", 8), ("alf…", 2)]);
        assert!(offenders.missing().is_none());
        assert!(offenders.list().iter().all(|offender| offender.first() <= offender.last()));
    }
    // The server has the keys as they are shown, and their tags.
    let names = server.run::<Vec<String>>(&["KEYS", "*:api:-:r:*:record"]);
    let reports: Vec<String> = names.iter().map(|name| server.run(&["GET", name])).collect();
    assert!(reports.len() >= 2, "one for each process and hour: {names:?}");
    assert!(reports.iter().all(|report| report.contains("ali…") && !report.contains("alice")), "{reports:?}");
    for name in names {
        let left: u64 = server.run(&["PTTL", &name]);
        assert!((2 * 3_600_000..=3 * 3_600_000).contains(&left), "{name}: {left}");
    }
}

/// Rejections are published once per second, and not one by one. Without rejections, nothing is written.
#[tokio::test]
async fn two_calls_publish_a_seconds_rejections() {
    let server = RedisServer::start();
    let calls = || {
        let stat = server.info("cmdstat_evalsha");
        stat.split(',').find_map(|field| field.strip_prefix("calls=")).map_or(0, |calls| calls.parse::<u64>().unwrap())
    };
    let one = process(&connect(&server));
    send_times(&one, "alice", 1).await;
    let published = || !server.run::<Vec<String>>(&["KEYS", "*:-:r:*:record"]).is_empty();
    // Known here as used up, so a rejection makes no call.
    send_times(&one, "alice", 2).await;
    eventually("it is published", async || published()).await;
    let before = calls();
    let start = std::time::Instant::now();
    send_times(&one, "alice", 500).await;
    let other = process(&connect(&server));
    let mut looks = 0;
    let is_complete = async || {
        looks += 1;
        look(&other).await.total() == 502
    };
    eventually("all are published", is_complete).await;
    // The negative cache makes one call every half a second. Each second, two calls publish, which at first list the
    // report in another two. Each look takes two, for the list and the report.
    let seconds = start.elapsed().as_secs() + 1;
    let others = calls() - before - 2 * looks;
    assert!(others <= 2 + 5 * seconds, "{others} in {seconds} s");
}

#[tokio::test]
async fn another_processs_ban_is_shown() {
    let server = RedisServer::start();
    let ban = Duration::from_secs(7 * 86_400);
    let [one, other] = [(); 2].map(|()| {
        let policy = per_client(&connect(&server), "api", at_most(1));
        layer(policy.penalty(Penalty::new(Quota::per_day(1), ban)))
    });
    send_times(&one, "alice", 9).await;
    let banned = async || look(&other).await.list().first().and_then(|alice| alice.banned_for());
    eventually("the ban is known", async || banned().await.is_some()).await;
    let left = banned().await.unwrap();
    assert!(left > ban - Duration::from_secs(3_600) && left <= ban, "{left:?}");
}

/// A process that has ended keeps its rejections.
#[tokio::test]
async fn counts_of_ended_processes_stay() {
    let server = RedisServer::start();
    let one = process(&connect(&server));
    send_times(&one, "alice", 3).await;
    let other = process(&connect(&server));
    eventually("it is published", async || look(&other).await.total() == 2).await;
    drop(one);
    let offenders = look(&other).await;
    assert_eq!((offenders.total(), offenders.processes()), (2, 2));
}

/// The answer says so.
#[tokio::test]
async fn during_failures_only_this_process_is_shown() {
    let server = RedisServer::start();
    let [one, other] = [(); 2].map(|()| {
        let redis = Redis::single(server.url()).timeout(PLENTY).connect_timeout(PLENTY).open().unwrap();
        layer(per_client(&redis, "api", at_most(1)).on_failure(FailureMode::LocalFallback))
    });
    send_times(&one, "alice", 3).await;
    send_times(&other, "bob", 4).await;
    eventually("both parts are there", async || look(&one).await.total() == 5).await;
    drop(server);
    let offenders = look(&one).await;
    let missing = offenders.missing().expect("it does not answer");
    assert!(!missing.to_string().is_empty());
    assert_eq!((rows(&offenders), offenders.processes()), (vec![("ali…", 2)], 1));
}

/// A cluster, a queue, and a limit in flight.
#[tokio::test]
async fn other_limiters_share_them_too() {
    let cluster = RedisCluster::start(3, 0);
    let redis = || Redis::cluster(cluster.urls()).timeout(PLENTY).connect_timeout(PLENTY).open().unwrap();
    let key = || tower_sluice::key::HeaderKey::from_static("x-client");
    let policies: [fn(&Redis) -> Policy; 3] = [
        |redis| per_client(redis, "api", at_most(1)),
        |redis| {
            Policy::new(
                "api",
                SharedQueue::new(redis.clone(), "queue", Quota::per(1, Duration::from_secs(86_400))).max_queue(1),
            )
        },
        |redis| Policy::new("api", SharedConcurrency::new(redis.clone(), "in-flight", 1)).cost_fn(|_| 2),
    ];
    for policy in policies {
        let [one, other] = [(); 2].map(|()| layer(policy(&redis()).key(key())));
        send_times(&one, "alice", 3).await;
        let total = look(&one).await.total();
        assert!(total >= 2, "{total}");
        eventually("it is published", async || look(&other).await.total() == total).await;
    }
}

/// Two policies whose limiters have one name are two lists.
#[tokio::test]
async fn each_policys_name_has_its_list() {
    let server = RedisServer::start();
    let policy = |name: &'static str, redis: &Redis| {
        let limiter = tower_sluice::RateLimiter::new(at_most(1), RedisStore::new(redis, "shared"));
        layer(Policy::new(name, limiter).key(tower_sluice::key::HeaderKey::from_static("x-client")))
    };
    let web = policy("web", &connect(&server));
    send_times(&web, "alice", 3).await;
    eventually("it is published", async || !server.run::<Vec<String>>(&["KEYS", "*:-:r:*:record"]).is_empty()).await;
    assert_eq!(look(&policy("api", &connect(&server))).await.total(), 0);
    let another = policy("web", &connect(&server));
    assert_eq!(another.handle().offenders("web", 1).await.unwrap().total(), 2);
}
