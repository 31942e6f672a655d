//! `Streak`: whether something is true of all of the first thousand requests.

use std::sync::atomic::{AtomicU32, Ordering};

/// The length of a streak that is no coincidence, in requests.
const LONG: u32 = 1_000;

/// The count of an interrupted streak. Far above `LONG`, and far enough below `u32::MAX` that the threads which are
/// still counting do not make it wrap around.
const INTERRUPTED: u32 = 1 << 31;

/// Whether something is true of all of the first thousand requests. Once that is decided, the check costs one relaxed
/// load.
///
/// All accesses are relaxed: no other data depends on this count.
#[derive(Debug)]
pub(crate) struct Streak(AtomicU32);

impl Streak {
    pub(crate) const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    #[inline]
    pub(crate) fn is_decided(&self) -> bool {
        !cfg!(feature = "tracing") || self.0.load(Ordering::Relaxed) >= LONG
    }

    /// Counts one more request; returns `true` to the request that makes the streak long.
    ///
    /// Every `fetch_add` returns another count, so of several threads exactly one reads `LONG - 1`, and only that one
    /// logs.
    #[cold]
    pub(crate) fn extend(&self) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed) == LONG - 1
    }

    /// Ends the streak for good. A thread that has passed `is_decided` before may still add one to `INTERRUPTED`, which
    /// stays above `LONG`.
    #[cold]
    pub(crate) fn interrupt(&self) {
        self.0.store(INTERRUPTED, Ordering::Relaxed);
    }
}
