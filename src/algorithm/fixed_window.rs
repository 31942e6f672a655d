//! The fixed window counter.

use std::time::Duration;

use super::window::{ChargedIn, NO_BURST, phase, start_of};
use super::{Algorithm, Kind};
use crate::values::time::Timestamp;
use crate::values::{Decision, Quota, Receipt};

/// Counts requests in windows that begin at multiples of the period; each window starts at zero.
///
/// An hourly window begins on the hour, and a daily one at midnight UTC, as the [wall clock](crate::time::Clock::wall)
/// says; on Redis, the server's.
///
/// # When the wall clock is set
///
/// Set forward (after a suspend, or by a late NTP), it begins the window that it shows. Set back, a key that has used
/// units in a later window keeps them until the end of the window after the present one, at most. So twice the limit
/// passes around a step, as around any edge, and waits are true by the clock as it is set. [Staggered](Self::staggered)
/// windows do not follow the wall clock.
///
/// # Accuracy
///
/// Exact within a window. Around the edge between two windows, **twice the limit** may pass in an arbitrarily short
/// time: one window's limit at its end, and the next one's at its start. If that matters, take
/// [`SlidingWindow`](super::SlidingWindow) or a bucket.
///
/// All clients are readmitted at the same instant, too, and may all come back then, unless windows are
/// [staggered](Self::staggered), or waits are lengthened at random
/// ([`RateLimitLayerBuilder::retry_jitter`](crate::layer::RateLimitLayerBuilder::retry_jitter)).
///
/// # Live changes
///
/// If the limit changes, the present window's count stays. If the period changes, the units used in the present window
/// count in the new period's present window.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tower_sluice::algorithm::{Algorithm, FixedWindow};
/// use tower_sluice::time::Timestamp;
/// use tower_sluice::Quota;
///
/// let window = FixedWindow::new(Quota::per_minute(2));
/// let late = Timestamp::from_nanos(59_000_000_000);
/// let (_, state) = window.decide(None, late, 2);
/// let (rejected, _) = window.decide(state, late, 1);
/// assert_eq!(rejected.retry_after(), Some(Duration::from_secs(1)));
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use]
#[doc(alias = "fixed window counter")]
pub struct FixedWindow {
    quota: Quota,
    staggered: bool,
}

/// The state that a [`FixedWindow`] keeps for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedWindowState {
    /// The window's number: its start, divided by the period.
    pub(crate) window: u64,
    pub(crate) used: u64,
}

impl FixedWindowState {
    /// Returns the state after a refund of `cost` units that were charged in `window`: a charge counts until its window
    /// ends.
    pub(crate) const fn refunded(self, cost: u64, window: u64) -> Self {
        if window == self.window { Self { used: self.used.saturating_sub(cost), ..self } } else { self }
    }
}

impl FixedWindow {
    /// Makes windows with the quota's period.
    ///
    /// # Panics
    ///
    /// If the quota has a burst other than its limit, which a window cannot enforce, or is
    /// [suspended](Quota::suspended).
    #[track_caller]
    pub const fn new(quota: Quota) -> Self {
        quota.assert_in_force();
        assert!(quota.max_burst() == quota.limit(), "{}", NO_BURST);
        Self { quota, staggered: false }
    }

    /// Lets each key's windows begin at its own instant, one of 512 in a period, which is drawn when the store is made.
    ///
    /// So clients that have used up their limits come back one after the other, and not all at once when the window
    /// begins: among 10,000 with a one-minute window, at most 5 % within one second (`tests/store/herd.rs`), instead of
    /// all of them.
    ///
    /// For a [`MemoryStore`](crate::store::MemoryStore) only. After a [live change](crate::Limiter::inherit) of the
    /// period, or of whether windows are staggered, all keys start without a count.
    pub const fn staggered(self) -> Self {
        Self { staggered: true, ..self }
    }
}

impl Algorithm for FixedWindow {
    type State = FixedWindowState;

    fn quota(&self) -> Quota {
        self.quota
    }

    fn decide(
        &self,
        state: Option<FixedWindowState>,
        now: Timestamp,
        cost: u64,
    ) -> (Decision, Option<FixedWindowState>) {
        let limit = self.quota.limit();
        let current = now.as_nanos() / self.quota.period_nanos();
        // After a clock was set back, the window that it had reached still counts.
        let (window, used) = match state {
            Some(state) if state.window >= current => (state.window, state.used),
            _ => (current, 0),
        };
        let until_next = Timestamp::from_nanos(start_of(&self.quota, window.saturating_add(1))).saturating_since(now);
        let answer = |decision: Decision, used: u64| {
            if used == 0 { decision } else { decision.with_reset_after(until_next) }
        };

        // More may have been used, if the limit was lowered.
        let free = limit.saturating_sub(used);
        if cost == 0 {
            let decision = answer(Decision::admit(limit, free), used);
            (if free == 0 { decision.with_next_after(until_next) } else { decision }, None)
        } else if cost > limit {
            (answer(Decision::never(limit, free), used), None)
        } else if cost <= free {
            let used = used + cost;
            let decision = answer(Decision::admit(limit, limit - used), used);
            (decision.with_receipt(Receipt::from_proof(ChargedIn(window))), Some(FixedWindowState { window, used }))
        } else {
            (answer(Decision::reject(limit, free, Some(until_next)), used), None)
        }
    }

    fn expires_at(&self, state: &FixedWindowState) -> Timestamp {
        Timestamp::from_nanos(start_of(&self.quota, state.window.saturating_add(1)))
    }

    fn refund(&self, state: FixedWindowState, _: Timestamp, cost: u64, receipt: Receipt) -> FixedWindowState {
        ChargedIn::read(receipt).map_or(state, |window| state.refunded(cost, window))
    }

    /// All keys in a window expire together, so the key with the smallest debt is the key that used least.
    fn owed(&self, state: &FixedWindowState, now: Timestamp) -> u64 {
        if self.expires_at(state) <= now { 0 } else { state.used }
    }

    /// Counts at most as the next window.
    fn after_step_back(&self, state: FixedWindowState, now: Timestamp) -> FixedWindowState {
        let next = now.as_nanos() / self.quota.period_nanos() + 1;
        if self.staggered { state } else { FixedWindowState { window: state.window.min(next), ..state } }
    }

    fn can_inherit(&self, _: &Quota) -> bool {
        true
    }

    fn inherit(&self, state: FixedWindowState, from: &Quota, now: Timestamp) -> FixedWindowState {
        if from.period_nanos() == self.quota.period_nanos() {
            return state;
        }
        let window = now.as_nanos() / self.quota.period_nanos();
        let has_ended = Self { quota: *from, staggered: false }.expires_at(&state) <= now;
        FixedWindowState { window, used: if has_ended { 0 } else { state.used } }
    }

    /// With the quota's limit and period: a window has no other burst.
    fn under(&self, quota: Quota) -> Option<Self> {
        Some(Self { quota: quota.without_burst(), ..*self })
    }

    fn phase(&self, draw: u64) -> Duration {
        if self.staggered { phase(&self.quota, draw) } else { Duration::ZERO }
    }

    fn kind(&self) -> Kind {
        Kind::FixedWindow { quota: self.quota, staggered: self.staggered }
    }

    fn worst_burst(&self) -> u64 {
        2 * self.quota.limit()
    }
}

#[cfg(all(test, not(sluice_loom)))]
mod tests {
    use super::*;
    use crate::values::counterexamples::each;

    #[test]
    fn decisions_withstand_the_counterexamples() {
        each("src/algorithm/fixed_window.rs: FixedWindow::decide", |case| {
            let quota = Quota::per(case.number("limit"), Duration::from_nanos(case.number("period")));
            let state = FixedWindowState { window: case.number("window"), used: case.number("used") };
            let now = Timestamp::from_nanos(case.number("now"));
            let (decision, next) = FixedWindow::new(quota).decide(Some(state), now, case.number("cost"));
            assert_eq!(decision.is_allowed(), next.is_some());
            [
                ("admitted", next.is_some().into()),
                ("window", next.map_or(0, |next| next.window.into())),
                ("used", next.map_or(0, |next| next.used.into())),
                ("wait", decision.retry_after().map_or(0, |wait| wait.as_nanos())),
            ]
        });
    }

    #[test]
    fn refunds_withstand_the_counterexamples() {
        each("src/algorithm/fixed_window.rs: FixedWindowState::refunded", |case| {
            let state = FixedWindowState { window: case.number("window"), used: case.number("used") };
            [("used", state.refunded(case.number("cost"), case.number("charged_in")).used.into())]
        });
    }
}
