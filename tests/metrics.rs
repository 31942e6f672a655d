//! Metrics: each request is counted once with each policy that applies to it, for any result; and gauges are correct.

#![cfg(feature = "metrics")]

mod support;

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use http::{Method, Request, Response};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::algorithm::{FixedWindow, TokenBucket};
use tower_sluice::key::{HeaderKey, PeerIp};
use tower_sluice::limiter::{Answer, Ask, Description, Mode};
use tower_sluice::store::remote::{KeyValue, KeyValueBackend, RemoteStore};
use tower_sluice::store::{MemoryStore, OverloadStats, Stats, WhenFull};
use tower_sluice::time::ManualClock;
use tower_sluice::{
    Concurrency, Decision, FailureMode, LeakyQueue, Limiter, LimiterError, MissingKey, PartitionKey, Policy, Quota,
    RateLimitLayer, RateLimiter,
};
use tower_sluice_redis::{Redis, RedisStore};

use crate::support::metrics::Metrics;

type Reply = Pin<Box<dyn Future<Output = u16>>>;

fn begin(layer: &RateLimitLayer, request: Request<()>) -> Reply {
    let hello = service_fn(|_: Request<()>| std::future::ready(Ok::<_, Infallible>(Response::new(String::new()))));
    let response = layer.layer(hello).oneshot(request);
    Box::pin(async { response.await.unwrap().status().as_u16() })
}

async fn send(layer: &RateLimitLayer, key: &str) -> u16 {
    begin(layer, by(key)).await
}

fn by(key: &str) -> Request<()> {
    Request::builder().header("x-api-key", key).body(()).unwrap()
}

fn bare() -> Request<()> {
    Request::new(())
}

fn bucket(limit: u64) -> TokenBucket {
    TokenBucket::new(Quota::per_hour(limit))
}

fn policy(name: &str, limiter: impl tower_sluice::limiter::IntoLimiter) -> Policy {
    Policy::new(name, limiter).key(HeaderKey::from_static("x-api-key"))
}

/// Fails, at once or later, with or without a local fallback.
struct Broken {
    at_once: bool,
    has_fallback: bool,
}

impl Limiter for Broken {
    fn decide(&self, ask: &Ask<'_>) -> Answer {
        if ask.mode() == Mode::Fallback {
            return Decision::allow(9, 8).into();
        }
        let error = || Err(LimiterError::new("out of reach"));
        if self.at_once { Answer::Ready(error()) } else { Answer::Pending(Box::pin(async move { error() })) }
    }

    fn describe(&self) -> Description {
        if self.has_fallback { Description::new().answering(Mode::Fallback) } else { Description::new() }
    }
}

#[tokio::test]
async fn one_policy() {
    let metrics = Metrics::record();
    let layer = RateLimitLayer::new(policy("p", bucket(2)).when(|request| request.method() != Method::PUT));
    for (key, status) in [("a", 200), ("a", 200), ("a", 429), ("a", 429), ("b", 200)] {
        assert_eq!(send(&layer, key).await, status);
    }
    metrics.assert_results(&[("p allowed", 3), ("p rejected", 2)]);
    let mut put = by("a");
    *put.method_mut() = Method::PUT;
    assert_eq!(begin(&layer, put).await, 200);
    assert_eq!(begin(&layer, bare()).await, 400);
    metrics.assert_results(&[("p allowed", 3), ("p rejected", 2), ("p skipped", 1), ("p missing-key", 1)]);
}

#[tokio::test]
async fn crossings_are_counted_by_share() {
    let metrics = Metrics::record();
    let layer = RateLimitLayer::new(policy("p", bucket(2)).warn_at(0.5).on_crossing(1.0, |_| ()));
    for key in ["a", "a", "a", "b"] {
        send(&layer, key).await;
    }
    metrics.assert_results(&[("p allowed", 3), ("p rejected", 1)]);
    let counted: Vec<_> = metrics.series().into_iter().filter(|(name, _)| name.starts_with("crossings")).collect();
    let name = |share| format!("crossings_total{{policy=\"p\",warn_at=\"{share}\"}}");
    assert_eq!(counted, [(name("0.5"), "2".to_owned()), (name("1"), "1".to_owned())]);
}

#[tokio::test]
async fn requests_without_a_key() {
    let metrics = Metrics::record();
    for layer in [
        RateLimitLayer::new(policy("skip", bucket(2)).on_missing_key(MissingKey::Skip)),
        RateLimitLayer::new(policy("share", bucket(1)).on_missing_key(MissingKey::Share)),
        RateLimitLayer::new(policy("shadow", bucket(2)).shadow()),
        RateLimitLayer::new(Policy::new("misconfigured", bucket(2)).key(PeerIp::new())),
    ] {
        for _ in 0..3 {
            begin(&layer, bare()).await;
        }
    }
    metrics.assert_results(&[
        ("skip skipped", 3),
        ("share allowed", 1),
        ("share rejected", 2),
        ("shadow skipped", 3),
        ("misconfigured missing-key", 3),
    ]);
}

#[tokio::test]
async fn preflights() {
    let metrics = Metrics::record();
    let preflight = || {
        let builder = Request::builder().method(Method::OPTIONS).header("origin", "https://a.example");
        builder.header("access-control-request-method", "PUT").body(()).unwrap()
    };
    let layer = |name| RateLimitLayer::builder([Policy::new(name, bucket(1)), Policy::new("other", bucket(1))]);
    assert_eq!(begin(&layer("seen").build(), preflight()).await, 200);
    let exempting = layer("unseen").exempt_preflights(Quota::per_day(1)).build();
    assert_eq!(begin(&exempting, preflight()).await, 200);
    metrics.assert_results(&[("unseen skipped", 1), ("seen allowed", 1), ("other skipped", 1), ("other allowed", 1)]);
}

#[tokio::test]
async fn several_policies() {
    let metrics = Metrics::record();
    let layer =
        RateLimitLayer::new([policy("small", bucket(1)), policy("great", bucket(3)), policy("tiny", bucket(1))]);
    assert_eq!([send(&layer, "a").await, send(&layer, "a").await, send(&layer, "b").await], [200, 429, 200]);
    // If another policy rejects, a policy that would have admitted the request is not charged, and counts nothing.
    metrics.assert_results(&[
        ("small allowed", 2),
        ("great allowed", 2),
        ("tiny allowed", 2),
        ("small rejected", 1),
        ("tiny rejected", 1),
    ]);
}

/// Admits a peek and rejects the charge, as if a concurrent request came in between.
struct Fickle;

impl Limiter for Fickle {
    fn decide(&self, ask: &Ask<'_>) -> Answer {
        if ask.mode() == Mode::Peek { Decision::allow(1, 0) } else { Decision::reject(1, 0, None) }.into()
    }

    fn describe(&self) -> Description {
        Description::new().answering(Mode::Peek)
    }
}

#[tokio::test]
async fn refunded_charges_do_not_count() {
    let metrics = Metrics::record();
    let layer = RateLimitLayer::new([policy("bucket", bucket(1)), policy("fickle", Arc::new(Fickle))]);
    assert_eq!([send(&layer, "a").await, send(&layer, "a").await], [429, 429]);
    metrics.assert_results(&[("fickle rejected", 2)]);
}

#[tokio::test]
async fn shadows() {
    let metrics = Metrics::record();
    let queue = LeakyQueue::new(Quota::per_hour(1)).max_queue(0);
    let layer = RateLimitLayer::new([
        policy("enforced", bucket(3)),
        policy("shadow", bucket(1)).shadow(),
        policy("queue", queue).shadow(),
        policy("fallback", Arc::new(Broken { at_once: false, has_fallback: true })).shadow(),
        policy("broken", Arc::new(Broken { at_once: false, has_fallback: false })).shadow(),
    ]);
    for status in [200, 200, 200, 429] {
        assert_eq!(send(&layer, "a").await, status);
    }
    metrics.assert_results(&[
        ("enforced allowed", 3),
        ("enforced rejected", 1),
        ("shadow allowed", 1),
        ("shadow shadow-rejected", 2),
        ("queue allowed", 1),
        ("queue shadow-rejected", 2),
        ("fallback allowed", 3),
        ("broken limiter-failed", 3),
    ]);
}

#[tokio::test]
async fn failures_by_mode() {
    for at_once in [true, false] {
        for several in [true, false] {
            for (mode, has_fallback, status, expected) in [
                (FailureMode::Allow, true, 200, "broken limiter-failed"),
                (FailureMode::Reject, true, 503, "broken limiter-failed"),
                (FailureMode::LocalFallback, true, 200, "broken allowed"),
                (FailureMode::LocalFallback, false, 503, "broken limiter-failed"),
            ] {
                let metrics = Metrics::record();
                let broken = policy("broken", Arc::new(Broken { at_once, has_fallback })).on_failure(mode);
                let layer = if several {
                    RateLimitLayer::new([policy("bucket", bucket(3)), broken])
                } else {
                    RateLimitLayer::new(broken)
                };
                assert_eq!(send(&layer, "a").await, status);
                // Refunded if the request is rejected.
                let bucket = if several && status == 200 { vec![("bucket allowed", 1)] } else { vec![] };
                metrics.assert_results(&[vec![(expected, 1)], bucket].concat());
                assert_eq!(metrics.of(r#"limiter_failures_total{policy="broken"}"#), "1", "{mode:?}");
                assert_eq!(layer.limiter_failures("broken"), Some(1));
            }
        }
    }
}

const QUEUED: &str = r#"queued_requests{policy="queue"}"#;

#[tokio::test(start_paused = true)]
async fn a_queue() {
    let metrics = Metrics::record();
    let queue = LeakyQueue::new(Quota::per_second(10)).max_queue(2);
    let layer = RateLimitLayer::new([policy("bucket", bucket(9)), policy("queue", queue)]);
    assert_eq!(send(&layer, "a").await, 200);
    let mut waiting = [begin(&layer, by("a")), begin(&layer, by("a"))];
    for answer in &mut waiting {
        assert_eq!(answer.now_or_never(), None);
    }
    assert_eq!(metrics.of(QUEUED), "2");
    assert_eq!(send(&layer, "a").await, 429);
    assert_eq!(metrics.of(QUEUED), "2");
    for answer in waiting {
        assert_eq!(answer.await, 200);
    }
    assert_eq!(metrics.of(QUEUED), "0");
    metrics.assert_results(&[("bucket allowed", 3), ("queue allowed", 1), ("queue delayed", 2), ("queue rejected", 1)]);
    let waits = |end: &str| {
        let (suffix, bound) = end.split_once(' ').unwrap_or((end, ""));
        metrics.of(&format!(r#"request_time_in_queue_seconds_{suffix}{{policy="queue",result="delayed"{bound}}}"#))
    };
    // 100 and 200 ms.
    assert_eq!([waits("count"), waits(r#"bucket ,le="0.15""#)], ["2", "1"]);
}

#[tokio::test(start_paused = true)]
async fn waiters_that_disconnect() {
    let metrics = Metrics::record();
    let queue = LeakyQueue::new(Quota::per_hour(1)).max_queue(1_000).max_wait(Duration::MAX);
    let layer = RateLimitLayer::new([policy("queue", queue), policy("bucket", bucket(10))]);
    assert_eq!(send(&layer, "a").await, 200);
    let mut waiting: Vec<_> = (0..5).map(|_| begin(&layer, by("a"))).collect();
    for answer in &mut waiting {
        assert_eq!(answer.now_or_never(), None);
    }
    drop(waiting);
    assert_eq!(metrics.of(QUEUED), "0");
    // A future that is dropped before it is polled.
    let mut service = layer.layer(service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(())) }));
    let unpolled = tower::Service::call(&mut service, by("a"));
    assert_eq!(metrics.of(QUEUED), "1");
    drop(unpolled);
    assert_eq!(metrics.of(QUEUED), "0");
    // The bucket's charges stay.
    metrics.assert_results(&[("queue allowed", 1), ("queue cancelled", 6), ("bucket allowed", 7)]);
    assert_eq!(metrics.of(r#"request_time_in_queue_seconds_count{policy="queue",result="cancelled"}"#), "6");
}

/// A shadow delays no request, even if a server keeps its queue.
#[test]
fn requests_wait_in_no_shadow() {
    struct Silent;

    impl Limiter for Silent {
        fn decide(&self, _: &Ask<'_>) -> Answer {
            Answer::Pending(Box::pin(std::future::pending()))
        }

        fn describe(&self) -> Description {
            Description::new().delaying().answering(Mode::Shadow)
        }
    }

    for (is_shadow, queued) in [(false, "1"), (true, "0")] {
        let metrics = Metrics::record();
        let queue = policy("queue", Arc::new(Silent));
        let layer = RateLimitLayer::new(if is_shadow { queue.shadow() } else { queue });
        let mut waiting = begin(&layer, by("a"));
        assert_eq!((&mut waiting).now_or_never(), None);
        let series = metrics.series();
        assert_eq!(series.get(QUEUED).map_or("0", |value| value), queued, "{series:?}");
        drop(waiting);
    }
}

#[tokio::test(start_paused = true)]
async fn waiters_that_are_rejected_by_close() {
    let metrics = Metrics::record();
    let closing = Arc::new(LeakyQueue::new(Quota::per_hour(1)).max_wait(Duration::MAX));
    let layer = RateLimitLayer::new(policy("closing", Arc::clone(&closing)));
    assert_eq!(send(&layer, "a").await, 200);
    let mut waiting = begin(&layer, by("a"));
    assert_eq!((&mut waiting).now_or_never(), None);
    closing.close();
    assert_eq!(waiting.await, 503);
    let closing: Vec<_> = metrics.results().into_iter().filter(|(name, _)| name.starts_with("closing")).collect();
    assert_eq!(closing, [("closing allowed".to_owned(), 1), ("closing limiter-failed".to_owned(), 1)]);
    assert_eq!([metrics.of(QUEUED), metrics.of(r#"queued_requests{policy="closing"}"#)], ["0", "0"]);
}

#[tokio::test]
async fn overridden_keys_are_counted_when_observed() {
    let metrics = Metrics::record();
    let layer = RateLimitLayer::builder(policy("per-client", bucket(9))).route("/r").build();
    let limits = layer.handle();
    let counts = || {
        layer.observe();
        ["banned", "allowed"].map(|state| metrics.of(&format!(r#"{state}_by_hand{{route="/r",policy="per-client"}}"#)))
    };
    layer.observe();
    assert!(!metrics.render().contains("by_hand"), "no operator has done anything");
    let hour = std::time::Duration::from_secs(3_600);
    for key in ["a", "b"] {
        let _ = limits.ban("per-client", key, hour, "scrapes").await.unwrap();
    }
    let _ = limits.allow("per-client", "c", hour, "a migration").await.unwrap();
    assert_eq!(counts(), ["2", "1"]);
    for key in ["a", "b", "c"] {
        let _ = limits.unban("per-client", key).await.unwrap();
    }
    assert_eq!(counts(), ["0", "0"]);
}

#[tokio::test]
async fn units_in_flight_are_counted_when_observed() {
    let metrics = Metrics::record();
    let per_client = policy("per-client", Concurrency::new(5)).cost(2);
    let layer = RateLimitLayer::builder([per_client, policy("window", bucket(9))]).route("/download").build();
    let in_flight = || {
        layer.handle().observe();
        metrics.of(r#"in_flight{route="/download",policy="per-client"}"#)
    };
    assert_eq!(in_flight(), "0");
    let hello = service_fn(|_: Request<()>| std::future::ready(Ok::<_, Infallible>(Response::new("hello".to_owned()))));
    let service = layer.layer(hello);
    let mut responses = Vec::new();
    for (key, status) in [("a", 200), ("a", 200), ("a", 429), ("b", 200)] {
        let response = service.clone().oneshot(by(key)).await.unwrap();
        assert_eq!(response.status(), status);
        responses.push(response);
    }
    assert_eq!(in_flight(), "6", "three requests, of which two have the same key");
    responses.pop();
    assert_eq!(in_flight(), "4");
    drop(responses);
    assert_eq!(in_flight(), "0");
    metrics.assert_results(&[("per-client allowed", 3), ("per-client rejected", 1), ("window allowed", 3)]);
    assert!(
        !metrics.render().contains(r#"in_flight{route="/download",policy="window"}"#),
        "it counts nothing in flight"
    );
}

/// A limiter that sheds, with figures that the test sets.
struct Sheds(Mutex<OverloadStats>);

impl Limiter for Sheds {
    fn decide(&self, _: &Ask<'_>) -> Answer {
        Decision::reject_until_released(4, 0).into()
    }

    fn describe(&self) -> Description {
        Description::new().shedding()
    }

    fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        stats.overload = Some(*self.0.lock().unwrap());
        stats
    }
}

/// They are counted by share, too.
#[test]
fn shed_requests_are_counted_by_class() {
    let metrics = Metrics::record();
    let limiter = Arc::new(Sheds(Mutex::default()));
    let layer = RateLimitLayer::builder(policy("overload", Arc::clone(&limiter))).route("/api").build();
    let labels = r#"route="/api",policy="overload""#;
    let read = |name: &str, more: &str| {
        layer.observe();
        metrics.of(&format!("{name}{{{labels}{more}}}"))
    };
    assert_eq!(read("overload_shed_total", r#",priority="low",share="within""#), "0");
    {
        let mut stats = limiter.0.lock().unwrap();
        (stats.limit, stats.is_overloaded) = (17, true);
        stats.worker_lag = Duration::from_millis(250);
        stats.waiting = [1, 2, 3, 4];
        stats.shed = [5, 6, 7, 8];
        stats.shed_over_share = [9, 10, 11, 12];
    }
    assert_eq!([read("overload_limit", ""), read("overload_overloaded", "")], ["17", "1"]);
    assert_eq!(read("overload_worker_lag_seconds", ""), "0.25");
    let classes = ["low", "normal", "high", "critical"];
    let by_class = |name: &str, more: &str| {
        classes.map(|class| read(name, &format!(r#",priority="{class}"{more}"#)).parse::<u64>().unwrap())
    };
    assert_eq!(by_class("overload_waiting", ""), [1, 2, 3, 4]);
    assert_eq!(by_class("overload_shed_total", r#",share="within""#), [5, 6, 7, 8]);
    assert_eq!(by_class("overload_shed_total", r#",share="over""#), [9, 10, 11, 12]);
    layer.handle().replace(policy("other", bucket(9))).unwrap();
    assert_eq!(metrics.of(&format!("overload_limit{{{labels}}}")), "0", "the policy is gone");
    assert_eq!(metrics.of(&format!("overload_overloaded{{{labels}}}")), "0");
}

/// A Redis address without a server. On a busy machine, the system may refuse a connection only after the default
/// timeout.
fn nowhere() -> Redis {
    const PLENTY: Duration = Duration::from_secs(10);
    // No program listens on the port of another system service.
    Redis::single("redis://127.0.0.1:1").timeout(PLENTY).connect_timeout(PLENTY).open().unwrap()
}

fn on<A: tower_sluice_redis::Scripted>(redis: &Redis, name: &str, algorithm: A) -> Policy {
    policy(name, RateLimiter::new(algorithm, RedisStore::new(redis, name)))
}

#[tokio::test]
async fn a_store_that_is_away() {
    let metrics = Metrics::record();
    let redis = nowhere();
    let layer = RateLimitLayer::new(on(&redis, "p", bucket(4)));
    for status in [200, 200, 200, 200, 429, 429] {
        assert_eq!(send(&layer, "a").await, status);
    }
    layer.observe();
    metrics.assert_results(&[("p allowed", 4), ("p rejected", 2)]);
    assert_eq!(metrics.of(r#"limiter_failures_total{policy="p"}"#), "6");
    let node = redis.health()[0].name().to_owned();
    assert_eq!(metrics.of(&format!(r#"store_breaker{{policy="p",node="{node}"}}"#)), "2");
    let calls = |result: &str| metrics.of(&format!(r#"store_call_duration_seconds_count{{result="{result}"}}"#));
    // The breaker is open for a moment after the fifth failure. If this takes longer, the sixth call is made as well.
    let [unreachable, open] = ["unreachable", "breaker-open"].map(|result| calls(result).parse::<u32>().unwrap());
    assert!(unreachable >= 5 && unreachable + open == 6, "{unreachable} and {open}");
    assert_eq!(calls("ok"), "0");
}

/// A key-value store in which another process changes the key before each second swap.
#[derive(Default)]
struct Contended {
    values: Mutex<HashMap<String, Vec<u8>>>,
    swaps: AtomicU32,
}

impl KeyValue for Contended {
    type Error = Infallible;

    async fn get(&self, key: &str) -> Result<Option<Vec<u8>>, Infallible> {
        Ok(self.values.lock().unwrap().get(key).cloned())
    }

    async fn compare_and_swap(
        &self,
        key: &str,
        _: Option<&[u8]>,
        new: Option<&[u8]>,
        _: Duration,
    ) -> Result<bool, Infallible> {
        let is_lost = self.swaps.fetch_add(1, Ordering::Relaxed) % 2 == 0;
        if let Some(new) = new.filter(|_| !is_lost) {
            self.values.lock().unwrap().insert(key.to_owned(), new.to_vec());
        }
        Ok(!is_lost)
    }
}

/// The counts are sums over the stores that a policy had.
#[tokio::test(start_paused = true)]
async fn conversions_and_lost_swaps_are_counted() {
    let metrics = Metrics::record();
    let contended = Arc::<Contended>::default();
    let with_limit = |limit| {
        let store = RemoteStore::new(KeyValueBackend::new(Arc::clone(&contended), "p"));
        policy("p", RateLimiter::new(bucket(limit), store))
    };
    let layer = RateLimitLayer::new(with_limit(10));
    let count = |name: &str| metrics.of(&format!(r#"store_{name}_total{{policy="p"}}"#));
    for (limit, counts) in [(10, ["0", "1"]), (20, ["1", "2"]), (30, ["2", "3"])] {
        layer.handle().replace(with_limit(limit)).unwrap();
        assert_eq!(send(&layer, "a").await, 200);
        for _ in 0..2 {
            layer.observe();
            assert_eq!(["conversions", "lost_swaps"].map(count), counts, "under a limit of {limit}");
        }
    }
}

#[tokio::test]
async fn clients_that_disconnect_during_calls() {
    let metrics = Metrics::record();
    let redis = nowhere();
    let alone = RateLimitLayer::new([policy("memory", bucket(4)), on(&redis, "alone", bucket(4))]);
    let together = RateLimitLayer::new([on(&redis, "one", bucket(4)), on(&redis, "other", bucket(4))]);
    for layer in [alone, together] {
        let mut asking = begin(&layer, by("a"));
        assert_eq!((&mut asking).now_or_never(), None);
    }
    metrics.assert_results(&[("memory allowed", 1), ("alone cancelled", 1), ("one cancelled", 1)]);
    assert!(metrics.series().keys().all(|name| !name.starts_with("queued")));
}

#[tokio::test]
async fn tables_are_read_when_observed() {
    let clock = ManualClock::new();
    async fn fill<A>(algorithm: A, clock: &ManualClock, when_full: WhenFull) -> Metrics
    where
        A: tower_sluice::algorithm::Algorithm,
    {
        let metrics = Metrics::record();
        let store = MemoryStore::with_capacity(64).with_clock(clock.clone()).when_full(when_full);
        let layer = RateLimitLayer::new(policy("p", RateLimiter::new(algorithm, store)));
        let value = |name: &str| metrics.of(&format!(r#"table_{name}{{policy="p"}}"#));
        layer.observe();
        assert_eq!([value("capacity"), value("live_keys")], ["64", "0"]);
        for number in 0..50 {
            send(&layer, &number.to_string()).await;
        }
        assert_eq!(value("live_keys"), "0", "not updated before an observation");
        layer.observe();
        assert_eq!([value("live_keys"), value("evicted_live_total"), value("turned_away_total")], ["50", "0", "0"]);
        for number in 50..300 {
            send(&layer, &number.to_string()).await;
        }
        layer.observe();
        let [live, lost, turned_away] =
            ["live_keys", "evicted_live_total", "turned_away_total"].map(|name| value(name).parse::<u32>().unwrap());
        // Each of the 300 keys is somewhere, except for the few that may share a slot.
        assert!((290..=300).contains(&(live + lost + turned_away)), "{live}, {lost}, {turned_away}");
        match when_full {
            WhenFull::EvictLeast => assert!(lost > 0 && turned_away == 0, "{lost}"),
            _ => assert!(lost == 0 && turned_away > 0, "{turned_away}"),
        }
        clock.advance(Duration::from_secs(7_200));
        layer.observe();
        assert_eq!(value("live_keys"), "0");
        assert_eq!(value("evicted_live_total"), lost.to_string());
        metrics
    }
    for when_full in [WhenFull::EvictLeast, WhenFull::Reject] {
        fill(bucket(1), &clock, when_full).await;
        fill(FixedWindow::new(Quota::per_hour(1)), &clock, when_full).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_queue_reports_its_remembered_keys() {
    let metrics = Metrics::record();
    let queue = LeakyQueue::new(Quota::per_hour(1)).max_wait(Duration::ZERO).max_keys(64);
    let layer = RateLimitLayer::new(policy("q", queue));
    let value = || {
        layer.observe();
        ["capacity", "live_keys", "evicted_live_total", "turned_away_total"]
            .map(|name| metrics.of(&format!(r#"table_{name}{{policy="q"}}"#)))
    };
    assert_eq!(value(), ["64", "0", "0", "0"]);
    for number in 0..100 {
        let status = send(&layer, &number.to_string()).await;
        assert_eq!(status, if number < 64 { 200 } else { 429 });
    }
    assert_eq!(value(), ["64", "64", "0", "36"]);
    tokio::time::advance(Duration::from_secs(3_600)).await;
    assert_eq!(value(), ["64", "0", "0", "36"]);
}

#[tokio::test]
async fn large_tables_are_estimated() {
    for algorithm in [true, false] {
        let store = 50_000;
        let limiter: Arc<dyn Limiter> = if algorithm {
            Arc::new(RateLimiter::new(bucket(1), MemoryStore::with_capacity(store)))
        } else {
            Arc::new(RateLimiter::new(FixedWindow::new(Quota::per_hour(1)), MemoryStore::with_capacity(store)))
        };
        for number in 0..20_000_u64 {
            let _ = limiter.decide(&Ask::charge(&PartitionKey::from(number), 1));
        }
        let live = limiter.stats().table.unwrap().live_keys;
        // Six standard deviations: 4,096 slots with a chance of a fifth each.
        assert!(live.abs_diff(20_000) < 3_750, "{live}");
    }
}

#[tokio::test]
async fn a_route_is_a_label_keys_never() {
    let metrics = Metrics::record();
    let layer = |route: &str| RateLimitLayer::builder(policy("p", bucket(1))).route(route).build();
    let (one, other) = (layer("/one"), layer("/other"));
    let secrets = ["secret-api-key", "192.0.2.77"];
    for key in secrets {
        let mut request = by(key);
        request.extensions_mut().insert(SocketAddr::from(([192, 0, 2, 77], 4_711)));
        begin(&one, request).await;
        send(&other, key).await;
        send(&other, key).await;
    }
    one.observe();
    let all = metrics.render();
    assert_eq!(metrics.of(r#"requests_total{route="/one",policy="p",result="allowed"}"#), "2");
    assert_eq!(metrics.of(r#"requests_total{route="/other",policy="p",result="rejected"}"#), "2");
    assert!(secrets.iter().all(|secret| !all.contains(secret)), "{all}");
    // A clone has its original's route.
    send(&one.clone(), "c").await;
    assert_eq!(metrics.of(r#"requests_total{route="/one",policy="p",result="allowed"}"#), "3");
}

#[tokio::test]
async fn layers_with_equal_names_count_together() {
    let metrics = Metrics::record();
    for _ in 0..2 {
        let layer = RateLimitLayer::new(policy("p", bucket(1)));
        assert_eq!([send(&layer, "a").await, send(&layer, "a").await], [200, 429]);
    }
    metrics.assert_results(&[("p allowed", 2), ("p rejected", 2)]);
}

#[tokio::test]
async fn metrics_work_without_a_recorder() {
    let layer = RateLimitLayer::new(policy("p", LeakyQueue::new(Quota::per_hour(1)).max_queue(0)));
    assert_eq!([send(&layer, "a").await, send(&layer, "a").await], [200, 429]);
    layer.observe();
}
