//! Windows as a [`Rule`] over words.

use std::any::Any;
use std::marker::PhantomData;

use super::{Moment, WindowCounts, WindowState, Windows, bits_of, count, nanos};
use crate::algorithm::ChargedIn;
use crate::store::memory::quota_state::{QuotaState, StateType};
use crate::store::memory::table::codec::Codec;
use crate::store::memory::table::rule::{Rule, Ruling};
use crate::store::memory::table::word::{PAYLOAD_BITS, Tag, Word};
use crate::values::time::Timestamp;
use crate::values::{Decision, Quota, Receipt};

/// Windows over words, which make the same decisions as the algorithm with this state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::store::memory) struct WindowRule<S> {
    pub(super) windows: Windows,
    pub(super) limit: u32,
    /// The number of bits in each count.
    count_bits: u32,
    state: PhantomData<S>,
}

impl<S: WindowState> WindowRule<S> {
    pub(in crate::store::memory) const fn limit(&self) -> u64 {
        self.limit as u64
    }

    /// Returns the greatest count that its words hold.
    pub(in crate::store::memory) const fn greatest(&self) -> u32 {
        u32::MAX >> (u32::BITS - self.count_bits)
    }

    /// Returns a state with counts cut to the greatest that its words hold.
    pub(in crate::store::memory) fn clipped(&self, state: S) -> WindowCounts<S> {
        let (window, counts) = state.parts();
        WindowCounts::new(window, counts.map(|count| u32::try_from(count).unwrap_or(u32::MAX).min(self.greatest())))
    }

    /// Returns the number of bits in all counts.
    #[inline(always)]
    const fn bits(&self) -> u32 {
        S::COUNTS * self.count_bits
    }

    /// Returns the counts, which are kept below the index of their window.
    #[inline(always)]
    const fn counts_in(&self, stamp: u64) -> [u32; 2] {
        [count(stamp, self.count_bits, self.count_bits), count(stamp, 0, self.count_bits)]
    }

    fn unpacked(&self, stamp: u64) -> WindowCounts<S> {
        WindowCounts::new(stamp >> self.bits(), self.counts_in(stamp))
    }

    #[inline(always)]
    fn remaining(&self, debt: WindowCounts<S>, now: Moment) -> u64 {
        self.limit().saturating_sub(debt.weight(&self.windows, now))
    }

    /// Returns the nanoseconds until nothing counts: units that were used in a window count in it, and if windows
    /// slide, also in the next one.
    #[inline(always)]
    pub(super) fn until_reset(&self, debt: WindowCounts<S>, now: Moment) -> u64 {
        let windows = if debt.current > 0 { S::COUNTS.into() } else { 1 };
        self.windows.nanos_until(debt.window.saturating_add(windows), now)
    }

    /// Returns the decision on a request with cost 0.
    #[cold]
    #[inline(never)]
    fn peeked(&self, debt: WindowCounts<S>, now: Moment) -> Decision {
        let left = self.remaining(debt, now);
        let decision = self.with_reset(Decision::admit(self.limit(), left), debt, now);
        if left == 0 { decision.with_next_span(debt.wait(self, 1, now)) } else { decision }
    }

    #[inline(always)]
    fn with_reset(&self, decision: Decision, debt: WindowCounts<S>, now: Moment) -> Decision {
        if debt.is_nothing() { decision } else { decision.with_reset_span(nanos(self.until_reset(debt, now))) }
    }
}

impl<S: WindowState> Rule for WindowRule<S> {
    type Now = Moment;
    type Debt = WindowCounts<S>;

    #[inline(always)]
    fn read(&self, now: Timestamp) -> Moment {
        self.windows.read(now)
    }

    #[inline(always)]
    fn wall_period(&self) -> Option<u64> {
        (S::COUNTS == 1 && !self.windows.staggered).then_some(self.windows.period)
    }

    fn earlier(&self, debt: WindowCounts<S>, nanos: u64) -> WindowCounts<S> {
        WindowCounts::new(debt.window.saturating_sub(self.windows.window_of(nanos)), debt.both())
    }

    #[inline(always)]
    fn local(&self, now: Moment, tag: Tag) -> Moment {
        if self.windows.staggered { self.windows.shifted(now, tag) } else { now }
    }

    #[allow(clippy::cast_possible_truncation)] // Epochs are so long that there are fewer than 2^32.
    #[inline(always)]
    fn epoch(&self, now: Moment) -> u32 {
        (now.window >> self.windows.epoch_bits) as u32
    }

    #[inline(always)]
    fn clamp(&self, now: Moment, epoch: u32) -> Moment {
        Moment { by: now.by.max(self.windows.begin(epoch)), ..now }
    }

    fn epoch_start(&self, epoch: u32) -> Moment {
        let window = self.windows.begin(epoch);
        Moment { nanos: self.windows.start_of(window), window, by: window }
    }

    #[inline(always)]
    fn owed(&self, word: Word, now: Moment) -> WindowCounts<S> {
        let none = self.nothing(now);
        if word.is_empty() {
            return unused(none);
        }
        let (payload, bits) = (word.payload(), self.bits());
        let counts = self.counts_in(payload);
        WindowCounts::read(&self.windows, payload >> bits, PAYLOAD_BITS - bits, counts, now.by).unwrap_or(none)
    }

    #[inline(always)]
    fn nothing(&self, now: Moment) -> WindowCounts<S> {
        WindowCounts::new(now.by, [0, 0])
    }

    #[inline(always)]
    fn stamp(&self, debt: WindowCounts<S>, _: Moment) -> u64 {
        let [previous, current] = debt.both().map(u64::from);
        // Nothing is lost, because there are fewer than 2^32 epochs, and an epoch's windows and the counts take 32 bits
        // together (`Windows::new`).
        (debt.window << self.bits()) | (previous << self.count_bits) | current
    }

    fn stamped(&self, stamp: u64, now: Moment) -> WindowCounts<S> {
        let debt = self.unpacked(stamp).rolled(now.by);
        if debt.is_nothing() {
            return self.nothing(now);
        }
        WindowCounts::new(debt.window.min(self.windows.latest(now)), debt.both())
    }

    fn sum(&self, one: WindowCounts<S>, other: WindowCounts<S>) -> WindowCounts<S> {
        let sum = |one: u32, other: u32| one.saturating_add(other).min(self.greatest());
        let window = one.window.max(other.window);
        let ([a, b], [c, d]) = (one.rolled(window).both(), other.rolled(window).both());
        WindowCounts::new(window, [sum(a, c), sum(b, d)])
    }

    #[inline(always)]
    fn judge(&self, debt: WindowCounts<S>, cost: u64, now: Moment) -> Ruling<WindowCounts<S>> {
        // One comparison finds both zero and more than the limit.
        if cost.wrapping_sub(1) >= self.limit() {
            return if cost == 0 { Ruling::Peek { debt } } else { Ruling::Never { debt } };
        }
        if debt.weight(&self.windows, now) + cost <= self.limit() {
            // The cost is not cut, and the sum does not overflow, because it is at most the limit.
            Ruling::Admit { debt: WindowCounts { current: debt.current + narrow(cost), ..debt } }
        } else {
            Ruling::Reject { debt }
        }
    }

    #[inline(always)]
    fn decision(&self, ruling: Ruling<WindowCounts<S>>, cost: u64, now: Moment) -> Decision {
        let (limit, remaining) = (self.limit(), |debt| self.remaining(debt, now));
        match ruling {
            Ruling::Admit { debt } => {
                let left = remaining(debt);
                let decision = Decision::admit(limit, left).with_receipt(Receipt::from_proof(ChargedIn(debt.window)));
                // A fixed window's next unit comes with its reset.
                if left == 0 && S::COUNTS > 1 {
                    return self.with_reset(decision.with_next_span(debt.wait(self, 1, now)), debt, now);
                }
                self.with_reset(decision, debt, now)
            }
            Ruling::Peek { debt } => self.peeked(debt, now),
            Ruling::Reject { debt } => self.with_reset(
                Decision::reject_for(limit, remaining(debt), debt.wait(self, narrow(cost), now)),
                debt,
                now,
            ),
            Ruling::Never { debt } => self.with_reset(Decision::never(limit, remaining(debt)), debt, now),
            // As if the new key had used up the present window. A slot may be free later than that, if windows are
            // staggered.
            Ruling::Full { wait } => {
                let reset = self.until_reset(WindowCounts::new(now.by, [0, self.limit]), now).max(wait);
                Decision::reject_for(limit, 0, nanos(wait)).with_reset_span(nanos(reset))
            }
        }
    }

    #[inline(always)]
    fn is_late(&self, ruling: &Ruling<WindowCounts<S>>, now: Moment) -> bool {
        match ruling {
            Ruling::Reject { debt } => now.is_before(debt.window),
            Ruling::Full { .. } => now.is_before(now.by),
            Ruling::Admit { .. } | Ruling::Peek { .. } | Ruling::Never { .. } => false,
        }
    }

    fn size(&self, debt: WindowCounts<S>) -> u64 {
        debt.both().into_iter().map(u64::from).sum()
    }

    fn nanos_until_paid(&self, debt: WindowCounts<S>, now: Moment) -> u64 {
        if debt.is_nothing() { 0 } else { self.until_reset(debt, now) }
    }

    fn is_paid_by(&self, stamp: u64, epoch: u32) -> bool {
        self.unpacked(stamp).rolled(self.windows.begin(epoch)).is_nothing()
    }

    fn refunded(&self, debt: WindowCounts<S>, cost: u64, charged: u64, _: Moment) -> WindowCounts<S> {
        debt.refunded(cost, charged)
    }
}

impl<S: WindowState> Codec for WindowRule<S> {
    type State = S;

    fn holding(quota: &Quota, staggered: bool, greatest: u64) -> Option<Self> {
        let count_bits = bits_of(greatest.max(quota.limit()));
        let windows = Windows::new(quota, staggered, S::COUNTS * count_bits)?;
        // A word cannot hold a count with more than 32 bits.
        let limit = u32::try_from(quota.limit()).ok()?;
        Some(Self { windows, limit, count_bits, state: PhantomData })
    }

    fn charged(&self, receipt: Receipt, _: &[(Self, Timestamp)]) -> Option<u64> {
        ChargedIn::read(receipt)
    }

    fn most_units(&self, has_inherited: bool) -> u64 {
        if has_inherited { self.greatest().into() } else { self.limit() }
    }

    fn most_of(quota: &Quota) -> u64 {
        quota.limit()
    }

    fn units_of(entry: &QuotaState<S>, _: Timestamp) -> u64 {
        entry.state.parts().1.into_iter().fold(0, u64::max)
    }

    fn with_state(&self, debt: WindowCounts<S>, _: StateType, _: &Quota, _: Timestamp, act: &mut dyn FnMut(&dyn Any)) {
        act(&debt.state());
    }

    fn stamp_of(&self, tag: Tag, entry: QuotaState<S>, at: Timestamp) -> u64 {
        let own = self.local(self.read(at), tag);
        self.stamp(self.stamped(self.stamp(self.clipped(entry.state), own), own), own)
    }

    fn ends(&self, stamp: u64) -> u64 {
        ((stamp >> self.bits()) + u64::from(S::COUNTS)) << self.bits()
    }
}

/// Narrows a number that is at most the limit, or at most a count.
#[allow(clippy::cast_possible_truncation)]
#[inline(always)]
const fn narrow(number: u64) -> u32 {
    number as u32
}

/// Words that are found by their tag are never empty, so that branch is predicted, and the processor does not wait for
/// it.
#[cold]
const fn unused<W: Copy>(none: W) -> W {
    none
}
