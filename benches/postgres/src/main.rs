//! The cost of a decision that goes through PostgreSQL: ours and its peer on one server, and bare statements as the
//! floor. `benches/README.md` tells how, and how to read the output.

mod report;
mod rows;
mod server;
mod size;
mod subject;
mod work;

// The other benchmarks share these, and use more of them.
#[allow(dead_code)]
#[path = "../../src/keys.rs"]
mod keys;
#[allow(dead_code)]
#[path = "../../src/load/mod.rs"]
mod load;
#[allow(dead_code)]
#[path = "../../src/machine.rs"]
mod machine;
#[allow(dead_code)]
#[path = "../../src/ours.rs"]
mod ours;
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
#[path = "../../src/raw.rs"]
mod raw;
#[allow(dead_code)]
#[path = "../../src/scale.rs"]
mod scale;
#[path = "../../src/steady.rs"]
mod steady;

// The tests share these, and use more of them.
#[allow(dead_code)]
#[path = "../../../tests/support/postgres.rs"]
mod postgres;
#[allow(dead_code)]
#[path = "../../../tests/support/timing.rs"]
mod timing;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use load::{Cell, Outcome};
use progress::progress;
use report::Report;
use rows::{CONCURRENCY, Row};
use server::Server;
use work::Plan;

/// Nothing is measured again later than this.
const TIME: Duration = Duration::from_secs(10 * 60);

const USAGE: &str = "usage: scripts/bench --postgres [--quick] [--only TEXT]...\n";

/// The built versions.
const LOCK: &str = include_str!("../Cargo.lock");

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (mut quick, mut only) = (false, Vec::new());
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            // The script finds this program by this argument.
            "--postgres" => {}
            "--quick" => quick = true,
            "--only" => only.push(arguments.next().unwrap_or_default()),
            _ => {
                eprint!("{USAGE}");
                return ExitCode::FAILURE;
            }
        }
    }
    match run(quick, &only) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("bench: {problem}");
            ExitCode::FAILURE
        }
    }
}

/// Runs everything, or the rows whose names contain one of `only` and their references, and prints the tables; `false`
/// if one of ours failed.
fn run(quick: bool, only: &[String]) -> Outcome<bool> {
    let begun = Instant::now();
    let server = Arc::new(Server::start()?);
    println!("# PostgreSQL\n\n{}.", machine::describe());
    let versions = ["tower-rate-limiter", "sqlx", "deadpool-postgres", "tokio-postgres", "tokio"];
    println!("PostgreSQL {}, {}.", server.version(), pages::versions(LOCK, &versions));
    println!("Settings other than PostgreSQL's defaults: {}.", server.settings());
    if quick {
        println!("\n{} a twentieth of a second each. Not to be quoted.**", pages::QUICK);
    }
    let (repetitions, time) = if quick { (1, Duration::from_millis(50)) } else { (3, Duration::from_millis(900)) };
    let rows = rows::chosen(only);
    let mut whole = exactness(&server, &rows);
    let mut report = Report::new(rows, server.is_pinned);
    let measure = |report: &mut Report, concurrency: usize, repetition: usize| {
        let mut whole = true;
        // All rows in turn, so that compared rows are close in time.
        for row in report.rows.iter().filter(|row| row.concurrency.contains(&concurrency)) {
            let so_far = begun.elapsed().as_secs();
            progress(&format!("{so_far:3} s  {}/{repetitions}  {concurrency}  {}", repetition + 1, row.name));
            let sample = work::measure(Plan { server: Arc::clone(&server), row: *row, concurrency, time });
            whole &= sample.is_ok() || !row.is_ours();
            report.cells.0.push(Cell { name: row.name, concurrency, repetition, sample });
        }
        whole
    };
    for repetition in 0..repetitions {
        for concurrency in CONCURRENCY {
            whole &= measure(&mut report, concurrency, repetition);
        }
    }
    for repetition in repetitions..repetitions + steady::MORE_REPETITIONS {
        for concurrency in CONCURRENCY {
            if report.is_restless(concurrency) && begun.elapsed() < TIME {
                whole &= measure(&mut report, concurrency, repetition);
                report.keep_quietest(concurrency, repetitions);
            }
        }
    }
    progress("");
    print!("{report}");
    let (keys, updates) = if quick { (2_000, 10_000) } else { (100_000, 1_000_000) };
    let mut sizes = Vec::new();
    for row in rows::sized(only) {
        progress(&format!("{:3} s  {updates} decisions on {keys} keys  {}", begun.elapsed().as_secs(), row.name));
        let size = size::measure(&server, row, keys, updates);
        whole &= size.is_ok() || !row.is_ours();
        sizes.push((row.name, size));
    }
    progress("");
    print!("{}", report::sizes(&sizes));
    println!("\nTook {} s; load at the end {}.", begun.elapsed().as_secs(), machine::load());
    Ok(whole)
}

/// Right before fast. A peer that documents its inexactness is not blamed for it.
fn exactness(server: &Arc<Server>, rows: &[Row]) -> bool {
    const BURST: u32 = 100;
    let (mut whole, mut results) = (true, Vec::new());
    for row in rows.iter().filter(|row| row.limits()) {
        let admitted = work::admitted(server, *row, BURST);
        if admitted != Ok(BURST) {
            whole &= !row.is_ours();
            let admitted = admitted.map_or_else(|problem| problem, |count| count.to_string());
            results.push(format!("{}: {admitted}", row.name));
        }
    }
    let others = if results.is_empty() { "all admit just that".to_owned() } else { results.join("; ") };
    println!("\nOf {} requests for one key at the same time, {BURST} are to be admitted: {others}.", 2 * BURST);
    whole
}
