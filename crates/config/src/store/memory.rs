//! The limiters for policies in memory.

use std::sync::Arc;

use tower_sluice::algorithm::Algorithm;
use tower_sluice::limiter::IntoLimiter;
use tower_sluice::store::{MemoryStore, WhenFull};
use tower_sluice::time::Clock;
use tower_sluice::{Balance, Concurrency, LeakyQueue, Limiter, RateLimiter};

use super::{ConcurrencySpec, NoLimiter, QueueSpec, RateSpec, Store};
use crate::format::MOST_IN_FLIGHT;
use crate::value::set_if_some;

/// The settings that only policies in memory have.
#[derive(Clone, Copy, Default)]
pub(crate) struct MemorySettings {
    pub(crate) max_keys: Option<usize>,
    pub(crate) when_full: Option<WhenFull>,
}

/// A policy's memory.
#[derive(Clone)]
pub(super) enum Memory {
    InForce,
    /// On a replay's clock.
    Replay(Arc<dyn Clock>),
    /// Without room for keys.
    Checked,
}

impl Memory {
    #[cfg_attr(
        not(feature = "calendar"),
        allow(clippy::needless_pass_by_value, reason = "a calendar is no small value")
    )]
    pub(super) fn rate_limiter(self, rate: RateSpec, settings: MemorySettings) -> Arc<dyn Limiter> {
        match rate {
            RateSpec::TokenBucket(bucket) => self.limiter(bucket, settings),
            RateSpec::LeakyBucket(bucket) => self.limiter(bucket, settings),
            RateSpec::FixedWindow(window) => self.limiter(window, settings),
            RateSpec::SlidingWindow(window) => self.limiter(window, settings),
            #[cfg(feature = "calendar")]
            RateSpec::CalendarWindow(window) => self.limiter(window, settings),
        }
    }

    fn limiter(self, algorithm: impl Algorithm, settings: MemorySettings) -> Arc<dyn Limiter> {
        let memory = settings.max_keys.map_or_else(MemoryStore::default, MemoryStore::with_capacity);
        match self {
            Self::InForce => RateLimiter::new(algorithm, memory).into_limiter(),
            Self::Replay(clock) => RateLimiter::new(algorithm, memory.with_clock(clock)).into_limiter(),
            Self::Checked => RateLimiter::new(algorithm, MemoryStore::with_capacity(1)).into_limiter(),
        }
    }
}

/// Returns this process's memory as a store, for a program that takes a server only if it is given one.
#[must_use]
pub fn memory() -> Arc<dyn Store> {
    Arc::new(ProcessMemory)
}

struct ProcessMemory;

impl Store for ProcessMemory {
    fn rate_limiter(&self, _name: &str, rate: RateSpec) -> Result<Arc<dyn Limiter>, NoLimiter> {
        Ok(Memory::InForce.rate_limiter(rate, MemorySettings::default()))
    }

    fn queue(&self, _name: &str, spec: QueueSpec) -> Result<Arc<dyn Limiter>, NoLimiter> {
        Ok(queue(spec, MemorySettings::default()))
    }

    fn concurrency(&self, _name: &str, spec: ConcurrencySpec) -> Result<Arc<dyn Limiter>, NoLimiter> {
        Ok(concurrency(spec, MemorySettings::default()))
    }

    fn balance(&self, _name: &str) -> Result<Arc<dyn Limiter>, NoLimiter> {
        Ok(balance(Memory::InForce, MemorySettings::default()))
    }
}

/// A limiter to look at, without room for keys.
pub(crate) fn checked_limiter(rate: RateSpec) -> Arc<dyn Limiter> {
    Memory::Checked.rate_limiter(rate, MemorySettings::default())
}

/// A queue to look at.
pub(crate) fn checked_queue(spec: QueueSpec) -> Arc<dyn Limiter> {
    queue(spec, MemorySettings::default())
}

pub(super) fn queue(spec: QueueSpec, settings: MemorySettings) -> Arc<dyn Limiter> {
    let queue = set_if_some(LeakyQueue::new(spec.quota), spec.max_queue, LeakyQueue::max_queue);
    let queue = set_if_some(queue, spec.max_wait, LeakyQueue::max_wait);
    let queue = set_if_some(queue, settings.max_keys, LeakyQueue::max_keys);
    set_if_some(queue, settings.when_full, LeakyQueue::when_full).into_limiter()
}

pub(super) fn concurrency(spec: ConcurrencySpec, settings: MemorySettings) -> Arc<dyn Limiter> {
    let limit = spec.limit.min(MOST_IN_FLIGHT);
    let concurrency = set_if_some(Concurrency::new(limit), settings.max_keys, Concurrency::max_keys);
    let concurrency = set_if_some(concurrency, spec.max_queue, Concurrency::max_queue);
    set_if_some(concurrency, spec.max_wait, Concurrency::max_wait).into_limiter()
}

pub(super) fn balance(memory: Memory, settings: MemorySettings) -> Arc<dyn Limiter> {
    match memory {
        Memory::Replay(clock) => {
            set_if_some(Balance::new().with_clock(clock), settings.max_keys, Balance::max_keys).into_limiter()
        }
        Memory::InForce | Memory::Checked => {
            set_if_some(Balance::new(), settings.max_keys, Balance::max_keys).into_limiter()
        }
    }
}
