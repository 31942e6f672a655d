//! The counts in a replay: log lines, and each policy's decisions.

mod demand;
mod keys;
mod log;
mod policy;
mod timeline;

pub(crate) use self::log::{LogCounts, OnlyClient};
pub(crate) use self::policy::{PolicyCounts, WithoutKey};
pub(crate) use self::timeline::{Axis, Bin};
