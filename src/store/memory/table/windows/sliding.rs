//! The counts of a sliding window.

use super::rule::narrow;
use super::{Moment, WindowCounts, WindowRule, Windows};
use crate::algorithm::SlidingWindowState;
use crate::values::DeferredTime;

/// What was used in the current window of a [`SlidingWindow`](crate::algorithm::SlidingWindow), and in the one before,
/// which weighs less and less.
///
/// All numbers follow from what the previous count weighs, rounded up: the weighted estimate of a request exceeds the
/// limit if and only if the whole counts and that exceed it, and what they leave is what remains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::store::memory) struct SlidingCounts {
    window: u64,
    previous: u32,
    current: u32,
}

impl WindowCounts for SlidingCounts {
    type State = SlidingWindowState;

    const COUNTS: u32 = 2;

    #[inline(always)]
    fn new(window: u64, [previous, current]: [u32; 2]) -> Self {
        Self { window, previous, current }
    }

    fn parts_of(SlidingWindowState { window, previous, current }: SlidingWindowState) -> (u64, [u64; 2]) {
        (window, [previous, current])
    }

    fn state(self) -> SlidingWindowState {
        let Self { window, previous, current } = self;
        SlidingWindowState { window, previous: previous.into(), current: current.into() }
    }

    #[inline(always)]
    fn window(self) -> u64 {
        self.window
    }

    #[inline(always)]
    fn counts(self) -> [u32; 2] {
        [self.previous, self.current]
    }

    #[inline(always)]
    fn read(windows: &Windows, index: u64, bits: u32, [previous, current]: [u32; 2], by: u64) -> Option<Self> {
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
        u64::from(self.current) + u64::from(windows.carried(self.previous, self.window, now))
    }

    #[inline(never)]
    fn wait(self, rule: &WindowRule<Self>, cost: u32, now: Moment) -> DeferredTime {
        let (windows, limit) = (&rule.windows, rule.limit);
        match self.current.checked_add(cost).and_then(|current| limit.checked_sub(current)) {
            // The previous window decays far enough while this one lasts.
            Some(room) => windows.decay(self.previous, room, self.window, now),
            // This window must become the previous one, and decay then.
            None => windows.decay(self.current, limit - cost, self.window.saturating_add(1), now),
        }
    }

    fn refunded(self, cost: u64, window: u64) -> Self {
        // Less than before.
        let SlidingWindowState { previous, current, .. } = self.state().refunded(cost, window);
        Self { previous: narrow(previous), current: narrow(current), ..self }
    }
}
