//! How many instructions a request takes, counted by callgrind: on a clock that stands still, equal in each run.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::Figures;
use crate::layer::{self, Call, Row, Time};
use crate::scale::Scale;

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

/// Diagnostics look at a layer's first 1,000 requests and at a process's first 65,536. The counted requests come after
/// these.
const WARM_UP: u64 = 67_000;
const COUNTED: u64 = 10_000;
/// After how many requests a quick run counts, which includes the process's diagnostics.
const QUICK_WARM_UP: u64 = 2_000;

/// The process that callgrind runs. It sends one row's requests, and callgrind counts the last [`COUNTED`].
pub fn run(row: &str, scale: Scale) {
    let row = ROWS.into_iter().find(|it| it.name() == row).expect("a row's name");
    let mut call = layer::calls(row, Time::StandsStill);
    call(if scale.divisor == 1 { WARM_UP } else { QUICK_WARM_UP });
    counted_requests(&mut call);
}

/// Callgrind counts from when this function is entered until it is left: see [`UNDER_CALLGRIND`].
#[inline(never)]
fn counted_requests(call: &mut Call) {
    call(COUNTED);
}

const UNDER_CALLGRIND: [&str; 4] = [
    "--tool=callgrind",
    "--callgrind-out-file=/dev/null",
    "--collect-atstart=no",
    "--toggle-collect=*counted_requests*",
];

pub fn measure(scale: Scale) -> Figures {
    let mut figures = Figures::default();
    let Some(valgrind) = valgrind() else {
        eprintln!("valgrind is not installed: instructions are not counted");
        return figures;
    };
    let mut bare = 0.0;
    for row in ROWS {
        match count(&valgrind, row, scale) {
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

/// The name for a row's count among the figures.
pub fn name(row: Row) -> String {
    format!("{}: instructions", row.name())
}

/// `$VALGRIND`, or wherever it is installed.
fn valgrind() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let installed = std::env::split_paths(&path).map(|folder| folder.join("valgrind"));
    std::env::var_os("VALGRIND").map(PathBuf::from).into_iter().chain(installed).find(|program| program.is_file())
}

/// The instructions per request, including the bare service.
fn count(valgrind: &Path, row: Row, scale: Scale) -> Result<f64, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(valgrind);
    // The environment lies on the stack, and so decides how buffers are aligned.
    command.env_clear();
    for kept in ["PATH", "VALGRIND_LIB"] {
        command.envs(std::env::var_os(kept).map(|value| (kept, value)));
    }
    command.args(UNDER_CALLGRIND).arg(program).args((scale.divisor > 1).then_some("--quick"));
    let output = command.args(["--count", row.name()]).stdout(Stdio::null()).output();
    let output = output.map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stderr);
    let count = text.lines().find_map(|line| line.split_once("Collected : ")?.1.trim().parse::<f64>().ok());
    match count {
        Some(count) if output.status.success() && count > 0.0 => Ok(count / COUNTED as f64),
        _ => Err(text.lines().last().unwrap_or("no count").to_owned()),
    }
}
