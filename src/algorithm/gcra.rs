//! The engine of both buckets: the generic cell rate algorithm (ITU-T I.371, "virtual scheduling").
//!
//! A key is one number, its *theoretical arrival time* (TAT): the moment at which it owes nothing.
//! A request of cost *c* moves the TAT up by *c* × `period / limit`, and passes if the debt that
//! results, TAT − now, is at most the whole bucket.
//!
//! `period / limit` is rarely a whole number of nanoseconds (three per second, seven per minute).
//! So all arithmetic is in units of **1/`limit` nanosecond**, in which a nanosecond is `limit`
//! units, a token is `period` units, and nothing is ever rounded. Nothing can overflow either. `now` is below 2^64,
//! `period` below 2^62 (a hundred years), `limit` and `burst` below 2^50 ([`Quota::MAX_UNITS`]). So an instant is below
//! 2^114 and a full bucket below 2^112. A cost may be any `u64`: its price is below 2^126, and is added to nothing
//! unless the cost is at most the burst. Only a debt that is carried over from another quota may be more than a full
//! bucket. It is cut at 2^120 ([`Gcra::carried`]), so every TAT is below 2^121, and no sum reaches 2^122.

use crate::values::time::{Timestamp, duration_from_nanos};
use crate::values::{Decision, Issuer, Proof, Quota, Receipt};

/// The state that a bucket keeps of a key: when its debt will be paid, in units of 1/`limit` nanosecond.
///
/// Packed, since a slot of the [table with locks](crate::store::MemoryStore#memory) would grow by a third if it were
/// aligned to 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(Rust, packed(8))]
pub struct GcraState {
    pub(crate) tat: u128,
}

/// A quota, in the units of the engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gcra {
    /// Units per nanosecond.
    limit: u64,
    /// Units per token.
    period: u64,
    /// Tokens in a full bucket.
    burst: u64,
}

/// The greatest debt that is carried over from another quota, in units: 256 times the fullest of all buckets, and far
/// from an overflow.
pub(crate) const MOST_CARRIED: u128 = 1 << 120;

/// The TAT after a charge.
pub(crate) struct Tat(pub(crate) u128);

impl Tat {
    /// Reads the TAT from a receipt; zero, which is paid, if it owes nothing.
    pub(crate) fn read(receipt: Receipt) -> u128 {
        receipt.read().map_or(0, |Self(tat)| tat)
    }
}

impl Proof for Tat {
    const ISSUER: Issuer = Issuer::Bucket;

    fn into_value(self) -> u128 {
        self.0
    }

    fn from_value(tat: u128) -> Self {
        Self(tat)
    }
}

impl Gcra {
    pub(crate) const fn new(quota: &Quota, burst: u64) -> Self {
        Self { limit: quota.limit(), period: quota.period_nanos(), burst }
    }

    #[inline]
    pub(crate) fn decide(&self, state: Option<GcraState>, now: Timestamp, cost: u64) -> (Decision, Option<GcraState>) {
        let now = self.units(now);
        // `limit` tokens of `period` units each are restored in `period` nanoseconds: `limit` units per nanosecond,
        // which is one unit of debt per unit of time. So the debt at `now` is TAT − now, and a TAT in the past is paid.
        let debt = state.map_or(0, |state| state.tat.saturating_sub(now));
        let price = self.price(cost);
        let capacity = self.price(self.burst);

        // A cost above the burst never fits: even with no debt, `price` is more than `capacity`.
        if cost == 0 {
            (self.answer(Decision::admit, debt), None)
        } else if cost > self.burst {
            (self.answer(Decision::never, debt), None)
        } else if debt + price <= capacity {
            // The debt after the charge fits into the bucket. It is paid after as many units of time, at the new TAT.
            let tat = now + debt + price;
            let decision = self.answer(Decision::admit, debt + price).with_receipt(Receipt::from_proof(Tat(tat)));
            (decision, Some(GcraState { tat }))
        } else {
            // After a wait of w units the debt is `debt` − w, or zero. The request fits if `debt` − w + `price` ≤
            // `capacity`, so w is at least the difference. It is at most `debt`, since `price` ≤ `capacity` (the cost
            // is at most the burst), so the debt is not zero before.
            let wait = duration_from_nanos(self.nanos_ceil(debt + price - capacity));
            (self.answer(|limit, remaining| Decision::reject(limit, remaining, Some(wait)), debt), None)
        }
    }

    /// Returns a decision with the numbers of a key that now owes `debt`.
    #[inline(always)]
    fn answer(&self, outcome: impl FnOnce(u64, u64) -> Decision, debt: u128) -> Decision {
        let free = self.price(self.burst).saturating_sub(debt);
        // A request of n tokens fits if `debt` + n × `period` ≤ `burst` × `period`, so the greatest n is `free` /
        // `period`, rounded down. It is at most `burst`, since `free` is at most `burst` × `period`.
        let remaining = u64::try_from(div(free, self.period)).unwrap_or(self.burst);
        outcome(self.burst, remaining).with_reset_after(duration_from_nanos(self.nanos_ceil(debt)))
    }

    pub(crate) fn expires_at(&self, state: &GcraState) -> Timestamp {
        u64::try_from(self.nanos_ceil(state.tat)).map_or(Timestamp::MAX, Timestamp::from_nanos)
    }

    /// Refunds the unpaid part of a charge, counting debts as paid in the order in which they were made.
    ///
    /// A charge after which the TAT was *r* (`charged`) is paid off at *r*, so at `now` at most
    /// *r* − `now` of it is left. Giving back more would be a gift: had the charge never been made,
    /// the bucket might have stood full for a while, and time spent full earns nothing.
    ///
    /// That is exact if charges are refunded the last one first, as a layer does. To refund an earlier one pays the
    /// later ones off sooner than their receipts say, by the amount of the refund; at most that much too much may then
    /// be refunded for each of them.
    pub(crate) fn refund(&self, state: GcraState, now: Timestamp, cost: u64, charged: u128) -> GcraState {
        let unpaid = charged.saturating_sub(self.units(now));
        GcraState { tat: state.tat.saturating_sub(unpaid.min(self.price(cost))) }
    }

    /// Converts a TAT from the units of `from` to those of this quota, which replaces the other at `now`: the number of
    /// tokens owed stays the same, rounded up by less than a unit. Debts of more than [`MOST_CARRIED`] are cut.
    pub(crate) fn carried(&self, tat: u128, from: &Self, now: Timestamp) -> u128 {
        let debt = tat.saturating_sub(from.units(now));
        let (period, before) = (u128::from(self.period), u128::from(from.period));
        let (tokens, rest) = (debt / before, debt % before);
        let debt = tokens.saturating_mul(period).saturating_add((rest * period).div_ceil(before));
        if debt == 0 { 0 } else { self.units(now) + debt.min(MOST_CARRIED) }
    }

    pub(crate) fn units(&self, at: Timestamp) -> u128 {
        u128::from(at.as_nanos()) * u128::from(self.limit)
    }

    pub(crate) fn price(&self, cost: u64) -> u128 {
        u128::from(cost) * u128::from(self.period)
    }

    /// Returns the price of any number of tokens; `u128::MAX` if that is more.
    pub(crate) fn price_of(&self, tokens: u128) -> u128 {
        tokens.saturating_mul(self.period.into())
    }

    /// Returns the whole nanoseconds that cover `units`.
    pub(crate) fn nanos_ceil(&self, units: u128) -> u128 {
        div(units + u128::from(self.limit - 1), self.limit)
    }
}

/// Divides by the processor's 64-bit instruction when the numbers allow it; a 128-bit division is a library call that
/// takes several times longer.
fn div(dividend: u128, divisor: u64) -> u128 {
    match u64::try_from(dividend) {
        Ok(dividend) => u128::from(dividend / divisor),
        Err(_) => dividend / u128::from(divisor),
    }
}

#[cfg(all(test, not(sluice_loom)))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::values::counterexamples::{Counterexample, each};

    fn gcra(case: &Counterexample, limit: &str, period: &str, burst: u64) -> Gcra {
        let quota = Quota::per(case.number(limit), Duration::from_nanos(case.number(period)));
        Gcra::new(&quota, burst)
    }

    fn at(case: &Counterexample, name: &str) -> Timestamp {
        Timestamp::from_nanos(case.number(name))
    }

    #[test]
    fn decisions_withstand_the_counterexamples() {
        each("src/algorithm/gcra.rs: Gcra::decide", |case| {
            let bucket = gcra(case, "limit", "period", case.number("burst"));
            let now = at(case, "now");
            let state = Some(GcraState { tat: case.number("tat") });
            let (decision, next) = bucket.decide(state, now, case.number("cost"));
            assert_eq!(decision.is_allowed(), next.is_some());
            [
                ("admitted", next.is_some().into()),
                ("tat", next.map_or(0, |next| next.tat)),
                ("wait", decision.retry_after().map_or(0, |wait| wait.as_nanos())),
                ("remaining", bucket.decide(state, now, 0).0.remaining().into()),
            ]
        });
    }

    #[test]
    fn expiries_withstand_the_counterexamples() {
        each("src/algorithm/gcra.rs: Gcra::expires_at", |case| {
            let bucket = gcra(case, "limit", "period", case.number("burst"));
            [("expires", bucket.expires_at(&GcraState { tat: case.number("tat") }).as_nanos().into())]
        });
    }

    #[test]
    fn changes_of_quota_withstand_the_counterexamples() {
        each("src/algorithm/gcra.rs: Gcra::carried", |case| {
            let new = gcra(case, "limit", "period", 1);
            let old = gcra(case, "from_limit", "from_period", 1);
            [("tat", new.carried(case.number("tat"), &old, at(case, "now")))]
        });
    }

    #[test]
    fn refunds_withstand_the_counterexamples() {
        each("src/algorithm/gcra.rs: Gcra::refund", |case| {
            let bucket = gcra(case, "limit", "period", case.number("burst"));
            let state = GcraState { tat: case.number("tat") };
            let charged = case.number("charged");
            [("tat", bucket.refund(state, at(case, "now"), case.number("cost"), charged).tat)]
        });
    }
}
