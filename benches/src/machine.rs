//! Questions to the machine, where it can answer.

use std::ffi::OsStr;
use std::process::{Command, Stdio};

use crate::processor::Processor;

/// The processors that this process may run on, the last one first: the system is busiest on the first.
fn processors() -> Vec<usize> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap_or_default();
    let mut processors = Vec::new();
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        if let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse()) {
            processors.extend(first..=last);
        }
    }
    processors.reverse();
    processors
}

/// Ties the calling thread to our `n`-th processor; `false` if that cannot be done here.
pub fn pin(n: usize) -> bool {
    let Ok(thread) = std::fs::read_link("/proc/thread-self") else { return false };
    thread.file_name().is_some_and(|thread| tie("-cp", thread, n))
}

/// Ties all threads in a process.
pub fn pin_process(id: u32, n: usize) -> bool {
    tie("-acp", OsStr::new(&id.to_string()), n)
}

/// A command that runs a program on our `n`-th processor, if that can be done here. The program sees only one
/// processor, and chooses its number of threads for that.
#[allow(dead_code, reason = "only the benchmark of services starts programs so")]
pub fn tied(n: usize, program: &OsStr) -> Command {
    let has_taskset = Command::new("taskset").arg("-V").stdout(Stdio::null()).status().is_ok_and(|it| it.success());
    match processors().get(n).filter(|_| has_taskset) {
        None => Command::new(program),
        Some(processor) => {
            let mut command = Command::new("taskset");
            command.args(["-c", &processor.to_string()]).arg(program);
            command
        }
    }
}

fn tie(how: &str, whom: &OsStr, n: usize) -> bool {
    let Some(processor) = processors().get(n).copied() else { return false };
    let mut taskset = Command::new("taskset");
    taskset.args([how, &processor.to_string()]).arg(whom).stdout(Stdio::null()).stderr(Stdio::null());
    taskset.status().is_ok_and(|status| status.success())
}

/// The nanoseconds for which the calling thread has had a processor, if the system tells.
pub fn thread_time() -> Option<u64> {
    time("thread-self")
}

/// The nanoseconds for a process's main thread.
pub fn process_time(id: u32) -> Option<u64> {
    time(&id.to_string())
}

fn time(thread: &str) -> Option<u64> {
    std::fs::read_to_string(format!("/proc/{thread}/schedstat")).ok()?.split(' ').next()?.parse().ok()
}

/// How often this thread was descheduled although it could have continued, if the system tells.
pub fn interruptions() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/thread-self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:")?.trim().parse().ok())
}

/// How many bytes of memory this process has in use, if the system tells.
pub fn resident() -> Option<u64> {
    const PAGE: u64 = 4096;
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    Some(statm.split(' ').nth(1)?.parse::<u64>().ok()? * PAGE)
}

/// One line on the processor, the toolchain and the load.
pub fn describe() -> String {
    let huge = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let huge = huge.split(['[', ']']).nth(1).unwrap_or("unknown").to_owned();
    let version =
        Command::new("rustc").arg("-V").output().ok().and_then(|output| String::from_utf8(output.stdout).ok());
    format!(
        "{}, {}, {}, transparent huge pages: {huge}, load {}",
        Processor::here(),
        std::env::consts::ARCH,
        version.as_deref().map_or("rustc unknown", str::trim),
        load(),
    )
}

/// How busy the machine was over the last minute.
pub fn load() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split(' ').next().filter(|load| !load.is_empty()).unwrap_or("unknown").to_owned()
}
