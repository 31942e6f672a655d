//! Tests of the example server as a separate process.

mod page;
mod routes;
mod shutdown;

#[path = "../../examples/server/echo.rs"]
#[allow(dead_code, unreachable_pub)]
mod echo;
#[path = "../support/mod.rs"]
mod support;
