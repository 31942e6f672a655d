use std::error::Error;
use std::fmt;
use std::ops::Range;

/// What is wrong with a configuration, where, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    file: String,
    line: usize,
    problem: String,
}

impl ConfigError {
    /// A problem on a line of a file, for checks of your own.
    #[must_use]
    pub fn new(file: impl Into<String>, line: usize, problem: impl fmt::Display) -> Self {
        Self { file: file.into(), line, problem: problem.to_string() }
    }

    /// The line, counted from 1.
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

/// The text that spans point into.
pub(super) struct Source<'a> {
    pub(super) file: &'a str,
    pub(super) text: &'a str,
}

impl Source<'_> {
    pub(super) fn line(&self, at: &Range<usize>) -> usize {
        let before = &self.text.as_bytes()[..at.start.min(self.text.len())];
        1 + before.iter().filter(|byte| **byte == b'\n').count()
    }

    pub(super) fn error(&self, at: &Range<usize>, problem: impl fmt::Display) -> ConfigError {
        ConfigError::new(self.file, self.line(at), problem)
    }

    pub(super) fn syntax_error(&self, error: &toml::de::Error) -> ConfigError {
        self.error(&error.span().unwrap_or(0..0), error.message())
    }
}
