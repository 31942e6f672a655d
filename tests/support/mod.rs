//! Helpers that several test binaries share.
#![allow(dead_code, unreachable_pub)]

pub mod busy;
pub mod cases;
pub mod effort;
pub mod log;
#[cfg(feature = "metrics")]
pub mod metrics;
pub mod oracle;
pub mod proxy;
pub mod queue;
pub mod timing;
pub mod trace;
pub mod tree;
