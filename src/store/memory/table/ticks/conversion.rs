//! Live changes: debts in ticks as states, and in another bucket's ticks.

use std::any::Any;

use super::{DEBT_BITS, PaidAt, Tick, TickBucket};
use crate::algorithm::GcraState;
use crate::store::memory::quota_state::{QuotaState, StateType};
use crate::store::memory::table::{Codec, Rule, Tag};
use crate::values::time::Timestamp;
use crate::values::{Quota, Receipt};

/// A bucket's debt, in its own ticks. Between two buckets in words, debts are not converted by way of states, because a
/// state counts in units that may be longer than a tick, and each change would cost such a unit.
#[derive(Clone, Copy)]
pub(in crate::store::memory) struct Ticks(pub(in crate::store::memory) u64);

/// Converts a debt from one bucket's ticks to another's. The number of owed tokens stays the same, rounded up.
#[derive(Clone, Copy, Debug)]
pub(in crate::store::memory) struct Conversion {
    /// A token has more new ticks than old ones, by this power of two.
    gain: u32,
    /// Or it has fewer, by this power of two.
    loss: u32,
    /// The change came within an old tick. This number of new ticks had passed since that tick began, so they are paid.
    whole: u64,
    /// The nanoseconds since the last such new tick, rounded down.
    lead: u64,
}

impl Conversion {
    pub(in crate::store::memory) fn debt(&self, debt: u64) -> u64 {
        let owed = (u128::from(debt) << self.gain).div_ceil(1 << self.loss).saturating_sub(self.whole.into());
        u64::try_from(owed).unwrap_or(u64::MAX).min(1 << DEBT_BITS)
    }
}

impl TickBucket {
    /// Returns this bucket with a clock that continues another bucket's clock at `now`. A fraction of a tick that has
    /// passed by the other clock has passed by this one, too, except for less than a nanosecond. Otherwise each change
    /// would cost a tick.
    pub(in crate::store::memory) fn continuing(self, from: &Self, now: Timestamp) -> Self {
        let begun = self.started_before(now);
        let lead = self.conversion(from, from.read(now)).lead;
        Self { clock: begun.clock.started_earlier(lead), ..begun }
    }

    /// Returns how another bucket's debts become debts in this one, `at` an instant on the other's clock.
    pub(in crate::store::memory) fn conversion(&self, from: &Self, at: Tick) -> Conversion {
        let gain = self.shift.saturating_sub(from.shift);
        let loss = from.shift.saturating_sub(self.shift);
        // The part of the tick at `at` that has passed, in these ticks: whole ticks, and the rest of one.
        let passed = (u128::from(at.rest) << gain) >> loss;
        let whole = u64::try_from(passed / u128::from(from.clock.period)).expect("less than 2^34 ticks");
        let rest = passed % u128::from(from.clock.period) * u128::from(self.clock.period);
        let lead = rest / (u128::from(from.clock.period) * u128::from(self.clock.ticks.get()));
        Conversion { gain, loss, whole, lead: u64::try_from(lead).unwrap_or(0) }
    }

    /// Returns a debt at `at` as a state, rounded up by less than a unit. The part of a tick that has passed at `at` is
    /// paid, because each restart would cost a tick otherwise.
    pub(in crate::store::memory) fn exact_state(&self, Ticks(debt): Ticks, own: &Quota, at: Timestamp) -> GcraState {
        let period = own.period_nanos();
        // A tick is `period` units, divided by 2^shift. The rest is counted in lowest terms.
        let passed = u128::from(self.read(at).rest) * u128::from(period / self.clock.period);
        let units = (u128::from(debt) * u128::from(period)).saturating_sub(passed).div_ceil(1 << self.shift);
        GcraState { tat: u128::from(at.as_nanos()) * u128::from(own.limit()) + units }
    }

    /// Returns when this bucket pays off a charge by the bucket `from`, which it replaced at `at`.
    fn converted(&self, from: &Self, at: Timestamp, paid_at: u64) -> u64 {
        let before = from.read(at);
        match paid_at.saturating_sub(before.count) {
            0 => 0,
            debt => self.read(at).count + self.conversion(from, before).debt(debt),
        }
    }
}

impl Codec for TickBucket {
    type State = GcraState;

    /// Uses longer ticks than [its own](Self::new) if a debt of `tokens` tokens needs them: ticks of up to a 2^16th of
    /// a token, or a microsecond.
    fn holding(quota: &Quota, _: bool, tokens: u64) -> Option<Self> {
        let own = Self::new(quota)?;
        let least = (0..16).find(|shift| quota.limit() << shift >= quota.period_nanos() / 1_000).unwrap_or(16);
        let bits = u64::BITS - tokens.saturating_sub(1).leading_zeros();
        Self::with_shift(quota, DEBT_BITS.saturating_sub(bits).max(least).min(own.shift))
    }

    fn numbered(self, number: u64) -> Self {
        Self { number, ..self }
    }

    /// Returns when the charge is paid off, in these ticks.
    fn charged(&self, receipt: Receipt, before: &[(Self, Timestamp)]) -> Option<u64> {
        let PaidAt { table, tick } = receipt.read()?;
        if table == self.number {
            return Some(tick);
        }
        let before = &before[before.iter().position(|(rule, _)| rule.number == table)?..];
        let after = before[1..].iter().map(|(rule, _)| rule).chain([self]);
        Some(before.iter().zip(after).fold(tick, |tick, ((from, until), to)| to.converted(from, *until, tick)))
    }

    fn most_units(&self, has_inherited: bool) -> u64 {
        if has_inherited { 1 << (DEBT_BITS - self.shift) } else { self.burst }
    }

    fn most_of(quota: &Quota) -> u64 {
        quota.max_burst()
    }

    fn units_of(entry: &QuotaState<GcraState>, at: Timestamp) -> u64 {
        let (debt, price) = debt_of(entry, at);
        u64::try_from(debt.div_ceil(price.into())).unwrap_or(u64::MAX)
    }

    fn with_state(&self, debt: u64, wanted: StateType, own: &Quota, at: Timestamp, act: &mut dyn FnMut(&dyn Any)) {
        if wanted.is::<Ticks>() {
            return act(&Ticks(debt));
        }
        let units = (u128::from(debt) * u128::from(own.period_nanos())).div_ceil(1 << self.shift);
        act(&GcraState { tat: u128::from(at.as_nanos()) * u128::from(own.limit()) + units });
    }

    fn stamp_of(&self, _: Tag, entry: QuotaState<GcraState>, at: Timestamp) -> u64 {
        let (debt, price) = debt_of(&entry, at);
        self.stamp(self.ticks_of(debt, price), self.read(at))
    }

    fn ends(&self, stamp: u64) -> u64 {
        stamp
    }
}

/// Returns a bucket's debt, and a token's price in the same units.
fn debt_of(entry: &QuotaState<GcraState>, at: Timestamp) -> (u128, u64) {
    let paid = u128::from(at.as_nanos()) * u128::from(entry.quota.limit());
    (entry.state.tat.saturating_sub(paid), entry.quota.period_nanos())
}
