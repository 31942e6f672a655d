//! Compares two builds of this program, each around another checkout, in one run: each cell runs in a process of the
//! one and then of the other, again and again.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::cell::{Cell, HOT, KeyType, MILLION, Of, Work};
use crate::ratio::{Ratio, times};
use crate::report::ns;
use crate::{Figures, in_a_process, machine, progress, scale};

/// The compared cells. The quick ones first.
fn cells(quick: bool) -> Vec<Cell> {
    let (hot, million) = (Work::uniform(KeyType::Ip, HOT), Work::uniform(KeyType::Ip, MILLION));
    let mut cells = vec![
        Cell::Instructions,
        Cell::Layer,
        Cell::Decide(Of::Ours, hot),
        Cell::Decide(Of::Ours, hot.rejected()),
        Cell::Decide(Of::OursDyn, hot),
    ];
    if !quick {
        cells.push(Cell::Decide(Of::Ours, million));
        cells.push(Cell::Decide(Of::Ours, Work::uniform(KeyType::Text, MILLION)));
        cells.extend([Of::Sliding, Of::Fixed].map(|of| Cell::Decide(of, million)));
        cells.extend([hot.threads(2), million.threads(2)].map(|work| Cell::Decide(Of::Ours, work)));
    }
    cells
}

const fn repetitions(cell: Cell, quick: bool) -> usize {
    match (cell, quick) {
        // Exact.
        (Cell::Instructions, _) => 1,
        (_, true) => 3,
        (Cell::Layer, false) => 9,
        (_, false) => 7,
    }
}

/// A cell's results, here and there: a name, and each repetition.
type Pairs = Vec<(String, Vec<(f64, f64)>)>;

/// Compares this program to another; `false` if one of its own cells fails.
pub fn run(other: &Path, quick: bool) -> bool {
    let begun = Instant::now();
    let here = std::env::current_exe().expect("a path");
    let known = names(other);
    let (cells, left_out): (Vec<_>, Vec<_>) =
        cells(quick).into_iter().partition(|cell| known.contains(&cell.to_string()));
    let mut left_out: BTreeSet<_> = left_out.iter().map(ToString::to_string).collect();
    let mut pairs: Vec<(Cell, Pairs)> = cells.iter().map(|cell| (*cell, Pairs::new())).collect();
    let mut holds = true;
    let most = cells.iter().map(|cell| repetitions(*cell, quick)).max().unwrap_or(0);
    println!("# This checkout against another\n\n{}.\n", machine::describe());
    for repetition in 0..most {
        for (cell, pairs) in pairs.iter_mut().filter(|(cell, _)| repetition < repetitions(*cell, quick)) {
            progress(&format!("{:3} s  {}/{most}  {cell}", begun.elapsed().as_secs(), repetition + 1));
            // They take turns in going first.
            let mut order: [&PathBuf; 2] = [&here, &other.to_path_buf()];
            if repetition % 2 == 1 {
                order.reverse();
            }
            let mut figures = order.map(|program| in_a_process(program, *cell, false));
            if repetition % 2 == 1 {
                figures.reverse();
            }
            match figures {
                [Ok(ours), Ok(theirs)] => add(pairs, &ours, &theirs),
                [Err(problem), _] => {
                    eprintln!("{cell}: {problem}");
                    holds = false;
                }
                [_, Err(problem)] => {
                    eprintln!("{cell}, in the other checkout: {problem}");
                    left_out.insert(cell.to_string());
                }
            }
        }
    }
    progress("");
    print(&pairs);
    if !left_out.is_empty() {
        let names: Vec<_> = left_out.into_iter().collect();
        println!("\nLeft out, as the other checkout cannot: {}.", names.join(", "));
    }
    println!("\nTook {} s; load at the end {}.", begun.elapsed().as_secs(), machine::load());
    holds
}

/// The cells that a program has.
fn names(program: &Path) -> BTreeSet<String> {
    let output = Command::new(program).arg("--list").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn add(pairs: &mut Pairs, here: &Figures, there: &Figures) {
    for name in here.names() {
        if let (Some(here), Some(there)) = (here.get(name), there.get(name)) {
            match pairs.iter_mut().find(|(it, _)| it == name) {
                Some((_, pairs)) => pairs.push((here, there)),
                None => pairs.push((name.to_owned(), vec![(here, there)])),
            }
        }
    }
}

fn print(cells: &[(Cell, Pairs)]) {
    println!("Medians; ratios are of this one by the other, in the same repetition (median, least–most).");
    println!("Instructions and added ns are beside the bare service.\n");
    println!("| | | here | there | ratio |\n|---|---|---|---|---|");
    let mut bare = false;
    for (cell, pairs) in cells {
        for (name, pairs) in pairs {
            let (row, what) = match name.rsplit_once(": ") {
                Some((row, what)) => (row.to_owned(), what),
                None => (cell.to_string(), name.as_str()),
            };
            let [here, there] = [|pair: &(f64, f64)| pair.0, |pair: &(f64, f64)| pair.1]
                .map(|side: fn(&(f64, f64)) -> f64| scale::median(pairs.iter().map(side)));
            let (row, what, digits) = match what {
                "instructions" => (row, what, Some(1)),
                // Each row has its own, for equal code.
                "bare" if !std::mem::replace(&mut bare, true) => ("bare service".to_owned(), "ns", None),
                "ns" => (row, "added ns", None),
                "allocations" if here != there => (row, what, Some(1)),
                "loop" => (row, "ns", None),
                "isolated" => (row, "isolated, ns", None),
                "bytes" if matches!(cell, Cell::Decide(_, work) if work.keys >= MILLION) => (row, what, Some(1)),
                _ => continue,
            };
            let written = |value| digits.map_or_else(|| ns(Some(value)), |digits| format!("{value:.digits$}"));
            let ratio = Ratio::of(pairs.iter().filter(|pair| pair.1 > 0.0).map(|pair| pair.0 / pair.1).collect());
            println!("| {row} | {what} | {} | {} | {} |", written(here), written(there), times(ratio));
        }
    }
}
