//! Helpers for the tests in this folder.
#![allow(dead_code, unreachable_pub)]

#[path = "../../../../tests/support/cases.rs"]
pub mod cases;
pub mod clients;
#[path = "../../../../tests/support/effort.rs"]
pub mod effort;
#[path = "../../../../src/testing/ledger.rs"]
pub mod ledger;
#[path = "../../../../tests/support/log.rs"]
pub mod log;
#[path = "../../../../tests/support/proxy.rs"]
pub mod proxy;
pub mod redis;
#[path = "../../../../tests/support/timing.rs"]
pub mod timing;
#[path = "../../../../tests/support/trace.rs"]
pub mod trace;
#[path = "../../../../tests/support/tree.rs"]
pub mod tree;
