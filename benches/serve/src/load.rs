//! The code that the other benchmarks under load share with these.

#[allow(dead_code)]
#[path = "../../src/load/cells.rs"]
mod cells;

pub use cells::{Cell, Cells};

pub type Outcome<T> = Result<T, String>;

pub fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
