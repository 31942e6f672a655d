//! The counts of a fixed window.

use super::rule::narrow;
use super::{Moment, WindowCounts, WindowRule, Windows, nanos};
use crate::algorithm::FixedWindowState;
use crate::values::DeferredTime;

/// What was used in one window of a [`FixedWindow`](crate::algorithm::FixedWindow).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::store::memory) struct FixedCounts {
    window: u64,
    used: u32,
}

impl WindowCounts for FixedCounts {
    type State = FixedWindowState;

    const COUNTS: u32 = 1;

    #[inline(always)]
    fn new(window: u64, [_, used]: [u32; 2]) -> Self {
        Self { window, used }
    }

    fn parts_of(FixedWindowState { window, used }: FixedWindowState) -> (u64, [u64; 2]) {
        (window, [0, used])
    }

    fn state(self) -> FixedWindowState {
        FixedWindowState { window: self.window, used: self.used.into() }
    }

    #[inline(always)]
    fn window(self) -> u64 {
        self.window
    }

    #[inline(always)]
    fn counts(self) -> [u32; 2] {
        [0, self.used]
    }

    #[inline(always)]
    fn read(windows: &Windows, index: u64, bits: u32, [_, used]: [u32; 2], by: u64) -> Option<Self> {
        windows.ahead(index, bits, by).map(|ahead| Self { window: by + ahead, used })
    }

    #[inline(always)]
    fn rolled(self, window: u64) -> Self {
        if self.window >= window { self } else { Self { window, used: 0 } }
    }

    #[inline(always)]
    fn weight(self, _: &Windows, _: Moment) -> u64 {
        self.used.into()
    }

    /// Returns the time until the next window begins.
    #[inline(always)]
    fn wait(self, rule: &WindowRule<Self>, _: u32, now: Moment) -> DeferredTime {
        nanos(rule.until_reset(self, now))
    }

    fn refunded(self, cost: u64, window: u64) -> Self {
        // Less than before.
        Self { used: narrow(self.state().refunded(cost, window).used), ..self }
    }
}
