//! `[redis]`, and stores of the kind `redis`.

use std::sync::Arc;

use tower_sluice::limiter::IntoLimiter;
use tower_sluice::store::redis::{Redis, RedisStore, Scripted};
use tower_sluice::{Limiter, RateLimiter, RedisBalance, RedisConcurrency, RedisQueue};

use super::{ConcurrencySpec, NoLimiter, QueueSpec, RateSpec, Store};
use crate::error::ConfigError;
use crate::format::{OneOrMany, RawRedis};
use crate::source::SourceText;
use crate::value::{duration, set_if_some};

/// Opens the servers of `[redis]`.
pub(crate) fn redis(source: &SourceText<'_>, raw: RawRedis) -> Result<Redis, ConfigError> {
    let at = raw.url.span();
    let mut builder = match (raw.url.into_inner(), raw.master) {
        (OneOrMany::One(url), None) => Redis::single(url),
        (OneOrMany::Many(urls), None) => Redis::cluster(urls),
        (urls, Some(master)) => Redis::sentinel(master, urls.as_slice().to_vec()),
    };
    if let Some(timeout) = &raw.timeout {
        let time = duration(source, "timeout", timeout)?;
        if time.is_zero() {
            let problem = "timeout = \"0s\": every decision would time out; write a time such as 50ms";
            return Err(source.error(&timeout.span(), problem));
        }
        builder = builder.timeout(time);
    }
    if let Some(prefix) = raw.prefix {
        if prefix.get_ref().contains(['{', '}']) {
            let problem =
                format!("prefix = {:?}: a cluster takes braces for the part to hash; leave them out", prefix.get_ref());
            return Err(source.error(&prefix.span(), problem));
        }
        builder = builder.prefix(prefix.into_inner());
    }
    if let Some(secret) = raw.secret {
        builder = builder.secret(secret);
    }
    builder.open().map_err(|error| source.error(&at, format_args!("url: {error}")))
}

/// The limiters on a Redis.
pub(crate) struct RedisLimiters(pub(crate) Redis);

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
        };
        fits.map_err(NoLimiter::unfit)
    }

    fn queue(&self, name: &str, spec: QueueSpec) -> Result<Arc<dyn Limiter>, NoLimiter> {
        RedisQueue::check_fit(&spec.quota, spec.max_queue.unwrap_or(0), spec.max_wait.unwrap_or_default())
            .map_err(NoLimiter::unfit)?;
        let queue = set_if_some(RedisQueue::new(&self.0, name, spec.quota), spec.max_queue, RedisQueue::max_queue);
        Ok(set_if_some(queue, spec.max_wait, RedisQueue::max_wait).into_limiter())
    }

    fn concurrency(&self, name: &str, spec: ConcurrencySpec) -> Result<Arc<dyn Limiter>, NoLimiter> {
        let concurrency = RedisConcurrency::new(&self.0, name, spec.limit);
        let concurrency = set_if_some(concurrency, spec.lease, RedisConcurrency::lease);
        let concurrency = set_if_some(concurrency, spec.max_queue, RedisConcurrency::max_queue);
        Ok(set_if_some(concurrency, spec.max_wait, RedisConcurrency::max_wait).into_limiter())
    }

    fn balance(&self, name: &str) -> Result<Arc<dyn Limiter>, NoLimiter> {
        Ok(RedisBalance::new(&self.0, name).into_limiter())
    }
}
