//! The order in which a transaction asks limiters and refunds charges.

use std::any::Any;
use std::cell::Cell;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use http::{Request, Response, StatusCode};

use crate::engine::domain::Http;
use crate::engine::evaluate::Decide;
use crate::engine::outcome::{Evaluated, Evaluation, Waiting};
use crate::engine::policy::{Crossing, Hook, IntoPolicies, Policy, ShowKey};
use crate::engine::reason::Reason;
use crate::engine::reload::LongerPath;
use crate::engine::reload::{Enforceable, LayerSettings, LayerState};
use crate::http::head::RequestHead;
use crate::http::translation::evaluate;
use crate::key::{KeyCharge, KeyError, KeyExtractor};
use crate::limiter::Limiter;
use crate::values::time::{Clock, Monotonic, SIMULATED, Timestamp};
use crate::values::{
    Answer, Answers, Ask, Batching, ChargingOnce, Claim, Decision, Description, Exception, FailureMode, Formula,
    Inheritance, LimiterError, MemberAnswers, MemberDecision, Mode, OverrideReason, PartitionKey, Receipt, Report,
    Retry, Room, SharesReports, Terms,
};

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
    fn decide(&self, ask: &Ask<'_>) -> Answer {
        self.log.lock().unwrap().push(format!("{} {:?} {}", self.name, ask.mode(), ask.cost()));
        if self.fails && ask.mode() == Mode::Charge {
            return Answer::Ready(Err(LimiterError::new("out of reach")));
        }
        if self.admits[usize::from(ask.mode() != Mode::Peek)] {
            Decision::allow(9, 9 - ask.cost()).with_receipt(Receipt::new(1)).into()
        } else {
            Decision::reject(9, 0, Some(Duration::from_secs(5))).into()
        }
    }

    fn refund(&self, _: &Ask<'_>, _: Receipt, units: u64) {
        self.log.lock().unwrap().push(format!("{} refund {units}", self.name));
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

/// One key, which is charged in this way.
struct Keys(fn(KeyCharge) -> KeyCharge);

impl KeyExtractor for Keys {
    fn extract(&self, _: &RequestHead<'_>) -> Result<PartitionKey, KeyError> {
        Ok(PartitionKey::SHARED)
    }

    fn has_several(&self) -> bool {
        true
    }

    fn extract_all(&self, _: &RequestHead<'_>) -> Result<Vec<KeyCharge>, KeyError> {
        Ok(vec![(self.0)(KeyCharge::new(PartitionKey::SHARED))])
    }
}

fn scripted(log: &Log, name: &'static str, admits: [bool; 2]) -> Policy {
    Policy::new(name, Arc::new(Scripted { name, log: Arc::clone(log), admits, fails: false }))
}

fn enforceable(policies: impl IntoPolicies) -> Enforceable<Http> {
    Enforceable::new(policies).unwrap_or_else(|error| panic!("{error}"))
}

fn layer(policies: impl IntoPolicies) -> Arc<LayerState<Http>> {
    // With the verdict and the timing, so that all annotations are rendered.
    let settings = LayerSettings { adds_verdict: true, adds_timing: true, ..LayerSettings::default() };
    with_longer_path(LayerState::new(enforceable(policies), settings))
}

fn with_longer_path(layer: Arc<LayerState<Http>>) -> Arc<LayerState<Http>> {
    layer.install(LongerPath::WHOLE);
    layer
}

/// The response to a request, without its body.
fn respond(layer: &Arc<LayerState<Http>>) -> Response<()> {
    let request = Request::new(());
    match evaluate(layer, &layer.load(), &RequestHead::from(&request)) {
        Evaluation::Admitted(annotations) => {
            let mut response = Response::new(());
            annotations.write(&mut response);
            assert!(response.headers().contains_key("ratelimit"));
            response
        }
        Evaluation::Rejected(rejected) => Http::reply(layer, rejected, &RequestHead::from(&request)).map(drop),
        Evaluation::Replied(response) => response.map(drop),
        Evaluation::Clear => panic!("the layer has fields and a verdict"),
        Evaluation::Pending(_) => panic!("all limiters answer at once"),
    }
}

fn status(layer: &Arc<LayerState<Http>>) -> StatusCode {
    respond(layer).status()
}

fn taken(log: &Log) -> Vec<String> {
    std::mem::take(&mut log.lock().unwrap())
}

#[test]
fn rendering_asks_no_limiter() {
    let log = Log::default();
    assert_eq!(status(&layer([scripted(&log, "a", [true, true])])), 200);
    assert_eq!(taken(&log), ["a Charge 1"]);
    assert_eq!(status(&layer([scripted(&log, "a", [true, false])])), 503);
    assert_eq!(taken(&log), ["a Charge 1"]);
}

#[test]
fn later_policies_are_peeked_at_first() {
    let log = Log::default();
    assert_eq!(status(&layer([scripted(&log, "a", [true; 2]), scripted(&log, "b", [true; 2])])), 200);
    assert_eq!(taken(&log), ["b Peek 1", "a Charge 1", "b Charge 1"]);
}

/// The other policies are peeked at for their waits.
#[test]
fn a_failed_precheck_charges_nothing() {
    let log = Log::default();
    assert_eq!(status(&layer([scripted(&log, "a", [true; 2]), scripted(&log, "b", [false; 2])])), 503);
    assert_eq!(taken(&log), ["b Peek 1", "a Peek 1"]);
    // If the first charge is rejected, the rest is peeked at as well.
    assert_eq!(status(&layer([scripted(&log, "a", [false; 2]), scripted(&log, "b", [true; 2])])), 503);
    assert_eq!(taken(&log), ["b Peek 1", "a Charge 1", "b Peek 1"]);
}

/// The policies answer later, so the request takes the transaction's path.
#[test]
fn a_transaction_peeks_before_it_charges() {
    let log = Log::default();
    let first = || remote(&log, "a", "a", [true; 2], 1);
    assert_eq!(status(&layer([first(), remote(&log, "b", "b", [false; 2], 2)])), 503);
    assert_eq!(taken(&log), ["b Peek 1", "a Peek 1"]);
}

#[test]
fn a_rejection_shows_uncharged_units() {
    let log = Log::default();
    // Rejected by the precheck, and by the charge.
    for admits in [[false; 2], [true, false]] {
        let response = respond(&layer([scripted(&log, "a", [true; 2]), scripted(&log, "b", admits)]));
        let fields = response.headers()["ratelimit"].to_str().unwrap().to_owned();
        assert!(fields.contains("\"a\";r=9"), "{fields}");
    }
}

/// The first policy only looks at its key, so nothing is refunded, and its fields have the remaining units.
#[test]
fn a_peek_is_neither_charged_nor_refunded() {
    let log = Log::default();
    let looks = || scripted(&log, "a", [true; 2]).key(Keys(KeyCharge::peek));
    let fields = |response: Response<()>| response.headers()["ratelimit"].to_str().unwrap().to_owned();
    let admitted = fields(respond(&layer([looks(), scripted(&log, "b", [true; 2])])));
    assert!(admitted.contains("\"a\";r=9"), "{admitted}");
    assert_eq!(taken(&log), ["b Peek 1", "a Peek 1", "b Charge 1"]);
    let rejected = fields(respond(&layer([looks(), scripted(&log, "b", [true, false])])));
    assert!(rejected.contains("\"a\";r=9"), "{rejected}");
    assert_eq!(taken(&log), ["b Peek 1", "a Peek 1", "b Charge 1"]);
}

/// Rejects the first question and admits the next, as if a charge were refunded in between.
struct RefundedMeanwhile(AtomicBool);

impl Limiter for RefundedMeanwhile {
    fn decide(&self, _: &Ask<'_>) -> Answer {
        let was_asked = self.0.swap(true, Ordering::Relaxed);
        if was_asked {
            Decision::allow(9, 8).into()
        } else {
            Decision::reject(9, 0, Some(Duration::from_secs(5))).into()
        }
    }

    fn describe(&self) -> Description {
        Description::new().answering(Mode::Peek)
    }
}

/// The refund comes after the precheck.
#[test]
fn a_late_refund_keeps_the_rejection() {
    let refunded = Policy::new("b", Arc::new(RefundedMeanwhile(AtomicBool::new(false))));
    assert_eq!(status(&layer([scripted(&Log::default(), "a", [true; 2]), refunded])), 503);
}

/// Admits every request after two seconds in its queue.
struct Queue;

impl Limiter for Queue {
    fn decide(&self, _: &Ask<'_>) -> Answer {
        Decision::allow(9, 8).with_delay(Duration::from_secs(2)).into()
    }

    fn describe(&self) -> Description {
        Description::new().answering(Mode::Peek)
    }
}

/// The time that the request would wait in another queue is not reported.
#[test]
fn rejections_report_only_elapsed_waits() {
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
fn charges_are_refunded_in_reverse_order() {
    let log = Log::default();
    let fickle = scripted(&log, "c", [true, false]);
    assert_eq!(status(&layer([scripted(&log, "a", [true; 2]).cost(2), scripted(&log, "b", [true; 2]), fickle])), 503);
    let reserved = ["b Peek 1", "c Peek 1", "a Charge 2", "b Charge 1", "c Charge 1", "b refund 1", "a refund 2"];
    assert_eq!(taken(&log), reserved);
}

#[test]
fn shadows_come_last_and_reject_nothing() {
    let log = Log::default();
    let shadow = scripted(&log, "shadow", [false; 2]).shadow();
    assert_eq!(status(&layer([shadow, scripted(&log, "a", [true; 2])])), 200);
    assert_eq!(taken(&log), ["a Charge 1", "shadow Charge 1"]);
    // If the request is rejected, shadows are not asked.
    let shadow = scripted(&log, "shadow", [false; 2]).shadow();
    assert_eq!(status(&layer([shadow, scripted(&log, "a", [true, false])])), 503);
    assert_eq!(taken(&log), ["a Charge 1"]);
}

#[test]
fn a_fallback_decides_after_a_failure() {
    let log = Log::default();
    let failing = Scripted { name: "f", log: Arc::clone(&log), admits: [true; 2], fails: true };
    assert_eq!(status(&layer([Policy::new("f", Arc::new(failing))])), 200);
    assert_eq!(taken(&log), ["f Charge 1", "f Fallback 1"]);
}

/// A server that logs reports and claims, and grants none.
struct Claims(Log);

impl SharesReports for Claims {
    fn tag(&self, _: &PartitionKey) -> u128 {
        0
    }

    fn publish_after(&self, _: Duration, _: Box<dyn FnOnce() -> Vec<Report> + Send>) {
        self.0.lock().unwrap().push("published".to_owned());
    }

    fn collect(&self) -> Pin<Box<dyn Future<Output = Result<Vec<Report>, LimiterError>> + Send>> {
        Box::pin(ready(Ok(Vec::new())))
    }

    fn claim(
        &self,
        _: &PartitionKey,
        _: u32,
        _: Duration,
    ) -> Pin<Box<dyn Future<Output = Result<bool, LimiterError>> + Send>> {
        self.0.lock().unwrap().push("claimed".to_owned());
        Box::pin(ready(Ok(false)))
    }
}

/// A limiter of such a server.
struct Sharing(Scripted);

impl Limiter for Sharing {
    fn decide(&self, ask: &Ask<'_>) -> Answer {
        self.0.decide(ask)
    }

    fn describe(&self) -> Description {
        self.0.describe().sharing_reports(Claims(Arc::clone(&self.0.log)))
    }
}

/// The other processes on the server did not see this charge.
#[test]
fn crossings_of_fallbacks_are_not_claimed() {
    let log = Log::default();
    for (fails, what) in [(false, "claimed"), (true, "reported")] {
        let scripted = Scripted { name: "a", log: Arc::clone(&log), admits: [true; 2], fails };
        let reported = Arc::clone(&log);
        let report = move |_: &Crossing<'_>| reported.lock().unwrap().push("reported".to_owned());
        let layer = layer([Policy::new("a", Arc::new(Sharing(scripted))).on_crossing(0.1, report)]);
        assert_eq!(status(&layer), 200);
        assert_eq!(taken(&log).last().map(String::as_str), Some(what));
    }
}

#[test]
fn a_rejected_key_is_published() {
    let log = Log::default();
    let scripted = Scripted { name: "a", log: Arc::clone(&log), admits: [false; 2], fails: false };
    let policy = Policy::new("a", Arc::new(Sharing(scripted))).key(crate::key::HeaderKey::from_static("x-user"));
    let layer = layer([policy.track_offenders(ShowKey::whole())]);
    let request = Request::builder().header("x-user", "u").body(()).unwrap();
    assert!(!matches!(evaluate(&layer, &layer.load(), &RequestHead::from(&request)), Evaluation::Admitted(_)));
    assert_eq!(taken(&log), ["a Charge 1", "published"]);
}

#[cfg(feature = "tracing")]
mod logged {
    use super::*;
    use crate::util::captured_log;

    /// Admits every charge, except while it fails. It never fully admits a cost that was spent already.
    struct Failing(Arc<AtomicBool>);

    impl Limiter for Failing {
        fn decide(&self, ask: &Ask<'_>) -> Answer {
            match ask.mode() {
                Mode::Fallback => Decision::allow(9, 8).into(),
                _ if self.0.load(Ordering::Relaxed) => LimiterError::new("out of reach").into(),
                Mode::UpTo => Decision::reject(9, 0, Some(Duration::from_secs(5))).into(),
                _ => Decision::allow(9, 8).into(),
            }
        }

        fn describe(&self) -> Description {
            let terms = Terms::sliding_window(crate::values::Quota::per_hour(9));
            Description::new().advertising(terms).answering(Mode::Fallback).answering(Mode::UpTo)
        }
    }

    /// The log reports recovery once the limiter admits requests by itself again.
    #[test]
    fn recovery_is_logged_only_without_fallback() {
        std::thread_local! {
            static SECONDS: Cell<u64> = const { Cell::new(1_000) };
        }
        SIMULATED.set(Some(|| Timestamp::from_nanos(SECONDS.get() * 1_000_000_000)));
        // On the fast path, in a transaction, and for a cost that was spent already.
        let paths: [fn(Policy) -> Policy; 3] =
            [|policy| policy, |policy| policy.warn_at(1.0), |policy| policy.key(Keys(KeyCharge::up_to))];
        for path in paths {
            let (log, _subscriber) = captured_log::Log::start();
            let fails = Arc::new(AtomicBool::new(true));
            let layer = layer([path(Policy::new("f", Arc::new(Failing(Arc::clone(&fails)))))]);
            for (second, still_fails, lines) in [(0, true, 1), (60, true, 1), (120, false, 2), (180, false, 2)] {
                SECONDS.set(1_000 + second);
                fails.store(still_fails, Ordering::Relaxed);
                assert_eq!(status(&layer), 200);
                assert_eq!(log.lines().len(), lines, "after {second} s: {:?}", log.lines());
            }
            assert!(log.lines()[1].contains("limiter recovered"), "{:?}", log.lines());
        }
        SIMULATED.set(None);
    }

    /// A fallback says nothing about the limiter, even if it rejects, and a limiter that the operator closed has not
    /// failed.
    #[test]
    fn fallbacks_and_closing_keep_health() {
        struct Broken(fn() -> LimiterError);

        impl Limiter for Broken {
            fn decide(&self, ask: &Ask<'_>) -> Answer {
                match ask.mode() {
                    Mode::Fallback => Decision::reject(9, 0, Some(Duration::from_secs(5))).into(),
                    _ => (self.0)().into(),
                }
            }

            fn describe(&self) -> Description {
                Description::new().answering(Mode::Fallback)
            }
        }

        std::thread_local! {
            static SECONDS: Cell<u64> = const { Cell::new(1_000) };
        }
        SIMULATED.set(Some(|| Timestamp::from_nanos(SECONDS.get() * 1_000_000_000)));
        let closed = || LimiterError::closed("it is closed");
        for (error, lines) in [(closed as fn() -> LimiterError, 0), (|| LimiterError::new("broken"), 1)] {
            let (log, _subscriber) = captured_log::Log::start();
            let layer = layer([Policy::new("b", Arc::new(Broken(error)))]);
            for second in [0, 60, 120] {
                SECONDS.set(1_000 + second);
                assert_eq!(status(&layer), 503);
                assert_eq!(log.lines().len(), lines, "after {second} s: {:?}", log.lines());
            }
        }
        SIMULATED.set(None);
    }
}

#[test]
fn settlements_go_to_the_heir() {
    let log = Log::default();
    let unless_created = |policy: Policy| policy.charge_when(|response| response.status() == StatusCode::CREATED);
    let layer = layer([unless_created(scripted(&log, "a", [true; 2]))]);
    let request = Request::new(());
    let Evaluation::Admitted(annotations) = evaluate(&layer, &layer.load(), &RequestHead::from(&request)) else {
        panic!("it is admitted")
    };
    let heir = Scripted { name: "heir", log: Arc::clone(&log), admits: [true; 2], fails: false };
    layer.replace(enforceable(unless_created(Policy::new("a", Arc::new(heir)))));
    annotations.settle(&mut Response::new(()));
    assert_eq!(taken(&log), ["a Charge 1", "heir refund 1"]);
}

/// A request that was not charged leaves nothing to refund.
#[test]
fn uncounted_requests_have_no_open_charge() {
    for (fails, open) in [(false, 1), (true, 0)] {
        let limiter = Scripted { name: "a", log: Log::default(), admits: [true; 2], fails };
        let policy = Policy::new("a", Arc::new(limiter)).on_failure(FailureMode::Allow).charge_when(|_| true);
        let layer = layer([policy]);
        let request = Request::new(());
        let in_force = layer.load();
        let evaluated = evaluate(&layer, &in_force, &RequestHead::from(&request));
        let expected =
            in_force.policies[0].lineage.record.open_charges().expected(&PartitionKey::SHARED, Monotonic.now());
        assert_eq!(expected.map_or(0, |(units, _)| units), open);
        assert!(matches!(evaluated, Evaluation::Admitted(_)));
    }
}

/// A rejection's wait follows from the response time.
#[test]
fn response_times_are_noted() {
    std::thread_local! {
        static SECONDS: Cell<u64> = const { Cell::new(1_000) };
    }
    SIMULATED.set(Some(|| Timestamp::from_nanos(SECONDS.get() * 1_000_000_000)));
    let policy = scripted(&Log::default(), "a", [true; 2]);
    let layer = layer([policy.charge_when(|response| response.status() == StatusCode::OK)]);
    let in_force = layer.load();
    let begin = || match evaluate(&layer, &in_force, &RequestHead::from(&Request::new(()))) {
        Evaluation::Admitted(annotations) => annotations,
        _ => panic!("it is admitted"),
    };
    let first = begin();
    SECONDS.set(1_005);
    first.settle(&mut Response::new(()));
    let _second = begin();
    let charges = in_force.policies[0].lineage.record.open_charges();
    assert_eq!(charges.expected(&PartitionKey::SHARED, Monotonic.now()), Some((1, Duration::from_secs(5))));
    SIMULATED.set(None);
}

/// A limiter whose charges a server answers, alone or in one call with others on the same store. It can be peeked at
/// without a call.
struct Remote {
    scripted: Scripted,
    store: usize,
}

impl Limiter for Remote {
    fn decide(&self, ask: &Ask<'_>) -> Answer {
        match self.scripted.decide(ask) {
            Answer::Ready(answer) if ask.mode() == Mode::Charge => Answer::Pending(Box::pin(ready(answer))),
            check => check,
        }
    }

    fn refund(&self, ask: &Ask<'_>, receipt: Receipt, units: u64) {
        self.scripted.refund(ask, receipt, units);
    }

    fn describe(&self) -> Description {
        let log = Arc::clone(&self.scripted.log);
        self.scripted.describe().batching(Batched {
            name: self.scripted.name,
            log,
            admits: self.scripted.admits[1],
            store: self.store,
        })
    }

    fn inherit(&self, predecessor: &dyn Limiter) -> Option<Inheritance<Arc<dyn Limiter>>> {
        self.scripted.inherit(predecessor)
    }
}

/// Admits and logs a [`Remote`]'s claims.
#[derive(Clone)]
struct Batched {
    name: &'static str,
    log: Log,
    admits: bool,
    store: usize,
}

impl Batching for Batched {
    fn claim(&self, _: &Ask<'_>) -> Option<Box<dyn Claim>> {
        Some(Box::new(self.clone()))
    }
}

impl Claim for Batched {
    fn store(&self) -> usize {
        self.store
    }

    fn decide_all(self: Box<Self>, others: Vec<Box<dyn Claim>>) -> Pin<Box<dyn Future<Output = Answers> + Send>> {
        let others = others.into_iter().map(|other| other.into_any().downcast::<Self>().unwrap());
        let decide = |claim: Box<Self>| {
            claim.log.lock().unwrap().push(format!("{} in a batch", claim.name));
            Ok(Decision::allow(9, 8))
        };
        let answers: Answers = std::iter::once(self).chain(others).map(decide).collect();
        Box::pin(ready(answers))
    }

    fn decide_by(
        self: Box<Self>,
        others: Vec<Box<dyn Claim>>,
        formula: Formula,
    ) -> Pin<Box<dyn Future<Output = MemberAnswers> + Send>> {
        let others = others.into_iter().map(|other| other.into_any().downcast::<Self>().unwrap());
        let members: Vec<_> = std::iter::once(self).chain(others).collect();
        let room = |member: usize| if members[member].admits { Room::Enough } else { Room::Lacking };
        let mut chosen = Vec::new();
        formula.choose(&room, &mut chosen);
        let answers = members.iter().enumerate().map(|(member, claim)| {
            let is_charged = chosen.contains(&member);
            let done = if is_charged { "charged" } else { "read" };
            claim.log.lock().unwrap().push(format!("{} {done} in a batch", claim.name));
            let rejected = Decision::reject(9, 0, Some(Duration::from_secs(5)));
            let decision = if claim.admits { Decision::allow(9, 8).with_receipt(Receipt::new(1)) } else { rejected };
            Some(Ok(MemberDecision { decision, is_charged }))
        });
        let answers: MemberAnswers = answers.collect();
        Box::pin(ready(answers))
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

fn remote(log: &Log, policy: &'static str, limiter: &'static str, admits: [bool; 2], store: usize) -> Policy {
    let scripted = Scripted { name: limiter, log: Arc::clone(log), admits, fails: false };
    Policy::new(policy, Arc::new(Remote { scripted, store }))
}

/// Begins a request that waits for a server.
fn begin(layer: &Arc<LayerState<Http>>) -> Waiting<Http> {
    match evaluate(layer, &layer.load(), &RequestHead::from(&Request::new(()))) {
        Evaluation::Pending(waiting) => waiting,
        _ => panic!("the first policy answers later"),
    }
}

/// Continues a request once all servers have answered.
fn finish(mut waiting: Waiting<Http>) -> Evaluated<Http> {
    match waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(evaluated) => evaluated,
        Poll::Pending => panic!("all servers have answered"),
    }
}

/// The policies change while the request waits.
#[test]
fn a_late_batch_charges_the_heirs() {
    let log = Log::default();
    // The second and the third share a store.
    let policies = |[a, b, c]: [&'static str; 3]| {
        [("a", a, 1), ("b", b, 2), ("c", c, 2)]
            .map(|(name, limiter, store)| remote(&log, name, limiter, [true; 2], store))
    };
    let layer = layer(policies(["a", "b", "c"]));
    let waiting = begin(&layer);
    assert_eq!(taken(&log), ["b Peek 1", "c Peek 1", "a Charge 1"]);
    layer.replace(enforceable(policies(["heir of a", "heir of b", "heir of c"])));
    assert!(finish(waiting).is_ok());
    assert_eq!(taken(&log), ["heir of b in a batch", "heir of c in a batch"]);
}

/// The policies change while the request waits.
#[test]
fn a_late_rejection_peeks_at_heirs() {
    let log = Log::default();
    let rejecting = || remote(&log, "a", "a", [true, false], 1);
    let layer = layer([rejecting(), remote(&log, "b", "b", [true; 2], 2)]);
    let waiting = begin(&layer);
    assert_eq!(taken(&log), ["b Peek 1", "a Charge 1"]);
    layer.replace(enforceable([rejecting(), remote(&log, "b", "heir of b", [true; 2], 2)]));
    assert!(finish(waiting).is_err());
    assert_eq!(taken(&log), ["heir of b Peek 1"]);
}

/// Whether a request under these alternatives, each on the server with its number, passes, and the questions asked.
fn asked(log: &Log, tree: impl IntoPolicies) -> (bool, Vec<String>) {
    let passes = finish(begin(&layer(tree))).is_ok();
    (passes, taken(log))
}

#[test]
fn alternatives_share_one_call_per_server() {
    let log = Log::default();
    let on = |name, admits, store| remote(&log, name, name, [true, admits], store);
    let first_full = on("a", false, 1).or_else(on("b", true, 1));
    assert_eq!(asked(&log, first_full), (true, vec!["a read in a batch".into(), "b charged in a batch".into()]));
    let both = on("a", true, 1).and(on("b", false, 1)).or_else(on("c", true, 1));
    let (passes, questions) = asked(&log, both);
    assert!(passes);
    assert_eq!(
        questions,
        ["b Peek 1", "a read in a batch", "b read in a batch", "c charged in a batch"].map(str::to_owned)
    );
    let none = on("a", false, 1).or_else(on("b", false, 1));
    let (passes, questions) = asked(&log, none);
    assert!(!passes);
    assert_eq!(questions[..2], ["a read in a batch".to_owned(), "b read in a batch".to_owned()]);
}

#[test]
fn alternatives_elsewhere_are_tried_in_order() {
    let log = Log::default();
    let on = |name, admits, store| remote(&log, name, name, [true, admits], store);
    // A call for `a` and `c` would charge `c`, although `b` goes before it.
    let tree = on("a", false, 1).or_else(on("b", true, 2)).or_else(on("c", true, 1));
    assert_eq!(asked(&log, tree), (true, vec!["a Charge 1".into(), "b Charge 1".into()]));
    // A charge elsewhere is refunded, if its partner turns out to have no room.
    let tree = on("a", true, 1).and(on("b", false, 2)).or_else(on("c", true, 1));
    let (passes, questions) = asked(&log, tree);
    assert!(passes);
    let in_one_call = ["b Peek 1", "a charged in a batch", "c read in a batch"];
    assert_eq!(questions, [&in_one_call[..], &["b Charge 1", "a refund 1", "c Charge 1"]].concat());
    // An alternative is not split: a call for `a` and `c` would charge `c` before `b` is asked.
    let tree = on("a", false, 1).or_else(on("b", true, 2).and(on("c", true, 1)));
    let (passes, questions) = asked(&log, tree);
    assert!(passes);
    assert_eq!(questions, ["a Charge 1", "b Charge 1", "c Charge 1"]);
}

/// A limiter that can be peeked at, and fails to charge.
struct OutOfReach;

impl Limiter for OutOfReach {
    fn decide(&self, ask: &Ask<'_>) -> Answer {
        if ask.mode() == Mode::Peek { Decision::allow(9, 8).into() } else { LimiterError::new("out of reach").into() }
    }

    fn describe(&self) -> Description {
        Description::new().answering(Mode::Peek)
    }
}

#[test]
fn failures_hide_no_certain_rejection() {
    fn reason(last: impl IntoPolicies) -> Reason {
        let failing = Policy::new("failing", Arc::new(OutOfReach)).on_failure(FailureMode::Reject);
        let layer = layer(failing.or_else(scripted(&Log::default(), "other", [true; 2])).and(last));
        match evaluate(&layer, &layer.load(), &RequestHead::from(&Request::new(()))) {
            Evaluation::Rejected(rejected) => rejected.rejection.reason(),
            _ => panic!("the last one rejects it"),
        }
    }

    let log = Log::default();
    // Its peek admits, so that the failing policy is asked first.
    let rejecting = || scripted(&log, "last", [true, false]);
    assert_eq!(reason(rejecting()), Reason::LimitExceeded);
    // A shadow beside it would not have admitted the request.
    let shadow = scripted(&log, "shadow", [true; 2]).shadow();
    assert_eq!(reason(rejecting().or_else(shadow)), Reason::LimitExceeded);
    let failing = Policy::new("last", Arc::new(OutOfReach)).on_failure(FailureMode::Reject);
    assert_eq!(reason(failing), Reason::LimiterFailed);
}

#[test]
fn shadows_and_peeks_are_not_batched() {
    let log = Log::default();
    let on_one = |name| remote(&log, name, name, [true; 2], 1);
    let shadow = on_one("b").shadow();
    assert_eq!(asked(&log, [on_one("a"), shadow]), (true, vec!["a Charge 1".into(), "b Charge 1".into()]));
    let (passes, questions) = asked(&log, [on_one("a"), on_one("b").key(Keys(KeyCharge::peek))]);
    assert!(passes);
    assert_eq!(questions, ["b Peek 1", "a Charge 1", "b Peek 1"]);
}

/// A [`Remote`] whose server records free retries.
struct WithRecords {
    remote: Remote,
    /// Whether the server takes the request for a free retry.
    is_free: bool,
}

impl Limiter for WithRecords {
    fn decide(&self, ask: &Ask<'_>) -> Answer {
        self.remote.decide(ask)
    }

    fn refund(&self, ask: &Ask<'_>, receipt: Receipt, units: u64) {
        self.remote.refund(ask, receipt, units);
    }

    fn describe(&self) -> Description {
        let Scripted { name, ref log, .. } = self.remote.scripted;
        self.remote.describe().charging_once(Recorded { name, log: Arc::clone(log), is_free: self.is_free })
    }
}

/// Logs the calls on the records.
struct Recorded {
    name: &'static str,
    log: Log,
    is_free: bool,
}

impl ChargingOnce for Recorded {
    fn decide(&self, ask: &Ask<'_>, _: &Retry) -> Answer {
        self.log.lock().unwrap().push(format!("{} looks up {}", self.name, ask.cost()));
        let receipt = Receipt::new(1);
        if self.is_free {
            Decision::allow(9, 9).with_receipt(receipt.mark_free_retry()).into()
        } else {
            Decision::allow(9, 8).with_receipt(receipt).into()
        }
    }

    fn begin(&self, _: &PartitionKey, _: &Retry) {
        self.log.lock().unwrap().push(format!("{} begins", self.name));
    }

    fn put_back(&self, _: &PartitionKey, _: &Retry, _: Receipt, cost: u64) {
        self.log.lock().unwrap().push(format!("{} puts back {cost}", self.name));
    }
}

/// The questions for a request with an idempotency key, by a policy on store 1 and by one with records there.
fn asked_with_records(is_free: bool, peek_admits: bool, last_admits: bool) -> Vec<String> {
    use http::HeaderName;

    let log = Log::default();
    let scripted = Scripted { name: "b", log: Arc::clone(&log), admits: [peek_admits, true], fails: false };
    let with_records = Arc::new(WithRecords { remote: Remote { scripted, store: 1 }, is_free });
    let once = crate::ChargeOnce::by_header(HeaderName::from_static("idempotency-key"));
    let key = crate::key::HeaderKey::from_static("x-user");
    let with_records = Policy::new("b", with_records).key(key).charge_once(once);
    let on = |name, admits, store| remote(&log, name, name, [true, admits], store);
    let layer = layer([on("a", true, 1), with_records, on("c", last_admits, 2)]);
    let request = Request::builder().header("idempotency-key", "1").header("x-user", "u").body(()).unwrap();
    let evaluated = match evaluate(&layer, &layer.load(), &RequestHead::from(&request)) {
        Evaluation::Pending(waiting) => finish(waiting),
        _ => panic!("the first policy answers later"),
    };
    assert_eq!(evaluated.is_ok(), last_admits);
    drop(evaluated);
    taken(&log)
}

#[test]
fn retry_records_are_asked_apart() {
    let charged = ["b Peek 1", "c Peek 1", "a Charge 1", "b looks up 1", "c Charge 1"];
    // The request is over, because its response is dropped.
    assert_eq!(asked_with_records(false, true, true), [&charged[..], &["b begins"]].concat());
    assert_eq!(asked_with_records(false, true, false), [&charged[..], &["b refund 1", "a refund 1"]].concat());
    // A retry may be free although the key is used up.
    assert_eq!(asked_with_records(true, false, true), charged);
    // A rejection does not use up the free retry, and the limiter gets no refund for it.
    let given_up = asked_with_records(true, true, false);
    assert_eq!(given_up, [&charged[..], &["b refund 0", "a refund 1", "b puts back 1"]].concat());
}

/// Sends two requests to a layer with one policy, where the first holds the only unit. Returns the second response with
/// its body, its verdict and all that was reported. `is_short` selects the single-policy fast path.
fn second_of_two(policy: Policy, request: &Request<()>, is_short: bool) -> String {
    use super::scope::Scope;
    use super::transaction::Transaction;

    let events = Arc::new(Mutex::new(Vec::new()));
    let reported = Arc::clone(&events);
    let hook = move |event: &crate::policy::Event<'_>| reported.lock().unwrap().push(format!("{event:?}"));
    let settings = LayerSettings {
        adds_verdict: true,
        adds_timing: true,
        hook: Some(Hook::new(hook)),
        ..LayerSettings::default()
    };
    let layer = with_longer_path(LayerState::new(enforceable(policy), settings));
    let in_force = layer.load();
    assert!(in_force.is_held());
    let evaluate_one = || {
        let head = RequestHead::from(request);
        if is_short {
            return evaluate(&layer, &in_force, &head);
        }
        let scope = Scope { layer: &layer, in_force: &in_force };
        scope.evaluate_transaction(Transaction::with_patience(scope.patience(&head)), None, &head)
    };
    let first = evaluate_one();
    let response = match evaluate_one() {
        Evaluation::Rejected(rejected) => Http::reply(&layer, rejected, &RequestHead::from(request)),
        Evaluation::Replied(response) => response,
        _ => panic!("the first one has the unit"),
    };
    let (parts, body) = response.into_parts();
    let body =
        tokio_test::assert_ready_ok!(tokio_test::task::spawn(http_body_util::BodyExt::collect(body)).poll()).to_bytes();
    let verdict = format!("{:?}", parts.extensions.get::<crate::Verdict>());
    let stats = in_force.policies[0].stats();
    let counted = format!("{:?} {:?}", stats.in_flight, stats.overload);
    let headers = format!("{:?}", parts.headers);
    drop(first);
    drop(evaluate_one());
    let events = events.lock().unwrap();
    format!("{} {headers}\n{body:?}\n{verdict}\n{events:?}\n{counted}", parts.status)
}

/// A limiter for units in flight, which answers charges with `answer`, and logs the mode, priority and patience it is
/// asked with.
struct Units {
    log: Log,
    answer: fn() -> Answer,
}

impl Limiter for Units {
    fn decide(&self, ask: &Ask<'_>) -> Answer {
        self.log.lock().unwrap().push(format!("{:?} {:?} {:?}", ask.mode(), ask.priority(), ask.patience()));
        if ask.mode() == Mode::Fallback { Decision::allow(9, 8).into() } else { (self.answer)() }
    }

    fn refund(&self, _: &Ask<'_>, _: Receipt, _: u64) {}

    fn describe(&self) -> Description {
        Description::new().holding().delaying().shedding().answering(Mode::Fallback)
    }
}

fn holding(log: &Log, answer: fn() -> Answer) -> Arc<LayerState<Http>> {
    let policy = Policy::new("units", Arc::new(Units { log: Arc::clone(log), answer }));
    let layer = layer([policy.priority_fn(|_| crate::limiter::Priority::Critical)]);
    assert!(layer.load().is_held());
    layer
}

/// The fallback is asked in a transaction, which goes on from the fast path.
#[test]
fn a_fallback_learns_precedence_and_patience() {
    let log = Log::default();
    let layer = holding(&log, || LimiterError::new("out of reach").into());
    let request = Request::post("/a.B/C")
        .version(http::Version::HTTP_2)
        .header("content-type", "application/grpc")
        .header("grpc-timeout", "2S");
    let evaluated = evaluate(&layer, &layer.load(), &RequestHead::from(&request.body(()).unwrap()));
    assert!(matches!(evaluated, Evaluation::Admitted(_)));
    assert_eq!(taken(&log), ["Charge Critical Some(2s)", "Fallback Critical Some(2s)"]);
}

#[test]
fn a_rejection_names_the_servers_ban() {
    let layer = holding(&Log::default(), || {
        let reason = OverrideReason::new("scrapes").expect("it is one");
        let ban = Exception { is_ban: true, left: Duration::from_secs(9), reason };
        Decision::reject(9, 0, Some(Duration::from_secs(1))).banned(&ban).into()
    });
    match evaluate(&layer, &layer.load(), &RequestHead::from(&Request::new(()))) {
        Evaluation::Rejected(rejected) => assert_eq!(rejected.rejection.reason(), Reason::BannedByHand),
        _ => panic!("it is banned"),
    }
}

/// A server's ban stays known while the server cannot be asked. A limiter that was closed fails nevertheless.
#[test]
fn a_known_ban_precedes_a_failure() {
    struct Failing(AtomicBool, fn() -> LimiterError);

    impl Limiter for Failing {
        fn decide(&self, _: &Ask<'_>) -> Answer {
            if self.0.swap(true, Ordering::Relaxed) {
                return (self.1)().into();
            }
            let reason = OverrideReason::new("scrapes").expect("it is one");
            let ban = Exception { is_ban: true, left: Duration::from_secs(9), reason };
            Decision::reject(9, 0, Some(Duration::from_secs(1))).banned(&ban).into()
        }
    }

    for (error, reason) in [
        ((|| LimiterError::new("out of reach")) as fn() -> LimiterError, Reason::BannedByHand),
        (|| LimiterError::closed("it is closed"), Reason::LimiterFailed),
    ] {
        let limiter = Arc::new(Failing(AtomicBool::new(false), error));
        let policy = Policy::new("a", limiter).key(crate::key::HeaderKey::from_static("x-user"));
        let layer = layer([policy.on_failure(FailureMode::Reject)]);
        let request = Request::builder().header("x-user", "u").body(()).unwrap();
        let reason_of = || match evaluate(&layer, &layer.load(), &RequestHead::from(&request)) {
            Evaluation::Rejected(rejected) => rejected.rejection.reason(),
            _ => panic!("it is banned, or fails"),
        };
        assert_eq!([reason_of(), reason_of()], [Reason::BannedByHand, reason]);
    }
}

#[tokio::test(start_paused = true)]
async fn held_path_rejects_like_a_transaction() {
    use crate::key::HeaderKey;
    use crate::{Concurrency, Overload};

    let overload = || Policy::new("o", Overload::new().limits(1..=1).max_queue(0));
    let policies: [(&str, &dyn Fn() -> Policy); 8] = [
        ("overload", &overload),
        ("with a key", &|| overload().key(HeaderKey::from_static("x-tenant"))),
        ("with a status", &|| overload().status(StatusCode::TOO_MANY_REQUESTS)),
        ("too dear", &|| overload().cost_fn(|_| 2)),
        ("concurrency", &|| Policy::new("c", Concurrency::new(1))),
        ("concurrency with a key", &|| Policy::new("c", Concurrency::new(1)).key(HeaderKey::from_static("x-tenant"))),
        ("concurrency with a status", &|| Policy::new("c", Concurrency::new(1)).status(StatusCode::IM_A_TEAPOT)),
        ("concurrency, too dear", &|| Policy::new("c", Concurrency::new(1)).cost_fn(|_| 2)),
    ];
    let json = Request::get("/").header("x-tenant", "a").body(()).unwrap();
    let head = Request::head("/").header("x-tenant", "a").body(()).unwrap();
    let grpc = Request::post("/a.B/C")
        .version(http::Version::HTTP_2)
        .header("x-tenant", "a")
        .header("content-type", "application/grpc");
    let requests = [json, head, grpc.header("te", "trailers").body(()).unwrap()];
    for (name, policy) in policies {
        for request in &requests {
            let [short, whole] = [true, false].map(|is_short| second_of_two(policy(), request, is_short));
            assert_eq!(short, whole, "{name}");
        }
    }
}
