//! Decisions without a layer: on the program's own values, by the policies that layers have.

use std::convert::Infallible;
use std::error::Error;
use std::future::ready;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::direct::{Limits, On, Rejected};
use tower_sluice::key::{HeaderKey, KeyCharge, KeyError, KeyExtractor, Mark, Marks};
use tower_sluice::limiter::{Answer, Ask, Description, IntoLimiter, Receipt, RequestEnd};
use tower_sluice::policy::ResponseHead;
use tower_sluice::rejection::Reason;
use tower_sluice::store::MemoryStore;
use tower_sluice::time::ManualClock;
use tower_sluice::{
    Concurrency, Decision, FailureMode, FixedWindow, LeakyQueue, Limiter, LimiterError, Overload, PartitionKey,
    Penalty, Policy, Quota, RateLimitLayer, RateLimiter, Rejection, TokenBucket, Verdict,
};

/// A customer's job, which costs rows.
struct Job {
    customer: u64,
    rows: u64,
}

const fn job(customer: u64, rows: u64) -> Job {
    Job { customer, rows }
}

/// A bucket on a clock that a test moves.
fn bucket(quota: Quota, clock: &ManualClock) -> Arc<dyn Limiter> {
    Arc::new(RateLimiter::new(TokenBucket::new(quota), MemoryStore::default().with_clock(clock.clone())))
}

fn left(limits: &Limits<Job>, policy: &str, customer: u64) -> u64 {
    let key = tower_sluice::PartitionKey::from(customer);
    let peeked = limits.peek(policy, &key);
    futures_util::FutureExt::now_or_never(peeked).unwrap().unwrap().decision().remaining()
}

fn reject(limits: &Limits<Job>, job: &Job) -> Box<Rejected> {
    limits.decide(job).at_once().unwrap().expect_err("it is rejected")
}

#[test]
fn each_key_has_a_budget() {
    let rows = Policy::on("rows", Quota::per_hour(100)).key_by(|job: &Job| job.customer).cost_fn(|job| job.rows);
    let limits = Limits::new(rows);
    let admission = limits.decide(&job(1, 60)).at_once().unwrap().unwrap();
    assert_eq!(admission.verdict().unwrap().policies()[0].decision().remaining(), 40);
    admission.finish();
    let rejected = reject(&limits, &job(1, 60));
    assert_eq!(rejected.reason(), Reason::LimitExceeded);
    // 20 rows more take 12 minutes.
    assert!(rejected.retry_after().unwrap() <= Duration::from_secs(720), "{rejected}");
    assert!(rejected.to_string().starts_with("rejected by `rows`; retry in "), "{rejected}");
    limits.decide(&job(2, 60)).at_once().unwrap().unwrap().finish();
    let rejected = reject(&limits, &job(3, 101));
    assert_eq!((rejected.retry_after(), rejected.may_retry()), (None, false));
    assert_eq!(rejected.to_string(), "rejected by `rows`, and no wait helps");
    // As an operator types it.
    let typed = futures_util::FutureExt::now_or_never(limits.peek("rows", "2")).unwrap().unwrap();
    assert_eq!(typed.decision().remaining(), 40);
}

#[test]
fn a_value_charges_all_policies_or_none() {
    let all = Policy::on("all", Quota::per_hour(100)).cost_fn(|job: &Job| job.rows);
    let own = Policy::on("own", Quota::per_hour(10)).key_by(|job: &Job| job.customer).cost_fn(|job| job.rows);
    let limits = Limits::new([all, own]);
    limits.decide(&job(1, 10)).at_once().unwrap().unwrap().finish();
    assert_eq!(reject(&limits, &job(1, 1)).verdict().violated().count(), 1);
    limits.decide(&job(2, 10)).at_once().unwrap().unwrap().finish();
    let shared = futures_util::FutureExt::now_or_never(limits.peek("all", "(shared)")).unwrap().unwrap();
    assert_eq!(shared.decision().remaining(), 80);
}

#[test]
fn alternatives_are_charged_in_order() {
    let own = |name, limit| Policy::on(name, FixedWindow::new(Quota::per_hour(limit))).key_by(|job: &Job| job.customer);
    let limits = Limits::new(own("included", 1).or_else(own("overage", 2)));
    for (included, overage) in [(0, 2), (0, 1), (0, 0)] {
        limits.decide(&job(1, 1)).at_once().unwrap().unwrap().finish();
        assert_eq!((left(&limits, "included", 1), left(&limits, "overage", 1)), (included, overage));
    }
    assert_eq!(reject(&limits, &job(1, 1)).verdict().violated().count(), 2);
}

#[test]
fn an_admission_holds_units_until_over() {
    let limits = Limits::new(Policy::on("in-flight", Concurrency::new(2)).key_by(|job: &Job| job.customer));
    let decide = || limits.decide(&job(1, 1)).at_once().unwrap();
    let (first, second) = (decide().unwrap(), decide().unwrap());
    let rejected = decide().unwrap_err();
    assert_eq!((rejected.retry_after(), rejected.may_retry()), (None, true));
    first.finish();
    let third = decide().unwrap();
    drop(second);
    let fourth = decide().unwrap();
    third.fail();
    fourth.finish();
    assert_eq!(left(&limits, "in-flight", 1), 2);
}

#[test]
fn a_cost_is_settled_when_known() {
    let rows = Policy::on("rows", FixedWindow::new(Quota::per_hour(100)))
        .key_by(|job: &Job| job.customer)
        .cost(50)
        .settle_by_handler();
    let limits = Limits::new(rows);
    let admission = limits.decide(&job(1, 0)).at_once().unwrap().unwrap();
    assert_eq!(left(&limits, "rows", 1), 50);
    admission.settle("rows", 7).unwrap();
    assert!(admission.settle("words", 7).is_err());
    admission.finish();
    assert_eq!(left(&limits, "rows", 1), 93);
    // By a task that goes on, and by an abandoned one.
    let admission = limits.decide(&job(1, 0)).at_once().unwrap().unwrap();
    let meter = admission.settlement().unwrap().meter_all();
    meter.add(2);
    meter.add(1);
    drop(admission);
    assert_eq!(left(&limits, "rows", 1), 90);
    // The estimate stays.
    limits.decide(&job(1, 0)).at_once().unwrap().unwrap().finish();
    assert_eq!(left(&limits, "rows", 1), 40);
}

#[test]
fn all_policies_settle_a_cost() {
    let policy = |name| Policy::on(name, FixedWindow::new(Quota::per_hour(100))).key_by(|job: &Job| job.customer);
    let limits = Limits::new([
        policy("rows").cost(50).settle_by_handler(),
        policy("cells").cost(50).settle_by_handler(),
        policy("jobs"),
    ]);
    let admission = limits.decide(&job(1, 0)).at_once().unwrap().unwrap();
    assert!(admission.awaits_end());
    assert_eq!(admission.settle_all(7), 2);
    let names: Vec<_> = admission.into_verdict().unwrap().policies().iter().map(|it| it.name().to_owned()).collect();
    assert_eq!(names, ["rows", "cells", "jobs"]);
    assert_eq!(["rows", "cells", "jobs"].map(|policy| left(&limits, policy, 1)), [93, 93, 99]);
    let admission = Limits::new(policy("jobs")).decide(&job(1, 0)).at_once().unwrap().unwrap();
    assert_eq!((admission.awaits_end(), admission.settle_all(7)), (false, 0));
}

#[test]
fn an_outcome_decides_the_charge() {
    struct Login {
        user: &'static str,
    }
    let failed = Policy::with_outcome("failed", FixedWindow::new(Quota::per_hour(2)))
        .key_by(|login: &Login| login.user)
        .charge_when(|is_right: &bool| !is_right);
    let limits: Limits<Login, bool> = Limits::new(failed);
    let login = |is_right| {
        let admission = limits.decide(&Login { user: "ada" }).at_once().unwrap();
        admission.map(|admission| admission.finish_with(&is_right))
    };
    for _ in 0..10 {
        login(true).unwrap();
    }
    login(false).unwrap();
    login(false).unwrap();
    assert_eq!(login(true).unwrap_err().reason(), Reason::LimitExceeded);
}

#[test]
fn a_premature_key_is_banned() {
    let clock = ManualClock::new();
    let rate = Policy::on("rate", bucket(Quota::per_second(1), &clock))
        .key_by(|job: &Job| job.customer)
        .penalty(Penalty::new(Quota::per_minute(2), Duration::from_secs(600)).with_clock(clock.clone()));
    let limits = Limits::new(rate);
    limits.decide(&job(1, 1)).at_once().unwrap().unwrap().finish();
    let reasons: Vec<_> = (0..6).map(|_| reject(&limits, &job(1, 1)).reason()).collect();
    assert_eq!(reasons.first(), Some(&Reason::LimitExceeded));
    assert_eq!(reasons.last(), Some(&Reason::Banned));
    limits.decide(&job(2, 1)).at_once().unwrap().unwrap().finish();
}

#[tokio::test(start_paused = true)]
async fn values_wait_for_their_turn() {
    let limits =
        Limits::new(Policy::on("pace", LeakyQueue::new(Quota::per_second(10))).key_by(|job: &Job| job.customer));
    let begin = tokio::time::Instant::now();
    for _ in 0..11 {
        limits.decide(&job(1, 1)).await.unwrap().finish();
    }
    assert_eq!(begin.elapsed(), Duration::from_secs(1));
    let waiting = limits.decide(&job(1, 1));
    assert!(waiting.at_once().is_none(), "it has left the queue");
    tokio::time::advance(Duration::from_millis(100)).await;
    assert!(limits.decide(&job(1, 1)).at_once().is_some());
}

#[tokio::test(start_paused = true)]
async fn waiting_values_keep_their_place() {
    let limits = Limits::new(Policy::on("pace", LeakyQueue::new(Quota::per_second(1)).max_queue(2)));
    let first = limits.decide(&job(1, 1));
    assert!(!first.is_waiting());
    first.at_once().unwrap().unwrap().finish();
    let (second, third) = (limits.decide(&job(1, 1)), limits.decide(&job(1, 1)));
    assert!(second.is_waiting() && third.is_waiting());
    let begin = tokio::time::Instant::now();
    second.await.unwrap().finish();
    assert_eq!(begin.elapsed(), Duration::from_secs(1));
    third.await.unwrap().finish();
    assert_eq!(begin.elapsed(), Duration::from_secs(2));
}

#[test]
fn a_failed_limiter_is_the_rejections_source() {
    struct Broken;

    impl Limiter for Broken {
        fn decide(&self, _: &Ask<'_>) -> Answer {
            LimiterError::new("out of reach").with_source("connection refused").into()
        }
    }

    let broken = |mode| Limits::new(Policy::on("shared", Arc::new(Broken)).on_failure(mode));
    for mode in [FailureMode::LocalFallback, FailureMode::Reject] {
        let rejected = reject(&broken(mode), &job(1, 1));
        assert_eq!((rejected.reason(), rejected.retry_after()), (Reason::LimiterFailed, None));
        assert_eq!(rejected.to_string(), "the limit `shared` cannot be checked");
        assert_eq!(format!("{rejected:#}"), "the limit `shared` cannot be checked: out of reach: connection refused");
        let source = rejected.source().unwrap().downcast_ref::<LimiterError>().unwrap();
        assert_eq!(source.to_string(), "out of reach");
    }
    broken(FailureMode::Allow).decide(&job(1, 1)).at_once().unwrap().unwrap().finish();
}

/// Its waiters end, and no failure mode makes up for it.
#[tokio::test]
async fn a_closed_queue_always_rejects() {
    for mode in [FailureMode::LocalFallback, FailureMode::Reject, FailureMode::Allow] {
        let limits = Limits::new(Policy::on("pace", LeakyQueue::new(Quota::per_second(1))).on_failure(mode));
        limits.decide(&job(1, 1)).await.unwrap().finish();
        let waits = limits.decide(&job(1, 1));
        limits.close();
        for rejected in [waits.await.unwrap_err(), reject(&limits, &job(1, 1))] {
            assert_eq!(rejected.reason(), Reason::LimiterFailed);
            assert!(rejected.source().unwrap().downcast_ref::<LimiterError>().unwrap().is_closed(), "{mode:?}");
            assert!(!rejected.may_retry(), "a closed queue stays closed");
        }
    }
}

#[test]
fn policies_are_replaced_while_they_run() {
    let rows = |limit| Policy::on("rows", Quota::per_hour(limit)).key_by(|job: &Job| job.customer);
    let limits = Limits::new(rows(10));
    for _ in 0..5 {
        limits.decide(&job(1, 1)).at_once().unwrap().unwrap().finish();
    }
    limits.replace(rows(50)).unwrap();
    assert_eq!(left(&limits, "rows", 1), 45);
    assert!(limits.replace(rows(50).cost(51)).is_err());
}

/// A preflight lacks credentials, so it could not be charged to any client.
#[tokio::test]
async fn exempt_preflights_are_not_charged() {
    let layer = RateLimitLayer::builder(Policy::new("all", FixedWindow::new(Quota::per_hour(1))));
    let limits = layer.exempt_preflights(Quota::per_hour(2)).build().handle();
    let preflight = Request::options("/").header("origin", "https://page.example");
    let (preflight, ()) = preflight.header("access-control-request-method", "PUT").body(()).unwrap().into_parts();
    for is_admitted in [true, true, true, false] {
        assert_eq!(limits.decide(&(&preflight).into()).await.is_ok(), is_admitted);
    }
}

/// A WebSocket has one request, and many messages, which draw on its layer's budget.
#[tokio::test]
async fn a_layers_policies_decide_on_unseen_requests() {
    let per_key = Policy::new("per-key", FixedWindow::new(Quota::per_hour(5))).key(HeaderKey::from_static("x-key"));
    let layer = RateLimitLayer::new(per_key);
    let limits = layer.handle();
    let (head, ()) = Request::builder().header("x-key", "ada").body(()).unwrap().into_parts();
    for _ in 0..5 {
        limits.decide(&(&head).into()).await.unwrap().finish();
    }
    let rejection = limits.decide(&(&head).into()).await.unwrap_err();
    assert_eq!((rejection.status(), rejection.reason()), (StatusCode::TOO_MANY_REQUESTS, Reason::LimitExceeded));
    let request = Request::builder().header("x-key", "ada").body(()).unwrap();
    let service = tower::Layer::layer(
        &layer,
        tower::service_fn(|_: Request<()>| async { Ok::<_, std::convert::Infallible>(Response::new(())) }),
    );
    assert_eq!(tower::ServiceExt::oneshot(service, request).await.unwrap().status(), 429);
}

#[tokio::test]
async fn an_unseen_requests_response_is_its_outcome() {
    let failed = Policy::new("failed", FixedWindow::new(Quota::per_hour(2)))
        .charge_when(|response| response.status() == StatusCode::UNAUTHORIZED);
    let limits = RateLimitLayer::new(failed).handle();
    let (head, ()) = Request::new(()).into_parts();
    for status in [200, 401, 200, 401] {
        let response = Response::builder().status(status).body(()).unwrap();
        limits.decide(&(&head).into()).await.unwrap().finish_with(&ResponseHead::from(&response));
    }
    assert!(limits.decide(&(&head).into()).await.is_err());
}

/// Records how requests end.
#[derive(Default)]
struct Ends(Mutex<Vec<RequestEnd>>);

impl Limiter for Ends {
    fn decide(&self, _: &Ask<'_>) -> Answer {
        Decision::allow(1, 1).into()
    }

    fn release(&self, _: &Ask<'_>, _: Receipt, _: u64, end: RequestEnd) {
        self.0.lock().unwrap().push(end);
    }

    fn describe(&self) -> Description {
        Description::new().holding()
    }
}

/// The limit in flight learns how the request ended.
#[tokio::test]
async fn a_response_reports_the_requests_end() {
    let ends = Arc::new(Ends::default());
    let alone = RateLimitLayer::new(Policy::new("ends", Arc::clone(&ends)));
    let settled = Policy::new("bytes", FixedWindow::new(Quota::per_hour(1_000))).cost(100).settle_by_content_bytes();
    let with_charges = RateLimitLayer::new([Policy::new("ends", Arc::clone(&ends)), settled]);
    let (head, ()) = Request::new(()).into_parts();
    for layer in [&alone, &with_charges] {
        for status in [200, 503] {
            let response = Response::builder().status(status).body(()).unwrap();
            let admission = layer.handle().decide(&(&head).into()).await.unwrap();
            admission.finish_with(&ResponseHead::from(&response));
        }
        assert_eq!(std::mem::take(&mut *ends.0.lock().unwrap()), [RequestEnd::Served, RequestEnd::Failed]);
    }
    // The response's byte count is not known, so the estimates stay.
    let left = with_charges.handle().peek("bytes", "(shared)").await.unwrap().decision().remaining();
    assert_eq!(left, 800);
}

/// A value that is dropped was abandoned.
#[test]
fn a_limit_learns_how_values_ended() {
    let ends = Arc::new(Ends::default());
    let settled = Policy::on("rows", FixedWindow::new(Quota::per_hour(1_000))).settle_by_handler();
    let with_charges = Limits::new([Policy::on("ends", Arc::clone(&ends)), settled]);
    for limits in [Limits::new(Policy::on("ends", Arc::clone(&ends))), with_charges] {
        let decide = || limits.decide(&job(1, 1)).at_once().unwrap().unwrap();
        assert!(decide().awaits_end());
        decide().finish();
        decide().fail();
        assert!(decide().into_verdict().is_some());
        let ends = std::mem::take(&mut *ends.0.lock().unwrap());
        assert_eq!(ends, [RequestEnd::Abandoned, RequestEnd::Served, RequestEnd::Failed, RequestEnd::Served]);
    }
}

#[test]
fn threads_share_a_budget_exactly() {
    let limits = Limits::new(Policy::on("all", FixedWindow::new(Quota::per_day(1_000))).cost_fn(|job: &Job| job.rows));
    let admitted = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..1_000 {
                    if let Some(Ok(admission)) = limits.decide(&job(1, 1)).at_once() {
                        admitted.fetch_add(1, Ordering::Relaxed);
                        admission.finish();
                    }
                }
            });
        }
    });
    assert_eq!(admitted.into_inner(), 1_000);
}

/// A value, and the marks by which its policies are found.
struct Marked {
    tenant: u64,
    marks: Marks,
}

/// One tenant's values; counts how often it is asked.
struct OfTenant(u64, Arc<AtomicU64>);

impl KeyExtractor<On<Marked>> for OfTenant {
    fn marks(&self) -> Vec<Mark> {
        vec![Mark::of(&self.0)]
    }

    fn extract(&self, value: &Marked) -> Result<PartitionKey, KeyError> {
        Ok(value.tenant.into())
    }

    fn has_several(&self) -> bool {
        true
    }

    fn extract_all(&self, value: &Marked) -> Result<Vec<KeyCharge>, KeyError> {
        self.1.fetch_add(1, Ordering::Relaxed);
        Ok((value.tenant == self.0).then(|| KeyCharge::new(value.tenant.into())).into_iter().collect())
    }
}

#[test]
fn only_policies_with_matching_marks_are_asked() {
    let asked = Arc::new(AtomicU64::new(0));
    let policy = |tenant: u64| {
        let limiter = FixedWindow::new(Quota::per_hour(tenant));
        Policy::on(format!("tenant-{tenant}"), limiter).key(OfTenant(tenant, Arc::clone(&asked)))
    };
    let limits =
        Limits::builder((1..=1_000).map(policy).collect::<Vec<_>>()).marks(|value: &Marked| &value.marks).build();
    let value = |tenant: u64| Marked { tenant, marks: [Mark::of(&tenant)].into_iter().collect() };
    for _ in 0..3 {
        limits.decide(&value(3)).at_once().unwrap().unwrap().finish();
    }
    let rejected = limits.decide(&value(3)).at_once().unwrap().unwrap_err();
    assert_eq!(rejected.verdict().violated().next().unwrap().name(), "tenant-3");
    assert_eq!(asked.load(Ordering::Relaxed), 4);
    let shared = limits.key("tenant-3", "(shared)").unwrap();
    assert_eq!(
        (&shared, limits.key_text("tenant-3", &shared).unwrap()),
        (&PartitionKey::SHARED, "(shared)".to_owned())
    );
    assert_ne!(limits.key("tenant-3", "\"(shared)\"").unwrap(), shared);
    // A value without marks meets no policy that has some.
    let unmarked = Marked { tenant: 3, marks: std::iter::empty().collect() };
    assert_eq!(limits.decide(&unmarked).at_once().unwrap().unwrap().into_verdict().unwrap().policies().len(), 0);
    assert_eq!(asked.load(Ordering::Relaxed), 4);
}

#[test]
fn a_hook_learns_of_limited_keys() {
    let (send, events) = std::sync::mpsc::channel();
    let policy = Policy::on("rows", Quota::per_hour(1)).key_by(|job: &Job| job.customer);
    let limits = Limits::builder(policy)
        .on_transition(move |event| send.send((event.policy().to_owned(), event.key_text())).unwrap())
        .build();
    limits.decide(&job(7, 1)).at_once().unwrap().unwrap().finish();
    assert!(events.try_recv().is_err());
    let _ = reject(&limits, &job(7, 1));
    assert_eq!(events.try_recv().unwrap(), ("rows".to_owned(), Some("7".to_owned())));
}

/// If units are in flight, or never suffice, no estimate says when the budget is full again. Each rejection was an
/// event.
#[test]
fn a_key_in_want_is_one_event() {
    let events = |policy: Policy<On<Job>>| {
        let (send, events) = std::sync::mpsc::channel();
        let limits = Limits::builder(policy.key_by(|job: &Job| job.customer).cost_fn(|job| job.rows))
            .on_transition(move |event| send.send(event.key_text()).unwrap())
            .build();
        let held = limits.decide(&job(1, 1)).at_once().unwrap().unwrap();
        (0..4).for_each(|_| drop(reject(&limits, &job(1, 500))));
        drop(held);
        events.try_iter().count()
    };
    assert_eq!(events(Policy::on("in-flight", Concurrency::new(1))), 1);
    assert_eq!(events(Policy::on("rows", TokenBucket::new(Quota::per_hour(100)))), 1);
}

/// A service over HTTP may have policies on its own values.
#[test]
fn a_values_rejection_is_one_over_http() {
    let rejection = |limits: Limits<Job>| {
        let rejected = (0..2).find_map(|_| limits.decide(&job(1, 2)).at_once().unwrap().err()).unwrap();
        let reason = rejected.reason();
        let rejection = Rejection::from(*rejected);
        assert_eq!(rejection.reason(), reason);
        (rejection.status().as_u16(), rejection.detail().into_owned())
    };
    let own = |limiter: Arc<dyn Limiter>| Policy::on("own", limiter).key_by(|job: &Job| job.customer);
    let clock = ManualClock::new();
    let bucket = |limit| bucket(Quota::per_hour(limit), &clock);
    let text = |status: u16, detail: &str| (status, detail.to_owned());
    assert_eq!(rejection(Limits::new(own(bucket(1)))), text(429, "The limit is used up; retry in 1 hour."));
    assert_eq!(
        rejection(Limits::new(own(bucket(1)).cost_fn(|job| job.rows))),
        text(429, "The request costs more than is ever admitted at once; do not retry it.")
    );
    assert_eq!(
        rejection(Limits::new(own(bucket(1)).quota_fn(|_| Some(Quota::suspended())))),
        text(403, "The quota is suspended; do not retry.")
    );
    assert_eq!(
        rejection(Limits::new(Policy::on("all", bucket(1)))),
        text(503, "The limit is used up; retry in 1 hour.")
    );
    let held = Limits::new(own(Concurrency::new(1).into_limiter()));
    let _first = held.decide(&job(1, 1)).at_once().unwrap().unwrap();
    assert_eq!(rejection(held), text(429, "Too many requests are in flight; retry when one of them has ended."));
    let closed = Limits::new(own(LeakyQueue::new(Quota::per_hour(1)).into_limiter()));
    closed.close();
    assert_eq!(rejection(closed), text(503, "The rate limit `own` has been closed and queues no more requests."));
}

/// Compares a layer's answers without a service to its service's answers, for equal requests.
#[tokio::test]
async fn a_layer_answers_as_its_service_does() {
    let clock = ManualClock::new();
    let layer = || {
        let own = Policy::new("own", bucket(Quota::per_minute(3), &clock))
            .key(HeaderKey::new(http::HeaderName::from_static("x-user")));
        let paid = Policy::new("paid", bucket(Quota::per_hour(4), &clock))
            .key(HeaderKey::new(http::HeaderName::from_static("x-user")))
            .charge_when(|response: &ResponseHead<'_>| response.status() != StatusCode::NOT_FOUND);
        let held = Policy::new("in-flight", Concurrency::new(9));
        RateLimitLayer::builder([own, paid, held]).verdict().build()
    };
    let (served, asked) = (layer(), layer());
    let status = |number: u64| if number % 3 == 0 { StatusCode::NOT_FOUND } else { StatusCode::OK };
    let mut rejected = 0;
    for number in 0..40 {
        let request = || {
            let request =
                Request::builder().method(["GET", "HEAD", "POST"][usize::try_from(number % 3).unwrap()]).uri("/");
            let user = ["a", "b", ""][usize::try_from(number % 7 % 3).unwrap()];
            let request = if user.is_empty() { request } else { request.header("x-user", user) };
            request.body(()).unwrap()
        };
        let respond = move || {
            let mut response = Response::new(Full::new(Bytes::from_static(b"tea")));
            *response.status_mut() = status(number);
            response
        };
        let service = service_fn(move |_: Request<()>| ready(Ok::<_, Infallible>(respond())));
        let by_service = described(served.layer(service).oneshot(request()).await.unwrap()).await;
        let handle = asked.handle();
        let by_answer = match handle.answer(&(&request()).into()).await {
            Ok(admission) => described(admission.respond(respond())).await,
            Err(response) => described(response).await,
        };
        assert_eq!(by_service, by_answer, "{number}");
        rejected += u64::from(by_answer.0 == 429);
        clock.advance(Duration::from_secs(number % 5));
    }
    assert!((5..35).contains(&rejected), "{rejected}");
}

/// A turn in a queue, and a peek at a request head that waited for it.
#[tokio::test(start_paused = true)]
async fn a_layer_answers_after_a_turn() {
    let queue = LeakyQueue::new(Quota::per_second(1)).max_queue(1);
    let layer = RateLimitLayer::new(Policy::new("queue", queue));
    let (handle, request) = (layer.handle(), Request::new(()));
    let head = tower_sluice::RequestHead::from(&request);
    let begin = tokio::time::Instant::now();
    let [first, second, third] = [(); 3].map(|()| handle.answer(&head));
    assert!(first.await.is_ok() && begin.elapsed().is_zero());
    let response = third.await.unwrap_err();
    assert_eq!(response.status(), 503);
    assert!(second.await.unwrap().respond(Response::new(())).headers().contains_key("ratelimit"));
    assert_eq!(begin.elapsed().as_secs(), 1);
}

/// Everything that a client and a handler see in a response.
async fn described<B>(
    response: Response<B>,
) -> (u16, Vec<(String, String)>, Vec<u8>, Vec<(String, bool, u64, Duration)>)
where
    B: http_body::Body<Error: std::fmt::Debug>,
{
    let (head, body) = response.into_parts();
    let fields = head.headers.iter().map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()));
    let decided = head.extensions.get::<Verdict>().unwrap().policies().iter();
    let decided = decided.map(|policy| {
        let decision = policy.decision();
        (policy.name().to_owned(), decision.is_allowed(), decision.remaining(), decision.reset_after())
    });
    (head.status.as_u16(), fields.collect(), body.collect().await.unwrap().to_bytes().to_vec(), decided.collect())
}

/// For the second such request, a layer sends a reply that all of them share. Here, each has its rejection.
#[tokio::test(start_paused = true)]
async fn decide_rejects_shed_requests() {
    let overload = Overload::new().limits(1..=1).starting_at(1).max_queue(0);
    let limits = RateLimitLayer::new(Policy::new("overload", overload)).handle();
    let (request, ()) = Request::new(()).into_parts();
    let decide = || limits.decide(&(&request).into()).at_once().unwrap();
    let admission = decide().unwrap();
    for _ in 0..2 {
        assert_eq!(decide().err().unwrap().reason(), Reason::Overloaded);
        assert_eq!(limits.answer(&(&request).into()).await.err().unwrap().status(), StatusCode::SERVICE_UNAVAILABLE);
    }
    admission.finish();
    assert!(decide().is_ok());
}
