//! DynamoDB in [`tower-sluice-config`](tower_sluice_config) files (crate feature `file`).
//!
//! ```toml
//! [store.dynamodb]
//! table = "limits"
//! timeout = "100ms"     # for a whole decision
//! clock-error = "5ms"   # by how much the clocks of two processes may differ
//! secret = "..."        # of the hashes that stand for clients; the same in all processes
//! ```
//!
//! All keys but `table` are optional. Region, credentials and endpoint come from the program's client. Policies with
//! such a store are limits over time, limits on requests in flight, queues, or balances.
//!
//! ```no_run
//! use tower_sluice_config::Config;
//!
//! # fn load(client: aws_sdk_dynamodb::Client) -> Result<(), Box<dyn std::error::Error>> {
//! let reader = Config::reader().store("dynamodb", tower_sluice_dynamodb::file::opener(client));
//! let config = reader.parse("limits.toml", &std::fs::read_to_string("limits.toml")?)?;
//! # drop(config);
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;

use aws_sdk_dynamodb::Client;
use serde::Deserialize;
use tower_sluice::limiter::IntoLimiter;
use tower_sluice::{Limiter, RateLimiter, SharedBalance};
use tower_sluice_config::ConfigError;
use tower_sluice_config::store::{ConcurrencySpec, NoLimiter, Preparation, QueueSpec, RateSpec, Store, StoreTable};

use crate::items::LONGEST_WAY;
use crate::store::check_name;
use crate::{Dynamo, DynamoStore, Kept};

/// The TOML table's keys.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Raw {
    table: String,
    #[serde(rename = "timeout")]
    _timeout: Option<String>,
    #[serde(rename = "clock-error")]
    _clock_error: Option<String>,
    secret: Option<String>,
}

/// Returns a function that opens a table's store over this client, without a call: for
/// [`ConfigReader::store`](tower_sluice_config::ConfigReader::store).
pub fn opener(
    client: Client,
) -> impl Fn(&StoreTable<'_>) -> Result<Arc<dyn Store>, ConfigError> + Send + Sync + 'static {
    move |table| open(&client, table)
}

fn open(client: &Client, table: &StoreTable<'_>) -> Result<Arc<dyn Store>, ConfigError> {
    let raw: Raw = table.read()?;
    if raw.table.is_empty() {
        return Err(table.error("table", "table is empty; write the name of the table"));
    }
    let mut dynamo = Dynamo::new(client.clone(), raw.table);
    if let Some(timeout) = table.time("timeout")? {
        if timeout > LONGEST_WAY {
            return Err(table.error("timeout", "timeout: a decision may take a minute at the most"));
        }
        dynamo = dynamo.timeout(timeout);
    }
    if let Some(error) = table.time("clock-error")? {
        dynamo = dynamo.clock_error(error);
    }
    if let Some(secret) = raw.secret {
        dynamo = dynamo.secret(secret);
    }
    Ok(Arc::new(DynamoLimiters(dynamo)))
}

struct DynamoLimiters(Dynamo);

impl DynamoLimiters {
    fn limiter<A: Kept>(&self, name: &str, algorithm: A) -> Result<Arc<dyn Limiter>, NoLimiter> {
        algorithm.fits().map_err(|_| {
            NoLimiter::unfit("staggered windows are for memory; remove staggered, or write store = \"memory\"")
        })?;
        check_name(name).map_err(NoLimiter::unfit)?;
        Ok(RateLimiter::new(algorithm, DynamoStore::new(&self.0, name)).into_limiter())
    }
}

impl Store for DynamoLimiters {
    fn rate_limiter(&self, name: &str, rate: RateSpec) -> Result<Arc<dyn Limiter>, NoLimiter> {
        match rate {
            RateSpec::TokenBucket(bucket) => self.limiter(name, bucket),
            RateSpec::LeakyBucket(bucket) => self.limiter(name, bucket),
            RateSpec::FixedWindow(window) => self.limiter(name, window),
            RateSpec::SlidingWindow(window) => self.limiter(name, window),
            #[cfg(feature = "calendar")]
            RateSpec::CalendarWindow(window) => self.limiter(name, window),
            _ => Err(NoLimiter::Unsupported),
        }
    }

    fn balance(&self, name: &str) -> Result<Arc<dyn Limiter>, NoLimiter> {
        check_name(name).map_err(NoLimiter::unfit)?;
        Ok(SharedBalance::new(self.0.records(), name).into_limiter())
    }

    fn concurrency(&self, name: &str, spec: ConcurrencySpec) -> Result<Arc<dyn Limiter>, NoLimiter> {
        check_name(name).map_err(NoLimiter::unfit)?;
        Ok(spec.shared(self.0.records(), name))
    }

    fn queue(&self, name: &str, spec: QueueSpec) -> Result<Arc<dyn Limiter>, NoLimiter> {
        check_name(name).map_err(NoLimiter::unfit)?;
        spec.shared(self.0.records(), name)
    }

    fn prepare(&self) -> Preparation<'_> {
        Box::pin(async { Ok(self.0.create_table().await?) })
    }
}
