//! Measures our limiter against its peers; `README.md` tells how, and how to read the output.
//!
//! The process that is started measures nothing. It starts itself once per cell and repetition, one after another, so
//! that no cell sees the allocator or the caches as another left them.

// Only the server benchmarks use some items.
#![cfg_attr(not(feature = "servers"), allow(dead_code, unused_mut))]

mod against;
mod app;
mod cell;
mod change;
mod count;
mod floor;
mod ideal;
#[cfg(feature = "servers")]
mod in_flight;
mod keys;
mod layer;
mod lines;
#[cfg(feature = "servers")]
mod load;
mod machine;
mod measure;
mod ours;
#[cfg(feature = "servers")]
mod pace;
mod pages;
mod processor;
mod progress;
mod proof;
mod ratio;
mod raw;
#[cfg(feature = "servers")]
mod redis;
mod report;
mod scale;
mod steady;
mod subject;
mod targets;

use std::io::Read;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use cell::Cell;
use progress::progress;
use report::Report;
use scale::Scale;

/// No repetition is begun later than this. The first is always completed.
const TIME: Duration = Duration::from_secs(8 * 60);

/// No cell takes nearly this long.
const TIME_PER_CELL: Duration = Duration::from_secs(180);

const USAGE: &str = "\
usage: scripts/bench [--quick] [--targets] [--instructions] [--app] [--only TEXT]...
       scripts/bench --against DIR [--quick]
       scripts/bench --pace [--quick]
       scripts/bench --redis [--quick] [--only TEXT]...
       scripts/bench --postgres [--quick] [--only TEXT]...
       scripts/bench --keep [--targets | --pace | --redis | --postgres]

  --quick         everything once with small tables: whether it works, not how fast it is
  --targets       only the cells that the table of targets needs, in five minutes
  --instructions  only how many instructions a request takes, by callgrind: the same in each run
  --app           only an axum app under load
  --only TEXT     only the cells whose names contain TEXT, with what they are compared to; with --redis and
                  --postgres, the rows
  --list          the names of the cells
  --against DIR   instead: this checkout of the crate compared to the one in DIR, in six minutes (--quick: in one)
  --pace          instead: how evenly a queue lets requests leave, in three minutes
  --redis         instead: what a decision costs that goes through Redis, in three minutes
  --postgres      instead: what a decision costs that goes through PostgreSQL, in twenty minutes
  --keep          also puts the report into the page of this processor in benches/results
";

/// Whether a cell is asked for.
type Choice = Box<dyn Fn(Cell) -> bool>;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (mut quick, mut instead, mut chosen) = (false, None::<fn(bool, &[String]) -> bool>, Vec::<Choice>::new());
    let mut texts = Vec::new();
    let (mut other, mut title) = (None, "Results");
    while let Some(argument) = arguments.next() {
        match (argument.as_str(), &mut arguments) {
            ("--quick", _) => quick = true,
            #[cfg(feature = "servers")]
            ("--pace", _) => instead = Some(|quick, _| pace::run(quick)),
            #[cfg(feature = "servers")]
            ("--redis", _) => instead = Some(redis::run),
            // The script has built the other checkout, and gives its program in place of its folder.
            ("--against", rest) => other = rest.next(),
            ("--targets", _) => {
                title = "Targets";
                chosen.push(Box::new(targets::need));
            }
            ("--instructions", _) => chosen.push(Box::new(|cell| cell == Cell::Instructions)),
            ("--app", _) => chosen.push(Box::new(|cell| cell == Cell::App)),
            ("--only", rest) => {
                let text = rest.next().unwrap_or_default();
                texts.push(text.clone());
                chosen.push(Box::new(move |cell| cell.to_string().contains(&text)));
            }
            ("--help", _) => {
                print!("{USAGE}");
                return ExitCode::SUCCESS;
            }
            ("--list", _) => {
                Cell::all().iter().for_each(|cell| println!("{cell}"));
                return ExitCode::SUCCESS;
            }
            // The script ends with this if it is called with `--keep`.
            ("--keep", rest) => {
                let [report, results] = [(); 2].map(|()| rest.next().unwrap_or_default());
                return match pages::keep(Path::new(&report), Path::new(&results)) {
                    Ok(page) => {
                        eprintln!("bench: kept in {page}");
                        ExitCode::SUCCESS
                    }
                    Err(problem) => {
                        eprintln!("bench: {problem}");
                        ExitCode::FAILURE
                    }
                };
            }
            // The process starts itself with this.
            ("--cell", rest) => {
                let name = rest.next().unwrap_or_default();
                let cell = Cell::all().into_iter().find(|cell| cell.to_string() == name).expect("a cell's name");
                print!("{}", measure::measure(cell, if quick { Scale::QUICK } else { Scale::FULL }));
                return ExitCode::SUCCESS;
            }
            ("--serve", rest) => {
                app::serve(&rest.next().expect("a row's name"));
                return ExitCode::SUCCESS;
            }
            ("--count", rest) => {
                count::run(&rest.next().expect("a row's name"), if quick { Scale::QUICK } else { Scale::FULL });
                return ExitCode::SUCCESS;
            }
            _ => {
                eprint!("{USAGE}");
                return ExitCode::FAILURE;
            }
        }
    }
    let holds = match (instead, other) {
        (Some(run), _) => run(quick, &texts),
        (None, Some(other)) => against::run(Path::new(&other), quick),
        (None, None) if chosen.is_empty() => run("Limiters and layers", quick, &chosen),
        (None, None) => run(title, quick, &chosen),
    };
    if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// `false` if a cell fails.
fn run(title: &'static str, quick: bool, choices: &[Choice]) -> bool {
    let mut cells = Cell::all();
    if !choices.is_empty() {
        let chosen = |cell: &Cell| choices.iter().any(|choice| choice(*cell));
        let references: Vec<_> = cells.iter().filter(|cell| chosen(cell)).filter_map(|cell| cell.reference()).collect();
        cells.retain(|cell| chosen(cell) || references.contains(cell));
    }
    let (begun, program) = (Instant::now(), std::env::current_exe().expect("a path"));
    let mut report = Report::new(title, machine::describe(), quick);
    let most = if quick { 1 } else { cells.iter().map(|cell| cell.repetitions()).max().unwrap_or(0) };
    let mut failed = 0;
    let mut measure = |report: &mut Report, cell: Cell, repetition: usize| {
        let turn = if repetition < most { format!("{}/{most}", repetition + 1) } else { "again".to_owned() };
        progress(&format!("{:3} s  {turn}  {cell}", begun.elapsed().as_secs()));
        match in_a_process(&program, cell, quick) {
            Ok(figures) => report.add(cell, repetition, figures),
            Err(problem) => {
                progress("");
                eprintln!("{cell}: {problem}");
                failed += 1;
            }
        }
    };
    // A B C, A B C: a cell's repetitions are far apart, and compared cells are close.
    for repetition in 0..most {
        for cell in cells.iter().filter(|cell| repetition < cell.repetitions()) {
            if repetition > 0 && begun.elapsed() > TIME {
                report.stopped_early = true;
                continue;
            }
            measure(&mut report, *cell, repetition);
        }
    }
    for more in 0..steady::MORE_REPETITIONS {
        for reference in cells.iter().filter(|cell| cell.reference() == Some(**cell)) {
            if report.variation(*reference) > steady::MOST && begun.elapsed() < TIME {
                let compared: Vec<_> =
                    cells.iter().copied().filter(|cell| cell.reference() == Some(*reference)).collect();
                compared.iter().for_each(|cell| measure(&mut report, *cell, most + more));
                report.keep_quietest(*reference, &compared);
            }
        }
    }
    progress("");
    print!("{report}");
    println!("\nTook {} s; load at the end {}.", begun.elapsed().as_secs(), machine::load());
    failed == 0
}

fn in_a_process(program: &Path, cell: Cell, quick: bool) -> Result<Figures, String> {
    let mut command = Command::new(program);
    command.args(quick.then_some("--quick")).args(["--cell", &cell.to_string()]).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let begun = Instant::now();
    let status = loop {
        // Rarely enough not to disturb the measurement.
        std::thread::sleep(Duration::from_millis(20));
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if begun.elapsed() < TIME_PER_CELL => {}
            Ok(None) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("not done after {} s", TIME_PER_CELL.as_secs()));
            }
            Err(error) => return Err(error.to_string()),
        }
    };
    if !status.success() {
        return Err(status.to_string());
    }
    // Shorter than a pipe's buffer, so it could wait until now.
    let mut text = String::new();
    let mut out = child.stdout.take().expect("it was piped");
    out.read_to_string(&mut text).map_err(|error| error.to_string())?;
    Ok(Figures::parse(&text))
}

/// A cell's results, by name, in the order in which they were measured.
#[derive(Clone, Default)]
pub struct Figures(Vec<(String, f64)>);

impl Figures {
    pub fn set(&mut self, name: &str, value: f64) {
        self.0.push((name.to_owned(), value));
    }

    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.iter().find(|(it, _)| it == name).map(|(_, value)| *value)
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }

    fn parse(text: &str) -> Self {
        let figure = |line: &str| {
            let (name, value) = line.rsplit_once('\t')?;
            Some((name.to_owned(), value.parse().ok()?))
        };
        Self(text.lines().filter_map(figure).collect())
    }
}

/// As [`Figures::parse`] reads it.
impl std::fmt::Display for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|(name, value)| writeln!(f, "{name}\t{value}"))
    }
}
