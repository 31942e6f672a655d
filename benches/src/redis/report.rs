//! What came out, in tables.

use std::fmt::{self, Write as _};

use super::subject::Outcome;
use super::{CONCURRENCY, FEW, HOT, LAYER, LEASED, PING, SINGLE, SINGLE_HOT, SINGLE_WARM, Sample, TOWER, TRYPEMA};
use crate::scale::median;

pub struct Report {
    /// Whether the server was tied to a processor.
    pub pinned: bool,
    pub cells: Vec<Cell>,
    /// What a rejection of a hot key costs, and how many calls to Redis all of them took.
    pub hot: Vec<Outcome<(f64, f64)>>,
}

pub struct Cell {
    pub name: &'static str,
    pub concurrency: usize,
    pub repetition: usize,
    pub sample: Outcome<Sample>,
}

/// The median of all repetitions, and the extremes.
#[derive(Clone, Copy)]
struct Ratio {
    median: f64,
    least: f64,
    most: f64,
}

/// Which of a sample's figures.
type Figure = fn(&Sample) -> f64;

const PER_SECOND: Figure = |sample| sample.per_second;
const P50: Figure = |sample| sample.p50;

impl Report {
    /// All repetitions of a row, in their order.
    fn samples(&self, name: &str, concurrency: usize) -> Vec<(usize, Sample)> {
        let own = self.cells.iter().filter(|cell| cell.name == name && cell.concurrency == concurrency);
        own.filter_map(|cell| Some((cell.repetition, *cell.sample.as_ref().ok()?))).collect()
    }

    /// One by the other, both of the same repetition.
    fn ratio(&self, name: &str, reference: &str, concurrency: usize, figure: Figure) -> Option<Ratio> {
        let references = self.samples(reference, concurrency);
        let ratios = self.samples(name, concurrency).into_iter().filter_map(|(repetition, sample)| {
            let (_, reference) = references.iter().find(|(other, _)| *other == repetition)?;
            Some(figure(&sample) / figure(reference))
        });
        let ratios: Vec<_> = ratios.collect();
        let (least, most) =
            ratios.iter().fold((f64::MAX, 0.0), |(least, most), ratio| (ratio.min(least), ratio.max(most)));
        (!ratios.is_empty()).then(|| Ratio { median: median(ratios), least, most })
    }

    fn row(&self, f: &mut fmt::Formatter<'_>, name: &str, concurrency: usize) -> fmt::Result {
        let samples = self.samples(name, concurrency);
        let failure = self.cells.iter().filter(|cell| cell.name == name && cell.concurrency == concurrency);
        if let Some(problem) = failure.filter_map(|cell| cell.sample.as_ref().err()).next() {
            return writeln!(f, "| {name} | {problem} | – | – | – | – | – | – | – |");
        }
        let of = |figure: Figure| median(samples.iter().map(|(_, sample)| figure(sample)));
        let client: Vec<_> = samples.iter().filter_map(|(_, sample)| sample.client).collect();
        let client = if client.is_empty() { "–".to_owned() } else { format!("{:.2}", median(client)) };
        let times = |reference| times(self.ratio(name, reference, concurrency, PER_SECOND));
        write!(f, "| {name} | {:.0} | {} | {} ", of(PER_SECOND), times(PING), times(TOWER))?;
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

    /// What the project set out to reach.
    pub fn targets(&self) -> String {
        let mut out = "\n## Targets\n\n| what | target | here | |\n|---|---|---|---|\n".to_owned();
        for (name, reference, least) in [
            (SINGLE, TOWER, 1.0),
            (LAYER, TOWER, 1.0),
            (SINGLE, TRYPEMA, 2.5),
            (HOT, SINGLE_HOT, 2.0),
            (FEW, SINGLE, 2.0),
            (LEASED, SINGLE_WARM, 5.0),
        ] {
            // One at a time, it is mostly threads that wake each other.
            for concurrency in &CONCURRENCY[1..] {
                if let Some(ratio) = self.ratio(name, reference, *concurrency, PER_SECOND) {
                    let what = format!("{name}, by {reference}, {concurrency} at a time");
                    target(&mut out, &what, &format!("≥ {least:.1}×"), &times(Some(ratio)), ratio.median >= least);
                }
            }
        }
        for name in [SINGLE, LAYER] {
            if let Some(ratio) = self.ratio(name, PING, 1, P50) {
                let what = format!("p50 of {name}, by {PING}, 1 at a time");
                target(&mut out, &what, "≤ 1.2×", &times(Some(ratio)), ratio.median <= 1.2);
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
        let samples = self.cells.iter().filter_map(|cell| cell.sample.as_ref().ok());
        if !(self.pinned && samples.clone().all(|sample| sample.pinned)) {
            writeln!(f, "\n**Without processors of their own: read with care.**")?;
        }
        for concurrency in CONCURRENCY {
            writeln!(f, "\n## {concurrency} at a time\n")?;
            writeln!(
                f,
                "| | requests per second | by {PING} | by {TOWER} | p50 / p99, µs | Redis, µs | of it commands, µs | commands per request | client, µs |"
            )?;
            writeln!(f, "|---|---|---|---|---|---|---|---|---|")?;
            let first = self.cells.iter().filter(|cell| cell.concurrency == concurrency && cell.repetition == 0);
            first.map(|cell| cell.name).try_for_each(|name| self.row(f, name, concurrency))?;
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

fn times(ratio: Option<Ratio>) -> String {
    ratio.map_or("–".into(), |Ratio { median, least, most }| format!("**{median:.2}×** ({least:.2}–{most:.2})"))
}

fn target(out: &mut String, what: &str, target: &str, here: &str, reached: bool) {
    let verdict = if reached { "reached" } else { "**not reached**" };
    let _ = writeln!(out, "| {what} | {target} | {here} | {verdict} |");
}
