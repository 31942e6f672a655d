//! The stores that a configuration may name, besides memory and Redis.

use tower_sluice_config::{Config, ConfigReader};

use crate::Failure;

/// Makes a reader that knows all stores of this program.
pub(crate) fn reader() -> ConfigReader {
    Config::reader().store("postgres", tower_sluice_postgres::file::open)
}

/// The statement that prepares the server of a configuration: the one of `store`, or the only one. Statements of
/// several servers are never printed together, since they are for several servers.
pub(crate) fn migration(file: &str, text: &str, store: Option<&str>) -> Result<String, Failure> {
    let config = reader().keys(crate::serve::descriptor_key).parse(file, text)?;
    let all = config.migrations();
    let names: Vec<_> = all.iter().map(|(name, _)| *name).collect();
    let named = all.iter().find(|(name, _)| store.is_none_or(|store| store == *name));
    match (named, store) {
        (Some((name, statement)), _) if store.is_some() || all.len() == 1 => {
            let statement = statement.trim_end();
            let end = if statement.ends_with(';') { "" } else { ";" };
            Ok(format!("-- [store.{name}]\n{statement}{end}\n"))
        }
        (None, None) => {
            Err(Failure::Usage(format!("{file} has no store that needs a statement, such as one of PostgreSQL")))
        }
        _ => Err(Failure::Usage(format!("{file}: write --store with one of {}", names.join(", ")))),
    }
}
