//! Tests of configuration files.

mod errors;
mod file;
mod schema;
