//! `ConfigReader`: parsing with settings that a file cannot have.

use std::fmt;

use super::{Config, ConfigError, Redis};
use crate::http::RateLimitLayerBuilder;

/// Parses a configuration, with settings that a file cannot have.
///
/// ```
/// use tower_sluice::config::Config;
///
/// let text = r#"
///     [[route]]
///     path = "/api"
///       [[route.policy]]
///       name = "everybody"
///       algorithm = "token-bucket"
///       limit = 10
///       per = "1s"
/// "#;
/// let config = Config::reader().layers(|layer| layer.verdict().server_timing()).parse("limits.toml", text)?;
/// # Ok::<_, tower_sluice::config::ConfigError>(())
/// ```
#[must_use]
pub struct ConfigReader {
    pub(super) redis: Option<Redis>,
    pub(super) set_up: Box<SetUp>,
}

pub(super) type SetUp = dyn Fn(RateLimitLayerBuilder) -> RateLimitLayerBuilder;

impl ConfigReader {
    pub(super) fn new() -> Self {
        Self { redis: None, set_up: Box::new(|builder| builder) }
    }

    /// Uses this Redis instead of the one in the file.
    #[cfg(feature = "redis")]
    pub fn redis(mut self, redis: &Redis) -> Self {
        self.redis = Some(redis.clone());
        self
    }

    /// Sets up the layer of each route, after the settings of the file. A second call replaces the first.
    pub fn layers(mut self, set_up: impl Fn(RateLimitLayerBuilder) -> RateLimitLayerBuilder + 'static) -> Self {
        self.set_up = Box::new(set_up);
        self
    }

    /// Parses `text`; `file` is the name in messages.
    ///
    /// # Errors
    ///
    /// As [`Config::parse`].
    pub fn parse(self, file: &str, text: &str) -> Result<Config, ConfigError> {
        Config::read(file, text, self)
    }
}

impl fmt::Debug for ConfigReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConfigReader").finish_non_exhaustive()
    }
}
