//! The sliding window counter.

use std::time::Duration;

use super::window::{ChargedIn, NO_BURST, phase, start_of};
use super::{Algorithm, Kind};
use crate::values::time::Timestamp;
use crate::values::{Decision, Quota, Receipt};

/// Estimates the count of the last period from two counters: the current window's units, plus the previous window's,
/// weighted by the share that the last period still covers.
///
/// A quarter into a window, with 9 before and 5 so far, the estimate is 9 × ¾ + 5 = 11.75. A request
/// passes if the estimate, itself included, does not exceed the limit.
///
/// # Accuracy
///
/// The estimate assumes that the previous window's requests came evenly. In every interval, at most
/// limit + rate × length is admitted: the doubling of [`FixedWindow`](super::FixedWindow) at an edge is
/// gone. Against a limiter that keeps an exact log of the last period (100 per minute, 2,000
/// minutes; `tests/store/accuracy.rs` measures it):
///
/// | traffic | admitted, of what the log admits | admitted with the last period full | most in one period |
/// |---|---|---|---|
/// | at random, 0.9 × the limit | 100.8 % | 5.4 % | 114 |
/// | at random, 2 × the limit | 99.7 % | 7.6 % | 106 |
/// | rising and falling, 0 to 4 × the limit | 99.8 % | 8.0 % | 121 |
/// | bursts of 40 within a second | 102.8 % | 20.1 % | 175 |
/// | the limit just before each edge, and just after | 99.0 % | 0.0 % | 100 |
///
/// The log would need eight bytes per request; this needs 24 per key.
///
/// When a client is readmitted depends on the window in which it used up its limit, and not on the instant. So all
/// clients that did so in one window come back together, unless windows are [staggered](Self::staggered).
///
/// # Live changes
///
/// If the limit changes, both counts stay. If the period changes, the estimate as it is then, rounded up, becomes the
/// count in the new period's present window.
///
/// # Examples
///
/// ```
/// use tower_sluice::algorithm::{Algorithm, SlidingWindow};
/// use tower_sluice::time::Timestamp;
/// use tower_sluice::Quota;
///
/// let window = SlidingWindow::new(Quota::per_second(12));
/// let at_ms = |ms: u64| Timestamp::from_nanos(ms * 1_000_000);
///
/// let (_, state) = window.decide(None, at_ms(500), 9);
/// let (_, state) = window.decide(state, at_ms(1_250), 5);
/// // 12 − 11.75 leaves a quarter of a unit: not enough for one.
/// assert_eq!(window.decide(state, at_ms(1_250), 0).0.remaining(), 0);
/// assert!(!window.decide(state, at_ms(1_250), 1).0.is_allowed());
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use]
#[doc(alias("sliding window counter", "rolling window"))]
pub struct SlidingWindow {
    quota: Quota,
    staggered: bool,
}

/// The state that a [`SlidingWindow`] keeps for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingWindowState {
    /// The current window's number: its start, divided by the period.
    pub(crate) window: u64,
    pub(crate) previous: u64,
    pub(crate) current: u64,
}

impl SlidingWindowState {
    /// Returns the state after a refund of `cost` units that were charged in `window`: a charge counts until the window
    /// after its own ends.
    pub(crate) const fn refunded(self, cost: u64, window: u64) -> Self {
        if window == self.window {
            Self { current: self.current.saturating_sub(cost), ..self }
        } else if window.saturating_add(1) == self.window {
            Self { previous: self.previous.saturating_sub(cost), ..self }
        } else {
            self
        }
    }
}

impl SlidingWindow {
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

    /// Returns `state` as it reads in the window that holds `now`. After a clock was set back, that is the start of the
    /// window that it had reached.
    fn roll(&self, state: Option<SlidingWindowState>, now: Timestamp) -> SlidingWindowState {
        let window = now.as_nanos() / self.quota.period_nanos();
        match state {
            Some(state) if state.window >= window => state,
            Some(state) if state.window + 1 == window => {
                SlidingWindowState { window, previous: state.current, current: 0 }
            }
            _ => SlidingWindowState { window, previous: 0, current: 0 },
        }
    }

    /// Returns the time until `cost` units fit. They do not fit now, and are within the limit. `state` was
    /// [rolled](Self::roll) to `now`.
    fn wait(&self, state: &SlidingWindowState, now: Timestamp, cost: u64) -> Duration {
        let limit = self.quota.limit();
        let current = state.current.checked_add(cost).filter(|current| *current <= limit);
        let admitted_at = match current {
            // The previous window decays far enough while this one lasts.
            Some(current) => {
                let decayed = self.decayed_after(state.previous, limit - current);
                start_of(&self.quota, state.window).saturating_add(decayed)
            }
            // This window must become the previous one, and decay then.
            None => {
                let decayed = self.decayed_after(state.current, limit - cost);
                start_of(&self.quota, state.window.saturating_add(1)).saturating_add(decayed)
            }
        };
        Timestamp::from_nanos(admitted_at).saturating_since(now)
    }

    /// Returns the nanoseconds into a window after which `count`, taken in the window before, weighs at most `room`:
    /// the least `e` with `count × (period − e) ≤ room × period`.
    fn decayed_after(&self, count: u64, room: u64) -> u64 {
        let period = self.quota.period_nanos();
        if count <= room {
            return 0;
        }
        let kept = u128::from(room) * u128::from(period) / u128::from(count);
        period - u64::try_from(kept).expect("room is below count, so this is below the period")
    }
}

impl Algorithm for SlidingWindow {
    type State = SlidingWindowState;

    fn quota(&self) -> Quota {
        self.quota
    }

    fn decide(
        &self,
        state: Option<SlidingWindowState>,
        now: Timestamp,
        cost: u64,
    ) -> (Decision, Option<SlidingWindowState>) {
        let limit = self.quota.limit();
        let period = u128::from(self.quota.period_nanos());
        let state = self.roll(state, now);
        let start = start_of(&self.quota, state.window);
        let elapsed = u128::from(now.as_nanos().saturating_sub(start));

        // In units of 1/period of a request, so that the weighted count is a whole number; counts
        // and limit are below 2^64 and the period below 2^62, so all of this is below 2^127.
        let weighted = |current: u64| u128::from(state.previous) * (period - elapsed) + u128::from(current) * period;
        let limit_units = u128::from(limit) * period;
        let remaining = |current: u64| {
            let free = limit_units.saturating_sub(weighted(current)) / period;
            u64::try_from(free).unwrap_or(limit)
        };
        let answer = |decision: Decision, state: &SlidingWindowState| {
            if state.previous == 0 && state.current == 0 {
                decision
            } else {
                decision.with_reset_after(self.expires_at(state).saturating_since(now))
            }
        };

        if cost == 0 {
            let left = remaining(state.current);
            let decision = answer(Decision::admit(limit, left), &state);
            return (if left == 0 { decision.with_next_after(self.wait(&state, now, 1)) } else { decision }, None);
        }
        if cost > limit {
            return (answer(Decision::never(limit, remaining(state.current)), &state), None);
        }
        let current = state.current.checked_add(cost).filter(|current| *current <= limit);
        if let Some(current) = current.filter(|current| weighted(*current) <= limit_units) {
            let next = SlidingWindowState { current, ..state };
            let left = remaining(current);
            let decision =
                answer(Decision::admit(limit, left), &next).with_receipt(Receipt::from_proof(ChargedIn(state.window)));
            let decision = if left == 0 { decision.with_next_after(self.wait(&next, now, 1)) } else { decision };
            return (decision, Some(next));
        }
        let wait = self.wait(&state, now, cost);
        (answer(Decision::reject(limit, remaining(state.current), Some(wait)), &state), None)
    }

    fn expires_at(&self, state: &SlidingWindowState) -> Timestamp {
        // The current count still weighs in the window after this one.
        let windows = if state.current > 0 { 2 } else { 1 };
        Timestamp::from_nanos(start_of(&self.quota, state.window.saturating_add(windows)))
    }

    fn refund(&self, state: SlidingWindowState, now: Timestamp, cost: u64, receipt: Receipt) -> SlidingWindowState {
        let state = self.roll(Some(state), now);
        ChargedIn::read(receipt).map_or(state, |window| state.refunded(cost, window))
    }

    /// All keys in a window expire together, so the key with the smallest debt is the key that used least.
    fn owed(&self, state: &SlidingWindowState, now: Timestamp) -> u64 {
        let state = self.roll(Some(*state), now);
        state.previous.saturating_add(state.current)
    }

    fn can_inherit(&self, _: &Quota) -> bool {
        true
    }

    fn inherit(&self, state: SlidingWindowState, from: &Quota, now: Timestamp) -> SlidingWindowState {
        if from.period_nanos() == self.quota.period_nanos() {
            return state;
        }
        let before = Self { quota: *from, staggered: false };
        let period = u128::from(from.period_nanos());
        let state = before.roll(Some(state), now);
        let elapsed = u128::from(now.as_nanos().saturating_sub(start_of(from, state.window)));
        let weighted = (u128::from(state.previous) * (period - elapsed.min(period))).div_ceil(period);
        // At most the two counts together, and each of them fits.
        let current = u64::try_from(weighted + u128::from(state.current)).unwrap_or(u64::MAX);
        SlidingWindowState { window: now.as_nanos() / self.quota.period_nanos(), previous: 0, current }
    }

    /// With the quota's limit and period: a window has no other burst.
    fn under(&self, quota: Quota) -> Option<Self> {
        Some(Self { quota: quota.without_burst(), ..*self })
    }

    fn phase(&self, draw: u64) -> Duration {
        if self.staggered { phase(&self.quota, draw) } else { Duration::ZERO }
    }

    fn kind(&self) -> Kind {
        Kind::SlidingWindow { quota: self.quota, staggered: self.staggered }
    }
}

#[cfg(all(test, not(sluice_loom)))]
mod tests {
    use super::*;
    use crate::values::counterexamples::each;

    #[test]
    fn decisions_withstand_the_counterexamples() {
        each("src/algorithm/sliding_window.rs: SlidingWindow::decide", |case| {
            let quota = Quota::per(case.number("limit"), Duration::from_nanos(case.number("period")));
            let [previous, current] = ["previous", "current"].map(|count| case.number(count));
            let state = SlidingWindowState { window: case.number("window"), previous, current };
            let now = Timestamp::from_nanos(case.number("now"));
            let (decision, next) = SlidingWindow::new(quota).decide(Some(state), now, case.number("cost"));
            assert_eq!(decision.is_allowed(), next.is_some());
            [
                ("admitted", next.is_some().into()),
                ("current", next.map_or(0, |next| next.current.into())),
                ("wait", decision.retry_after().map_or(0, |wait| wait.as_nanos())),
            ]
        });
    }

    #[test]
    fn refunds_withstand_the_counterexamples() {
        each("src/algorithm/sliding_window.rs: SlidingWindowState::refunded", |case| {
            let [previous, current] = ["previous", "current"].map(|count| case.number(count));
            let state = SlidingWindowState { window: case.number("window"), previous, current };
            let state = state.refunded(case.number("cost"), case.number("charged_in"));
            [("previous", state.previous.into()), ("current", state.current.into())]
        });
    }
}
