//! `Policy::charge_once`: which retries are free, and how much a client gets by repeating requests.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::effort::rounds;
use crate::support::trace::Trace;
use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty};
use tokio::sync::oneshot;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_sluice::algorithm::{Algorithm, FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::key::HeaderKey;
use tower_sluice::layer::ResponseBody;
use tower_sluice::limiter::{Answer, Ask};
use tower_sluice::policy::PolicyError;
use tower_sluice::store::{MemoryStore, MemoryTable};
use tower_sluice::testing::{IntervalChecker, Random};
use tower_sluice::time::{Clock, ManualClock, Timestamp};
use tower_sluice::{
    ChargeOnce, Decision, LeakyQueue, Limiter, PartitionKey, Penalty, Policy, Quota, RateLimitLayer, RateLimiter,
};

const KEY: HeaderName = HeaderName::from_static("idempotency-key");
const HOUR: Duration = Duration::from_secs(3_600);

fn timed<A: Algorithm>(algorithm: A, clock: &ManualClock) -> Arc<RateLimiter<A, MemoryTable<A::State, ManualClock>>> {
    Arc::new(RateLimiter::new(algorithm, MemoryStore::default().with_clock(clock.clone())))
}

fn once(clock: &ManualClock, free_retries: u64) -> ChargeOnce {
    let free_retries = u32::try_from(free_retries).unwrap();
    ChargeOnce::by_header(KEY).within(HOUR).free_retries(free_retries).max_keys(4_096).with_clock(clock.clone())
}

fn by_account(name: &'static str, limiter: impl tower_sluice::limiter::IntoLimiter) -> Policy {
    Policy::new(name, limiter).key(HeaderKey::from_static("x-account"))
}

/// A daily limit per account.
fn per_day(limit: u64, clock: &ManualClock) -> Policy {
    by_account("p", timed(FixedWindow::new(Quota::per_day(limit)), clock))
}

fn post(account: &str, key: &str) -> Request<()> {
    let mut request = Request::post("/charges").header("x-account", account).body(()).unwrap();
    request.headers_mut().insert(KEY, HeaderValue::from_str(key).unwrap());
    request
}

fn layer(policy: Policy) -> RateLimitLayer {
    RateLimitLayer::new(policy)
}

/// Sends a request that is answered 200 at once. Returns the remaining units; `None` if the request is rejected.
fn left(layer: &RateLimitLayer, request: Request<()>) -> Option<u64> {
    let hello = service_fn(|_: Request<()>| std::future::ready(Ok::<_, Infallible>(Response::new(()))));
    let response = layer.layer(hello).oneshot(request).now_or_never().expect("memory answers at once").unwrap();
    let field = response.headers()["ratelimit"].to_str().unwrap();
    let left = field.split([';', ',']).find_map(|part| part.strip_prefix("r=")).unwrap().parse().unwrap();
    (response.status() == StatusCode::OK).then_some(left)
}

type InFlight = Pin<Box<dyn Future<Output = Result<Response<ResponseBody<Empty<Bytes>>>, Infallible>>>>;

/// A request that is in flight until the test sends its status.
struct Open {
    answer: oneshot::Sender<u16>,
    response: InFlight,
}

impl Open {
    /// Returns `None` if the request is rejected.
    fn send(layer: &RateLimitLayer, request: Request<()>) -> Option<Self> {
        let (answer, awaited) = oneshot::channel();
        let awaited = Arc::new(Mutex::new(Some(awaited)));
        let mut service = layer.layer(service_fn(move |_: Request<()>| {
            let awaited = awaited.lock().unwrap().take().expect("called once");
            async move {
                Ok::<_, Infallible>(Response::builder().status(awaited.await.unwrap()).body(Empty::new()).unwrap())
            }
        }));
        let mut response: InFlight = Box::pin(service.call(request));
        match response.as_mut().now_or_never() {
            None => Some(Self { answer, response }),
            Some(rejected) => {
                assert!(rejected.unwrap().status().is_client_error());
                None
            }
        }
    }

    fn end(self, status: u16) {
        self.answer.send(status).unwrap();
        assert_eq!(self.response.now_or_never().expect("answered").unwrap().status(), status);
    }
}

/// The policy says how many retries are free, and for how long.
#[test]
fn retries_are_free_after_the_first_request() {
    let clock = ManualClock::new();
    let layer = layer(per_day(4, &clock).charge_once(once(&clock, 2)));
    assert_eq!([(); 5].map(|()| left(&layer, post("a", "k"))), [Some(3), Some(3), Some(3), Some(2), Some(1)]);
    // Another account has used up its quota, and its retries still pass.
    for (key, expected) in
        [("1", Some(3)), ("2", Some(2)), ("3", Some(1)), ("4", Some(0)), ("5", None), ("4", Some(0)), ("5", None)]
    {
        assert_eq!(left(&layer, post("b", key)), expected, "{key}");
    }
    // The time begins when the request is over.
    assert_eq!(left(&layer, post("c", "k")), Some(3));
    clock.advance(HOUR - Duration::from_nanos(1));
    assert_eq!(left(&layer, post("c", "k")), Some(3));
    clock.advance(Duration::from_nanos(1));
    assert_eq!(left(&layer, post("c", "k")), Some(2));
}

#[test]
fn by_default_one_daily_retry_is_free() {
    let clock = ManualClock::new();
    let policy = by_account("p", timed(FixedWindow::new(Quota::per(1_000, 720 * HOUR)), &clock));
    let layer = layer(policy.charge_once(ChargeOnce::by_header(KEY).with_clock(clock.clone())));
    let all = || (0..200).map(|number| left(&layer, post("a", &number.to_string()))).min().unwrap();
    assert_eq!([all(), all()], [Some(800), Some(800)]);
    assert_eq!(all(), Some(600), "the free retries are used up");
    assert_eq!(["early", "late"].map(|key| left(&layer, post("a", key))), [Some(599), Some(598)]);
    clock.advance(24 * HOUR - Duration::from_nanos(1));
    assert_eq!(left(&layer, post("a", "early")), Some(598));
    clock.advance(Duration::from_nanos(1));
    assert_eq!(left(&layer, post("a", "late")), Some(597));
}

#[test]
fn repetitions_during_the_first_request_are_charged() {
    let clock = ManualClock::new();
    let layer = layer(per_day(9, &clock).charge_once(once(&clock, 1)));
    let first = Open::send(&layer, post("a", "k")).unwrap();
    assert_eq!(left(&layer, post("a", "other")), Some(7));
    let second = Open::send(&layer, post("a", "k")).unwrap();
    assert_eq!(left(&layer, post("a", "probe")), Some(5), "the second was charged");
    first.end(500);
    // The first request was charged although it failed, so one retry is free. The second request does not add another.
    assert_eq!(left(&layer, post("a", "k")), Some(5));
    second.end(200);
    assert_eq!(left(&layer, post("a", "k")), Some(4));
    // The client disconnects before the response.
    drop(Open::send(&layer, post("a", "lost")));
    assert_eq!(left(&layer, post("a", "lost")), Some(3));
}

/// A download that is still running has not been lost.
#[test]
fn repetitions_are_charged_until_the_body_ends() {
    let clock = ManualClock::new();
    let layer = layer(per_day(9, &clock).charge_once(once(&clock, 1)));
    let Open { answer, response } = Open::send(&layer, post("a", "k")).unwrap();
    answer.send(200).unwrap();
    let response = response.now_or_never().expect("the head is there").unwrap();
    assert_eq!(left(&layer, post("a", "k")), Some(7));
    drop(response);
    // The repetition is over, too, but the record belongs to the request that ended first.
    assert_eq!([(); 2].map(|()| left(&layer, post("a", "k"))), [Some(7), Some(6)]);
    // Now only the first request's body.
    let Open { answer, response } = Open::send(&layer, post("a", "other")).unwrap();
    answer.send(200).unwrap();
    let response = response.now_or_never().expect("the head is there").unwrap();
    let body = std::pin::pin!(response.into_body().collect());
    assert!(body.now_or_never().unwrap().is_ok());
    assert_eq!(left(&layer, post("a", "other")), Some(5));
}

#[test]
fn retries_of_uncharged_requests_are_charged() {
    let clock = ManualClock::new();
    let rejected = layer(per_day(1, &clock).charge_once(once(&clock, 9)));
    assert_eq!(left(&rejected, post("a", "first")), Some(0));
    assert_eq!([(); 3].map(|()| left(&rejected, post("a", "k"))), [None; 3]);

    // The first request's charge was refunded.
    let failures = per_day(2, &clock).charge_when(|response| response.status() == 401).charge_once(once(&clock, 9));
    let failures = layer(failures);
    for _ in 0..5 {
        Open::send(&failures, post("a", "k")).unwrap().end(200);
    }
    for _ in 0..2 {
        Open::send(&failures, post("a", "guess")).unwrap().end(401);
    }
    assert_eq!(left(&failures, post("a", "probe")), Some(1), "the second guess was a retry of the first");
    Open::send(&failures, post("a", "another")).unwrap().end(401);
    assert!(Open::send(&failures, post("a", "k")).is_none(), "it was never charged");
}

/// Account, method, path, idempotency key and cost must all be equal.
#[test]
fn a_retry_must_equal_its_request() {
    let clock = ManualClock::new();
    let cost = |request: &tower_sluice::RequestHead<'_>| if request.uri().query() == Some("big") { 3 } else { 1 };
    let layer = layer(per_day(99, &clock).cost_fn(cost).charge_once(once(&clock, 99)));
    let send = |method: Method, path: &str, account: &str, key: &str| {
        let mut request = post(account, key);
        (*request.method_mut(), *request.uri_mut()) = (method, path.parse().unwrap());
        let before = left(&layer, Request::get("/").header("x-account", account).body(()).unwrap()).unwrap();
        before - left(&layer, request).unwrap()
    };
    assert_eq!([(); 2].map(|()| send(Method::POST, "/a", "ab", "k")), [1, 0]);
    for (method, path, account, key, cost) in [
        (Method::PUT, "/a", "ab", "k", 1),
        (Method::POST, "/a/", "ab", "k", 1),
        (Method::POST, "/A", "ab", "k", 1),
        (Method::POST, "/a", "b", "k", 1),
        (Method::POST, "/a", "ab", "K", 1),
        (Method::POST, "/a", "ab", "\"k\"", 1),
        // A cheap request does not make an expensive one free, and an expensive one does not make a cheap one free.
        (Method::POST, "/a?big", "ab", "k", 3),
        // These bytes are equal, but divided in another way.
        (Method::POST, "/a", "a", "bk", 1),
        (Method::POST, "/a", "abk", "POST", 1),
        (Method::from_bytes(b"KPOST").unwrap(), "/a", "ab", "k", 1),
    ] {
        assert_eq!(send(method.clone(), path, account, key), cost, "{method} {path} {account} {key}");
        assert_eq!(send(method.clone(), path, account, key), 0, "{method} {path} {account} {key}");
    }
    assert_eq!(send(Method::POST, "/a?x", "ab", "k"), 0, "the query is no part");
    assert_eq!(send(Method::POST, "/a", "ab", " k\t"), 0, "white space is no part of a value");
}

#[test]
fn invalid_idempotency_keys_are_charged() {
    let clock = ManualClock::new();
    let layer = layer(per_day(99, &clock).charge_once(once(&clock, 9)));
    let with = |lines: &[&[u8]]| {
        let mut request = Request::post("/").header("x-account", "a").body(()).unwrap();
        for line in lines {
            request.headers_mut().append(KEY, HeaderValue::from_bytes(line).unwrap());
        }
        left(&layer, request).unwrap()
    };
    let longest = [b'k'; 255];
    assert_eq!([(); 2].map(|()| with(&[&longest])), [98, 98]);
    let charged: [&[&[u8]]; 7] =
        [&[], &[b""], &[b" "], &[&[b'k'; 256]], &[b"k", b"k"], &[b"two words"], &[b"caf\xc3\xa9"]];
    for (lines, before) in charged.into_iter().zip((0..).map(|done| 98 - 2 * done)) {
        assert_eq!([(); 2].map(|()| with(lines)), [before - 1, before - 2], "{lines:?}");
    }
}

#[test]
fn a_rejected_retry_stays_free() {
    let clock = ManualClock::new();
    // The second premature retry leads to a ban.
    let penalty = Penalty::new(Quota::per_day(1), HOUR / 2).with_clock(clock.clone());
    let banning = layer(per_day(1, &clock).penalty(penalty).charge_once(once(&clock, 1)));
    assert_eq!(left(&banning, post("a", "k")), Some(0));
    assert_eq!([(); 3].map(|()| left(&banning, post("a", "other"))), [None; 3]);
    assert_eq!([(); 3].map(|()| left(&banning, post("a", "k"))), [None; 3], "the account is banned");
    clock.advance(HOUR / 2);
    assert_eq!([(); 2].map(|()| left(&banning, post("a", "k"))), [Some(0), None]);

    let all = Policy::new("all", timed(TokenBucket::new(Quota::per_hour(2)), &clock));
    let both = RateLimitLayer::new([per_day(9, &clock).charge_once(once(&clock, 1)), all]);
    // Another policy rejects, and it charges every request.
    assert_eq!(["k", "other", "third"].map(|key| status(&both, key)), [200, 200, 503]);
    assert_eq!([(); 5].map(|()| status(&both, "k")), [503; 5]);
    clock.advance(HOUR / 2);
    assert_eq!(left(&both, post("a", "k")), Some(7), "the retry is free");
    clock.advance(HOUR / 2);
    assert_eq!(left(&both, post("a", "k")), Some(6), "it was the only one");
}

/// A retry is free until its record ends, here after a minute. Another policy rejects it for an hour and advertised
/// that hour. An hour later the request was charged again, and told to wait 82,800 seconds more.
#[test]
fn a_free_retrys_wait_covers_its_charge() {
    for (within, wait) in [(60, 86_400), (3_600, 86_400), (3_601, 3_600)] {
        let clock = ManualClock::new();
        let per_hour = by_account("hour", timed(FixedWindow::new(Quota::per_hour(2)), &clock));
        let free = once(&clock, 9).within(Duration::from_secs(within));
        let layer = RateLimitLayer::new([per_day(1, &clock).charge_once(free), per_hour]);
        // The first request uses up the day, and the second, which is free, the hour.
        assert_eq!([(); 2].map(|()| answer(&layer, "k")), [(200, None); 2]);
        assert_eq!(answer(&layer, "k"), (429, Some(wait)), "{within}");
        clock.advance(Duration::from_secs(wait));
        assert_eq!(answer(&layer, "k"), (200, None), "{within}");
    }
}

fn status(layer: &RateLimitLayer, key: &str) -> u16 {
    answer(layer, key).0
}

/// Returns the status, and the seconds in `Retry-After`.
fn answer(layer: &RateLimitLayer, key: &str) -> (u16, Option<u64>) {
    let hello = service_fn(|_: Request<()>| std::future::ready(Ok::<_, Infallible>(Response::new(()))));
    let response = layer.layer(hello).oneshot(post("a", key)).now_or_never().unwrap().unwrap();
    let wait = response.headers().get("retry-after").map(|wait| wait.to_str().unwrap().parse().unwrap());
    (response.status().as_u16(), wait)
}

#[test]
fn a_live_change_keeps_free_retries() {
    let clock = ManualClock::new();
    let policy = |limit, free| per_day(limit, &clock).charge_once(once(&clock, free));
    let layer = layer(policy(5, 2));
    let in_flight = Open::send(&layer, post("a", "slow")).unwrap();
    assert_eq!([(); 2].map(|()| left(&layer, post("a", "k"))), [Some(3), Some(3)]);
    layer.handle().replace(policy(15, 1)).unwrap();
    assert_eq!([(); 2].map(|()| left(&layer, post("a", "k"))), [Some(13), Some(12)], "one was left");
    in_flight.end(200);
    assert_eq!([(); 2].map(|()| left(&layer, post("a", "slow"))), [Some(12), Some(12)], "two were promised");
    layer.handle().replace(per_day(15, &clock)).unwrap();
    assert_eq!(left(&layer, post("a", "slow")), Some(11));
}

#[test]
fn policies_without_possible_free_retries_are_rejected() {
    struct Custom;
    impl Limiter for Custom {
        fn decide(&self, _: &Ask<'_>) -> Answer {
            Decision::allow(1, 1).into()
        }
    }
    let clock = ManualClock::new();
    let bucket = || Policy::new("p", TokenBucket::new(Quota::per_second(1)));
    for (policy, expected) in [
        (
            bucket().cost_after(|_| 1),
            "the cost of a retry must be known when it comes; remove one (`charge_when` can stay)",
        ),
        (bucket().settle_by_handler(), "the cost of a retry must be known when it comes"),
        (bucket().settle_by_content_bytes(), "the cost of a retry must be known when it comes"),
        (Policy::new("p", tower_sluice::Concurrency::new(1)), "a free retry is in flight like any request"),
        (Policy::new("p", LeakyQueue::new(Quota::per_second(1))), "a free retry would overtake the requests that wait"),
        (Policy::new("p", Arc::new(Custom)), "the quota bounds the free retries; let the limiter advertise one"),
    ] {
        let error = RateLimitLayer::try_new(policy.charge_once(once(&clock, 1))).unwrap_err();
        assert!(
            matches!(error, PolicyError::Conflict { option: "charge_once", .. })
                && error.to_string().contains(expected),
            "{error}"
        );
    }
    let _ = RateLimitLayer::try_new(bucket().charge_when(|_| true).charge_once(once(&clock, 1))).unwrap();
}

/// Three attempts: one idempotency key for endless payloads, one key for all requests within an hour, and day-long keys
/// whose retries are sent at once.
#[test]
fn reused_keys_get_bounded_free_retries() {
    let clock = ManualClock::new();
    let quota = Quota::per_hour(60).burst(10);
    let served = |layer: &RateLimitLayer, key: &str| u64::from(status(layer, key) == 200);
    for free in [1, 3] {
        let bucket = || by_account("p", timed(TokenBucket::new(quota), &clock));
        let limited = layer(bucket().charge_once(once(&clock, free).within(24 * HOUR)));
        // Ten payloads per second for an hour.
        let mut endless = 0;
        for second in 0..3_600 {
            endless += (0..10).map(|_| served(&limited, "one key")).sum::<u64>();
            endless += served(&limited, &format!("{}", second / 60));
            clock.advance(Duration::from_secs(1));
        }
        assert!((69..=(1 + free) * 70).contains(&endless), "{endless} in an hour");

        let saving = layer(bucket().charge_once(once(&clock, free).within(24 * HOUR)));
        let keys: Vec<_> = (0..1_440).map(|minute| format!("minute-{minute}")).collect();
        for key in &keys {
            assert_eq!(served(&saving, key), 1);
            clock.advance(Duration::from_secs(60));
        }
        let at_once: u64 = (0..free + 1).flat_map(|_| &keys).map(|key| served(&saving, key)).sum();
        assert_eq!(at_once, (1 + free) * 10, "and not {}", 1_440 * free);
    }
}

/// A model of [`ChargeOnce`] that uses a map of records. Both limiters have models of their own.
struct Model {
    quota: Arc<dyn Limiter>,
    retries: Arc<dyn Limiter>,
    records: HashMap<(u64, u64, u64), (Timestamp, u64)>,
    free: u64,
}

#[derive(Debug, PartialEq)]
enum Fate {
    Free,
    Charged,
    Rejected,
}

impl Model {
    fn arrive(&mut self, now: Timestamp, request: (u64, u64, u64)) -> Fate {
        let (account, _, cost) = request;
        let key = PartitionKey::from(account.to_string());
        let admits = |limiter: &dyn Limiter| limiter.decide(&Ask::charge(&key, cost)).at_once().unwrap().is_allowed();
        if let Some((until, left)) = self.records.get_mut(&request) {
            if *until > now && *left > 0 && admits(&*self.retries) {
                *left -= 1;
                return Fate::Free;
            }
        }
        if admits(&*self.quota) { Fate::Charged } else { Fate::Rejected }
    }

    fn over(&mut self, now: Timestamp, request: (u64, u64, u64)) {
        let record = self.records.entry(request).or_insert((now, 0));
        if record.0 <= now {
            *record = (now.saturating_add(HOUR), self.free);
        }
    }
}

/// Keys are reused with any overlap, cost and order. Each request ends as the model predicts, and in no interval does
/// an account get more than 1 + free retries times its quota.
#[test]
fn random_schedules_agree_with_the_model() {
    let mut seen = [0_u32; 3];
    let mut trace = Trace::of(rounds(60, 1_000));
    while trace.goes_on([("free", seen[0] > 300), ("charged", seen[1] > 300), ("rejected", seen[2] > 300)]) {
        let seed = trace.seed();
        let mut random = Random::new(seed);
        let clock = ManualClock::starting_at(Timestamp::from_nanos(1_000_000_000_000_000_000));
        let free = 1 + random.below(3);
        let quota = Quota::per_hour(12).burst(4);
        let window = quota.limit();
        let times = |quota: Quota| {
            let more = Quota::per(quota.limit() * free, quota.period());
            more.burst(quota.max_burst() * free)
        };
        let make = |quota: Quota| -> Arc<dyn Limiter> {
            match seed % 3 {
                0 => timed(TokenBucket::new(quota), &clock),
                1 => timed(FixedWindow::new(Quota::per(quota.limit(), quota.period())), &clock),
                _ => timed(SlidingWindow::new(Quota::per(quota.limit(), quota.period())), &clock),
            }
        };
        let worst = [quota.max_burst(), 2 * window, window][usize::try_from(seed % 3).unwrap()];
        let layer = layer(
            by_account("p", make(quota))
                .cost_fn(|request| request.uri().query().unwrap().parse().unwrap())
                .charge_once(once(&clock, free)),
        );
        let mut model = Model { quota: make(quota), retries: make(times(quota)), records: HashMap::new(), free };
        let all = Quota::per(quota.limit() * (1 + free), quota.period());
        let mut checkers = [(); 2].map(|()| IntervalChecker::new(all, worst * (1 + free)));
        let mut open: Vec<((u64, u64, u64), Fate, Open)> = Vec::new();
        for _ in 0..200 {
            match random.below(10) {
                0..6 => {
                    let cost = 1 + random.below(2);
                    let id = (random.below(2), random.below(4), cost);
                    let mut request = post(&id.0.to_string(), &id.1.to_string());
                    *request.uri_mut() = format!("/charges?{cost}").parse().unwrap();
                    let fate = model.arrive(clock.now(), id);
                    let sent = Open::send(&layer, request);
                    assert_eq!(sent.is_some(), fate != Fate::Rejected, "seed {seed}: {id:?} {fate:?}");
                    seen[match fate {
                        Fate::Free => 0,
                        Fate::Charged => 1,
                        Fate::Rejected => 2,
                    }] += 1;
                    if let Some(sent) = sent {
                        checkers[usize::try_from(id.0).unwrap()].admit(clock.now(), cost);
                        open.push((id, fate, sent));
                    }
                }
                6..9 if !open.is_empty() => {
                    let index = usize::try_from(random.below(open.len() as u64)).unwrap();
                    let (id, fate, sent) = open.swap_remove(index);
                    if random.below(2) == 0 {
                        sent.end(200)
                    } else {
                        drop(sent)
                    }
                    if fate == Fate::Charged {
                        model.over(clock.now(), id);
                    }
                }
                _ => clock.advance(Duration::from_secs(random.below(600))),
            }
        }
    }
}
