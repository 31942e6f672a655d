//! The results, in tables.

use std::collections::BTreeSet;
use std::fmt;

use crate::load::{Cells, Outcome};
use crate::ratio::times;
use crate::rows::{CONCURRENCY, PEER, Row, SELECT};
use crate::size::Size;
use crate::steady;
use crate::work::Sample;

pub struct Report {
    /// Whether the server was tied to a processor.
    pub is_pinned: bool,
    pub rows: Vec<Row>,
    pub cells: Cells<Sample>,
    /// The concurrencies that were measured again.
    pub again: BTreeSet<usize>,
}

const PER_SECOND: fn(&Sample) -> f64 = |sample| sample.per_second;

impl Report {
    pub fn new(rows: Vec<Row>, is_pinned: bool) -> Self {
        Self { is_pinned, rows, cells: Cells(Vec::new()), again: BTreeSet::new() }
    }

    /// Whether all rows must be measured again, because the peer varied too much.
    pub fn is_restless(&self, concurrency: usize) -> bool {
        self.cells.variation(PEER, concurrency, PER_SECOND) > steady::MOST
    }

    /// Keeps `count` repetitions, those in which the peer took least.
    pub fn keep_quietest(&mut self, concurrency: usize, count: usize) {
        self.cells.keep_quietest(PEER, concurrency, PER_SECOND, count);
        self.again.insert(concurrency);
    }

    fn row(&self, f: &mut fmt::Formatter<'_>, row: &Row, concurrency: usize) -> fmt::Result {
        let name = row.name;
        if let Some(problem) = self.cells.problem(name, concurrency) {
            return writeln!(f, "| {name} | {problem} | – | – | – | – | – | – | – | – |");
        }
        let of = |figure| self.cells.median(name, concurrency, figure);
        let by = |reference| times(self.cells.ratio(name, reference, concurrency, PER_SECOND));
        write!(f, "| {name} | {:.0} | {} | {} ", of(PER_SECOND), by(SELECT), by(row.peer))?;
        write!(f, "| {:.1} / {:.1} ", of(|it| it.p50), of(|it| it.p99))?;
        write!(f, "| {:.2} | {:.0} | {:.2} ", of(|it| it.server), of(|it| 1e6 / it.server), of(|it| it.client))?;
        writeln!(f, "| {:.0} | {:.2} |", of(|it| it.wal), of(|it| it.writes))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let samples = self.cells.0.iter().filter_map(|cell| cell.sample.as_ref().ok());
        if !(self.is_pinned && samples.clone().all(|sample| sample.is_pinned)) {
            writeln!(f, "\n**Without processors of their own: read with care.**")?;
        }
        for concurrency in CONCURRENCY {
            writeln!(f, "\n## {concurrency} at a time\n")?;
            if self.again.contains(&concurrency) {
                writeln!(
                    f,
                    "Measured again, as the peer varied: the repetitions in which {PEER} took least are kept.\n"
                )?;
            }
            writeln!(
                f,
                "| | requests per second | by {SELECT} | by the peer | p50 / p99, µs | PostgreSQL, µs | per second of its processor | client, µs | WAL, bytes | writes |"
            )?;
            writeln!(f, "|---|---|---|---|---|---|---|---|---|---|")?;
            let rows = self.rows.iter().filter(|row| row.concurrency.contains(&concurrency));
            rows.clone().try_for_each(|row| self.row(f, row, concurrency))?;
        }
        Ok(())
    }
}

/// The space that the tables took.
pub fn sizes(sizes: &[(&str, Outcome<Size>)]) -> String {
    if sizes.is_empty() {
        return String::new();
    }
    let mut out =
        "\n## Tables\n\n| | keys | bytes per new key | WAL per new key | decisions then | bytes per key after them \
                   | of these, within their pages | WAL per decision |\n|---|---|---|---|---|---|---|---|\n"
            .to_owned();
    for (name, size) in sizes {
        let line = match size {
            Err(problem) => format!("| {name} | {problem} | – | – | – | – | – | – |\n"),
            Ok(Size { keys, updates, fresh, updated, hot, wal, wal_fresh }) => format!(
                "| {name} | {keys} | {fresh:.0} | {wal_fresh:.0} | {updates} | {updated:.0} | {:.1} % | {wal:.0} |\n",
                100.0 * hot
            ),
        };
        out.push_str(&line);
    }
    out
}
