//! The example server, as a process of its own.

mod page;
mod routes;
mod shutdown;

#[path = "../../examples/server/echo.rs"]
#[allow(dead_code, unreachable_pub)]
mod echo;
#[path = "../support/mod.rs"]
mod support;
