//! The stores that a configuration may name, besides memory and Redis.

use tower_sluice_config::{Config, ConfigError, ConfigReader};

/// Makes a reader that knows all stores of this program.
pub(crate) fn reader() -> ConfigReader {
    Config::reader().store("postgres", tower_sluice_postgres::file::open)
}

/// The statements that prepare the servers of a configuration, with the name of each store as a comment.
pub(crate) fn migrations(file: &str, text: &str) -> Result<String, ConfigError> {
    let config = reader().keys(crate::serve::descriptor_key).parse(file, text)?;
    let statements = config.migrations().into_iter().map(|(store, statement)| {
        let end = if statement.trim_end().ends_with(';') { "" } else { ";" };
        format!("-- [store.{store}]\n{}{end}\n", statement.trim_end())
    });
    Ok(statements.collect())
}
