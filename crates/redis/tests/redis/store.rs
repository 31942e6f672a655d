//! Budgets on Redis, as a layer and other processes see them.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{Request, Response};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::algorithm::{FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::key::HeaderKey;
use tower_sluice::limiter::{Ask, Mode};
use tower_sluice::{Decision, FailureMode, Limiter, PartitionKey, Policy, Quota, RateLimitLayer, RateLimiter, Verdict};
use tower_sluice_redis::{Redis, RedisStore, RedisTable, Scripted};

use crate::support::clients::PLENTY;
use crate::support::redis::RedisServer;
use crate::support::timing::eventually;

/// Connects as another process would, with separate connections. The timeout is long, for busy machines.
fn redis(server: &RedisServer) -> Redis {
    Redis::single(server.url()).timeout(PLENTY).connect_timeout(PLENTY).open().unwrap()
}

fn limiter<A: Scripted>(redis: &Redis, algorithm: A) -> RateLimiter<A, RedisTable<A::State>> {
    limiter_of(redis, "test", algorithm)
}

fn limiter_of<A: Scripted>(redis: &Redis, name: &str, algorithm: A) -> RateLimiter<A, RedisTable<A::State>> {
    RateLimiter::new(algorithm, RedisStore::new(redis, name))
}

async fn ask(limiter: &(impl Limiter + ?Sized), key: &str, cost: u64) -> Decision {
    limiter.decide(&Ask::charge(&PartitionKey::from(key), cost)).decided().await.unwrap()
}

/// Returns how many scripts the server ran.
fn calls(server: &RedisServer) -> u64 {
    let stats: String = redis::cmd("INFO").arg("commandstats").query(&mut server.connection()).unwrap();
    let of = |command: &str| {
        let line = stats.lines().find(|line| line.starts_with(&format!("cmdstat_{command}:")));
        let count = line.and_then(|line| line.split(&['=', ','][..]).nth(1));
        count.map_or(0, |count| count.parse::<u64>().unwrap())
    };
    of("evalsha") + of("eval")
}

/// How often a process may have verified a cached rejection by now: each half second.
fn verified(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis() / 500).unwrap() + 1
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn eight_processes_admit_exactly_the_limit() {
    async fn admitted<A: Scripted + Copy>(algorithm: A) -> usize {
        let server = RedisServer::start();
        let asking: Vec<_> = (0..8)
            .map(|_| {
                let limiter = Arc::new(limiter(&redis(&server), algorithm));
                tokio::spawn(async move {
                    let asked = (0..1_000).map(|_| ask(&*limiter, "shared", 1));
                    let decisions = futures_util::future::join_all(asked).await;
                    decisions.iter().filter(|decision| decision.is_allowed()).count()
                })
            })
            .collect();
        let mut admitted = 0;
        for process in asking {
            admitted += process.await.unwrap();
        }
        admitted
    }
    // The periods are long, so that nothing is earned meanwhile.
    assert_eq!(admitted(TokenBucket::new(Quota::per_day(777))).await, 777);
    assert_eq!(admitted(SlidingWindow::new(Quota::per(777, Duration::from_secs(100 * 86_400)))).await, 777);
    assert_eq!(admitted(FixedWindow::new(Quota::per(777, Duration::from_secs(100 * 86_400)))).await, 777);
}

#[tokio::test]
async fn all_processes_see_spent_units() {
    let server = RedisServer::start();
    let bucket = TokenBucket::new(Quota::per_hour(10));
    let [here, there] = [limiter(&redis(&server), bucket), limiter(&redis(&server), bucket)];
    assert_eq!(ask(&here, "a", 4).await.remaining(), 6);
    assert_eq!(ask(&there, "a", 5).await.remaining(), 1);
    let rejected = ask(&here, "a", 2).await;
    assert!(!rejected.is_allowed() && rejected.remaining() == 1);
    let wait = rejected.retry_after().unwrap();
    assert!(wait > Duration::from_secs(300) && wait <= Duration::from_secs(360), "{wait:?}");
    assert_eq!(ask(&here, "b", 1).await.remaining(), 9);
}

/// It charges nothing.
#[tokio::test]
async fn a_peek_answers_like_a_charge() {
    let server = RedisServer::start();
    let (redis, quota) = (redis(&server), Quota::per_hour(10));
    let limiters: [Box<dyn Limiter>; 3] = [
        Box::new(limiter(&redis, TokenBucket::new(quota))),
        Box::new(limiter(&redis, FixedWindow::new(quota))),
        Box::new(limiter(&redis, SlidingWindow::new(quota))),
    ];
    for limiter in &limiters {
        let peek = async |cost| limiter.decide(&Ask::peek(&PartitionKey::from("a"), cost)).decided().await.unwrap();
        let before = [peek(10).await, peek(3).await, peek(0).await];
        assert_eq!(before.map(|it| (it.is_allowed(), it.remaining())), [(true, 0), (true, 7), (true, 10)]);
        assert_eq!(ask(&**limiter, "a", 8).await.remaining(), 2, "the peeks charged nothing");
        let after = [peek(3).await, peek(11).await];
        assert_eq!(after.map(|it| (it.is_allowed(), it.remaining())), [(false, 2), (false, 2)]);
        assert!(after[0].retry_after().is_some() && after[1].retry_after().is_none());
    }
}

#[tokio::test]
async fn a_flood_does_not_reach_the_server() {
    let server = RedisServer::start();
    let limiter = Arc::new(limiter(&redis(&server), TokenBucket::new(Quota::per_hour(1))));
    // The very first call finds that the server does not have the script.
    let _ = ask(&*limiter, "another", 1).await;
    let (before, began) = (calls(&server), Instant::now());
    let flood = (0..2_000).map(|_| ask(&*limiter, "a", 1));
    let admitted = futures_util::future::join_all(flood).await.iter().filter(|it| it.is_allowed()).count();
    for _ in 0..1_000 {
        assert!(
            limiter.decide(&Ask::charge(&PartitionKey::from("a"), 1)).decided().await.unwrap().retry_after().is_some()
        );
    }
    assert_eq!(admitted, 1);
    let made = calls(&server) - before;
    assert!((1..=1 + verified(began)).contains(&made), "{made}: the first showed that the rest would be rejected");
}

#[tokio::test]
async fn concurrent_requests_share_a_call() {
    let server = RedisServer::start();
    // No token is earned within minutes.
    let bucket = TokenBucket::new(Quota::per(10_000, Duration::from_secs(30 * 86_400)));
    let limiter = Arc::new(limiter(&redis(&server), bucket));
    let before = calls(&server);
    let decisions = futures_util::future::join_all((0..1_000).map(|_| ask(&*limiter, "a", 1))).await;
    assert!(decisions.iter().all(Decision::is_allowed));
    // Each gets different numbers, in the order of arrival.
    let mut remaining: Vec<_> = decisions.iter().map(Decision::remaining).collect();
    remaining.dedup();
    assert_eq!(remaining, (9_000..10_000).rev().collect::<Vec<_>>());
    let shared = calls(&server) - before;
    assert!(shared <= 10, "{shared} calls");

    let alone = RateLimiter::new(bucket, RedisStore::new(&redis(&server), "alone").without_coalescing());
    let before = calls(&server);
    let decisions = futures_util::future::join_all((0..100).map(|_| ask(&alone, "a", 1))).await;
    let mut remaining: Vec<_> = decisions.iter().map(Decision::remaining).collect();
    remaining.sort_unstable();
    assert_eq!(remaining, (9_900..10_000).collect::<Vec<_>>());
    // One by itself, and the others in bundles with other requests.
    assert_eq!(calls(&server) - before, 1 + 4);
}

/// They leave few units idle.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn processes_with_leases_never_exceed_the_limit() {
    const LIMIT: u64 = 1_000;
    const MOST: u32 = 10;
    let server = RedisServer::start();
    let lifetime = Duration::from_secs(600);
    let leasing = |lifetime| {
        let store = RedisStore::new(&redis(&server), "test").leasing(MOST, lifetime);
        Arc::new(RateLimiter::new(TokenBucket::new(Quota::per_day(LIMIT)), store))
    };
    let nodes: Vec<_> = (0..4).map(|_| leasing(lifetime)).collect();
    let (before, began) = (calls(&server), Instant::now());
    let asking: Vec<_> = nodes
        .iter()
        .map(|node| {
            let node = Arc::clone(node);
            tokio::spawn(async move {
                let mut admitted = 0;
                for _ in 0..400 {
                    admitted += u64::from(ask(&*node, "shared", 1).await.is_allowed());
                }
                admitted
            })
        })
        .collect();
    let mut admitted = 0;
    for node in asking {
        admitted += node.await.unwrap();
    }
    // In 1,600 requests some of a thousand are earned again: one every 86 seconds.
    let earned = began.elapsed().as_secs() / 86;
    assert!(admitted <= LIMIT + 1 + earned, "{admitted}");
    assert!(admitted >= LIMIT - 4 * u64::from(MOST), "{admitted}: more lies idle than each may have taken");
    let made = calls(&server) - before;
    assert!(made < 500 + 4 * verified(began), "{made} calls");
}

#[tokio::test]
async fn a_leases_rest_is_refunded() {
    let server = RedisServer::start();
    let bucket = TokenBucket::new(Quota::per_day(1_000));
    let lifetime = Duration::from_millis(500);
    let store = RedisStore::new(&redis(&server), "test").leasing(100, lifetime);
    let leasing = RateLimiter::new(bucket, store);
    let plain = RateLimiter::new(bucket, RedisStore::new(&redis(&server), "test"));
    let mut asked = 0;
    while ask(&plain, "a", 0).await.remaining() + asked + 50 > 1_000 {
        // Until fifty are leased beyond the demand. A slow machine may start again on the way.
        assert!(ask(&leasing, "a", 1).await.is_allowed());
        asked += 1;
        assert!(asked < 800, "nothing was leased");
    }
    tokio::time::sleep(lifetime).await;
    assert!(ask(&leasing, "a", 1).await.is_allowed());
    asked += 1;
    // The last one may have been taken with one more.
    let left = async || ask(&plain, "a", 0).await.remaining();
    eventually("the lease is refunded", async || left().await + asked + 1 >= 1_000).await;
}

/// A layer charges both policies in one call, which takes no lease: so a key in demand gets a call of its own, which
/// does.
#[tokio::test]
async fn a_layer_with_several_policies_takes_leases() {
    let server = RedisServer::start();
    let redis = redis(&server);
    // So slow that nothing is earned meanwhile.
    let bucket = TokenBucket::new(Quota::per_hour(1).burst(100_000));
    let store = RedisStore::new(&redis, "leased").leasing(100, Duration::from_secs(600));
    let client = HeaderKey::new(http::HeaderName::from_static("x-client"));
    let layer = RateLimitLayer::new([
        Policy::new("leased", RateLimiter::new(bucket, store)).key(client),
        policy(&redis, "plain", bucket),
        policy(&redis, "other", bucket),
    ]);
    let before = calls(&server);
    for _ in 0..200 {
        assert_eq!(send(&layer, "a").await.status(), 200);
    }
    let made = calls(&server) - before;
    assert!(made < 220, "{made} calls: one per request for the other two, and few for leases");
    let leased = limiter_of(&redis, "leased", bucket);
    assert!(ask(&leased, "a", 0).await.remaining() < 100_000 - 200, "more was taken than was needed");
    let plain = limiter_of(&redis, "plain", bucket);
    assert_eq!(ask(&plain, "a", 0).await.remaining(), 100_000 - 200);
}

/// A peek and a charge agree while a lease pays, although the server has nothing left for other processes.
#[tokio::test]
async fn a_peek_sees_what_a_lease_admits() {
    let server = RedisServer::start();
    let redis = redis(&server);
    let bucket = TokenBucket::new(Quota::per_day(20));
    let store = RedisStore::new(&redis, "test").leasing(100, Duration::from_secs(600));
    let leasing = RateLimiter::new(bucket, store);
    // The third call leases two.
    for _ in 0..4 {
        assert!(ask(&leasing, "a", 1).await.is_allowed());
    }
    let elsewhere = limiter(&redis, bucket);
    let rest = ask(&elsewhere, "a", 0).await.remaining();
    assert!(ask(&elsewhere, "a", rest).await.is_allowed() && !ask(&elsewhere, "a", 1).await.is_allowed());
    let peeked = leasing.decide(&Ask::peek(&PartitionKey::from("a"), 1)).decided().await.unwrap();
    let charged = ask(&leasing, "a", 1).await;
    assert_eq!((peeked.is_allowed(), peeked.remaining()), (true, charged.remaining()));
    assert!(charged.is_allowed());
}

async fn send(layer: &RateLimitLayer, client: &str) -> Response<()> {
    let inner = service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(())) });
    let request = Request::builder().header("x-client", client).body(()).unwrap();
    layer.clone().layer(inner).oneshot(request).await.unwrap().map(drop)
}

fn policy<A: Scripted>(redis: &Redis, name: &'static str, algorithm: A) -> Policy {
    Policy::new(name, RateLimiter::new(algorithm, RedisStore::new(redis, name)))
        .key(HeaderKey::new(http::HeaderName::from_static("x-client")))
}

fn numbers(response: &Response<()>) -> Vec<(String, bool, u64)> {
    let verdict = response.extensions().get::<Verdict>().unwrap();
    let number = |it: &tower_sluice::rejection::PolicyVerdict| {
        (it.name().to_owned(), it.decision().is_allowed(), it.decision().remaining())
    };
    verdict.policies().iter().map(number).collect()
}

/// All are charged or none.
#[tokio::test]
async fn one_call_decides_on_several_policies() {
    let server = RedisServer::start();
    let redis = redis(&server);
    let three = FixedWindow::new(Quota::per(3, Duration::from_secs(100 * 86_400)));
    let layer = RateLimitLayer::builder([
        policy(&redis, "hour", TokenBucket::new(Quota::per_hour(100))),
        Policy::new("local", TokenBucket::new(Quota::per_hour(50))),
        policy(&redis, "day", three),
        policy(&redis, "year", SlidingWindow::new(Quota::per(200, Duration::from_secs(365 * 86_400)))),
    ])
    .verdict()
    .build();
    assert_eq!(send(&layer, "another").await.status(), 200);
    let before = calls(&server);
    for left in [2, 1, 0] {
        let response = send(&layer, "a").await;
        assert_eq!(response.status(), 200);
        assert!(numbers(&response).contains(&("day".into(), true, left)));
    }
    assert_eq!(calls(&server) - before, 3);

    // Rejected without a call, because "day" is known to be used up.
    let rejected = send(&layer, "a").await;
    assert_eq!((rejected.status().as_u16(), calls(&server) - before), (429, 3));
    assert_eq!(numbers(&rejected), [("local".into(), true, 46), ("day".into(), false, 0)]);

    // Used up by another process: the call finds that out, nothing is charged, and all policies are reported.
    let elsewhere = RateLimiter::new(three, RedisStore::new(&redis, "day"));
    assert!(ask(&elsewhere, "b", 3).await.is_allowed());
    let rejected = send(&layer, "b").await;
    let expected = [("hour", true, 100), ("local", true, 46), ("day", false, 0), ("year", true, 200)];
    let mut numbers = numbers(&rejected);
    numbers.sort_by_key(|(name, ..)| expected.iter().position(|it| it.0 == name));
    assert_eq!(numbers, expected.map(|(name, allowed, left)| (name.to_owned(), allowed, left)));
}

#[tokio::test]
async fn policies_sharing_a_budget_both_charge() {
    let server = RedisServer::start();
    let shared = Arc::new(limiter(&redis(&server), TokenBucket::new(Quota::per_hour(10))));
    let layer = RateLimitLayer::builder([Policy::new("one", Arc::clone(&shared)), Policy::new("two", shared)])
        .verdict()
        .build();
    let response = send(&layer, "a").await;
    assert_eq!(numbers(&response), [("one".to_owned(), true, 9), ("two".to_owned(), true, 8)]);
}

#[tokio::test]
async fn another_servers_rejection_refunds_the_charge() {
    let (server, other) = (RedisServer::start(), RedisServer::start());
    let (redis, there) = (redis(&server), redis(&other));
    let hour = TokenBucket::new(Quota::per_hour(100));
    let layer = RateLimitLayer::builder([
        policy(&redis, "here", hour),
        policy(&there, "there", TokenBucket::new(Quota::per_hour(1))),
    ])
    .verdict()
    .build();
    assert_eq!(send(&layer, "a").await.status(), 200);
    // Used up there by another process, so not known to be here.
    let elsewhere = RateLimiter::new(TokenBucket::new(Quota::per_hour(1)), RedisStore::new(&there, "there"));
    assert!(ask(&elsewhere, "b", 1).await.is_allowed());
    assert_eq!(send(&layer, "b").await.status(), 429);

    let here = RateLimiter::new(hour, RedisStore::new(&redis, "here").without_coalescing());
    eventually("the charge is refunded", async || ask(&here, "b", 0).await.remaining() == 100).await;
}

/// So do resets.
#[tokio::test]
async fn up_to_charges_reach_the_server() {
    let server = RedisServer::start();
    let (here, there, third) = (redis(&server), redis(&server), redis(&server));
    let quota = Quota::per_hour(10);
    let (bucket, fixed, sliding) = (TokenBucket::new(quota), FixedWindow::new(quota), SlidingWindow::new(quota));
    let processes: [[Arc<dyn Limiter>; 3]; 3] = [
        [Arc::new(limiter(&here, bucket)), Arc::new(limiter(&there, bucket)), Arc::new(limiter(&third, bucket))],
        [Arc::new(limiter(&here, fixed)), Arc::new(limiter(&there, fixed)), Arc::new(limiter(&third, fixed))],
        [Arc::new(limiter(&here, sliding)), Arc::new(limiter(&there, sliding)), Arc::new(limiter(&third, sliding))],
    ];
    let key = PartitionKey::from("a");
    for [limiter, elsewhere, third] in &processes {
        assert_eq!(ask(&**limiter, "a", 3).await.remaining(), 7);
        // The cost is more than is left, so the rest is charged.
        let _ = limiter.decide(&Ask::charge(&key, 20).to(Mode::UpTo));
        let mut asked = Instant::now();
        eventually("it is charged", async || {
            asked = Instant::now();
            ask(&**elsewhere, "a", 0).await.remaining() == 0
        })
        .await;
        assert!(!ask(&**limiter, "a", 1).await.is_allowed() && !ask(&**elsewhere, "a", 1).await.is_allowed());
        let decision = limiter.decide(&Ask::reset(&key)).decided().await.unwrap();
        assert_eq!((decision.is_allowed(), decision.remaining()), (true, 10));
        // This process's negative cache is cleared, too.
        assert_eq!(ask(&**limiter, "a", 1).await.remaining(), 9);
        assert_eq!(ask(&**third, "a", 1).await.remaining(), 8);
        // Other processes keep their cached rejections until they verify them, half a second later.
        let is_allowed = ask(&**elsewhere, "a", 1).await.is_allowed();
        assert!(!is_allowed || asked.elapsed() >= Duration::from_millis(500));
    }
}

/// A client has used up ten per hour, and gets a thousand. Each heir knows its predecessors' quotas.
#[tokio::test]
async fn a_raised_limit_leaves_used_units() {
    let server = RedisServer::start();
    let redis = redis(&server);
    let hour = |limit| limiter(&redis, TokenBucket::new(Quota::per_hour(limit)));
    let heir_of = |limit, before: &dyn Limiter| {
        let heir = hour(limit);
        assert!(heir.inherit(before).is_some());
        heir
    };
    let ten = hour(10);
    assert!(ask(&ten, "a", 10).await.is_allowed() && !ask(&ten, "a", 1).await.is_allowed());
    assert!(ask(&ten, "b", 3).await.is_allowed());
    let thousand = heir_of(1_000, &ten);
    let peek = thousand.decide(&Ask::peek(&PartitionKey::from("a"), 990)).decided().await.unwrap();
    assert!(peek.is_allowed(), "{peek:?}");
    // At that rate, a unit is restored in 3.6 seconds.
    assert!(ask(&thousand, "a", 990).await.is_allowed());
    // The other key's state is read by the quota before last.
    let hundred = heir_of(100, &thousand);
    assert!(ask(&hundred, "b", 97).await.is_allowed() && !ask(&hundred, "b", 1).await.is_allowed());
    // Redis keeps a state as an integer.
    let keys: Vec<String> = server.run(&["KEYS", "sluice:*:test:b"]);
    for key in keys {
        assert_eq!(server.run::<String>(&["OBJECT", "ENCODING", &key]), "int");
    }
}

/// Limiters that do not know each other, such as a process before a restart and after it.
#[tokio::test]
async fn a_quota_may_change_under_one_name() {
    let server = RedisServer::start();
    let hour = |limit, burst| TokenBucket::new(Quota::per_hour(limit).burst(burst));
    let third = |bucket| limiter(&redis(&server), bucket);
    // Raised: no client waits for longer than a new bucket takes to fill.
    assert!(ask(&third(hour(10, 10)), "a", 10).await.is_allowed());
    let raised = ask(&third(hour(3_600, 10)), "a", 1).await;
    assert_eq!(raised.retry_after(), Some(Duration::from_secs(1)));
    // Lowered: the same share is used up.
    assert!(ask(&third(hour(100, 100)), "b", 50).await.is_allowed());
    let lowered = third(hour(10, 10));
    assert_eq!(ask(&lowered, "b", 1).await.remaining(), 4);
    assert!(!ask(&lowered, "b", 5).await.is_allowed());

    let window = |limit| limiter(&redis(&server), FixedWindow::new(Quota::per_day(limit)));
    assert!(ask(&window(10), "c", 8).await.is_allowed());
    assert!(!ask(&window(9), "c", 2).await.is_allowed());
    assert_eq!(ask(&window(20), "c", 2).await.remaining(), 10);
}

#[tokio::test]
async fn a_running_layer_changes_its_budgets() {
    let server = RedisServer::start();
    let (here, there) = (redis(&server), redis(&server));
    let hour = |limit| Quota::per_hour(limit);
    let layer = RateLimitLayer::builder([policy(&here, "a", TokenBucket::new(hour(10)))]).verdict().build();
    for _ in 0..10 {
        assert_eq!(send(&layer, "a").await.status(), 200);
    }
    assert_eq!(send(&layer, "a").await.status(), 429);
    let limits = layer.handle();
    // The other of the bucket's two names inherits from it.
    let replaced = limits.replace(policy(&here, "a", TokenBucket::new(hour(3_600).burst(10)))).unwrap();
    assert_eq!(replaced.not_inherited(), [""; 0]);
    let rejected = send(&layer, "a").await;
    assert_eq!((rejected.status().as_u16(), rejected.headers()["retry-after"].to_str().unwrap()), (429, "1"));
    // Another connection may lead to another server, and a window cannot inherit from a bucket.
    for other in [policy(&there, "a", TokenBucket::new(hour(10))), policy(&there, "a", FixedWindow::new(hour(10)))] {
        assert_eq!(limits.replace(other).unwrap().not_inherited(), ["a"]);
    }
}

#[tokio::test]
async fn the_fallback_is_warm_during_outages() {
    let server = RedisServer::start();
    let redis = redis(&server);
    let bucket = TokenBucket::new(Quota::per_hour(10));
    let falling_back = RateLimitLayer::builder(policy(&redis, "p", bucket)).verdict().build();
    let rejecting =
        RateLimitLayer::builder(policy(&redis, "q", bucket).on_failure(FailureMode::Reject)).verdict().build();
    let admitted = async |layer: &RateLimitLayer, times| {
        let mut admitted = 0;
        for _ in 0..times {
            let response = send(layer, "a").await;
            assert_ne!(response.status(), 500);
            admitted += usize::from(response.status() == 200);
        }
        admitted
    };
    assert_eq!(admitted(&falling_back, 7).await, 7);
    drop(server);
    assert_eq!(admitted(&falling_back, 20).await, 3, "what Redis admitted was counted");
    let rejected = send(&rejecting, "a").await;
    assert!(rejected.status() == 503 && rejected.headers()["retry-after"] == "1");
    assert!(!rejected.headers().contains_key("x-rate-limited-for"));
}

#[tokio::test]
async fn redis_keeps_one_script_per_algorithm() {
    let server = RedisServer::start();
    let redis = redis(&server);
    let bucket = limiter(&redis, TokenBucket::new(Quota::per_hour(100)));
    for number in 0..1_000 {
        let _ = ask(&bucket, &format!("{number}"), 1 + number % 3).await;
    }
    let memory: String = redis::cmd("INFO").arg("memory").query(&mut server.connection()).unwrap();
    assert!(memory.contains("number_of_cached_scripts:1\r"), "{memory}");
}

#[test]
#[should_panic(expected = "microsecond")]
fn an_unfit_quota_panics_at_once() {
    let redis = Redis::open("redis://127.0.0.1:1").unwrap();
    let _limiter = limiter(&redis, FixedWindow::new(Quota::per(1, Duration::from_nanos(1_500))));
}

#[test]
fn stores_and_limiters_are_send_and_sync() {
    fn is_send_and_sync<T: Send + Sync>() {}
    is_send_and_sync::<RedisStore>();
}

#[test]
#[should_panic(expected = "a staggered window is kept in memory only")]
fn a_staggered_window_is_rejected() {
    let redis = Redis::open("redis://127.0.0.1:1").unwrap();
    let _ = RateLimiter::new(FixedWindow::new(Quota::per_minute(1)).staggered(), RedisStore::new(&redis, "p"));
}
