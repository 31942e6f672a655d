//! The results, in tables.

use std::fmt;

use crate::load::{Cells, Outcome};
use crate::ratio::times;
use crate::rows::Row;
use crate::work::{IN_FLIGHT, KEYS, RATE, Sample, Size};

pub struct Report {
    /// Whether the thread that asks was tied to a processor.
    pub is_pinned: bool,
    pub rows: Vec<Row>,
    pub cells: Cells<Sample>,
}

const PER_SECOND: fn(&Sample) -> f64 = |sample| sample.per_second;
const PER_PROCESSOR: fn(&Sample) -> f64 = |sample| 1e6 / sample.server;

impl Report {
    pub fn new(rows: Vec<Row>, is_pinned: bool) -> Self {
        Self { is_pinned, rows, cells: Cells(Vec::new()) }
    }

    fn row(&self, f: &mut fmt::Formatter<'_>, row: &Row) -> fmt::Result {
        let name = row.name;
        if let Some(problem) = self.cells.problem(name, IN_FLIGHT) {
            return writeln!(f, "| {name} | {problem} | – | – | – | – | – | – | – |");
        }
        let of = |figure| self.cells.median(name, IN_FLIGHT, figure);
        write!(f, "| {name} | {:.0} | {:.0} ", of(PER_SECOND), of(PER_PROCESSOR))?;
        for peer in row.peers {
            let ratio = peer.and_then(|peer| self.cells.ratio(name, peer, IN_FLIGHT, PER_PROCESSOR));
            write!(f, "| {} ", times(ratio))?;
        }
        write!(f, "| {:.1} | {:.1} ", of(|it| it.server), of(|it| it.client))?;
        let least = self.cells.all(name, IN_FLIGHT, |it| it.p99).into_iter().fold(f64::INFINITY, f64::min);
        writeln!(f, "| {:.0} | {:.0} ({least:.0}) |", of(|it| it.p50), of(|it| it.p99))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is_pinned {
            writeln!(f, "\n**Without processors of their own: read with care.**")?;
        }
        writeln!(f, "\n{IN_FLIGHT} requests under way, {KEYS} keys; the waits are at {RATE} requests per second.\n")?;
        writeln!(
            f,
            "| | requests per second | per second of its processor | by limitador | by throttlecrab | server, µs \
             | client, µs | p50, µs | p99, µs (least) |"
        )?;
        writeln!(f, "|---|---|---|---|---|---|---|---|---|")?;
        self.rows.iter().try_for_each(|row| self.row(f, row))
    }
}

/// The memory that the keys took.
pub fn sizes(sizes: &[(&str, Outcome<Size>)], keys: u64) -> String {
    if sizes.is_empty() {
        return String::new();
    }
    let mut out = format!(
        "\n## Memory: resident, MiB, before and after {keys} keys\n\n| | at the start | then | bytes per key \
         |\n|---|---|---|---|\n"
    );
    for (name, size) in sizes {
        let line = match size {
            Err(problem) => format!("| {name} | {problem} | – | – |\n"),
            Ok(Size { empty, full }) => format!(
                "| {name} | {:.1} | {:.1} | {:.0} |\n",
                mebibytes(*empty),
                mebibytes(*full),
                full.saturating_sub(*empty) as f64 / keys as f64
            ),
        };
        out.push_str(&line);
    }
    out
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
