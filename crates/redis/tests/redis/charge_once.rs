//! `Policy::charge_once` on Redis: processes that share a limit share its free retries.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http::{HeaderName, Request, Response};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::algorithm::{FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::layer::ResponseBody;
use tower_sluice::limiter::Ask;
use tower_sluice::testing::Random;
use tower_sluice::{ChargeOnce, FailureMode, Limiter, Policy, Quota, RateLimitLayer, RateLimiter, Verdict};
use tower_sluice_redis::{Redis, RedisStore, Scripted};

use crate::calendar::monthly;
use crate::support::clients::{PLENTY, at_most, at_most_in_window, charged, key, per_client};
use crate::support::proxy::{Mode, Proxy};
use crate::support::redis::{RedisCluster, RedisServer};
use crate::support::timing::eventually;
use crate::support::trace::Trace;

const KEY: HeaderName = HeaderName::from_static("idempotency-key");
const DAY: Duration = Duration::from_secs(86_400);

/// Connects as another process would.
fn redis(server: &RedisServer) -> Redis {
    Redis::single(server.url()).timeout(PLENTY).connect_timeout(PLENTY).open().unwrap()
}

fn once(free_retries: u32) -> ChargeOnce {
    ChargeOnce::by_header(KEY).within(DAY).free_retries(free_retries)
}

/// A layer with one policy per client, as each process has one.
fn layer<A: Scripted>(redis: &Redis, algorithm: A, free_retries: u32) -> RateLimitLayer {
    layer_of(per_client(redis, "p", algorithm).charge_once(once(free_retries)))
}

fn layer_of(policy: Policy) -> RateLimitLayer {
    RateLimitLayer::builder(policy.cost_fn(cost)).verdict().build()
}

/// The query is the cost.
fn cost(request: &tower_sluice::RequestHead<'_>) -> u64 {
    request.uri().query().map_or(1, |cost| cost.parse().unwrap())
}

fn post(client: &str, key: &str) -> Request<()> {
    Request::post("/charges").header("x-client", client).header(KEY, key).body(()).unwrap()
}

async fn send(layer: &RateLimitLayer, request: Request<()>) -> Response<()> {
    let hello = service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(())) });
    // The body is dropped, so the response is over.
    layer.clone().layer(hello).oneshot(request).await.unwrap().map(drop)
}

/// The remaining units after a request; `None` if it is rejected.
async fn left(layer: &RateLimitLayer, client: &str, key: &str) -> Option<u64> {
    let response = send(layer, post(client, key)).await;
    let verdict = response.extensions().get::<Verdict>().expect("the layer attaches it");
    assert!(!verdict.policies().iter().any(|policy| policy.fell_back()), "{verdict:?}");
    (response.status() == 200).then(|| verdict.policies()[0].decision().remaining())
}

/// The records on the server: their names and values.
fn records(server: &RedisServer) -> Vec<(String, String)> {
    let names: Vec<String> = server.run(&["KEYS", "*:p:o*"]);
    names.into_iter().map(|name| (name.clone(), server.run(&["GET", &name]))).collect()
}

/// Records are made in the background.
async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    eventually(what, async || is_so()).await;
}

async fn recorded(server: &RedisServer, count: usize) {
    until(&format!("{count} records"), || records(server).len() == count).await;
}

/// A retry is free until its record ends. Another policy rejects it until the hour is over, which was advertised
/// although the retry is charged by then.
#[tokio::test]
async fn waits_of_free_retries_cover_charges() {
    for (within, is_longer) in [(60, true), (7_200, false)] {
        let server = RedisServer::start();
        let process = || {
            let redis = redis(&server);
            let free = ChargeOnce::by_header(KEY).within(Duration::from_secs(within)).free_retries(9);
            let per_day = per_client(&redis, "p", TokenBucket::new(Quota::per_day(1))).charge_once(free);
            // It restores one in an hour.
            let per_hour = per_client(&redis, "hour", TokenBucket::new(Quota::per(1, DAY / 24).burst(2)));
            RateLimitLayer::builder([per_day, per_hour]).verdict().build()
        };
        // The first uses the day up, and the second, which is free, the hour.
        let layer = process();
        assert_eq!(left(&layer, "a", "k").await, Some(0));
        recorded(&server, 1).await;
        assert!(left(&layer, "a", "k").await.is_some());
        // If a process knows the hour to be used up, it does not look for a retry.
        let response = send(&process(), post("a", "k")).await;
        assert_eq!(response.status(), 429);
        let wait: u64 = response.headers()["retry-after"].to_str().unwrap().parse().unwrap();
        assert_eq!(wait > 3_600, is_longer, "a record of {within} s: {wait}");
    }
}

/// A request that is in flight until it is ended.
struct Open {
    end: oneshot::Sender<()>,
    response: JoinHandle<Response<ResponseBody<()>>>,
}

impl Open {
    async fn send(layer: &RateLimitLayer, request: Request<()>) -> Self {
        let ((begin, began), (end, ended)) = (oneshot::channel(), oneshot::channel());
        let channels = Arc::new(Mutex::new(Some((begin, ended))));
        let service = layer.clone().layer(service_fn(move |_: Request<()>| {
            let (begin, ended): (oneshot::Sender<()>, oneshot::Receiver<()>) = channels.lock().unwrap().take().unwrap();
            async move {
                begin.send(()).unwrap();
                let _ = ended.await;
                Ok::<_, Infallible>(Response::new(()))
            }
        }));
        let response = tokio::spawn(async move { service.oneshot(request).await.unwrap() });
        began.await.expect("it is admitted");
        Self { end, response }
    }

    async fn end(self) {
        self.end.send(()).unwrap();
        drop(self.response.await.unwrap());
    }
}

/// With four units, and two free retries. `fifth` is the answer to a client's fifth free retry.
async fn shares_free_retries<A: Scripted>(algorithm: A, fifth: Option<u64>) {
    let server = RedisServer::start();
    let [here, there] = [(); 2].map(|()| layer(&redis(&server), algorithm.clone(), 2));
    assert_eq!(left(&here, "a", "k").await, Some(3));
    recorded(&server, 1).await;
    assert_eq!(left(&there, "a", "k").await, Some(3));
    assert_eq!(left(&here, "a", "k").await, Some(3));
    assert_eq!(left(&there, "a", "k").await, Some(2), "two were free");
    assert_eq!(left(&here, "b", "k").await, Some(3), "of another client");
    for (key, expected) in [("1", Some(1)), ("2", Some(0)), ("3", None)] {
        assert_eq!(left(&here, "a", key).await, expected);
    }
    recorded(&server, 4).await;
    // Both processes know that nothing is left, and retries pass all the same.
    for (layer, key, expected) in
        [(&there, "3", None), (&there, "2", Some(0)), (&here, "2", Some(0)), (&there, "2", None), (&here, "1", fifth)]
    {
        assert_eq!(left(layer, "a", key).await, expected, "{key}");
    }
    // A record that has expired does not exist.
    for (name, _) in records(&server) {
        assert!(server.run::<i64>(&["PTTL", &name]) > i64::try_from((DAY - 60 * PLENTY).as_millis()).unwrap());
        server.run::<()>(&["DEL", &name]);
    }
    assert_eq!((left(&here, "a", "1").await, left(&there, "b", "k").await), (None, Some(2)));
}

#[tokio::test]
async fn processes_share_buckets_free_retries() {
    shares_free_retries(at_most(4), Some(0)).await;
}

#[tokio::test]
async fn processes_share_windows_free_retries() {
    shares_free_retries(at_most_in_window(4), Some(0)).await;
    shares_free_retries(SlidingWindow::new(Quota::per(4, 100 * DAY)), Some(0)).await;
}

#[tokio::test]
async fn processes_share_calendar_windows_free_retries() {
    // Half of the eight units at once, and the rest over 32 days.
    shares_free_retries(monthly(4), None).await;
}

/// One call when a request comes, which it waits for, one in the background when it is over, and no further ones.
#[tokio::test]
async fn a_response_waits_for_no_call() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.address());
    let redis = Redis::single(proxy.url()).timeout(PLENTY).connect_timeout(PLENTY).open().unwrap();
    let layer = layer(&redis, at_most_in_window(2), 1);
    let first = Open::send(&layer, post("a", "k")).await;
    assert_eq!(server.runs(), 1);
    // The server is unreachable when the response is over.
    proxy.set(Mode::BlackHole);
    let start = Instant::now();
    first.end().await;
    assert!(start.elapsed() < PLENTY, "the response has waited for the record");
    proxy.set(Mode::Pass);
    recorded(&server, 1).await;
    assert_eq!(server.runs(), 2);
    assert_eq!(left(&layer, "a", "k").await, Some(1));
    assert_eq!(server.runs(), 3, "a free retry");
    assert_eq!(left(&layer, "a", "other").await, Some(0));
    recorded(&server, 2).await;
    assert_eq!(server.runs(), 5);
    assert_eq!(left(&layer, "a", "third").await, None);
    assert_eq!(server.runs(), 6, "a rejection");
    // Without an idempotency key, the negative cache rejects.
    let request = Request::post("/charges").header("x-client", "a").body(()).unwrap();
    assert_eq!((send(&layer, request).await.status().as_u16(), server.runs()), (429, 6));
}

/// Early: while the first request is in flight.
#[tokio::test]
async fn an_early_repetition_is_charged_everywhere() {
    let server = RedisServer::start();
    let [here, there] = [(); 2].map(|()| layer(&redis(&server), at_most_in_window(9), 1));
    let first = Open::send(&here, post("a", "k")).await;
    let second = Open::send(&there, post("a", "k")).await;
    assert_eq!(left(&there, "a", "probe").await, Some(6));
    first.end().await;
    recorded(&server, 2).await;
    assert_eq!(left(&there, "a", "k").await, Some(6));
    second.end().await;
    assert_eq!(left(&here, "a", "k").await, Some(5), "the second one does not add another");
    // A client that disconnects before its response is over, too.
    let lost = Open::send(&here, post("a", "lost")).await;
    lost.response.abort();
    recorded(&server, 3).await;
    assert_eq!(left(&there, "a", "lost").await, Some(4));
}

/// The budget and the record get back the units that a rejection by another policy has not used.
#[tokio::test]
async fn a_rejected_free_retry_stays_free() {
    let server = RedisServer::start();
    let process = || {
        let redis = redis(&server);
        let policies = [
            per_client(&redis, "p", at_most_in_window(9)).charge_once(once(1)),
            per_client(&redis, "q", at_most_in_window(5)),
        ];
        RateLimitLayer::builder(policies).verdict().build()
    };
    let (here, other) = (process(), RateLimiter::new(at_most_in_window(5), RedisStore::new(&redis(&server), "q")));
    assert_eq!(left(&here, "a", "k").await, Some(8));
    recorded(&server, 1).await;
    assert!(other.decide(&Ask::charge(&key("a"), 4)).decided().await.unwrap().is_allowed());
    let before = server.runs();
    assert_eq!(left(&here, "a", "k").await, None);
    // The retry was free, and rejected by the other policy; then the budget and the record got it back.
    until("it is put back", || server.runs() == before + 4).await;
    assert_eq!(records(&server)[0].1, "-1");
    assert_eq!(server.run::<Vec<String>>(&["KEYS", "*:rf"]), [""; 0], "nothing is owed to the budget");
    let _ = other.decide(&Ask::reset(&key("a"))).decided().await.unwrap();
    let there = process();
    assert_eq!([left(&there, "a", "k").await, left(&there, "a", "k").await], [Some(8), Some(7)]);
}

/// If a key is used up, the precheck for several policies admits its free retry, and the call for them all admits it,
/// too.
#[tokio::test]
async fn a_free_retry_passes_beside_other_policies() {
    let server = RedisServer::start();
    let redis = redis(&server);
    let once = per_client(&redis, "p", at_most_in_window(1)).charge_once(once(1));
    let policies = [Policy::new("all", at_most(100)), per_client(&redis, "q", at_most_in_window(50)), once];
    let layer = RateLimitLayer::builder(policies).build();
    let status = async |key| send(&layer, post("a", key)).await.status().as_u16();
    assert_eq!(status("k").await, 200);
    recorded(&server, 1).await;
    assert_eq!([status("other").await, status("k").await, status("k").await], [429, 200, 429]);
    // The rejected requests' charges are refunded.
    eventually("two have passed", async || charged(&redis, "q", at_most_in_window(50), "a").await == 2).await;
}

#[tokio::test]
async fn retries_of_uncharged_requests_are_charged() {
    let server = RedisServer::start();
    let policy = per_client(&redis(&server), "p", at_most_in_window(9)).charge_once(once(1));
    let layer = layer_of(policy.charge_when(|response| response.status() == 404));
    assert_eq!(left(&layer, "a", "k").await, Some(9));
    until("it is refunded", || server.run::<Vec<String>>(&["KEYS", "*"]).is_empty()).await;
}

/// A shadow counts a request and its retries once, too.
#[tokio::test]
async fn a_shadow_charges_a_retry_once() {
    let server = RedisServer::start();
    let layer = layer_of(per_client(&redis(&server), "p", at_most_in_window(2)).charge_once(once(1)).shadow());
    assert_eq!(left(&layer, "a", "k").await, Some(1));
    recorded(&server, 1).await;
    assert_eq!([left(&layer, "a", "k").await, left(&layer, "a", "k").await], [Some(1), Some(0)]);
}

/// One idempotency key for endless payloads, and for costs that differ, which it does not make free.
#[tokio::test]
async fn a_reused_key_has_bounded_free_payloads() {
    let server = RedisServer::start();
    let layer = layer(&redis(&server), at_most_in_window(20), 2);
    let costing = |cost: &str| {
        let mut request = post("a", "k");
        *request.uri_mut() = format!("/charges?{cost}").parse().unwrap();
        request
    };
    assert_eq!(send(&layer, costing("1")).await.status(), 200);
    recorded(&server, 1).await;
    let verdict = send(&layer, costing("9")).await;
    let left = verdict.extensions().get::<Verdict>().unwrap().policies()[0].decision().remaining();
    assert_eq!(left, 10, "the cheap request made the expensive one free");
    let mut admitted = 0;
    for _ in 0..50 {
        admitted += u64::from(send(&layer, costing("1")).await.status() == 200);
    }
    assert_eq!(admitted, 10 + 2);
}

/// A used-up key's requests reach the server only so often, with any idempotency keys.
#[tokio::test]
async fn floods_of_idempotency_keys_hardly_reach_redis() {
    let server = RedisServer::start();
    let layer = layer(&redis(&server), at_most_in_window(1), 1);
    assert_eq!(left(&layer, "a", "k").await, Some(0));
    recorded(&server, 1).await;
    let (start, before) = (Instant::now(), server.runs());
    for number in 0..1_000 {
        assert_eq!(left(&layer, "a", &format!("n{number}")).await, None);
    }
    // The first finds out that nothing is left.
    let most = 1 + 100 + 10 * (start.elapsed().as_secs() + 1);
    let calls = server.runs() - before;
    assert!((100..=most).contains(&calls), "{calls} calls");
    // Another process answers the retry, which is not used up.
    let there = self::layer(&redis(&server), at_most_in_window(1), 1);
    assert_eq!(left(&there, "a", "k").await, Some(0));
}

#[tokio::test]
async fn an_own_quota_has_a_matching_budget() {
    let server = RedisServer::start();
    let layer = || {
        let policy = per_client(&redis(&server), "p", at_most_in_window(2)).charge_once(once(1));
        layer_of(policy.quota_fn(|request| {
            let limit = request.headers().get("x-limit")?.to_str().unwrap().parse().unwrap();
            Quota::try_per(limit, 100 * DAY).ok()
        }))
    };
    let [here, there] = [layer(), layer()];
    let paid = |key: u64| {
        let mut request = post("a", &key.to_string());
        request.headers_mut().insert("x-limit", "6".parse().unwrap());
        request
    };
    for key in 0..6 {
        assert_eq!(send(&here, paid(key)).await.status(), 200);
    }
    recorded(&server, 6).await;
    for key in 0..6 {
        assert_eq!(send(&there, paid(key)).await.status(), 200, "{key}");
        assert_eq!(send(&there, paid(key)).await.status(), 429, "{key}");
    }
}

#[tokio::test]
async fn a_live_change_keeps_the_free_retries() {
    let server = RedisServer::start();
    let redis = redis(&server);
    let policy = |limit| per_client(&redis, "p", at_most_in_window(limit)).charge_once(once(1));
    let layer = layer_of(policy(5));
    let in_flight = Open::send(&layer, post("a", "slow")).await;
    assert_eq!(left(&layer, "a", "k").await, Some(3));
    recorded(&server, 1).await;
    layer.handle().replace(policy(15)).unwrap();
    assert_eq!([left(&layer, "a", "k").await, left(&layer, "a", "k").await], [Some(13), Some(12)]);
    in_flight.end().await;
    recorded(&server, 2).await;
    assert_eq!(left(&layer, "a", "slow").await, Some(12));
}

/// Foreign content in one of our keys is no free pass, and stays.
#[tokio::test]
async fn a_foreign_record_is_an_error() {
    let server = RedisServer::start();
    let policy = per_client(&redis(&server), "p", at_most_in_window(5)).charge_once(once(1));
    let layer = layer_of(policy.on_failure(FailureMode::Reject));
    assert_eq!(left(&layer, "a", "k").await, Some(4));
    recorded(&server, 1).await;
    let name = records(&server)[0].0.clone();
    for value in ["hello", "9", "-9:9"] {
        server.run::<()>(&["SET", &name, value]);
        assert_eq!(send(&layer, post("a", "k")).await.status(), 503, "{value}");
        assert_eq!(records(&server)[0].1, value);
    }
    assert_eq!(charged(&redis(&server), "p", at_most_in_window(5), "a").await, 1);
}

/// While Redis is unreachable, the local fallback charges retries like all others, and no request waits for its record.
#[tokio::test]
async fn retries_are_charged_during_an_outage() {
    let mut server = RedisServer::start();
    let layer = layer(&redis(&server), at_most_in_window(3), 9);
    assert_eq!(left(&layer, "a", "k").await, Some(2));
    recorded(&server, 1).await;
    assert_eq!(left(&layer, "a", "k").await, Some(2));
    server.kill();
    let mut statuses = Vec::new();
    for _ in 0..4 {
        let response = send(&layer, post("a", "k")).await;
        assert!(response.extensions().get::<Verdict>().unwrap().policies()[0].fell_back());
        statuses.push(response.status().as_u16());
    }
    assert_eq!(statuses, [200, 200, 429, 429], "one was charged before, and the free retry was not");
}

/// A request's state, budget and record are on one node.
#[tokio::test]
async fn processes_share_free_retries_in_a_cluster() {
    let cluster = RedisCluster::start(3, 0);
    let [here, there] = [(); 2].map(|()| {
        let redis = Redis::cluster(cluster.urls()).timeout(PLENTY).connect_timeout(PLENTY).open().unwrap();
        layer(&redis, at_most_in_window(1), 2)
    });
    for number in 0..12 {
        let client = format!("client {number}");
        assert_eq!(left(&here, &client, "k").await, Some(0));
        let on_nodes = || cluster.nodes.iter().map(|node| records(node).len()).sum::<usize>();
        until("a record", || on_nodes() == number + 1).await;
        assert_eq!(left(&there, &client, "k").await, Some(0));
        assert_eq!(left(&here, &client, "k").await, Some(0));
        assert_eq!(left(&there, &client, "k").await, None);
    }
    assert!(cluster.nodes.iter().all(|node| !records(node).is_empty()), "on all nodes");
}

/// As documented for `ChargeOnce`.
#[tokio::test]
async fn a_record_takes_the_documented_memory() {
    let server = RedisServer::start();
    let layer = layer(&redis(&server), at_most_in_window(5), 3);
    assert_eq!(left(&layer, "a", "k").await, Some(4));
    recorded(&server, 1).await;
    let bytes: u32 = server.run(&["MEMORY", "USAGE", &records(&server)[0].0]);
    println!("{bytes} bytes");
    assert!((100..=200).contains(&bytes), "{bytes} bytes");
}

#[tokio::test]
async fn the_records_on_redis_have_no_bound() {
    let redis = Redis::single("redis://127.0.0.1:1").open().unwrap();
    let policy = per_client(&redis, "p", at_most_in_window(5)).charge_once(once(1).max_keys(1_000));
    let error = RateLimitLayer::try_new(policy).unwrap_err().to_string();
    assert!(error.contains("time alone bounds the records there; remove `max_keys`"), "{error}");
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Free,
    Charged,
    Rejected,
}

/// Plain maps with the client's due: its charges and its free retries, and each request's free retries.
#[derive(Default)]
struct Model {
    charged: HashMap<u64, u64>,
    free: HashMap<u64, u64>,
    records: HashMap<(u64, u64, u64), u64>,
}

impl Model {
    fn arrive(&mut self, request: (u64, u64, u64), limit: u64, free_retries: u64) -> Fate {
        let (client, _, cost) = request;
        let (charged, free) = (self.charged.entry(client).or_default(), self.free.entry(client).or_default());
        match self.records.get_mut(&request) {
            Some(left) if *left > 0 && *free + cost <= free_retries * limit => {
                (*left, *free) = (*left - 1, *free + cost);
                Fate::Free
            }
            _ if *charged + cost <= limit => {
                *charged += cost;
                Fate::Charged
            }
            _ => Fate::Rejected,
        }
    }
}

/// Any reuse of keys by any of three processes, with any overlap: each request has the model's fate, and no client is
/// granted more than 1 + free retries times its quota.
#[tokio::test]
async fn random_schedules_stay_within_the_documented_bound() {
    const LIMIT: u64 = 12;
    let mut seen = [0; 3];
    let mut trace = Trace::of(6);
    while trace.goes_on([("free", seen[0] > 40), ("charged", seen[1] > 40), ("rejected", seen[2] > 40)]) {
        let seed = trace.seed();
        let (server, mut random, mut model) = (RedisServer::start(), Random::new(seed), Model::default());
        let free_retries = 1 + random.below(3);
        let window = FixedWindow::new(Quota::per(LIMIT, 100 * DAY));
        let processes = [(); 3].map(|()| layer(&redis(&server), window, u32::try_from(free_retries).unwrap()));
        let (mut granted, mut open) = ([0; 2], Vec::<((u64, u64, u64), Fate, Open)>::new());
        for step in 0..150 {
            let process = &processes[usize::try_from(random.below(3)).unwrap()];
            if random.below(3) == 0 && !open.is_empty() {
                let (id, fate, request) = open.swap_remove(usize::try_from(random.below(open.len() as u64)).unwrap());
                request.end().await;
                if fate == Fate::Charged {
                    model.records.entry(id).or_insert(free_retries);
                    recorded(&server, model.records.len()).await;
                }
                continue;
            }
            let id = (random.below(2), random.below(5), 1 + random.below(2));
            let mut request = post(&id.0.to_string(), &id.1.to_string());
            *request.uri_mut() = format!("/charges?{}", id.2).parse().unwrap();
            let fate = model.arrive(id, LIMIT, free_retries);
            seen[fate as usize] += 1;
            let context = format!("seed {seed}, step {step}: {id:?} {fate:?}");
            if fate == Fate::Rejected {
                assert_eq!(send(process, request).await.status(), 429, "{context}");
                continue;
            }
            granted[usize::try_from(id.0).unwrap()] += id.2;
            open.push((id, fate, Open::send(process, request).await));
            let left = charged(&redis(&server), "p", window, &id.0.to_string()).await;
            assert_eq!(left, model.charged[&id.0], "{context}");
        }
        assert!(granted.iter().all(|granted| *granted <= (1 + free_retries) * LIMIT), "{granted:?}");
    }
}
