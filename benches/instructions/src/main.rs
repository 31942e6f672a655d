//! Counts how many instructions a request or a decision takes, and compares the counts to the committed table.
//! `scripts/instructions` builds and runs it; `benches/README.md` says how to read the output.
//!
//! The process that is started counts nothing. It starts itself once per row, under callgrind.

mod callgrind;
mod compare;
mod decision;
mod layer;
mod queue;
mod table;

use std::path::Path;
use std::process::ExitCode;

use compare::Comparison;
use table::Table;

const USAGE: &str = "\
usage: scripts/instructions [--only TEXT]
       scripts/instructions --update REASON

  --only TEXT      only the rows whose names contain this; nothing is said of rows that are missing
  --update REASON  writes the rows that changed, or all with another toolchain, into the table, with this reason";

/// Executes a row the given number of times.
type Call = Box<dyn FnMut(u64)>;

/// A row that is counted.
#[derive(Clone, Copy)]
struct Row {
    name: &'static str,
    set_up: fn() -> Call,
    /// How often it is executed before it is counted.
    warm_up: u64,
    /// How often it is executed while it is counted.
    counted: u64,
    /// The row whose count is subtracted, since its instructions run in any case.
    beside: Option<&'static str>,
}

fn rows() -> Vec<Row> {
    [layer::rows(), decision::rows(), queue::rows()].concat()
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments[..] {
        // As this program starts itself.
        ["--row", name] => {
            callgrind::execute(&rows().into_iter().find(|row| row.name == name).expect("the name of a row"));
            return ExitCode::SUCCESS;
        }
        [table] => check(Path::new(table), ""),
        [table, "--only", text] => check(Path::new(table), text),
        [table, "--update", reason] if !reason.trim().is_empty() => update(Path::new(table), reason.trim()),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    result.unwrap_or_else(|problem| {
        eprintln!("instructions: {problem}");
        ExitCode::from(2)
    })
}

/// Compares the rows whose names contain `only` to the table; fails if one takes more, or is only in one of the two.
fn check(path: &Path, only: &str) -> Result<ExitCode, String> {
    let mut table = Table::read(path)?;
    table.rows.retain(|row| row.name.contains(only));
    let rows: Vec<Row> = rows().into_iter().filter(|row| row.name.contains(only)).collect();
    if rows.is_empty() {
        return Err(format!("no row's name contains {only:?}"));
    }
    let comparison = Comparison::of(&table, &callgrind::count(&rows)?, &table::toolchain()?);
    print!("{comparison}{}", comparison.advice());
    Ok(if comparison.passes() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn update(path: &Path, reason: &str) -> Result<ExitCode, String> {
    let (mut table, toolchain) = (Table::read(path)?, table::toolchain()?);
    let counts = callgrind::count(&rows())?;
    print!("{}", Comparison::of(&table, &counts, &toolchain));
    table.update(&counts, &toolchain, &table::today()?, reason);
    table.write(path)?;
    println!("\nwritten to {}; say the reason in the commit, too", path.display());
    Ok(ExitCode::SUCCESS)
}
