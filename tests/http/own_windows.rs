//! `Policy::window_fn` and `Policy::limit_fn`: each customer has its own window, or its own limit in flight.

use std::convert::Infallible;
use std::future::ready;
use std::time::Duration;

use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt;
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::algorithm::{CalendarWindow, TokenBucket};
use tower_sluice::key::User;
use tower_sluice::layer::ResponseBody;
use tower_sluice::policy::PolicyError;
use tower_sluice::store::MemoryStore;
use tower_sluice::time::{ManualClock, Timestamp};
use tower_sluice::{ChargeOnce, Concurrency, PartitionKey, Policy, Quota, RateLimitLayer, RateLimiter};

/// An authentication layer attaches the customer's plan.
#[derive(Clone)]
struct Plan {
    window: Option<CalendarWindow>,
    in_flight: Option<u64>,
}

/// Noon on 20 March 2026 in Berlin, nine days before clocks are set forward.
fn clock() -> ManualClock {
    ManualClock::starting_at(Timestamp::from_nanos(1_774_004_400_000_000_000))
}

const HOUR: u64 = 3_600;

fn month(clock: &ManualClock) -> Policy {
    let store = MemoryStore::with_capacity(64).with_clock(clock.clone());
    Policy::new("month", RateLimiter::new(CalendarWindow::monthly(2), store))
        .key(User::key())
        .window_fn(|request| request.extensions().get::<Plan>()?.window.clone())
}

fn request(user: &str, plan: Plan) -> Request<()> {
    let mut request = Request::get("/").header("idempotency-key", user).body(()).unwrap();
    request.extensions_mut().insert(User::new(user));
    request.extensions_mut().insert(plan);
    request
}

async fn send(layer: &RateLimitLayer, user: &str, plan: Plan, status: u16) -> (u16, HeaderMap, ResponseBody<String>) {
    let answer = move |_| ready(Ok::<_, Infallible>(Response::builder().status(status).body(String::new()).unwrap()));
    let response = layer.layer(service_fn(answer)).oneshot(request(user, plan)).await.unwrap();
    let (head, body) = response.into_parts();
    (head.status.as_u16(), head.headers, body)
}

/// The status and the value of `RateLimit` for a customer with this window.
async fn ask(layer: &RateLimitLayer, user: &str, window: Option<&CalendarWindow>) -> (u16, String) {
    let plan = Plan { window: window.cloned(), in_flight: None };
    let (status, headers, _) = send(layer, user, plan, 200).await;
    (status, headers["ratelimit"].to_str().unwrap().to_owned())
}

fn berlin(limit: u64) -> CalendarWindow {
    CalendarWindow::monthly(limit).zone("Europe/Berlin").unwrap()
}

#[tokio::test]
async fn fields_describe_the_customers_own_window() {
    let clock = clock();
    let layer = RateLimitLayer::new([month(&clock), Policy::new("all", TokenBucket::new(Quota::per_hour(1_000)))]);
    // Eleven and a half days to April, less the hour by which Berlin's clocks are set forward; one hour more in UTC.
    let april = 11 * 24 * HOUR + 11 * HOUR;
    for (user, window, limit, reset) in [
        ("ada", Some(berlin(10_000)), 10_000, april),
        ("bob", Some(berlin(500).anchor(22)), 500, 36 * HOUR),
        ("cy", Some(CalendarWindow::daily(7).zone("Asia/Kolkata").unwrap()), 7, 7 * HOUR + HOUR / 2),
        ("dan", None, 2, april + 2 * HOUR),
    ] {
        let plan = Plan { window: window.clone(), in_flight: None };
        let (status, headers, _) = send(&layer, user, plan, 200).await;
        let fields = ["ratelimit-policy", "ratelimit"].map(|name| headers[name].to_str().unwrap());
        assert_eq!(status, 200);
        assert!(fields[0].starts_with(&format!("\"month\";q={limit}, ")), "{user}: {fields:?}");
        assert!(fields[1].starts_with(&format!("\"month\";r={};t={reset}, ", limit - 1)), "{user}: {fields:?}");
    }
}

/// The customer gets the new window at once.
#[tokio::test]
async fn a_moved_customer_keeps_its_use() {
    let clock = clock();
    let layer = RateLimitLayer::new(month(&clock));
    let (old, new) = (berlin(3), CalendarWindow::daily(3).zone("America/New_York").unwrap());
    assert!(ask(&layer, "ada", Some(&old)).await.1.starts_with("\"month\";r=2;"));
    // Seven o'clock in New York: seventeen hours to midnight.
    assert_eq!(ask(&layer, "ada", Some(&new)).await, (200, format!("\"month\";r=1;t={}", 17 * HOUR)));
    for (window, status, left) in [(&old, 200, 0), (&new, 429, 0), (&old, 429, 0), (&new, 429, 0)] {
        let (found, field) = ask(&layer, "ada", Some(window)).await;
        assert_eq!((found, field.starts_with(&format!("\"month\";r={left};"))), (status, true), "{field}");
    }
    // A peek shows the last request's window.
    let peeked = *layer.handle().peek("month", &PartitionKey::from("ada")).await.unwrap().decision();
    assert_eq!((peeked.limit(), peeked.reset_after()), (3, Duration::from_secs(17 * HOUR)));
    clock.advance(Duration::from_secs(17 * HOUR));
    assert_eq!(ask(&layer, "ada", Some(&new)).await, (200, format!("\"month\";r=2;t={}", 24 * HOUR)));
    // A reset clears it.
    let _ = layer.handle().reset("month", &PartitionKey::from("ada")).await.unwrap();
    assert_eq!(ask(&layer, "ada", Some(&new)).await, (200, format!("\"month\";r=2;t={}", 24 * HOUR)));
}

/// Refunds, settlements, free retries, and debts.
#[tokio::test]
async fn all_steps_use_the_requests_window() {
    let clock = clock();
    let window = berlin(5).anchor(22);
    let left = async |layer: &RateLimitLayer, status| {
        let plan = Plan { window: Some(window.clone()), in_flight: None };
        let (_, headers, body) = send(layer, "ada", plan, status).await;
        let _ = body.collect().await;
        let field = headers["ratelimit"].to_str().unwrap();
        let (left, reset) = field.strip_prefix("\"month\";r=").unwrap().split_once(";t=").unwrap();
        assert_eq!(reset, (36 * HOUR).to_string());
        left.parse::<u64>().unwrap()
    };
    let refunding = RateLimitLayer::new(month(&clock).charge_when(|response| response.status() == 401));
    assert_eq!([left(&refunding, 200).await, left(&refunding, 401).await, left(&refunding, 200).await], [5, 4, 4]);
    let settling = RateLimitLayer::new(month(&clock).cost_after(|_| 3));
    assert_eq!([left(&settling, 200).await, left(&settling, 200).await], [2, 0]);
    let once = ChargeOnce::by_header(http::HeaderName::from_static("idempotency-key")).free_retries(2);
    let once = RateLimitLayer::new(month(&clock).charge_once(once));
    assert_eq!([left(&once, 200).await, left(&once, 200).await, left(&once, 200).await], [4, 4, 4]);
}

#[tokio::test]
async fn a_restart_keeps_use_in_own_windows() {
    let clock = clock();
    let window = berlin(5).anchor(22);
    let layer = RateLimitLayer::new(month(&clock));
    assert_eq!(ask(&layer, "ada", Some(&window)).await.0, 200);
    let mut file = Vec::new();
    let _ = layer.snapshot(&mut file).unwrap();
    let next = RateLimitLayer::new(month(&clock));
    let _ = next.restore(&file[..]).unwrap();
    assert_eq!(ask(&next, "ada", Some(&window)).await, (200, format!("\"month\";r=3;t={}", 36 * HOUR)));
}

#[tokio::test]
async fn each_customer_has_its_limit_in_flight() {
    let in_flight = Policy::new("in-flight", Concurrency::new(2))
        .key(User::key())
        .limit_fn(|request| request.extensions().get::<Plan>()?.in_flight);
    let layer = RateLimitLayer::new(in_flight);
    let ask = async |user: &str, in_flight| send(&layer, user, Plan { window: None, in_flight }, 200).await;
    let mut held = Vec::new();
    for (user, limit, expected) in [("ada", Some(3), 3), ("bob", None, 2), ("cy", Some(1), 1)] {
        for left in (0..expected).rev() {
            let (status, headers, body) = ask(user, limit).await;
            assert_eq!(status, 200, "{user}");
            let fields = ["ratelimit-policy", "ratelimit"].map(|name| headers[name].to_str().unwrap());
            assert_eq!(fields[0], format!("\"in-flight\";q={expected};qu=\"concurrent-requests\""));
            assert_eq!(fields[1], format!("\"in-flight\";r={left}"));
            held.push(body);
        }
        let (status, headers, _) = ask(user, limit).await;
        assert_eq!((status, headers.get("retry-after")), (429, None), "{user}");
    }
    // Ada's plan grows and shrinks: her requests in flight stay.
    let (status, _, fourth) = ask("ada", Some(4)).await;
    assert_eq!(status, 200);
    held.drain(..2).for_each(drop);
    assert_eq!(ask("ada", Some(2)).await.0, 429, "two are in flight");
    drop(fourth);
    assert_eq!(ask("ada", Some(2)).await.0, 200);
    // The plan is paused, like a suspended quota.
    drop(held);
    let (status, headers, _) = ask("ada", Some(0)).await;
    assert_eq!((status, headers.get("retry-after")), (403, None));
    assert_eq!(headers["ratelimit"], "\"in-flight\";r=0");
    assert_eq!(ask("ada", Some(1)).await.0, 200);
}

#[test]
fn a_limiter_of_another_kind_is_rejected() {
    let error = RateLimitLayer::try_new(Policy::new("api", Quota::per_day(9)).window_fn(|_| None)).unwrap_err();
    assert!(matches!(error, PolicyError::Conflict { option: "window_fn", .. }), "{error}");
    let error = RateLimitLayer::try_new(Policy::new("api", CalendarWindow::daily(9)).limit_fn(|_| None)).unwrap_err();
    assert!(matches!(error, PolicyError::Conflict { option: "limit_fn", .. }), "{error}");
}
