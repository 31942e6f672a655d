//! Random scenarios, in each of which our limiter is compared with the best fixed limit.
//!
//! A seed draws ten scenarios: workers, times, arrivals, load, weights, and the patience of clients. The requests of a
//! scenario compute, or wait for another server, or a part of them does this or that. Ours has two minutes to find its
//! limit. Its longest wait is set as its documentation advises: the patience of the clients, less the time of a
//! request. The fixed limits are the powers of two up to 1,024, behind `LoadShed`. All contenders meet the same
//! requests in the minute that is measured, and a request counts if it is answered before its client gives up.
//!
//! If a minute has few answers, the best of eleven limits is the luckiest one, and the difference may be chance. So
//! such a scenario is run again, with other arrivals, and the answers are added up; the best fixed limit is the best
//! one in the sum. A share below the target is certain if it is so by two standard errors, which follow from the
//! differences between the runs. Both numbers are printed.

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

/// The requests of this time count.
const COUNTED: Range<u64> = 120 * SECOND..180 * SECOND;

/// The run of a fixed limit begins this much earlier, so that its queues are full.
const EARLIER: u64 = 60 * SECOND;

/// Our target, as a share of the requests that the best fixed limit serves.
const ENOUGH: f64 = 0.9;

/// How many of 1,000 scenarios may miss the target.
const MOST_MISSED: usize = 25;

/// A scenario is run again, with other arrivals, until the best fixed limit has answered so many requests in all, or it
/// was run so often: of a few dozen answers, the best of eleven limits has more than 0.9 allows by luck.
const MEASURABLE: usize = 1_000;
const MOST_RUNS: usize = 20;

/// The answers to requests that count, in one run.
struct Answers {
    ours: usize,
    /// By the limits, which are the powers of two.
    fixed: [usize; LIMITS],
}

const LIMITS: usize = 11;

struct Outcome {
    seed: u64,
    number: u64,
    runs: Vec<Answers>,
    /// The power of two that is the best fixed limit in all runs together.
    best: usize,
}

impl Outcome {
    fn new(seed: u64, number: u64, runs: Vec<Answers>) -> Self {
        let by_limit = |power: usize| runs.iter().map(|run| run.fixed[power]).sum::<usize>();
        let best = (0..LIMITS).max_by_key(|power| (by_limit(*power), Reverse(*power))).expect("there are limits");
        Self { seed, number, runs, best }
    }

    fn sum(&self, of: impl Fn(&Answers) -> f64) -> f64 {
        self.runs.iter().map(of).sum()
    }

    fn ours(&self) -> f64 {
        self.sum(|run| run.ours as f64)
    }

    fn of_best(&self) -> f64 {
        self.sum(|run| run.fixed[self.best] as f64)
    }

    fn share(&self) -> f64 {
        if self.of_best() == 0.0 { 1.0 } else { self.ours() / self.of_best() }
    }

    /// Whether ours is below the target by two standard errors, from the differences between the runs. One run that has
    /// enough answers is certain.
    fn is_certainly_below(&self) -> bool {
        let short = |run: &Answers| ENOUGH * run.fixed[self.best] as f64 - run.ours as f64;
        let runs = self.runs.len() as f64;
        let mean = self.sum(short) / runs;
        let squares = self.sum(|run| (short(run) - mean).powi(2));
        let error = if runs > 1.0 { (squares / (runs - 1.0) / runs).sqrt() } else { 0.0 };
        self.share() < ENOUGH && mean > 2.0 * error
    }

    fn print(&self) {
        let Self { seed, number, runs, best } = self;
        let what = describe(&draw(*seed, *number));
        let by_chance = if self.is_certainly_below() { "" } else { ", perhaps by chance" };
        println!(
            "{:.2}  {seed}:{number}  {} served, and {} by a limit of {}, in runs: {}{by_chance}: {what}",
            self.share(),
            self.ours(),
            self.of_best(),
            1 << best,
            runs.len(),
        );
    }
}

/// Given a number of seeds, runs their scenarios on two threads, and prints those below the target. Given
/// `SEED:NUMBER`, prints the course of one scenario.
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
    println!("the worst: {worst:.2}; 1 % are below {one:.2}, 10 % below {ten:.2}, and half below {half:.2}");
    if missed * 1_000 > outcomes.len() * MOST_MISSED {
        return Err(format!("more than {MOST_MISSED} in 1,000 are below the target").into());
    }
    Ok(())
}

fn compare(seed: u64, number: u64) -> Outcome {
    let plan = draw(seed, number);
    let later = Plan { since: COUNTED.start - EARLIER, ..plan.clone() };
    let mut outcome = Outcome::new(seed, number, Vec::new());
    while outcome.runs.len() < MOST_RUNS && outcome.of_best() < MEASURABLE as f64 {
        let arrivals = seed | (outcome.runs.len() as u64) << 32;
        let fixed = array::from_fn(|power| served(&later, &Fixed::new("a fixed limit", 1 << power), arrivals));
        let mut runs = outcome.runs;
        runs.push(Answers { ours: served(&plan, &ours(&plan), arrivals), fixed });
        outcome = Outcome::new(seed, number, runs);
    }
    outcome
}

/// How many of the requests that count are answered.
fn served(plan: &Plan, contender: &dyn Contender, seed: u64) -> usize {
    let trace = run(plan, contender, seed);
    trace.records.iter().filter(|it| COUNTED.contains(&it.arrived) && it.fate == Fate::Answered).count()
}

fn ours(plan: &Plan) -> Ours {
    let Mix::Drawn { mean, .. } = plan.mix else { return Ours::default() };
    let max_wait = Some(Duration::from_nanos(plan.patience - 2 * mean));
    Ours { max_wait, is_weighted: plan.is_weighted }
}

fn print_one(seed: u64, number: u64) {
    let plan = draw(seed, number);
    compare(seed, number).print();
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
