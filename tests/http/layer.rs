//! `RateLimitLayer` as a Tower layer, and its responses.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty, Full};
use tokio_test::{assert_pending, assert_ready, assert_ready_ok};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_sluice::algorithm::{FixedWindow, LeakyBucket, SlidingWindow, TokenBucket};
use tower_sluice::key::{ExtensionKey, Global, HeaderKey, KeyExtractor, PeerIp, User, key_fn};
use tower_sluice::store::MemoryStore;
use tower_sluice::time::ManualClock;
use tower_sluice::{
    Ask, Check, Decision, Description, FailureMode, LeakyQueue, Limiter, LimiterError, MissingKey, Mode, PartitionKey,
    Policy, PolicyError, Quota, RateLimit, RateLimitLayer, RateLimiter, Receipt, ResponseFuture, Verdict,
};

type Body = Full<Bytes>;

/// Admits one request per hour and key.
fn one() -> TokenBucket {
    TokenBucket::new(Quota::per_hour(1))
}

fn hello() -> impl Service<Request<()>, Response = Response<Body>, Error = Infallible, Future: Send> + Clone + Send {
    service_fn(|_: Request<()>| std::future::ready(Ok(Response::new(Body::from("hello")))))
}

fn request(header: &[(&str, &str)]) -> Request<()> {
    let mut builder = Request::builder();
    for (name, value) in header {
        builder = builder.header(*name, *value);
    }
    builder.body(()).unwrap()
}

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    verdict: Option<Verdict>,
    body: String,
}

async fn send(layer: &RateLimitLayer, request: Request<()>) -> Answer {
    let response = layer.clone().layer(hello()).oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
    Answer { status: parts.status, headers: parts.headers, verdict: parts.extensions.get().cloned(), body }
}

async fn statuses(layer: &RateLimitLayer, requests: impl IntoIterator<Item = Request<()>>) -> Vec<u16> {
    let mut statuses = Vec::new();
    for request in requests {
        statuses.push(send(layer, request).await.status.as_u16());
    }
    statuses
}

// Tower's contract.

#[tokio::test]
async fn readiness_is_that_of_the_inner_service() {
    let layer = RateLimitLayer::builder(Policy::new("p", one())).verdict().build();
    let (mut service, mut handle) = tower_test::mock::spawn_layer::<Request<()>, Response<Body>, _>(layer);
    handle.allow(0);
    assert_pending!(service.poll_ready());
    handle.allow(1);
    assert_ready_ok!(service.poll_ready());
    handle.send_error("gone");
    assert!(assert_ready!(service.poll_ready()).is_err());
}

#[tokio::test]
async fn only_admitted_requests_reach_the_inner_service() {
    let layer = RateLimitLayer::builder(Policy::new("p", one())).verdict().build();
    let (mut service, mut handle) = tower_test::mock::spawn_layer::<Request<()>, Response<Body>, _>(layer);
    assert_ready_ok!(service.poll_ready());
    let mut first = tokio_test::task::spawn(service.call(request(&[])));
    assert_pending!(first.poll());
    let (_, respond) = handle.next_request().await.unwrap();
    respond.send_response(Response::new(Body::from("hello")));
    assert_eq!(first.await.unwrap().status(), 200);

    assert_ready_ok!(service.poll_ready());
    let second = service.call(request(&[])).await.unwrap();
    assert_eq!(second.status(), 503);
    assert!(handle.next_request().now_or_never().is_none(), "a rejected request reached the inner service");
}

/// The mock panics when it is called without having been polled ready, like a clone of a service that was.
#[tokio::test(start_paused = true)]
async fn the_readied_service_is_the_one_called_after_a_wait() {
    let layer = RateLimitLayer::builder(Policy::new("queue", LeakyQueue::new(Quota::per_second(10)))).verdict().build();
    let (mut service, mut handle) = tower_test::mock::spawn_layer::<Request<()>, Response<Body>, _>(layer);
    handle.allow(2);
    assert_ready_ok!(service.poll_ready());
    let _first = service.call(request(&[]));
    assert_ready_ok!(service.poll_ready());
    let second = tokio::spawn(service.call(request(&[])));
    let _first_request = handle.next_request().await.unwrap();
    tokio::time::advance(Duration::from_millis(99)).await;
    assert!(handle.next_request().now_or_never().is_none(), "called before its turn");
    tokio::time::advance(Duration::from_millis(2)).await;
    let (_, respond) = handle.next_request().await.unwrap();
    respond.send_response(Response::new(Body::from("hello")));
    assert_eq!(second.await.unwrap().unwrap().status(), 200);
}

#[tokio::test(start_paused = true)]
async fn a_waiting_request_keeps_the_permit_that_it_was_given() {
    let queue = LeakyQueue::new(Quota::per_second(10));
    let service = ServiceBuilder::new()
        .layer(RateLimitLayer::builder(Policy::new("queue", queue)).verdict().build())
        .concurrency_limit(2)
        .service(hello());
    let start = tokio::time::Instant::now();
    let calls = (0..4).map(|_| tokio::spawn(service.clone().oneshot(request(&[]))));
    for call in calls.collect::<Vec<_>>() {
        assert_eq!(call.await.unwrap().unwrap().status(), 200);
    }
    assert_eq!(start.elapsed(), Duration::from_millis(300));
}

#[tokio::test]
async fn buffers_and_load_shedding_go_around_it_and_inside() {
    let layer = RateLimitLayer::builder(Policy::new("p", TokenBucket::new(Quota::per_hour(2)))).verdict().build();
    let service = ServiceBuilder::new().buffer(8).layer(layer.clone()).service(hello());
    assert_eq!(service.clone().oneshot(request(&[])).await.unwrap().status(), 200);
    let service = ServiceBuilder::new().layer(layer).load_shed().buffer(8).service(hello());
    assert_eq!(service.clone().oneshot(request(&[])).await.unwrap().status(), 200);
    assert_eq!(service.oneshot(request(&[])).await.unwrap().status(), 503);
}

#[tokio::test]
async fn request_bodies_need_not_implement_body() {
    // Neither a `Body` nor `Send`: the layer does not touch it before the decision.
    struct Untouchable(#[allow(dead_code)] std::rc::Rc<()>);
    let layer = RateLimitLayer::builder(Policy::new("p", one())).verdict().build();
    let service = layer
        .layer(service_fn(|_: Request<Untouchable>| async { Ok::<_, Infallible>(Response::new(Body::from("hello"))) }));
    assert_eq!(service.clone().oneshot(Request::new(Untouchable(Default::default()))).await.unwrap().status(), 200);
    assert_eq!(service.oneshot(Request::new(Untouchable(Default::default()))).await.unwrap().status(), 503);
}

#[tokio::test]
async fn all_services_of_a_layer_share_its_budget() {
    let layer = RateLimitLayer::builder(Policy::new("p", TokenBucket::new(Quota::per_hour(3)))).verdict().build();
    let mut admitted = 0;
    for _ in 0..1_000 {
        let service = layer.clone().layer(hello()).clone();
        admitted += u32::from(service.oneshot(request(&[])).await.unwrap().status() == 200);
    }
    assert_eq!(admitted, 3);
}

#[test]
fn static_promises() {
    fn is_send<T: Send>() {}
    fn is_shared<T: Send + Sync + 'static>() {}
    type Inner = tower::util::BoxCloneSyncService<Request<()>, Response<Body>, Infallible>;
    is_shared::<RateLimitLayer>();
    is_shared::<RateLimit<Inner>>();
    is_send::<ResponseFuture<Inner, ()>>();
    is_shared::<Arc<dyn Limiter>>();
    is_shared::<Box<dyn KeyExtractor>>();
    // The type can be named in a struct, without parameters.
    struct App {
        _limits: RateLimitLayer,
    }
    let _app = App { _limits: RateLimitLayer::builder(Policy::new("p", one())).verdict().build() };
}

// Responses.

#[tokio::test]
async fn a_client_that_waits_as_advertised_is_admitted() {
    let clock = ManualClock::new();
    let store = MemoryStore::with_capacity(16).with_clock(clock.clone());
    let limiter = RateLimiter::new(TokenBucket::new(Quota::per_minute(7).burst(1)), store);
    let layer = RateLimitLayer::builder(Policy::new("per-key", limiter).key(HeaderKey::from_static("x-api-key")))
        .verdict()
        .build();
    let ask = || send(&layer, request(&[("x-api-key", "a")]));
    assert_eq!(ask().await.status, 200);

    let rejected = ask().await;
    assert_eq!(rejected.status, 429);
    assert_eq!(rejected.headers["retry-after"], "9");
    assert_eq!(rejected.headers["x-rate-limited-for"], "8.571429");
    assert_eq!(rejected.headers["cache-control"], "no-store");
    assert_eq!(rejected.headers["content-type"], "application/problem+json");
    let problem: serde_json::Value = serde_json::from_str(&rejected.body).unwrap();
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!(problem["status"], 429);
    assert_eq!(problem["detail"], "The limit is used up; retry in 9 seconds.");
    assert_eq!(problem["violated-policies"], serde_json::json!(["per-key"]));

    clock.advance(Duration::from_micros(8_571_428));
    assert_eq!(ask().await.headers["x-rate-limited-for"], "0.000001");
    clock.advance(Duration::from_micros(1));
    assert_eq!(ask().await.status, 200);
    assert_eq!(ask().await.status, 429);
    clock.advance(Duration::from_secs(9));
    assert_eq!(ask().await.status, 200);
}

#[tokio::test]
async fn the_status_is_429_per_client_and_503_for_a_shared_limit() {
    let each = |policy: Policy| async move {
        let layer = RateLimitLayer::builder(policy).verdict().build();
        let _first = send(&layer, request(&[("x-api-key", "a")])).await;
        send(&layer, request(&[("x-api-key", "a")])).await.status.as_u16()
    };
    assert_eq!(each(Policy::new("p", one()).key(HeaderKey::from_static("x-api-key"))).await, 429);
    assert_eq!(each(Policy::new("p", one()).key(Global)).await, 503);
    assert_eq!(each(Policy::new("p", one())).await, 503);
    assert_eq!(each(Policy::new("p", one()).status(StatusCode::NOT_FOUND)).await, 404);
}

#[tokio::test]
async fn responses_carry_the_verdict_and_layers_add_theirs() {
    let inner = RateLimitLayer::builder(Policy::new("inner", TokenBucket::new(Quota::per_hour(5)))).verdict().build();
    let outer = RateLimitLayer::builder(Policy::new("outer", SlidingWindow::new(Quota::per_hour(9)))).verdict().build();
    let service = ServiceBuilder::new().layer(outer).layer(inner).service(hello());
    let response = service.oneshot(request(&[])).await.unwrap();
    let verdict = response.extensions().get::<Verdict>().unwrap();
    let decisions: Vec<_> =
        verdict.policies().iter().map(|p| (p.name(), p.decision().limit(), p.decision().remaining())).collect();
    assert_eq!(decisions, [("outer", 9, 8), ("inner", 5, 4)]);
}

#[tokio::test]
async fn the_verdict_is_attached_only_if_it_is_enabled() {
    for (layer, is_attached) in [
        (RateLimitLayer::new(Policy::new("p", one())), false),
        (RateLimitLayer::builder(Policy::new("p", one())).verdict().build(), true),
    ] {
        for _ in ["admitted", "rejected"] {
            let response = layer.layer(hello()).oneshot(request(&[])).await.unwrap();
            assert_eq!(response.extensions().get::<Verdict>().is_some(), is_attached);
        }
    }
}

// Keys.

#[tokio::test]
async fn each_key_has_its_own_budget() {
    let by_header =
        RateLimitLayer::builder(Policy::new("p", one()).key(HeaderKey::from_static("x-api-key"))).verdict().build();
    let ask = |key: &'static str| request(&[("x-api-key", key)]);
    assert_eq!(statuses(&by_header, [ask("a"), ask("a"), ask("b"), ask("A")]).await, [200, 429, 200, 200]);

    let by_peer = RateLimitLayer::builder(Policy::new("p", one()).key(PeerIp::new())).verdict().build();
    let from = |address: &str| {
        let mut request = request(&[]);
        request.extensions_mut().insert(address.parse::<SocketAddr>().unwrap());
        request
    };
    let peers = [
        "1.2.3.4:1",
        "1.2.3.4:2",
        "[::ffff:1.2.3.4]:3",
        "1.2.3.5:1",
        "[2001:db8::1]:1",
        "[2001:db8::2]:1",
        "[2001:db8:0:1::1]:1",
    ];
    assert_eq!(statuses(&by_peer, peers.map(from)).await, [200, 429, 429, 200, 200, 429, 200]);

    #[derive(Clone)]
    struct Account {
        id: u64,
    }
    let by_account =
        RateLimitLayer::builder(Policy::new("p", one()).key(ExtensionKey::new(|account: &Account| account.id)))
            .verdict()
            .build();
    let of = |id| {
        let mut request = request(&[]);
        request.extensions_mut().insert(Account { id });
        request
    };
    assert_eq!(statuses(&by_account, [of(1), of(1), of(2), request(&[])]).await, [200, 429, 200, 400]);

    let by_user = RateLimitLayer::builder(Policy::new("p", one()).key(User::key())).verdict().build();
    let user = |name: &str| {
        let mut request = request(&[]);
        request.extensions_mut().insert(User::new(name));
        request
    };
    assert_eq!(statuses(&by_user, [user("a"), user("a"), user("b")]).await, [200, 429, 200]);

    let by_both = RateLimitLayer::builder(
        Policy::new("p", one()).key((HeaderKey::from_static("a"), HeaderKey::from_static("b"))),
    )
    .verdict()
    .build();
    let pair = |a: &str, b: &str| request(&[("a", a), ("b", b)]);
    assert_eq!(statuses(&by_both, [pair("x", "yz"), pair("xy", "z"), pair("x", "yz")]).await, [200, 200, 429]);

    let by_function =
        RateLimitLayer::builder(Policy::new("p", one()).key(key_fn(|head| head.uri().query().map(PartitionKey::from))))
            .verdict()
            .build();
    let query = |query: &str| Request::builder().uri(format!("/?{query}")).body(()).unwrap();
    assert_eq!(statuses(&by_function, [query("q"), query("q"), query("r"), request(&[])]).await, [200, 429, 200, 400]);
}

#[tokio::test]
async fn a_missing_key_is_treated_as_the_policy_says() {
    let policy = || Policy::new("p", one()).key(HeaderKey::from_static("x-api-key"));
    let bare = || request(&[]);

    let reject = RateLimitLayer::builder(policy()).verdict().build();
    let rejected = send(&reject, bare()).await;
    assert_eq!(rejected.status, 400);
    assert!(rejected.body.contains("header x-api-key is missing"), "{}", rejected.body);
    assert!(!rejected.headers.contains_key("retry-after"));

    let skip = RateLimitLayer::builder(policy().on_missing_key(MissingKey::Skip)).verdict().build();
    assert_eq!(statuses(&skip, [bare(), bare(), bare()]).await, [200, 200, 200]);

    let share = RateLimitLayer::builder(policy().on_missing_key(MissingKey::Share)).verdict().build();
    let empty = request(&[("x-api-key", "")]);
    assert_eq!(statuses(&share, [bare(), empty, request(&[("x-api-key", "a")])]).await, [200, 503, 200]);
}

#[tokio::test]
async fn a_key_that_is_sent_twice_is_always_rejected() {
    for choice in [MissingKey::Reject, MissingKey::Skip, MissingKey::Share] {
        let layer = RateLimitLayer::builder(
            Policy::new("p", one()).key(HeaderKey::from_static("x-api-key")).on_missing_key(choice),
        )
        .verdict()
        .build();
        let twice = send(&layer, request(&[("x-api-key", "a"), ("x-api-key", "b")])).await;
        assert_eq!(twice.status, 400);
        assert!(twice.body.contains("more than once"), "{}", twice.body);
    }
}

#[tokio::test]
async fn a_server_without_peer_addresses_answers_500_with_the_cure() {
    for choice in [MissingKey::Reject, MissingKey::Skip, MissingKey::Share] {
        let layer = RateLimitLayer::builder(Policy::new("p", one()).key(PeerIp::new()).on_missing_key(choice))
            .verdict()
            .build();
        let rejected = send(&layer, request(&[])).await;
        assert_eq!(rejected.status, 500);
        assert!(rejected.body.contains("into_make_service_with_connect_info"), "{}", rejected.body);
    }
}

// Several policies.

fn by_key(name: &'static str, limiter: impl tower_sluice::IntoLimiter) -> Policy {
    Policy::new(name, limiter).key(HeaderKey::from_static("x-api-key"))
}

#[tokio::test]
async fn several_policies_charge_all_or_none() {
    let layer = RateLimitLayer::builder([
        Policy::new("shared", LeakyBucket::new(Quota::per_hour(5))),
        by_key("each", one()),
        by_key("each-day", FixedWindow::new(Quota::per_day(2))),
    ])
    .verdict()
    .build();
    let ask = |key: &'static str| request(&[("x-api-key", key)]);
    // Nine requests of `a` are rejected, and none of them charges the shared policy.
    assert_eq!(
        statuses(&layer, std::iter::repeat_with(|| ask("a")).take(10)).await,
        [[200].as_slice(), &[429; 9]].concat()
    );
    assert_eq!(statuses(&layer, [ask("b"), ask("c"), ask("d"), ask("e"), ask("f")]).await, [200, 200, 200, 200, 503]);

    let rejected = send(&layer, ask("a")).await;
    let verdict = rejected.verdict.unwrap();
    let violated: Vec<_> = verdict.violated().map(|policy| policy.name()).collect();
    assert_eq!(violated, ["shared", "each"]);
    // The third would have admitted it: it reports what is left, and has nothing to refund.
    let each_day = verdict.policies()[2].decision();
    assert!(each_day.is_allowed() && each_day.remaining() == 1 && each_day.receipt() == Receipt::NONE);
    // The longest wait and the status of its policy are advertised.
    assert_eq!((rejected.status.as_u16(), rejected.headers["retry-after"].to_str().unwrap()), (429, "3600"));
}

/// Admits a peek and rejects the charge, as if a concurrent request came in between.
struct Fickle {
    given_back: AtomicU32,
}

impl Limiter for Fickle {
    fn decide(&self, ask: &Ask<'_>) -> Check {
        match ask.mode() {
            Mode::Peek => Decision::allow(1, 0).into(),
            _ => Decision::deny(1, 0, Some(Duration::from_secs(1))).into(),
        }
    }
    fn describe(&self) -> Description {
        Description::new().answering(Mode::Peek)
    }
    fn refund(&self, _: &PartitionKey, _: Receipt, _: u32) {
        self.given_back.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn a_lost_race_refunds_every_charge() {
    let clock = ManualClock::new();
    let store = || MemoryStore::with_capacity(16).with_clock(clock.clone());
    let bucket = Arc::new(RateLimiter::new(TokenBucket::new(Quota::per_hour(3)), store()));
    let fixed = Arc::new(RateLimiter::new(
        FixedWindow::new(Quota::per_hour(3)),
        MemoryStore::with_capacity(16).with_clock(clock.clone()),
    ));
    let sliding = Arc::new(RateLimiter::new(
        SlidingWindow::new(Quota::per_hour(3)),
        MemoryStore::with_capacity(16).with_clock(clock.clone()),
    ));
    let queue = Arc::new(LeakyQueue::new(Quota::per_hour(3).burst(3)));
    let fickle = Arc::new(Fickle { given_back: AtomicU32::new(0) });
    let layer = RateLimitLayer::builder([
        Policy::new("bucket", Arc::clone(&bucket)).cost(2),
        Policy::new("fixed", Arc::clone(&fixed)).cost(2),
        Policy::new("sliding", Arc::clone(&sliding)).cost(2),
        Policy::new("queue", Arc::clone(&queue)).cost(2),
        Policy::new("fickle", Arc::clone(&fickle)),
    ])
    .verdict()
    .build();
    for _ in 0..5 {
        assert_eq!(send(&layer, request(&[])).await.status, 503);
    }
    let left =
        |limiter: &dyn Limiter| limiter.decide(&Ask::peek(&PartitionKey::SHARED, 0)).at_once().unwrap().remaining();
    assert_eq!([left(&*bucket), left(&*fixed), left(&*sliding)], [3, 3, 3]);
    assert_eq!(fickle.given_back.load(Ordering::Relaxed), 0, "what was not charged must not be given back");
    assert_eq!(queue.waiting(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_cancelled_while_it_waits_stays_charged_and_leaves_the_queue() {
    let queue = Arc::new(LeakyQueue::new(Quota::per_hour(1)).max_wait(Duration::MAX));
    let bucket = Arc::new(RateLimiter::in_memory(TokenBucket::new(Quota::per_hour(10))));
    // Declared first, yet charged last, so that no request waits only to be rejected.
    let layer =
        RateLimitLayer::builder([Policy::new("queue", Arc::clone(&queue)), Policy::new("bucket", Arc::clone(&bucket))])
            .verdict()
            .build();
    let mut service = layer.layer(hello());
    assert_eq!(service.ready().await.unwrap().call(request(&[])).await.unwrap().status(), 200);
    let mut waiting = Box::pin(service.ready().await.unwrap().call(request(&[])));
    assert!((&mut waiting).now_or_never().is_none());
    assert_eq!(queue.waiting(), 1);
    drop(waiting);
    assert_eq!(queue.waiting(), 0);
    assert_eq!(bucket.decide(&Ask::peek(&PartitionKey::SHARED, 0)).at_once().unwrap().remaining(), 8);
}

#[tokio::test]
async fn a_shadow_counts_and_reports_and_never_rejects() {
    let layer = RateLimitLayer::builder([
        by_key("shadow", one()).shadow(),
        by_key("shadow-queue", LeakyQueue::new(Quota::per_hour(1)).capacity(1)).shadow(),
        Policy::new("shadow-without-peer", one()).key(PeerIp::new()).shadow(),
        by_key("enforced", TokenBucket::new(Quota::per_hour(4))),
    ])
    .verdict()
    .build();
    let ask = || request(&[("x-api-key", "a")]);
    assert_eq!(statuses(&layer, std::iter::repeat_with(ask).take(6)).await, [200, 200, 200, 200, 429, 429]);
    // Requests that other policies reject are not charged to a shadow.
    assert_eq!(layer.shadow_rejected("shadow"), Some(3));
    assert_eq!(layer.shadow_rejected("enforced"), Some(0));
    assert_eq!(layer.shadow_rejected("unknown"), None);
}

#[tokio::test]
async fn a_shadow_queue_fills_up_without_delaying_requests() {
    let layer = RateLimitLayer::builder(
        Policy::new("queue", LeakyQueue::new(Quota::per_hour(1)).capacity(2).max_wait(Duration::MAX)).shadow(),
    )
    .verdict()
    .build();
    let mut delays = Vec::new();
    for _ in 0..4 {
        let answer = send(&layer, request(&[])).await;
        assert_eq!(answer.status, 200);
        let decision = *answer.verdict.unwrap().policies()[0].decision();
        delays.push((decision.is_allowed(), decision.delay().as_secs().div_ceil(3_600)));
    }
    assert_eq!(delays, [(true, 0), (true, 1), (true, 2), (false, 0)]);
    assert_eq!(layer.shadow_rejected("queue"), Some(1));
}

#[tokio::test]
async fn conditions_and_costs_are_per_request() {
    let layer = RateLimitLayer::builder(
        Policy::new("writes", TokenBucket::new(Quota::per_hour(10)))
            .when(|head| head.method() == http::Method::POST)
            .cost_fn(|head| if head.uri().path() == "/import" { 6 } else { 1 }),
    )
    .verdict()
    .build();
    let get = || request(&[]);
    let post = |path: &str| Request::builder().method("POST").uri(path).body(()).unwrap();
    let answered = statuses(&layer, [get(), post("/import"), post("/import"), post("/"), get(), post("/")]).await;
    assert_eq!(answered, [200, 200, 503, 200, 200, 200]);
    assert_eq!(send(&layer, post("/")).await.verdict.unwrap().policies()[0].decision().remaining(), 1);
    let fixed =
        RateLimitLayer::builder(Policy::new("p", TokenBucket::new(Quota::per_hour(10))).cost(4)).verdict().build();
    assert_eq!(statuses(&fixed, [get(), get(), get()]).await, [200, 200, 503]);
}

// Failure, and mistakes.

struct Broken;

impl Limiter for Broken {
    fn decide(&self, _: &Ask<'_>) -> Check {
        Check::Pending(Box::pin(async { Err(LimiterError::new("the store is out of reach").with_source("rejected")) }))
    }
}

#[tokio::test]
async fn a_limiter_that_fails_is_never_a_429() {
    let bucket = Arc::new(RateLimiter::in_memory(TokenBucket::new(Quota::per_hour(3))));
    let deny = RateLimitLayer::builder([by_key("bucket", Arc::clone(&bucket)), by_key("broken", Arc::new(Broken))])
        .verdict()
        .build();
    let ask = || request(&[("x-api-key", "a")]);
    for _ in 0..5 {
        let rejected = send(&deny, ask()).await;
        assert_eq!((rejected.status.as_u16(), rejected.headers["retry-after"].to_str().unwrap()), (503, "1"));
        assert!(!rejected.headers.contains_key("x-rate-limited-for"));
    }
    // The charge before the failure was refunded.
    assert_eq!(bucket.decide(&Ask::peek(&PartitionKey::from("a"), 0)).at_once().unwrap().remaining(), 3);

    let allow =
        RateLimitLayer::builder(by_key("broken", Arc::new(Broken)).on_failure(FailureMode::Allow)).verdict().build();
    assert_eq!(statuses(&allow, [ask(), ask()]).await, [200, 200]);
}

#[test]
fn invalid_policies_are_rejected_when_the_layer_is_made() {
    let rejected = |policies: Vec<Policy>| RateLimitLayer::try_new(policies).unwrap_err();
    assert_eq!(rejected(vec![]), PolicyError::NoPolicy);
    assert_eq!(
        rejected(vec![Policy::new("a", one()), Policy::new("b", one()), Policy::new("a", one())]),
        PolicyError::DuplicateName { name: "a".into() }
    );
    let longest = "n".repeat(64);
    assert!(RateLimitLayer::try_new(Policy::new(longest.clone(), one())).is_ok());
    for name in ["", "two words", "1st", "naïve", "quote\"", "line\nbreak", &(longest.clone() + "n")] {
        assert_eq!(rejected(vec![Policy::new(name, one())]), PolicyError::InvalidName { name: name.into() });
    }
    let message = rejected(vec![Policy::new("é".repeat(100_000), one())]).to_string();
    assert!(message.len() < 400 && message.contains("only, 64 at most"), "{message}");
    for policy in [Policy::new("a", one()), Policy::new("a", one()).cost_after(|_| 1), Policy::new("a", one()).shadow()]
    {
        let error = rejected(vec![policy.cost(0)]);
        assert_eq!(error, PolicyError::CostOfZero { name: "a".into() });
        assert!(error.to_string().contains("charge at least 1 for a request"), "{error}");
    }
    assert_eq!(
        rejected(vec![Policy::new("a", TokenBucket::new(Quota::per_second(9).burst(2))).cost(3)]),
        PolicyError::CostAboveBurst { name: "a".into(), cost: 3, burst: 2 }
    );
    assert_eq!(
        rejected(vec![Policy::new("a", one()).status(StatusCode::OK)]),
        PolicyError::InvalidStatus { name: "a".into(), status: 200 }
    );
}

#[test]
#[should_panic(expected = "two policies are named `a`")]
fn the_infallible_constructor_panics_with_the_same_message() {
    let _layer = RateLimitLayer::builder([Policy::new("a", one()), Policy::new("a", one())]).verdict().build();
}

#[test]
#[should_panic(expected = "a window admits its whole limit at once")]
fn a_window_rejects_a_burst() {
    let _window = FixedWindow::new(Quota::per_second(10).burst(20));
}

#[test]
fn an_empty_inner_body_compiles() {
    // `Empty` is what many inner services answer with; the response body is generic over it.
    let layer = RateLimitLayer::builder(Policy::new("p", one())).verdict().build();
    let service =
        layer.layer(service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new())) }));
    let response = service.oneshot(request(&[])).now_or_never().unwrap().unwrap();
    assert!(http_body::Body::is_end_stream(response.body()));
}
