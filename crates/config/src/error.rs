//! `ConfigError`: errors in a configuration, with their place.

use std::error::Error;
use std::fmt;

/// An error in a configuration, its place, and its cure.
#[derive(Clone, PartialEq, Eq)]
pub struct ConfigError {
    file: String,
    line: usize,
    problem: String,
}

impl ConfigError {
    /// Makes an error for a line in a file, for your own checks.
    #[must_use]
    pub fn new(file: impl Into<String>, line: usize, problem: impl fmt::Display) -> Self {
        Self { file: file.into(), line, problem: problem.to_string() }
    }

    /// Returns the file's name, as it was passed to [`Config::parse`](super::Config::parse) or
    /// [`change`](super::Config::change).
    #[must_use]
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Returns the line, counted from 1.
    #[must_use]
    pub const fn line(&self) -> usize {
        self.line
    }

    /// Returns the error and its cure: the message without file and line.
    #[must_use]
    pub fn problem(&self) -> &str {
        &self.problem
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.problem)
    }
}

// If `main` returns the error, Rust prints it by `Debug`. Users should read the message there, too, and not its fields.
impl fmt::Debug for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error for ConfigError {}
