use std::num::NonZeroU64;
use std::time::Duration;

use super::rule::{Rule, Ruling};
use super::word::{Tag, Word};
use crate::values::time::{Timestamp, duration_from_nanos, nanos_of};
use crate::values::{Decision, Issuer, Proof, Quota, Receipt, Span, gcd};

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
    /// When its clock shows zero.
    started: Timestamp,
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
    const fn moved_to(self, count: u64) -> Self {
        Self { count, rest: self.rest, behind: self.behind + (count - self.count) }
    }
}

/// When a charge is paid off, on the receipts of the table with this number.
pub(super) struct PaidAt {
    pub(super) table: u64,
    pub(super) tick: u64,
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

/// How ticks of one bucket become ticks of another: as many tokens are owed, rounded up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exchange {
    /// By so many powers of two they are more, or fewer.
    gain: u32,
    loss: u32,
    /// Whole ticks of a debt that were paid when its clock was read between two ticks.
    whole: u64,
    /// For how many nanoseconds, rounded down, another tick has been under way then.
    lead: u64,
}

impl Exchange {
    pub(super) fn debt(&self, debt: u64) -> u64 {
        let owed = (u128::from(debt) << self.gain).div_ceil(1 << self.loss).saturating_sub(self.whole.into());
        u64::try_from(owed).unwrap_or(u64::MAX).min(1 << DEBT_BITS)
    }
}

/// The greatest debt, in bits. A quarter of what 36 bits hold, which leaves three quarters for telling
/// debts from what was paid long ago (see `compact.rs`).
const DEBT_BITS: u32 = 34;

/// An epoch is so many ticks, in bits: sixteen of them go round in a word.
pub(super) const EPOCH_BITS: u32 = 32;

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

    /// The bucket of `quota`, if need be in longer ticks, so that a debt of so many tokens can be told as well: ticks as long as
    /// a 2^16th of a token, or a microsecond. Of a greater debt, the rest is forgiven.
    pub(super) fn holding(quota: &Quota, tokens: u64) -> Option<Self> {
        let own = Self::new(quota)?;
        let is_fine = |shift: &u32| u64::from(quota.limit()) << shift >= quota.period_nanos() / 1_000;
        let least = (0..16).find(is_fine).unwrap_or(16);
        let bits = u64::BITS - tokens.saturating_sub(1).leading_zeros();
        Self::with_shift(quota, DEBT_BITS.saturating_sub(bits).max(least).min(own.shift))
    }

    /// This bucket for the table of a number, which its receipts carry.
    pub(super) const fn numbered(mut self, number: u64) -> Self {
        self.number = number;
        self
    }

    /// This bucket with a clock that goes on from that of another at `now`: a fraction of a tick that has passed has passed by
    /// this clock, too, but for less than a nanosecond. Or each change would cost a tick.
    pub(super) fn going_on(self, from: &Self, now: Timestamp) -> Self {
        let begun = self.started_before(now);
        let lead = self.exchange(from, from.read(now)).lead;
        Self { started: Timestamp::from_nanos(begun.started.as_nanos().saturating_sub(lead)), ..begun }
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

    /// When a charge by another bucket is paid off that was changed for this one at `at`.
    pub(super) fn carried(&self, from: &Self, at: Timestamp, paid_at: u64) -> u64 {
        let before = from.read(at);
        match paid_at.saturating_sub(before.count) {
            0 => 0,
            debt => self.read(at).count + self.exchange(from, before).debt(debt),
        }
    }

    pub(super) const fn number(&self) -> u64 {
        self.number
    }

    /// In tokens, rounded up.
    pub(super) const fn tokens(&self, debt: u64) -> u64 {
        debt.div_ceil(1 << self.shift)
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
        Some(Self { number: 0, burst, shift, capacity, ticks, period, reciprocal, started: Timestamp::ZERO })
    }

    /// Whether it judges like another one, whenever their clocks began.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        Self { started: self.started, number: self.number, ..*other } == *self
    }

    /// With a clock that began half of the time before `now` for which it runs, 36 years, so that it may be set back. In whole
    /// ticks, so that a tick begins at `now`.
    pub(super) fn started_before(self, now: Timestamp) -> Self {
        let head_start = now.as_nanos().min(MAX_NANOS / 2);
        let started = now.as_nanos() - (head_start - head_start % self.period);
        Self { started: Timestamp::from_nanos(started), ..self }
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

impl Rule for TickBucket {
    type Now = Tick;

    /// In ticks.
    type Debt = u64;

    /// Counted from when the clock began, so that counts are small. A clock that is set back beyond that stands still there.
    #[inline(always)]
    fn read(&self, now: Timestamp) -> Tick {
        // Not saturating: a branch that is predicted is not waited for.
        self.tick(match now.as_nanos().checked_sub(self.started.as_nanos()) {
            Some(nanos) => Timestamp::from_nanos(nanos),
            None => before_the_beginning(),
        })
    }

    #[inline(always)]
    fn of_key(&self, now: Tick, _: Tag) -> Tick {
        now
    }

    #[allow(clippy::cast_possible_truncation)] // Counts are below 2^63.
    #[inline(always)]
    fn epoch(&self, now: Tick) -> u32 {
        (now.count >> EPOCH_BITS) as u32
    }

    /// A maximum of the two: a clock that is set back must never have a key judged as of a later time than before.
    #[inline(always)]
    fn clamp(&self, now: Tick, epoch: u32) -> Tick {
        let earliest = u64::from(epoch) << EPOCH_BITS;
        if now.count >= earliest { now } else { now.moved_to(earliest) }
    }

    fn beginning(&self, epoch: u32) -> Tick {
        Tick { count: u64::from(epoch) << EPOCH_BITS, rest: 0, behind: 0 }
    }

    /// The ticks from `now` until the debt is paid, zero if it is.
    ///
    /// What is stored is modulo 2^36. A debt is at most four epochs of 2^32 ticks ahead, and seen from up to
    /// two epochs before its page's: what is farther ahead than seven is taken to be behind. The table
    /// sees to it that no word grows as old as nine.
    #[inline(always)]
    fn owed(&self, word: Word, now: Tick) -> u64 {
        if word.is_empty() {
            return nothing();
        }
        let distance = word.ahead_of(now.count);
        let is_paid = distance > 7 << EPOCH_BITS;
        if is_paid { 0 } else { distance }
    }

    #[inline(always)]
    fn nothing(&self, _: Tick) -> u64 {
        0
    }

    /// When it is paid.
    #[inline(always)]
    fn stamp(&self, debt: u64, now: Tick) -> u64 {
        now.count + debt
    }

    fn stamped(&self, stamp: u64, now: Tick) -> u64 {
        stamp.saturating_sub(now.count).min(1 << DEBT_BITS)
    }

    fn joined(&self, one: u64, other: u64) -> u64 {
        (one + other).min(1 << DEBT_BITS)
    }

    #[inline(always)]
    fn judge(&self, debt: u64, cost: u32, _: Tick) -> Ruling<u64> {
        let after = debt + self.price(cost);
        // Neither zero nor more than fits, in one comparison.
        if cost.wrapping_sub(1) >= self.burst {
            return if cost == 0 { Ruling::Peek { debt } } else { Ruling::Never { debt } };
        }
        if after <= self.capacity { Ruling::Admit { debt: after } } else { Ruling::Reject { debt } }
    }

    // Inlined, a caller that looks at the outcome alone does not pay for the rest: a fifth of a decision.
    #[inline(always)]
    fn decision(&self, ruling: Ruling<u64>, cost: u32, now: Tick) -> Decision {
        match ruling {
            Ruling::Admit { debt } => {
                let receipt = Receipt::of(PaidAt { table: self.number, tick: now.count + debt });
                self.with_reset(Decision::allow(self.burst, self.remaining(debt)), now, debt).with_receipt(receipt)
            }
            Ruling::Peek { debt } => self.with_reset(Decision::allow(self.burst, self.remaining(debt)), now, debt),
            Ruling::Reject { debt } => {
                let wait = self.span(now, debt + self.price(cost) - self.capacity);
                self.with_reset(Decision::reject(self.burst, self.remaining(debt), wait), now, debt)
            }
            Ruling::Never { debt } => {
                self.with_reset(Decision::deny(self.burst, self.remaining(debt), None), now, debt)
            }
            // As if the newcomer owed all that can be owed.
            Ruling::Full { wait } => {
                let decision = Decision::deny(self.burst, 0, Some(Duration::from_nanos(wait)));
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

    fn left(&self, debt: u64, now: Tick) -> u64 {
        if debt == 0 { 0 } else { nanos_of(self.span(now, debt).ceil()) }
    }

    fn is_paid_by(&self, stamp: u64, epoch: u32) -> bool {
        stamp <= self.beginning(epoch).count
    }

    /// Gives back what is still owed for a charge; see [`Gcra`](crate::algorithm::gcra::Gcra).
    fn refunded(&self, debt: u64, cost: u32, paid_at: u64, now: Tick) -> u64 {
        debt - paid_at.saturating_sub(now.count).min(self.worth(cost)).min(debt)
    }
}

#[cold]
const fn before_the_beginning() -> Timestamp {
    Timestamp::ZERO
}

/// Words that are found by their tag are never empty: that branch is predicted, and not waited for.
#[cold]
const fn nothing() -> u64 {
    0
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

    #[test]
    fn debts_are_told_across_the_wrap() {
        let (bucket, tag) = (TickBucket::new(&Quota::per_second(1)).unwrap(), Tag::from_hash(0x0abc_def0));
        let wrap = 1 << (EPOCH_BITS + 4);
        for now in [0, 1, 5, wrap - 4, wrap - 1, wrap, 1 << 40, (1 << 63) - 7] {
            for debt in [0, 1, 1_000, 1 << 34] {
                let word = Word::new(tag, bucket.stamp(debt, Tick::at(now)));
                assert_eq!(bucket.owed(word, Tick::at(now)), debt, "{debt} at {now}");
                assert!(word.is(tag) && !word.is_empty());
                // Paid, and long paid.
                for later in [1, 1 << 30, (9 << EPOCH_BITS) - 1] {
                    let then = Tick::at(now + debt + later);
                    assert_eq!(bucket.owed(word, then), 0, "{debt} at {now}, {later} later");
                }
            }
        }
        assert_eq!(bucket.owed(Word::EMPTY, Tick::at(u64::MAX)), 0);
        assert_eq!(bucket.owed(Word::EMPTY, Tick::at(wrap - 1)), 0);
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
                    let ruling = bucket.judge(debt, cost, Tick::at(5));
                    let is_right = match ruling {
                        Ruling::Peek { debt: owed } => cost == 0 && owed == debt,
                        Ruling::Never { debt: owed } => cost > burst && owed == debt,
                        Ruling::Admit { debt: owed } => u128::from(owed) == after && after <= u128::from(full),
                        Ruling::Reject { debt: owed } => owed == debt && cost <= burst && after > u128::from(full),
                        Ruling::Full { .. } => false,
                    };
                    assert!(is_right, "burst {burst}, debt {debt}, cost {cost}: {ruling:?}");
                    let decision = bucket.decision(ruling, cost, Tick::at(5));
                    assert!(decision.remaining() <= decision.limit());
                }
            }
        }
    }
}
