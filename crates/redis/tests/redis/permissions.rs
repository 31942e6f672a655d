//! The permissions that a Redis user needs.

use std::time::Duration;

use http::HeaderName;
use tower_sluice::limiter::{Ask, Credit, Debit, Permit};
use tower_sluice::policy::ShowKey;
use tower_sluice::{
    ChargeOnce, Limiter, LimiterExt, Penalty, Quota, RateLimitLayer, RateLimiter, SharedBalance, SharedConcurrency,
    SharedQueue,
};
use tower_sluice_redis::{Redis, RedisStore};

use crate::support::clients::{PLENTY, at_most, charged, is_decided, key, per_client, send};
use crate::support::redis::RedisServer;
use crate::support::timing::eventually;

/// The documented permissions are enough for everything that limiters, queues and limits on requests in flight do.
#[tokio::test]
async fn the_documented_permissions_are_enough() {
    let server = RedisServer::start();
    let commands = ["+eval", "+evalsha", "+get", "+set", "+del", "+time", "+pttl"];
    let of_hashes = ["+hget", "+hgetall", "+hset", "+hdel", "+pexpireat"];
    server.run::<()>(
        &[&["ACL", "SETUSER", "app", "on", ">pw", "~sluice:*", "-@all"][..], &commands[..], &of_hashes[..]].concat(),
    );
    let redis = Redis::single(server.url().replace("//", "//app:pw@")).timeout(PLENTY);
    let redis = redis.connect_timeout(PLENTY).open().unwrap();
    redis.ping().await.unwrap();
    let layer = RateLimitLayer::builder([per_client(&redis, "a", at_most(5)), per_client(&redis, "b", at_most(3))])
        .verdict()
        .build();
    for status in [200, 200, 200, 429] {
        let response = send(&layer, "a").await;
        assert!(response.status() == status && is_decided(&response), "{response:?}");
    }
    // The client is the idempotency key as well.
    let once = ChargeOnce::by_header(HeaderName::from_static("x-client"));
    let once = RateLimitLayer::builder(per_client(&redis, "once", at_most(5)).charge_once(once)).verdict().build();
    assert!(is_decided(&send(&once, "a").await));
    let records = || server.run::<Vec<String>>(&["KEYS", "*:once:o*"]);
    eventually("it is recorded", async || !records().is_empty()).await;
    assert!(is_decided(&send(&once, "a").await));
    assert_eq!(server.run::<String>(&["GET", &records()[0]]), "-0");
    let penalty = Penalty::new(Quota::per_day(1), Duration::from_secs(7 * 86_400));
    let banning = RateLimitLayer::new(per_client(&redis, "bans", at_most(1)).penalty(penalty));
    for _ in 0..4 {
        let _ = send(&banning, "a").await;
    }
    eventually("it is banned", async || {
        !banning.handle().peek("bans", &key("a")).await.unwrap().decision().is_allowed()
    })
    .await;
    let limiter = RateLimiter::new(at_most(5), RedisStore::new(&redis, "c"));
    let receipt = limiter.decide(&Ask::charge(&key("a"), 1)).decided().await.unwrap().receipt();
    limiter.refund(&Ask::charge(&key("a"), 1), receipt, 1);
    eventually("it is refunded", async || charged(&redis, "c", at_most(5), "a").await == 0).await;
    assert!(limiter.decide(&Ask::reset(&key("a"))).decided().await.is_ok());
    let layers = [(); 2].map(|()| {
        let policy = per_client(&redis, "offenders", at_most(1)).track_offenders(ShowKey::whole());
        RateLimitLayer::builder(policy).verdict().build()
    });
    for _ in 0..3 {
        let _ = send(&layers[0], "a").await;
    }
    let offenders = async || layers[1].handle().offenders("offenders", 1).await.unwrap();
    eventually("its rejections are published", async || offenders().await.total() == 2).await;
    let queue =
        SharedQueue::new(redis.clone(), "q", Quota::per_hour(1)).max_queue(5).max_wait(Duration::from_secs(100_000));
    let reserve = async || {
        queue.decide(&Ask::charge(&key("a"), 1).to(tower_sluice::limiter::Mode::Shadow)).decided().await.unwrap()
    };
    let (_, middle, _) = (reserve().await, reserve().await, reserve().await);
    queue.refund(&Ask::charge(&key("a"), 1), middle.receipt(), 1);
    let left = async || queue.decide(&Ask::charge(&key("a"), 0)).decided().await.unwrap().remaining();
    eventually("it is refunded", async || left().await == 4).await;
    let balance = SharedBalance::new(redis.clone(), "bought");
    let _ = balance.credit(&key("a"), Credit::units(5).expires_in(PLENTY).reference("invoice-17")).await.unwrap();
    let _ = balance.credit(&key("a"), Credit::units(5)).await.unwrap();
    let receipt = balance.decide(&Ask::charge(&key("a"), 7)).decided().await.unwrap().receipt();
    balance.refund(&Ask::charge(&key("a"), 7), receipt, 7);
    let left = async || balance.decide(&Ask::charge(&key("a"), 0)).decided().await.unwrap().remaining();
    eventually("it is given back", async || left().await == 10).await;
    let hand = RateLimitLayer::new(per_client(&redis, "hand", at_most(5))).handle();
    assert!(!hand.charge("hand", &key("a"), Debit::units(9).reference("job-1")).await.unwrap().is_repeated());
    let in_flight = SharedConcurrency::new(redis.clone(), "in-flight", 1).lease(Duration::from_secs(1));
    let mut permit = None;
    // In such a short lease, a call may take a quarter of a second.
    eventually("it is admitted", async || {
        permit = in_flight.acquire(&key("a"), 1).await.ok().and_then(Permit::admitted);
        permit.is_some()
    })
    .await;
    let number = |server: &RedisServer| {
        let name = server.run::<Vec<String>>(&["KEYS", "*:in-flight:n"]).pop()?;
        server.run::<Vec<String>>(&["HKEYS", &name]).pop()
    };
    let first = number(&server);
    eventually("it is renewed", async || number(&server) != first).await;
    drop(permit);
    let left = async || in_flight.decide(&Ask::charge(&key("a"), 0)).decided().await.map(|it| it.remaining());
    eventually("it is released", async || left().await.is_ok_and(|left| left == 1)).await;
}
