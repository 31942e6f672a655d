//! The cost of a decision that a proxy asks a service for: `sluice serve` and its peers, each in its own process.
//! `benches/README.md` tells how, and how to read the output.

mod connection;
mod load;
mod paced;
mod protocol;
mod report;
mod rows;
mod server;
mod work;

#[allow(dead_code)]
#[path = "../../src/machine.rs"]
mod machine;
#[allow(dead_code)]
#[path = "../../src/pages.rs"]
mod pages;
#[allow(dead_code)]
#[path = "../../src/processor.rs"]
mod processor;
#[path = "../../src/progress.rs"]
mod progress;
#[path = "../../src/ratio.rs"]
mod ratio;
#[allow(dead_code)]
#[path = "../../src/scale.rs"]
mod scale;
#[allow(dead_code)]
#[path = "../../src/steady.rs"]
mod steady;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use load::{Cell, Outcome, text};
use progress::progress;
use report::Report;
use rows::Row;
use server::Server;

const USAGE: &str = "usage: scripts/bench --serve [--quick] [--only TEXT]...\n";

/// How much is measured.
#[derive(Clone, Copy)]
pub struct Plan {
    pub repetitions: usize,
    /// How long each cell takes at its full rate, and at the fixed one.
    pub time: Duration,
    /// How many keys the memory table has.
    pub keys: u64,
}

const FULL: Plan = Plan { repetitions: 5, time: Duration::from_secs(2), keys: 1_000_000 };
const QUICK: Plan = Plan { repetitions: 1, time: Duration::from_millis(100), keys: 5_000 };

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (mut plan, mut only) = (FULL, Vec::new());
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            // The script finds this program by this argument.
            "--serve" => {}
            "--quick" => plan = QUICK,
            "--paced" => return ended(paced::run(&arguments.collect::<Vec<_>>()).map(|()| true)),
            "--only" => only.push(arguments.next().unwrap_or_default()),
            _ => {
                eprint!("{USAGE}");
                return ExitCode::FAILURE;
            }
        }
    }
    ended(run(plan, &only))
}

fn ended(result: Outcome<bool>) -> ExitCode {
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("bench: {problem}");
            ExitCode::FAILURE
        }
    }
}

/// Runs everything, or the rows whose names contain one of `only` and their peers, and prints the tables; `false` if
/// one of ours failed.
fn run(plan: Plan, only: &[String]) -> Outcome<bool> {
    let begun = Instant::now();
    let machine = machine::describe();
    let is_pinned = machine::pin(0);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(text)?;
    println!("# Services\n\n{machine}.");
    println!("{}.", server::versions());
    if plan.repetitions == QUICK.repetitions {
        println!("\n{} a tenth of a second each. Not to be quoted.**", pages::QUICK);
    }
    let (rows, missing) = rows::chosen(only);
    if !missing.is_empty() {
        println!("\nNot installed, and not measured: {}.", missing.join(", "));
    }
    let mut whole = exactness(&runtime, &rows)?;
    let mut report = Report::new(rows, is_pinned);
    for repetition in 0..plan.repetitions {
        // All rows in turn, so that compared rows are close in time.
        for row in &report.rows {
            let so_far = begun.elapsed().as_secs();
            progress(&format!("{so_far:3} s  {}/{}  {}", repetition + 1, plan.repetitions, row.name));
            let sample = runtime.block_on(work::measure(*row, plan.time));
            whole &= sample.is_ok() || !row.is_ours();
            report.cells.0.push(Cell { name: row.name, concurrency: work::IN_FLIGHT, repetition, sample });
        }
    }
    progress("");
    print!("{report}");
    let mut sizes = Vec::new();
    for row in report.rows.iter().filter(|row| row.is_sized) {
        progress(&format!("{:3} s  {} keys  {}", begun.elapsed().as_secs(), plan.keys, row.name));
        let size = runtime.block_on(work::size(*row, plan.keys));
        whole &= size.is_ok() || !row.is_ours();
        sizes.push((row.name, size));
    }
    progress("");
    print!("{}", report::sizes(&sizes, plan.keys));
    println!("\nTook {} s; load at the end {}.", begun.elapsed().as_secs(), machine::load());
    Ok(whole)
}

/// Right before fast. A peer that documents its inexactness is not blamed for it.
fn exactness(runtime: &tokio::runtime::Runtime, rows: &[Row]) -> Outcome<bool> {
    let (mut whole, mut results) = (true, Vec::new());
    for row in rows {
        let server = Server::start(row.program, row.settings)?;
        let admitted = runtime.block_on(work::admitted(&server, row.protocol));
        if admitted != Ok(protocol::EXACTLY) {
            whole &= !row.is_ours();
            let admitted = admitted.map_or_else(|problem| problem, |count| count.to_string());
            results.push(format!("{}: {admitted}", row.name));
        }
    }
    let others = if results.is_empty() { "all admit just that".to_owned() } else { results.join("; ") };
    println!(
        "\nOf {} requests for one key at the same time, {} are to be admitted: {others}.",
        2 * protocol::EXACTLY,
        protocol::EXACTLY
    );
    Ok(whole)
}
