//! The questions and refunds of a transaction, in their order.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response, StatusCode};

use super::{Evaluation, evaluate};
use crate::http::head::RequestHead;
use crate::http::policy::Policy;
use crate::http::reload::{Enforceable, LayerState, Settings};
use crate::limiter::Limiter;
use crate::values::{Ask, Check, Decision, Description, Inheritance, LimiterError, Mode, PartitionKey, Receipt, Terms};

type Log = Arc<Mutex<Vec<String>>>;

/// A limiter with fixed answers, which logs the questions.
struct Scripted {
    name: &'static str,
    log: Log,
    /// Whether it admits a peek, and a charge.
    admits: [bool; 2],
    fails: bool,
}

impl Limiter for Scripted {
    fn decide(&self, ask: &Ask<'_>) -> Check {
        self.log.lock().unwrap().push(format!("{} {:?} {}", self.name, ask.mode(), ask.cost()));
        if self.fails && ask.mode() == Mode::Charge {
            return Check::Ready(Err(LimiterError::new("out of reach")));
        }
        if self.admits[usize::from(ask.mode() != Mode::Peek)] {
            Decision::allow(9, 9 - ask.cost()).with_receipt(Receipt::new(1)).into()
        } else {
            Decision::deny(9, 0, Some(Duration::from_secs(5))).into()
        }
    }

    fn refund(&self, _: &PartitionKey, _: Receipt, cost: u32) {
        self.log.lock().unwrap().push(format!("{} refund {cost}", self.name));
    }

    fn describe(&self) -> Description {
        Description::new()
            .advertising(Terms::sliding_window(crate::values::Quota::per_hour(9)))
            .answering(Mode::Peek)
            .answering(Mode::Fallback)
    }

    fn inherit(&self, _: &dyn Limiter) -> Option<Inheritance<Arc<dyn Limiter>>> {
        Some(Inheritance::in_place())
    }
}

fn scripted(log: &Log, name: &'static str, admits: [bool; 2]) -> Policy {
    Policy::new(name, Arc::new(Scripted { name, log: Arc::clone(log), admits, fails: false }))
}

fn layer(policies: impl Into<Vec<Policy>>) -> Arc<LayerState> {
    // With the verdict and the timing, so that everything that can be rendered is.
    let settings = Settings { adds_verdict: true, adds_timing: true, ..Settings::default() };
    LayerState::new(Enforceable::new(policies.into()).unwrap_or_else(|error| panic!("{error}")), settings)
}

/// The response to a request, without its body.
fn respond(layer: &Arc<LayerState>) -> Response<()> {
    let request = Request::new(());
    match evaluate(layer, &layer.load(), &RequestHead::from(&request), || true) {
        Evaluation::Admitted(annotations) => {
            let mut response = Response::new(());
            annotations.write(&mut response);
            assert!(response.headers().contains_key("ratelimit"));
            response
        }
        Evaluation::Rejected(response) => response.map(drop),
        Evaluation::Pending(_) => panic!("all limiters answer at once"),
    }
}

fn status(layer: &Arc<LayerState>) -> StatusCode {
    respond(layer).status()
}

fn taken(log: &Log) -> Vec<String> {
    std::mem::take(&mut log.lock().unwrap())
}

#[test]
fn one_policy_is_asked_once_and_rendering_asks_no_limiter() {
    let log = Log::default();
    assert_eq!(status(&layer([scripted(&log, "a", [true, true])])), 200);
    assert_eq!(taken(&log), ["a Charge 1"]);
    assert_eq!(status(&layer([scripted(&log, "a", [true, false])])), 503);
    assert_eq!(taken(&log), ["a Charge 1"]);
}

#[test]
fn policies_that_follow_a_charge_are_peeked_at_first() {
    let log = Log::default();
    assert_eq!(status(&layer([scripted(&log, "a", [true; 2]), scripted(&log, "b", [true; 2])])), 200);
    assert_eq!(taken(&log), ["b Peek 1", "a Charge 1", "b Charge 1"]);
}

#[test]
fn a_rejection_by_the_precheck_charges_nothing_and_peeks_at_all_for_their_waits() {
    let log = Log::default();
    assert_eq!(status(&layer([scripted(&log, "a", [true; 2]), scripted(&log, "b", [false; 2])])), 503);
    assert_eq!(taken(&log), ["b Peek 1", "a Peek 1"]);
    // Likewise if the first charge is rejected.
    assert_eq!(status(&layer([scripted(&log, "a", [false; 2]), scripted(&log, "b", [true; 2])])), 503);
    assert_eq!(taken(&log), ["b Peek 1", "a Charge 1", "b Peek 1"]);
}

/// Rejects the first question and admits the next, as if a charge were refunded in between.
struct RefundedMeanwhile(AtomicBool);

impl Limiter for RefundedMeanwhile {
    fn decide(&self, _: &Ask<'_>) -> Check {
        let was_asked = self.0.swap(true, Ordering::Relaxed);
        if was_asked { Decision::allow(9, 8).into() } else { Decision::deny(9, 0, Some(Duration::from_secs(5))).into() }
    }

    fn describe(&self) -> Description {
        Description::new().answering(Mode::Peek)
    }
}

#[test]
fn a_refund_after_the_precheck_does_not_undo_the_rejection() {
    let refunded = Policy::new("b", Arc::new(RefundedMeanwhile(AtomicBool::new(false))));
    assert_eq!(status(&layer([scripted(&Log::default(), "a", [true; 2]), refunded])), 503);
}

/// Admits every request after two seconds in its queue.
struct Queue;

impl Limiter for Queue {
    fn decide(&self, _: &Ask<'_>) -> Check {
        Decision::allow(9, 8).with_delay(Duration::from_secs(2)).into()
    }

    fn describe(&self) -> Description {
        Description::new().answering(Mode::Peek)
    }
}

#[test]
fn a_rejected_request_reports_the_time_that_it_has_waited_and_not_the_time_that_it_would_wait() {
    let queue = || Policy::new("queue", Arc::new(Queue));
    let timing = |admits| {
        let response = respond(&layer([queue(), scripted(&Log::default(), "next", admits)]));
        assert_eq!(response.status(), 503);
        response.headers().get("server-timing").cloned()
    };
    assert_eq!(timing([false, false]), None, "rejected by the precheck");
    assert_eq!(timing([true, false]).unwrap(), "ratelimit;dur=2000.000", "rejected after the wait");
}

#[test]
fn reserved_charges_are_refunded_in_reverse_order() {
    let log = Log::default();
    let fickle = scripted(&log, "c", [true, false]);
    assert_eq!(status(&layer([scripted(&log, "a", [true; 2]).cost(2), scripted(&log, "b", [true; 2]), fickle])), 503);
    let reserved = ["b Peek 1", "c Peek 1", "a Charge 2", "b Charge 1", "c Charge 1", "b refund 1", "a refund 2"];
    assert_eq!(taken(&log), reserved);
}

#[test]
fn shadows_are_charged_last_and_reject_nothing() {
    let log = Log::default();
    let shadow = scripted(&log, "shadow", [false; 2]).shadow();
    assert_eq!(status(&layer([shadow, scripted(&log, "a", [true; 2])])), 200);
    assert_eq!(taken(&log), ["a Charge 1", "shadow Charge 1"]);
}

#[test]
fn a_fallback_decides_in_place_of_a_failure() {
    let log = Log::default();
    let failing = Scripted { name: "f", log: Arc::clone(&log), admits: [true; 2], fails: true };
    assert_eq!(status(&layer([Policy::new("f", Arc::new(failing))])), 200);
    assert_eq!(taken(&log), ["f Charge 1", "f Fallback 1"]);
}

#[test]
fn a_settlement_after_a_change_goes_to_the_heir() {
    let log = Log::default();
    let unless_created = |policy: Policy| policy.charge_when(|response| response.status() == StatusCode::CREATED);
    let layer = layer([unless_created(scripted(&log, "a", [true; 2]))]);
    let request = Request::new(());
    let Evaluation::Admitted(annotations) = evaluate(&layer, &layer.load(), &RequestHead::from(&request), || true)
    else {
        panic!("it is admitted")
    };
    let heir = Scripted { name: "heir", log: Arc::clone(&log), admits: [true; 2], fails: false };
    layer.replace(
        Enforceable::new(unless_created(Policy::new("a", Arc::new(heir)))).unwrap_or_else(|error| panic!("{error}")),
    );
    annotations.write(&mut Response::new(()));
    assert_eq!(taken(&log), ["a Charge 1", "heir refund 1"]);
}
