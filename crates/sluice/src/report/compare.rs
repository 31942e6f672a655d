//! Two configurations side by side.

use super::text::{Options, longest, quantiles, rows};
use super::units::{grouped, span};
use crate::counts::PolicyCounts;
use crate::replay::{Replay, RouteReplay};
use crate::table::table;

/// A label, and a cell for each configuration.
type Row = [String; 3];

/// A heading, and the rows below it.
struct Section {
    heading: String,
    rows: Vec<Row>,
}

/// A label, and the lines of its cell.
type Cell = (&'static str, Vec<String>);

/// Writes policies with the same route and name next to each other.
pub(super) fn compare(one: &Replay, other: &Replay, options: Options) -> String {
    let mut sections = vec![unlimited(one, other)];
    let mut names = policies(one);
    for name in policies(other) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    for (path, name) in names {
        let found = [one, other].map(|replay| find(replay, path, name));
        let Some((route, _)) = found.into_iter().flatten().next() else { continue };
        let [left, right] = found.map(|found| found.map(|(_, policy)| cells(policy, options)).unwrap_or_default());
        sections.push(Section {
            heading: format!("{}  {name}", route.paths.join(", ")),
            rows: side_by_side(&left, &right),
        });
    }

    // All sections have the same columns.
    let rows: Vec<Row> = sections.iter().flat_map(|section| section.rows.clone()).collect();
    let table = table(&rows);
    let mut lines = table.lines();
    let mut text = String::new();
    for section in &sections {
        text.push_str(&format!("\n{}", section.heading));
        if !section.heading.is_empty() {
            text.push('\n');
        }
        for line in lines.by_ref().take(section.rows.len()) {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

/// The files' names, and the requests that no policy limits.
fn unlimited(one: &Replay, other: &Replay) -> Section {
    let row = |label: &str, left: u64, right: u64| [format!("  {label}"), grouped(left), grouped(right)];
    let rows = vec![
        [String::new(), one.file.clone(), other.file.clone()],
        row("no route", one.unmatched, other.unmatched),
        row("no policy", one.unlimited, other.unlimited),
    ];
    Section { heading: String::new(), rows }
}

/// Each policy's first path and name.
fn policies(replay: &Replay) -> Vec<(&str, &str)> {
    let mut names = Vec::new();
    for route in &replay.limited {
        names.extend(route.policies.iter().map(|policy| (route.paths[0].as_str(), policy.name())));
    }
    names
}

fn find<'a>(replay: &'a Replay, path: &str, name: &str) -> Option<(&'a RouteReplay, &'a PolicyCounts)> {
    let routes = replay.limited.iter().filter(|route| route.paths[0] == path);
    let mut policies = routes.flat_map(|route| route.policies.iter().map(move |policy| (route, policy)));
    policies.find(|(_, policy)| policy.name() == name)
}

/// A dash stands for a cell that one configuration does not have.
fn side_by_side(left: &[Cell], right: &[Cell]) -> Vec<Row> {
    let mut labels: Vec<&str> = left.iter().map(|(label, _)| *label).collect();
    let missing = right.iter().filter(|(label, _)| !left.iter().any(|(other, _)| other == label));
    labels.extend(missing.map(|(label, _)| *label));
    let mut rows = Vec::new();
    for label in labels {
        let [left, right] = [left, right].map(|cells| cells.iter().find(|(other, _)| *other == label));
        let height = [left, right].into_iter().flatten().map(|(_, lines)| lines.len()).max().unwrap_or(0);
        for index in 0..height {
            let [left, right] = [left, right].map(|cell| match cell {
                None if index == 0 => "–".to_owned(),
                cell => cell.and_then(|(_, lines)| lines.get(index)).cloned().unwrap_or_default(),
            });
            let label = if index == 0 { format!("  {label}") } else { String::new() };
            rows.push([label, left, right]);
        }
    }
    rows
}

fn cells(policy: &PolicyCounts, options: Options) -> Vec<Cell> {
    let mut cells = vec![("limit", vec![policy.words.what.clone()])];
    for (label, value) in rows(policy) {
        match label {
            "clients" => {
                let (clients, affected) = policy.clients();
                cells.push(("clients hit", vec![format!("{} of {}", grouped(affected), grouped(clients))]));
            }
            "delayed" => {
                cells.push((label, vec![grouped(policy.waits.len())]));
                let [p50, p95, p99] = quantiles(policy).map(span);
                cells.push(("  p50, p95, p99", vec![format!("{p50}, {p95}, {p99}")]));
                cells.push(("  longest wait", vec![span(longest(policy))]));
            }
            _ => cells.push((label, vec![value])),
        }
    }
    if let Some(suggestion) = options.suggest.and_then(|per_100_000| policy.suggest(per_100_000)) {
        cells.push(("suggested", suggestion.in_words(&policy.words)));
    }
    cells
}
