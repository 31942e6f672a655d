//! The subjects that decide through Redis, each through its own public API.

use std::sync::Arc;
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{Client, cmd};
use http::{Request, Response};
use tower::Layer;
use tower_rate_limit_redis::KeyResolver;
use tower_sluice::algorithm::TokenBucket;
use tower_sluice_redis::{Redis, RedisStore, Scripted};
use tower_sluice::{Limiter, PartitionKey, Quota, RateLimitLayer, RateLimiter};
use trypema::redis::{RedisKey, RedisRateLimiterProvider};
use trypema::{RateLimit, RateLimitDecision, RateLimiterBuilder, WindowSize};

use crate::load::{self, Caller, Hello, Layered, Outcome, text};
use crate::ours::{self, Adds};

/// `burst` at once, and then one per `period`; for windows and `trypema`, `burst` per window.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    pub burst: u32,
    pub period: Duration,
}

impl Terms {
    /// All pass, and all keys stay in debt while it runs. `tower-rate-limit-redis` knows no greater burst.
    pub const ADMITTED: Self = Self { burst: u16::MAX as u32, period: Duration::from_secs(1) };
    /// All pass, even if few keys share all requests.
    pub const ADMITTED_HOT: Self = Self { burst: 100_000_000, period: Duration::from_secs(1) };

    pub const fn exactly(burst: u32) -> Self {
        Self { burst, period: Duration::from_secs(3_600) }
    }

    pub fn bucket(self) -> Quota {
        Quota::per(1, self.period).burst(self.burst.into())
    }

    pub fn window(self) -> Quota {
        Quota::per_hour(self.burst.into())
    }
}

/// How to make one.
#[derive(Clone, Copy)]
pub enum Make {
    Ping,
    Incr,
    /// One of ours, as policies hold it.
    Limiter(fn(&Redis, Terms) -> Arc<dyn Limiter>),
    /// Ours as a layer, with this many policies.
    Layer(usize),
    TowerRateLimitRedis,
    Trypema,
}

pub enum Subject {
    Ping(MultiplexedConnection),
    Incr(MultiplexedConnection),
    Limiter(Arc<dyn Limiter>),
    Layer(Layered<<RateLimitLayer as Layer<Hello>>::Service>),
    TowerRateLimitRedis(Layered<<Theirs as Layer<Hello>>::Service>),
    Trypema(Box<Trypema>),
}

pub struct Trypema {
    provider: Arc<RedisRateLimiterProvider>,
    rate: RateLimit,
    keys: Vec<RedisKey>,
}

type Theirs = tower_rate_limit_redis::RateLimitLayer<ByClient>;

#[derive(Clone)]
pub struct ByClient;

impl KeyResolver for ByClient {
    type Key = Arc<String>;
    type ErrorBody = ();

    fn key<T>(&self, request: &Request<T>) -> Result<Arc<String>, Response<()>> {
        Ok(Arc::clone(&request.extensions().get::<Caller>().expect("all requests have a caller").0))
    }
}

impl Subject {
    pub async fn new(make: Make, url: &str, terms: Terms, keys: &[Arc<String>]) -> Outcome<Self> {
        let connection = async || -> Outcome<MultiplexedConnection> {
            Client::open(url).map_err(text)?.get_multiplexed_async_connection().await.map_err(text)
        };
        // More patient than by default, so that a pause in the machine causes a late answer and not a failure; and with
        // room for all callers.
        let redis = || Redis::single(url).timeout(Duration::from_secs(5)).max_in_flight(1_024).open().map_err(text);
        Ok(match make {
            Make::Ping => Self::Ping(connection().await?),
            Make::Incr => Self::Incr(connection().await?),
            Make::Limiter(limiter) => Self::Limiter(limiter(&redis()?, terms)),
            Make::Layer(policies) => {
                let redis = redis()?;
                let policies = load::policies(policies, |name| {
                    RateLimiter::new(
                        TokenBucket::new(terms.bucket()),
                        RedisStore::new(&redis, name).without_coalescing(),
                    )
                });
                Self::Layer(Layered::new(&ours::layer(policies, Adds::Fields)))
            }
            Make::TowerRateLimitRedis => {
                let client = redis_0_32::Client::open(url).map_err(text)?;
                let connection = client.get_multiplexed_async_connection().await.map_err(text)?;
                let layer = Theirs::builder()
                    .conn(connection)
                    .key_resolver(ByClient)
                    .capacity(u16::try_from(terms.burst).map_err(text)?)
                    .emission_interval(terms.period)
                    .timeout(Duration::from_secs(5));
                Self::TowerRateLimitRedis(Layered::new(&layer.build()))
            }
            Make::Trypema => {
                let connection = Client::open(url).map_err(text)?.get_connection_manager().await.map_err(text)?;
                let window = WindowSize::hours(1).map_err(text)?;
                let provider = RedisRateLimiterProvider::builder(connection).window_size(window).build();
                let keys = keys.iter().map(|key| RedisKey::new(key.to_string())).collect::<Result<_, _>>();
                Self::Trypema(Box::new(Trypema {
                    provider: provider.map_err(text)?,
                    rate: RateLimit::per_hour(terms.burst.into()).map_err(text)?,
                    keys: keys.map_err(text)?,
                }))
            }
        })
    }
}

impl load::Subject for Subject {
    async fn ask(&self, keys: &[Arc<String>], index: usize) -> Outcome<bool> {
        match self {
            Self::Ping(connection) => {
                cmd("PING").exec_async(&mut connection.clone()).await.map_err(text)?;
                Ok(true)
            }
            Self::Incr(connection) => {
                let count: u64 =
                    cmd("INCR").arg(&*keys[index]).query_async(&mut connection.clone()).await.map_err(text)?;
                Ok(count > 0)
            }
            Self::Limiter(limiter) => {
                Ok(ours::decide(&**limiter, &PartitionKey::from(&*keys[index])).await?.is_allowed())
            }
            Self::Layer(service) => service.ask(&keys[index]).await,
            Self::TowerRateLimitRedis(service) => service.ask(&keys[index]).await,
            Self::Trypema(it) => match it.provider.absolute().inc(&it.keys[index], &it.rate, 1).await.map_err(text)? {
                RateLimitDecision::Allowed => Ok(true),
                RateLimitDecision::Rejected { .. } => Ok(false),
                other => Err(format!("{other:?}")),
            },
        }
    }
}

/// As [`Make::Limiter`] holds it.
pub fn limiter<A: Scripted>(algorithm: A, store: RedisStore) -> Arc<dyn Limiter> {
    Arc::new(RateLimiter::new(algorithm, store))
}
