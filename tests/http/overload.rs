//! Limiters that shed: an overloaded server rejects requests, which is not the clients' fault.

use std::collections::HashSet;
use std::convert::Infallible;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use http::{HeaderMap, Method, Request, Response, StatusCode, Version};
use http_body_util::{BodyExt, Full};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::algorithm::FixedWindow;
use tower_sluice::key::{HeaderKey, User};
use tower_sluice::limiter::{Answer, Ask, Description, Mode, Priority, Receipt};
use tower_sluice::policy::{Event, Transition};
use tower_sluice::rejection::{Reason, RejectionFormat};
use tower_sluice::store::MemoryStore;
use tower_sluice::time::ManualClock;
use tower_sluice::{
    Decision, Limiter, LimiterError, LimiterExt, MissingKey, Overload, PartitionKey, Penalty, Policy, Quota,
    RateLimitLayer, RateLimiter, Rejection, Verdict,
};

/// A server that is overloaded when the test says so.
#[derive(Default)]
struct Server {
    is_overloaded: AtomicBool,
    /// The estimated wait in milliseconds; `None` if it is not known.
    estimate: Mutex<Option<Duration>>,
    cannot_be_peeked_at: bool,
    asks: Mutex<Vec<(Mode, Priority, u32)>>,
}

impl Server {
    fn overloaded(estimate: Option<u64>) -> Arc<Self> {
        let server = Self::default();
        *server.estimate.lock().unwrap() = estimate.map(Duration::from_secs);
        server.is_overloaded.store(true, Ordering::SeqCst);
        Arc::new(server)
    }

    /// Takes the questions since the last call.
    fn asks(&self) -> Vec<(Mode, Priority, u32)> {
        std::mem::take(&mut *self.asks.lock().unwrap())
    }
}

impl Limiter for Server {
    fn decide(&self, ask: &Ask<'_>) -> Answer {
        if !self.describe().answers(ask.mode()) {
            return LimiterError::unsupported(ask.mode()).into();
        }
        self.asks.lock().unwrap().push((ask.mode(), ask.priority(), ask.weight().get()));
        match *self.estimate.lock().unwrap() {
            _ if !self.is_overloaded.load(Ordering::SeqCst) => {
                Decision::allow(4, 3).with_receipt(Receipt::new(1)).into()
            }
            Some(estimate) => Decision::reject(4, 0, Some(estimate)).into(),
            None => Decision::reject_until_released(4, 0).into(),
        }
    }

    fn refund(&self, _: &Ask<'_>, _: Receipt, _: u64) {}

    fn describe(&self) -> Description {
        let description = Description::new().holding().delaying().shedding().answering(Mode::Shadow);
        if self.cannot_be_peeked_at { description } else { description.answering(Mode::Peek) }
    }
}

fn window(limit: u64) -> Arc<impl Limiter> {
    let store = MemoryStore::with_capacity(16).with_clock(ManualClock::new());
    Arc::new(RateLimiter::new(FixedWindow::new(Quota::per_minute(limit)), store))
}

/// The units that are left to user `a`.
fn left(limiter: &Arc<impl Limiter>) -> u64 {
    limiter.peek(&PartitionKey::from("a"), 0).now_or_never().unwrap().unwrap().remaining()
}

fn per_user(limiter: &Arc<impl Limiter>) -> Policy {
    Policy::new("per-user", Arc::clone(limiter)).key(User::key())
}

fn overload(server: &Arc<Server>) -> Policy {
    Policy::new("overload", Arc::clone(server))
}

struct Reply {
    status: u16,
    headers: HeaderMap,
    body: String,
}

impl Reply {
    fn field(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

/// Sends a request as user `a`, whose answer comes at once.
fn send(layer: &RateLimitLayer, mut request: Request<()>) -> Reply {
    request.extensions_mut().insert(User::new("a"));
    let service = layer.layer(service_fn(async |_: Request<()>| {
        Ok::<_, Infallible>(Response::new(Full::<bytes::Bytes>::from("hello")))
    }));
    let response = service.oneshot(request).now_or_never().expect("at once").unwrap();
    let (parts, body) = response.into_parts();
    let body = body.collect().now_or_never().unwrap().unwrap().to_bytes();
    Reply { status: parts.status.as_u16(), headers: parts.headers, body: String::from_utf8(body.into()).unwrap() }
}

fn get(layer: &RateLimitLayer) -> Reply {
    send(layer, Request::new(()))
}

/// The answer carries an estimate if there is one.
#[test]
fn a_shed_request_is_answered_503() {
    let key = |policy: Policy| policy.key(User::key());
    // With a client key or without, the client is not to blame.
    for policy in [overload, |server: &_| overload(server).key(User::key())] {
        let reply = get(&RateLimitLayer::new(policy(&Server::overloaded(Some(7)))));
        assert_eq!((reply.status, reply.field("retry-after")), (503, Some("7")));
        assert_eq!(reply.field("x-rate-limited-for"), None, "it is no exact wait");
        assert_eq!(reply.field("cache-control"), Some("no-store"));
        assert!(reply.body.contains("\"detail\":\"The server is overloaded; retry in 7 seconds.\""), "{}", reply.body);
        assert!(reply.body.contains("#temporary-reduced-capacity\",\"title\":\"Temporary Reduced Capacity\""));
        let reply = get(&RateLimitLayer::new(policy(&Server::overloaded(None))));
        assert_eq!((reply.status, reply.field("retry-after")), (503, None));
        assert!(reply.body.contains("\"detail\":\"The server is overloaded; retry later.\""), "{}", reply.body);
    }
    let status = StatusCode::TOO_MANY_REQUESTS;
    let reply = get(&RateLimitLayer::new(key(overload(&Server::overloaded(Some(7)))).status(status)));
    assert_eq!((reply.status, reply.field("retry-after")), (429, Some("7")));
}

/// The error carries a pushback if the wait is known.
#[test]
fn a_shed_call_is_unavailable() {
    for (estimate, pushback) in [(Some(7), Some("7000")), (None, None)] {
        let layer = RateLimitLayer::new(overload(&Server::overloaded(estimate)));
        let call = Request::post("/").version(Version::HTTP_2).header("content-type", "application/grpc");
        let reply = send(&layer, call.body(()).unwrap());
        assert_eq!((reply.status, reply.field("grpc-status")), (200, Some("14")));
        assert_eq!(reply.field("grpc-retry-pushback-ms"), pushback);
    }
}

/// For each wait, the second request is answered by a copy of the first response.
#[test]
fn copies_of_shed_responses_are_equal() {
    let formats = [RejectionFormat::Problem, RejectionFormat::ProblemWithoutType, RejectionFormat::Text];
    for format in formats.into_iter().chain([RejectionFormat::Empty]) {
        let layer = |estimate| {
            let server = Server::overloaded(estimate);
            let policy = overload(&server).key(User::key());
            (RateLimitLayer::builder(policy).rejection_format(&format).build(), server)
        };
        let (copying, server) = layer(None);
        for estimate in [None, Some(1), Some(2), Some(30), Some(31), Some(9_999_999)] {
            *server.estimate.lock().unwrap() = estimate.map(Duration::from_secs);
            for method in [Method::GET, Method::HEAD, Method::POST, Method::HEAD, Method::GET] {
                let request = || Request::builder().method(&method).uri("/").body(()).unwrap();
                let [one, other] = [&copying, &layer(estimate).0].map(|layer| send(layer, request()));
                assert_eq!((one.status, one.headers, one.body), (other.status, other.headers, other.body));
            }
            let call = Request::post("/").version(Version::HTTP_2).header("content-type", "application/grpc");
            assert_eq!(send(&copying, call.body(()).unwrap()).field("grpc-status"), Some("14"));
        }
    }
}

/// A verdict, a custom response and a jitter belong to one request.
#[test]
fn some_shed_responses_are_made_anew() {
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let layer = RateLimitLayer::builder(overload(&Server::overloaded(None)))
        .rejection_response(move |_, _| Response::new(counted.fetch_add(1, Ordering::SeqCst).to_string()))
        .build();
    assert_eq!([get(&layer).body, get(&layer).body, get(&layer).body], ["0", "1", "2"]);
    let jitter = RateLimitLayer::builder(overload(&Server::overloaded(Some(1))));
    let jitter = jitter.retry_jitter(Duration::from_secs(20)).build();
    let waits: HashSet<_> = (0..1_000).map(|_| get(&jitter).field("retry-after").map(str::to_owned)).collect();
    assert!(waits.len() > 1, "{waits:?}");
}

/// This holds even if the layer cannot peek at the limiter, so that it charges the quota and refunds it.
#[test]
fn an_overloaded_server_charges_no_quota() {
    for cannot_be_peeked_at in [false, true] {
        let server = Arc::new(Server { cannot_be_peeked_at, ..Server::default() });
        let window = window(10);
        let layer = RateLimitLayer::new([overload(&server), per_user(&window)]);
        assert_eq!((get(&layer).status, left(&window)), (200, 9));
        server.is_overloaded.store(true, Ordering::SeqCst);
        for _ in 0..20 {
            assert_eq!((get(&layer).status, left(&window)), (503, 9));
        }
        server.is_overloaded.store(false, Ordering::SeqCst);
        assert_eq!((get(&layer).status, left(&window)), (200, 8));
    }
}

/// A request that the rate limit rejects takes no units and no place in the overload limiter.
#[test]
fn rate_limited_requests_take_no_place() {
    let server = Arc::new(Server::default());
    let layer = RateLimitLayer::new([overload(&server), per_user(&window(1))]);
    assert_eq!(get(&layer).status, 200);
    server.asks();
    assert_eq!(get(&layer).status, 429);
    assert!(server.asks().iter().all(|(mode, ..)| *mode == Mode::Peek), "nothing is charged");
}

/// The estimate does not lengthen the promised wait, and an unknown estimate does not make it unknown.
#[test]
fn a_rate_limit_precedes_an_overloaded_server() {
    for estimate in [Some(3_000), Some(1), None] {
        let server = Arc::new(Server::default());
        let layer = RateLimitLayer::builder([overload(&server), per_user(&window(1))]).verdict().build();
        assert_eq!(get(&layer).status, 200);
        *server.estimate.lock().unwrap() = estimate.map(Duration::from_secs);
        server.is_overloaded.store(true, Ordering::SeqCst);
        let reply = get(&layer);
        assert_eq!((reply.status, reply.field("retry-after")), (429, Some("60")));
        assert_eq!(reply.field("x-rate-limited-for"), Some("60.000000"));
        assert!(reply.body.contains("The limit is used up; retry in 60 seconds."), "{}", reply.body);
        assert!(reply.body.contains(r#""violated-policies":["per-user","overload"]"#), "{}", reply.body);
    }
}

/// It never counts for a ban, and a retry before the estimated time is not premature.
#[test]
fn a_shed_request_leads_to_no_ban() {
    let server = Server::overloaded(Some(60));
    let penalty = Penalty::new(Quota::per_hour(1), Duration::from_secs(600)).with_clock(ManualClock::new());
    let layer = RateLimitLayer::new([overload(&server), per_user(&window(5)).penalty(penalty)]);
    for _ in 0..50 {
        assert_eq!(get(&layer).status, 503);
    }
    server.is_overloaded.store(false, Ordering::SeqCst);
    assert_eq!(get(&layer).status, 200);
}

#[test]
fn a_manually_banned_key_is_not_shed() {
    let server = Server::overloaded(Some(60));
    let layer = RateLimitLayer::new(overload(&server).key(User::key()));
    let ban = layer.handle().ban("overload", "a", Duration::from_secs(600), "scrapes").now_or_never().unwrap();
    let _ = ban.unwrap();
    let reply = get(&layer);
    assert_eq!((reply.status, reply.field("retry-after")), (429, Some("600")));
}

/// The limiter sees both in every mode.
#[test]
fn class_and_weight_reach_the_limiter() {
    let server = Arc::new(Server::default());
    let classed = |policy: Policy| {
        policy
            .priority_fn(|request| if request.uri().path() == "/pay" { Priority::Critical } else { Priority::Low })
            .weight_fn(|request| request.extensions().get::<NonZeroU32>().copied().unwrap_or(NonZeroU32::MIN))
    };
    let pay = || {
        let mut request = Request::get("/pay").body(()).unwrap();
        request.extensions_mut().insert(NonZeroU32::new(7).unwrap());
        request
    };
    let alone = RateLimitLayer::new(classed(overload(&server)));
    let beside = RateLimitLayer::new([classed(overload(&server)), per_user(&window(9))]);
    let shadow = RateLimitLayer::new([classed(overload(&server)).shadow(), per_user(&window(9))]);
    for (layer, modes) in
        [(alone, &[Mode::Charge][..]), (beside, &[Mode::Peek, Mode::Charge]), (shadow, &[Mode::Shadow])]
    {
        assert_eq!(send(&layer, pay()).status, 200);
        assert_eq!(server.asks(), modes.iter().map(|mode| (*mode, Priority::Critical, 7)).collect::<Vec<_>>());
        assert_eq!(get(&layer).status, 200);
        assert_eq!(server.asks(), modes.iter().map(|mode| (*mode, Priority::Low, 1)).collect::<Vec<_>>());
    }
    // Without the functions, all requests have the default class and weight.
    assert_eq!(send(&RateLimitLayer::new(overload(&server)), pay()).status, 200);
    assert_eq!(server.asks(), [(Mode::Charge, Priority::Normal, 1)]);
}

#[test]
fn a_shadow_counts_would_be_shedding() {
    let server = Server::overloaded(Some(60));
    let window = window(10);
    let layer = RateLimitLayer::new([overload(&server).shadow(), per_user(&window)]);
    for _ in 0..3 {
        assert_eq!(get(&layer).status, 200);
    }
    assert_eq!((layer.shadow_rejected("overload"), left(&window)), (Some(3), 7));
    assert!(server.asks().iter().all(|(mode, ..)| *mode == Mode::Shadow));
}

/// A handler that asks by itself does not know a policy.
#[tokio::test]
async fn a_handler_answers_as_a_layer_would() {
    for estimate in [Some(7), None] {
        let server = Server::overloaded(estimate);
        let permit = server.acquire(&"a".into(), 1).await.unwrap();
        let rejection = Rejection::unless_allowed("jobs", permit).unwrap_err();
        assert_eq!((rejection.reason(), rejection.status().as_u16()), (Reason::Overloaded, 503));
        assert_eq!(rejection.retry_after(), estimate.map(Duration::from_secs));
    }
    let permit = window(1).acquire_owned(&"a".into(), 2).await.unwrap();
    let rejection = Rejection::unless_allowed("jobs", permit).unwrap_err();
    assert_eq!((rejection.reason(), rejection.status().as_u16()), (Reason::LimitExceeded, 429));
}

/// One event when the overload begins, rather than one for each key.
#[test]
fn an_overloaded_server_is_an_event() {
    let events = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&events);
    let note = move |event: &Event<'_>| {
        assert_eq!((event.policy(), event.key_text()), ("overload", None));
        noted.lock().unwrap().push(matches!(event.transition(), Transition::Shedding));
    };
    let server = Server::overloaded(Some(60));
    let layer = RateLimitLayer::builder(overload(&server).key(User::key())).on_transition(note).build();
    for _ in 0..9 {
        assert_eq!(get(&layer).status, 503);
    }
    server.is_overloaded.store(false, Ordering::SeqCst);
    assert_eq!(get(&layer).status, 200);
    assert_eq!(*events.lock().unwrap(), [true], "it has shed a moment ago");
}

#[test]
fn classes_and_weights_need_a_shedding_limiter() {
    let policy = || Policy::new("api", Quota::per_second(9)).key(HeaderKey::from_static("x-api-key"));
    for policy in [policy().priority_fn(|_| Priority::High), policy().weight_fn(|_| NonZeroU32::MIN)] {
        let error = RateLimitLayer::try_new(policy).unwrap_err().to_string();
        assert!(error.ends_with("protect the server with `Overload`, or remove the option"), "{error}");
    }
}

/// The crate's limiter, in a layer with a quota.
#[tokio::test(start_paused = true)]
async fn the_real_limiter_sheds_uncharged() {
    let window = window(10);
    let limiter = Arc::new(Overload::new().limits(1..=1).starting_at(1).max_queue(0));
    let policy = Policy::new("overload", Arc::clone(&limiter) as Arc<dyn Limiter>);
    let layer =
        RateLimitLayer::builder([policy, per_user(&window).on_missing_key(MissingKey::Share)]).verdict().build();
    let service = layer.layer(service_fn(async |_: Request<()>| {
        Ok::<_, Infallible>(Response::new(Full::<bytes::Bytes>::from("hello")))
    }));
    let request = || {
        let mut request = Request::new(());
        request.extensions_mut().insert(User::new("a"));
        request
    };
    let first = service.clone().oneshot(request()).await.unwrap();
    assert_eq!((first.status().as_u16(), left(&window), limiter.stats().in_flight), (200, 9, Some(1)));
    let shed = service.clone().oneshot(request()).await.unwrap();
    assert_eq!((shed.status().as_u16(), left(&window), limiter.stats().in_flight), (503, 9, Some(1)));
    assert!(!shed.extensions().get::<Verdict>().unwrap().is_allowed());
    drop(first);
    let later = service.oneshot(request()).await.unwrap();
    assert_eq!((later.status().as_u16(), left(&window)), (200, 8));
    let _ = later.into_body().collect().await.unwrap();
    assert_eq!(limiter.stats().in_flight, Some(0));
}

/// From the second one on, requests are shed before their keys are known.
#[test]
fn requests_are_shed_without_their_keys() {
    let limiter = Arc::new(Overload::new().limits(1..=1).starting_at(1).max_queue(0));
    let policy = Policy::new("overload", Arc::clone(&limiter) as Arc<dyn Limiter>)
        .key(User::key())
        .priority_fn(|head| if head.uri().path() == "/pay" { Priority::Critical } else { Priority::Low })
        .when(|head| head.uri().path() != "/health");
    let layer = RateLimitLayer::new(policy);
    let get_path = |path: &'static str| send(&layer, Request::get(path).body(()).unwrap());
    let shed = || limiter.stats().overload.unwrap().shed;

    let service = layer.layer(service_fn(async |_: Request<()>| {
        Ok::<_, Infallible>(Response::new(Full::<bytes::Bytes>::from("hello")))
    }));
    let mut request = Request::new(());
    request.extensions_mut().insert(User::new("b"));
    let in_flight = service.oneshot(request).now_or_never().expect("at once").unwrap();
    let [first, second, third] = ["/", "/", "/pay"].map(get_path);
    assert_eq!((first.status, shed()), (503, [2, 0, 0, 1]));
    assert_eq!((second.status, &second.body), (503, &first.body));
    assert_eq!((third.status, &third.body), (503, &first.body));
    // Each request gets its own form, and those to which the policy does not apply pass.
    let call = Request::post("/a.B/C").version(Version::HTTP_2).header("content-type", "application/grpc");
    assert_eq!(send(&layer, call.body(()).unwrap()).field("grpc-status"), Some("14"));
    assert_eq!(send(&layer, Request::head("/").body(()).unwrap()).body, "");
    assert_eq!((get_path("/health").status, shed()), (200, [4, 0, 0, 1]));
    // Once there is room, no request is shed.
    drop(in_flight);
    assert_eq!((get_path("/").status, shed()), (200, [4, 0, 0, 1]));
}

/// The head of a long download has come, and its body has not ended.
#[tokio::test(start_paused = true)]
async fn trap_release_at_the_response_head() {
    let overload = Policy::new("overload", Overload::new().limits(1..=1).max_queue(0));
    let service = RateLimitLayer::new(overload).layer(service_fn(async |_: Request<()>| {
        Ok::<_, Infallible>(Response::new(Full::<bytes::Bytes>::from("a long download")))
    }));
    let get = || service.clone().oneshot(Request::new(()));
    let download = get().await.unwrap();
    assert_eq!(download.status(), StatusCode::OK);
    assert_eq!(get().await.unwrap().status(), StatusCode::SERVICE_UNAVAILABLE, "the download is in flight");
    drop(download);
    assert_eq!(get().await.unwrap().status(), StatusCode::OK);
}
