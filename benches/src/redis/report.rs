//! The results, in tables.

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};

use super::{
    CONCURRENCY, FEW, HOT, LAYER, LEASED, PING, QUEUE, SINGLE, SINGLE_HOT, SINGLE_WARM, Sample, THREE_POLICIES, TOWER,
    TRYPEMA,
};
use crate::load::{Cells, Outcome};
use crate::ratio::times;
use crate::scale::median;
use crate::steady;

pub struct Report {
    /// Whether the server was tied to a processor.
    pub pinned: bool,
    pub cells: Cells<Sample>,
    /// The concurrencies that were measured again.
    pub again: BTreeSet<usize>,
    /// A hot key's rejection cost, and how many calls to Redis all rejections took.
    pub hot: Vec<Outcome<(f64, f64)>>,
}

/// Picks one figure from a sample.
type Figure = fn(&Sample) -> f64;

const PER_SECOND: Figure = |sample| sample.per_second;
const P50: Figure = |sample| sample.p50;

impl Report {
    /// Whether all rows must be measured again, because the targets' reference varied too much.
    pub fn is_restless(&self, concurrency: usize) -> bool {
        let peer = self.cells.variation(TOWER, concurrency, PER_SECOND);
        let floor = self.cells.variation(PING, concurrency, P50);
        peer > steady::MOST || concurrency == 1 && floor > steady::MOST
    }

    /// Keeps `count` repetitions, those in which the peer took least.
    pub fn keep_quietest(&mut self, concurrency: usize, count: usize) {
        self.cells.keep_quietest(TOWER, concurrency, PER_SECOND, count);
        self.again.insert(concurrency);
    }

    fn row(&self, f: &mut fmt::Formatter<'_>, name: &str, concurrency: usize) -> fmt::Result {
        let samples = self.cells.samples(name, concurrency);
        if let Some(problem) = self.cells.problem(name, concurrency) {
            return writeln!(f, "| {name} | {problem} | – | – | – | – | – | – | – |");
        }
        let of = |figure: Figure| self.cells.median(name, concurrency, figure);
        let client: Vec<_> = samples.iter().filter_map(|(_, sample)| sample.client).collect();
        let client = if client.is_empty() { "–".to_owned() } else { format!("{:.2}", median(client)) };
        let by = |reference| times(self.cells.ratio(name, reference, concurrency, PER_SECOND));
        write!(f, "| {name} | {:.0} | {} | {} ", of(PER_SECOND), by(PING), by(TOWER))?;
        write!(
            f,
            "| {:.1} / {:.1} | {:.2} | {:.2} ",
            of(P50),
            of(|it| it.p99),
            of(|it| it.server),
            of(|it| it.command)
        )?;
        writeln!(f, "| {:.2} | {client} |", of(|it| it.calls))
    }

    fn hot(&self) -> Option<(f64, f64)> {
        let hot: Vec<_> = self.hot.iter().filter_map(|hot| hot.as_ref().ok()).collect();
        let calls = hot.iter().map(|(_, calls)| calls).sum();
        (!hot.is_empty()).then(|| (median(hot.iter().map(|(nanos, _)| *nanos)), calls))
    }

    /// The project's targets.
    pub fn targets(&self) -> String {
        let mut out = "\n## Targets\n\n| what | target | here | |\n|---|---|---|---|\n".to_owned();
        // One at a time, the time mostly goes into threads that wake each other.
        for (name, reference, concurrency, least) in [
            (SINGLE, TOWER, 64, 1.0),
            (SINGLE, TOWER, 512, 1.0),
            (LAYER, TOWER, 64, 1.0),
            (LAYER, TOWER, 512, 1.0),
            (THREE_POLICIES, TOWER, 512, 0.7),
            (QUEUE, TOWER, 512, 1.0),
            (SINGLE, TRYPEMA, 64, 2.5),
            (SINGLE, TRYPEMA, 512, 2.5),
            (HOT, SINGLE_HOT, 64, 2.0),
            (HOT, SINGLE_HOT, 512, 2.0),
            (FEW, SINGLE, 64, 2.0),
            (FEW, SINGLE, 512, 2.0),
            (LEASED, SINGLE_WARM, 64, 6.0),
            (LEASED, SINGLE_WARM, 512, 5.0),
        ] {
            if let Some(ratio) = self.cells.ratio(name, reference, concurrency, PER_SECOND) {
                let what = format!("{name}, by {reference}, {concurrency} at a time");
                target(&mut out, &what, &format!("≥ {least:.1}×"), &times(Some(ratio)), ratio.median >= least);
            }
        }
        for (name, most) in [(SINGLE, 1.15), (LAYER, 1.25)] {
            if let Some(ratio) = self.cells.ratio(name, PING, 1, P50) {
                let what = format!("p50 of {name}, by {PING}, 1 at a time");
                target(&mut out, &what, &format!("≤ {most:.2}×"), &times(Some(ratio)), ratio.median <= most);
            }
        }
        if let Some((nanos, _)) = self.hot() {
            target(&mut out, "rejection of a hot key, µs", "≤ 2", &format!("{:.2}", nanos / 1e3), nanos <= 2_000.0);
        }
        out
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let samples = self.cells.0.iter().filter_map(|cell| cell.sample.as_ref().ok());
        if !(self.pinned && samples.clone().all(|sample| sample.pinned)) {
            writeln!(f, "\n**Without processors of their own: read with care.**")?;
        }
        for concurrency in CONCURRENCY {
            writeln!(f, "\n## {concurrency} at a time\n")?;
            if self.again.contains(&concurrency) {
                writeln!(
                    f,
                    "Measured again, as the reference varied: the repetitions in which {TOWER} took least are kept.\n"
                )?;
            }
            writeln!(
                f,
                "| | requests per second | by {PING} | by {TOWER} | p50 / p99, µs | Redis, µs | of it commands, µs | commands per request | client, µs |"
            )?;
            writeln!(f, "|---|---|---|---|---|---|---|---|---|")?;
            super::rows().iter().try_for_each(|row| self.row(f, row.name, concurrency))?;
        }
        match self.hot() {
            Some((nanos, calls)) => write!(
                f,
                "\nA key of which Redis has said until when it rejects: {nanos:.0} ns per rejection, {calls:.0} calls to Redis for all of them."
            ),
            None => write!(f, "\nThe rejection of a hot key was not measured: {:?}", self.hot),
        }
    }
}

fn target(out: &mut String, what: &str, target: &str, here: &str, reached: bool) {
    let verdict = if reached { "reached" } else { "**not reached**" };
    let _ = writeln!(out, "| {what} | {target} | {here} | {verdict} |");
}
