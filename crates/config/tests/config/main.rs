//! Tests for configuration files.

#[cfg(all(feature = "admin", feature = "axum"))]
mod admin;
#[path = "../../../../tests/support/busy.rs"]
mod busy;
mod calendar;
#[path = "../../../../tests/support/cases.rs"]
mod cases;
mod change;
mod closed;
mod errors;
mod guide;
mod keys;
mod layers;
#[path = "../../../../tests/support/log.rs"]
mod log;
mod mistakes;
mod plans;
mod problems;
#[cfg(feature = "axum")]
mod router;
mod schema;
mod stores;

use tower_sluice_config::{Config, ConfigReader};

/// Reads files like a program that has Redis.
fn reader() -> ConfigReader {
    Config::reader().store("redis", tower_sluice_redis::file::open)
}

/// Returns a route with one policy, in which `line` replaces the line for its field, or is added.
fn with(line: &str) -> String {
    let field = line.split(['=', ' ']).next().unwrap();
    let policy = ["name = \"p\"", "algorithm = \"token-bucket\"", "limit = 10", "per = \"1s\"", "key = \"global\""];
    let mut lines: Vec<_> = policy.iter().map(|old| if old.starts_with(field) { line } else { old }).collect();
    if !policy.iter().any(|old| old.starts_with(field)) {
        lines.push(line);
    }
    format!("[[route]]\npath = \"/a\"\n[[route.policy]]\n{}\n", lines.join("\n"))
}

/// Returns the error message for a configuration.
fn error(text: &str) -> String {
    reader().parse("f.toml", text).expect_err(text).to_string()
}

/// Returns the format in the module's documentation.
fn documented_format() -> String {
    include_str!("../../src/format.toml").to_owned()
}
