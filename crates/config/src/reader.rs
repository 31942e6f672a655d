//! `ConfigReader`: parsing with settings that a file cannot have.

use std::fmt;
use std::sync::Arc;

use super::key::CustomKeys;
use super::source::SourceText;
use super::store::{Kinds, ReplayClock, Store, StoreTable, Stores};
use super::{Config, ConfigError, problems};
use tower_sluice::key::KeyExtractor;
use tower_sluice::layer::RateLimitLayerBuilder;
use tower_sluice::time::Clock;

/// Parses a configuration, with settings that a file cannot have.
///
/// ```
/// use std::convert::Infallible;
///
/// use tower::{Layer, ServiceExt, service_fn};
/// use tower_sluice_config::Config;
/// use tower_sluice::Verdict;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_sluice_config::ConfigError> {
/// let text = r#"
///     [[route]]
///     path = "/api"
///       [[route.policy]]
///       name = "everybody"
///       algorithm = "token-bucket"
///       limit = 10
///       per = "1s"
/// "#;
/// let config = Config::reader().layers(|layer| layer.verdict()).parse("limits.toml", text)?;
///
/// let layer = config.routes()[0].layer().expect("the route has a policy");
/// let hello = service_fn(|_: http::Request<()>| async {
///     Ok::<_, Infallible>(http::Response::new(String::from("hello")))
/// });
/// let response = layer.layer(hello).oneshot(http::Request::new(())).await.unwrap();
/// assert!(response.extensions().get::<Verdict>().is_some());
/// # Ok(())
/// # }
/// ```
///
/// It is not `Send`, since the closure for [`layers`](Self::layers) need not be. Parse on the thread that made it.
#[must_use]
pub struct ConfigReader {
    pub(crate) redis: Option<Arc<dyn Store>>,
    pub(crate) kinds: Kinds,
    pub(crate) replay: Option<ReplayClock>,
    pub(crate) set_up: Box<SetUp>,
    pub(crate) custom_keys: Option<Arc<CustomKeys>>,
}

pub(crate) type SetUp = dyn Fn(RateLimitLayerBuilder) -> RateLimitLayerBuilder;

impl ConfigReader {
    pub(crate) fn new() -> Self {
        Self {
            redis: None,
            kinds: Kinds::default(),
            replay: None,
            set_up: Box::new(|builder| builder),
            custom_keys: None,
        }
    }

    /// Keeps all policies without `store = "memory"` on this Redis, whether or not the file has a `[redis]`:
    /// `tower_sluice_redis::file::limiters` makes it.
    ///
    /// A `[redis]` in the file is not used, but still opened first, without connecting. If its settings are wrong, the
    /// file is rejected.
    pub fn redis(self, redis: Arc<dyn Store>) -> Self {
        Self { redis: Some(redis), ..self }
    }

    /// Lets files have stores of this kind, in tables `[store.NAME]`. `open` makes a table's store, without a
    /// connection. A second call for this kind replaces the first.
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use tower_sluice::limiter::IntoLimiter;
    /// use tower_sluice::store::MemoryStore;
    /// use tower_sluice::{Limiter, RateLimiter};
    /// use tower_sluice_config::store::{NoLimiter, RateSpec, Store, StoreTable};
    /// use tower_sluice_config::{Config, ConfigError};
    ///
    /// /// In place of a server of your own: see `tower_sluice::store::remote`.
    /// struct Small(usize);
    ///
    /// impl Store for Small {
    ///     fn rate_limiter(&self, _name: &str, rate: RateSpec) -> Result<Arc<dyn Limiter>, NoLimiter> {
    ///         let RateSpec::TokenBucket(bucket) = rate else { return Err(NoLimiter::Unsupported) };
    ///         Ok(RateLimiter::new(bucket, MemoryStore::with_capacity(self.0)).into_limiter())
    ///     }
    /// }
    ///
    /// fn open(table: &StoreTable<'_>) -> Result<Arc<dyn Store>, ConfigError> {
    ///     #[derive(serde::Deserialize)]
    ///     #[serde(deny_unknown_fields)]
    ///     struct Raw {
    ///         room: usize,
    ///     }
    ///     let Raw { room } = table.read()?;
    ///     if room == 0 {
    ///         return Err(table.error("room", "room = 0: write a number of keys"));
    ///     }
    ///     Ok(Arc::new(Small(room)))
    /// }
    ///
    /// let text = r#"
    ///     [store.small]
    ///     room = 1000
    ///
    ///     [[route]]
    ///     path = "/api"
    ///       [[route.policy]]
    ///       name = "everybody"
    ///       store = "small"
    ///       algorithm = "token-bucket"
    ///       limit = 10
    ///       per = "1s"
    /// "#;
    /// let config = Config::reader().store("small", open).parse("limits.toml", text)?;
    /// # drop(config);
    /// # Ok::<_, ConfigError>(())
    /// ```
    #[doc(alias("postgres", "dynamodb", "backend"))]
    pub fn store(
        mut self,
        kind: impl Into<String>,
        open: impl Fn(&StoreTable<'_>) -> Result<Arc<dyn Store>, ConfigError> + Send + Sync + 'static,
    ) -> Self {
        self.kinds.0.insert(kind.into(), Arc::new(open));
        self
    }

    /// Prepares a replay: the layers then decide on past requests, such as those in an access log.
    ///
    /// - All policies are in memory. `[redis]` and `[store]` are not opened.
    /// - Budgets, bans, debts and the records for `charge-once` follow `clock`, such as a
    ///   [`ManualClock`](tower_sluice::time::ManualClock). Its timestamps count from the Unix epoch, so windows begin
    ///   at the same instants as in the file's program. Queues and the algorithms `slow-down` and `overload` follow
    ///   tokio's clock: pause it, and advance both clocks together.
    /// - The key `client-ip` is the peer's address, whatever `[client-ip]` says, in networks of its `ipv6-prefix`,
    ///   because a log has the client's address, and not the proxies'.
    /// - The budget for `exempt-preflights` follows the system's clock.
    ///
    /// ```
    /// use tower_sluice_config::Config;
    /// use tower_sluice::time::ManualClock;
    ///
    /// let text = r#"
    ///     [[route]]
    ///     path = "/api"
    ///       [[route.policy]]
    ///       name = "everybody"
    ///       algorithm = "token-bucket"
    ///       limit = 10
    ///       per = "1s"
    /// "#;
    /// let clock = ManualClock::new();
    /// let config = Config::reader().replay(clock.clone()).parse("limits.toml", text)?;
    /// # drop(config);
    /// # Ok::<_, tower_sluice_config::ConfigError>(())
    /// ```
    #[doc(alias("clock", "simulation"))]
    pub fn replay(self, clock: impl Clock) -> Self {
        Self { replay: Some(ReplayClock(Arc::new(clock))), ..self }
    }

    /// Sets up the layer for each route that has a policy, after the file's settings. A second call replaces the first.
    pub fn layers(self, set_up: impl Fn(RateLimitLayerBuilder) -> RateLimitLayerBuilder + 'static) -> Self {
        Self { set_up: Box::new(set_up), ..self }
    }

    /// Lets policies have your own keys: `key = "tenant"`. `custom` gets the policy's name and its `key`, as a list,
    /// and returns the extractor, `None` for a key in the format, such as `client-ip`, or the error, with its cure, for
    /// a key that is wrong. A later [`change`](Config::change) asks it, too. A second call replaces the first.
    ///
    /// ```
    /// use tower_sluice::PartitionKey;
    /// use tower_sluice_config::Config;
    /// use tower_sluice::key::{ExtensionKey, KeyExtractor};
    ///
    /// /// An extension, which the authentication layer attaches to requests.
    /// #[derive(Clone)]
    /// struct Tenant(u64);
    ///
    /// let text = r#"
    ///     [[route]]
    ///     path = "/api"
    ///       [[route.policy]]
    ///       name = "per-tenant"
    ///       algorithm = "token-bucket"
    ///       limit = 10
    ///       per = "1s"
    ///       key = "tenant"
    /// "#;
    /// let tenant = |_policy: &str, names: &[String]| -> Option<Result<Box<dyn KeyExtractor>, String>> {
    ///     let key = ExtensionKey::new(|tenant: &Tenant| PartitionKey::from(tenant.0));
    ///     (names == ["tenant"]).then(|| Ok(Box::new(key) as _))
    /// };
    /// let config = Config::reader().keys(tenant).parse("limits.toml", text)?;
    /// # drop(config);
    /// # Ok::<_, tower_sluice_config::ConfigError>(())
    /// ```
    pub fn keys(
        self,
        custom: impl Fn(&str, &[String]) -> Option<Result<Box<dyn KeyExtractor>, String>> + Send + Sync + 'static,
    ) -> Self {
        Self { custom_keys: Some(Arc::new(custom)), ..self }
    }

    /// Parses `text`; `file` is the name in messages.
    ///
    /// # Errors
    ///
    /// As [`Config::parse`].
    pub fn parse(self, file: &str, text: &str) -> Result<Config, ConfigError> {
        Config::read(file, text, self)
    }

    /// Opens the store in a file without routes, for a program whose policies are in code, such as those with a quota
    /// [per customer](tower_sluice::Policy::quota_fn). The file has one `[store.NAME]`, or `[redis]`, and nothing else.
    /// From an empty file, it is this process's [memory](super::store::memory). No connection is made.
    ///
    /// ```
    /// use tower_sluice::{Policy, Quota, SlidingWindow};
    /// use tower_sluice_config::Config;
    /// use tower_sluice_config::store::ConcurrencySpec;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// // `[store.postgres]` needs `.store("postgres", tower_sluice_postgres::file::open)`, and so on.
    /// let reader = Config::reader().store("redis", tower_sluice_redis::file::open);
    /// let store = reader.open_store("store.toml", "[store.redis]\nurl = \"redis://127.0.0.1\"")?;
    /// store.prepare().await?;
    /// let tokens = SlidingWindow::new(Quota::per_minute(20_000));
    /// let tokens = Policy::new("tokens", store.rate_limiter("tokens", tokens.into())?);
    /// let in_flight = Policy::new("in-flight", store.concurrency("in-flight", ConcurrencySpec::new(8))?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// If the file has a mistake, has several stores, or has anything else than a store.
    pub fn open_store(self, file: &str, text: &str) -> Result<Arc<dyn Store>, ConfigError> {
        Stores::open_only(&SourceText::new(file, text), self.redis, &self.kinds)
    }

    /// Returns a file's mistakes, sorted by line, for a program that checks files. The list is empty if and only if
    /// [`parse`](Self::parse) reads the file. No budget is made, so a check takes little memory.
    ///
    /// If the text is not TOML, that is the only mistake. Otherwise, the list has all fields that are unknown, missing,
    /// or have the wrong type or range. From each table without such fields, it has the first mistake: in a policy, in
    /// a route's other settings, and in `[client-ip]`, `[redis]`, `[snapshot]` and `[response]`. Reading stops after a
    /// thousand.
    ///
    /// ```
    /// use tower_sluice_config::Config;
    ///
    /// let text = r#"
    ///     [[route]]
    ///     path = "api"
    ///       [[route.policy]]
    ///       name = "everybody"
    ///       algorithm = "token-bucket"
    ///       limit = 0
    ///       per = "1 fortnight"
    /// "#;
    /// let problems = Config::reader().problems("limits.toml", text);
    /// assert_eq!(problems.iter().map(|problem| problem.line()).collect::<Vec<_>>(), [3, 7, 8]);
    /// ```
    #[must_use]
    #[doc(alias("check", "lint", "validate"))]
    pub fn problems(self, file: &str, text: &str) -> Vec<ConfigError> {
        problems::find(file, text, self)
    }
}

impl fmt::Debug for ConfigReader {
    /// By hand, since a closure has no `Debug`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConfigReader").finish_non_exhaustive()
    }
}
