//! Redis in [`tower-sluice-config`](tower_sluice_config) files (crate feature `file`): `[redis]`, and `[store.NAME]`
//! with the kind `redis`.
//!
//! ```toml
//! [redis]
//! url = "redis://127.0.0.1:6379"  # or a list: some nodes of a cluster, or the sentinels of a master
//! master = "main"                 # the name by which the sentinels know it
//! timeout = "50ms"                # for a whole decision
//! prefix = "sluice"               # the start of all key names
//! secret = "..."                  # of the hashes that stand for clients; the same in all processes
//! ```
//!
//! All keys but `url` are optional.
//!
//! ```
//! use tower_sluice_config::Config;
//!
//! let text = r#"
//!     [redis]
//!     url = "redis://127.0.0.1:6379"
//!
//!     [[route]]
//!     path = "/api"
//!       [[route.policy]]
//!       name = "everybody"
//!       algorithm = "token-bucket"
//!       limit = 10
//!       per = "1s"
//! "#;
//! let config = Config::reader().store("redis", tower_sluice_redis::file::open).parse("limits.toml", text)?;
//! # Ok::<_, tower_sluice_config::ConfigError>(())
//! ```

use std::sync::Arc;

use serde::Deserialize;
use tower_sluice::limiter::IntoLimiter;
use tower_sluice::{Limiter, RateLimiter, SharedBalance};
use tower_sluice_config::ConfigError;
use tower_sluice_config::store::{ConcurrencySpec, NoLimiter, QueueSpec, RateSpec, Store, StoreTable};

use crate::{Redis, RedisStore, Scripted};

/// The TOML table's keys.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Raw {
    url: OneOrMany,
    master: Option<String>,
    #[serde(rename = "timeout")]
    _timeout: Option<String>,
    prefix: Option<String>,
    secret: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a string or a list of strings")]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

/// Opens a table's servers, without a connection: for
/// [`ConfigReader::store`](tower_sluice_config::ConfigReader::store).
///
/// # Errors
///
/// If a key is unknown, missing or wrong.
pub fn open(table: &StoreTable<'_>) -> Result<Arc<dyn Store>, ConfigError> {
    let raw: Raw = table.read()?;
    let mut builder = match (raw.url, raw.master) {
        (OneOrMany::One(url), None) => Redis::single(url),
        (OneOrMany::Many(urls), None) => Redis::cluster(urls),
        (OneOrMany::One(url), Some(master)) => Redis::sentinel(master, [url]),
        (OneOrMany::Many(urls), Some(master)) => Redis::sentinel(master, urls),
    };
    if let Some(timeout) = table.time("timeout")? {
        builder = builder.timeout(timeout);
    }
    if let Some(prefix) = raw.prefix {
        if prefix.contains(['{', '}']) {
            let problem = format!("prefix = {prefix:?}: a cluster takes braces for the part to hash; leave them out");
            return Err(table.error("prefix", problem));
        }
        builder = builder.prefix(prefix);
    }
    if let Some(secret) = raw.secret {
        builder = builder.secret(secret);
    }
    // The fault's message contains nothing from the address, which may have a password.
    let redis = builder.open().map_err(|error| table.error("url", format_args!("url: {error}")))?;
    Ok(limiters(&redis))
}

/// Returns the limiters on a [`Redis`] that a program has made, for
/// [`ConfigReader::redis`](tower_sluice_config::ConfigReader::redis), or for a function that
/// [opens](tower_sluice_config::ConfigReader::store) its store.
#[must_use]
pub fn limiters(redis: &Redis) -> Arc<dyn Store> {
    Arc::new(RedisLimiters(redis.clone()))
}

struct RedisLimiters(Redis);

impl RedisLimiters {
    fn limiter<A: Scripted>(&self, name: &str, algorithm: A) -> Result<Arc<dyn Limiter>, NoLimiter> {
        algorithm.fits().map_err(NoLimiter::unfit)?;
        Ok(RateLimiter::new(algorithm, RedisStore::new(&self.0, name)).into_limiter())
    }
}

impl Store for RedisLimiters {
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

    fn check_fit(&self, rate: &RateSpec) -> Result<(), NoLimiter> {
        let fits = match rate {
            RateSpec::TokenBucket(bucket) => bucket.fits(),
            RateSpec::LeakyBucket(bucket) => bucket.fits(),
            RateSpec::FixedWindow(window) => window.fits(),
            RateSpec::SlidingWindow(window) => window.fits(),
            #[cfg(feature = "calendar")]
            RateSpec::CalendarWindow(window) => window.fits(),
            _ => return Err(NoLimiter::Unsupported),
        };
        fits.map_err(NoLimiter::unfit)
    }

    fn queue(&self, name: &str, spec: QueueSpec) -> Result<Arc<dyn Limiter>, NoLimiter> {
        spec.shared(self.0.clone(), name)
    }

    fn concurrency(&self, name: &str, spec: ConcurrencySpec) -> Result<Arc<dyn Limiter>, NoLimiter> {
        Ok(spec.shared(self.0.clone(), name))
    }

    fn balance(&self, name: &str) -> Result<Arc<dyn Limiter>, NoLimiter> {
        Ok(SharedBalance::new(self.0.clone(), name).into_limiter())
    }
}
