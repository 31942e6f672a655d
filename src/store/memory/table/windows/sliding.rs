//! The counts of a sliding window.

use super::{Counts, Moment, WindowRule, Windows};
use crate::algorithm::SlidingWindowState;
use crate::values::Span;

/// What was used in the current window of a [`SlidingWindow`](crate::algorithm::SlidingWindow), and in the one before,
/// which weighs less and less.
///
/// All numbers follow from what the previous count weighs, rounded up: the weighted estimate of a request exceeds the
/// limit if and only if the whole counts and that exceed it, and what they leave is what remains.
impl Counts for SlidingWindowState {
    const COUNTS: u32 = 2;

    #[inline(always)]
    fn new(window: u64, [previous, current]: [u64; 2]) -> Self {
        Self { window, previous, current }
    }

    #[inline(always)]
    fn window(self) -> u64 {
        self.window
    }

    #[inline(always)]
    fn counts(self) -> [u64; 2] {
        [self.previous, self.current]
    }

    #[inline(always)]
    fn read(windows: &Windows, index: u64, bits: u32, [previous, current]: [u64; 2], by: u64) -> Option<Self> {
        // Seen from the window before, whose count still weighs.
        match windows.ahead(index, bits, by.wrapping_sub(1))? {
            0 => Some(Self { window: by, previous: current, current: 0 }),
            ahead => Some(Self { window: by + (ahead - 1), previous, current }),
        }
    }

    #[inline(always)]
    fn rolled(self, window: u64) -> Self {
        if self.window >= window {
            self
        } else if self.window + 1 == window {
            Self { window, previous: self.current, current: 0 }
        } else {
            Self { window, previous: 0, current: 0 }
        }
    }

    #[inline(always)]
    fn weight(self, windows: &Windows, now: Moment) -> u64 {
        self.current + windows.carried(self.previous, self.window, now)
    }

    #[inline(never)]
    fn wait(self, rule: &WindowRule<Self>, cost: u64, now: Moment) -> Span {
        let (windows, limit) = (&rule.windows, rule.limit);
        match self.current.checked_add(cost).and_then(|current| limit.checked_sub(current)) {
            // The previous window decays far enough while this one lasts.
            Some(room) => windows.decay(self.previous, room, self.window, now),
            // This window must become the previous one, and decay then.
            None => windows.decay(self.current, limit - cost, self.window.saturating_add(1), now),
        }
    }

    fn refunded(self, cost: u64, window: u64) -> Self {
        self.refunded(cost, window)
    }
}
