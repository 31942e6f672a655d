//! Calendar windows on a real server.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::algorithm::{Algorithm, CalendarWindow, TokenBucket};
use tower_sluice::key::HeaderKey;
use tower_sluice::limiter::{Ask, Mode};
use tower_sluice::time::Timestamp;
use tower_sluice::{Decision, Limiter, PartitionKey, Policy, Quota, RateLimitLayer, RateLimiter};
use tower_sluice_redis::{Redis, RedisStore, RedisTable, Scripted};

use crate::support::clients::PLENTY;
use crate::support::redis::RedisServer;

/// Connects as another process would. The timeout is long, for busy machines.
fn redis(server: &RedisServer) -> Redis {
    Redis::single(server.url()).timeout(PLENTY).connect_timeout(PLENTY).open().unwrap()
}

fn limiter<A: Scripted>(redis: &Redis, algorithm: A) -> RateLimiter<A, RedisTable<A::State>> {
    RateLimiter::new(algorithm, RedisStore::new(redis, "test"))
}

async fn ask(limiter: &impl Limiter, cost: u64) -> Decision {
    limiter.decide(&Ask::charge(&PartitionKey::from("key"), cost)).decided().await.unwrap()
}

/// Months that begin on the 1st or the 17th: the farther one, so that no month ends while a test runs.
pub(crate) fn monthly(limit: u64) -> CalendarWindow {
    let months = [1, 17].map(|anchor| CalendarWindow::monthly(limit).zone("Europe/Berlin").unwrap().anchor(anchor));
    months.into_iter().max_by_key(left).unwrap()
}

/// The time to the next window by this machine's clock, which is also the server's.
fn left(window: &CalendarWindow) -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let now = Timestamp::from_nanos(u64::try_from(now.as_nanos()).unwrap());
    window.decide(None, now, 0).0.reset_after()
}

#[track_caller]
fn assert_near(wait: Duration, expected: Duration) {
    assert!(wait.abs_diff(expected) < Duration::from_secs(60), "{wait:?} instead of {expected:?}");
}

/// In one round trip each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_share_a_month() {
    let server = RedisServer::start();
    let [here, there] = [limiter(&redis(&server), monthly(10)), limiter(&redis(&server), monthly(10))];
    let first = ask(&here, 4).await;
    assert_eq!(first.remaining(), 6);
    assert_near(first.reset_after(), left(&monthly(10)));
    assert_eq!(ask(&there, 5).await.remaining(), 1);
    let rejected = ask(&here, 2).await;
    assert_eq!(rejected.remaining(), 1);
    assert_near(rejected.retry_after().unwrap(), left(&monthly(10)));
    assert_eq!(server.runs(), 3);
    // The key lives until its window ends.
    let keys: Vec<String> = server.run(&["KEYS", "*"]);
    assert_eq!(keys.len(), 1);
    assert!(keys[0].ends_with(":test:c"), "{keys:?}");
    let lives: u64 = server.run(&["PTTL", &keys[0]]);
    assert_near(Duration::from_millis(lives), left(&monthly(10)));
    // Units that are refunded in their charge's window may be spent in it.
    here.refund(&Ask::charge(&PartitionKey::from("key"), 4), first.receipt(), 4);
    crate::support::redis::await_until("it is refunded", || server.run::<String>(&["GET", &keys[0]]).ends_with(":5"));
    assert_eq!(ask(&here, 5).await.remaining(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn eight_processes_admit_exactly_the_limit() {
    let server = RedisServer::start();
    let window = monthly(777);
    let asking: Vec<_> = (0..8)
        .map(|_| {
            let limiter = limiter(&redis(&server), window.clone());
            tokio::spawn(async move {
                let decisions = futures_util::future::join_all((0..1_000).map(|_| ask(&limiter, 1))).await;
                decisions.iter().filter(|decision| decision.is_allowed()).count()
            })
        })
        .collect();
    let mut admitted = 0;
    for process in asking {
        admitted += process.await.unwrap();
    }
    assert_eq!(admitted, 777);
}

/// The month and a bucket in the same layer are charged in one call.
#[tokio::test]
async fn a_month_and_a_bucket_charge_together() {
    let server = RedisServer::start();
    let redis = redis(&server);
    let month = RateLimiter::new(monthly(2), RedisStore::new(&redis, "month"));
    let bucket = RateLimiter::new(TokenBucket::new(Quota::per_hour(5)), RedisStore::new(&redis, "bucket"));
    let layer = RateLimitLayer::new([Policy::new("month", month), Policy::new("bucket", bucket)]);
    let service =
        service_fn(|_: http::Request<()>| async { Ok::<_, std::convert::Infallible>(http::Response::new(())) });
    let mut statuses = Vec::new();
    for number in 1..=3 {
        let response = layer.layer(service).oneshot(http::Request::new(())).await.unwrap();
        statuses.push((response.status().as_u16(), response.headers()["ratelimit"].to_str().unwrap().to_owned()));
        // The third may ask for the bucket's remaining units.
        assert!(server.runs() == number.min(2) || number == 3);
    }
    let seen: Vec<_> = statuses.iter().map(|(status, field)| (*status, &field[..14])).collect();
    assert_eq!(seen, [(200, "\"month\";r=1;t="), (200, "\"month\";r=0;t="), (503, "\"month\";r=0;t=")]);
    assert!(statuses[2].1.contains("\"bucket\";r=3;"), "{statuses:?}");
}

/// In place, by the state on the server, and even to another period and another zone.
#[tokio::test]
async fn a_live_change_keeps_used_units() {
    let server = RedisServer::start();
    let redis = redis(&server);
    let before = limiter(&redis, monthly(10));
    assert_eq!(ask(&before, 7).await.remaining(), 3);
    let apia = |window: CalendarWindow| window.zone("Pacific/Apia").unwrap();
    for next in [monthly(8), apia(monthly(9)), apia(CalendarWindow::weekly(9))] {
        let after = limiter(&redis, next.clone());
        assert!(after.inherit(&before).is_some());
        let rejected = ask(&after, 3).await;
        assert_eq!(rejected.remaining(), after.algorithm().quota().limit() - 7);
        assert_near(rejected.retry_after().unwrap(), left(&next));
    }
}

/// Months in Apia that do not end while a test runs.
fn apia(limit: u64) -> CalendarWindow {
    let months = [1, 9, 17, 25].map(|day| CalendarWindow::monthly(limit).zone("Pacific/Apia").unwrap().anchor(day));
    months.into_iter().max_by_key(left).unwrap()
}

async fn ask_in(limiter: &impl Limiter, window: &CalendarWindow, cost: u64) -> Decision {
    let key = PartitionKey::from("key");
    limiter.decide(&Ask::charge(&key, cost).in_window(Some(window))).decided().await.unwrap()
}

/// While a customer moves, one process has the key's old window, and the other has the new one. Both count the other's
/// charges, each in its own window, in one round trip.
#[tokio::test]
async fn processes_with_different_windows_count_together() {
    let server = RedisServer::start();
    let [here, there] = [(); 2].map(|()| limiter(&redis(&server), CalendarWindow::daily(3)));
    let [old, new, greater] = [monthly(10), apia(10), apia(12)];
    let mut used = 0;
    for (process, window, cost) in [(&here, &old, 4), (&there, &new, 3), (&here, &old, 1), (&there, &new, 2)] {
        let decision = ask_in(process, window, cost).await;
        used += cost;
        assert_eq!((decision.is_allowed(), decision.limit(), decision.remaining()), (true, 10, 10 - used));
        assert_near(decision.reset_after(), left(window));
    }
    assert_eq!(server.runs(), 4);
    let keys: Vec<String> = server.run(&["KEYS", "*"]);
    let [name] = &keys[..] else { panic!("{keys:?}") };
    assert_near(Duration::from_millis(server.run(&["PTTL", name])), left(&new));
    // The window ends by the process that asked last, even if it was rejected.
    for (process, window) in [(&here, &old), (&there, &new), (&here, &old)] {
        let rejected = ask_in(process, window, 1).await;
        assert_eq!((rejected.is_allowed(), rejected.remaining()), (false, 0));
        assert_near(rejected.retry_after().unwrap(), left(window));
    }
    // The process remembers a rejection under one window, and asks for another one.
    let asked = server.runs();
    assert!(!ask_in(&here, &old, 1).await.is_allowed());
    assert_eq!(server.runs(), asked);
    assert_eq!(ask_in(&here, &greater, 1).await.remaining(), 1);
    // The fallback does not have the server's counts, and has the same window.
    let key = PartitionKey::from("key");
    let fallback = Ask::charge(&key, 1).to(Mode::Fallback).in_window(Some(&old));
    let decision = here.decide(&fallback).decided().await.unwrap();
    assert_eq!(decision.limit(), 10);
    assert_near(decision.reset_after(), left(&old));
}

/// A refund under the old window, for a request that came before the customer moved, leaves the key in the new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refund_leaves_keys_in_their_window() {
    let server = RedisServer::start();
    let limiter = limiter(&redis(&server), CalendarWindow::daily(3));
    let [old, new] = [monthly(10), apia(10)];
    let key = PartitionKey::from("key");
    let charged = ask_in(&limiter, &old, 4).await;
    let moved = ask_in(&limiter, &new, 1).await;
    let keys: Vec<String> = server.run(&["KEYS", "*"]);
    let text = || server.run::<String>(&["GET", &keys[0]]);
    let before = text();
    let asked = server.runs();
    limiter.refund(&Ask::charge(&key, 4).in_window(Some(&old)), charged.receipt(), 4);
    crate::support::redis::await_until("it was asked for", || server.runs() > asked);
    assert_eq!(text(), before);
    limiter.refund(&Ask::charge(&key, 1).in_window(Some(&new)), moved.receipt(), 1);
    crate::support::redis::await_until("it is refunded", || text() == before.replacen(":5@", ":4@", 1));
}

/// The operator's call has no window, and the key's window ends later than the policy's.
#[tokio::test]
async fn a_manual_ban_keeps_the_keys_window() {
    let server = RedisServer::start();
    let redis = redis(&server);
    let limiter = RateLimiter::new(CalendarWindow::daily(3), RedisStore::new(&redis, "test"));
    assert_eq!(ask_in(&limiter, &monthly(10), 4).await.remaining(), 6);
    let layer = RateLimitLayer::new(Policy::new("month", limiter).key(HeaderKey::from_static("x-customer")));
    for _ in 0..2 {
        let _ = layer.handle().ban("month", "key", Duration::from_secs(60), "asks too much").await.unwrap();
        let keys: Vec<String> = server.run(&["KEYS", "*"]);
        assert_near(Duration::from_millis(server.run(&["PTTL", &keys[0]])), left(&monthly(10)));
        let _ = layer.handle().unban("month", "key").await.unwrap();
        assert_near(Duration::from_millis(server.run(&["PTTL", &keys[0]])), left(&monthly(10)));
    }
}

/// The customer's window and a bucket in the same layer, in one call.
#[tokio::test]
async fn customers_windows_and_buckets_share_calls() {
    let server = RedisServer::start();
    let redis = redis(&server);
    let month = RateLimiter::new(CalendarWindow::daily(3), RedisStore::new(&redis, "month"));
    let bucket = RateLimiter::new(TokenBucket::new(Quota::per_hour(100)), RedisStore::new(&redis, "bucket"));
    let month = Policy::new("month", month)
        .key(HeaderKey::from_static("x-customer"))
        .window_fn(|request| request.extensions().get::<CalendarWindow>().cloned());
    let layer = RateLimitLayer::new([month, Policy::new("bucket", bucket)]);
    let service =
        service_fn(|_: http::Request<()>| async { Ok::<_, std::convert::Infallible>(http::Response::new(())) });
    for (number, (customer, window)) in
        [("ada", monthly(7)), ("bob", apia(5)), ("ada", apia(9))].into_iter().enumerate()
    {
        let request = http::Request::get("/").header("x-customer", customer).extension(window.clone());
        let response = layer.layer(service).oneshot(request.body(()).unwrap()).await.unwrap();
        let fields = ["ratelimit-policy", "ratelimit"].map(|name| response.headers()[name].to_str().unwrap());
        let limit = window.quota().limit();
        assert!(fields[0].starts_with(&format!("\"month\";q={limit}, \"bucket\"")), "{fields:?}");
        let used = if number == 2 { 2 } else { 1 };
        let rest = fields[1].strip_prefix(&format!("\"month\";r={};t=", limit - used)).unwrap();
        assert_near(Duration::from_secs(rest.split(',').next().unwrap().parse().unwrap()), left(&window));
        // A changed limit costs a second round trip, as with quotas.
        assert_eq!(server.runs(), if number == 2 { 4 } else { number as u64 + 1 });
    }
}
