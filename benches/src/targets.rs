//! The project's targets, and the measured figures.

use std::fmt;

use crate::cell::{Cell, HOT, KeyType, MILLION, Of, Work};
use crate::layer::Row;
use crate::ratio::{Ratio, times};
use crate::report::Report;
use crate::{app, count, lines};

const HOT_IP: Work = Work::uniform(KeyType::Ip, HOT);
const MILLION_IP: Work = Work::uniform(KeyType::Ip, MILLION);
const MILLION_TEXT: Work = Work::uniform(KeyType::Text, MILLION);

/// Targets for decisions, relative to `governor` with keys: (name, limiter, work, timing, lowest ratio).
const DECISIONS: [(&str, Of, Work, &str, f64); 14] = [
    ("one hot key", Of::Ours, HOT_IP, "loop", 1.3),
    ("1M uniform, IP, loop", Of::Ours, MILLION_IP, "loop", 2.9),
    ("1M uniform, string, loop", Of::Ours, MILLION_TEXT, "loop", 4.0),
    ("1M, IP, isolated", Of::Ours, MILLION_IP, "isolated", 2.2),
    ("1M, string, isolated", Of::Ours, MILLION_TEXT, "isolated", 3.5),
    ("10M, IP, isolated", Of::Ours, Work::uniform(KeyType::Ip, 10 * MILLION), "isolated", 1.9),
    ("10M, string, loop", Of::Ours, Work::uniform(KeyType::Text, 10 * MILLION), "loop", 3.0),
    ("1M Zipf, IP", Of::Ours, MILLION_IP.zipf(), "loop", 2.4),
    ("1M Zipf, string", Of::Ours, MILLION_TEXT.zipf(), "loop", 2.4),
    ("2 threads, hot, admitted", Of::Ours, HOT_IP.threads(2), "loop", 2.4),
    ("2 threads, hot, rejected", Of::Ours, HOT_IP.threads(2).rejected(), "loop", 4.5),
    ("2 threads, 1M uniform", Of::Ours, MILLION_IP.threads(2), "loop", 3.0),
    ("fixed window, 1M uniform, IP, loop", Of::Fixed, MILLION_IP, "loop", 1.8),
    ("sliding window, 1M uniform, IP, loop", Of::Sliding, MILLION_IP, "loop", 1.8),
];

/// Targets for the time that a layer adds to the bare service, relative to another layer: (name, layer, other layer,
/// highest ratio).
const LAYERS: [(&str, Row, Row, f64); 6] = [
    ("layer, admitted, no fields, by `tower_governor`", Row::Silent, Row::Governor, 1.2),
    ("layer, admitted, draft-11 fields, by `tower_governor` with headers", Row::Fields, Row::GovernorHeaders, 0.65),
    ("layer, rejected with body and fields, by our own admitted with fields", Row::Rejected, Row::Fields, 1.5),
    ("layer, two policies, by one, no fields", Row::TwoPolicies, Row::Silent, 1.6),
    ("layer, a quota per customer, by one quota, no fields", Row::Customer, Row::Silent, 1.3),
    ("layer, a quota per customer, by one quota, draft-11 fields", Row::CustomerFields, Row::Fields, 1.3),
];

const INSTRUCTIONS: [(&str, Row, f64); 3] = [
    ("instructions beside the bare service: no fields", Row::Silent, 550.0),
    ("instructions beside the bare service: draft-11 fields", Row::Fields, 1_600.0),
    ("instructions beside the bare service: two policies, no fields", Row::TwoPolicies, 900.0),
];

/// Requests per second, by the app without a layer.
const APPS: [(&str, &str, f64); 3] = [
    ("axum app under load, no fields, by the app without a layer", app::SILENT, 0.97),
    ("axum app under load, draft-11 fields, by the app without a layer", app::FIELDS, 0.93),
    ("axum app under load, rejected, by the app without a layer", app::REJECTED, 0.93),
];

/// The code size before the request path was made shorter.
const LINES_OF_CODE: usize = 14_400;

/// Whether the table needs a cell.
pub fn need(cell: Cell) -> bool {
    match cell {
        Cell::Decide(of, work) => DECISIONS
            .iter()
            .any(|row| row.2 == work && (row.1 == of || matches!(of, Of::Nothing | Of::Governor | Of::Ideal))),
        Cell::Tail(of) => matches!(of, Of::Nothing | Of::Ours),
        Cell::Change(of, _) => of == Of::Ours,
        Cell::Exact(..) => false,
        _ => true,
    }
}

pub fn write(report: &Report, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    writeln!(f, "\n## Targets\n\n| what | target | here | | a hand-written ideal |\n|---|---|---|---|---|")?;
    for (what, row, by, target) in LAYERS {
        let within =
            |row: Row| report.within(Cell::Layer, &format!("{}: ns", row.name()), &format!("{}: ns", by.name()));
        // Only that one does nothing that a minimal layer does not.
        let by_hand = (row == Row::Silent).then(|| within(Row::MinimalIdeal)).flatten();
        at_most(f, what, target, within(row), by_hand)?;
    }
    for (what, row, target) in INSTRUCTIONS {
        if let Some(count) = report.median(Cell::Instructions, &count::name(row)) {
            row_of(f, what, &format!("≤ {target}"), &format!("{count:.0}"), count.round() <= target, None)?;
        }
    }
    for (what, row, target) in APPS {
        let [row, bare] = [row, app::BARE].map(|row| format!("{row}: per second"));
        at_least(f, what, target, 2, report.within(Cell::App, &row, &bare), None)?;
    }
    for (what, of, work, name, target) in DECISIONS {
        let ratio = |of| report.ratio(Cell::Decide(of, work), name);
        at_least(f, what, target, 1, ratio(of), ratio(Of::Ideal).filter(|_| of == Of::Ours))?;
    }
    // The worst in each repetition, and their median, as the machine itself may delay any one.
    let worst = report.median(Cell::Tail(Of::Ours), "max");
    let change = |keys| report.median(Cell::Change(Of::Ours, keys), "change: max on the processor").map(|ns| ns / 1e6);
    let bytes = |of, work| report.median(Cell::Decide(of, work), "bytes");
    let allocations = |row: Row| report.median(Cell::Layer, &format!("{}: allocations", row.name()));
    for (what, target, here, digits) in [
        ("bytes per live key, 1M, IP", 17.0, bytes(Of::Ours, MILLION_IP), 1),
        ("bytes per live key, 1M, string", 17.0, bytes(Of::Ours, MILLION_TEXT), 1),
        ("bytes per live key, 1M, IP, fixed window", 17.0, bytes(Of::Fixed, MILLION_IP), 1),
        ("bytes per live key, 1M, IP, sliding window", 17.0, bytes(Of::Sliding, MILLION_IP), 1),
        ("worst decision while 4M keys arrive, ms", 1.0, worst.map(|ns| ns / 1e6), 2),
        ("longest decision while the limits of 1M keys change, thread not descheduled, ms", 1.0, change(MILLION), 2),
        (
            "longest decision while the limits of 10M keys change, thread not descheduled, ms",
            1.0,
            change(10 * MILLION),
            2,
        ),
        ("live keys lost at half load", 0.0, report.median(Cell::Lost, "lost"), 0),
        ("admitted twice on first touch", 0.0, report.median(Cell::FirstTouch, "twice"), 0),
        ("layer, admitted, no fields, allocations", 0.0, allocations(Row::Silent), 0),
    ] {
        if let Some(here) = here {
            row_of(f, what, &format!("≤ {target}"), &format!("{here:.digits$}"), here <= target, None)?;
        }
    }
    #[cfg(feature = "servers")]
    {
        use crate::in_flight::By::{Ours, Overload};
        let what = "a unit in flight, taken and released, 1M keys, by a map of semaphores";
        at_least(f, what, 6.0, 1, report.ratio(Cell::InFlight(Ours, MILLION), "loop"), None)?;
        for (what, target, figure, by, keys) in [
            ("protection from overload, a unit taken and released, ns", 150.0, "loop", Overload, HOT),
            ("a unit in flight, taken and released, hot key, ns", 80.0, "loop", Ours, HOT),
            ("a unit in flight, taken and released, 1M keys, ns", 80.0, "loop", Ours, MILLION),
            ("a unit in flight, 1M keys, bytes per live key", 24.0, "bytes", Ours, MILLION),
        ] {
            if let Some(here) = report.median(Cell::InFlight(by, keys), figure) {
                row_of(f, what, &format!("≤ {target}"), &format!("{here:.1}"), here <= target, None)?;
            }
        }
    }
    // Beside rows with ratios, but not below a row that the user asked for by name.
    if let Some(lines) = lines::of_code().filter(|_| allocations(Row::Silent).is_some()) {
        let target = format!("< {LINES_OF_CODE}");
        row_of(f, "lines of code in `src` without tests", &target, &lines.to_string(), lines < LINES_OF_CODE, None)?;
    }
    Ok(())
}

/// Ratios are judged as they are printed, to two digits.
fn at_least(
    f: &mut fmt::Formatter<'_>,
    what: &str,
    target: f64,
    digits: usize,
    here: Option<Ratio>,
    by_hand: Option<Ratio>,
) -> fmt::Result {
    here.map_or(Ok(()), |here| {
        let reached = here.median >= target - 0.005;
        row_of(f, what, &format!("≥ {target:.digits$}×"), &times(Some(here)), reached, by_hand)
    })
}

fn at_most(
    f: &mut fmt::Formatter<'_>,
    what: &str,
    target: f64,
    here: Option<Ratio>,
    by_hand: Option<Ratio>,
) -> fmt::Result {
    here.map_or(Ok(()), |here| {
        row_of(f, what, &format!("≤ {target}×"), &times(Some(here)), here.median < target + 0.005, by_hand)
    })
}

/// `by_hand` is the figure for a handwritten limiter in the same run (`src/ideal.rs`), if the row has one.
fn row_of(
    f: &mut fmt::Formatter<'_>,
    what: &str,
    target: &str,
    here: &str,
    reached: bool,
    by_hand: Option<Ratio>,
) -> fmt::Result {
    let (reached, by_hand) = (if reached { "reached" } else { "**not reached**" }, times(by_hand));
    writeln!(f, "| {what} | {target} | {here} | {reached} | {by_hand} |")
}
