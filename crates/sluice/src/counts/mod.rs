//! The counts of a replay: of the lines of its log, and of the decisions of each policy.

mod demand;
mod keys;
mod log;
mod policy;
mod timeline;

pub(crate) use self::log::{LogCounts, OnlyClient};
pub(crate) use self::policy::{PolicyCounts, WithoutKey};
pub(crate) use self::timeline::{Axis, Bin};
