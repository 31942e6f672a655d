//! Draws curves as SVG. They have no background, and their colours follow the theme.

use std::fmt::Write;

use crate::contenders::Contender;
use crate::run::{Trace, run};
use crate::scenarios::{LOADS, STEADY, incident, steady};
use crate::table::each;

/// A picture: points by contender.
pub(crate) struct Chart {
    /// The file's name, without its extension.
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// Positions and texts below the axis.
    pub(crate) columns: Vec<(f64, String)>,
    /// The highest value, and its unit.
    pub(crate) top: f64,
    pub(crate) unit: &'static str,
    pub(crate) lines: Vec<Line>,
}

pub(crate) struct Line {
    pub(crate) name: String,
    /// As CSS has it.
    pub(crate) color: String,
    pub(crate) mark: Mark,
    pub(crate) points: Vec<(f64, f64)>,
}

/// How points are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Mark {
    Line,
    Dashes,
    Bars,
}

/// The rules for a picture's colours: the system's in an `<img>`, and those for rustdoc's theme in the guide, where
/// pictures are part of the page.
const THEMES: [(&str, &str, &str); 4] = [
    ("", LIGHT, ""),
    ("@media(prefers-color-scheme:dark){", DARK, "}"),
    ("[data-theme=light] ", LIGHT, ""),
    (":is([data-theme=dark],[data-theme=ayu]) ", DARK, ""),
];
const LIGHT: &str = "--ink:#262b33;--quiet:#5a626d;--rule:#d3d6da;--ours:#2563be;--none:#d95f02;--fixed:#7a828d";
const DARK: &str = "--ink:#e6e9ee;--quiet:#a6aeb9;--rule:#3d444d;--ours:#5f9df5;--none:#f08a3c;--fixed:#969ca6";
const STYLE: &str = ".load text{font:15px sans-serif;fill:var(--quiet)}.load .name{font-weight:bold;fill:var(--ink)}\
    .load path{fill:none;stroke-width:2.5}.load .bars{stroke-width:14}.load .rule{stroke:var(--rule);stroke-width:1}";

// Pixels.
const WIDTH: f64 = 600.0;
const LEFT: f64 = 60.0;
const HEAD: f64 = 50.0;
const HEIGHT: f64 = 260.0;
const ROW: usize = 22;

/// Returns the pictures, each with its name.
pub(crate) fn draw(contenders: &[Box<dyn Contender>]) -> Vec<(&'static str, String)> {
    let traces = each(contenders, |contender| LOADS.map(|load| run(&steady(load), contender.as_ref(), 1)));
    let incidents = each(contenders, |contender| run(&incident(), contender.as_ref(), 1));
    let names: Vec<&str> = contenders.iter().map(|contender| contender.name()).collect();
    let by_load = |value: &dyn Fn(&Trace) -> f64| -> Vec<Vec<(f64, f64)>> {
        traces.iter().map(|traces| by_load(traces, value)).collect()
    };
    let goodput = lines(&names, by_load(&|trace| 100.0 * trace.goodput(STEADY)), "", Mark::Line);
    let top = lines(&names, by_load(&|trace| 100.0 * trace.goodput_of_class(STEADY, true)), ", top class", Mark::Line);
    let rest =
        lines(&names, by_load(&|trace| 100.0 * trace.goodput_of_class(STEADY, false)), ", the rest", Mark::Dashes);
    let greedy = lines(&names, by_load(&|trace| 100.0 * trace.share_of_tenant(STEADY, 0)), "", Mark::Line);
    // A point is the mean over ten seconds.
    let inside = |trace: &Trace| {
        let spans = (0..78).map(|ten| (10 * ten, 10 * ten + 10));
        spans.map(|span| (span.0 as f64 / 780.0, trace.in_flight(span).min(240.0))).collect()
    };
    let inside = lines(&names, incidents.iter().map(inside).collect(), "", Mark::Line);
    let loads = load_columns();
    let minutes = (0..=13).map(|minute| (f64::from(minute) / 13.0, format!("{minute}"))).collect();
    let charts = [
        Chart {
            name: "goodput",
            title: "Goodput by offered load",
            columns: loads.clone(),
            top: 100.0,
            unit: " %",
            lines: goodput,
        },
        Chart {
            name: "classes",
            title: "Goodput of two classes by offered load",
            columns: loads.clone(),
            top: 100.0,
            unit: " %",
            lines: [top, rest].into_iter().flatten().collect(),
        },
        Chart {
            name: "tenants",
            title: "The greedy tenant's share of the goodput",
            columns: loads,
            top: 100.0,
            unit: " %",
            lines: greedy,
        },
        Chart {
            name: "incident",
            title: "In the server; in minutes 2 to 12, work takes three times as long",
            columns: minutes,
            top: 240.0,
            unit: "",
            lines: inside,
        },
    ];
    charts.iter().map(|chart| (chart.name, chart.svg())).collect()
}

/// A curve's points by load.
pub(crate) fn by_load(traces: &[Trace], value: impl Fn(&Trace) -> f64) -> Vec<(f64, f64)> {
    (0..).zip(traces).map(|(x, trace)| (f64::from(x) / 5.0, value(trace))).collect()
}

/// A curve's columns by load.
pub(crate) fn load_columns() -> Vec<(f64, String)> {
    (0..).zip(LOADS).map(|(x, load)| (f64::from(x) / 5.0, format!("{} ×", load as f64 / 100.0))).collect()
}

fn lines(names: &[&str], points: Vec<Vec<(f64, f64)>>, suffix: &str, mark: Mark) -> Vec<Line> {
    let lines = names.iter().zip(points).enumerate();
    let line = |(number, (name, points)): (usize, (&&str, _))| Line {
        name: format!("{name}{suffix}"),
        color: format!("hsl({} 60% 50%)", number * 67 % 360),
        mark,
        points,
    };
    lines.map(line).collect()
}

impl Chart {
    pub(crate) fn svg(&self) -> String {
        let rows = self.lines.len().div_ceil(2);
        let height = HEAD + HEIGHT + 40.0 + (rows * ROW) as f64;
        let mut svg = format!(
            "<svg class=\"load\" role=\"img\" width=\"{WIDTH}\" viewBox=\"0 0 {WIDTH} {height}\" \
             style=\"max-width:100%;height:auto\" xmlns=\"http://www.w3.org/2000/svg\">\n"
        );
        let mut add = |line: std::fmt::Arguments<'_>| svg.write_fmt(line).expect("a string takes everything");
        add(format_args!("<title>{}</title>\n<desc>{}</desc>\n<style>", self.title, self.in_words()));
        for (before, colors, after) in THEMES {
            add(format_args!("{before}.load{{{colors}}}{after}"));
        }
        add(format_args!("{STYLE}</style>\n"));
        add(format_args!("<text class=\"name\" x=\"20\" y=\"24\">{}</text>\n", self.title));
        for part in 0..=4 {
            let value = self.top * f64::from(part) / 4.0;
            let y = self.y(value);
            add(format_args!("<path class=\"rule\" d=\"M{LEFT} {y:.0}H{}\"/>\n", WIDTH - 20.0));
            add(format_args!(
                "<text text-anchor=\"end\" x=\"{}\" y=\"{:.0}\">{value:.0}{}</text>\n",
                LEFT - 6.0,
                y + 5.0,
                self.unit
            ));
        }
        for (x, text) in &self.columns {
            add(format_args!(
                "<text text-anchor=\"middle\" x=\"{:.0}\" y=\"{:.0}\">{text}</text>\n",
                x_of(*x),
                HEAD + HEIGHT + 22.0
            ));
        }
        for (number, line) in self.lines.iter().enumerate() {
            let (class, style) = line.style();
            let points = line.points.iter().map(|(x, y)| (x_of(*x), self.y(*y)));
            let path: Vec<String> = match line.mark {
                Mark::Bars => points.map(|(x, y)| format!("M{x:.1} {:.0}V{y:.1}", self.y(0.0))).collect(),
                Mark::Line | Mark::Dashes => points.map(|(x, y)| format!("{x:.1} {y:.1}")).collect(),
            };
            let path = if line.mark == Mark::Bars { path.concat() } else { format!("M{}", path.join("L")) };
            add(format_args!("<path{class} style=\"{style}\" d=\"{path}\"/>\n"));
            let (x, y) = (20 + number / rows * 290, HEAD + HEIGHT + 50.0 + (number % rows * ROW) as f64);
            add(format_args!("<path{class} style=\"{style}\" d=\"M{x} {:.0}h18\"/>", y - 5.0));
            add(format_args!("<text x=\"{}\" y=\"{y:.0}\">{}</text>\n", x + 25, line.name));
        }
        svg + "</svg>\n"
    }

    /// The values at the columns, for readers who do not see them.
    fn in_words(&self) -> String {
        let line = |line: &Line| {
            let last = line.points.len().saturating_sub(1);
            let value = |(column, (_, name)): (usize, &(f64, String))| {
                let (_, value) = line.points[column * last / self.columns.len().saturating_sub(1).max(1)];
                format!("{name}: {value:.0}{}", self.unit)
            };
            let values: Vec<String> = self.columns.iter().enumerate().map(value).collect();
            format!("{}: {}.", line.name, values.join(", "))
        };
        self.lines.iter().map(line).collect::<Vec<_>>().join(" ")
    }

    fn y(&self, value: f64) -> f64 {
        HEAD + HEIGHT * (1.0 - value / self.top)
    }
}

/// The pixel for a position between 0 and 1.
fn x_of(position: f64) -> f64 {
    LEFT + 15.0 + position * (WIDTH - LEFT - 50.0)
}

impl Line {
    /// The attribute `class`, and the value for `style`.
    fn style(&self) -> (&'static str, String) {
        let color = format!("stroke:{}", self.color);
        match self.mark {
            Mark::Line => ("", color),
            Mark::Dashes => ("", color + ";stroke-dasharray:6 4"),
            Mark::Bars => (" class=\"bars\"", color),
        }
    }
}
