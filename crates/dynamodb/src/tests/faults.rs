//! Faults between a process and DynamoDB: each is an error within the timeout, and never a rejection.

use std::error::Error;
use std::sync::Arc;

use tokio::time::Instant;
use tower_sluice::Limiter;
use tower_sluice::algorithm::{FixedWindow, SlidingWindow, TokenBucket};
use tower_sluice::limiter::Ask;
use tower_sluice::store::BreakerState;

use super::service::{Counts, Fate};
use super::*;

const TIMEOUT: Duration = Duration::from_millis(100);

/// A process with the usual timeout, whose clock has been found to be right.
async fn process() -> (Service, ManualClock, Dynamo, Over<TokenBucket>) {
    let (service, clock) = service().await;
    let dynamo = dynamo(&service, &clock).timeout(TIMEOUT);
    let limiter = limiter(&dynamo, TokenBucket::new(per_day(10)));
    assert!(ask(&limiter).await.unwrap().is_allowed());
    service.forget_counts();
    (service, clock, dynamo, limiter)
}

/// Asks once while all requests have this fate; then requests succeed again.
async fn fails_by(fate: Fate) -> (FaultKind, Duration, u32) {
    let (service, _, _, limiter) = process().await;
    service.all(fate);
    let begun = Instant::now();
    let kind = kind(&ask(&limiter).await.unwrap_err());
    let took = begun.elapsed();
    let sent = service.counts().writes;
    service.all(Fate::Answered);
    assert!(ask(&limiter).await.unwrap().is_allowed(), "after {fate:?}");
    (kind, took, sent)
}

/// Each request is sent once.
#[tokio::test(start_paused = true)]
async fn each_failure_has_a_kind() {
    for (fate, expected) in [
        (Fate::Fails(400, "ProvisionedThroughputExceededException"), FaultKind::Throttled),
        (Fate::Fails(400, "ThrottlingException"), FaultKind::Throttled),
        (Fate::Fails(400, "RequestLimitExceeded"), FaultKind::Throttled),
        (Fate::Fails(500, "InternalServerError"), FaultKind::Unavailable),
        (Fate::Fails(503, "SomethingNew"), FaultKind::Unavailable),
        (Fate::Fails(400, "AccessDeniedException"), FaultKind::Unauthorized),
        (Fate::Fails(400, "ExpiredTokenException"), FaultKind::Unauthorized),
        (Fate::Fails(400, "ResourceNotFoundException"), FaultKind::NoTable),
        (Fate::Fails(400, "ValidationException"), FaultKind::Misconfigured),
        (Fate::Fails(400, "TransactionConflictException"), FaultKind::Conflict),
        (Fate::Fails(400, "SomethingElse"), FaultKind::Other),
    ] {
        let (kind, took, sent) = fails_by(fate).await;
        assert_eq!((kind, took, sent), (expected, Duration::ZERO, 1), "{fate:?}");
    }
}

/// DynamoDB throttles reads and no writes. A process's first charge needs a read, and so does a peek. Both fail with
/// the reason, and charge nothing.
#[tokio::test(start_paused = true)]
async fn a_throttled_read_is_no_rejection() {
    async fn check<A: Kept>(algorithm: A) {
        let (service, clock) = service().await;
        service.decide(|operation| match operation {
            "GetItem" => Fate::Fails(400, "ProvisionedThroughputExceededException"),
            _ => Fate::Answered,
        });
        let dynamo = dynamo(&service, &clock).timeout(TIMEOUT);
        let limiter = limiter(&dynamo, algorithm);
        assert_eq!(kind(&ask(&limiter).await.unwrap_err()), FaultKind::Throttled);
        while dynamo.health().breaker() == BreakerState::Closed {
            let peek = limiter.decide(&Ask::peek(&"key".into(), 1)).decided().await;
            assert_eq!(kind(&peek.unwrap_err()), FaultKind::Throttled);
        }
        assert_eq!((service.counts(), service.items().len()), (Counts { reads: 5, ..Counts::default() }, 0));
        service.all(Fate::Answered);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(admitted(&limiter, 10).await, 5);
    }
    check(TokenBucket::new(per_day(5))).await;
    check(FixedWindow::new(per_day(5))).await;
    check(SlidingWindow::new(per_day(5))).await;
}

/// A process whose clock is known to be right needs a read to begin a sliding window.
#[tokio::test(start_paused = true)]
async fn a_throttled_window_charges_nothing() {
    let (service, clock) = service().await;
    let limiter = limiter(&dynamo(&service, &clock).timeout(TIMEOUT), SlidingWindow::new(Quota::per_minute(5)));
    assert_eq!(admitted(&limiter, 1).await, 1);
    clock.advance(Duration::from_secs(60));
    service.forget_counts();
    service.decide(|operation| match operation {
        "GetItem" => Fate::Fails(400, "ThrottlingException"),
        _ => Fate::Answered,
    });
    assert_eq!(kind(&ask(&limiter).await.unwrap_err()), FaultKind::Throttled);
    assert_eq!((service.counts().reads, service.counts().writes), (1, 0));
    service.all(Fate::Answered);
    assert!(ask(&limiter).await.unwrap().is_allowed());
}

/// The message contains DynamoDB's message, in one line.
#[tokio::test(start_paused = true)]
async fn messages_are_short_and_name_the_cure() {
    for (fate, expected) in [
        (
            Fate::Fails(400, "ThrottlingException"),
            "DynamoDB throttles the table; raise its capacity, or lease more units: ThrottlingException: on purpose",
        ),
        (
            Fate::Fails(400, "AccessDeniedException"),
            "the credentials do not allow this: AccessDeniedException: on purpose",
        ),
        (Fate::Refused, "DynamoDB cannot be reached: dispatch failure: io error: connection refused"),
        (Fate::BlackHole, "DynamoDB did not answer in time"),
    ] {
        let (service, _, _, limiter) = process().await;
        service.all(fate);
        let error = ask(&limiter).await.unwrap_err();
        assert_eq!(error.source().expect("a fault").to_string(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_connection_fails_at_once() {
    let (kind, took, _) = fails_by(Fate::Refused).await;
    assert_eq!((kind, took), (FaultKind::Unreachable, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn a_foreign_answer_is_unintelligible() {
    assert_eq!(fails_by(Fate::Garbled).await.0, FaultKind::Unintelligible);
}

#[tokio::test(start_paused = true)]
async fn a_black_hole_fails_within_the_timeout() {
    let (kind, took, _) = fails_by(Fate::BlackHole).await;
    assert_eq!(kind, FaultKind::TimedOut);
    assert!(took <= TIMEOUT + Duration::from_millis(1), "{took:?}");
}

/// The answer comes too late or not at all, but DynamoDB made the charge. We do not repeat it, and do not refund it.
#[tokio::test(start_paused = true)]
async fn a_charge_without_an_answer_stays() {
    for fate in [Fate::AnswerLost, Fate::Late(Duration::from_secs(1))] {
        let (service, clock, _, limiter) = process().await;
        service.all(fate);
        let error = ask(&limiter).await.unwrap_err();
        assert!(matches!(kind(&error), FaultKind::Unreachable | FaultKind::TimedOut), "{error}");
        assert_eq!(service.counts().writes, 1, "{fate:?}");
        service.all(Fate::Answered);
        let other = super::limiter(&dynamo(&service, &clock), TokenBucket::new(per_day(10)));
        // One was admitted at first, and one was charged without an answer.
        assert_eq!(admitted(&other, 20).await, 8, "{fate:?}");
    }
}

/// A thousand requests during an outage: five wait for it, the others fail at once, and we do not probe before the
/// pause is over.
#[tokio::test(start_paused = true)]
async fn an_outage_opens_and_closes_the_breaker() {
    for fate in [Fate::Fails(400, "ProvisionedThroughputExceededException"), Fate::BlackHole, Fate::Refused] {
        let (service, _, dynamo, limiter) = process().await;
        service.all(fate);
        let begun = Instant::now();
        let mut open = 0;
        for _ in 0..1_000 {
            open += u32::from(kind(&ask(&limiter).await.unwrap_err()) == FaultKind::BreakerOpen);
        }
        assert!(begun.elapsed() <= 7 * TIMEOUT, "{fate:?}: {:?}", begun.elapsed());
        assert!(open >= 990, "{fate:?}: {open}");
        assert_ne!(dynamo.health().breaker(), BreakerState::Closed);
        service.all(Fate::Answered);
        tokio::time::sleep(Duration::from_secs(6)).await;
        let decision = ask(&limiter).await.unwrap_or_else(|error| panic!("{fate:?}: {error}"));
        assert!(decision.is_allowed(), "{fate:?}");
        assert_eq!(dynamo.health().breaker(), BreakerState::Closed);
    }
}

/// The gauges did not show the circuit breaker.
#[tokio::test(start_paused = true)]
async fn a_limiter_reports_its_tables_breaker() {
    let (service, _, dynamo, limiter) = process().await;
    let breaker = || {
        let [node] = &limiter.stats().nodes[..] else { panic!("a table is one node") };
        assert_eq!((node.name(), node.in_flight()), ("DynamoDB table limits", Some(0)));
        assert_eq!(node.breaker(), dynamo.health().breaker());
        node.breaker()
    };
    assert_eq!(breaker(), BreakerState::Closed);
    service.all(Fate::Fails(400, "ThrottlingException"));
    for _ in 0..5 {
        assert_eq!(breaker(), BreakerState::Closed);
        assert_eq!(kind(&ask(&limiter).await.unwrap_err()), FaultKind::Throttled);
    }
    let BreakerState::Open { probe_in: Some(pause) } = breaker() else { panic!("{:?}", breaker()) };
    assert!(pause <= Duration::from_millis(100), "{pause:?}");
    service.all(Fate::Answered);
    tokio::time::sleep(pause).await;
    assert_eq!(breaker(), BreakerState::Open { probe_in: Some(Duration::ZERO) });
    assert!(ask(&limiter).await.unwrap().is_allowed());
    assert_eq!(breaker(), BreakerState::Closed);
}

/// For a minute, the service alternates between one second up and one second down.
#[tokio::test(start_paused = true)]
async fn a_flapping_service_stays_within_the_limit() {
    let (service, _, _, limiter) = process().await;
    let (begun, mut admitted) = (Instant::now(), 1);
    service.decide(move |_| if begun.elapsed().as_secs() % 2 == 0 { Fate::Answered } else { Fate::AnswerLost });
    while begun.elapsed() < Duration::from_secs(60) {
        admitted += u32::from(ask(&limiter).await.is_ok_and(|decision| decision.is_allowed()));
        tokio::time::advance(Duration::from_millis(10)).await;
    }
    assert!((2..=10).contains(&admitted), "{admitted}");
}

/// More requests than may be in flight go to a slow service. The others fail after half of the timeout.
#[tokio::test(start_paused = true)]
async fn calls_in_flight_are_bounded() {
    let (service, clock) = service().await;
    let dynamo = dynamo(&service, &clock).timeout(TIMEOUT).max_in_flight(16);
    let store = DynamoStore::new(&dynamo, "test").without_coalescing();
    let limiter = Arc::new(RateLimiter::new(TokenBucket::new(per_day(10_000)), store));
    assert!(limiter.acquire(&"first".into(), 1).await.unwrap().is_allowed());
    service.all(Fate::Late(TIMEOUT * 9 / 10));
    let tasks: Vec<_> = (0..100_u32)
        .map(|key| {
            let limiter = Arc::clone(&limiter);
            tokio::spawn(async move { limiter.acquire_owned(&key.to_string().into(), 1).await })
        })
        .collect();
    let mut kinds = Vec::new();
    for task in tasks {
        kinds.extend(task.await.unwrap().err().map(|error| kind(&error)));
    }
    assert_eq!(kinds, [FaultKind::TooManyInFlight; 84]);
}

/// Limits are replaced while DynamoDB is out. The change does not wait for it, and the new limit finds the units used
/// under the old one.
#[tokio::test(start_paused = true)]
async fn a_reload_during_an_outage_keeps_counts() {
    let (service, _, dynamo, old) = process().await;
    service.all(Fate::BlackHole);
    for _ in 0..6 {
        assert!(ask(&old).await.is_err());
    }
    let new = limiter(&dynamo, TokenBucket::new(per_day(20)));
    let begun = Instant::now();
    assert!(new.inherit(&old).is_some());
    assert!(ask(&new).await.is_err());
    assert!(begun.elapsed() <= TIMEOUT);
    service.all(Fate::Answered);
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(admitted(&new, 1).await, 1);
    assert_eq!(service.items().len(), 1);
    assert_eq!(new.decide(&Ask::peek(&"key".into(), 0)).decided().await.unwrap().remaining(), 18);
    let stranger = RateLimiter::new(TokenBucket::new(per_day(20)), DynamoStore::new(&dynamo, "another"));
    assert!(stranger.inherit(&old).is_none());
}

/// The runtime stops while calls are in flight. Nothing hangs, and a store on another runtime keeps working.
#[test]
fn a_runtime_that_ends_cancels_its_calls() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let (first, second) = (runtime(), runtime());
    let (service, _, _, limiter) = first.block_on(process());
    let limiter = Arc::new(limiter);
    service.all(Fate::BlackHole);
    let waiting = Arc::clone(&limiter);
    first.spawn(async move { ask(&waiting).await });
    first.block_on(tokio::task::yield_now());
    drop(first);
    service.all(Fate::Answered);
    assert!(second.block_on(ask(&limiter)).unwrap().is_allowed());
}

#[test]
fn a_missing_runtime_is_an_error() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let (_, _, _, limiter) = runtime.block_on(process());
    drop(runtime);
    let mut ask = Box::pin(ask(&limiter));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let std::task::Poll::Ready(Err(error)) = ask.as_mut().poll(&mut context) else { panic!("it waits") };
    assert_eq!(kind(&error), FaultKind::NoRuntime);
}

/// If another program has written an item, its requests fail, it stays, and others are not affected.
#[tokio::test(start_paused = true)]
async fn a_foreign_item_stays() {
    async fn check<A: Kept>(algorithm: A) {
        let (service, clock) = service().await;
        let dynamo = dynamo(&service, &clock);
        let limiter = limiter(&dynamo, algorithm);
        assert!(ask(&limiter).await.unwrap().is_allowed());
        let key = service.items()[0]["k"].clone();
        let foreign = serde_json::json!({ "k": key, "theirs": { "S": "something" } });
        service.call("PutItem", &serde_json::json!({ "TableName": TABLE, "Item": foreign }));
        for _ in 0..10 {
            let error = ask(&limiter).await.unwrap_err();
            assert_eq!(kind(&error), FaultKind::ForeignItem, "{error}");
        }
        assert_eq!(service.items(), [foreign]);
        assert_eq!(dynamo.health().breaker(), BreakerState::Closed);
        assert!(limiter.acquire(&"another".into(), 1).await.unwrap().is_allowed());
        let _ = limiter.decide(&Ask::reset(&"key".into())).decided().await.unwrap();
        assert!(ask(&limiter).await.unwrap().is_allowed());
    }
    check(TokenBucket::new(per_day(10))).await;
    check(FixedWindow::new(per_day(10))).await;
    check(SlidingWindow::new(per_day(10))).await;
}
