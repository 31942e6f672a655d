//! The rule for buckets: time runs in ticks, and a token is 2^n ticks.

mod clock;
mod conversion;
#[cfg(all(test, not(sluice_loom)))]
mod tests;

pub(in crate::store::memory) use self::clock::Tick;
use self::clock::TickClock;
pub(in crate::store::memory) use self::conversion::Ticks;

use std::time::Duration;

#[cfg(doc)]
use super::codec::Codec;
use super::rule::{Rule, Ruling};
use super::word::{Tag, Word};
use crate::values::time::{Timestamp, nanos_of};
use crate::values::{Decision, Issuer, Proof, Quota, Receipt};

/// A token bucket whose time runs in ticks: a token takes 2^n ticks, so that no rate is rounded, and a debt fits into
/// 36 bits with room to spare.
///
/// Clock readings are rounded down to ticks, so an admission after silence may count as up to a tick earlier than it
/// was. A tick is at most a 2^33rd of the time in which a full bucket empties, or half a nanosecond: 0.37 nanoseconds
/// for 20 at ten per second, 0.34 microseconds for 10,000 per hour. (After a live change it may be longer, so that
/// greater debts fit, as [`holding`](Codec::holding) explains.) Advertised waits are exact all the same: they are the
/// shortest after which the rounded clock admits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::store::memory) struct TickBucket {
    /// The number of the table whose charges it writes receipts for.
    number: u64,
    burst: u64,
    /// A token is `1 << shift` ticks.
    shift: u32,
    /// The greatest debt: `burst` tokens.
    capacity: u64,
    clock: TickClock,
}

/// When a charge is paid off, on receipts from the table with this number.
pub(in crate::store::memory) struct PaidAt {
    pub(in crate::store::memory) table: u64,
    pub(in crate::store::memory) tick: u64,
}

impl Proof for PaidAt {
    const ISSUER: Issuer = Issuer::MemoryBucket;

    #[inline(always)]
    fn into_value(self) -> u128 {
        u128::from(self.table) << u64::BITS | u128::from(self.tick)
    }

    #[allow(clippy::cast_possible_truncation)] // One is the upper half, and one is the lower.
    fn from_value(value: u128) -> Self {
        Self { table: (value >> u64::BITS) as u64, tick: value as u64 }
    }
}

/// The greatest debt, in bits. A quarter of the range that 36 bits have, so that three quarters are left to distinguish
/// debts from words that were paid long ago (see `table/mod.rs`).
const DEBT_BITS: u32 = 34;

/// The greatest limit, and the greatest burst. The proofs in `verify/proofs/ticks.py` bound the arithmetic for them.
const MOST_UNITS: u64 = u32::MAX as u64;

/// The number of ticks in an epoch, in bits: times repeat every sixteen epochs in a word.
pub(super) const EPOCH_BITS: u32 = 32;

/// The farthest that a word's time is taken to be ahead. A debt is at most four epochs long, and judged from up to two
/// epochs before it was charged (its page's [earliest](super::epoch::Epochs::earliest) instant): six, and one to spare.
/// A time that looks farther ahead is behind, by up to nine epochs; the table clears every word before it is older.
pub(super) const FARTHEST_AHEAD: u64 = 7 << EPOCH_BITS;

impl TickBucket {
    /// Makes the bucket for `quota`, unless its limit or its burst has more than 32 bits, or its rate is four units per
    /// nanosecond or more.
    pub(in crate::store::memory) fn new(quota: &Quota) -> Option<Self> {
        if quota.limit().max(quota.max_burst()) > MOST_UNITS {
            return None;
        }
        // The shortest ticks in which the whole burst stays within DEBT_BITS.
        (0..=DEBT_BITS).rev().find_map(|shift| Self::with_shift(quota, shift))
    }

    /// Makes the bucket for `quota` whose tokens are `1 << shift` ticks, if these are long enough.
    fn with_shift(quota: &Quota, shift: u32) -> Option<Self> {
        let burst = quota.max_burst();
        let capacity = burst << shift;
        if capacity > 1 << DEBT_BITS {
            return None;
        }
        let clock = TickClock::new(quota.limit(), shift, quota.period_nanos())?;
        Some(Self { number: 0, burst, shift, capacity, clock })
    }

    /// Returns this bucket with a [clock that runs](TickClock::started_before) at `now`.
    pub(in crate::store::memory) fn started_before(self, now: Timestamp) -> Self {
        Self { clock: self.clock.started_before(now), ..self }
    }

    /// Returns a debt in ticks, rounded up, and cut to the greatest that a word can hold. `price` is a token in the
    /// units that `debt` counts.
    pub(in crate::store::memory) fn ticks_of(&self, debt: u128, price: u64) -> u64 {
        let tokens = debt / u128::from(price);
        let rest = debt % u128::from(price);
        // The rest is less than the price, which is below 2^62.
        let ticks = (tokens.min(1 << DEBT_BITS) << self.shift) + (rest << self.shift).div_ceil(price.into());
        u64::try_from(ticks).unwrap_or(u64::MAX).min(1 << DEBT_BITS)
    }

    /// Returns `cost` units in ticks, or a full bucket if they are more.
    #[inline]
    fn price(&self, cost: u64) -> u64 {
        cost.min(self.burst) << self.shift
    }

    /// Returns `cost` units that were charged in ticks; they may have been charged under a greater burst than this one.
    pub(super) fn worth(&self, cost: u64) -> u64 {
        u64::try_from(u128::from(cost) << self.shift).unwrap_or(u64::MAX)
    }

    #[cfg(all(test, not(sluice_loom)))]
    pub(in crate::store::memory) const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns the tokens that are free with this debt.
    #[inline]
    fn remaining(&self, debt: u64) -> u64 {
        self.capacity.saturating_sub(debt) >> self.shift
    }

    /// Returns the decision on a request with cost 0.
    #[cold]
    #[inline(never)]
    fn peeked(&self, debt: u64, now: Tick) -> Decision {
        let left = self.remaining(debt);
        let decision = self.with_reset(Decision::admit(self.burst, left), now, debt);
        if left > 0 {
            return decision;
        }
        decision.with_next_span(self.clock.span(now, debt + self.price(1) - self.capacity))
    }

    /// Adds the time until the debt is paid to a decision.
    #[inline(always)]
    fn with_reset(&self, decision: Decision, now: Tick, debt: u64) -> Decision {
        if debt == 0 { decision } else { decision.with_reset_span(self.clock.span(now, debt)) }
    }
}

impl Rule for TickBucket {
    type Now = Tick;

    /// In ticks.
    type Debt = u64;

    #[inline(always)]
    fn read(&self, now: Timestamp) -> Tick {
        self.clock.read(now)
    }

    #[inline(always)]
    fn local(&self, now: Tick, _: Tag) -> Tick {
        now
    }

    #[allow(clippy::cast_possible_truncation)] // Counts are below 2^63.
    #[inline(always)]
    fn epoch(&self, now: Tick) -> u32 {
        (now.count >> EPOCH_BITS) as u32
    }

    /// The later time counts, because a clock that is set back must never have a key judged at a later time than
    /// before.
    #[inline(always)]
    fn clamp(&self, now: Tick, epoch: u32) -> Tick {
        let earliest = u64::from(epoch) << EPOCH_BITS;
        if now.count >= earliest { now } else { now.moved_to(earliest) }
    }

    fn epoch_start(&self, epoch: u32) -> Tick {
        Tick { count: u64::from(epoch) << EPOCH_BITS, rest: 0, behind: 0 }
    }

    /// Returns the ticks from `now` until the debt is paid, zero if it is.
    ///
    /// The word's time is modulo 2^36, so a time that is farther ahead than [`FARTHEST_AHEAD`] is taken to be behind.
    #[inline(always)]
    fn owed(&self, word: Word, now: Tick) -> u64 {
        if word.is_empty() {
            return nothing();
        }
        let distance = word.ahead_of(now.count);
        let is_paid = distance > FARTHEST_AHEAD;
        if is_paid { 0 } else { distance }
    }

    #[inline(always)]
    fn nothing(&self, _: Tick) -> u64 {
        0
    }

    /// Returns when the debt is paid.
    #[inline(always)]
    fn stamp(&self, debt: u64, now: Tick) -> u64 {
        now.count + debt
    }

    fn stamped(&self, stamp: u64, now: Tick) -> u64 {
        stamp.saturating_sub(now.count).min(1 << DEBT_BITS)
    }

    fn sum(&self, one: u64, other: u64) -> u64 {
        (one + other).min(1 << DEBT_BITS)
    }

    #[inline(always)]
    fn judge(&self, debt: u64, cost: u64, _: Tick) -> Ruling<u64> {
        let after = debt + self.price(cost);
        // One comparison finds both zero and more than ever fits.
        if cost.wrapping_sub(1) >= self.burst {
            return if cost == 0 { Ruling::Peek { debt } } else { Ruling::Never { debt } };
        }
        if after <= self.capacity { Ruling::Admit { debt: after } } else { Ruling::Reject { debt } }
    }

    // Inlined, so that a caller that looks at the outcome alone does not pay for the rest, a fifth of a decision.
    #[inline(always)]
    fn decision(&self, ruling: Ruling<u64>, cost: u64, now: Tick) -> Decision {
        match ruling {
            Ruling::Admit { debt } => {
                let receipt = Receipt::from_proof(PaidAt { table: self.number, tick: now.count + debt });
                self.with_reset(Decision::admit(self.burst, self.remaining(debt)), now, debt).with_receipt(receipt)
            }
            Ruling::Peek { debt } => self.peeked(debt, now),
            Ruling::Reject { debt } => {
                let wait = self.clock.span(now, debt + self.price(cost) - self.capacity);
                self.with_reset(Decision::reject_for(self.burst, self.remaining(debt), wait), now, debt)
            }
            Ruling::Never { debt } => self.with_reset(Decision::never(self.burst, self.remaining(debt)), now, debt),
            // As if the new key owed a full bucket.
            Ruling::Full { wait } => {
                let decision = Decision::reject(self.burst, 0, Some(Duration::from_nanos(wait)));
                self.with_reset(decision, now, self.capacity)
            }
        }
    }

    #[inline(always)]
    fn is_late(&self, ruling: &Ruling<u64>, now: Tick) -> bool {
        now.behind > 0 && matches!(ruling, Ruling::Reject { .. } | Ruling::Full { .. })
    }

    fn size(&self, debt: u64) -> u64 {
        debt
    }

    fn nanos_until_paid(&self, debt: u64, now: Tick) -> u64 {
        if debt == 0 { 0 } else { nanos_of(self.clock.span(now, debt).ceil()) }
    }

    fn is_paid_by(&self, stamp: u64, epoch: u32) -> bool {
        stamp <= self.epoch_start(epoch).count
    }

    /// Subtracts at most the part of the charge that is still owed, as [`Gcra`](crate::algorithm::gcra::Gcra) does.
    fn refunded(&self, debt: u64, cost: u64, paid_at: u64, now: Tick) -> u64 {
        debt - paid_at.saturating_sub(now.count).min(self.worth(cost)).min(debt)
    }
}

/// Words that are found by their tag are never empty, so that branch is predicted, and the processor does not wait for
/// it.
#[cold]
const fn nothing() -> u64 {
    0
}
