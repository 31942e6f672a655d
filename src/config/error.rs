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

/// What to write where the parser expected a type of Rust, as its messages end.
const CURES: [(&str, &str); 10] = [
    ("expected i64", "write a whole number, such as 10"),
    ("expected u16", "write whole numbers, such as 429"),
    ("expected u8", "write a whole number, such as 64"),
    ("expected usize", "write a whole number, such as 1"),
    ("expected a boolean", "write true or false"),
    ("expected a string", "write a text in quotation marks"),
    ("wanted string or table", "write one of the words for it, in quotation marks"),
    ("expected a sequence", "write a list in brackets, such as [401, 403]"),
    ("expected struct RawBudget", "write { limit = 50, per = \"1s\" }"),
    ("expected struct RawPenalty", "write { refusals = 30, per = \"1m\", ban = \"10m\" }"),
];

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

    /// Of a parser that knows the types of Rust, told in terms of the file.
    pub(super) fn syntax_error(&self, error: &toml::de::Error) -> ConfigError {
        let (at, message) = (error.span().unwrap_or(0..0), error.message());
        let cure = CURES.iter().find(|(expected, _)| message.ends_with(expected)).map(|(_, cure)| cure);
        match (cure, self.setting(&at)) {
            (Some(cure), Some(setting)) => self.error(&at, format_args!("{setting}: {cure}")),
            (Some(cure), None) => self.error(&at, format_args!("{message}; {cure}")),
            (None, _) => self.error(&at, message),
        }
    }

    /// `key = value`, if the line is no longer than that.
    fn setting(&self, at: &Range<usize>) -> Option<&str> {
        let line = self.text.lines().nth(self.line(at) - 1)?.split(" #").next()?.trim();
        let (key, value) = line.split_once('=')?;
        let is_key = key.trim().chars().all(|char| char.is_ascii_alphanumeric() || char == '-');
        (is_key && !value.contains('=') && line.len() < 80).then_some(line)
    }
}
