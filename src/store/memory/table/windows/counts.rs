//! A window's counts, fixed or sliding.

use std::fmt::Debug;
use std::marker::PhantomData;

use super::{Moment, WindowRule, Windows, nanos};
use crate::algorithm::{FixedWindowState, SlidingWindowState};
use crate::values::DeferredTime;

/// A window algorithm's state, by the window's number and the units that were used in the window before and in this
/// one.
pub(in crate::store::memory) trait WindowState: Copy + Debug + Send + Sync + 'static {
    /// The number of windows for which a count weighs, and the number of kept counts: one for fixed windows, two for
    /// sliding ones.
    const COUNTS: u32;

    fn from_parts(window: u64, counts: [u64; 2]) -> Self;

    fn parts(self) -> (u64, [u64; 2]);
}

impl WindowState for FixedWindowState {
    const COUNTS: u32 = 1;

    fn from_parts(window: u64, [_, used]: [u64; 2]) -> Self {
        Self { window, used }
    }

    fn parts(self) -> (u64, [u64; 2]) {
        (self.window, [0, self.used])
    }
}

impl WindowState for SlidingWindowState {
    const COUNTS: u32 = 2;

    fn from_parts(window: u64, [previous, current]: [u64; 2]) -> Self {
        Self { window, previous, current }
    }

    fn parts(self) -> (u64, [u64; 2]) {
        (self.window, [self.previous, self.current])
    }
}

/// The units that were used in a window, and in the window before. The latter is zero if windows are fixed. Counts have
/// 32 bits at most, as in a word, unlike in the algorithm's own state.
///
/// All numbers in a sliding window follow from the weight of the previous count, rounded up. A request's weighted
/// estimate exceeds the limit if and only if the whole counts plus this weight exceed it. The limit minus this sum is
/// the number of remaining units.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::store::memory) struct WindowCounts<S> {
    pub(in crate::store::memory) window: u64,
    pub(super) previous: u32,
    pub(super) current: u32,
    pub(super) state: PhantomData<S>,
}

impl<S: WindowState> WindowCounts<S> {
    const IS_SLIDING: bool = S::COUNTS > 1;

    #[inline(always)]
    pub(super) const fn new(window: u64, [previous, current]: [u32; 2]) -> Self {
        let previous = if Self::IS_SLIDING { previous } else { 0 };
        Self { window, previous, current, state: PhantomData }
    }

    /// Returns the algorithm's state.
    pub(super) fn state(self) -> S {
        S::from_parts(self.window, self.both().map(u64::from))
    }

    #[inline(always)]
    pub(in crate::store::memory) const fn both(self) -> [u32; 2] {
        [self.previous, self.current]
    }

    #[inline(always)]
    pub(super) const fn is_nothing(self) -> bool {
        self.previous == 0 && self.current == 0
    }

    /// Reads a word's counts while the present window is `by`. `index` has the lowest `bits` bits of the word's own
    /// window number. `None` if nothing counts any more.
    #[inline(always)]
    pub(super) fn read(windows: &Windows, index: u64, bits: u32, counts: [u32; 2], by: u64) -> Option<Self> {
        if !Self::IS_SLIDING {
            return windows.ahead(index, bits, by).map(|ahead| Self::new(by + ahead, counts));
        }
        // Looks from the window before, whose count still weighs.
        match windows.ahead(index, bits, by.wrapping_sub(1))? {
            0 => Some(Self::new(by, [counts[1], 0])),
            ahead => Some(Self::new(by + (ahead - 1), counts)),
        }
    }

    /// Returns the counts as they read in a window that is no earlier.
    #[inline(always)]
    pub(super) const fn rolled(self, window: u64) -> Self {
        if self.window >= window {
            self
        } else if Self::IS_SLIDING && self.window + 1 == window {
            Self::new(window, [self.current, 0])
        } else {
            Self::new(window, [0, 0])
        }
    }

    /// Returns both counts' weight together, rounded up.
    #[inline(always)]
    pub(super) fn weight(self, windows: &Windows, now: Moment) -> u64 {
        let carried = if Self::IS_SLIDING { windows.carried(self.previous, self.window, now) } else { 0 };
        u64::from(self.current) + u64::from(carried)
    }

    /// Returns the wait until `cost` units fit. They do not fit now, and are at most the limit. If windows are fixed,
    /// the next window must begin.
    #[inline(always)]
    pub(super) fn wait(self, rule: &WindowRule<S>, cost: u32, now: Moment) -> DeferredTime {
        if Self::IS_SLIDING { self.decay(rule, cost, now) } else { nanos(rule.until_reset(self, now)) }
    }

    #[inline(never)]
    fn decay(self, rule: &WindowRule<S>, cost: u32, now: Moment) -> DeferredTime {
        let windows = &rule.windows;
        let limit = rule.limit;
        match self.current.checked_add(cost).and_then(|current| limit.checked_sub(current)) {
            // The previous window decays far enough while this one lasts.
            Some(room) => windows.decay(self.previous, room, self.window, now),
            // This window must become the previous one, and decay then.
            None => windows.decay(self.current, limit - cost, self.window.saturating_add(1), now),
        }
    }

    /// Returns the counts after a refund of `cost` units that were charged in `window`, as the algorithm's state.
    pub(super) fn refunded(self, cost: u64, window: u64) -> Self {
        let less = |count: u32| count.saturating_sub(u32::try_from(cost).unwrap_or(u32::MAX));
        if window == self.window {
            Self { current: less(self.current), ..self }
        } else if window.saturating_add(1) == self.window {
            Self { previous: less(self.previous), ..self }
        } else {
            self
        }
    }
}
