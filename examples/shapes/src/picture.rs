//! Draws one picture per shape of traffic: the offered requests, and below them a row per algorithm.
//!
//! A block is a request: above the line while it waits and when it passes, below it when it is rejected.

use plotters::backend::SVGBackend;
use plotters::coord::Shift;
use plotters::element::{PathElement, Polygon, Rectangle, Text};
use plotters::prelude::{DrawingArea, IntoDrawingArea};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, FontDesc, FontStyle, IntoFont, IntoTextStyle, RGBColor};

use crate::simulation::{QUOTA, Run, SAMPLE};
use crate::traffic::{END, Traffic};

const BACKGROUND: RGBColor = RGBColor(252, 252, 250);
const INK: RGBColor = RGBColor(38, 43, 51);
const PALE_INK: RGBColor = RGBColor(105, 112, 122);
const RULE: RGBColor = RGBColor(206, 209, 214);
const LEVEL: RGBColor = RGBColor(88, 94, 104);
const OFFERED: RGBColor = RGBColor(150, 156, 166);
const PASSES: RGBColor = RGBColor(37, 99, 190);
const WAITS: RGBColor = RGBColor(178, 205, 242);
const REJECTED: RGBColor = RGBColor(217, 95, 2);

const INFALLIBLE: &str = "a string takes everything";
const SMALL: &str = "the picture has a few hundred blocks";

// Pixels.
const WIDTH: i32 = 916;
const LEFT: i32 = 140;
const COLUMN: i32 = 8;
const HEAD: i32 = 62;
const FOOT: i32 = 30;
const GAP: i32 = 16;

/// Draws the picture as SVG, of the width of a page.
pub(crate) fn draw(traffic: &Traffic, runs: &[Run]) -> String {
    let rows: Vec<Row> = [Row::offered(traffic)].into_iter().chain(runs.iter().map(Row::of)).collect();
    let highest = rows.iter().map(|row| highest(&row.present).max(highest(&row.rejected))).max().unwrap_or(0);
    let block = (66 / highest.max(1)).clamp(5, 7);
    let tops: Vec<i32> =
        rows.iter().scan(HEAD, |next, row| Some(std::mem::replace(next, *next + row.height(block) + GAP))).collect();
    let bottom = rows.iter().zip(&tops).map(|(row, top)| top + row.height(block)).max().unwrap_or(HEAD);
    let height = bottom + FOOT;

    let mut svg = String::new();
    {
        let canvas = SVGBackend::with_string(&mut svg, (WIDTH.unsigned_abs(), height.unsigned_abs()));
        let canvas = Canvas(canvas.into_drawing_area());
        canvas.rectangle((0, 0), (WIDTH, height), BACKGROUND);
        legend(&canvas, traffic);
        for (row, top) in rows.iter().zip(&tops) {
            row.draw_blocks(&canvas, top + row.above(block), block);
        }
        // Cuts all bars into columns with one line that winds through the picture.
        let cuts = (0..=columns()).flat_map(|column| {
            let (x, ends) = (LEFT + column * COLUMN, [HEAD, bottom]);
            if column % 2 == 0 { [(x, ends[0]), (x, ends[1])] } else { [(x, ends[1]), (x, ends[0])] }
        });
        canvas.path(cuts, BACKGROUND, 1);
        for (row, top) in rows.iter().zip(&tops) {
            row.draw_lines(&canvas, *top, block);
        }
        for second in 0..=END / 1_000 {
            canvas.text(&format!("{second} s"), (x_of(second * 1_000), bottom + 8), 14, PALE_INK, HPos::Center);
        }
        canvas.0.present().expect(INFALLIBLE);
    }
    // No wider than the page, and with a label for screen readers. The removed attributes are the defaults.
    let size = format!("<svg width=\"{WIDTH}\" height=\"{height}\"");
    let sized = format!(
        "<svg role=\"img\" aria-label=\"{}\" width=\"{WIDTH}\" style=\"max-width:100%;height:auto\" \
         font-family=\"sans-serif\" shape-rendering=\"crispEdges\"",
        traffic.title
    );
    [
        " opacity=\"1\"",
        " stroke=\"none\"",
        " stroke-width=\"1\"",
        " font-family=\"sans-serif\"",
        " text-anchor=\"start\"",
    ]
    .iter()
    .fold(svg, |svg, default| svg.replace(default, ""))
    .replacen(&size, &sized, 1)
}

fn legend(canvas: &Canvas<'_>, traffic: &Traffic) {
    canvas.bold(traffic.title, (14, 14), 21);
    let mut x = LEFT;
    for (color, name, width) in [(PASSES, "passes", 66), (WAITS, "waits", 58), (REJECTED, "is rejected", 90)] {
        canvas.rectangle((x, 43), (x + COLUMN, 50), color);
        canvas.text(name, (x + 13, 40), 14, PALE_INK, HPos::Left);
        x += width;
    }
    canvas.rectangle((x, 46), (x + 14, 48), LEVEL);
    let rest = "what the algorithm remembers; each is set to ten per second";
    canvas.text(rest, (x + 20, 40), 14, PALE_INK, HPos::Left);
}

/// The blocks above and below a line, column by column, in requests.
struct Row {
    name: &'static str,
    remembers: &'static str,
    figures: Vec<(String, RGBColor)>,
    color: RGBColor,
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
            figures: vec![(format!("{} requests", traffic.arrivals.len()), PALE_INK)],
            color: OFFERED,
            present: passing.clone(),
            passing,
            rejected: Vec::new(),
            level: Vec::new(),
        }
    }

    fn of(run: &Run) -> Self {
        let wait = run.longest_wait();
        let mut figures = vec![(format!("{} pass", run.admitted()), PASSES)];
        figures.extend((run.rejected() > 0).then(|| (format!("{} rejected", run.rejected()), REJECTED)));
        figures.extend((wait > 0).then(|| (format!("wait up to {wait} ms"), PALE_INK)));
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
            color: PASSES,
            passing,
            present,
            rejected: count(rejected.map(|fate| fate.arrived)),
            level,
        }
    }

    /// Returns the pixels above the line: for the blocks, for all levels, and for three lines of text.
    fn above(&self, block: i32) -> i32 {
        let level = if self.level.is_empty() { 0 } else { i32::try_from(QUOTA.limit()).expect(SMALL) };
        (highest(&self.present).max(level) * block).max(46)
    }

    fn height(&self, block: i32) -> i32 {
        self.above(block) + highest(&self.rejected) * block
    }

    fn draw_blocks(&self, canvas: &Canvas<'_>, line: i32, block: i32) {
        canvas.skyline(&self.present, line, -block, WAITS);
        canvas.skyline(&self.passing, line, -block, self.color);
        canvas.skyline(&self.rejected, line, block, REJECTED);
        let cuts = (-highest(&self.present)..=highest(&self.rejected)).flat_map(|row| {
            let (y, ends) = (line + row * block, [LEFT, LEFT + columns() * COLUMN]);
            if row % 2 == 0 { [(ends[0], y), (ends[1], y)] } else { [(ends[1], y), (ends[0], y)] }
        });
        canvas.path(cuts, BACKGROUND, 1);
    }

    fn draw_lines(&self, canvas: &Canvas<'_>, top: i32, block: i32) {
        let (line, right) = (top + self.above(block), LEFT + columns() * COLUMN);
        canvas.bold(self.name, (14, line - 32), 17);
        canvas.text(self.remembers, (14, line - 13), 14, PALE_INK, HPos::Left);
        for (index, (figure, color)) in (0..).zip(&self.figures) {
            canvas.text(figure, (right + 12, line - 40 + 17 * index), 15, *color, HPos::Left);
        }
        for second in 0..=END / 1_000 {
            let x = x_of(second * 1_000);
            canvas.rectangle((x, top), (x + 1, top + self.height(block)), RULE);
        }
        canvas.rectangle((LEFT, line), (right, line + 1), PALE_INK);
        canvas.path(corners(steps(&self.level, line, -block)), LEVEL, 2);
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

/// Outlines a row of bars.
fn steps(heights: &[i32], line: i32, block: i32) -> impl Iterator<Item = (i32, i32)> {
    (0..).zip(heights).flat_map(move |(column, height)| {
        let (x, y) = (LEFT + column * COLUMN, line + height * block);
        [(x, y), (x + COLUMN, y)]
    })
}

/// Keeps only the points at which a line of steps turns.
fn corners(steps: impl Iterator<Item = (i32, i32)>) -> Vec<(i32, i32)> {
    let mut corners: Vec<(i32, i32)> = Vec::new();
    for point in steps {
        if matches!(corners[..], [.., (_, before), (_, last)] if before == last && last == point.1) {
            corners.pop();
        }
        corners.push(point);
    }
    corners
}

/// A drawing area in pixels. It writes to a string, which cannot fail.
struct Canvas<'a>(DrawingArea<SVGBackend<'a>, Shift>);

impl Canvas<'_> {
    fn rectangle(&self, from: (i32, i32), to: (i32, i32), color: RGBColor) {
        self.0.draw(&Rectangle::new([from, to], color.filled())).expect(INFALLIBLE);
    }

    fn path(&self, points: impl IntoIterator<Item = (i32, i32)>, color: RGBColor, width: u32) {
        let points: Vec<_> = points.into_iter().collect();
        if !points.is_empty() {
            self.0.draw(&PathElement::new(points, color.stroke_width(width))).expect(INFALLIBLE);
        }
    }

    /// Draws bars on a line, as one shape.
    fn skyline(&self, heights: &[i32], line: i32, block: i32, color: RGBColor) {
        if highest(heights) > 0 {
            let right = LEFT + columns() * COLUMN;
            let outline = [(LEFT, line)].into_iter().chain(steps(heights, line, block)).chain([(right, line)]);
            self.0.draw(&Polygon::new(corners(outline), color)).expect(INFALLIBLE);
        }
    }

    fn text(&self, text: &str, at: (i32, i32), size: i32, color: RGBColor, align: HPos) {
        self.write(text, at, ("sans-serif", size).into_font(), color, align);
    }

    fn bold(&self, text: &str, at: (i32, i32), size: i32) {
        self.write(text, at, ("sans-serif", size).into_font().style(FontStyle::Bold), INK, HPos::Left);
    }

    fn write(&self, text: &str, at: (i32, i32), font: FontDesc<'_>, color: RGBColor, align: HPos) {
        let style = font.into_text_style(&self.0).color(&color).pos(Pos::new(align, VPos::Top));
        self.0.draw(&Text::new(text.to_owned(), at, style)).expect(INFALLIBLE);
    }
}
