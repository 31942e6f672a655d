//! Helpers that the tests of several packages share.

#[path = "../../../tests/support/cases.rs"]
pub(crate) mod cases;
#[path = "../../../src/values/counterexamples.rs"]
pub(crate) mod counterexamples;
#[path = "../../../tests/support/effort.rs"]
pub(crate) mod effort;
#[path = "../../../tests/support/log.rs"]
pub(crate) mod log;
#[path = "../tests/support/manual_redis.rs"]
pub(crate) mod manual_redis;
#[path = "../tests/support/redis.rs"]
pub(crate) mod servers;
#[path = "../../../tests/support/timing.rs"]
pub(crate) mod timing;
#[path = "../../../tests/support/trace.rs"]
pub(crate) mod trace;
