use std::num::NonZeroU64;
use std::time::Duration;

use crate::decision::{Decision, Receipt};
use crate::quota::Quota;
use crate::time::{Timestamp, duration_from_nanos};

/// A token bucket whose time runs in ticks: a token takes a whole power of two of them, so that no
/// rate is rounded, and a debt fits into 36 bits with room to spare.
///
/// Clock readings are rounded down to ticks, so an admission after silence may count as up to a tick
/// earlier than it was. A tick is the time in which a full bucket empties, divided by at least 2^32: less
/// than half a nanosecond for 20 at ten per second, a third of a microsecond for 10,000 per hour. Waits that
/// are told are exact all the same: they are the least after which the rounded clock admits.
#[derive(Clone, Copy, Debug)]
pub(super) struct TickBucket {
    burst: u32,
    /// A token is `1 << shift` ticks.
    shift: u32,
    /// Ticks per `period` nanoseconds.
    ticks: NonZeroU64,
    period: u64,
    /// `ticks / period`, as a fraction of `1 << reciprocal_shift`.
    reciprocal: u64,
    reciprocal_shift: u32,
}

/// An instant on a [`TickBucket`]'s clock: whole ticks, and what was rounded off.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tick {
    pub(super) count: u64,
    /// In units of 1/`ticks` nanosecond.
    rest: u64,
}

impl Tick {
    /// The instant at which tick `count` begins.
    pub(super) const fn at(count: u64) -> Self {
        Self { count, rest: 0 }
    }
}

/// What a bucket says to a request, in ticks: small enough for registers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ruling {
    /// It passes, and this is owed afterwards.
    Admit { debt: u64 },
    /// It asks for nothing.
    Peek { debt: u64 },
    /// It has to wait so long.
    Refuse { debt: u64, wait: u64 },
    /// It costs more than ever fits.
    Never { debt: u64 },
}

/// The greatest debt, in bits. A quarter of what 36 bits hold, which leaves three quarters for telling
/// debts from what was paid long ago (see `compact.rs`).
const DEBT_BITS: u32 = 34;

/// Ticks finer than a quarter nanosecond gain nothing: no clock is that fine.
const MAX_TICKS_PER_NANO: u64 = 4;

impl TickBucket {
    /// The bucket of `quota`, unless it is one of more than four units per nanosecond.
    pub(super) fn new(quota: &Quota) -> Option<Self> {
        let (limit, period, burst) = (u64::from(quota.limit()), quota.period_nanos(), quota.max_burst());
        let finest = MAX_TICKS_PER_NANO.checked_mul(period)?;
        // `burst << shift` stays within DEBT_BITS.
        let widest = DEBT_BITS - (u32::BITS - (burst - 1).leading_zeros());
        let fits = |shift: &u32| limit.leading_zeros() > *shift && limit << shift <= finest;
        let shift = (0..=widest).rev().find(fits)?;
        let ticks = limit << shift;
        // In lowest terms, so that products with them stay small.
        let common = gcd(ticks, period);
        let (ticks, period) = (ticks / common, period / common);
        // As many bits of the quotient as fit into 64.
        let reciprocal_shift = 63 + (u64::BITS - period.leading_zeros()) - (u64::BITS - ticks.leading_zeros());
        let reciprocal = (u128::from(ticks) << reciprocal_shift) / u128::from(period);
        let reciprocal = u64::try_from(reciprocal).expect("chosen to fit");
        let ticks = NonZeroU64::new(ticks)?;
        Some(Self { burst, shift, ticks, period, reciprocal, reciprocal_shift })
    }

    /// What `cost` units are in ticks; as much as a full bucket, if they are more.
    pub(super) fn price(&self, cost: u32) -> u64 {
        u64::from(cost.min(self.burst)) << self.shift
    }

    pub(super) fn capacity(&self) -> u64 {
        self.price(self.burst)
    }

    /// Rules on `cost` units for a key that owes `debt`.
    #[inline]
    pub(super) fn judge(&self, debt: u64, cost: u32) -> Ruling {
        let (after, capacity) = (debt + self.price(cost), self.capacity());
        if cost == 0 {
            Ruling::Peek { debt }
        } else if cost > self.burst {
            Ruling::Never { debt }
        } else if after <= capacity {
            Ruling::Admit { debt: after }
        } else {
            Ruling::Refuse { debt, wait: after - capacity }
        }
    }

    /// A ruling in the numbers that clients are told.
    // Inlined, a caller that looks at the outcome alone does not pay for the rest: a fifth of a decision.
    #[inline(always)]
    pub(super) fn decision(&self, ruling: Ruling, now: Tick) -> Decision {
        match ruling {
            Ruling::Admit { debt } => {
                let receipt = Receipt::new((now.count + debt).into());
                self.with_reset(Decision::allow(self.burst, self.remaining(debt)), now, debt).with_receipt(receipt)
            }
            Ruling::Peek { debt } => self.with_reset(Decision::allow(self.burst, self.remaining(debt)), now, debt),
            Ruling::Refuse { debt, wait } => {
                let wait = Some(self.time_until(now, wait));
                self.with_reset(Decision::deny(self.burst, self.remaining(debt), wait), now, debt)
            }
            Ruling::Never { debt } => {
                self.with_reset(Decision::deny(self.burst, self.remaining(debt), None), now, debt)
            }
        }
    }

    /// The tokens that are free with this debt.
    #[inline]
    fn remaining(&self, debt: u64) -> u32 {
        let free = self.capacity().saturating_sub(debt) >> self.shift;
        u32::try_from(free).unwrap_or(self.burst)
    }

    /// `nanos × ticks / period`, rounded down, without dividing.
    #[inline]
    pub(super) fn tick(&self, now: Timestamp) -> Tick {
        let nanos = now.as_nanos();
        let estimate = (u128::from(nanos) * u128::from(self.reciprocal)) >> self.reciprocal_shift;
        // A clock that runs for longer than that (146 years at a quarter nanosecond) stands still there.
        let Ok(mut count) = u64::try_from(estimate) else { return Tick::at(u64::MAX >> 1) };
        // The reciprocal was rounded down, so the estimate is low by very little, and what is left is
        // small: it may be computed modulo 2^64.
        let mut rest = nanos.wrapping_mul(self.ticks.get()).wrapping_sub(count.wrapping_mul(self.period));
        while rest >= self.period {
            count += 1;
            rest -= self.period;
        }
        if count > u64::MAX >> 1 { Tick::at(u64::MAX >> 1) } else { Tick { count, rest } }
    }

    /// The least time after which `ticks` more than at `now` have passed.
    #[inline]
    fn time_until(&self, now: Tick, ticks: u64) -> Duration {
        match self.owed(now, ticks) {
            Ok(owed) => Duration::from_nanos(owed.div_ceil(self.ticks.get())),
            Err(owed) => duration_from_nanos(owed.div_ceil(u128::from(self.ticks.get()))),
        }
    }

    /// Tells with a decision when what is owed is paid.
    #[inline]
    fn with_reset(&self, decision: Decision, now: Tick, debt: u64) -> Decision {
        if debt == 0 {
            return decision;
        }
        match self.owed(now, debt) {
            Ok(owed) => decision.with_reset_quotient(owed, self.ticks),
            Err(_) => decision.with_reset_after(self.time_until(now, debt)),
        }
    }

    /// Nanoseconds until `ticks` more than at `now` have passed, in units of 1/`ticks`.
    #[inline]
    fn owed(&self, now: Tick, ticks: u64) -> Result<u64, u128> {
        let owed = (u128::from(ticks) * u128::from(self.period)).saturating_sub(u128::from(now.rest));
        u64::try_from(owed).map_err(|_| owed)
    }
}

const fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_exact_quotients_and_waits_their_inverse() {
        let odd = Quota::new(7, Duration::from_nanos(1_000_003)).unwrap();
        let quotas = [
            Quota::per_second(1),
            Quota::per_second(3),
            Quota::per_second(10).burst(20),
            Quota::per_second(10_000_000),
            Quota::per_second(4_000_000_000),
            Quota::per_minute(7).burst(u32::MAX),
            Quota::per_day(1),
            Quota::per_day(1).burst(u32::MAX),
            odd,
            Quota::new(1, Duration::from_secs(100 * 365 * 86_400)).unwrap(),
        ];
        for quota in quotas {
            let bucket = TickBucket::new(&quota).unwrap();
            assert!(bucket.capacity() <= 1 << DEBT_BITS, "{quota:?}");
            let mut seed = u64::from(quota.limit());
            let mut random = || {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                seed ^ seed >> 29
            };
            for _ in 0..20_000 {
                let nanos = random() >> (random() % 60 + 4);
                let tick = bucket.tick(Timestamp::from_nanos(nanos));
                let exact = u128::from(nanos) * u128::from(bucket.ticks.get());
                let (count, rest) = (exact / u128::from(bucket.period), exact % u128::from(bucket.period));
                assert_eq!((u128::from(tick.count), u128::from(tick.rest)), (count, rest), "{quota:?} at {nanos}");

                let ticks = 1 + random() % bucket.capacity();
                let wait = bucket.time_until(tick, ticks).as_nanos();
                let passed = |wait: u128| {
                    let then = u128::from(nanos) + wait;
                    then * u128::from(bucket.ticks.get()) / u128::from(bucket.period) - count
                };
                assert!(passed(wait) >= u128::from(ticks), "{quota:?} at {nanos}: {ticks} ticks in {wait} ns");
                assert!(wait == 0 || passed(wait - 1) < u128::from(ticks), "{quota:?} at {nanos}");
            }
        }
        assert!(TickBucket::new(&Quota::new(u32::MAX, Duration::from_nanos(1)).unwrap()).is_none());
    }
}
