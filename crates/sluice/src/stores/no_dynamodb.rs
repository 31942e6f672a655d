//! `kind = "dynamodb"` in a program without the feature `dynamodb`.

use std::sync::Arc;

use tower_sluice_config::ConfigError;
use tower_sluice_config::store::{Store, StoreTable};

/// Says how to build a program that has it.
pub(super) fn open(table: &StoreTable<'_>) -> Result<Arc<dyn Store>, ConfigError> {
    let problem = "this program has no DynamoDB; build it with cargo build --release -p sluice --features dynamodb";
    Err(table.error("kind", problem))
}
