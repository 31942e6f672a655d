//! `Streak`: whether something is true of all the first requests.

use std::sync::atomic::{AtomicU32, Ordering};

/// An interrupted streak's count. Far above `LONG`, and far enough below `u32::MAX` that threads that are still
/// counting do not make it wrap around.
const INTERRUPTED: u32 = 1 << 31;

/// A streak length that is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    First,
    Long,
}

/// Whether something is true of all the first `LONG` requests. Once that is decided, the check costs one relaxed load.
///
/// All accesses are relaxed, because no other data depends on this count.
#[derive(Debug)]
pub(crate) struct Streak<const LONG: u32>(AtomicU32);

impl<const LONG: u32> Streak<LONG> {
    pub(crate) const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    #[inline]
    pub(crate) fn is_decided(&self) -> bool {
        !cfg!(feature = "tracing") || self.0.load(Ordering::Relaxed) >= LONG
    }

    /// Counts one more request, and says whether it begins the streak or makes it long.
    ///
    /// Every `fetch_add` returns another count, so exactly one thread gets each answer, and only that one logs.
    #[cold]
    pub(crate) fn extend(&self) -> Option<Length> {
        match self.0.fetch_add(1, Ordering::Relaxed) {
            0 => Some(Length::First),
            before if before == LONG - 1 => Some(Length::Long),
            _ => None,
        }
    }

    /// Like [`extend`](Self::extend), but only returns whether the request makes the streak long.
    pub(crate) fn grows_long(&self) -> bool {
        self.extend() == Some(Length::Long)
    }

    /// Ends the streak for good. A thread that has passed `is_decided` before may still add one to `INTERRUPTED`, which
    /// stays above `LONG`.
    #[cold]
    pub(crate) fn interrupt(&self) {
        self.0.store(INTERRUPTED, Ordering::Relaxed);
    }
}
