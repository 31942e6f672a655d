//! Keys with their own quotas on Redis. With these long periods, nothing is earned while a test runs.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::{Request, Response};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::algorithm::{FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::key::HeaderKey;
use tower_sluice::limiter::{Ask, IntoLimiter, Mode};
use tower_sluice::testing::{Random, take_quotas};
use tower_sluice::{Decision, Limiter, LimiterExt, PartitionKey, Policy, Quota, RateLimitLayer, RateLimiter};
use tower_sluice_redis::{Redis, RedisStore, RedisTable, Scripted};

use crate::support::clients::PLENTY;
use crate::support::proxy::Proxy;
use crate::support::redis::RedisServer;
use crate::support::timing::eventually;

fn redis(server: &RedisServer) -> Redis {
    Redis::single(server.url()).timeout(PLENTY).connect_timeout(PLENTY).open().unwrap()
}

fn limiter<A: Scripted>(redis: &Redis, algorithm: A) -> RateLimiter<A, RedisTable<A::State>> {
    RateLimiter::new(algorithm, RedisStore::new(redis, "test"))
}

fn quota(limit: u64) -> Quota {
    Quota::per(limit, Duration::from_secs(100 * 86_400))
}

async fn ask(limiter: &impl Limiter, key: u64, cost: u64, quota: Quota) -> Decision {
    let key = PartitionKey::from(key);
    limiter.decide(&Ask::charge(&key, cost).under(Some(quota))).decided().await.unwrap()
}

/// One process suspends a key, which costs no call, and another one continues with the key's used units.
#[tokio::test]
async fn a_suspended_key_is_rejected_without_calls() {
    let server = RedisServer::start();
    let [one, other] = [(); 2].map(|()| limiter(&redis(&server), TokenBucket::new(quota(10))));
    assert_eq!(ask(&one, 1, 4, quota(10)).await.remaining(), 6);
    let calls = || server.info("total_commands_processed").parse::<u64>().unwrap();
    let before = calls();
    let key = PartitionKey::from(1_u64);
    for mode in [Mode::Charge, Mode::Peek, Mode::Shadow, Mode::UpTo, Mode::Fallback] {
        for cost in [0, 1, 20] {
            let decision = one.decide(&Ask::charge(&key, cost).under(Some(Quota::suspended())).to(mode)).at_once();
            assert_eq!(decision, Some(Decision::suspended()), "{mode:?} {cost}");
        }
    }
    assert_eq!(calls(), before + 1, "but for this look");
    assert_eq!(ask(&other, 1, 4, quota(20)).await.remaining(), 12);
    assert_eq!(ask(&one, 1, 4, quota(20)).await.remaining(), 8);
}

/// One call charges two policies on one server. A request with a suspended key charges none of them.
#[tokio::test]
async fn a_suspended_key_charges_no_policy() {
    let server = RedisServer::start();
    let redis = redis(&server);
    let policy = |name: &'static str| {
        let limiter = RateLimiter::new(TokenBucket::new(quota(10)), RedisStore::new(&redis, name));
        Policy::new(name, limiter).key(HeaderKey::from_static("x-client"))
    };
    let with_plan = || {
        let is_paused = |request: &tower_sluice::RequestHead<'_>| request.headers().contains_key("x-paused");
        policy("plan").quota_fn(move |request| is_paused(request).then(Quota::suspended))
    };
    for policies in [[with_plan(), policy("other")], [policy("other"), with_plan()]] {
        let layer = RateLimitLayer::new(policies);
        let send = async |is_paused: bool| {
            let ok = service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(())) });
            let mut request = Request::get("/").header("x-client", "a").body(()).unwrap();
            if is_paused {
                request.headers_mut().insert("x-paused", "1".parse().unwrap());
            }
            layer.clone().layer(ok).oneshot(request).await.unwrap().status().as_u16()
        };
        let left = async |name: &str| layer.handle().peek(name, "a").await.unwrap().decision().remaining();
        let before = [left("plan").await, left("other").await];
        assert_eq!([send(true).await, send(true).await], [403, 403]);
        eventually("nothing is charged", async || [left("plan").await, left("other").await] == before).await;
        assert_eq!(send(false).await, 200);
        assert_eq!([left("plan").await, left("other").await], before.map(|left| left - 1));
    }
}

const LIMITS: [u64; 8] = [1, 2, 5, 7, 12, 20, 60, 144];

/// Asks two processes about keys whose quotas change, and compares with a naive model: the used units per key.
async fn follows<A: Scripted + Copy>(of: fn(Quota) -> A, seed: u64) {
    let server = RedisServer::start();
    let processes = [limiter(&redis(&server), of(quota(10))), limiter(&redis(&server), of(quota(10)))];
    let (mut random, mut used) = (Random::of_trial(seed), HashMap::<u64, u64>::new());
    for number in 0..400 {
        let (key, cost, limit) = (random.below(8), random.pick(&[1, 1, 1, 2, 3, 9]), random.pick(&LIMITS));
        let process = &processes[if key < 4 { 0 } else { usize::from(random.below(2) == 0) }];
        let used = used.entry(key).or_default();
        let fits = *used + cost <= limit;
        let decision = ask(process, key, cost, quota(limit)).await;
        let context = format!("seed {seed}, step {number}, {cost} of {limit}, {used} used");
        assert_eq!((decision.is_allowed(), decision.limit()), (fits, limit), "{context}");
        *used += if fits { cost } else { 0 };
        let left = limit.saturating_sub(*used);
        if fits || key < 4 {
            assert_eq!(decision.remaining(), left, "{context}");
        } else {
            // For half a second, a process may reject by the state that it saw at its last rejection under this quota.
            // The other process may have used more since, and has refunded nothing.
            assert!((left..cost).contains(&decision.remaining()), "{} left, {context}", decision.remaining());
        }
        // The other process would take half a second to notice a refund: such keys have one process.
        if fits && key < 4 && random.below(4) == 0 {
            process.refund(
                &Ask::charge(&PartitionKey::from(key), cost).under(Some(quota(limit))),
                decision.receipt(),
                cost,
            );
            *used -= cost;
            // It is made in the background, on that process's connection.
            let left = limit.saturating_sub(*used);
            eventually("it is refunded", async || ask(process, key, 0, quota(limit)).await.remaining() == left).await;
        }
    }
}

#[tokio::test]
async fn buckets_follow_changing_quotas() {
    follows(TokenBucket::new, 1).await;
}

#[tokio::test]
async fn windows_follow_changing_quotas() {
    follows(FixedWindow::new, 3).await;
    follows(SlidingWindow::new, 4).await;
}

/// A refund for a charge under a former quota, with the same rate or period, forgives exactly that charge's units.
#[tokio::test]
async fn a_former_quotas_refund_forgives_its_charge() {
    async fn holds<A: Scripted + Copy>(of: fn(Quota) -> A, former: Quota) {
        let server = RedisServer::start();
        let limiter = limiter(&redis(&server), of(quota(10)));
        let charged = ask(&limiter, 1, 1, former).await;
        assert!(ask(&limiter, 1, 60, quota(100)).await.is_allowed());
        limiter.refund(&Ask::charge(&PartitionKey::from(1_u64), 1).under(Some(former)), charged.receipt(), 1);
        eventually("40 are left", async || ask(&limiter, 1, 0, quota(100)).await.remaining() == 40).await;
    }
    holds(TokenBucket::new, quota(100).burst(5)).await;
    holds(FixedWindow::new, quota(5)).await;
    holds(SlidingWindow::new, quota(5)).await;
}

/// One key's requests come at once, under different quotas. Each is decided under its own, or under another request's
/// if the key does not hold still for the conversion.
#[tokio::test]
async fn concurrent_requests_get_the_greater_quota() {
    let server = RedisServer::start();
    let limiter = Arc::new(limiter(&redis(&server), FixedWindow::new(quota(10))));
    let asked = (0..200_u64).map(|number| {
        let limit = if number % 2 == 0 { 20 } else { 50 };
        let limiter = Arc::clone(&limiter);
        async move { (limit, ask(&*limiter, 1, 1, quota(limit)).await) }
    });
    let decisions = futures_util::future::join_all(asked).await;
    assert!(decisions.iter().all(|(_, decision)| [20, 50].contains(&decision.limit())));
    let admitted = decisions.iter().filter(|(_, decision)| decision.is_allowed()).count();
    assert_eq!(admitted, 50, "the greater quota is that of all together");
}

/// Two versions of a program run side by side, and one has another plan for a key. On a hot key the other version
/// charged it between the two calls of nearly each conversion, which was then made again, until the decision's time was
/// over: 85 to 95 % of the decisions failed during the whole rollout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_quota_decides_in_few_calls() {
    const DECISIONS: u64 = 20;
    let server = RedisServer::start();
    let process = || {
        let proxy = Proxy::at(server.address(), Duration::from_millis(3));
        let redis = Redis::single(proxy.url()).timeout(PLENTY).connect_timeout(PLENTY).open().unwrap();
        (limiter(&redis, TokenBucket::new(quota(10))), proxy)
    };
    let (minority, proxy) = process();
    let decide = async |key| {
        let before = proxy.bytes();
        for _ in 0..DECISIONS {
            assert!(ask(&minority, key, 1, quota(900_000)).await.is_allowed());
        }
        proxy.bytes() - before
    };
    // The first calls load the script.
    decide(2).await;
    let alone = decide(2).await;

    let is_over = Arc::new(AtomicBool::new(false));
    let majority = [(); 7].map(|()| {
        let (is_over, (limiter, proxy)) = (Arc::clone(&is_over), process());
        tokio::spawn(async move {
            let mut admitted = 0;
            while !is_over.load(Ordering::Relaxed) {
                admitted += u64::from(ask(&limiter, 1, 1, quota(1_000_000)).await.is_allowed());
            }
            drop(proxy);
            admitted
        })
    });
    eventually("the key is hot", async || ask(&minority, 1, 0, quota(900_000)).await.remaining() < 899_000).await;
    let beside = decide(1).await;
    is_over.store(true, Ordering::Relaxed);
    println!("{} bytes per decision alone, {} on the hot key", alone / DECISIONS, beside / DECISIONS);
    // Three calls, and two of them carry the state, too.
    assert!(beside < 6 * alone, "{beside} bytes, {alone} alone");
    // The first decision at least found the key under the other quota.
    let sharing = minority.stats().sharing.unwrap();
    println!("{} conversions, {} lost", sharing.conversions, sharing.lost_swaps);
    assert!((1..=DECISIONS).contains(&(sharing.conversions + sharing.lost_swaps)));

    // Everything is charged: a bucket of a million has that much less.
    let mut admitted = DECISIONS;
    for process in majority {
        admitted += process.await.unwrap();
    }
    let left = ask(&minority, 1, 0, quota(1_000_000)).await.remaining();
    assert!(left + admitted <= 1_000_000 + DECISIONS, "{left} left of a million after {admitted}");
}

/// A lease that was taken under one quota pays for no request under another, and is refunded under its own.
#[tokio::test]
async fn a_lease_pays_under_its_own_quota() {
    let server = RedisServer::start();
    let store = RedisStore::new(&redis(&server), "test").leasing(8, Duration::from_millis(300));
    let limiter = RateLimiter::new(FixedWindow::new(quota(10)), store);
    let mut admitted = 0;
    for number in 0..120_u64 {
        let limit = if number % 5 < 4 { 100 } else { 60 };
        let decision = ask(&limiter, 1, 1, quota(limit)).await;
        assert_eq!(decision.limit(), limit);
        admitted += u64::from(decision.is_allowed());
    }
    // Leased units are charged, and never exceed the greater quota. Unspent units are refunded when their leases end.
    assert!((60..=100).contains(&admitted), "{admitted}");
    tokio::time::sleep(Duration::from_millis(400)).await;
    let mut late = 0;
    while ask(&limiter, 1, 1, quota(100)).await.is_allowed() {
        late += 1;
    }
    assert!(admitted + late <= 100, "{admitted} and {late}");
}

/// The fallback has counted Redis's admissions, under the keys' quotas.
#[tokio::test]
async fn the_fallback_uses_the_keys_quota() {
    let mut server = RedisServer::start();
    let limiter = limiter(&redis(&server), TokenBucket::new(quota(2)));
    assert!(take_quotas(&limiter));
    for _ in 0..4 {
        assert!(ask(&limiter, 1, 1, quota(6)).await.is_allowed());
    }
    server.kill();
    let key = PartitionKey::from(1_u64);
    let fallback = async |quota| {
        let ask = Ask::charge(&key, 1).under(quota).to(Mode::Fallback);
        limiter.decide(&ask).decided().await.unwrap().is_allowed()
    };
    assert!(fallback(Some(quota(6))).await && fallback(Some(quota(6))).await);
    assert!(!fallback(Some(quota(6))).await);
    assert!(!fallback(None).await, "six are owed, of two");
    assert!(fallback(Some(quota(7))).await);
}

#[tokio::test]
async fn an_unfit_quota_is_a_clear_error() {
    let server = RedisServer::start();
    let limiter = limiter(&redis(&server), FixedWindow::new(quota(2)));
    let odd = Quota::per(1, Duration::from_nanos(1_500));
    let key = PartitionKey::from("a");
    let error = limiter.decide(&Ask::charge(&key, 1).under(Some(odd))).decided().await.unwrap_err();
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("round the period, or use a bucket"), "{source}");
    assert!(limiter.acquire(&key, 1).await.unwrap().is_allowed());
}

/// Alone, and beside another policy on the same server: one call charges both, and the key's quota is in its part of
/// the call.
#[tokio::test]
async fn a_layer_advertises_the_keys_quota() {
    let server = RedisServer::start();
    let redis = redis(&server);
    for is_alone in [true, false] {
        let of = |name: &str, limit| RateLimiter::new(FixedWindow::new(quota(limit)), RedisStore::new(&redis, name));
        let name = if is_alone { "alone" } else { "beside" };
        let api = Policy::new("api", of(name, 3).into_limiter()).key(HeaderKey::from_static("x-customer")).quota_fn(
            |request| request.headers().get("x-limit").map(|limit| quota(limit.to_str().unwrap().parse().unwrap())),
        );
        let all = Policy::new("all", of("all", 1_000).into_limiter());
        let layer = if is_alone { RateLimitLayer::new(api) } else { RateLimitLayer::new([api, all]) };
        for (customer, limit) in [("ada", 5_u64), ("bob", 2)] {
            for used in 1..=limit + 1 {
                let request = Request::get("/").header("x-customer", customer).header("x-limit", limit);
                let hello = service_fn(|_| async { Ok::<_, Infallible>(Response::new(String::new())) });
                let response = layer.layer(hello).oneshot(request.body(()).unwrap()).await.unwrap();
                let fields = ["ratelimit-policy", "ratelimit"].map(|name| response.headers()[name].to_str().unwrap());
                let status = if used <= limit { 200 } else { 429 };
                assert_eq!(response.status().as_u16(), status, "{customer}, {used} of {limit}");
                assert!(fields[0].starts_with(&format!("\"api\";q={limit};w=8640000")), "{fields:?}");
                assert!(fields[1].starts_with(&format!("\"api\";r={};", limit.saturating_sub(used))), "{fields:?}");
            }
        }
    }
}

/// A process that has seen no keys with quotas finds one on the server, converts the key to the limiter's own, and is
/// not rejected by the key's former quota.
#[tokio::test]
async fn a_process_without_quotas_converts_keys() {
    let server = RedisServer::start();
    let [plans, plain] = [(); 2].map(|()| limiter(&redis(&server), TokenBucket::new(quota(10))));
    assert_eq!(ask(&plans, 1, 7, quota(100)).await.remaining(), 93);
    let key = PartitionKey::from(1_u64);
    let decision = plain.acquire(&key, 1).await.unwrap();
    assert_eq!((decision.limit(), decision.remaining()), (10, 2));
    assert_eq!(ask(&plans, 1, 1, quota(100)).await.remaining(), 91);
    for limiter in [&plans, &plain] {
        let sharing = limiter.stats().sharing.unwrap();
        assert_eq!((sharing.conversions, sharing.lost_swaps), (1, 0));
    }
}

/// The customer buys a greater plan while two policies share a call. The change keeps the used units, and does not
/// affect the second policy.
#[tokio::test]
async fn a_peek_shows_the_keys_quota() {
    let server = RedisServer::start();
    let redis = redis(&server);
    let of = |name: &str, limit| RateLimiter::new(TokenBucket::new(quota(limit)), RedisStore::new(&redis, name));
    let api =
        Policy::new("api", of("api", 3).into_limiter()).key(HeaderKey::from_static("x-customer")).quota_fn(|request| {
            request.headers().get("x-limit").map(|limit| quota(limit.to_str().unwrap().parse().unwrap()))
        });
    let layer = RateLimitLayer::new([api, Policy::new("all", of("all", 1_000).into_limiter())]);
    let key = PartitionKey::from("ada");
    for (limit, left) in [("10", 9), ("5000", 4_998), ("10", 7), ("5000", 4_996)] {
        let request = Request::get("/").header("x-customer", "ada").header("x-limit", limit).body(()).unwrap();
        let hello = service_fn(|_| async { Ok::<_, Infallible>(Response::new(String::new())) });
        let response = layer.layer(hello).oneshot(request).await.unwrap();
        assert_eq!(response.status(), 200);
        let field = response.headers()["ratelimit"].to_str().unwrap();
        assert!(field.starts_with(&format!("\"api\";r={left};")), "{field}");
        let peeked = *layer.handle().peek("api", &key).await.unwrap().decision();
        assert_eq!((peeked.limit().to_string().as_str(), peeked.remaining()), (limit, left));
    }
    assert_eq!(layer.handle().peek("all", &PartitionKey::SHARED).await.unwrap().decision().remaining(), 996);
}

/// A text that no script wrote, with a quota behind it: requests fail, and the text stays.
#[tokio::test]
async fn a_foreign_text_is_an_error() {
    let server = RedisServer::start();
    let (limiter, mut connection) = (limiter(&redis(&server), TokenBucket::new(quota(10))), server.connection());
    assert!(ask(&limiter, 1, 1, quota(20)).await.is_allowed());
    let names: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut connection).unwrap();
    let [name] = &names[..] else { panic!("{names:?}") };
    for text in
        ["@", "-1@", "-1@1:1", "-1@1:1:1:1", "-1@01:1:1", "-1@0:1:1", "-1@1:0:1", "-1@1000000000000000:1:1", "x@5:5:5"]
    {
        redis::cmd("SET").arg(name).arg(text).exec(&mut connection).unwrap();
        for cost in [0, 1] {
            let (key, ask) = (PartitionKey::from(1_u64), Ask::charge);
            assert!(limiter.decide(&ask(&key, cost).under(Some(quota(20)))).decided().await.is_err(), "{text}");
            assert!(limiter.decide(&ask(&key, cost)).decided().await.is_err(), "{text}");
        }
        assert_eq!(redis::cmd("GET").arg(name).query::<String>(&mut connection).unwrap(), text);
    }
}
