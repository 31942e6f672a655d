//! How many instructions a request takes, counted by callgrind: on a clock that stands still, the same in each run.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::Figures;
use crate::layer::{self, Row, Time};
use crate::measure::Scale;

/// The rows that are counted. The peers read the real clock, so their counts differ somewhat between runs.
pub const ROWS: [Row; 8] = [
    Row::Bare,
    Row::Minimal,
    Row::Silent,
    Row::Fields,
    Row::TwoPolicies,
    Row::Rejected,
    Row::Governor,
    Row::GovernorHeaders,
];

/// Diagnostics look at the first 1,000 requests of a layer and at the first 65,536 of a process. What is counted comes
/// after these.
const WARM_UP: u64 = 67_000;
const COUNTED: u64 = 10_000;
/// The same for a quick run, which counts diagnostics of the process along.
const QUICK: (u64, u64) = (2_000, 1_000);

/// The process that callgrind runs: nothing but `requests` requests, as one row has them.
pub fn requests(row: &str, requests: u64) {
    let row = ROWS.into_iter().find(|it| it.name() == row).expect("a row's name");
    layer::calls(row, Time::StandsStill)(requests);
}

/// The difference between a run with the warm-up alone and one with more requests.
pub fn measure(scale: Scale) -> Figures {
    let mut figures = Figures::default();
    let Some(valgrind) = valgrind() else {
        eprintln!("valgrind is not installed: instructions are not counted");
        return figures;
    };
    let (warm_up, counted) = if scale.divisor == 1 { (WARM_UP, COUNTED) } else { QUICK };
    let per_request = |row| {
        let count = |requests| run(&valgrind, row, requests);
        Ok::<_, String>((count(warm_up + counted)? - count(warm_up)?) / counted as f64)
    };
    let mut bare = 0.0;
    for row in ROWS {
        match per_request(row) {
            Ok(count) if row == Row::Bare => {
                bare = count;
                figures.set(&name(row), count);
            }
            Ok(count) => figures.set(&name(row), count - bare),
            Err(problem) => eprintln!("{}: instructions are not counted: {problem}", row.name()),
        }
    }
    figures
}

/// Under which name a row's count is among the figures.
pub fn name(row: Row) -> String {
    format!("{}: instructions", row.name())
}

/// `$VALGRIND`, or wherever it is installed.
fn valgrind() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let installed = std::env::split_paths(&path).map(|folder| folder.join("valgrind"));
    std::env::var_os("VALGRIND").map(PathBuf::from).into_iter().chain(installed).find(|program| program.is_file())
}

/// The instructions of a whole process.
fn run(valgrind: &PathBuf, row: Row, requests: u64) -> Result<f64, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(valgrind);
    // What the environment holds lies on the stack, and so decides how buffers are aligned.
    command.env_clear();
    for kept in ["PATH", "VALGRIND_LIB"] {
        command.envs(std::env::var_os(kept).map(|value| (kept, value)));
    }
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(program);
    command.args(["--requests", row.name(), &requests.to_string()]).stdout(Stdio::null());
    let output = command.output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stderr);
    let count = text.lines().find_map(|line| line.split_once("Collected : ")?.1.trim().parse().ok());
    count.filter(|_| output.status.success()).ok_or_else(|| text.lines().last().unwrap_or("no count").to_owned())
}
