//! The parts that a `ThrottleLayer` shares, how requests wait and end, and its behaviour when a limiter fails.

use std::cell::Cell;
use std::convert::Infallible;
use std::error::Error;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::direct::On;
use tower_sluice::limiter::{Answer, Ask, Description, IntoLimiter, Mode, Receipt, RequestEnd};
use tower_sluice::policy::PolicyError;
use tower_sluice::rejection::Reason;
use tower_sluice::store::MemoryStore;
use tower_sluice::time::ManualClock;
use tower_sluice::{Decision, FailureMode, LeakyQueue, Limiter, LimiterError, Policy, Quota, RateLimiter, TokenBucket};

use super::{ThrottleError, ThrottleLayer};
use crate::captured_log::Log;

type Reply = Result<&'static str, ThrottleError<Infallible>>;

async fn send(layer: &ThrottleLayer<u64>, request: u64) -> Reply {
    let service = service_fn(|_: u64| async { Ok::<_, Infallible>("done") });
    layer.layer(service).oneshot(request).await
}

/// A policy that charges the cost in the request.
fn by_size(limiter: impl IntoLimiter) -> Policy<On<u64>> {
    Policy::on("size", limiter).cost_fn(|size| *size)
}

/// A rejection's reason, and its wait in seconds.
fn rejection(reply: &Reply) -> Option<(Reason, Option<u64>)> {
    match reply {
        Err(ThrottleError::Rejected(rejected)) => {
            Some((rejected.reason(), rejected.retry_after().map(|wait| wait.as_secs())))
        }
        _ => None,
    }
}

/// The error of the limiter, if that is why the request was rejected.
fn failure(reply: &Reply) -> Option<&LimiterError> {
    let error = reply.as_ref().err()?.source()?.downcast_ref();
    assert_eq!(rejection(reply), Some((Reason::LimiterFailed, None)));
    error
}

#[tokio::test]
async fn clones_share_budget_and_changes() {
    let bucket = || {
        let store = MemoryStore::default().with_clock(ManualClock::new());
        RateLimiter::new(TokenBucket::new(Quota::per_hour(10)), store)
    };
    let layer = ThrottleLayer::new(by_size(bucket()));
    let earlier = layer.layer(service_fn(|_: u64| async { Ok::<_, Infallible>("done") }));
    assert_eq!(send(&layer.clone(), 8).await.unwrap(), "done");
    // Ten per hour are one in six minutes.
    assert_eq!(rejection(&earlier.clone().oneshot(3).await), Some((Reason::LimitExceeded, Some(360))));

    layer.limits().replace(Policy::on("size", bucket())).unwrap();
    assert_eq!(earlier.clone().oneshot(8).await.unwrap(), "done", "it costs one");
    assert_eq!(send(&layer.clone(), 8).await.unwrap(), "done");
    assert!(rejection(&earlier.oneshot(8).await).is_some());
}

#[test]
fn unenforceable_policies_make_no_layer() {
    let none: Vec<Policy<On<u64>>> = Vec::new();
    assert_eq!(ThrottleLayer::try_new(none).unwrap_err(), PolicyError::NoPolicy);
}

/// Two threads often cannot read a request body at once.
#[tokio::test]
async fn requests_need_not_be_sync() {
    let layer = ThrottleLayer::new(Policy::on("all", Quota::per_hour(1)));
    let service = layer.layer(service_fn(async |request: Cell<u64>| Ok::<_, Infallible>(request.get())));
    assert_eq!(tokio::spawn(service.oneshot(Cell::new(7))).await.unwrap().unwrap(), 7);
}

/// Fails at every charge. Its fallback, if it has one, admits requests that cost one.
struct Broken {
    has_fallback: bool,
    answers_at_once: bool,
    is_closed: bool,
}

const BROKEN: Broken = Broken { has_fallback: true, answers_at_once: true, is_closed: false };

impl Limiter for Broken {
    fn decide(&self, ask: &Ask<'_>) -> Answer {
        let answer = match ask.mode() {
            Mode::Fallback if ask.cost() == 1 => Ok(Decision::allow(1, 0)),
            Mode::Fallback => Ok(Decision::reject(1, 0, Some(Duration::from_secs(7)))),
            _ if self.is_closed => Err(LimiterError::closed("shut down")),
            _ => Err(LimiterError::new("out of reach")),
        };
        if self.answers_at_once { Answer::Ready(answer) } else { Answer::Pending(Box::pin(async { answer })) }
    }

    fn describe(&self) -> Description {
        let description = Description::new();
        if self.has_fallback { description.answering(Mode::Fallback) } else { description }
    }

    fn refund(&self, _: &Ask<'_>, _: Receipt, _: u64) {
        unreachable!("nothing is held");
    }
}

#[tokio::test]
async fn failure_modes_apply_when_limiters_fail() {
    for answers_at_once in [true, false] {
        let policy = |broken: Broken| by_size(Arc::new(Broken { answers_at_once, ..broken }));
        let send = async |policy: Policy<On<u64>>, size| send(&ThrottleLayer::new(policy), size).await;

        assert_eq!(send(policy(BROKEN), 1).await.unwrap(), "done");
        let retry = send(policy(BROKEN), 2).await;
        assert_eq!(rejection(&retry), Some((Reason::LimitExceeded, Some(7))));
        let failed = send(policy(Broken { has_fallback: false, ..BROKEN }), 1).await;
        assert_eq!(failure(&failed).unwrap().to_string(), "out of reach");
        assert_eq!(failed.unwrap_err().to_string(), "the limit `size` cannot be checked");

        assert!(failure(&send(policy(BROKEN).on_failure(FailureMode::Reject), 1).await).is_some());
        assert_eq!(send(policy(BROKEN).on_failure(FailureMode::Allow), 2).await.unwrap(), "done");
    }
}

#[tokio::test]
async fn closed_limiters_reject_in_every_mode() {
    for mode in [FailureMode::LocalFallback, FailureMode::Reject, FailureMode::Allow] {
        let closed = Arc::new(Broken { is_closed: true, ..BROKEN }).into_limiter();
        let reply = send(&ThrottleLayer::new(by_size(closed).on_failure(mode)), 1).await;
        assert!(failure(&reply).is_some_and(LimiterError::is_closed), "{mode:?}");
    }
}

#[tokio::test]
async fn an_outages_beginning_is_logged_once() {
    let (log, _guard) = Log::start();
    let layer = ThrottleLayer::new(by_size(Arc::new(BROKEN)).on_failure(FailureMode::Allow));
    for layer in [&layer, &layer.clone()] {
        assert_eq!(send(layer, 1).await.unwrap(), "done");
    }
    let lines = log.lines();
    let [line] = &lines[..] else { panic!("{lines:?}") };
    assert!(line.contains("WARN") && line.contains("limiter failed") && line.contains(r#"policy="size""#), "{line}");
    assert!(line.contains("out of reach") && line.contains(r#"requests="pass uncounted""#), "{line}");
}

/// Admits all requests, at once or not, and keeps how they end.
struct Ends {
    answers_at_once: bool,
    ends: Mutex<Vec<RequestEnd>>,
}

impl Limiter for Ends {
    fn decide(&self, _: &Ask<'_>) -> Answer {
        let answer = Ok(Decision::allow(1, 1));
        if self.answers_at_once { Answer::Ready(answer) } else { Answer::Pending(Box::pin(async { answer })) }
    }

    fn release(&self, _: &Ask<'_>, _: Receipt, _: u64, end: RequestEnd) {
        self.ends.lock().unwrap().push(end);
    }

    fn describe(&self) -> Description {
        Description::new().holding()
    }
}

#[tokio::test]
async fn limiters_know_how_requests_ended() {
    for answers_at_once in [true, false] {
        let ends = Arc::new(Ends { answers_at_once, ends: Mutex::default() });
        let layer = ThrottleLayer::new(Policy::on("ends", Arc::clone(&ends)));
        let service = layer.layer(service_fn(async |request: u64| match request {
            0 => Ok("done"),
            1 => Err("broken"),
            _ => std::future::pending().await,
        }));
        assert_eq!(service.clone().oneshot(0).await.unwrap(), "done");
        assert!(service.clone().oneshot(1).await.is_err());
        let mut never = tokio_test::task::spawn(service.oneshot(2));
        assert!(never.poll().is_pending());
        assert_eq!(*ends.ends.lock().unwrap(), [RequestEnd::Served, RequestEnd::Failed]);
        drop(never);
        assert_eq!(*ends.ends.lock().unwrap(), [RequestEnd::Served, RequestEnd::Failed, RequestEnd::Abandoned]);
    }
}

/// A request that is dropped while it waits does not call the inner service.
#[tokio::test(start_paused = true)]
async fn dropped_waiters_leave_the_queue() {
    let called = Arc::new(AtomicU32::new(0));
    let counting = Arc::clone(&called);
    let queue = Arc::new(LeakyQueue::new(Quota::per_second(1)));
    let layer = ThrottleLayer::new(Policy::on("pace", Arc::clone(&queue)));
    let service = layer.layer(service_fn(move |_: u64| {
        counting.fetch_add(1, Ordering::Relaxed);
        async { Ok::<_, Infallible>("done") }
    }));
    service.clone().oneshot(1).await.unwrap();
    let mut waits = tokio_test::task::spawn(service.clone().oneshot(2));
    assert!(waits.poll().is_pending());
    assert_eq!((queue.waiting(), called.load(Ordering::Relaxed)), (1, 1));
    drop(waits);
    assert_eq!(queue.waiting(), 0);
    let start = tokio::time::Instant::now();
    service.oneshot(3).await.unwrap();
    assert_eq!((start.elapsed(), called.load(Ordering::Relaxed)), (Duration::from_secs(1), 2));
}
