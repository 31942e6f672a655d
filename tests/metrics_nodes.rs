//! Store nodes: the gauges of their circuit breakers, and the log lines when these open and close.

#![cfg(feature = "metrics")]

mod support;

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::future::pending;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response};
use tokio::time::sleep;
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::algorithm::TokenBucket;
use tower_sluice::key::HeaderKey;
use tower_sluice::limiter::{Answer, Ask};
use tower_sluice::store::remote::{KeyValue, KeyValueBackend, RemoteStore};
use tower_sluice::store::{BreakerState, NodeHealth, Stats};
use tower_sluice::{Decision, Limiter, Policy, Quota, RateLimitLayer, RateLimiter};

use crate::support::log::Log;
use crate::support::metrics::Metrics;

fn policy(name: &str, limiter: impl tower_sluice::limiter::IntoLimiter) -> Policy {
    Policy::new(name, limiter).key(HeaderKey::from_static("x-api-key"))
}

async fn send(layer: RateLimitLayer) -> u16 {
    let hello = service_fn(|_: Request<()>| std::future::ready(Ok::<_, Infallible>(Response::new(String::new()))));
    let request = Request::builder().header("x-api-key", "a").body(()).unwrap();
    layer.layer(hello).oneshot(request).await.unwrap().status().as_u16()
}

/// The value of a node's gauge, which must exist.
fn breaker(metrics: &Metrics, layer: &RateLimitLayer, node: &str) -> String {
    layer.observe();
    let series = format!(r#"tower_sluice_rate_limiting_store_breaker{{policy="p",node="{node}"}} "#);
    let text = metrics.render();
    let line = text.lines().find_map(|line| line.strip_prefix(&series));
    line.unwrap_or_else(|| panic!("no {series}in {text}")).to_owned()
}

/// How a store treats its calls.
#[derive(Clone, Copy)]
enum Fate {
    Answers,
    Fails,
    Hangs,
}

#[derive(Debug)]
struct OnPurpose;

impl fmt::Display for OnPurpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("on purpose")
    }
}

impl std::error::Error for OnPurpose {}

struct Unreliable {
    values: Mutex<HashMap<String, Vec<u8>>>,
    fate: Mutex<Fate>,
}

impl Unreliable {
    async fn meet_fate(&self) -> Result<(), OnPurpose> {
        let fate = *self.fate.lock().unwrap();
        match fate {
            Fate::Answers => Ok(()),
            Fate::Fails => Err(OnPurpose),
            Fate::Hangs => pending().await,
        }
    }
}

impl KeyValue for Unreliable {
    type Error = OnPurpose;

    async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, OnPurpose> {
        self.meet_fate().await?;
        Ok(self.values.lock().unwrap().get(key).cloned())
    }

    async fn compare_and_swap(
        &self,
        key: &str,
        old: Option<&[u8]>,
        new: Option<&[u8]>,
        _: Duration,
    ) -> Result<bool, OnPurpose> {
        self.meet_fate().await?;
        let mut values = self.values.lock().unwrap();
        let is_unchanged = values.get(key).map(Vec::as_slice) == old;
        if let Some(new) = new.filter(|_| is_unchanged) {
            values.insert(key.to_owned(), new.to_vec());
        }
        Ok(is_unchanged)
    }
}

/// No gauge showed the breaker of a user's store, and the log gave a reason only for Redis.
#[tokio::test(start_paused = true)]
async fn a_key_value_breaker_is_a_gauge() {
    let (log, _guard) = Log::start();
    let metrics = Metrics::record();
    let values = Arc::new(Unreliable { values: Mutex::default(), fate: Mutex::new(Fate::Answers) });
    let store = RemoteStore::new(KeyValueBackend::new(Arc::clone(&values), "p"));
    let limiter = RateLimiter::new(TokenBucket::new(Quota::per_hour(100)), store);
    let layer = RateLimitLayer::new(policy("p", limiter));
    let is = |fate| *values.fate.lock().unwrap() = fate;
    let node = "key-value store of p";
    let value = || breaker(&metrics, &layer, node);
    assert_eq!(value(), "0", "before the first request");
    assert_eq!((send(layer.clone()).await, value()), (200, "0".to_owned()));

    is(Fate::Fails);
    for _ in 0..4 {
        assert_eq!((send(layer.clone()).await, value()), (200, "0".to_owned()), "four failures are not enough");
    }
    assert_eq!((send(layer.clone()).await, value()), (200, "2".to_owned()), "open");

    is(Fate::Hangs);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(value(), "2", "a probe is due, and no request makes it");
    let probe = tokio::spawn(send(layer.clone()));
    sleep(Duration::from_millis(10)).await;
    assert_eq!(value(), "1", "half-open");
    assert_eq!((probe.await.unwrap(), value()), (200, "2".to_owned()), "the probe got no answer");

    is(Fate::Answers);
    sleep(Duration::from_secs(6)).await;
    assert_eq!((send(layer.clone()).await, value()), (200, "0".to_owned()), "the probe succeeded");

    let lines: Vec<_> = log.lines().into_iter().filter(|line| line.contains("store: ")).collect();
    let [opened, closed] = &lines[..] else { panic!("{lines:?}") };
    for part in ["WARN", "a node keeps failing", r#"node="key-value store of p""#, "reason=on purpose"] {
        assert!(opened.contains(part), "{opened}");
    }
    for part in ["WARN", "a node is back", r#"node="key-value store of p""#] {
        assert!(closed.contains(part), "{closed}");
    }
}

/// A custom limiter over a store's shards.
#[derive(Default)]
struct Sharded(Mutex<Vec<NodeHealth>>);

impl Limiter for Sharded {
    fn decide(&self, _: &Ask<'_>) -> Answer {
        Decision::allow(9, 8).into()
    }

    fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        stats.nodes.clone_from(&self.0.lock().unwrap());
        stats
    }
}

/// The gauge is zero once the node is gone.
#[test]
fn each_node_has_a_gauge_while_present() {
    let metrics = Metrics::record();
    let sharded = Arc::<Sharded>::default();
    let layer = RateLimitLayer::new(policy("p", Arc::clone(&sharded)));
    let open = BreakerState::Open { probe_in: None };
    let nodes_are = |nodes: &[(&str, BreakerState)]| {
        let nodes = nodes.iter().map(|(name, breaker)| NodeHealth::new(*name, *breaker));
        *sharded.0.lock().unwrap() = nodes.collect();
        layer.observe();
    };
    let values = |nodes: &[&str]| nodes.iter().map(|node| breaker(&metrics, &layer, node)).collect::<Vec<_>>();
    nodes_are(&[("one", open), ("two", BreakerState::HalfOpen)]);
    assert_eq!(values(&["one", "two"]), ["2", "1"]);
    nodes_are(&[("two", open), ("three", BreakerState::Closed)]);
    assert_eq!(values(&["one", "two", "three"]), ["0", "2", "0"]);
    nodes_are(&[("one", open)]);
    assert_eq!(values(&["one", "two", "three"]), ["2", "0", "0"]);
    drop(layer);
    assert!(!metrics.series().keys().any(|name| name.starts_with("store_breaker")));
}
