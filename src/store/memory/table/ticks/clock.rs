//! The tick clock: readings from a store's clock in ticks, and spans of ticks in nanoseconds, without a division.

use std::num::NonZeroU64;

use crate::values::time::{Timestamp, duration_from_nanos};
use crate::values::{DeferredTime, gcd};

/// A reciprocal's bits behind the point. Two bits are left for a rate of [less than four](MAX_TICKS_PER_NANO) ticks per
/// nanosecond.
const RECIPROCAL_BITS: u32 = 62;

/// Finer ticks than a quarter nanosecond would gain nothing, because no clock is that fine. With this rate the
/// reciprocal fits.
const MAX_TICKS_PER_NANO: u64 = 4;

/// A clock that runs for longer than this, 73 years, stands still, so that tick counts stay below 2^63.
pub(super) const MAX_NANOS: u64 = 1 << 61;

/// A clock that counts `ticks` ticks in `period` nanoseconds, in lowest terms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TickClock {
    /// Ticks per `period` nanoseconds.
    pub(super) ticks: NonZeroU64,
    pub(super) period: u64,
    /// `ticks / period`, in units of 1/2^62, rounded down.
    reciprocal: u64,
    /// When this clock shows zero.
    started: Timestamp,
}

/// An instant on a [`TickClock`]: whole ticks, and the rest that was rounded off.
#[derive(Clone, Copy, Debug)]
pub(in crate::store::memory) struct Tick {
    pub(in crate::store::memory) count: u64,
    /// Counted in 1/`ticks` of a nanosecond.
    pub(super) rest: u64,
    /// By how many ticks the clock that was read is behind `count`, if it was set back.
    pub(super) behind: u64,
}

impl Tick {
    /// Returns the instant at which tick `count` begins.
    #[cfg(test)]
    pub(in crate::store::memory) const fn from_count(count: u64) -> Self {
        Self { count, rest: 0, behind: 0 }
    }

    /// Returns a later tick in place of this one, from which waits are counted all the same.
    pub(super) const fn moved_to(self, count: u64) -> Self {
        Self { count, rest: self.rest, behind: self.behind + (count - self.count) }
    }
}

impl TickClock {
    /// Makes a clock with `limit << shift` ticks per `period` nanoseconds, unless its ticks are too short.
    pub(super) fn new(limit: u64, shift: u32, period: u64) -> Option<Self> {
        let finest = MAX_TICKS_PER_NANO.checked_mul(period)?;
        if limit.leading_zeros() <= shift || limit << shift >= finest {
            return None;
        }
        let ticks = limit << shift;
        // In lowest terms, so that products with them stay small.
        let common = gcd(ticks, period);
        let ticks = ticks / common;
        let period = period / common;
        let reciprocal = (u128::from(ticks) << RECIPROCAL_BITS) / u128::from(period);
        let reciprocal = u64::try_from(reciprocal).expect("less than four ticks per nanosecond");
        Some(Self { ticks: NonZeroU64::new(ticks)?, period, reciprocal, started: Timestamp::ZERO })
    }

    /// Returns this clock, started earlier than `now` by half the time for which it runs, 36 years, so that it may be
    /// set back. In whole ticks, so that a tick begins at `now`.
    pub(super) fn started_before(self, now: Timestamp) -> Self {
        let head_start = now.as_nanos().min(MAX_NANOS / 2);
        let started = now.as_nanos() - (head_start - head_start % self.period);
        Self { started: Timestamp::from_nanos(started), ..self }
    }

    /// Returns this clock, started `lead` nanoseconds earlier.
    pub(super) fn started_earlier(self, lead: u64) -> Self {
        Self { started: Timestamp::from_nanos(self.started.as_nanos().saturating_sub(lead)), ..self }
    }

    /// Counts from the time when the clock began, so that counts are small. If the clock is set back beyond that, it
    /// stands still there.
    #[inline(always)]
    pub(super) fn read(&self, now: Timestamp) -> Tick {
        // Not saturating, because the processor does not wait for a predicted branch.
        self.tick(match now.as_nanos().checked_sub(self.started.as_nanos()) {
            Some(nanos) => Timestamp::from_nanos(nanos),
            None => before_the_beginning(),
        })
    }

    /// Returns `nanos × ticks / period`, rounded down, without dividing.
    #[inline(always)]
    pub(super) fn tick(&self, now: Timestamp) -> Tick {
        let nanos = if now.as_nanos() > MAX_NANOS { standing_still() } else { now.as_nanos() };
        #[allow(clippy::cast_possible_truncation)] // It is less than 2^63.
        let count = ((u128::from(nanos) * u128::from(self.reciprocal)) >> RECIPROCAL_BITS) as u64;
        // The rest is less than two periods, and a period is at most 2^62. So it may be computed modulo 2^64.
        let rest = nanos.wrapping_mul(self.ticks.get()).wrapping_sub(count.wrapping_mul(self.period));
        let (count, rest) = if rest < self.period { (count, rest) } else { self.next(count, rest) };
        Tick { count, rest, behind: 0 }
    }

    /// Corrects an estimate that is low by one. The reciprocal is rounded down by less than one, and `nanos` of it over
    /// 2^62 are less than a half, so an estimate is never lower by more. It rarely is, so the branch is predicted, and
    /// the processor does not wait for it.
    #[cold]
    const fn next(&self, count: u64, rest: u64) -> (u64, u64) {
        (count + 1, rest - self.period)
    }

    /// Returns the least time after which `ticks` more than at `now` have passed.
    #[inline(always)]
    pub(super) fn span(&self, now: Tick, ticks: u64) -> DeferredTime {
        let ticks = ticks + now.behind;
        match ticks.checked_mul(self.period) {
            Some(owed) => DeferredTime::Quotient { owed: owed.saturating_sub(now.rest), per: self.ticks },
            None => self.long_span(now, ticks),
        }
    }

    #[cold]
    fn long_span(&self, now: Tick, ticks: u64) -> DeferredTime {
        let owed = u128::from(ticks) * u128::from(self.period) - u128::from(now.rest);
        DeferredTime::Whole(duration_from_nanos(owed.div_ceil(u128::from(self.ticks.get()))))
    }
}

#[cold]
const fn standing_still() -> u64 {
    MAX_NANOS
}

#[cold]
const fn before_the_beginning() -> Timestamp {
    Timestamp::ZERO
}
