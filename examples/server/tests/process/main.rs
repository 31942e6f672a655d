//! Tests the example server as a separate process.

#![allow(clippy::duplicate_mod, reason = "both kinds of servers take their ports from one file")]

mod admin;
mod client;
mod disguises;
mod in_flight;
mod overload;
mod page;
mod restarts;
mod routes;
mod server;
#[cfg(any(feature = "redis", feature = "postgres"))]
mod shared_limit;
mod shutdown;

#[path = "../../src/echo.rs"]
#[allow(dead_code)]
mod echo;

// Helpers from the crate's own tests. These tests use some of them.
#[cfg(feature = "postgres")]
#[path = "../../../../tests/support/postgres.rs"]
#[allow(dead_code, unreachable_pub)]
mod postgres;
#[cfg(feature = "redis")]
#[path = "../../../../crates/redis/tests/support/redis.rs"]
#[allow(dead_code, unreachable_pub)]
mod redis;
#[path = "../../../../tests/support/timing.rs"]
#[allow(dead_code, unreachable_pub)]
mod timing;
#[path = "../../../../tests/http/disguises/wire.rs"]
#[allow(dead_code)]
mod wire;
