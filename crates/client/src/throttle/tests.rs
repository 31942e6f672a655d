//! Costs and clones of a `ThrottleLayer`, and its behaviour when its limiter fails.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tower::{Layer, ServiceExt, service_fn};
use tower_sluice::limiter::{Answer, Ask, Description, IntoLimiter, Mode, Receipt, RequestEnd};
use tower_sluice::store::MemoryStore;
use tower_sluice::time::ManualClock;
use tower_sluice::{Decision, FailureMode, Limiter, LimiterError, Quota, RateLimiter};

use super::{ThrottleError, ThrottleLayer};
use crate::captured_log::Log;

type Reply = Result<&'static str, ThrottleError<Infallible>>;

async fn send(layer: &ThrottleLayer<u64>, request: u64) -> Reply {
    let service = service_fn(|_: u64| async { Ok::<_, Infallible>("done") });
    layer.layer(service).oneshot(request).await
}

fn is_rejected(answer: &Reply) -> bool {
    matches!(answer, Err(ThrottleError::Rejected { .. }))
}

#[tokio::test]
async fn a_cost_that_is_set_on_a_clone_is_charged_to_the_same_budget() {
    let bucket = tower_sluice::TokenBucket::new(Quota::per_hour(10));
    let limiter = RateLimiter::new(bucket, MemoryStore::default().with_clock(ManualClock::new()));
    let by_one = ThrottleLayer::new(limiter);
    let by_size = by_one.clone().cost_fn(|size| *size);

    assert_eq!(send(&by_size, 8).await.unwrap(), "done");
    assert_eq!(send(&by_one, 8).await.unwrap(), "done");
    assert!(is_rejected(&send(&by_size, 2).await), "one is left of ten");
    assert_eq!(send(&by_one, 2).await.unwrap(), "done");
    assert!(is_rejected(&send(&by_one, 2).await));
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
async fn the_failure_mode_decides_when_the_limiter_fails() {
    for answers_at_once in [true, false] {
        let layer = |broken: Broken| {
            ThrottleLayer::new(Arc::new(Broken { answers_at_once, ..broken })).cost_fn(|cost: &u64| *cost)
        };
        let fails = |answer: Reply| matches!(answer, Err(ThrottleError::Limiter(_)));

        assert_eq!(send(&layer(BROKEN), 1).await.unwrap(), "done");
        let retry = send(&layer(BROKEN), 2).await;
        assert!(matches!(retry, Err(ThrottleError::Rejected { retry_after: Some(wait) }) if wait.as_secs() == 7));
        assert!(fails(send(&layer(Broken { has_fallback: false, ..BROKEN }), 1).await));

        assert!(fails(send(&layer(BROKEN).on_failure(FailureMode::Reject), 1).await));
        assert_eq!(send(&layer(BROKEN).on_failure(FailureMode::Allow), 2).await.unwrap(), "done");
    }
}

#[tokio::test]
async fn a_closed_limiter_rejects_in_every_failure_mode() {
    for mode in [FailureMode::LocalFallback, FailureMode::Reject, FailureMode::Allow] {
        let closed = Arc::new(Broken { is_closed: true, ..BROKEN }).into_limiter();
        let layer = ThrottleLayer::new(closed).on_failure(mode);
        let answer = send(&layer, 1).await;
        assert!(matches!(answer, Err(ThrottleError::Limiter(error)) if error.is_closed()), "{mode:?}");
    }
}

#[tokio::test]
async fn the_beginning_of_an_outage_is_logged_once() {
    let (log, _guard) = Log::start();
    let layer = ThrottleLayer::new(Arc::new(BROKEN)).on_failure(FailureMode::Allow);
    let other_options = layer.clone().cost_fn(|cost: &u64| *cost);
    for layer in [&layer, &other_options] {
        assert_eq!(send(layer, 1).await.unwrap(), "done");
    }
    let lines = log.lines();
    let [line] = &lines[..] else { panic!("{lines:?}") };
    assert!(line.contains("WARN") && line.contains("limiter failed"), "{line}");
    assert!(line.contains("out of reach") && line.contains(r#"requests="pass uncounted""#), "{line}");
}

/// Admits all requests, and keeps how they end.
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

#[tokio::test]
async fn a_limiter_knows_how_a_request_has_ended() {
    let ends = Arc::new(Ends::default());
    let layer = ThrottleLayer::new(Arc::clone(&ends));
    let service = layer.layer(service_fn(async |request: u64| match request {
        0 => Ok("done"),
        1 => Err("broken"),
        _ => std::future::pending().await,
    }));
    assert_eq!(service.clone().oneshot(0).await.unwrap(), "done");
    assert!(service.clone().oneshot(1).await.is_err());
    let mut never = tokio_test::task::spawn(service.oneshot(2));
    assert!(never.poll().is_pending());
    drop(never);
    assert_eq!(*ends.0.lock().unwrap(), [RequestEnd::Served, RequestEnd::Failed, RequestEnd::Abandoned]);
}
