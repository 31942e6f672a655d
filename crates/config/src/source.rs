//! A configuration's text, which gives errors their file and line.

use std::fmt;
use std::ops::Range;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, Error};

use super::error::ConfigError;
use super::parser_errors;

/// The text that the parser's spans refer to.
pub(crate) struct SourceText<'a> {
    file: &'a str,
    text: &'a str,
    /// Where each line begins. Each route needs its line number, and counting from the top each time would take
    /// quadratic time.
    lines: Vec<usize>,
}

impl<'a> SourceText<'a> {
    pub(crate) fn new(file: &'a str, text: &'a str) -> Self {
        let after_breaks = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
        Self { file, text, lines: std::iter::once(0).chain(after_breaks).collect() }
    }

    pub(crate) fn line(&self, at: &Range<usize>) -> usize {
        self.lines.partition_point(|begin| *begin <= at.start)
    }

    pub(crate) fn error(&self, at: &Range<usize>, problem: impl fmt::Display) -> ConfigError {
        ConfigError::new(self.file, self.line(at), problem)
    }

    /// Parses the TOML, without checking values.
    pub(crate) fn parse_toml<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        toml::from_str(self.text).map_err(|error| match DeTable::parse(self.text) {
            Ok(file) => self.type_error(file.get_ref(), &error),
            Err(_) => self.syntax_error(&error),
        })
    }

    /// Parses the TOML as a table of values with their places.
    pub(crate) fn parse_table(&self) -> Result<Spanned<DeTable<'a>>, ConfigError> {
        DeTable::parse(self.text).map_err(|error| self.syntax_error(&error))
    }

    /// Its message has the expected form, and never the found text, so it cannot hold a secret.
    fn syntax_error(&self, error: &Error) -> ConfigError {
        self.error(&error.span().unwrap_or(0..0), error.message())
    }

    /// The error for a table or value that does not follow the format. `file` is the whole text.
    pub(crate) fn type_error(&self, file: &DeTable<'_>, error: &Error) -> ConfigError {
        let at = error.span().unwrap_or(0..0);
        self.error(&at, parser_errors::reworded(self.text, file, &at, error.message()))
    }

    /// The position behind the last character, for a missing field.
    pub(crate) const fn end(&self) -> Range<usize> {
        self.text.len()..self.text.len()
    }
}
