//! Decisions in memory: exact under threads, attack and change.

mod accuracy;
mod algorithms;
mod calendar;
mod change_buckets;
mod change_floods;
mod change_regressions;
mod change_threads;
mod change_windows;
mod change_windows_log;
mod clock;
mod common;
mod documented;
mod edges;
mod exactness;
mod flood;
mod herd;
mod key_value;
mod kinds;
mod modes;
mod own_quotas;
mod own_windows;
mod portable;
mod table;
mod wall_clock;
mod whole_face;
mod wide_units;
mod windows;

#[path = "../support/live.rs"]
mod heirs;
#[path = "../support/month.rs"]
mod month;
#[path = "../support/mod.rs"]
mod support;
