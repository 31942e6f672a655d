//! `sluice serve`, as proxies ask it.

#![allow(clippy::duplicate_mod, reason = "both kinds of servers take their ports from one file")]

mod auth;
mod envoy;
mod init;
mod postgres;
#[path = "../../src/serve/rls/proto.rs"]
#[allow(dead_code, missing_docs, reason = "the tests read a part of it")]
mod proto;
mod running;
mod service;
mod shared;

#[path = "../../../redis/tests/support/redis.rs"]
#[allow(dead_code, missing_debug_implementations, missing_docs, unreachable_pub)]
mod redis;
#[path = "../../../../tests/support/postgres.rs"]
#[allow(dead_code, missing_debug_implementations, missing_docs, unreachable_pub)]
mod server;
#[path = "../../../../tests/support/timing.rs"]
#[allow(dead_code, missing_docs, unreachable_pub)]
mod timing;
