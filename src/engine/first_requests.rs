//! `FirstRequests`: a check that stops after the first requests, so that its cost ends, too. It looks for mistakes that
//! show on the first day.

use std::sync::atomic::{AtomicU32, Ordering};

/// Looks for one thing in the first requests, and reports it once. From then on, and after `CHECKS` requests, it
/// costs one relaxed load. Without `tracing`, a finding could not be logged, so nothing is checked.
///
/// All accesses are relaxed, because no other data depends on the count.
#[derive(Debug)]
pub(crate) struct FirstRequests<const CHECKS: u32>(AtomicU32);

/// The count once something is found. Far above any `CHECKS`, and far enough below `u32::MAX` that threads that are
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

    /// How many requests were checked. Far above `CHECKS` once something is found.
    pub(crate) fn so_far(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts `more` requests.
    pub(crate) fn count(&self, more: u32) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// Returns the result of `find`, the first time that it finds something.
    #[inline]
    pub(crate) fn check<T>(&self, find: impl FnOnce() -> Option<T>) -> Option<T> {
        if self.is_done() { None } else { self.check_uncommon(find) }
    }

    #[cold]
    fn check_uncommon<T>(&self, find: impl FnOnce() -> Option<T>) -> Option<T> {
        self.count(1);
        let found = find()?;
        // Two threads may find it at once. The swaps of one atomic are ordered, so exactly one thread reads a count
        // below `DONE`, and only this thread returns the result.
        (self.0.swap(DONE, Ordering::Relaxed) < DONE).then_some(found)
    }
}
