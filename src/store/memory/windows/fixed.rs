use super::{Moment, Windows, bits_of, count, is_of, nanos};
use crate::algorithm::{FixedWindowState, receipt_of};
use crate::decision::Decision;
use crate::quota::Quota;
use crate::store::memory::rule::{Rule, Ruling, WindowRule};
use crate::store::memory::word::{PAYLOAD_BITS, Tag, Word};
use crate::time::Timestamp;

/// A [`FixedWindow`](crate::algorithm::FixedWindow) over words: the same decisions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::store::memory) struct FixedRule {
    windows: Windows,
    limit: u32,
    count_bits: u32,
}

impl FixedRule {
    /// The windows of `quota`, in words that hold counts up to `greatest` as well; `None` if they do not fit.
    pub(in crate::store::memory) fn holding(quota: &Quota, staggered: bool, greatest: u32) -> Option<Self> {
        let (limit, count_bits) = (quota.limit(), bits_of(greatest.max(quota.limit())));
        Some(Self { windows: Windows::new(quota, staggered, count_bits)?, limit, count_bits })
    }

    /// Whether it judges like another one, however many bits their counts have.
    pub(in crate::store::memory) fn is_like(&self, other: &Self) -> bool {
        self.limit == other.limit && self.windows.is_like(&other.windows)
    }

    #[inline(always)]
    const fn free(&self, debt: FixedWindowState) -> u32 {
        self.limit.saturating_sub(debt.used)
    }

    #[inline(always)]
    fn with_reset(&self, decision: Decision, debt: FixedWindowState, now: Moment) -> Decision {
        if debt.used == 0 { decision } else { decision.with_reset_span(nanos(self.until_next(debt, now))) }
    }

    #[inline(always)]
    fn until_next(&self, debt: FixedWindowState, now: Moment) -> u64 {
        self.windows.until(debt.window.saturating_add(1), now)
    }
}

impl WindowRule for FixedRule {
    fn holding(quota: &Quota, staggered: bool, greatest: u32) -> Option<Self> {
        Self::holding(quota, staggered, greatest)
    }

    fn limit(&self) -> u32 {
        self.limit
    }

    fn greatest(&self) -> u32 {
        u32::MAX >> (u32::BITS - self.count_bits)
    }

    fn clipped(&self, state: FixedWindowState) -> FixedWindowState {
        FixedWindowState { used: state.used.min(self.greatest()), ..state }
    }

    fn ends(&self, stamp: u64) -> u64 {
        ((stamp >> (self.count_bits)) + 1) << (self.count_bits)
    }
}

impl Rule for FixedRule {
    type Now = Moment;
    type Debt = FixedWindowState;

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
    fn owed(&self, word: Word, now: Moment) -> FixedWindowState {
        let none = self.nothing(now);
        if word.is_empty() {
            return unused(none);
        }
        let (index, index_bits) = (word.payload() >> self.count_bits, PAYLOAD_BITS - self.count_bits);
        match self.windows.ahead(index, index_bits, now.by) {
            Some(ahead) => FixedWindowState { window: now.by + ahead, used: count(word.payload(), 0, self.count_bits) },
            None => none,
        }
    }

    #[inline(always)]
    fn nothing(&self, now: Moment) -> FixedWindowState {
        FixedWindowState { window: now.by, used: 0 }
    }

    #[inline(always)]
    fn stamp(&self, debt: FixedWindowState, _: Moment) -> u64 {
        // There are fewer than 2^32 epochs, so nothing is lost.
        debt.window << self.count_bits | u64::from(debt.used)
    }

    fn stamped(&self, stamp: u64, now: Moment) -> FixedWindowState {
        let (window, used) = (stamp >> self.count_bits, count(stamp, 0, self.count_bits));
        if window < now.by || used == 0 {
            return self.nothing(now);
        }
        FixedWindowState { window: window.min(self.windows.latest(now)), used }
    }

    fn joined(&self, one: FixedWindowState, other: FixedWindowState) -> FixedWindowState {
        let used = one.used.saturating_add(other.used).min(WindowRule::greatest(self));
        FixedWindowState { window: one.window.max(other.window), used }
    }

    #[inline(always)]
    fn judge(&self, debt: FixedWindowState, cost: u32, _: Moment) -> Ruling<FixedWindowState> {
        // Neither zero nor more than the limit, in one comparison.
        if cost.wrapping_sub(1) >= self.limit {
            return if cost == 0 { Ruling::Peek { debt } } else { Ruling::Never { debt } };
        }
        match debt.used.checked_add(cost) {
            Some(used) if used <= self.limit => Ruling::Admit { debt: FixedWindowState { used, ..debt } },
            _ => Ruling::Reject { debt },
        }
    }

    #[inline(always)]
    fn decision(&self, ruling: Ruling<FixedWindowState>, _: u32, now: Moment) -> Decision {
        match ruling {
            Ruling::Admit { debt } => {
                let decision = Decision::allow(self.limit, self.free(debt)).with_receipt(receipt_of(debt.window));
                self.with_reset(decision, debt, now)
            }
            Ruling::Peek { debt } => self.with_reset(Decision::allow(self.limit, self.free(debt)), debt, now),
            Ruling::Reject { debt } => {
                let wait = nanos(self.until_next(debt, now));
                self.with_reset(Decision::refuse(self.limit, self.free(debt), wait), debt, now)
            }
            Ruling::Never { debt } => self.with_reset(Decision::deny(self.limit, self.free(debt), None), debt, now),
            Ruling::Full { wait } => Decision::refuse(self.limit, 0, nanos(wait)),
        }
    }

    #[inline(always)]
    fn is_late(&self, ruling: &Ruling<FixedWindowState>, now: Moment) -> bool {
        match ruling {
            Ruling::Reject { debt } => now.is_before(debt.window),
            Ruling::Full { .. } => now.is_before(now.by),
            _ => false,
        }
    }

    fn size(&self, debt: FixedWindowState) -> u64 {
        debt.used.into()
    }

    fn left(&self, debt: FixedWindowState, now: Moment) -> u64 {
        if debt.used == 0 { 0 } else { self.until_next(debt, now) }
    }

    fn is_paid_by(&self, stamp: u64, epoch: u32) -> bool {
        let (window, used) = (stamp >> self.count_bits, count(stamp, 0, self.count_bits));
        used == 0 || window < self.windows.begin(epoch)
    }

    /// A charge is owed until its window ends, and not at all after that.
    fn refunded(&self, debt: FixedWindowState, cost: u32, receipt: u64, _: Moment) -> FixedWindowState {
        let back = if is_of(receipt, debt.window) { cost } else { 0 };
        FixedWindowState { used: debt.used.saturating_sub(back), ..debt }
    }
}

/// Words that are found by their tag are never empty: that branch is predicted, and not waited for.
#[cold]
const fn unused(none: FixedWindowState) -> FixedWindowState {
    none
}
