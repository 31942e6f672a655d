//! The stores that a configuration may name, besides memory.

#[cfg(feature = "dynamodb")]
mod dynamodb;
#[cfg(not(feature = "dynamodb"))]
#[path = "no_dynamodb.rs"]
mod dynamodb;

use tower_sluice_config::{Config, ConfigReader};

use crate::failure::Failure;

/// Makes a reader that knows all stores in this program.
pub(crate) fn reader() -> ConfigReader {
    Config::reader()
        .store("dynamodb", dynamodb::open)
        .store("postgres", tower_sluice_postgres::file::open)
        .store("redis", tower_sluice_redis::file::open)
}

/// Returns the statement that prepares a configuration's server: the server for `store`, or the only one. Statements
/// for several servers are never printed together, because each is for one server.
pub(crate) fn migration(file: &str, text: &str, store: Option<&str>) -> Result<String, Failure> {
    let config = reader().keys(crate::descriptors::read_key).parse(file, text)?;
    let all = config.migrations();
    let chosen = match (&*all, store) {
        ([], None) => {
            let problem = format!("{file} has no store that needs a statement, such as one of PostgreSQL");
            return Err(Failure::Usage(problem));
        }
        ([only], None) => Some(only),
        _ => all.iter().find(|(name, _)| Some(*name) == store),
    };
    let Some((name, statement)) = chosen else {
        let names: Vec<_> = all.iter().map(|(name, _)| *name).collect();
        return Err(Failure::Usage(format!("{file}: write --store with one of {}", names.join(", "))));
    };
    let statement = statement.trim_end();
    let end = if statement.ends_with(';') { "" } else { ";" };
    Ok(format!("-- [store.{name}]\n{statement}{end}\n"))
}
