//! Random schedules whose services and bodies end in every way, against a naive model: the units in flight and the
//! window charges are exact after each step.

use std::future::{Ready, ready};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use futures_util::future::{Either, Pending, pending};
use http::{HeaderMap, Request, Response};
use http_body::{Body, Frame};
use tower::{Layer, Service, service_fn};
use tower_sluice::key::HeaderKey;
use tower_sluice::layer::ResponseBody;
use tower_sluice::policy::SettleError;
use tower_sluice::testing::{Random, seeds};
use tower_sluice::{Concurrency, PartitionKey, Policy, RateLimitLayer, Settlement};

use super::{Window, charged, in_flight, window};
use crate::support::effort::rounds;

const KEYS: [&str; 2] = ["a", "b"];
const IN_FLIGHT: u64 = 4;
const UNITS: u64 = 60;
const BYTES: u64 = 300;
const USUAL_BYTES: u64 = 20;

/// A model for one key: its units in flight, and its window charges.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Model {
    in_flight: u64,
    units: u64,
    bytes: u64,
}

impl Model {
    /// Whether a request is admitted, which charges its estimates.
    fn begin(&mut self, request: &Plan) -> bool {
        let fits = self.in_flight + request.weight <= IN_FLIGHT
            && self.units + request.estimate <= UNITS
            && self.bytes + USUAL_BYTES <= BYTES;
        if fits {
            self.in_flight += request.weight;
            self.units += request.estimate;
            self.bytes += USUAL_BYTES;
        }
        fits
    }

    fn release(&mut self, request: &Plan) {
        self.in_flight -= request.weight;
    }

    /// Charges the reported cost, and the bytes if there was a response; a shortfall as far as units are left.
    fn settle(&mut self, request: &Plan, reported: Option<u64>, bytes: Option<u64>) {
        let settled = |charged: u64, estimate: u64, cost: u64, limit| (charged - estimate + cost).min(limit);
        self.units = settled(self.units, request.estimate, reported.unwrap_or(request.estimate), UNITS);
        self.bytes = settled(self.bytes, USUAL_BYTES, bytes.unwrap_or(USUAL_BYTES), BYTES);
    }
}

/// A request's costs and fate.
#[derive(Clone, Debug)]
struct Plan {
    key: usize,
    weight: u64,
    estimate: u64,
    /// The cost that the service reports before it answers.
    reported: Option<u64>,
    service: Outcome,
    body: Script,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Outcome {
    Answers,
    Fails,
    Panics,
    NeverAnswers,
}

/// A body.
#[derive(Clone, Debug)]
struct Script {
    /// The remaining steps, the next one last.
    steps: Vec<Step>,
    /// Whether the body knows that no steps remain, which ends nothing by itself.
    knows_its_end: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Data(u64),
    Trailers,
    Error,
    Panic,
    Pending,
}

impl Body for Script {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        Poll::Ready(Some(match self.steps.pop() {
            Some(Step::Data(length)) => Ok(Frame::data(vec![0; usize::try_from(length).unwrap()].into())),
            Some(Step::Trailers) => Ok(Frame::trailers(HeaderMap::new())),
            Some(Step::Error) => Err("as planned"),
            // Unlike `panic!`, this prints nothing.
            Some(Step::Panic) => resume_unwind(Box::new("as planned")),
            Some(Step::Pending) => return Poll::Pending,
            None => return Poll::Ready(None),
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.knows_its_end && self.steps.is_empty()
    }
}

impl Plan {
    fn random(random: &mut Random) -> Self {
        let mut below = |end: u64| random.below(end);
        let (weight, estimate) = (1 + below(2), below(12));
        let reported = Some(below(30)).filter(|_| below(2) == 0);
        let service = match below(8) {
            0 => Outcome::Fails,
            1 => Outcome::Panics,
            2 => Outcome::NeverAnswers,
            _ => Outcome::Answers,
        };
        let steps = (0..below(5)).map(|_| match below(10) {
            0 => Step::Trailers,
            1 => Step::Error,
            2 => Step::Panic,
            3 => Step::Pending,
            _ => Step::Data(below(60)),
        });
        let body = Script { steps: steps.collect(), knows_its_end: below(2) == 0 };
        Self { key: usize::try_from(below(2)).unwrap(), weight, estimate, reported, service, body }
    }
}

type Answered = Either<Ready<Result<Response<Script>, &'static str>>, Pending<Result<Response<Script>, &'static str>>>;

/// The service reports its cost and then does as planned. The response carries the settlement.
fn answer(mut request: Request<()>) -> Answered {
    let plan = request.extensions_mut().remove::<Plan>().unwrap();
    let settlement = request.extensions_mut().remove::<Settlement>().unwrap();
    if let Some(cost) = plan.reported {
        settlement.settle("units", cost).unwrap();
    }
    match plan.service {
        Outcome::Answers => {
            let mut response = Response::new(plan.body);
            response.extensions_mut().insert(settlement);
            Either::Left(ready(Ok(response)))
        }
        Outcome::Fails => Either::Left(ready(Err("as planned"))),
        Outcome::Panics => resume_unwind(Box::new("as planned")),
        Outcome::NeverAnswers => Either::Right(pending()),
    }
}

/// An admitted request that has an answer.
struct Answering {
    plan: Plan,
    body: ResponseBody<Script>,
    settlement: Settlement,
    reported: Option<u64>,
    bytes: u64,
    is_over: bool,
}

/// One schedule: a layer with three policies, and a model for each key.
struct World {
    in_flight: Arc<Concurrency>,
    units: Window,
    bytes: Window,
    layer: RateLimitLayer,
    releases_at_head: bool,
    models: [Model; 2],
    answering: Vec<Answering>,
}

impl World {
    fn new(releases_at_head: bool) -> Self {
        let (in_flight, units, bytes) =
            (Arc::new(Concurrency::new(IN_FLIGHT).max_keys(8)), window(UNITS), window(BYTES));
        let key = || HeaderKey::from_static("x-api-key");
        let plan = |head: &tower_sluice::RequestHead<'_>| head.extensions().get::<Plan>().unwrap().clone();
        let policy = Policy::new("in-flight", Arc::clone(&in_flight)).key(key()).cost_fn(move |head| plan(head).weight);
        let layer = RateLimitLayer::new([
            if releases_at_head { policy.release_at_head() } else { policy },
            Policy::new("units", Arc::clone(&units))
                .key(key())
                .cost_fn(move |head| plan(head).estimate)
                .settle_by_handler(),
            Policy::new("bytes", Arc::clone(&bytes)).key(key()).cost(USUAL_BYTES).settle_by_content_bytes(),
        ]);
        Self { in_flight, units, bytes, layer, releases_at_head, models: Default::default(), answering: Vec::new() }
    }

    fn step(&mut self, random: &mut Random) {
        let chosen = usize::try_from(random.below(self.answering.len() as u64)).unwrap();
        match (random.below(8), self.answering.get_mut(chosen)) {
            (0..3, _) | (_, None) => self.send(Plan::random(random)),
            (3..6, Some(_)) => self.poll(chosen),
            (6, Some(answering)) => {
                let cost = random.below(30);
                match answering.settlement.settle("units", cost) {
                    Ok(()) => answering.reported = Some(cost),
                    Err(error) => assert_eq!(error, SettleError::Ended),
                }
            }
            (_, Some(_)) => self.drop_body(chosen),
        }
        self.check();
    }

    fn send(&mut self, plan: Plan) {
        let model = &mut self.models[plan.key];
        let is_admitted = model.begin(&plan);
        let mut request = Request::builder().header("x-api-key", KEYS[plan.key]).body(()).unwrap();
        request.extensions_mut().insert(plan.clone());
        let mut service = self.layer.layer(service_fn(answer));
        let answered = catch_unwind(AssertUnwindSafe(|| {
            let mut future = Box::pin(service.call(request));
            future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        }));
        match answered {
            Ok(Poll::Ready(Ok(response))) if is_admitted => {
                assert_eq!((response.status().as_u16(), plan.service), (200, Outcome::Answers));
                if self.releases_at_head {
                    model.release(&plan);
                }
                let (parts, body) = response.into_parts();
                let settlement = parts.extensions.get::<Settlement>().unwrap().clone();
                let reported = plan.reported;
                self.answering.push(Answering { plan, body, settlement, reported, bytes: 0, is_over: false });
            }
            Ok(Poll::Ready(Ok(response))) => assert_eq!(response.status(), 429),
            // The request failed, panicked, or was dropped, so it is over without a response.
            _ => {
                assert!(is_admitted && plan.service != Outcome::Answers, "{plan:?}");
                model.release(&plan);
                model.settle(&plan, plan.reported, None);
            }
        }
    }

    fn poll(&mut self, chosen: usize) {
        let answering = &mut self.answering[chosen];
        let steps = &mut answering.plan.body.steps;
        let step = steps.pop();
        let mut context = Context::from_waker(Waker::noop());
        let frame = catch_unwind(AssertUnwindSafe(|| Pin::new(&mut answering.body).poll_frame(&mut context)));
        assert_eq!(frame.is_err(), step == Some(Step::Panic));
        let is_last = match step {
            Some(Step::Data(length)) => {
                answering.bytes += if answering.is_over { 0 } else { length };
                false
            }
            Some(Step::Trailers | Step::Error) | None => true,
            Some(Step::Panic | Step::Pending) => false,
        };
        if is_last {
            self.end(chosen);
        }
    }

    fn drop_body(&mut self, chosen: usize) {
        self.end(chosen);
        self.answering.swap_remove(chosen);
    }

    /// Ends a request in the model, the first time.
    fn end(&mut self, chosen: usize) {
        let Answering { plan, reported, bytes, is_over, .. } = &mut self.answering[chosen];
        if !std::mem::replace(is_over, true) {
            let model = &mut self.models[plan.key];
            if !self.releases_at_head {
                model.release(plan);
            }
            model.settle(plan, *reported, Some(*bytes));
        }
    }

    fn check(&self) {
        let units_in_flight: u64 = self.models.iter().map(|model| model.in_flight).sum();
        assert_eq!(in_flight(&*self.in_flight), units_in_flight);
        for (key, model) in KEYS.map(PartitionKey::from).iter().zip(&self.models) {
            let in_flight = charged(&*self.in_flight, key);
            let now = Model { in_flight, units: charged(&*self.units, key), bytes: charged(&*self.bytes, key) };
            assert_eq!(now, *model, "{key:?}");
        }
    }
}

#[test]
fn flights_and_charges_are_exact() {
    for seed in seeds(rounds(1_500, 100_000)) {
        let mut random = Random::new(seed);
        let mut world = World::new(random.below(4) == 0);
        let steps = 4 + random.below(20);
        let run = AssertUnwindSafe(|| {
            (0..steps).for_each(|_| world.step(&mut random));
            while !world.answering.is_empty() {
                world.drop_body(0);
                world.check();
            }
            assert_eq!(in_flight(&*world.in_flight), 0);
        });
        if let Err(panic) = catch_unwind(run) {
            eprintln!("seed {seed}");
            resume_unwind(panic);
        }
    }
}
