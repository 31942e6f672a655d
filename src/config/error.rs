//! `ConfigError`, and the source text that gives it file and line.

use std::error::Error;
use std::fmt;
use std::ops::Range;

use serde::de::DeserializeOwned;

use super::parser_errors;

/// What is wrong with a configuration, where, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    file: String,
    line: usize,
    problem: String,
}

impl ConfigError {
    /// Makes an error for a line of a file, for checks of your own.
    #[must_use]
    pub fn new(file: impl Into<String>, line: usize, problem: impl fmt::Display) -> Self {
        Self { file: file.into(), line, problem: problem.to_string() }
    }

    /// Returns the line, counted from 1.
    #[must_use]
    pub const fn line(&self) -> usize {
        self.line
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.problem)
    }
}

impl Error for ConfigError {}

/// The text that the parser's spans refer to.
pub(super) struct Source<'a> {
    file: &'a str,
    text: &'a str,
    /// Where each line begins. Each route needs its line number, and counting from the top each time would take
    /// quadratic time.
    lines: Vec<usize>,
}

impl<'a> Source<'a> {
    pub(super) fn new(file: &'a str, text: &'a str) -> Self {
        let after_breaks = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
        Self { file, text, lines: std::iter::once(0).chain(after_breaks).collect() }
    }

    pub(super) fn line(&self, at: &Range<usize>) -> usize {
        self.lines.partition_point(|begin| *begin <= at.start)
    }

    pub(super) fn error(&self, at: &Range<usize>, problem: impl fmt::Display) -> ConfigError {
        ConfigError::new(self.file, self.line(at), problem)
    }

    /// Parses the TOML, without checking values.
    pub(super) fn read<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        toml::from_str(self.text).map_err(|error| {
            let at = error.span().unwrap_or(0..0);
            self.error(&at, parser_errors::reworded(self.text, &at, error.message()))
        })
    }

    /// The position behind the last character, for what is missing.
    pub(super) const fn end(&self) -> Range<usize> {
        self.text.len()..self.text.len()
    }
}
