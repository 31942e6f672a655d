//! Live changes: debts in the ticks of one bucket become debts in those of another.

use super::{DEBT_BITS, Tick, TickBucket};
use crate::store::memory::table::Rule;
use crate::values::Quota;
use crate::values::time::Timestamp;

/// How a debt in the ticks of one bucket becomes one in those of another: as many tokens are owed, rounded up.
#[derive(Clone, Copy, Debug)]
pub(in crate::store::memory) struct Conversion {
    /// A token has more of the new ticks, by this power of two.
    gain: u32,
    /// Or it has fewer of them, by this power of two.
    loss: u32,
    /// The change came within an old tick, of which so many new ones had passed: they are paid.
    whole: u64,
    /// The nanoseconds since the last of these, rounded down.
    lead: u64,
}

impl Conversion {
    pub(in crate::store::memory) fn debt(&self, debt: u64) -> u64 {
        let owed = (u128::from(debt) << self.gain).div_ceil(1 << self.loss).saturating_sub(self.whole.into());
        u64::try_from(owed).unwrap_or(u64::MAX).min(1 << DEBT_BITS)
    }
}

impl TickBucket {
    /// Makes the bucket of `quota`, in longer ticks if a debt of so many tokens needs them: ticks of up to a 2^16th of
    /// a token, or a microsecond. It may not [hold](Self::holds) a greater debt, of which it forgives the rest.
    pub(in crate::store::memory) fn holding(quota: &Quota, tokens: u64) -> Option<Self> {
        let own = Self::new(quota)?;
        let is_fine = |shift: &u32| quota.limit() << shift >= quota.period_nanos() / 1_000;
        let least = (0..16).find(is_fine).unwrap_or(16);
        let bits = u64::BITS - tokens.saturating_sub(1).leading_zeros();
        Self::with_shift(quota, DEBT_BITS.saturating_sub(bits).max(least).min(own.shift))
    }

    /// Returns whether a debt of so many tokens fits into its words.
    pub(in crate::store::memory) const fn holds(&self, tokens: u64) -> bool {
        tokens <= 1 << (DEBT_BITS - self.shift)
    }

    /// Returns this bucket with a clock that continues that of another at `now`: a fraction of a tick that has passed
    /// has passed by this clock, too, but for less than a nanosecond. Else each change would cost a tick.
    pub(in crate::store::memory) fn continuing(self, from: &Self, now: Timestamp) -> Self {
        let begun = self.started_before(now);
        let lead = self.conversion(from, from.read(now)).lead;
        Self { clock: begun.clock.started_earlier(lead), ..begun }
    }

    /// Returns how debts of another bucket become debts of this one, `at` an instant of the other's clock.
    pub(in crate::store::memory) fn conversion(&self, from: &Self, at: Tick) -> Conversion {
        let (gain, loss) = (self.shift.saturating_sub(from.shift), from.shift.saturating_sub(self.shift));
        // What has passed of the tick at `at`, in these ticks: whole ones, and the rest of one.
        let passed = (u128::from(at.rest) << gain) >> loss;
        let whole = u64::try_from(passed / u128::from(from.clock.period)).expect("less than 2^34 ticks");
        let rest = passed % u128::from(from.clock.period) * u128::from(self.clock.period);
        let lead = rest / (u128::from(from.clock.period) * u128::from(self.clock.ticks.get()));
        Conversion { gain, loss, whole, lead: u64::try_from(lead).unwrap_or(0) }
    }

    /// Returns when a charge of the bucket `from` is paid off by this one, which replaced it at `at`.
    pub(in crate::store::memory) fn converted(&self, from: &Self, at: Timestamp, paid_at: u64) -> u64 {
        let before = from.read(at);
        match paid_at.saturating_sub(before.count) {
            0 => 0,
            debt => self.read(at).count + self.conversion(from, before).debt(debt),
        }
    }
}
