//! The runs, and the figures that they are for.

use crate::contenders::Contender;
use crate::figures::{Span, Value};
use crate::plan::{Abandoned, Mix, Plan};
use crate::run::{Trace, run};
use crate::time::{MILLISECOND, SECOND};

/// A table row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Figure {
    pub(crate) name: &'static str,
    /// Our limiter's target.
    pub(crate) target: Option<Target>,
    pub(crate) value: Value,
}

/// A bound on a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Target {
    AtLeast(f64),
    AtMost(f64),
    /// The number after is within 20 % of the one before.
    Unchanged,
}

impl Target {
    pub(crate) fn is_met(self, value: Value) -> bool {
        match (self, value) {
            (Self::AtLeast(least), Value::Share(value) | Value::Index(value)) => value >= least,
            (Self::AtMost(most), Value::Share(value) | Value::Time(Some(value))) => value <= most,
            (Self::Unchanged, Value::Change(before, after)) => (after - before).abs() <= 0.2 * before,
            _ => false,
        }
    }
}

/// A run, and the figures that it is for.
pub(crate) struct Scenario {
    pub(crate) plan: Plan,
    figures: fn(&Trace) -> Vec<Figure>,
}

/// The measured span under a steady load: the first ten seconds are left out.
pub(crate) const STEADY: Span = (10, 40);

/// A longer span for rare events.
const LONG: Span = (10, 130);

/// The curves' loads, in percent of the capacity.
pub(crate) const LOADS: [u64; 6] = [50, 80, 100, 200, 500, 1_000];

impl Scenario {
    pub(crate) fn run(&self, contender: &dyn Contender) -> Trace {
        // Each contender meets equal arrivals.
        run(&self.plan, contender, 1)
    }

    pub(crate) fn measure(&self, contender: &dyn Contender) -> Vec<Figure> {
        (self.figures)(&self.run(contender))
    }
}

pub(crate) fn steady(load: u64) -> Plan {
    Plan::new(&[(STEADY.1, load)])
}

/// For ten minutes the work takes three times its usual time, at a load of twice the capacity.
pub(crate) fn incident() -> Plan {
    Plan { slowdown: Some((120 * SECOND, 720 * SECOND, 3)), ..Plan::new(&[(780, 200)]) }
}

/// All scenarios, in table order.
pub(crate) fn all() -> Vec<Scenario> {
    [short_proof(), few_requests(), clients_that_leave(), vec![long_proof()], curve(), traps()]
        .into_iter()
        .flatten()
        .collect()
}

/// For ten seconds the work takes three times its usual time.
fn slowdown(load: u64) -> Plan {
    Plan { slowdown: Some((20 * SECOND, 30 * SECOND, 3)), ..Plan::new(&[(90, load)]) }
}

/// A load at which nothing should be shed.
pub(crate) fn no_overload() -> Scenario {
    scenario(Plan::new(&[(LONG.1, 80)]), |trace| vec![share("shed at 0.8 ×", trace.shed(LONG)).at_most(0.001)])
}

/// An overload from the first request on.
pub(crate) fn cold_start() -> Scenario {
    scenario(Plan::new(&[(5, 1_000)]), |trace| {
        vec![
            share("cold start: goodput in 5 s of 10 ×", trace.goodput((0, 5))),
            figure("cold start: p99 in 5 s of 10 ×", trace.latency((0, 5), 99)),
        ]
    })
}

/// Bursts, slow requests, and few of them: a search that needs many requests finds nothing.
pub(crate) fn few_requests() -> Vec<Scenario> {
    let asleep = |rate, at_once, time| Plan {
        rate: Some(rate),
        at_once,
        mix: Mix::Asleep(time * MILLISECOND),
        patience: 5 * SECOND,
        ..Plan::new(&[(120, 100)])
    };
    let work =
        |patience| Plan { mix: Mix::Work(500 * MILLISECOND), patience: patience * SECOND, ..Plan::new(&[(240, 200)]) };
    vec![
        scenario(asleep(60.0, 60, 200), |trace| {
            vec![share("60 at once each second, 200 ms asleep: shed", trace.shed((30, 120))).at_most(0.01)]
        }),
        scenario(asleep(300.0, 300, 50), |trace| {
            vec![share("300 at once each second, 50 ms asleep: shed", trace.shed((30, 120))).at_most(0.01)]
        }),
        scenario(asleep(25.0, 1, 1_000), |trace| {
            vec![share("25/s, 1 s asleep: shed", trace.shed((60, 120))).at_most(0.01)]
        }),
        scenario(asleep(500.0, 1, 1_000), |trace| {
            vec![share("500/s, 1 s asleep: shed", trace.shed((60, 120))).at_most(0.01)]
        }),
        scenario(work(30), |trace| {
            vec![
                share("8/s of 500 ms at 2 ×: answered, of the capacity", trace.answered((120, 240), 4.0)).at_least(0.9),
                figure("8/s of 500 ms at 2 ×: median", trace.median((120, 240))).at_most(1.0),
            ]
        }),
        scenario(work(3), |trace| {
            vec![share("the same, clients give up after 3 s: answered", trace.answered((120, 240), 4.0)).at_least(0.9)]
        }),
        scenario(
            Plan { rate: Some(95.0), mix: Mix::SlowTenant, patience: 15 * SECOND, ..Plan::new(&[(180, 100)]) },
            |trace| {
                let shed = |span| 1.0 - trace.answered_of(span, |record| record.job.tenant != 0);
                vec![
                    share("one key 5/s of 10 s, nine 10/s of 10 ms: shed of the nine", shed((60, 165))).at_most(0.01),
                    share("the same, in the first 15 s", shed((0, 15))),
                ]
            },
        ),
    ]
}

/// The scenarios whose figures have targets, except for the ten-minute incident.
pub(crate) fn short_proof() -> Vec<Scenario> {
    vec![
        scenario(steady(1_000), |trace| {
            vec![
                share("goodput at 10 ×", trace.goodput(STEADY)).at_least(0.9),
                share("top class (20 %) at 10 ×: its share of the capacity", trace.goodput_of_class(STEADY, true)),
                figure("Jain's index of nine tenants at 10 ×", Value::Index(trace.jain(STEADY))).at_least(0.95),
                share("greedy tenant at 10 ×: its share of the goodput", trace.share_of_tenant(STEADY, 0)),
            ]
        }),
        scenario(steady(400), |trace| {
            vec![share("top class (20 %) served at 4 ×", trace.served(STEADY, |it| it.job.is_top)).at_least(0.994)]
        }),
        scenario(Plan { top: 8, ..steady(1_000) }, |trace| {
            vec![share("top class (8 %) served at 10 ×", trace.served(STEADY, |it| it.job.is_top)).at_least(0.994)]
        }),
        no_overload(),
        scenario(slowdown(80), |trace| {
            let recovery = trace.recovery(30, trace.goodput((10, 20)));
            vec![figure("recovery after a slowdown at 0.8 ×", recovery).at_most(5.0)]
        }),
        scenario(slowdown(200), |trace| {
            let recovery = trace.recovery(30, trace.goodput((10, 20)));
            vec![figure("recovery after a slowdown at 2 ×", recovery).at_most(5.0)]
        }),
    ]
}

fn long_proof() -> Scenario {
    scenario(incident(), |trace| {
        let [before, after] = [(60, 120), (720, 780)].map(|span| trace.in_flight(span));
        let change = figure("in the server, before and after an incident", Value::Change(before, after));
        vec![Figure { target: Some(Target::Unchanged), ..change }]
    })
}

fn curve() -> Vec<Scenario> {
    fn low(trace: &Trace) -> Vec<Figure> {
        vec![share("goodput at 0.5 ×", trace.goodput(STEADY)), figure("p99 at 0.5 ×", trace.latency(STEADY, 99))]
    }
    fn usual(trace: &Trace) -> Vec<Figure> {
        vec![share("goodput at 0.8 ×", trace.goodput(STEADY)), figure("p99 at 0.8 ×", trace.latency(STEADY, 99))]
    }
    fn full(trace: &Trace) -> Vec<Figure> {
        vec![share("goodput at 1 ×", trace.goodput(STEADY)), figure("p99 at 1 ×", trace.latency(STEADY, 99))]
    }
    fn twice(trace: &Trace) -> Vec<Figure> {
        vec![
            share("goodput at 2 ×", trace.goodput(STEADY)),
            share("nine tenants at 2 ×: served", trace.served(STEADY, |it| it.job.tenant > 0)),
            figure("p50 at 2 ×", trace.latency(STEADY, 50)),
            figure("p99 at 2 ×", trace.latency(STEADY, 99)),
        ]
    }
    fn five(trace: &Trace) -> Vec<Figure> {
        vec![share("goodput at 5 ×", trace.goodput(STEADY))]
    }
    fn ten(trace: &Trace) -> Vec<Figure> {
        vec![figure("p50 at 10 ×", trace.latency(STEADY, 50)), figure("p99 at 10 ×", trace.latency(STEADY, 99))]
    }
    let figures: [fn(&Trace) -> Vec<Figure>; 6] = [low, usual, full, twice, five, ten];
    LOADS.into_iter().zip(figures).map(|(load, figures)| scenario(steady(load), figures)).collect()
}

fn traps() -> Vec<Scenario> {
    let mixed = |mix, load| Plan { mix, ..steady(load) };
    let usual = |mix| Plan { mix, ..Plan::new(&[(LONG.1, 80)]) };
    vec![
        scenario(usual(Mix::Exponential), |trace| vec![share("exponential: shed at 0.8 ×", trace.shed(LONG))]),
        scenario(mixed(Mix::Exponential, 1_000), |trace| {
            vec![share("exponential: goodput at 10 ×", trace.goodput(STEADY))]
        }),
        scenario(usual(Mix::Bimodal), |trace| vec![share("bimodal: shed at 0.8 ×", trace.shed(LONG))]),
        scenario(mixed(Mix::Bimodal, 1_000), |trace| vec![share("bimodal: goodput at 10 ×", trace.goodput(STEADY))]),
        scenario(usual(Mix::SlowRoute), |trace| vec![share("slow route: shed at 0.8 ×", trace.shed(LONG))]),
        scenario(mixed(Mix::SlowRoute, 200), |trace| vec![share("slow route: goodput at 2 ×", trace.goodput(STEADY))]),
        scenario(mixed(Mix::HealthChecks, 200), |trace| {
            vec![share("health checks: goodput at 2 ×", trace.goodput(STEADY))]
        }),
        scenario(
            Plan { hang: Some((20 * SECOND, 80 * SECOND)), patience: 2 * SECOND, ..Plan::new(&[(110, 200)]) },
            |trace| {
                let [before, after] = [(10, 20), (85, 110)].map(|span| trace.in_flight(span));
                vec![
                    figure("stable timeout: in the server, before and after", Value::Change(before, after)),
                    share("stable timeout: goodput after", trace.goodput((80, 110))),
                ]
            },
        ),
        scenario(Plan::new(&[(3_600, 10), (3_605, 1_000)]), |trace| {
            vec![
                share("idle hour: goodput in 5 s of 10 ×", trace.goodput((3_600, 3_605))),
                figure("idle hour: p99 in 5 s of 10 ×", trace.latency((3_600, 3_605), 99)),
            ]
        }),
        cold_start(),
        scenario(mixed(Mix::LongBody, 200), |trace| {
            vec![
                share("long body: goodput at 2 ×", trace.goodput(STEADY)),
                figure("long body: p99 at 2 ×", trace.latency(STEADY, 99)),
            ]
        }),
        scenario(Plan { growth: Some((30 * SECOND, 16)), ..Plan::new(&[(150, 1_000)]) }, |trace| {
            vec![figure("2 workers become 16: time to 90 % of them", trace.recovery(30, 1.0))]
        }),
        scenario(Plan { workers: 64, ..mixed(Mix::Long, 200) }, |trace| {
            vec![share("64 workers, 50 ms each: goodput at 2 ×", trace.goodput((30, 40)))]
        }),
    ]
}

/// Clients that give up after 50 ms: a limit of 20 answers after exactly that time.
pub(crate) fn clients_that_leave() -> Vec<Scenario> {
    let gives_up = |abandoned| Plan { patience: SECOND / 20, abandoned, ..steady(200) };
    vec![
        scenario(gives_up(Abandoned::Skipped), |trace| {
            vec![share("clients give up after 50 ms: goodput at 2 ×", trace.goodput(STEADY)).at_least(0.9)]
        }),
        scenario(gives_up(Abandoned::Done), |trace| {
            vec![share("the same, and the server works on: goodput", trace.goodput(STEADY)).at_least(0.9)]
        }),
        scenario(gives_up(Abandoned::Held), |trace| {
            vec![share("the same, with permits taken along: goodput", trace.goodput(STEADY)).at_least(0.9)]
        }),
    ]
}

fn scenario(plan: Plan, figures: fn(&Trace) -> Vec<Figure>) -> Scenario {
    Scenario { plan, figures }
}

fn figure(name: &'static str, value: Value) -> Figure {
    Figure { name, target: None, value }
}

fn share(name: &'static str, share: f64) -> Figure {
    figure(name, Value::Share(share))
}

impl Figure {
    fn at_least(self, least: f64) -> Self {
        Self { target: Some(Target::AtLeast(least)), ..self }
    }

    fn at_most(self, most: f64) -> Self {
        Self { target: Some(Target::AtMost(most)), ..self }
    }

    pub(crate) fn misses_its_target(&self) -> bool {
        self.target.is_some_and(|target| !target.is_met(self.value))
    }
}
