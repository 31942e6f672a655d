//! Runs rows under callgrind, which counts the instructions that they execute.

use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;

use crate::{Call, Row};

/// The process that callgrind runs.
pub fn execute(row: &Row) {
    let mut call = (row.set_up)();
    call(row.warm_up);
    counted(&mut call, row.counted);
}

/// Callgrind counts from when this function is entered until it is left, so start-up and set-up are not included.
#[inline(never)]
fn counted(call: &mut Call, times: u64) {
    call(times);
}

const UNDER_CALLGRIND: [&str; 4] = [
    "--tool=callgrind",
    "--callgrind-out-file=/dev/null",
    "--collect-atstart=no",
    "--toggle-collect=tower_sluice_instructions::callgrind::counted*",
];

/// The C library chooses how it copies memory by the processor's features. This makes it choose alike on all.
const SAME_COPIES: &str = "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX2,-AVX,-ERMS,-FSRM,-SSSE3,-SSE4_1,-SSE4_2";

/// The row names, and how many instructions each takes. There is one concurrent process per processor, since a count
/// does not depend on the load.
pub fn count(rows: &[Row]) -> Result<Vec<(String, f64)>, String> {
    let mut needed = rows.to_vec();
    for base in rows.iter().filter_map(|row| row.beside) {
        if !needed.iter().any(|row| row.name == base) {
            needed.extend(crate::rows().into_iter().find(|row| row.name == base));
        }
    }
    // The longest first, so that no processor idles at the end.
    let mut left = needed.clone();
    left.sort_by_key(|row| row.counted);
    let (left, counts) = (Mutex::new(left), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(row) = pop(&left) {
                    let count = count_row(&row);
                    counts.lock().expect("no thread panics").push((row.name, count));
                }
            });
        }
    });
    let counts = counts.into_inner().expect("no thread panics");
    let total = |name| match counts.iter().find(|(it, _)| *it == name) {
        Some((_, Ok(count))) => Ok(*count),
        Some((_, Err(problem))) => Err(format!("{name}: {problem}")),
        None => Err(format!("{name}: no such row")),
    };
    let row = |row: &Row| {
        let base = row.beside.map_or(Ok(0.0), total)?;
        Ok((row.name.to_owned(), total(row.name)? - base))
    };
    rows.iter().map(row).collect()
}

fn pop(rows: &Mutex<Vec<Row>>) -> Option<Row> {
    rows.lock().expect("no thread panics").pop()
}

/// The instructions for one execution, including those that run in any case.
fn count_row(row: &Row) -> Result<f64, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new("valgrind");
    // The environment lies on the stack, and so decides how buffers are aligned.
    command.env_clear().envs(std::env::var_os("PATH").map(|path| ("PATH", path))).env("GLIBC_TUNABLES", SAME_COPIES);
    let output = command.args(UNDER_CALLGRIND).arg(program).args(["--row", row.name]).stdout(Stdio::null()).output();
    let output = output.map_err(|error| format!("valgrind: {error}"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    let count = text.lines().find_map(|line| line.split_once("Collected : ")?.1.trim().parse::<f64>().ok());
    match count {
        Some(count) if output.status.success() && count > 0.0 => Ok(count / row.counted as f64),
        _ => Err(format!("no count\n{text}")),
    }
}
