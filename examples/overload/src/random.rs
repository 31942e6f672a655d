//! Random scenarios: each compares our limiter with the best fixed limit.
//!
//! A seed draws ten scenarios: workers, times, arrivals, load, weights, and the clients' patience. A scenario's
//! requests compute, or wait for another server, or some do one and some the other. Ours has two minutes to find its
//! limit. Its longest wait is set as its documentation advises: the clients' patience, less a request's time. The fixed
//! limits are the powers of two up to 1,024, behind `LoadShed`. All contenders meet equal requests in the minute that
//! is measured, and a request counts if it is answered before its client gives up.
//!
//! Answers are few and arrivals vary, so the best among eleven limits is in part the luckiest one. So the best fixed
//! limit is chosen by some draws of the arrivals, and compared with ours on others. Both are drawn again until there
//! are enough answers, and scenarios near the target more often. A share below the target is certain if it is so by two
//! standard errors, which follow from the differences between the draws. Both numbers are printed.
//!
//! If some requests compute and others wait for another server, the best fixed limit may be a very high one: all
//! waiting requests are answered, and the computing ones queue until their clients give up. No limiter that cannot tell
//! the two kinds apart can serve both. The report says in how many scenarios the best fixed limit answers fewer
//! computing requests than another one does, by a fifth. For each such scenario below the target, it shows how many
//! requests two of our limiters serve, one for each kind.

use std::array;
use std::cmp::Reverse;
use std::error::Error;
use std::ops::Range;
use std::time::Duration;

use tower_sluice::testing::Random;

use crate::contenders::{Contender, Fixed, Ours};
use crate::draw::unit;
use crate::plan::{Abandoned, Mix, Plan, Shape};
use crate::run::{Fate, run};
use crate::table::each;
use crate::time::{MILLISECOND, SECOND, seconds};

const SCENARIOS: u64 = 10;

/// Requests within this time count.
const COUNTED: Range<u64> = 120 * SECOND..180 * SECOND;

/// A fixed limit's run begins this much earlier, so that its queues are full.
const EARLIER: u64 = 60 * SECOND;

/// Our target, as a share of the requests that the best fixed limit serves.
const ENOUGH: f64 = 0.9;

/// How many in 1,000 scenarios may miss the target.
const MOST_MISSED: usize = 25;

/// A scenario is run again, with other arrivals, until the best fixed limit has answered `MEASURABLE` requests in all,
/// or it was run `MOST_RUNS` times.
const MEASURABLE: usize = 1_000;
const MOST_RUNS: usize = 20;

/// The differences between fewer runs tell no standard error.
const FEWEST_RUNS: usize = 2;

/// A scenario below this share is run as often as any.
const NEAR: f64 = 0.95;

/// The fixed limits are the powers of two.
const LIMITS: usize = 11;

/// The draws of the arrivals by which the best fixed limit is judged begin here. Those before choose it.
const JUDGING: usize = 1_000;

/// Answers to requests that count: to computing ones, and to those that wait for another server.
#[derive(Clone, Copy, Default)]
struct Answers {
    computing: usize,
    asleep: usize,
}

impl Answers {
    const fn all(self) -> usize {
        self.computing + self.asleep
    }

    const fn plus(self, other: Self) -> Self {
        Self { computing: self.computing + other.computing, asleep: self.asleep + other.asleep }
    }
}

/// The answers by ours and by the best fixed limit, to equal requests.
#[derive(Clone, Copy)]
struct Run {
    ours: Answers,
    best: Answers,
}

struct Outcome {
    seed: u64,
    number: u64,
    runs: Vec<Run>,
    /// The power of two that is the best fixed limit.
    best: usize,
    /// Whether the best fixed limit answers fewer computing requests than another one, by a fifth.
    gives_up_work: bool,
}

impl Outcome {
    fn sum(&self, of: impl Fn(&Run) -> f64) -> f64 {
        self.runs.iter().map(of).sum()
    }

    fn ours(&self) -> f64 {
        self.sum(|run| run.ours.all() as f64)
    }

    fn of_best(&self) -> f64 {
        self.sum(|run| run.best.all() as f64)
    }

    fn share(&self) -> f64 {
        if self.of_best() == 0.0 { 1.0 } else { self.ours() / self.of_best() }
    }

    /// Whether ours is below the target by two standard errors, from the differences between the runs.
    fn is_certainly_below(&self) -> bool {
        let short = |run: &Run| ENOUGH * run.best.all() as f64 - run.ours.all() as f64;
        let runs = self.runs.len() as f64;
        let mean = self.sum(short) / runs;
        let squares = self.sum(|run| (short(run) - mean).powi(2));
        let error = (squares / (runs - 1.0) / runs).sqrt();
        self.share() < ENOUGH && mean > 2.0 * error
    }

    /// The requests that ours serves with a limiter for each request kind, as a share of those that the best fixed
    /// limit serves. `None` if all are of one kind.
    fn share_apart(&self) -> Option<f64> {
        let plan = draw(self.seed, self.number);
        let Mix::Drawn { asleep: 1..100, .. } = plan.mix else { return None };
        let apart = Ours { is_apart: true, ..ours(&plan) };
        let draws = JUDGING..JUDGING + self.runs.len();
        let served: usize = draws.map(|draw| served(&plan, &apart, arrivals(self.seed, draw)).all()).sum();
        Some(served as f64 / self.of_best())
    }

    fn print(&self) {
        let Self { seed, number, best, gives_up_work, .. } = self;
        let runs = self.runs.len();
        let what = describe(&draw(*seed, *number));
        let by_chance = if self.is_certainly_below() { "" } else { ", perhaps by chance" };
        let gives_up = if *gives_up_work { ", which gives up those that compute" } else { "" };
        let apart = self.share_apart().map(|share| format!(", {share:.2} with a limiter for each kind"));
        let apart = apart.unwrap_or_default();
        let notes = format!("{gives_up}, in runs: {runs}{by_chance}{apart}");
        println!(
            "{:.2}  {seed}:{number}  {} served, and {} by a limit of {}{notes}: {what}",
            self.share(),
            self.ours(),
            self.of_best(),
            1 << best,
        );
    }
}

/// Given a number of seeds, runs their scenarios on two threads, and prints those below the target. Given
/// `SEED:NUMBER`, prints one scenario's course.
///
/// # Errors
///
/// If too many scenarios are below the target, or the argument makes no sense.
pub(crate) fn report(argument: &str) -> Result<(), Box<dyn Error>> {
    if let Some((seed, number)) = argument.split_once(':') {
        print_one(seed.parse()?, number.parse()?);
        return Ok(());
    }
    let numbers: Vec<_> = (0..argument.parse::<u64>()? * SCENARIOS).collect();
    let mut outcomes = each(&numbers, |number| compare(number / SCENARIOS, number % SCENARIOS));
    outcomes.sort_by(|one, other| one.share().total_cmp(&other.share()));
    let below: Vec<_> = outcomes.iter().take_while(|outcome| outcome.share() < ENOUGH).collect();
    below.iter().for_each(|outcome| outcome.print());
    let missed = below.iter().filter(|outcome| outcome.is_certainly_below()).count();
    let share = |percent: usize| outcomes.get(outcomes.len() * percent / 100).map_or(1.0, Outcome::share);
    let [worst, one, ten, half] = [0, 1, 10, 50].map(share);
    println!("{} scenarios, {missed} of them below {ENOUGH} of the best fixed limit", outcomes.len());
    println!("{} more are below it by less than two standard errors", below.len() - missed);
    let given_up = below.iter().filter(|outcome| outcome.is_certainly_below() && outcome.gives_up_work).count();
    println!(
        "in {given_up} of the {missed}, the best fixed limit gives up requests that compute, for others that wait"
    );
    println!("the worst: {worst:.2}; 1 % are below {one:.2}, 10 % below {ten:.2}, and half below {half:.2}");
    if missed * 1_000 > outcomes.len() * MOST_MISSED {
        return Err(format!("more than {MOST_MISSED} in 1,000 are below the target").into());
    }
    Ok(())
}

fn compare(seed: u64, number: u64) -> Outcome {
    let plan = draw(seed, number);
    let later = Plan { since: COUNTED.start - EARLIER, ..plan.clone() };
    let of_limit = |power: usize, draw| served(&later, &Fixed::new("a fixed limit", 1 << power), arrivals(seed, draw));
    let mut fixed = [Answers::default(); LIMITS];
    let mut best = 0;
    for draw in 0..MOST_RUNS {
        fixed = array::from_fn(|power| fixed[power].plus(of_limit(power, draw)));
        best = (0..LIMITS).max_by_key(|power| (fixed[*power].all(), Reverse(*power))).expect("there are limits");
        if fixed[best].all() >= MEASURABLE {
            break;
        }
    }
    let gives_up_work = fixed.iter().any(|some| 4 * some.computing > 5 * fixed[best].computing);
    let mut outcome = Outcome { seed, number, runs: Vec::new(), best, gives_up_work };
    for draw in JUDGING..JUDGING + MOST_RUNS {
        let is_measured = outcome.runs.len() >= FEWEST_RUNS && outcome.of_best() >= MEASURABLE as f64;
        if is_measured && outcome.share() >= NEAR {
            break;
        }
        let ours = served(&plan, &ours(&plan), arrivals(seed, draw));
        outcome.runs.push(Run { ours, best: of_limit(best, draw) });
    }
    outcome
}

/// The arrivals' seed.
const fn arrivals(seed: u64, draw: usize) -> u64 {
    seed | (draw as u64) << 32
}

/// How many requests that count are answered.
fn served(plan: &Plan, contender: &dyn Contender, seed: u64) -> Answers {
    let trace = run(plan, contender, seed);
    let answered = trace.records.iter().filter(|it| COUNTED.contains(&it.arrived) && it.fate == Fate::Answered);
    answered.fold(Answers::default(), |answers, record| {
        answers.plus(Answers { computing: usize::from(!record.job.is_io), asleep: usize::from(record.job.is_io) })
    })
}

fn ours(plan: &Plan) -> Ours {
    let Mix::Drawn { mean, .. } = plan.mix else { return Ours::default() };
    let max_wait = Some(Duration::from_nanos(plan.patience - mean));
    Ours { max_wait, is_weighted: plan.is_weighted, is_apart: false }
}

fn print_one(seed: u64, number: u64) {
    let plan = draw(seed, number);
    compare(seed, number).print();
    let later = Plan { since: COUNTED.start - EARLIER, ..plan.clone() };
    for limit in (0..LIMITS).map(|power| 1 << power) {
        let Answers { computing, asleep } = served(&later, &Fixed::new("a fixed limit", limit), seed);
        println!("a limit of {limit}: {computing} served that compute, and {asleep} that wait");
    }
    let apart = Ours { is_apart: true, ..ours(&plan) };
    for (name, contender) in [("ours", ours(&plan)), ("ours, a limiter for each kind", apart)] {
        let Answers { computing, asleep } = served(&plan, &contender, seed);
        println!("{name}: {computing} served that compute, and {asleep} that wait");
    }
    let trace = run(&plan, &ours(&plan), seed);
    for (second, inside) in trace.inside.iter().enumerate().step_by(5) {
        let came = |fate| {
            let fates = trace.records.iter().filter(|it| it.arrived / SECOND == second as u64 && it.fate == fate);
            fates.count()
        };
        let [answered, refused, given_up] = [Fate::Answered, Fate::Refused, Fate::GivenUp].map(came);
        println!("{second:>4} s: {inside:.1} inside; answered {answered}, refused {refused}, given up {given_up}");
    }
}

/// Draws a scenario.
pub(crate) fn draw(seed: u64, number: u64) -> Plan {
    let random = &mut Random::new(seed.wrapping_mul(SCENARIOS).wrapping_add(number));
    loop {
        let workers = random.pick(&[1, 2, 4, 8, 16, 64]);
        let mean = between(random, 2.0 * MILLISECOND as f64, SECOND as f64);
        let rate = between(random, 4.0, 300.0);
        let asleep = random.pick(&[0, 0, 100]);
        let shape = random.pick(&[Shape::Fixed, Shape::Exponential, Shape::Bimodal]);
        let mix = Mix::Drawn { mean: mean as u64, shape, asleep };
        let load = rate * mean * (100 - asleep) as f64 / 100.0 / f64::from(workers) / SECOND as f64;
        if asleep < 100 && !(0.3..10.0).contains(&load) {
            continue;
        }
        let longest = if shape == Shape::Bimodal { 5.5 * mean } else { 4.0 * mean };
        let patience = between(random, longest.max(0.3 * SECOND as f64), 20.0 * SECOND as f64) as u64;
        let abandoned = random.pick(&[Abandoned::Skipped, Abandoned::Done]);
        let mut plan = Plan { workers, mix, rate: Some(rate), patience, abandoned, ..Plan::new(&[(180, 100)]) };
        match random.below(4) {
            0 => plan.at_once = ((rate * between(random, 0.1, 5.0)) as u64).max(1),
            1 => plan.phases = on_and_off(random),
            _ => {}
        }
        if asleep == 0 && random.below(4) == 0 {
            plan.mix = Mix::Drawn { mean: mean as u64, shape, asleep: 10 + random.below(81) };
        }
        plan.is_weighted = random.below(4) == 0;
        return plan;
    }
}

/// A load that comes in a part of each period, and stops in the rest.
fn on_and_off(random: &mut Random) -> Vec<(u64, u64)> {
    let period = between(random, 2.0 * SECOND as f64, 30.0 * SECOND as f64) as u64;
    let percent = 20 + random.below(61);
    let starts = (0..COUNTED.end).step_by(period as usize);
    starts.flat_map(|at| [(at + period * percent / 100, 100 * 100 / percent), (at + period, 1)]).collect()
}

/// Draws a number whose logarithm is spread evenly.
fn between(random: &mut Random, low: f64, high: f64) -> f64 {
    low * (high / low).powf(unit(random))
}

fn describe(plan: &Plan) -> String {
    let Plan { workers, mix, rate, patience, abandoned, at_once, phases, is_weighted, .. } = plan;
    let mut text = format!("{workers} workers, {mix:?}, {:.1}/s, ", rate.unwrap_or_default());
    text += &format!("patience {:.1} s, abandoned work {abandoned:?}, {at_once} at once", seconds(*patience));
    if *is_weighted {
        text += ", weights";
    }
    if let [(on, load), (off, _), ..] = &phases[..] {
        text += &format!(", {load} % for {:.1} of {:.1} s", seconds(*on), seconds(*off));
    }
    text
}
