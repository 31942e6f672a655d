//! Stores: where a file's policies keep their budgets. They are in memory, or on the servers in `[redis]` and
//! `[store.NAME]`, whose kinds a program [adds](crate::ConfigReader::store).
//!
//! ```toml
//! [store.pg]
//! kind = "postgres"
//! url = "postgres://limits@db.internal/limits"
//!
//! [[route]]
//! path = "/api"
//!   [[route.policy]]
//!   name = "per-client"
//!   store = "pg"
//!   algorithm = "token-bucket"
//!   limit = 100
//!   per = "1m"
//!   key = "client-ip"
//! ```
//!
//! | kind | from |
//! |---|---|
//! | `redis` | `tower_sluice_redis::file::open` (its feature `file`) |
//! | `postgres` | `tower_sluice_postgres::file::open` (its feature `file`) |
//! | `dynamodb` | `tower_sluice_dynamodb::file::opener` (its feature `file`), over a client of the program |
//! | another | [your own](crate::ConfigReader::store) |
//!
//! Without `kind`, the name is the kind: `[store.postgres]`. A table `[redis]` at the file's top is short for
//! `[store.redis]`.
//!
//! A program whose policies are in code takes its store from a file, too: see
//! [`ConfigReader::open_store`](crate::ConfigReader::open_store).

mod choice;
mod memory;
mod table;

use std::error::Error;
use std::fmt;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "calendar")]
use tower_sluice::CalendarWindow;
use tower_sluice::algorithm::{FixedWindow, LeakyBucket, SlidingWindow, TokenBucket};
use tower_sluice::limiter::IntoLimiter;
use tower_sluice::store::remote::{Departures, InFlight};
use tower_sluice::{Limiter, LimiterError, Quota, SharedConcurrency, SharedQueue};

use super::error::ConfigError;
use super::value::set_if_some;

pub(crate) use self::choice::{Kinds, NamedStores, ReplayClock, StoreMode, StoreSpec, Stores};
pub use self::memory::memory;
pub(crate) use self::memory::{MemorySettings, checked_limiter, checked_queue};
pub use self::table::StoreTable;

/// An open store, which makes the limiters for the policies that name it.
///
/// A limiter's name is `POLICY@PATH`, with its route's first path. Two policies in a file never have one name.
/// Processes share a name's budgets.
pub trait Store: Send + Sync + 'static {
    /// Makes a limiter over time.
    ///
    /// # Errors
    ///
    /// If the store has no such limiter, or cannot keep this one.
    fn rate_limiter(&self, name: &str, rate: RateSpec) -> Result<Arc<dyn Limiter>, NoLimiter>;

    /// Makes a queue. Unless implemented, the store does not support queues.
    ///
    /// # Errors
    ///
    /// As [`rate_limiter`](Self::rate_limiter).
    fn queue(&self, _name: &str, _queue: QueueSpec) -> Result<Arc<dyn Limiter>, NoLimiter> {
        Err(NoLimiter::Unsupported)
    }

    /// Makes a limit on requests in flight. Unless implemented, the store does not support it.
    ///
    /// # Errors
    ///
    /// As [`rate_limiter`](Self::rate_limiter).
    fn concurrency(&self, _name: &str, _concurrency: ConcurrencySpec) -> Result<Arc<dyn Limiter>, NoLimiter> {
        Err(NoLimiter::Unsupported)
    }

    /// Makes balances. Unless implemented, the store does not support them.
    ///
    /// # Errors
    ///
    /// As [`rate_limiter`](Self::rate_limiter).
    fn balance(&self, _name: &str) -> Result<Arc<dyn Limiter>, NoLimiter> {
        Err(NoLimiter::Unsupported)
    }

    /// Checks whether the store can keep a limit for some keys, in place of the policy's own. Unless implemented, it
    /// can.
    ///
    /// # Errors
    ///
    /// If it cannot.
    fn check_fit(&self, _rate: &RateSpec) -> Result<(), NoLimiter> {
        Ok(())
    }

    /// Returns the statement that prepares the server, such as the one that creates a table, if it needs one.
    fn migration(&self) -> Option<String> {
        None
    }

    /// Prepares the server for its first call, if it needs that: creates the table, unless it is there. Several
    /// processes may do so at once. For programs that may; otherwise, run [`migration`](Self::migration) by hand.
    ///
    /// # Errors
    ///
    /// If the server cannot be reached, or does not allow it.
    fn prepare(&self) -> Preparation<'_> {
        Box::pin(ready(Ok(())))
    }
}

/// The result of [`Store::prepare`].
pub type Preparation<'a> = Pin<Box<dyn Future<Output = Result<(), LimiterError>> + Send + 'a>>;

/// Why a store makes no limiter.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoLimiter {
    /// It does not support that kind of limiter.
    Unsupported,
    /// It cannot keep this one: the reason, and the cure.
    Unfit(String),
}

impl NoLimiter {
    /// It cannot keep this one.
    #[must_use]
    pub fn unfit(problem: impl fmt::Display) -> Self {
        Self::Unfit(problem.to_string())
    }
}

impl fmt::Display for NoLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsupported => f.write_str("the store has no limiters of that kind"),
            Self::Unfit(problem) => f.write_str(problem),
        }
    }
}

impl Error for NoLimiter {}

/// The algorithm for a limit over time, with its quota.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RateSpec {
    /// `token-bucket`
    TokenBucket(TokenBucket),
    /// `leaky-bucket`
    LeakyBucket(LeakyBucket),
    /// `fixed-window`
    FixedWindow(FixedWindow),
    /// `sliding-window`
    SlidingWindow(SlidingWindow),
    /// `per = "day"`, `"week"` or `"month"`
    #[cfg(feature = "calendar")]
    CalendarWindow(CalendarWindow),
}

/// [`LeakyBucket`] is the same type.
impl From<TokenBucket> for RateSpec {
    fn from(bucket: TokenBucket) -> Self {
        Self::TokenBucket(bucket)
    }
}

impl From<FixedWindow> for RateSpec {
    fn from(window: FixedWindow) -> Self {
        Self::FixedWindow(window)
    }
}

impl From<SlidingWindow> for RateSpec {
    fn from(window: SlidingWindow) -> Self {
        Self::SlidingWindow(window)
    }
}

#[cfg(feature = "calendar")]
impl From<CalendarWindow> for RateSpec {
    fn from(window: CalendarWindow) -> Self {
        Self::CalendarWindow(window)
    }
}

/// A queue's settings.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct QueueSpec {
    /// The pace at which requests depart.
    pub quota: Quota,
    /// `max-queue`, if the file sets it.
    pub max_queue: Option<usize>,
    /// `max-wait`, if the file sets it.
    pub max_wait: Option<Duration>,
}

impl QueueSpec {
    /// A queue with the default bounds.
    #[must_use]
    pub const fn new(quota: Quota) -> Self {
        Self { quota, max_queue: None, max_wait: None }
    }

    /// Makes the queue on a server that keeps its departure times.
    ///
    /// # Errors
    ///
    /// If the server cannot keep it.
    pub fn shared<D: Departures>(&self, store: D, name: &str) -> Result<Arc<dyn Limiter>, NoLimiter> {
        let Self { quota, max_queue, max_wait } = *self;
        SharedQueue::check_fit(&store, &quota, max_queue.unwrap_or(0), max_wait.unwrap_or_default())
            .map_err(NoLimiter::unfit)?;
        let queue = set_if_some(SharedQueue::new(store, name, quota), max_queue, SharedQueue::max_queue);
        Ok(set_if_some(queue, max_wait, SharedQueue::max_wait).into_limiter())
    }
}

/// The settings for a limit on requests in flight.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ConcurrencySpec {
    /// The most units that a key may have in flight.
    pub limit: u64,
    /// `max-queue`, if the file sets it.
    pub max_queue: Option<usize>,
    /// `max-wait`, if the file sets it.
    pub max_wait: Option<Duration>,
    /// `lease`, if the file sets it. After this time, the units held by a process that has died are free.
    pub lease: Option<Duration>,
}

impl ConcurrencySpec {
    /// A limit without a queue, and with the default lease.
    #[must_use]
    pub const fn new(limit: u64) -> Self {
        Self { limit, max_queue: None, max_wait: None, lease: None }
    }

    /// Makes the limit on a server that counts all processes' units.
    #[must_use]
    pub fn shared(&self, store: impl InFlight, name: &str) -> Arc<dyn Limiter> {
        let Self { limit, max_queue, max_wait, lease } = *self;
        let limiter = SharedConcurrency::new(store, name, limit);
        let limiter = set_if_some(limiter, max_queue, SharedConcurrency::max_queue);
        let limiter = set_if_some(limiter, max_wait, SharedConcurrency::max_wait);
        set_if_some(limiter, lease, SharedConcurrency::lease).into_limiter()
    }
}

/// Opens a table's store, without a connection.
pub(crate) type OpenTable = dyn Fn(&StoreTable<'_>) -> Result<Arc<dyn Store>, ConfigError> + Send + Sync;
