//! PostgreSQL in [`tower-sluice-config`](tower_sluice_config) files (crate feature `file`).
//!
//! ```toml
//! [store.postgres]
//! url = "postgres://limits:secret@10.0.0.7/limits"
//! table = "sluice_state"  # may have a schema: "limits.sluice_state"
//! timeout = "100ms"       # for a whole decision
//! pool-size = 8           # connections of this process
//! behind-pooler = false   # true behind pgbouncer in transaction mode
//! secret = "..."          # of the hashes that stand for clients; the same in all processes
//! ```
//!
//! All keys but `url` are optional. Policies with such a store are limits over time, limits on requests in flight,
//! queues, or balances. Connections are not encrypted; for TLS, make the [`Postgres`] in code, and give the reader [its
//! limiters](limiters).
//!
//! Create the table first: [`Config::migrations`](tower_sluice_config::Config::migrations) returns the statement.
//!
//! ```
//! use tower_sluice_config::Config;
//!
//! let text = r#"
//!     [store.postgres]
//!     url = "postgres://limits@127.0.0.1/limits"
//!
//!     [[route]]
//!     path = "/api"
//!       [[route.policy]]
//!       name = "everybody"
//!       algorithm = "token-bucket"
//!       limit = 10
//!       per = "1s"
//! "#;
//! let config = Config::reader().store("postgres", tower_sluice_postgres::file::open).parse("limits.toml", text)?;
//! assert!(config.migrations()[0].1.contains("CREATE UNLOGGED TABLE IF NOT EXISTS \"sluice_state\""));
//! # Ok::<_, tower_sluice_config::ConfigError>(())
//! ```

use std::sync::Arc;

use deadpool_postgres::{Manager, Pool};
use serde::Deserialize;
use tokio_postgres::NoTls;
use tokio_postgres::config::SslMode;
use tower_sluice::limiter::IntoLimiter;
use tower_sluice::{Limiter, RateLimiter, SharedBalance};
use tower_sluice_config::ConfigError;
use tower_sluice_config::store::{ConcurrencySpec, NoLimiter, Preparation, QueueSpec, RateSpec, Store, StoreTable};

use crate::store::check_name;
use crate::{Kept, Postgres, PostgresStore};

const CURE: &str = "write postgres://USER:PASSWORD@HOST:PORT/DATABASE";

const MOST_CONNECTIONS: usize = 1_000;

/// The TOML table's keys.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Raw {
    url: String,
    table: Option<String>,
    #[serde(rename = "timeout")]
    _timeout: Option<String>,
    pool_size: Option<i64>,
    #[serde(default)]
    behind_pooler: bool,
    secret: Option<String>,
}

/// Opens a table's store, without a connection: for [`ConfigReader::store`](tower_sluice_config::ConfigReader::store).
///
/// # Errors
///
/// If a key is unknown, missing or wrong.
pub fn open(table: &StoreTable<'_>) -> Result<Arc<dyn Store>, ConfigError> {
    let raw: Raw = table.read()?;
    // Its message contains nothing from the address, which may have a password.
    let address: tokio_postgres::Config =
        raw.url.parse().map_err(|error| table.error("url", format_args!("url: {error}; {CURE}")))?;
    if address.get_ssl_mode() == SslMode::Require {
        let problem = "url: sslmode=require: connections of a file are not encrypted; leave it out and keep the way to the server private, or make the store in code";
        return Err(table.error("url", problem));
    }
    if address.get_hosts().is_empty() {
        return Err(table.error("url", format_args!("url: it has no host; {CURE}")));
    }
    let size = raw.pool_size.unwrap_or(8);
    let Some(size) = usize::try_from(size).ok().filter(|size| (1..=MOST_CONNECTIONS).contains(size)) else {
        let problem = format!(
            "pool-size = {size}: write how many connections there may be, from 1 to {MOST_CONNECTIONS}, such as 8"
        );
        return Err(table.error("pool-size", problem));
    };
    let pool = Pool::builder(Manager::new(address, NoTls)).max_size(size).build();
    let pool = pool.map_err(|error| table.error("url", format_args!("url: {error}")))?;
    let mut postgres = Postgres::new(pool);
    if let Some(name) = &raw.table {
        if !Postgres::is_table_name(name) {
            let problem =
                format!("table = {name:?}: write small letters, digits and underscores, such as limits.sluice_state");
            return Err(table.error("table", problem));
        }
        postgres = postgres.table(name);
    }
    if let Some(timeout) = table.time("timeout")? {
        postgres = postgres.timeout(timeout);
    }
    if raw.behind_pooler {
        postgres = postgres.behind_pooler();
    }
    if let Some(secret) = raw.secret {
        postgres = postgres.secret(secret);
    }
    Ok(limiters(postgres))
}

/// Returns the limiters on a [`Postgres`] that a program has made, for a function that
/// [opens](tower_sluice_config::ConfigReader::store) its store.
#[must_use]
pub fn limiters(postgres: Postgres) -> Arc<dyn Store> {
    Arc::new(PostgresLimiters(postgres))
}

struct PostgresLimiters(Postgres);

impl PostgresLimiters {
    fn limiter<A: Kept>(&self, name: &str, algorithm: A) -> Result<Arc<dyn Limiter>, NoLimiter> {
        algorithm.fits().map_err(|_| {
            NoLimiter::unfit("staggered windows are for memory; remove staggered, or write store = \"memory\"")
        })?;
        check_name(name).map_err(NoLimiter::unfit)?;
        Ok(RateLimiter::new(algorithm, PostgresStore::new(&self.0, name)).into_limiter())
    }
}

impl Store for PostgresLimiters {
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

    fn migration(&self) -> Option<String> {
        Some(self.0.migration())
    }

    fn prepare(&self) -> Preparation<'_> {
        Box::pin(async { Ok(self.0.prepare().await?) })
    }
}

#[cfg(test)]
mod tests {
    use tower_sluice_config::Config;

    /// The error for a table with these lines.
    fn error(lines: &str) -> String {
        let text = format!(
            "[store.postgres]\n{lines}\n[[route]]\npath = \"/\"\n[[route.policy]]\nname = \"p\"\nalgorithm = \"token-bucket\"\n\
             limit = 1\nper = \"1s\"\n"
        );
        Config::reader().store("postgres", super::open).parse("f.toml", &text).expect_err(lines).to_string()
    }

    /// Its departure times are records.
    #[test]
    fn a_policy_may_be_a_queue() {
        let text = "[store.postgres]\nurl = \"postgres://u@h/d\"\n[[route]]\npath = \"/\"\n[[route.policy]]\nname = \"p\"\n\
                    algorithm = \"leaky-queue\"\nlimit = 10\nper = \"1s\"\nmax-queue = 50\nmax-wait = \"5s\"\n";
        let config = Config::reader().store("postgres", super::open).parse("f.toml", text).expect("it has queues");
        config.close();
    }

    #[test]
    fn mistakes_in_the_table_are_reported() {
        let url = "url = \"postgres://u:hunter2@h/d\"";
        for (lines, expected) in [
            ("pool-size = 1".to_owned(), "f.toml:1: missing field `url`"),
            ("url = \"postgres://u:hunter2@h:port/d\"".to_owned(), "f.toml:2: url: "),
            ("url = \"postgres://h/d?sslmode=require\"".to_owned(), "f.toml:2: url: sslmode=require: "),
            (format!("{url}\npool-size = 0"), "f.toml:3: pool-size = 0: "),
            (
                format!("{url}\npool-size = -1"),
                "f.toml:3: pool-size = -1: write how many connections there may be, from 1 to 1000",
            ),
            (
                "url = \"\"".to_owned(),
                "f.toml:2: url: it has no host; write postgres://USER:PASSWORD@HOST:PORT/DATABASE",
            ),
            (format!("{url}\ntable = \"a b\""), "f.toml:3: table = \"a b\": "),
            (format!("{url}\ntimeout = \"0s\""), "f.toml:3: timeout = \"0s\": "),
            (format!("{url}\npoolsize = 1"), "f.toml:3: unknown field `poolsize` (did you mean `pool-size`?), "),
        ] {
            let message = error(&lines);
            assert!(message.starts_with(expected), "{message}");
            assert!(!message.contains("hunter2"), "{message}");
        }
    }
}
