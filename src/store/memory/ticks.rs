use std::num::NonZeroU64;

use crate::decision::{Decision, Receipt, Span};
use crate::quota::Quota;
use crate::time::{Timestamp, duration_from_nanos};

/// A token bucket whose time runs in ticks: a token takes a whole power of two of them, so that no
/// rate is rounded, and a debt fits into 36 bits with room to spare.
///
/// Clock readings are rounded down to ticks, so an admission after silence may count as up to a tick
/// earlier than it was. A tick is the time in which a full bucket empties, divided by at least 2^30, or at most
/// four nanoseconds: three for 20 at ten per second, three microseconds for 10,000 per hour.
/// Waits that are told are exact all the same: they are the least after which the rounded clock admits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TickBucket {
    /// Of the table whose charges it writes receipts for.
    number: u64,
    burst: u32,
    /// A token is `1 << shift` ticks.
    shift: u32,
    /// The greatest debt: `burst` tokens.
    capacity: u64,
    /// Ticks per `period` nanoseconds.
    ticks: NonZeroU64,
    period: u64,
    /// `ticks / period`, in units of 1/2^62, rounded down.
    reciprocal: u64,
}

const RECIPROCAL_BITS: u32 = 62;

/// An instant on a [`TickBucket`]'s clock: whole ticks, and what was rounded off.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tick {
    pub(super) count: u64,
    /// In units of 1/`ticks` nanosecond.
    rest: u64,
    /// By how many ticks the clock that was read is behind `count`, if it was set back.
    behind: u64,
}

impl Tick {
    /// The instant at which tick `count` begins.
    #[cfg(test)]
    pub(super) const fn at(count: u64) -> Self {
        Self { count, rest: 0, behind: 0 }
    }

    /// A later tick in place of this one: waits are counted from this one all the same.
    pub(super) const fn moved_to(self, count: u64) -> Self {
        Self { count, rest: self.rest, behind: self.behind + (count - self.count) }
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

/// How ticks of one bucket become ticks of another: as many tokens are owed, rounded up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exchange {
    /// By so many powers of two they are more, or fewer.
    gain: u32,
    loss: u32,
    /// Whole ticks of a debt that were paid when its clock was read between two ticks.
    whole: u64,
    lead: u64,
}

impl Exchange {
    pub(super) fn debt(&self, debt: u64) -> u64 {
        let owed = (u128::from(debt) << self.gain).div_ceil(1 << self.loss).saturating_sub(self.whole.into());
        u64::try_from(owed).unwrap_or(u64::MAX).min(1 << DEBT_BITS)
    }

    /// How long ago, in nanoseconds, the other's clock would have begun the tick that it was in: of what that had passed of it less
    /// [`whole`](Self::whole) ticks, rounded down.
    pub(super) const fn lead(&self) -> u64 {
        self.lead
    }
}

/// The greatest debt, in bits. A quarter of what 36 bits hold, which leaves three quarters for telling
/// debts from what was paid long ago (see `compact.rs`).
pub(super) const DEBT_BITS: u32 = 34;

/// Ticks as fine as a quarter nanosecond gain nothing: no clock is that fine. And the reciprocal fits.
const MAX_TICKS_PER_NANO: u64 = 4;

/// A clock that runs for longer than this, 73 years, stands still: counts of ticks stay below 2^63. (So of a
/// quota of one in a hundred years, one process sees one.)
const MAX_NANOS: u64 = 1 << 61;

impl TickBucket {
    /// The bucket of `quota`, unless it is one of four units per nanosecond or more.
    pub(super) fn new(quota: &Quota) -> Option<Self> {
        // The shortest ticks in which the whole burst stays within DEBT_BITS.
        (0..=DEBT_BITS).rev().find_map(|shift| Self::with_shift(quota, shift))
    }

    /// The bucket of `quota`, if need be in longer ticks, so that a debt of so many tokens can be told as well: as long as a
    /// 2^16th of a token, or a microsecond. Of a greater debt, the rest is forgiven.
    pub(super) fn holding(quota: &Quota, tokens: u64) -> Option<Self> {
        let own = Self::new(quota)?;
        let is_fine = |shift: &u32| u64::from(quota.limit()) << shift >= quota.period_nanos() / 1_000;
        let least = (0..16).find(is_fine).unwrap_or(16);
        let bits = u64::BITS - tokens.saturating_sub(1).leading_zeros();
        Self::with_shift(quota, DEBT_BITS.saturating_sub(bits).max(least).min(own.shift))
    }

    /// That writes receipts for the table of this number.
    pub(super) const fn numbered(mut self, number: u64) -> Self {
        self.number = number;
        self
    }

    /// How debts of another bucket become debts of this one, `at` an instant of the other's clock.
    pub(super) fn exchange(&self, from: &Self, at: Tick) -> Exchange {
        let (gain, loss) = (self.shift.saturating_sub(from.shift), from.shift.saturating_sub(self.shift));
        // What has passed of the tick at `at`, in these ticks: whole ones, and the rest of one.
        let passed = (u128::from(at.rest) << gain) >> loss;
        let whole = u64::try_from(passed / u128::from(from.period)).expect("less than 2^34 ticks");
        let rest = passed % u128::from(from.period) * u128::from(self.period);
        let lead = rest / (u128::from(from.period) * u128::from(self.ticks.get()));
        Exchange { gain, loss, whole, lead: u64::try_from(lead).unwrap_or(0) }
    }

    pub(super) const fn shift(&self) -> u32 {
        self.shift
    }

    /// The bucket of `quota` whose tokens are `1 << shift` ticks, if these are long enough.
    fn with_shift(quota: &Quota, shift: u32) -> Option<Self> {
        let (limit, period, burst) = (u64::from(quota.limit()), quota.period_nanos(), quota.max_burst());
        let capacity = u64::from(burst) << shift;
        let finest = MAX_TICKS_PER_NANO.checked_mul(period)?;
        if capacity > 1 << DEBT_BITS || limit.leading_zeros() <= shift || limit << shift >= finest {
            return None;
        }
        let ticks = limit << shift;
        // In lowest terms, so that products with them stay small.
        let common = gcd(ticks, period);
        let (ticks, period) = (ticks / common, period / common);
        let reciprocal = (u128::from(ticks) << RECIPROCAL_BITS) / u128::from(period);
        let reciprocal = u64::try_from(reciprocal).expect("less than four ticks per nanosecond");
        let ticks = NonZeroU64::new(ticks)?;
        Some(Self { number: 0, burst, shift, capacity, ticks, period, reciprocal })
    }

    /// Whether this is the bucket of `quota`.
    pub(super) fn is_of(&self, quota: &Quota) -> bool {
        Self::with_shift(quota, self.shift).is_some_and(|bucket| bucket.numbered(self.number) == *self)
    }

    /// When the clock of a table begins that is made at `now`: half of the time before for which it runs, 36 years, so that it
    /// may be set back; and whole ticks, so that a tick begins at `now`.
    pub(super) fn beginning(&self, now: Timestamp) -> Timestamp {
        let head_start = now.as_nanos().min(MAX_NANOS / 2);
        Timestamp::from_nanos(now.as_nanos() - (head_start - head_start % self.period))
    }

    /// The number of the table that wrote a receipt, and the tick at which its charge is paid.
    #[allow(clippy::cast_possible_truncation)] // Numbers are counted from 1, and the mark of resets is above.
    pub(super) const fn read(receipt: Receipt) -> (u64, u64) {
        ((receipt.value() >> u64::BITS) as u64, receipt.value() as u64)
    }

    /// What `cost` units are in ticks; as much as a full bucket, if they are more.
    #[inline]
    pub(super) fn price(&self, cost: u32) -> u64 {
        u64::from(cost.min(self.burst)) << self.shift
    }

    /// What `cost` units that were charged are in ticks, maybe under a greater burst than this.
    pub(super) fn worth(&self, cost: u32) -> u64 {
        u64::try_from(u128::from(cost) << self.shift).unwrap_or(u64::MAX)
    }

    pub(super) const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Rules on `cost` units for a key that owes `debt`.
    #[inline(always)]
    pub(super) fn judge(&self, debt: u64, cost: u32) -> Ruling {
        let after = debt + self.price(cost);
        // Neither zero nor more than fits, in one comparison.
        if cost.wrapping_sub(1) >= self.burst {
            return if cost == 0 { Ruling::Peek { debt } } else { Ruling::Never { debt } };
        }
        match after.checked_sub(self.capacity) {
            None | Some(0) => Ruling::Admit { debt: after },
            Some(wait) => Ruling::Refuse { debt, wait },
        }
    }

    /// A ruling in the numbers that clients are told.
    // Inlined, a caller that looks at the outcome alone does not pay for the rest: a fifth of a decision.
    #[inline(always)]
    pub(super) fn decision(&self, ruling: Ruling, now: Tick) -> Decision {
        match ruling {
            Ruling::Admit { debt } => {
                let receipt = Receipt::new(u128::from(self.number) << u64::BITS | u128::from(now.count + debt));
                self.with_reset(Decision::allow(self.burst, self.remaining(debt)), now, debt).with_receipt(receipt)
            }
            Ruling::Peek { debt } => self.with_reset(Decision::allow(self.burst, self.remaining(debt)), now, debt),
            Ruling::Refuse { debt, wait } => {
                let decision = Decision::refuse(self.burst, self.remaining(debt), self.span(now, wait));
                self.with_reset(decision, now, debt)
            }
            Ruling::Never { debt } => {
                self.with_reset(Decision::deny(self.burst, self.remaining(debt), None), now, debt)
            }
        }
    }

    /// The tokens that are free with this debt.
    #[inline]
    fn remaining(&self, debt: u64) -> u32 {
        let free = self.capacity.saturating_sub(debt) >> self.shift;
        u32::try_from(free).unwrap_or(self.burst)
    }

    /// `nanos × ticks / period`, rounded down, without dividing.
    #[inline(always)]
    pub(super) fn tick(&self, now: Timestamp) -> Tick {
        let nanos = now.as_nanos();
        if nanos > MAX_NANOS {
            return self.last();
        }
        #[allow(clippy::cast_possible_truncation)] // It is less than 2^63.
        let count = ((u128::from(nanos) * u128::from(self.reciprocal)) >> RECIPROCAL_BITS) as u64;
        // What is left is less than two periods, of which none exceeds 2^62: it may be computed modulo 2^64.
        let rest = nanos.wrapping_mul(self.ticks.get()).wrapping_sub(count.wrapping_mul(self.period));
        let tick = Tick { count, rest, behind: 0 };
        if rest < self.period { tick } else { self.next(tick) }
    }

    #[cold]
    fn last(&self) -> Tick {
        self.tick(Timestamp::from_nanos(MAX_NANOS))
    }

    /// The reciprocal is rounded down, by less than one, and `nanos` of it over 2^62 are less than a half: so an
    /// estimate may be low by one, and no more. That is seldom the case: a branch that is foreseen is not
    /// waited for.
    #[cold]
    const fn next(&self, low: Tick) -> Tick {
        Tick { count: low.count + 1, rest: low.rest - self.period, behind: 0 }
    }

    /// The least time after which `ticks` more than at `now` have passed.
    #[inline(always)]
    fn span(&self, now: Tick, ticks: u64) -> Span {
        let ticks = ticks + now.behind;
        match ticks.checked_mul(self.period) {
            Some(owed) => Span::Quotient { owed: owed.saturating_sub(now.rest), per: self.ticks },
            None => self.long_span(now, ticks),
        }
    }

    #[cold]
    fn long_span(&self, now: Tick, ticks: u64) -> Span {
        let owed = u128::from(ticks) * u128::from(self.period) - u128::from(now.rest);
        Span::Whole(duration_from_nanos(owed.div_ceil(u128::from(self.ticks.get()))))
    }

    /// Tells with a decision when what is owed is paid.
    #[inline(always)]
    fn with_reset(&self, decision: Decision, now: Tick, debt: u64) -> Decision {
        if debt == 0 { decision } else { decision.with_reset_span(self.span(now, debt)) }
    }
}

const fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn ticks_are_exact_quotients_and_waits_their_inverse() {
        let odd = Quota::new(7, Duration::from_nanos(1_000_003)).unwrap();
        let quotas = [
            Quota::per_second(1),
            Quota::per_second(3),
            Quota::per_second(10).burst(20),
            Quota::per_second(10_000_000),
            Quota::per_second(3_999_999_999),
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
                let nanos = random() >> (random() % 60 + 3);
                let tick = bucket.tick(Timestamp::from_nanos(nanos));
                let exact = u128::from(nanos) * u128::from(bucket.ticks.get());
                let (count, rest) = (exact / u128::from(bucket.period), exact % u128::from(bucket.period));
                assert_eq!((u128::from(tick.count), u128::from(tick.rest)), (count, rest), "{quota:?} at {nanos}");

                let ticks = 1 + random() % bucket.capacity();
                let wait = bucket.span(tick, ticks).ceil().as_nanos();
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

    /// Periods that share no factor with the ticks, at the instants where a tick begins, and at the clock's end.
    #[test]
    fn ticks_are_exact_where_they_begin_and_where_the_clock_ends() {
        let of = |limit, nanos, burst| Quota::new(limit, Duration::from_nanos(nanos)).unwrap().burst(burst);
        let century = 100 * 366 * 86_400 * 1_000_000_000;
        let quotas = [
            of(1, century - 1, 1),
            of(3, century - 1, u32::MAX),
            of(u32::MAX, century - 1, 1),
            of(u32::MAX, century, u32::MAX),
            of(1, 1, 1),
            of(3, 1, u32::MAX),
            of(7, 2, 3),
            of(u32::MAX, (1 << 30) + 1, 1 << 20),
            of(1 << 31, 999_999_937, 1),
        ];
        for quota in quotas {
            let bucket = TickBucket::new(&quota).unwrap();
            let (ticks, period) = (u128::from(bucket.ticks.get()), u128::from(bucket.period));
            assert!(ticks < 4 * period && period < 1 << 62, "{quota:?}");
            let last = u128::from(MAX_NANOS) * ticks / period;
            for part in 0..1_000 {
                let begins = (last * part / 999 * period).div_ceil(ticks);
                for nanos in [begins.saturating_sub(1), begins, begins + 1] {
                    let exact = nanos.min(u128::from(MAX_NANOS)) * ticks;
                    let tick = bucket.tick(Timestamp::from_nanos(u64::try_from(nanos).unwrap()));
                    assert_eq!(u128::from(tick.count), exact / period, "{quota:?} at {nanos}");
                    assert_eq!(u128::from(tick.rest), exact % period, "{quota:?} at {nanos}");
                    assert!(tick.count < 1 << 63);
                }
            }
            assert_eq!(bucket.tick(Timestamp::MAX).count, bucket.last().count);
        }
    }

    /// No debt that a word can tell of, and no cost, makes a ruling overflow or free more than there is.
    #[test]
    fn rulings_at_the_edges() {
        for burst in [1, 2, 3, 20, u32::MAX - 1, u32::MAX] {
            let bucket = TickBucket::new(&Quota::per_hour(7).burst(burst)).unwrap();
            let full = bucket.capacity();
            for debt in [0, 1, full - 1, full, full + 1, 7 << 32] {
                for cost in [0, 1, 2, burst - 1, burst, burst.saturating_add(1), u32::MAX] {
                    let price = u128::from(cost) << bucket.shift;
                    let after = u128::from(debt) + price;
                    let ruling = bucket.judge(debt, cost);
                    let is_right = match ruling {
                        Ruling::Peek { debt: owed } => cost == 0 && owed == debt,
                        Ruling::Never { debt: owed } => cost > burst && owed == debt,
                        Ruling::Admit { debt: owed } => u128::from(owed) == after && after <= u128::from(full),
                        Ruling::Refuse { debt: owed, wait } => {
                            owed == debt && cost <= burst && u128::from(full) + u128::from(wait) == after && wait > 0
                        }
                    };
                    assert!(is_right, "burst {burst}, debt {debt}, cost {cost}: {ruling:?}");
                    let decision = bucket.decision(ruling, Tick::at(5));
                    assert!(decision.remaining() <= decision.limit());
                }
            }
        }
    }
}
