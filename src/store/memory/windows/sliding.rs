use super::{Moment, Windows, bits_of, count, is_of, nanos};
use crate::algorithm::{SlidingWindowState, receipt_of};
use crate::decision::{Decision, Span};
use crate::quota::Quota;
use crate::store::memory::rule::{Rule, Ruling, WindowRule};
use crate::store::memory::word::{PAYLOAD_BITS, Tag, Word};
use crate::time::Timestamp;

/// A [`SlidingWindow`](crate::algorithm::SlidingWindow) over words: the same decisions.
///
/// All numbers follow from what the previous count weighs, rounded up: the weighted estimate of a request exceeds the limit if
/// and only if the whole counts and that exceed it, and what they leave is what remains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::store::memory) struct SlidingRule {
    windows: Windows,
    limit: u32,
    /// Of each of the two counts.
    count_bits: u32,
}

impl SlidingRule {
    /// Until `cost` units fit, which do not now, and are no more than the limit.
    #[inline(never)]
    fn wait(&self, debt: SlidingWindowState, cost: u32, now: Moment) -> Span {
        match debt.current.checked_add(cost).and_then(|current| self.limit.checked_sub(current)) {
            // The previous window decays far enough while this one lasts.
            Some(room) => self.windows.decay(debt.previous, room, debt.window, now),
            // This one must become the previous, and decay in its turn.
            None => self.windows.decay(debt.current, self.limit - cost, debt.window.saturating_add(1), now),
        }
    }

    /// The windows of `quota`, in words that hold counts up to `greatest` as well; `None` if they do not fit.
    pub(in crate::store::memory) fn holding(quota: &Quota, staggered: bool, greatest: u32) -> Option<Self> {
        let (limit, count_bits) = (quota.limit(), bits_of(greatest.max(quota.limit())));
        Some(Self { windows: Windows::new(quota, staggered, 2 * count_bits)?, limit, count_bits })
    }

    /// Whether it judges like another one, however many bits their counts have.
    pub(in crate::store::memory) fn is_like(&self, other: &Self) -> bool {
        self.limit == other.limit && self.windows.is_like(&other.windows)
    }

    /// What both counts weigh, rounded up.
    #[inline(always)]
    fn weight(&self, debt: SlidingWindowState, now: Moment) -> u64 {
        u64::from(debt.current) + u64::from(self.windows.carried(debt.previous, debt.window, now))
    }

    #[inline(always)]
    fn remaining(&self, debt: SlidingWindowState, now: Moment) -> u32 {
        let free = u64::from(self.limit).saturating_sub(self.weight(debt, now));
        u32::try_from(free).unwrap_or(self.limit)
    }

    #[inline(always)]
    fn with_reset(&self, decision: Decision, debt: SlidingWindowState, now: Moment) -> Decision {
        if debt.previous == 0 && debt.current == 0 {
            decision
        } else {
            decision.with_reset_span(nanos(self.until_reset(debt, now)))
        }
    }

    #[inline(always)]
    fn until_reset(&self, debt: SlidingWindowState, now: Moment) -> u64 {
        let windows = if debt.current > 0 { 2 } else { 1 };
        self.windows.until(debt.window.saturating_add(windows), now)
    }

    const fn unpacked(&self, stamp: u64) -> SlidingWindowState {
        let bits = self.count_bits;
        let (previous, current) = (count(stamp, bits, bits), count(stamp, 0, bits));
        SlidingWindowState { window: stamp >> (2 * bits), previous, current }
    }

    /// How counts read in a window that is no earlier.
    #[inline(always)]
    const fn rolled(debt: SlidingWindowState, window: u64) -> SlidingWindowState {
        if debt.window >= window {
            debt
        } else if debt.window + 1 == window {
            SlidingWindowState { window, previous: debt.current, current: 0 }
        } else {
            SlidingWindowState { window, previous: 0, current: 0 }
        }
    }
}

impl WindowRule for SlidingRule {
    fn holding(quota: &Quota, staggered: bool, greatest: u32) -> Option<Self> {
        Self::holding(quota, staggered, greatest)
    }

    fn limit(&self) -> u32 {
        self.limit
    }

    fn greatest(&self) -> u32 {
        u32::MAX >> (u32::BITS - self.count_bits)
    }

    fn clipped(&self, state: SlidingWindowState) -> SlidingWindowState {
        SlidingWindowState {
            window: state.window,
            previous: state.previous.min(self.greatest()),
            current: state.current.min(self.greatest()),
        }
    }

    fn ends(&self, stamp: u64) -> u64 {
        ((stamp >> (2 * self.count_bits)) + 2) << (2 * self.count_bits)
    }
}

impl Rule for SlidingRule {
    type Now = Moment;
    type Debt = SlidingWindowState;

    #[inline(always)]
    fn read(&self, now: Timestamp) -> Moment {
        self.windows.read(now)
    }

    #[inline(always)]
    fn of_key(&self, now: Moment, tag: Tag) -> Moment {
        self.windows.of_key(now, tag)
    }

    #[inline(always)]
    fn epoch(&self, now: Moment) -> u32 {
        self.windows.epoch(now)
    }

    #[inline(always)]
    fn clamp(&self, now: Moment, epoch: u32) -> Moment {
        self.windows.clamp(now, epoch)
    }

    fn beginning(&self, epoch: u32) -> Moment {
        self.windows.beginning(epoch)
    }

    #[inline(always)]
    fn owed(&self, word: Word, now: Moment) -> SlidingWindowState {
        let none = self.nothing(now);
        if word.is_empty() {
            return unused(none);
        }
        let (payload, bits) = (word.payload(), self.count_bits);
        let (previous, current) = (count(payload, bits, bits), count(payload, 0, bits));
        // Seen from the window before, whose count still weighs.
        match self.windows.ahead(payload >> (2 * bits), PAYLOAD_BITS - 2 * bits, now.by.wrapping_sub(1)) {
            Some(0) => SlidingWindowState { window: now.by, previous: current, current: 0 },
            Some(ahead) => SlidingWindowState { window: now.by + (ahead - 1), previous, current },
            None => none,
        }
    }

    #[inline(always)]
    fn nothing(&self, now: Moment) -> SlidingWindowState {
        SlidingWindowState { window: now.by, previous: 0, current: 0 }
    }

    #[inline(always)]
    fn stamp(&self, debt: SlidingWindowState, _: Moment) -> u64 {
        let counts = u64::from(debt.previous) << self.count_bits | u64::from(debt.current);
        // There are fewer than 2^32 epochs, so nothing is lost.
        debt.window << (2 * self.count_bits) | counts
    }

    fn stamped(&self, stamp: u64, now: Moment) -> SlidingWindowState {
        let debt = Self::rolled(self.unpacked(stamp), now.by);
        if self.size(debt) == 0 {
            return self.nothing(now);
        }
        SlidingWindowState { window: debt.window.min(self.windows.latest(now)), ..debt }
    }

    fn joined(&self, one: SlidingWindowState, other: SlidingWindowState) -> SlidingWindowState {
        let sum = |one: u32, other: u32| one.saturating_add(other).min(WindowRule::greatest(self));
        let window = one.window.max(other.window);
        let (one, other) = (Self::rolled(one, window), Self::rolled(other, window));
        let (previous, current) = (sum(one.previous, other.previous), sum(one.current, other.current));
        SlidingWindowState { window, previous, current }
    }

    #[inline(always)]
    fn judge(&self, debt: SlidingWindowState, cost: u32, now: Moment) -> Ruling<SlidingWindowState> {
        // Neither zero nor more than the limit, in one comparison.
        if cost.wrapping_sub(1) >= self.limit {
            return if cost == 0 { Ruling::Peek { debt } } else { Ruling::Never { debt } };
        }
        if self.weight(debt, now) + u64::from(cost) <= u64::from(self.limit) {
            // It does not overflow: it is no more than the limit.
            Ruling::Admit { debt: SlidingWindowState { current: debt.current + cost, ..debt } }
        } else {
            Ruling::Reject { debt }
        }
    }

    #[inline(always)]
    fn decision(&self, ruling: Ruling<SlidingWindowState>, cost: u32, now: Moment) -> Decision {
        let (limit, remaining) = (self.limit, |debt| self.remaining(debt, now));
        match ruling {
            Ruling::Admit { debt } => {
                let left = remaining(debt);
                let decision = Decision::allow(limit, left).with_receipt(receipt_of(debt.window));
                let decision = if left == 0 { decision.with_next_span(self.wait(debt, 1, now)) } else { decision };
                self.with_reset(decision, debt, now)
            }
            Ruling::Peek { debt } => self.with_reset(Decision::allow(limit, remaining(debt)), debt, now),
            Ruling::Reject { debt } => {
                self.with_reset(Decision::refuse(limit, remaining(debt), self.wait(debt, cost, now)), debt, now)
            }
            Ruling::Never { debt } => self.with_reset(Decision::deny(limit, remaining(debt), None), debt, now),
            Ruling::Full { wait } => Decision::refuse(limit, 0, nanos(wait)),
        }
    }

    #[inline(always)]
    fn is_late(&self, ruling: &Ruling<SlidingWindowState>, now: Moment) -> bool {
        match ruling {
            Ruling::Reject { debt } => now.is_before(debt.window),
            Ruling::Full { .. } => now.is_before(now.by),
            _ => false,
        }
    }

    fn size(&self, debt: SlidingWindowState) -> u64 {
        u64::from(debt.previous) + u64::from(debt.current)
    }

    fn left(&self, debt: SlidingWindowState, now: Moment) -> u64 {
        if self.size(debt) == 0 { 0 } else { self.until_reset(debt, now) }
    }

    fn is_paid_by(&self, stamp: u64, epoch: u32) -> bool {
        self.size(Self::rolled(self.unpacked(stamp), self.windows.begin(epoch))) == 0
    }

    /// A charge is owed until the window after its own ends.
    fn refunded(&self, debt: SlidingWindowState, cost: u32, receipt: u64, _: Moment) -> SlidingWindowState {
        if is_of(receipt, debt.window) {
            SlidingWindowState { current: debt.current.saturating_sub(cost), ..debt }
        } else if debt.window.checked_sub(1).is_some_and(|previous| is_of(receipt, previous)) {
            SlidingWindowState { previous: debt.previous.saturating_sub(cost), ..debt }
        } else {
            debt
        }
    }
}

/// Words that are found by their tag are never empty: that branch is predicted, and not waited for.
#[cold]
const fn unused(none: SlidingWindowState) -> SlidingWindowState {
    none
}
