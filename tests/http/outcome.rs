//! Charges that depend on the response, bans, and resets by support staff.

use std::future::{Future, pending, ready};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_sluice::algorithm::{Algorithm, FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::key::User;
use tower_sluice::limiter::{Answer, Ask};
use tower_sluice::policy::KeyStatus;
use tower_sluice::store::{MemoryStore, MemoryTable};
use tower_sluice::time::{ManualClock, Timestamp};
use tower_sluice::{
    LeakyQueue, Limiter, LimiterExt, PartitionKey, Penalty, Policy, Quota, RateLimitLayer, RateLimiter, Settlement,
    Verdict,
};

/// The cost that a handler reports.
#[derive(Clone)]
struct Rows(u64);

fn clock() -> ManualClock {
    let clock = ManualClock::new();
    clock.set(Timestamp::from_nanos(1_000_000_000_000_000_000));
    clock
}

fn timed<A: Algorithm>(algorithm: A, clock: &ManualClock) -> Arc<RateLimiter<A, MemoryTable<A::State, ManualClock>>> {
    Arc::new(RateLimiter::new(algorithm, MemoryStore::default().with_clock(clock.clone())))
}

struct Reply {
    status: u16,
    headers: HeaderMap,
    verdict: Verdict,
    body: String,
}

impl Reply {
    fn left(&self) -> u64 {
        self.verdict.policies()[0].decision().remaining()
    }

    fn field(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

/// Sends a request to a handler that answers with this status and reports this number of rows.
async fn send(layer: &RateLimitLayer, user: &str, status: u16, rows: u64) -> Reply {
    let handler = service_fn(move |_: Request<()>| {
        let response = Response::builder().status(status).extension(Rows(rows));
        ready(Ok::<_, String>(response.body(Full::<bytes::Bytes>::from("hello")).unwrap()))
    });
    let mut request = Request::new(());
    request.extensions_mut().insert(User::new(user));
    let response = layer.clone().layer(handler).oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let body = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
    let verdict = parts.extensions.get::<Verdict>().cloned().unwrap();
    Reply { status: parts.status.as_u16(), headers: parts.headers, verdict, body }
}

fn failed(policy: Policy) -> Policy {
    policy.charge_when(|response| response.status() == StatusCode::UNAUTHORIZED)
}

fn by_rows(policy: Policy) -> Policy {
    policy.cost_after(|response| response.extensions().get::<Rows>().unwrap().0)
}

#[tokio::test]
async fn only_matching_responses_are_charged() {
    for limiter in [
        timed(TokenBucket::new(Quota::per_hour(3)), &clock()) as Arc<dyn tower_sluice::Limiter>,
        timed(FixedWindow::new(Quota::per_hour(3)), &clock()),
        timed(SlidingWindow::new(Quota::per_hour(3)), &clock()),
    ] {
        let layer = RateLimitLayer::builder(failed(Policy::new("logins", limiter)).key(User::key())).verdict().build();
        for _ in 0..10 {
            let answer = send(&layer, "a", 200, 0).await;
            assert_eq!((answer.status, answer.left()), (200, 3));
            assert!(answer.field("ratelimit").starts_with("\"logins\";r=3"), "{}", answer.field("ratelimit"));
        }
        for left in [2, 1, 0] {
            let answer = send(&layer, "a", 401, 0).await;
            assert_eq!((answer.status, answer.left()), (401, left));
        }
        // The limit is used up, so even the right password is rejected.
        assert_eq!(send(&layer, "a", 200, 0).await.status, 429);
        assert_eq!(send(&layer, "b", 200, 0).await.status, 200);
    }
}

#[tokio::test]
async fn requests_without_a_response_stay_charged() {
    let layer =
        RateLimitLayer::builder(failed(Policy::new("logins", TokenBucket::new(Quota::per_hour(2))))).verdict().build();
    let gone = layer.layer(service_fn(|_: Request<()>| pending::<Result<Response<()>, String>>()));
    assert!(gone.oneshot(Request::new(())).now_or_never().is_none());
    let failing = layer.layer(service_fn(|_: Request<()>| ready(Err::<Response<()>, _>("broken".to_owned()))));
    assert_eq!(failing.oneshot(Request::new(())).await.unwrap_err(), "broken");
    assert_eq!(send(&layer, "a", 200, 0).await.status, 503);
}

#[tokio::test]
async fn no_more_are_in_flight_than_allowed() {
    let layer =
        RateLimitLayer::builder(failed(Policy::new("logins", TokenBucket::new(Quota::per_hour(2))))).verdict().build();
    let mut slow = layer.layer(service_fn(|_: Request<()>| pending::<Result<Response<()>, String>>()));
    let under_way = [slow.call(Request::new(())), slow.call(Request::new(()))];
    assert_eq!(slow.call(Request::new(())).await.unwrap().status(), 503);
    drop(under_way);
}

/// Sends a request with this cost while another one awaits its response and no unit is left. Returns its `Retry-After`.
async fn wait_beside_an_open_charge(bill: fn(Policy) -> Policy, cost: u64) -> String {
    let limiter = timed(TokenBucket::new(Quota::per_hour(4)), &clock());
    assert!(matches!(limiter.decide(&Ask::charge(&"a".into(), 3)), Answer::Ready(Ok(_))));
    let policy = Policy::new("units", limiter).key(User::key());
    let layer = RateLimitLayer::new(bill(policy).cost_fn(|request| request.uri().path()[1..].parse::<u64>().unwrap()));
    let send = |cost: u64| {
        let mut request = Request::get(format!("/{cost}")).body(()).unwrap();
        request.extensions_mut().insert(User::new("a"));
        layer.layer(service_fn(|_: Request<()>| pending::<Result<Response<()>, String>>())).oneshot(request)
    };
    let mut open = Box::pin(send(1));
    assert!((&mut open).now_or_never().is_none());
    send(cost).await.unwrap().headers()["retry-after"].to_str().unwrap().to_owned()
}

/// Until the first response, a response is assumed to take a second. A unit takes 15 minutes.
#[tokio::test]
async fn a_useful_refund_shortens_the_wait() {
    assert_eq!(wait_beside_an_open_charge(failed, 1).await, "1");
    assert_eq!(wait_beside_an_open_charge(failed, 2).await, "1800");
    // The final cost may be less than the estimate.
    assert_eq!(wait_beside_an_open_charge(by_rows, 1).await, "1");
}

#[tokio::test]
async fn handlers_without_settled_costs_get_no_settlement() {
    let layer = RateLimitLayer::new(failed(Policy::new("logins", TokenBucket::new(Quota::per_hour(2)))));
    let handler = service_fn(|request: Request<()>| {
        assert!(request.extensions().get::<Settlement>().is_none());
        ready(Ok::<_, String>(Response::new(())))
    });
    assert_eq!(layer.layer(handler).oneshot(Request::new(())).await.unwrap().status(), 200);
}

#[tokio::test]
async fn the_handler_reports_the_cost() {
    let limiter = timed(TokenBucket::new(Quota::per_hour(100)), &clock());
    let layer =
        RateLimitLayer::builder(by_rows(Policy::new("rows", limiter)).cost(10).key(User::key())).verdict().build();
    // The handler reports less than was charged, the same, more, and more than is left. In the last case the rest is
    // charged.
    for (rows, left) in [(0, 100), (4, 96), (10, 86), (50, 36), (200, 0)] {
        let answer = send(&layer, "a", 200, rows).await;
        assert_eq!((answer.status, answer.left()), (200, left), "{rows} rows");
        // At 100 rows per hour. The forgiven rows are not owed.
        let reset = answer.verdict.policies()[0].decision().reset_after();
        assert_eq!(reset, Duration::from_secs(36 * (100 - left)), "{rows} rows");
    }
    let rejected = send(&layer, "a", 200, 1).await;
    assert_eq!((rejected.status, rejected.field("retry-after")), (429, "360"));
}

#[tokio::test]
async fn each_policy_is_settled_on_its_own() {
    let (clock, hour) = (clock(), Quota::per_hour(5));
    let layer = RateLimitLayer::builder([
        Policy::new("all", timed(TokenBucket::new(hour), &clock)).key(User::key()),
        failed(Policy::new("failed", timed(SlidingWindow::new(hour), &clock))).key(User::key()),
        by_rows(Policy::new("rows", timed(FixedWindow::new(hour), &clock))).key(User::key()).shadow(),
    ])
    .verdict()
    .build();
    let left = |answer: &Reply| -> Vec<u64> {
        answer.verdict.policies().iter().map(|policy| policy.decision().remaining()).collect()
    };
    assert_eq!(left(&send(&layer, "a", 200, 3).await), [4, 5, 2]);
    assert_eq!(left(&send(&layer, "a", 401, 0).await), [3, 4, 2]);
    // A shadow is settled as well, and rejects nothing.
    assert_eq!(left(&send(&layer, "a", 200, 9).await), [2, 4, 0]);
    assert_eq!(send(&layer, "a", 200, 9).await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn the_last_turn_in_queue_is_refunded() {
    let layer =
        RateLimitLayer::builder(failed(Policy::new("queue", LeakyQueue::new(Quota::per_second(1))))).verdict().build();
    let begun = tokio::time::Instant::now();
    for _ in 0..5 {
        send(&layer, "a", 200, 0).await;
    }
    assert_eq!(begun.elapsed(), Duration::ZERO);
    send(&layer, "a", 401, 0).await;
    send(&layer, "a", 200, 0).await;
    assert_eq!(begun.elapsed().as_secs(), 1);
}

fn penalised(clock: &ManualClock) -> RateLimitLayer {
    let penalty = Penalty::new(Quota::per_minute(3), Duration::from_secs(600)).with_clock(clock.clone());
    let policy = Policy::new("api", timed(TokenBucket::new(Quota::per_second(1)), clock));
    RateLimitLayer::builder(policy.key(User::key()).penalty(penalty)).verdict().build()
}

#[tokio::test]
async fn repeated_rejections_ban_the_key() {
    let clock = clock();
    let layer = penalised(&clock);
    assert_eq!(send(&layer, "a", 200, 0).await.status, 200);
    // The first rejection advertises the wait; three premature retries are allowed.
    for _ in 0..4 {
        let rejected = send(&layer, "a", 200, 0).await;
        assert_eq!((rejected.status, rejected.field("retry-after")), (429, "1"));
        assert!(rejected.body.contains("#quota-exceeded"), "{}", rejected.body);
    }
    let banned = send(&layer, "a", 200, 0).await;
    assert_eq!((banned.status, banned.field("retry-after")), (429, "600"));
    assert_eq!(banned.field("x-rate-limited-for"), "600.000000");
    for expected in ["#abnormal-usage-detected", "\"Abnormal Usage Detected\"", "retry in 600 seconds", "\"api\""] {
        assert!(banned.body.contains(expected), "{}", banned.body);
    }
    assert!(banned.field("ratelimit").starts_with("\"api\";r=0;t=600"), "{}", banned.field("ratelimit"));
    // The ban holds although the bucket is full again, and other keys are not affected.
    clock.advance(Duration::from_secs(599));
    let still = send(&layer, "a", 200, 0).await;
    assert_eq!((still.status, still.field("retry-after")), (429, "1"));
    assert_eq!(send(&layer, "b", 200, 0).await.status, 200);
    clock.advance(Duration::from_secs(1));
    assert_eq!(send(&layer, "a", 200, 0).await.status, 200);
}

/// A ban charges no other policy.
#[tokio::test]
async fn occasional_rejections_ban_no_key() {
    let clock = clock();
    let layer = penalised(&clock);
    for _ in 0..100 {
        assert_eq!(send(&layer, "a", 200, 0).await.status, 200);
        assert_eq!(send(&layer, "a", 200, 0).await.field("retry-after"), "1");
        clock.advance(Duration::from_secs(20));
    }
    let shared = timed(TokenBucket::new(Quota::per_hour(10)), &clock);
    let penalty = Penalty::new(Quota::per_minute(1), Duration::from_secs(600)).with_clock(clock.clone());
    let own = Policy::new("own", timed(TokenBucket::new(Quota::per_hour(1)), &clock));
    let layer =
        RateLimitLayer::builder([Policy::new("all", shared), own.key(User::key()).penalty(penalty)]).verdict().build();
    for status in [200, 429, 429, 429, 429, 429] {
        assert_eq!(send(&layer, "a", 200, 0).await.status, status);
    }
    assert_eq!(send(&layer, "b", 200, 0).await.left(), 8);
}

#[tokio::test]
async fn a_shadow_bans_no_key() {
    let penalty = Penalty::new(Quota::per_minute(1), Duration::from_secs(600));
    let policy = Policy::new("watch", TokenBucket::new(Quota::per_hour(1))).key(User::key()).penalty(penalty).shadow();
    let layer = RateLimitLayer::builder(policy).verdict().build();
    for _ in 0..10 {
        assert_eq!(send(&layer, "a", 200, 0).await.status, 200);
    }
    assert_eq!(layer.shadow_rejected("watch"), Some(9));
}

#[tokio::test]
async fn a_ban_outlasts_a_policy_change() {
    let clock = clock();
    let layer = penalised(&clock);
    for _ in 0..6 {
        send(&layer, "a", 200, 0).await;
    }
    let penalty = Penalty::new(Quota::per_minute(5), Duration::from_secs(600)).with_clock(clock.clone());
    let policy = Policy::new("api", timed(TokenBucket::new(Quota::per_second(9)), &clock));
    layer.handle().replace(policy.key(User::key()).penalty(penalty)).unwrap();
    assert_eq!(send(&layer, "a", 200, 0).await.field("retry-after"), "600");
    assert_eq!(send(&layer, "b", 200, 0).await.status, 200);
}

#[tokio::test]
async fn support_staff_can_peek_and_reset() {
    let hour = Quota::per_hour(3);
    let clock = clock();
    let penalty = Penalty::new(Quota::per_minute(1), Duration::from_secs(600)).with_clock(clock.clone());
    let layer = RateLimitLayer::builder([
        Policy::new("bucket", timed(TokenBucket::new(hour), &clock)).key(User::key()).penalty(penalty),
        Policy::new("fixed", timed(FixedWindow::new(hour), &clock)).key(User::key()),
        Policy::new("sliding", timed(SlidingWindow::new(hour), &clock)).key(User::key()),
        Policy::new("queue", LeakyQueue::new(Quota::per_second(1))).key(User::key()).shadow(),
    ])
    .verdict()
    .build();
    let alice = PartitionKey::from("alice");
    for _ in 0..6 {
        send(&layer, "alice", 200, 0).await;
    }
    let left = |status: KeyStatus| (status.decision().is_allowed(), status.decision().remaining());
    assert_eq!(layer.handle().peek("bucket", &alice).await.map(left).unwrap(), (false, 0), "banned");
    for policy in ["fixed", "sliding"] {
        assert_eq!(layer.handle().peek(policy, &alice).await.map(left).unwrap(), (true, 0));
    }
    for policy in ["bucket", "fixed", "sliding"] {
        assert_eq!(layer.handle().reset(policy, &alice).await.map(left).unwrap(), (true, 3), "{policy}");
        assert_eq!(layer.handle().peek(policy, &alice).await.map(left).unwrap(), (true, 3), "{policy}");
    }
    assert_eq!(send(&layer, "alice", 200, 0).await.status, 200);
    assert_eq!(
        layer.handle().reset("queue", &alice).await.unwrap_err().to_string(),
        "policy `queue`: the limiter cannot be reset: it does not answer `Mode::Reset`"
    );
    assert_eq!(
        layer.handle().peek("none", &alice).await.unwrap_err().to_string(),
        "no policy of this layer is named `none`"
    );
}

/// Sends a thousand requests, a hundred per second. Returns how many are answered 429.
async fn rejected_of_a_thousand<F>(send: impl Fn() -> F) -> usize
where
    F: Future<Output = u16> + Send + 'static,
{
    let begun = Instant::now();
    let mut open = JoinSet::new();
    for number in 0..1_000 {
        // Between two answers, so that no answer comes at the instant when a request is sent.
        sleep_until(begun + Duration::from_millis(10 * number + 5)).await;
        open.spawn(send());
    }
    open.join_all().await.into_iter().filter(|status| *status == 429).count()
}

/// An address sent a thousand valid requests, which took 200 ms each. A limit of ten wrong keys per hour rejected 520
/// of them, because it bounds the requests in flight, too. The guide's program for selling an API refunds the charge
/// once the key has been looked up.
#[tokio::test(start_paused = true)]
async fn a_limit_on_wrong_keys_bounds_flights() {
    let served_in = Duration::from_millis(195);
    let ten = || timed(SlidingWindow::new(Quota::per_hour(10)), &clock());

    let by_response = RateLimitLayer::new(failed(Policy::new("guesses", ten())).key(User::key()));
    let handler = service_fn(move |_: Request<()>| async move {
        sleep(served_in).await;
        Ok::<_, String>(Response::new(Full::<bytes::Bytes>::default()))
    });
    let service = by_response.layer(handler);
    let rejected = rejected_of_a_thousand(|| {
        let mut request = Request::new(());
        request.extensions_mut().insert(User::new("address"));
        service.clone().oneshot(request).map(|response| response.unwrap().status().as_u16())
    });
    assert_eq!(rejected.await, 500);

    let guesses: Arc<dyn Limiter> = ten();
    let authenticate = move |is_right: bool| {
        let guesses = Arc::clone(&guesses);
        async move {
            let address = PartitionKey::from("address");
            let guess = guesses.acquire(&address, 1).await.unwrap();
            if !guess.is_allowed() {
                return 429;
            }
            sleep(Duration::from_millis(2)).await; // the look-up
            if !is_right {
                return 401;
            }
            guess.refund();
            sleep(served_in).await;
            200
        }
    };
    assert_eq!(rejected_of_a_thousand(|| authenticate(true)).await, 0);
    assert_eq!(rejected_of_a_thousand(|| authenticate(false)).await, 990);
}
