//! Where the rules' budgets are: in memory, or on Redis.

use std::sync::Arc;

use tower_sluice::limiter::IntoLimiter;
use tower_sluice::store::MemoryStore;
use tower_sluice::{FixedWindow, LeakyBucket, Limiter, Quota, RateLimiter, SlidingWindow, TokenBucket};
use tower_sluice_redis::{Redis, RedisStore, Scripted};

use crate::rules::{Algorithm, Limit};

/// Where the budgets are.
#[derive(Clone, Debug)]
pub(crate) enum Store {
    /// In memory, with this number of keys per rule.
    Memory {
        max_keys: usize,
    },
    Redis(Redis),
}

impl Store {
    /// Makes a rule's limiter. Returns `None` for a rule without a limit.
    ///
    /// # Errors
    ///
    /// If Redis cannot keep the quota.
    pub(super) fn limiter_of(
        &self,
        domain: &str,
        rule: &str,
        limit: Limit,
    ) -> Result<Option<Arc<dyn Limiter>>, String> {
        let name = format!("{rule}@{domain}");
        Ok(Some(match limit {
            Limit::Unlimited => return Ok(None),
            Limit::Zero { period } => self.limiter(FixedWindow::new(Quota::per(1, period)), &name)?,
            Limit::Rate { quota, algorithm } => match algorithm {
                Algorithm::TokenBucket => self.limiter(TokenBucket::new(quota), &name)?,
                Algorithm::LeakyBucket => self.limiter(LeakyBucket::new(quota), &name)?,
                Algorithm::FixedWindow => self.limiter(FixedWindow::new(quota), &name)?,
                Algorithm::SlidingWindow => self.limiter(SlidingWindow::new(quota), &name)?,
            },
        }))
    }

    /// Makes a limiter with this algorithm.
    ///
    /// # Errors
    ///
    /// If Redis cannot keep the quota.
    pub(super) fn limiter<A: Scripted>(&self, algorithm: A, name: &str) -> Result<Arc<dyn Limiter>, String> {
        match self {
            Self::Memory { max_keys } => {
                Ok(RateLimiter::new(algorithm, MemoryStore::with_capacity(*max_keys)).into_limiter())
            }
            Self::Redis(redis) => {
                algorithm.fits().map_err(|problem| problem.to_string())?;
                Ok(RateLimiter::new(algorithm, RedisStore::new(redis, name)).into_limiter())
            }
        }
    }
}
