//! [`Lock`] and [`Shards`]: state that threads share, behind locks whose holders leave no change half done.

use std::sync::TryLockError;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A mutex that a panic does not poison, because no change under it can panic half way.
#[derive(Debug, Default)]
pub struct Lock<T>(Mutex<T>);

/// A map by key in several parts with a lock each, so that two threads rarely want the same lock.
#[derive(Debug)]
pub(crate) struct Shards<T>(Box<[Lock<T>]>);

impl<T> Lock<T> {
    /// Makes a lock for a value.
    pub const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Locks the value.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks it, unless another thread has it.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl<T> Shards<T> {
    pub(crate) fn new(count: usize, mut part: impl FnMut() -> T) -> Self {
        Self((0..count).map(|_| Lock::new(part())).collect())
    }

    /// Locks the part that has the keys with this hash.
    pub(crate) fn lock(&self, hash: u64) -> MutexGuard<'_, T> {
        self.0[self.index(hash)].lock()
    }

    #[allow(clippy::cast_possible_truncation, reason = "which bits are used does not matter")]
    pub(crate) const fn index(&self, hash: u64) -> usize {
        hash as usize % self.0.len()
    }

    /// Locks one part after the other.
    pub(crate) fn iter(&self) -> impl Iterator<Item = MutexGuard<'_, T>> {
        self.0.iter().map(Lock::lock)
    }
}
