//! The guide's pictures.

use crate::contenders::{Contender, Fixed, Nothing, Ours};
use crate::picture::{Chart, Line, Mark, by_load, load_columns};
use crate::plan::Plan;
use crate::run::{Trace, run};
use crate::scenarios::{LOADS, STEADY, steady};
use crate::table::each;

/// Returns the pictures, each with its name.
pub(crate) fn draw() -> Vec<(&'static str, String)> {
    let contenders: Vec<Box<dyn Contender>> = vec![
        Box::new(Nothing),
        Box::new(Fixed::new("limit 80", 80)),
        Box::new(Fixed::new("limit 20", 20)),
        Box::new(Ours::default()),
    ];
    let traces = each(&contenders, |contender| LOADS.map(|load| run(&steady(load), contender.as_ref(), 1)));
    let [nothing, high, right, ours] = &traces[..] else { unreachable!("there are four") };
    [goodput(nothing, high, right, ours), classes(right, ours), tenants()].map(|chart| (chart.name, chart.svg())).into()
}

fn line(name: &str, color: &str, mark: Mark, points: Vec<(f64, f64)>) -> Line {
    Line { name: name.to_owned(), color: format!("var(--{color})"), mark, points }
}

fn goodput(nothing: &[Trace], high: &[Trace], right: &[Trace], ours: &[Trace]) -> Chart {
    let points = |traces| by_load(traces, |trace| 100.0 * trace.goodput(STEADY));
    Chart {
        name: "goodput",
        title: "Answers within 100 ms, in percent of the capacity, by load",
        columns: load_columns(),
        top: 100.0,
        unit: " %",
        lines: vec![
            line("no limit", "none", Mark::Line, points(nothing)),
            line("a fixed limit of 80", "fixed", Mark::Dashes, points(high)),
            line("a fixed limit of 20", "fixed", Mark::Line, points(right)),
            line("Overload", "ours", Mark::Line, points(ours)),
        ],
    }
}

fn classes(fixed: &[Trace], ours: &[Trace]) -> Chart {
    let of_class = |is_top| by_load(ours, |trace| 100.0 * trace.served(STEADY, |it| it.job.is_top() == is_top));
    Chart {
        name: "classes",
        title: "Requests answered within 100 ms, by load",
        columns: load_columns(),
        top: 100.0,
        unit: " %",
        lines: vec![
            line("Overload: high class (20 %)", "ours", Mark::Line, of_class(true)),
            line("Overload: the others", "ours", Mark::Dashes, of_class(false)),
            line(
                "a fixed limit of 20: all",
                "fixed",
                Mark::Line,
                by_load(fixed, |trace| 100.0 * trace.served(STEADY, |_| true)),
            ),
        ],
    }
}

/// Ten tenants at five times the capacity: one offers three times the capacity, and nine offer 22 % of it each.
pub(crate) fn tenants() -> Chart {
    // All in one class, because a tenant's share is a share within its class.
    let plan = Plan { top: 0, ..steady(500) };
    let bars = |contender: &dyn Contender, offset: f64| -> Vec<(f64, f64)> {
        let trace = run(&plan, contender, 1);
        let share = |tenant: u8| 100.0 * trace.goodput_of(STEADY, |record| record.job.tenant == tenant);
        (0..10).map(|tenant| (f64::from(tenant) / 9.0 + offset, share(tenant))).collect()
    };
    Chart {
        name: "tenants",
        title: "Ten tenants at 5 ×: their shares of the capacity",
        columns: (0..10).map(|tenant| (f64::from(tenant) / 9.0, format!("{}", tenant + 1))).collect(),
        top: 60.0,
        unit: " %",
        lines: vec![
            line("a fixed limit of 20", "fixed", Mark::Bars, bars(&Fixed::new("limit 20", 20), -0.016)),
            line("Overload", "ours", Mark::Bars, bars(&Ours::default(), 0.016)),
        ],
    }
}
