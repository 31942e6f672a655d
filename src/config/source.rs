//! The text of a configuration, which gives errors their file and line.

use std::fmt;
use std::ops::Range;

use serde::de::DeserializeOwned;

use super::error::ConfigError;
use super::parser_errors;

/// The text that the parser's spans refer to.
pub(super) struct SourceText<'a> {
    file: &'a str,
    text: &'a str,
    /// Where each line begins. Each route needs its line number, and counting from the top each time would take
    /// quadratic time.
    lines: Vec<usize>,
}

impl<'a> SourceText<'a> {
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
    pub(super) fn parse_toml<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        toml::from_str(self.text).map_err(|error| {
            let at = error.span().unwrap_or(0..0);
            self.error(&at, parser_errors::reworded(self.text, &at, error.message()))
        })
    }

    /// The position behind the last character, for a missing field.
    pub(super) const fn end(&self) -> Range<usize> {
        self.text.len()..self.text.len()
    }
}
