//! Configuration files.

mod errors;
mod file;
mod schema;
