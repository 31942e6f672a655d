//! Draws one picture per traffic shape: the offered requests, and below them a row per algorithm.
//!
//! A block is a request: above the line while it waits and when it passes, below it when it is rejected. The pictures
//! have no background, and their colours follow the theme. A phone shows them at half their size, at which the text can
//! still be read.

use std::fmt::Write;

use crate::simulation::{QUOTA, Run, SAMPLE};
use crate::traffic::{END, Traffic};

/// The rules for a picture's colours: the system's in an `<img>`, and those for rustdoc's theme in the guide, where
/// pictures are part of the page and their rules apply to it.
const THEMES: [(&str, &str, &str); 4] = [
    ("", LIGHT, ""),
    ("@media(prefers-color-scheme:dark){", DARK, "}"),
    ("[data-theme=light] ", LIGHT, ""),
    (":is([data-theme=dark],[data-theme=ayu]) ", DARK, ""),
];
// The example server's live page has these colours for passing and rejected requests (`page.css`).
const LIGHT: &str = "--ink:#262b33;--quiet:#5a626d;--rule:#d3d6da;--level:#585e68;--offered:#969ca6;--passes:#2563be;--waits:#a5c5f2;--rejected:#d95f02";
const DARK: &str = "--ink:#e6e9ee;--quiet:#a6aeb9;--rule:#3d444d;--level:#c3c9d1;--offered:#7f8792;--passes:#5f9df5;--waits:#2f568f;--rejected:#f08a3c";

const STYLE: &str = ".shape text{font:18px sans-serif;fill:var(--quiet)}\
    .shape .name{font-weight:bold;fill:var(--ink)}\
    .shape .pass{fill:var(--passes)}.shape .reject{fill:var(--rejected)}\
    .shape path{fill:none}\
    .shape .blocks{stroke-width:6}\
    .shape .level{stroke:var(--level);stroke-width:2}\
    .shape .rule{stroke:var(--rule)}.shape .line{stroke:var(--quiet)}";

const INFALLIBLE: &str = "a string takes everything";
const SMALL: &str = "the picture has a few hundred blocks";

// Pixels.
pub(crate) const WIDTH: i32 = 600;
pub(crate) const LEFT: i32 = 20;
const COLUMN: i32 = 7;
const HEAD: i32 = 104;
const LABEL: i32 = 28;
const FOOT: i32 = 28;
const GAP: i32 = 14;

/// Draws the picture as SVG, no wider than the page.
pub(crate) fn draw(traffic: &Traffic, runs: &[Run]) -> String {
    let rows: Vec<Row> = [Row::offered(traffic)].into_iter().chain(runs.iter().map(Row::of)).collect();
    let highest = rows.iter().map(|row| highest(&row.present).max(highest(&row.rejected))).max().unwrap_or(0);
    let block = (66 / highest.max(1)).clamp(5, 6);
    let tops: Vec<i32> =
        rows.iter().scan(HEAD, |next, row| Some(std::mem::replace(next, *next + row.height(block) + GAP))).collect();
    let bottom = rows.iter().zip(&tops).map(|(row, top)| top + row.height(block)).max().unwrap_or(HEAD);
    let height = bottom + FOOT;

    let mut svg = Svg::begin(traffic.title, height);
    legend(&mut svg, traffic);
    for (row, top) in rows.iter().zip(&tops) {
        row.draw(&mut svg, *top, block);
    }
    for second in 0..=END / 1_000 {
        svg.text((x_of(second * 1_000), bottom + 22), "middle", format_args!("{second} s"));
    }
    svg.end()
}

fn legend(svg: &mut Svg, traffic: &Traffic) {
    svg.text((LEFT, 24), "start", format_args!("<tspan class=\"name\">{}</tspan>", traffic.title));
    svg.text((LEFT, 52), "start", "Each limiter is set to ten per second.");
    let mut x = LEFT;
    for (color, name, width) in [("passes", "passes", 94), ("waits", "waits", 84), ("rejected", "is rejected", 128)] {
        svg.path("blocks", Some((color, 6)), format_args!("M{} 82v-14", x + 4));
        svg.text((x + 14, 82), "start", name);
        x += width;
    }
    svg.path("level", None, format_args!("M{x} 75h18"));
    svg.text((x + 25, 82), "start", "what it remembers");
}

/// The blocks above and below a line, column by column, in requests.
struct Row {
    name: &'static str,
    remembers: &'static str,
    figures: String,
    color: &'static str,
    passing: Vec<i32>,
    /// Requests that pass or wait.
    present: Vec<i32>,
    rejected: Vec<i32>,
    level: Vec<i32>,
}

impl Row {
    fn offered(traffic: &Traffic) -> Self {
        let passing = count(traffic.arrivals.iter().copied());
        Self {
            name: "Offered",
            remembers: "by one client",
            figures: format!("{} requests", traffic.arrivals.len()),
            color: "offered",
            present: passing.clone(),
            passing,
            rejected: Vec::new(),
            level: Vec::new(),
        }
    }

    fn of(run: &Run) -> Self {
        let mut figures = format!("<tspan class=\"pass\">{} pass</tspan>", run.admitted());
        let (wait, rejected) = (run.longest_wait(), run.rejected());
        if wait > 0 {
            figures += &format!(" within {wait} ms");
        }
        if rejected > 0 {
            figures += &format!(", <tspan class=\"reject\">{rejected} rejected</tspan>");
        }
        let passing = count(run.fates.iter().filter_map(|fate| fate.left));
        let level: Vec<i32> = run.level.iter().map(|level| i32::try_from(*level).expect(SMALL)).collect();
        // Waiters are requests, and drawn as blocks.
        let (present, level) = if run.is_queue {
            (passing.iter().zip(&level).map(|(passing, waiting)| passing + waiting).collect(), Vec::new())
        } else {
            (passing.clone(), level)
        };
        let rejected = run.fates.iter().filter(|fate| fate.left.is_none());
        Self {
            name: run.name,
            remembers: run.remembers,
            figures,
            color: "passes",
            passing,
            present,
            rejected: count(rejected.map(|fate| fate.arrived)),
            level,
        }
    }

    /// Returns the pixels above the line: for the blocks, and for all levels.
    fn above(&self, block: i32) -> i32 {
        let level = if self.level.is_empty() { 0 } else { i32::try_from(QUOTA.limit()).expect(SMALL) };
        highest(&self.present).max(level) * block
    }

    fn height(&self, block: i32) -> i32 {
        LABEL + self.above(block) + highest(&self.rejected) * block
    }

    fn draw(&self, svg: &mut Svg, top: i32, block: i32) {
        let (line, bottom, right) =
            (top + LABEL + self.above(block), top + self.height(block), LEFT + columns() * COLUMN);
        let label = format_args!("<tspan class=\"name\">{}</tspan> {}", self.name, self.remembers);
        svg.text((LEFT, top + 16), "start", label);
        svg.text((right, top + 16), "end", &self.figures);
        let seconds = (0..=END / 1_000).map(|second| format!("M{} {}V{bottom}", x_of(second * 1_000), top + LABEL));
        svg.path("rule", None, seconds.collect::<String>());
        let waiting: Vec<i32> = self.present.iter().zip(&self.passing).map(|(all, passing)| all - passing).collect();
        let none = vec![0; self.passing.len()];
        svg.blocks("waits", &waiting, &self.passing, line, -block);
        svg.blocks(self.color, &self.passing, &none, line, -block);
        svg.blocks("rejected", &self.rejected, &none, line, block);
        svg.path("line", None, format_args!("M{LEFT} {line}H{right}"));
        svg.steps(&self.level, line, -block);
    }
}

fn highest(bars: &[i32]) -> i32 {
    bars.iter().copied().max().unwrap_or(0)
}

/// Counts the instants in each column.
fn count(at: impl Iterator<Item = u64>) -> Vec<i32> {
    let mut columns = vec![0; usize::try_from(columns()).expect(SMALL)];
    for at in at.filter(|at| *at < END) {
        columns[usize::try_from(at / SAMPLE).expect(SMALL)] += 1;
    }
    columns
}

fn columns() -> i32 {
    i32::try_from(END / SAMPLE).expect(SMALL)
}

fn x_of(millis: u64) -> i32 {
    LEFT + i32::try_from(millis / SAMPLE).expect(SMALL) * COLUMN
}

/// The picture's text so far.
pub(crate) struct Svg(String);

impl Svg {
    pub(crate) fn begin(title: &str, height: i32) -> Self {
        let mut svg = Self(format!(
            "<svg class=\"shape\" role=\"img\" aria-label=\"{title}\" width=\"{WIDTH}\" viewBox=\"0 0 {WIDTH} {height}\" \
             style=\"max-width:100%;height:auto\" xmlns=\"http://www.w3.org/2000/svg\">\n<style>"
        ));
        for (before, colors, after) in THEMES {
            svg.write(format_args!("{before}.shape{{{colors}}}{after}"));
        }
        svg.write(format_args!("{STYLE}</style>\n"));
        svg
    }

    pub(crate) fn end(self) -> String {
        self.0 + "</svg>\n"
    }

    pub(crate) fn write(&mut self, text: std::fmt::Arguments<'_>) {
        self.0.write_fmt(text).expect(INFALLIBLE);
    }

    pub(crate) fn text(&mut self, (x, y): (i32, i32), anchor: &str, text: impl std::fmt::Display) {
        let anchor = if anchor == "start" { String::new() } else { format!(" text-anchor=\"{anchor}\"") };
        self.write(format_args!("<text x=\"{x}\" y=\"{y}\"{anchor}>{text}</text>\n"));
    }

    /// Draws a line, and cuts it into blocks if it has a colour for these. Dashes start again at each `M`.
    pub(crate) fn path(&mut self, class: &str, blocks: Option<(&str, i32)>, line: impl std::fmt::Display) {
        let dashes =
            blocks.map(|(color, block)| format!(" style=\"stroke:var(--{color});stroke-dasharray:{} 1\"", block - 1));
        self.write(format_args!("<path class=\"{class}\"{} d=\"{line}\"/>\n", dashes.unwrap_or_default()));
    }

    /// Draws columns of blocks, each on those that `below` counts.
    fn blocks(&mut self, color: &str, heights: &[i32], below: &[i32], line: i32, block: i32) {
        let columns = (0..).zip(heights.iter().zip(below)).filter(|(_, (height, _))| **height > 0);
        let columns = columns.map(|(column, (height, below))| {
            // A pixel off the line.
            let from = line + below * block + block.signum();
            format!("M{} {from}v{}", LEFT + column * COLUMN + COLUMN / 2, height * block)
        });
        let columns: String = columns.collect();
        if !columns.is_empty() {
            self.path("blocks", Some((color, block.abs())), columns);
        }
    }

    /// Draws a stepped line, with a point where it turns.
    fn steps(&mut self, heights: &[i32], line: i32, block: i32) {
        let mut steps = String::new();
        let mut last = None;
        for (column, height) in (0..).zip(heights) {
            let (x, y) = (LEFT + column * COLUMN, line + height * block);
            match last {
                None => steps += &format!("M{x} {y}"),
                Some(last) if last == y => {}
                Some(_) => steps += &format!("H{x}V{y}"),
            }
            last = Some(y);
        }
        if !steps.is_empty() {
            self.path("level", None, format_args!("{steps}H{}", LEFT + columns() * COLUMN));
        }
    }
}
