//! The system resources that this process takes.
#![allow(unreachable_pub)]

/// This process's resident memory, in KiB.
pub fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux, which reports the memory of a process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.unwrap().trim().trim_end_matches(" kB").parse().unwrap()
}
