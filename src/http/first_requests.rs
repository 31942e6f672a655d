//! `FirstRequests`: a check that a limiter must not pay for for ever, since what it looks for shows on the first day.

use std::sync::atomic::{AtomicU32, Ordering};

/// Looks for one thing in the first requests, and finds it once. From then on, and after `CHECKS` requests, it costs one
/// relaxed load. Without `tracing`, what it finds could not be logged, and it looks for nothing.
///
/// All accesses are relaxed: no other data depends on the count.
#[derive(Debug)]
pub(crate) struct FirstRequests<const CHECKS: u32>(AtomicU32);

/// The count once something is found. Far above any `CHECKS`, and far enough below `u32::MAX` that the threads which are
/// still counting do not make it wrap around.
const DONE: u32 = 1 << 31;

impl<const CHECKS: u32> FirstRequests<CHECKS> {
    pub(crate) const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    #[inline]
    pub(crate) fn is_done(&self) -> bool {
        !cfg!(feature = "tracing") || self.0.load(Ordering::Relaxed) >= CHECKS
    }

    /// Counts so many requests more.
    pub(crate) fn count(&self, more: u32) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// Returns what `find` finds, the first time that it finds something.
    #[inline]
    pub(crate) fn check<T>(&self, find: impl FnOnce() -> Option<T>) -> Option<T> {
        if self.is_done() { None } else { self.check_uncommon(find) }
    }

    #[cold]
    fn check_uncommon<T>(&self, find: impl FnOnce() -> Option<T>) -> Option<T> {
        self.count(1);
        let found = find()?;
        // Two threads may find it at once. The swaps of one atomic are ordered, so exactly one of them reads a count below
        // `DONE`, and only that one returns it.
        (self.0.swap(DONE, Ordering::Relaxed) < DONE).then_some(found)
    }
}
