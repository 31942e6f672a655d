//! Draws how much an overloaded server does in time, by the offered load, with protection and without.

use crate::picture::{LEFT, Svg, WIDTH};

pub(crate) const TITLE: &str = "A server that is offered more than it can do";

/// The measurements by `k6/overload.js`: comments with the machine and the capacity, the column names, and a row for
/// each load and route.
pub(crate) const MEASURED: &str = include_str!("../goodput.csv");

const SHAPE: &str = "the run has a row for each load and route";

// Pixels.
const TOP: i32 = 118;
const BOTTOM: i32 = 318;
const FROM: i32 = LEFT + 70;
const STEP: i32 = 145;
const HEIGHT: i32 = BOTTOM + 66;

struct Run<'a> {
    origin: &'a str,
    capacity: i32,
    /// The load, in multiples of the capacity, and the goodput per second, bare and protected.
    loads: Vec<(&'a str, [i32; 2])>,
}

impl<'a> Run<'a> {
    fn parse(text: &'a str) -> Self {
        let mut comments = text.lines().filter_map(|line| line.strip_prefix("# "));
        let origin = comments.next().expect("the first comment is the machine");
        let capacity = comments.next().and_then(|line| line.strip_prefix("capacity ")).expect("the second has it");
        let mut rows =
            text.lines().filter(|line| !line.starts_with('#')).map(|line| line.split(',').collect::<Vec<_>>());
        let head = rows.next().expect(SHAPE);
        assert_eq!(head[..4], ["times", "route", "sent", "prompt"], "these are the columns");
        let rows: Vec<_> = rows.collect();
        let loads = rows.chunks(2).map(|pair| {
            let [bare, protected] = pair else { panic!("{SHAPE}") };
            assert!(bare[1] == "bare" && protected[1] == "protected" && bare[0] == protected[0], "{SHAPE}");
            (bare[0], [bare, protected].map(|row| number(row[3])))
        });
        Self { origin, capacity: number(capacity), loads: loads.collect() }
    }

    fn y_of(&self, goodput: i32) -> i32 {
        BOTTOM - goodput * (BOTTOM - TOP) / self.capacity
    }
}

fn number(text: &str) -> i32 {
    text.parse().expect("a number")
}

pub(crate) fn draw(measured: &str) -> String {
    let run = Run::parse(measured);
    let mut svg = Svg::begin(TITLE, HEIGHT);
    svg.text((LEFT, 24), "start", format_args!("<tspan class=\"name\">{TITLE}</tspan>"));
    svg.text((LEFT, 52), "start", "Responses within 100 ms, per second.");
    for (x, color, name) in [(LEFT, "passes", "with protection"), (LEFT + 168, "rejected", "without")] {
        svg.path("blocks", Some((color, 6)), format_args!("M{} 82v-14", x + 4));
        svg.text((x + 14, 82), "start", name);
    }
    svg.path("level", None, format_args!("M{} 75h18", LEFT + 270));
    svg.text((LEFT + 295, 82), "start", "all that it can do");

    for (y, goodput) in [(BOTTOM, 0), (run.y_of(run.capacity), run.capacity)] {
        let class = if goodput == 0 { "line" } else { "level" };
        svg.path(class, None, format_args!("M{} {y}H{}", LEFT + 40, WIDTH - LEFT));
        svg.text((LEFT + 32, y + 6), "end", goodput);
    }
    for (index, (times, _)) in (0..).zip(&run.loads) {
        svg.text((FROM + index * STEP, BOTTOM + 24), "middle", format_args!("{times}×"));
    }
    for (route, color) in [(0, "rejected"), (1, "passes")] {
        let points: Vec<_> = (0..)
            .zip(&run.loads)
            .map(|(index, (_, goodput))| (FROM + index * STEP, run.y_of(goodput[route]), goodput[route]))
            .collect();
        let line: Vec<_> = points.iter().map(|(x, y, _)| format!("{x} {y}")).collect();
        let line = line.join("L");
        svg.write(format_args!("<path style=\"stroke:var(--{color});stroke-width:3\" d=\"M{line}\"/>\n"));
        for (x, y, goodput) in points {
            svg.write(format_args!("<circle style=\"fill:var(--{color})\" cx=\"{x}\" cy=\"{y}\" r=\"5\"/>\n"));
            // Beside the line, which falls; above the other, which does not.
            let place = if route == 0 { (x + 10, y - 8) } else { (x - 10, y + 24) };
            let anchor = if route == 0 { "start" } else { "end" };
            svg.text(place, anchor, format_args!("<tspan style=\"fill:var(--{color})\">{goodput}</tspan>"));
        }
    }
    svg.text((LEFT, BOTTOM + 54), "start", format_args!("A real run: {}", run.origin));
    svg.end()
}
