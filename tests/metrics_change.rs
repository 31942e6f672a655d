//! Metrics through live changes: a removed policy's gauges fall to zero, and counters are sums over all tables that a
//! policy had.

#![cfg(feature = "metrics")]

mod support;

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use http::{Request, Response};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::algorithm::{Algorithm, FixedWindow, GcraState, SlidingWindow, TokenBucket};
use tower_sluice::key::HeaderKey;
use tower_sluice::limiter::{Answer, Ask, IntoLimiter};
use tower_sluice::store::{MemoryStore, Stats, TableStats};
use tower_sluice::{Concurrency, Decision, LeakyQueue, Limiter, Penalty, Policy, Quota, RateLimitLayer, RateLimiter};
use tower_sluice_redis::{Redis, RedisStore, RedisTable};

use crate::support::metrics::Metrics;

fn begin(layer: &RateLimitLayer, key: &str) -> Pin<Box<dyn Future<Output = u16>>> {
    let hello = service_fn(|_: Request<()>| std::future::ready(Ok::<_, Infallible>(Response::new(String::new()))));
    let request = Request::builder().header("x-api-key", key).body(()).unwrap();
    let response = layer.layer(hello).oneshot(request);
    Box::pin(async { response.await.unwrap().status().as_u16() })
}

async fn send(layer: &RateLimitLayer, keys: std::ops::Range<u32>) {
    for key in keys {
        begin(layer, &key.to_string()).await;
    }
}

fn policy(name: &str, limiter: impl IntoLimiter) -> Policy {
    Policy::new(name, limiter).key(HeaderKey::from_static("x-api-key"))
}

/// A table for 16 keys, which evicts some of 200.
fn small<A: Algorithm>(algorithm: A) -> RateLimiter<A> {
    RateLimiter::new(algorithm, MemoryStore::with_capacity(16))
}

fn bucket() -> TokenBucket {
    TokenBucket::new(Quota::per_hour(1))
}

/// A limiter on a Redis address without a server.
fn unreachable() -> RateLimiter<TokenBucket, RedisTable<GcraState>> {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    RateLimiter::new(bucket(), RedisStore::new(&Redis::open(format!("redis://127.0.0.1:{port}")).unwrap(), "away"))
}

/// These policies' gauges that are not zero.
fn gauges(metrics: &Metrics, policies: &[&str]) -> Vec<String> {
    let is_gauge = |name: &str| !name.contains("_total{") && !name.contains("_seconds");
    let is_of = |name: &str| policies.iter().any(|policy| name.contains(&format!("policy=\"{policy}\"")));
    metrics.series().into_keys().filter(|name| is_gauge(name) && is_of(name)).collect()
}

fn count(metrics: &Metrics, name: &str, policy: &str) -> u64 {
    metrics.of(&format!(r#"{name}{{policy="{policy}"}}"#)).parse().unwrap()
}

fn troubled() -> [Policy; 3] {
    let banning = policy("banning", bucket()).penalty(Penalty::new(Quota::per_hour(1), Duration::from_secs(3_600)));
    [policy("table", small(bucket())), banning, policy("store", unreachable())]
}

async fn get_into_trouble(layer: &RateLimitLayer) {
    send(layer, 0..40).await;
    for _ in 0..9 {
        send(layer, 0..1).await;
    }
    layer.observe();
}

/// The breaker is open, the table is full, and one key is banned (which the estimated gauge may miss).
fn assert_trouble(metrics: &Metrics) {
    let gauges = gauges(metrics, &["table", "banning", "store"]);
    for name in ["table_capacity", "table_live_keys", "store_breaker", "ban_table_capacity"] {
        assert!(gauges.iter().any(|gauge| gauge.starts_with(name)), "{name} of {gauges:?}");
    }
}

#[tokio::test]
async fn replaced_policies_gauges_are_zero() {
    let metrics = Metrics::record();
    let layer = RateLimitLayer::new(troubled());
    get_into_trouble(&layer).await;
    assert_trouble(&metrics);
    layer.handle().replace(policy("other", small(bucket()))).unwrap();
    assert_eq!(gauges(&metrics, &["table", "banning", "store"]), [""; 0]);
    layer.observe();
    assert_eq!(gauges(&metrics, &["table", "banning", "store"]), [""; 0]);
    assert_eq!(count(&metrics, "table_capacity", "other"), 16);
}

#[tokio::test]
async fn a_dropped_layers_gauges_are_zero() {
    let metrics = Metrics::record();
    let layer = RateLimitLayer::new(troubled());
    get_into_trouble(&layer).await;
    let (clone, handle) = (layer.clone(), layer.handle());
    drop(layer);
    assert_trouble(&metrics);
    drop((clone, handle));
    assert_eq!(gauges(&metrics, &["table", "banning", "store"]), [""; 0]);
}

/// A request holds the policies that decided on it until it ends.
#[tokio::test(start_paused = true)]
async fn an_old_request_changes_no_heirs_gauge() {
    let metrics = Metrics::record();
    let queue = || policy("queue", LeakyQueue::new(Quota::per_hour(1)).max_wait(Duration::MAX));
    let layer = RateLimitLayer::new([policy("table", small(bucket())), queue(), policy("gone", small(bucket()))]);
    let waiting = [begin(&layer, "a"), begin(&layer, "a")].map(|mut answer| {
        let _ = (&mut answer).now_or_never();
        answer
    });
    layer.observe();
    layer.handle().replace([policy("table", small(bucket())), queue()]).unwrap();
    assert_eq!(gauges(&metrics, &["gone"]), [""; 0], "while a request is in flight");
    layer.observe();
    let before = gauges(&metrics, &["table", "queue"]);
    assert!(before.iter().any(|gauge| gauge.starts_with("table_live_keys")), "{before:?}");
    drop(waiting);
    assert_eq!(count(&metrics, "queued_requests", "queue"), 0);
    layer.observe();
    let after = gauges(&metrics, &["table", "queue"]);
    assert!(before.iter().filter(|gauge| !gauge.starts_with("queued")).eq(&after), "{before:?}, {after:?}");
}

/// The removed policy is dropped after another one with its name was put in force.
#[tokio::test(start_paused = true)]
async fn an_old_request_changes_no_namesakes_gauge() {
    let metrics = Metrics::record();
    let queue = || policy("queue", LeakyQueue::new(Quota::per_hour(1)).max_wait(Duration::MAX));
    let layer = RateLimitLayer::new([policy("table", small(bucket())), queue()]);
    let waiting = [begin(&layer, "a"), begin(&layer, "a")].map(|mut answer| {
        let _ = (&mut answer).now_or_never();
        answer
    });
    layer.observe();
    layer.handle().replace(queue()).unwrap();
    layer.handle().replace([policy("table", small(bucket())), queue()]).unwrap();
    layer.observe();
    assert_eq!(count(&metrics, "table_capacity", "table"), 16);
    drop(waiting);
    assert_eq!(count(&metrics, "table_capacity", "table"), 16);
}

/// Downloads from before a change are counted by the policy that inherited them, and not by a policy that was removed.
#[tokio::test]
async fn requests_in_flight_count_until_policies_go() {
    let metrics = Metrics::record();
    let limited = |name: &str, limit| policy(name, Concurrency::new(limit));
    let layer = RateLimitLayer::new([limited("kept", 4), limited("gone", 4), limited("other-kind", 4)]);
    let hello = service_fn(|_: Request<()>| std::future::ready(Ok::<_, Infallible>(Response::new("hello".to_owned()))));
    let service = layer.layer(hello);
    let get = || service.clone().oneshot(Request::builder().header("x-api-key", "a").body(()).unwrap());
    let downloads = [get().await.unwrap(), get().await.unwrap()];
    let counts = || ["kept", "gone", "other-kind"].map(|policy| count(&metrics, "in_flight", policy));
    layer.observe();
    assert_eq!(counts(), [2, 2, 2]);
    layer.handle().replace([limited("kept", 2), policy("other-kind", bucket())]).unwrap();
    layer.observe();
    assert_eq!(counts(), [2, 0, 0]);
    assert_eq!(get().await.unwrap().status(), 429, "of two");
    drop(downloads);
    layer.observe();
    assert_eq!(counts(), [0, 0, 0]);
}

#[tokio::test]
async fn evictions_add_up_over_tables() {
    let metrics = Metrics::record();
    let evicted = || count(&metrics, "table_evicted_live_total", "p");
    let first = Arc::new(small(FixedWindow::new(Quota::per_hour(1))));
    let layer = RateLimitLayer::new(policy("p", Arc::clone(&first)));
    send(&layer, 0..200).await;
    layer.observe();
    let lost = first.evicted_live();
    assert!(lost > 100, "{lost}");
    assert_eq!(evicted(), lost);
    // Evicted between the last observation and the change.
    send(&layer, 200..250).await;
    let lost = first.evicted_live();

    // Another algorithm has a new table, which evicts fewer.
    let second = Arc::new(small(SlidingWindow::new(Quota::per_hour(1))));
    let replaced = layer.handle().replace(policy("p", Arc::clone(&second))).unwrap();
    assert_eq!(replaced.not_inherited(), ["p"]);
    send(&layer, 0..80).await;
    layer.observe();
    layer.observe();
    let more = second.evicted_live();
    assert!((1..lost).contains(&more), "{more}");
    assert_eq!(evicted(), lost + more);

    // A limiter that is put in force again is not counted twice.
    layer.handle().replace(policy("p", Arc::clone(&first))).unwrap();
    layer.observe();
    assert_eq!(evicted(), lost + more);
    send(&layer, 300..340).await;
    layer.observe();
    assert_eq!(evicted(), first.evicted_live() + more);
}

/// A bucket with another quota inherits the counts.
#[tokio::test]
async fn an_inherited_tables_evictions_count_once() {
    let metrics = Metrics::record();
    let layer = RateLimitLayer::new(policy("p", small(bucket())));
    send(&layer, 0..200).await;
    layer.observe();
    let lost = count(&metrics, "table_evicted_live_total", "p");
    for limit in 2..6 {
        layer.handle().replace(policy("p", small(TokenBucket::new(Quota::per_hour(limit))))).unwrap();
        layer.observe();
        assert_eq!(count(&metrics, "table_evicted_live_total", "p"), lost);
    }
}

/// A custom limiter, which does not number its tables.
struct Own(std::sync::atomic::AtomicU64);

impl Limiter for Own {
    fn decide(&self, _: &Ask<'_>) -> Answer {
        Decision::allow(1, 0).into()
    }

    fn stats(&self) -> Stats {
        let mut table = TableStats::default();
        table.turned_away = self.0.load(std::sync::atomic::Ordering::Relaxed);
        let mut stats = Stats::default();
        stats.table = Some(table);
        stats
    }
}

#[tokio::test]
async fn a_restarted_limiters_counters_do_not_fall() {
    let metrics = Metrics::record();
    let own = Arc::new(Own(0.into()));
    let layer = RateLimitLayer::new(policy("p", Arc::clone(&own)));
    for (counts, added_up) in [(5, 5), (7, 7), (3, 10), (3, 10), (4, 11)] {
        own.0.store(counts, std::sync::atomic::Ordering::Relaxed);
        layer.observe();
        assert_eq!(count(&metrics, "table_turned_away_total", "p"), added_up);
    }
}
