//! Why the program ends early.

use tower_sluice_config::ConfigError;

/// Why the program ends early.
pub(crate) enum Failure {
    /// A file cannot be read or written.
    Io(String),
    /// A configuration has mistakes.
    Config(Vec<ConfigError>),
    /// The arguments have a mistake.
    Usage(String),
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::Config(vec![error])
    }
}
