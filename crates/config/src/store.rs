//! `store` and `[redis]`: builds limiters on the store that a file selects.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::error::ConfigError;
use super::format::{MOST_IN_FLIGHT, RawPolicy, RawRedis, StoreName};
use super::source::SourceText;
use super::value::set_if_some;
use tower_sluice::Balance;
use tower_sluice::Concurrency;
use tower_sluice::LeakyQueue;
use tower_sluice::Quota;
use tower_sluice::limiter::IntoLimiter;
use tower_sluice::store::{MemoryStore, WhenFull};
use tower_sluice::time::Clock;
use tower_sluice::{Limiter, RateLimiter};

#[cfg(feature = "redis")]
pub(crate) use tower_sluice::store::redis::{Redis, Scripted as Storable};
#[cfg(feature = "redis")]
use tower_sluice::{RedisBalance, RedisConcurrency, RedisQueue, store::redis::RedisStore};

/// Without the feature there is no Redis.
#[cfg(not(feature = "redis"))]
#[derive(Clone, Debug)]
pub(crate) enum Redis {}

#[cfg(not(feature = "redis"))]
pub(crate) use tower_sluice::algorithm::Algorithm as Storable;

/// The stores of all policies of a file.
#[derive(Clone, Debug)]
pub(crate) enum Stores {
    /// In memory, and on Redis if there is one.
    InForce(Option<Redis>),
    /// In memory, on this clock. `has_redis` says whether the file has a Redis.
    Replay { clock: ReplayClock, has_redis: bool },
    /// To find mistakes only: in memory, without room for keys, and on Redis if its settings are right. `has_redis`
    /// says whether the file has a Redis.
    Checked { redis: Option<Redis>, has_redis: bool },
}

/// The clock of a replay.
#[derive(Clone)]
pub(crate) struct ReplayClock(pub(crate) Arc<dyn Clock>);

impl fmt::Debug for ReplayClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReplayClock").field(&self.0.now()).finish()
    }
}

/// The store of one policy.
pub(crate) enum StoreSpec {
    Memory,
    /// Memory on this clock, also in place of Redis.
    Replay {
        clock: Arc<dyn Clock>,
        replaces_redis: bool,
    },
    /// Memory without room for keys, also in place of a Redis whose settings are wrong.
    Checked {
        replaces_redis: bool,
    },
    /// The server, and the policy's name there.
    #[cfg(feature = "redis")]
    Redis(Redis, String),
}

/// Opens the servers of `[redis]`.
#[cfg(feature = "redis")]
pub(crate) fn redis(source: &SourceText<'_>, raw: RawRedis) -> Result<Redis, ConfigError> {
    use super::format::OneOrMany;
    use super::value::duration;

    let at = raw.url.span();
    let mut builder = match (raw.url.into_inner(), raw.master) {
        (OneOrMany::One(url), None) => Redis::single(url),
        (OneOrMany::Many(urls), None) => Redis::cluster(urls),
        (urls, Some(master)) => Redis::sentinel(master, urls.into_vec()),
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

#[cfg(not(feature = "redis"))]
#[allow(clippy::needless_pass_by_value, reason = "the signature with the feature")]
pub(crate) fn redis(source: &SourceText<'_>, raw: RawRedis) -> Result<Redis, ConfigError> {
    Err(source.error(&raw.url.span(), "this program was built without Redis; build it with the feature `redis`"))
}

/// The settings of a queue in a file.
#[derive(Clone, Copy)]
pub(crate) struct QueueSpec {
    pub(crate) quota: Quota,
    pub(crate) max_queue: Option<usize>,
    pub(crate) max_wait: Option<Duration>,
    pub(crate) max_keys: Option<usize>,
    pub(crate) when_full: Option<WhenFull>,
}

/// The settings of a limit of requests in flight.
#[derive(Clone, Copy)]
pub(crate) struct ConcurrencySpec {
    pub(crate) limit: u64,
    pub(crate) max_queue: Option<usize>,
    pub(crate) max_wait: Option<Duration>,
    /// In memory.
    pub(crate) max_keys: Option<usize>,
    /// On Redis.
    pub(crate) lease: Option<Duration>,
}

impl StoreSpec {
    /// Returns the store of a policy, whose route has `path` first: the configured one, or else Redis if there is one.
    pub(crate) fn read(
        source: &SourceText<'_>,
        raw: &RawPolicy,
        path: &str,
        stores: &Stores,
    ) -> Result<Self, ConfigError> {
        let has_redis = match stores {
            Stores::InForce(redis) => redis.is_some(),
            Stores::Replay { has_redis, .. } | Stores::Checked { has_redis, .. } => *has_redis,
        };
        let uses_redis = match &raw.store {
            Some(store) if store.get_ref().value() == StoreName::Memory => false,
            Some(store) if !has_redis => {
                let problem = "store = \"redis\" needs a server; write [redis] with url = \"redis://HOST:PORT\" at the top of the file";
                return Err(source.error(&store.span(), problem));
            }
            Some(_) | None => has_redis,
        };
        Ok(match stores {
            Stores::Replay { clock, .. } => Self::Replay { clock: Arc::clone(&clock.0), replaces_redis: uses_redis },
            Stores::InForce(Some(redis)) | Stores::Checked { redis: Some(redis), .. } if uses_redis => {
                Self::on(redis, path, raw.name.get_ref())
            }
            Stores::Checked { .. } => Self::Checked { replaces_redis: uses_redis },
            Stores::InForce(_) => Self::Memory,
        })
    }

    #[cfg(feature = "redis")]
    fn on(redis: &Redis, path: &str, policy: &str) -> Self {
        // No policy's name has an @, so no two pairs make the same name.
        Self::Redis(redis.clone(), format!("{policy}@{path}"))
    }

    #[cfg(not(feature = "redis"))]
    fn on(redis: &Redis, _: &str, _: &str) -> Self {
        match *redis {}
    }

    /// Whether the file keeps the policy in memory, so that the settings of policies in memory apply.
    pub(crate) const fn is_memory(&self) -> bool {
        matches!(
            self,
            Self::Memory | Self::Replay { replaces_redis: false, .. } | Self::Checked { replaces_redis: false }
        )
    }

    /// The clock of a replay.
    pub(crate) fn replay_clock(&self) -> Option<Arc<dyn Clock>> {
        match self {
            Self::Replay { clock, .. } => Some(Arc::clone(clock)),
            _ => None,
        }
    }

    /// Makes a limiter, in memory with room for `max_keys`.
    ///
    /// # Errors
    ///
    /// If Redis cannot keep its quota.
    pub(crate) fn limiter<A: Storable>(
        self,
        algorithm: A,
        max_keys: Option<usize>,
    ) -> Result<Arc<dyn Limiter>, String> {
        let memory = max_keys.map_or_else(MemoryStore::default, MemoryStore::with_capacity);
        match self {
            Self::Memory => Ok(RateLimiter::new(algorithm, memory).into_limiter()),
            Self::Checked { .. } => Ok(RateLimiter::new(algorithm, MemoryStore::with_capacity(1)).into_limiter()),
            Self::Replay { clock, .. } => Ok(RateLimiter::new(algorithm, memory.with_clock(clock)).into_limiter()),
            #[cfg(feature = "redis")]
            Self::Redis(redis, name) => {
                algorithm.fits().map_err(|problem| problem.to_string())?;
                Ok(RateLimiter::new(algorithm, RedisStore::new(&redis, &name)).into_limiter())
            }
        }
    }

    /// Makes a limit of requests in flight.
    pub(crate) fn concurrency(self, spec: ConcurrencySpec) -> Arc<dyn Limiter> {
        match self {
            Self::Memory | Self::Replay { .. } | Self::Checked { .. } => {
                let limit = spec.limit.min(MOST_IN_FLIGHT);
                let concurrency = set_if_some(Concurrency::new(limit), spec.max_keys, Concurrency::max_keys);
                let concurrency = set_if_some(concurrency, spec.max_queue, Concurrency::max_queue);
                set_if_some(concurrency, spec.max_wait, Concurrency::max_wait).into_limiter()
            }
            #[cfg(feature = "redis")]
            Self::Redis(redis, name) => {
                let concurrency = RedisConcurrency::new(&redis, &name, spec.limit);
                let concurrency = set_if_some(concurrency, spec.lease, RedisConcurrency::lease);
                let concurrency = set_if_some(concurrency, spec.max_queue, RedisConcurrency::max_queue);
                set_if_some(concurrency, spec.max_wait, RedisConcurrency::max_wait).into_limiter()
            }
        }
    }

    /// Makes balances, in memory for up to this number of keys.
    pub(crate) fn balance(self, max_keys: Option<usize>) -> Arc<dyn Limiter> {
        match self {
            Self::Memory | Self::Checked { .. } => {
                set_if_some(Balance::new(), max_keys, Balance::max_keys).into_limiter()
            }
            Self::Replay { clock, .. } => {
                set_if_some(Balance::new().with_clock(clock), max_keys, Balance::max_keys).into_limiter()
            }
            #[cfg(feature = "redis")]
            Self::Redis(redis, name) => RedisBalance::new(&redis, &name).into_limiter(),
        }
    }

    /// Makes a queue.
    ///
    /// # Errors
    ///
    /// If Redis cannot keep its quota.
    pub(crate) fn queue(self, queue: QueueSpec) -> Result<Arc<dyn Limiter>, String> {
        let QueueSpec { quota, max_queue, max_wait, max_keys, when_full } = queue;
        match self {
            Self::Memory | Self::Replay { .. } | Self::Checked { .. } => {
                let queue = set_if_some(LeakyQueue::new(quota), max_queue, LeakyQueue::max_queue);
                let queue = set_if_some(queue, max_wait, LeakyQueue::max_wait);
                let queue = set_if_some(queue, max_keys, LeakyQueue::max_keys);
                Ok(set_if_some(queue, when_full, LeakyQueue::when_full).into_limiter())
            }
            #[cfg(feature = "redis")]
            Self::Redis(redis, name) => {
                RedisQueue::check_fit(&quota, max_queue.unwrap_or(0), max_wait.unwrap_or_default())
                    .map_err(|problem| problem.to_string())?;
                let queue = set_if_some(RedisQueue::new(&redis, &name, quota), max_queue, RedisQueue::max_queue);
                Ok(set_if_some(queue, max_wait, RedisQueue::max_wait).into_limiter())
            }
        }
    }
}
