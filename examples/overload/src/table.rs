//! The table: a row for each figure, and a column for each contender.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use crate::contenders::{Contender, OURS};
use crate::figures::Value;
use crate::scenarios::{Figure, Scenario, Target};

/// Measures the contenders, on two threads. Returns the table in Markdown, and our limiter's figures that miss their
/// targets.
pub(crate) fn table(contenders: &[Box<dyn Contender>], scenarios: &[Scenario]) -> (String, Vec<Figure>) {
    let columns = each(contenders, |contender| measure(contender.as_ref(), scenarios));
    let ours = contenders.iter().zip(&columns).filter(|(contender, _)| contender.name() == OURS);
    let missed = ours.flat_map(|(_, column)| column.iter().filter(|figure| figure.misses_its_target())).cloned();
    let missed = missed.collect();
    let Some(first) = columns.first() else { return (String::new(), missed) };
    let head = ["", "target"].into_iter().map(str::to_owned).chain(contenders.iter().map(|it| it.name().to_owned()));
    let mut rows: Vec<Vec<String>> = vec![head.collect()];
    for (row, figure) in first.iter().enumerate() {
        let target = figure.target.map(|target| describe(target, figure.value)).unwrap_or_default();
        let cells = columns.iter().map(|column| cell(&column[row]));
        rows.push([figure.name.to_owned(), target].into_iter().chain(cells).collect());
    }
    (markdown(&rows), missed)
}

/// A contender's figures.
pub(crate) fn measure(contender: &dyn Contender, scenarios: &[Scenario]) -> Vec<Figure> {
    scenarios.iter().flat_map(|scenario| scenario.measure(contender)).collect()
}

/// Calls a function for each item, on two threads, and returns the results in order.
pub(crate) fn each<I: Sync, T: Send>(items: &[I], measure: impl Fn(&I) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    let work = || {
        while let Some((number, item)) =
            Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|number| items.get(number).map(|item| (number, item)))
        {
            let result = measure(item);
            results.lock().unwrap_or_else(PoisonError::into_inner).push((number, result));
        }
    };
    thread::scope(|scope| {
        scope.spawn(work);
        scope.spawn(work);
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(number, _)| *number);
    results.into_iter().map(|(_, result)| result).collect()
}

/// A value; in bold if it misses its target.
fn cell(figure: &Figure) -> String {
    if figure.misses_its_target() { format!("**{}**", figure.value) } else { figure.value.to_string() }
}

fn describe(target: Target, value: Value) -> String {
    let bound = |bound| match value {
        Value::Share(_) => Value::Share(bound),
        Value::Time(_) => Value::Time(Some(bound)),
        _ => Value::Index(bound),
    };
    match target {
        Target::AtLeast(least) => format!("≥ {}", bound(least)),
        Target::AtMost(most) => format!("≤ {}", bound(most)),
        Target::Unchanged => "± 20 %".to_owned(),
    }
}

/// Aligns the columns, so that the text can be read as it is.
fn markdown(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0).max(3);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for (number, row) in rows.iter().enumerate() {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!(" {cell:width$} |"));
        text += &format!("|{}\n", cells.collect::<String>());
        if number == 0 {
            text += &format!("|{}\n", widths.iter().map(|width| "-".repeat(width + 2) + "|").collect::<String>());
        }
    }
    text
}
