//! The engine of both buckets: the generic cell rate algorithm (ITU-T I.371, "virtual scheduling").
//!
//! A key's state is one number, its *theoretical arrival time* (TAT): the instant at which its debt will be paid. So
//! its debt at `now` is TAT − `now`, or zero if the TAT is in the past. A token costs `period / limit` of time. A
//! request of *c* tokens adds *c* × `period / limit` to the debt, and passes if the sum is at most the whole bucket,
//! `burst` × `period / limit`.
//!
//! # Units
//!
//! `period / limit` is rarely a whole number of nanoseconds (three per second, seven per minute). So all arithmetic is
//! in units of **1/`limit` nanosecond**: a nanosecond is `limit` units, a token is `period` units, and no charge is
//! ever rounded.
//!
//! # No overflow
//!
//! `now` is below 2^64, `period` below 2^62 (a hundred years), `limit` and `burst` below 2^50 ([`Quota::MAX_UNITS`]).
//! So an instant is below 2^114 units, and a full bucket below 2^112. A cost may be any `u64`: its price is below
//! 2^126, but is added to another number only if the cost is at most the burst. Only a debt that is carried over from
//! another quota may be more than a full bucket. It is cut at 2^120 ([`Gcra::carried`]), so every TAT is below 2^121,
//! and no sum reaches 2^122.

use crate::values::time::{Timestamp, duration_from_nanos};
use crate::values::{Decision, Issuer, Proof, Quota, Receipt};

/// The state that a bucket keeps for a key: the instant at which its debt will be paid, in units of 1/`limit`
/// nanosecond.
///
/// Packed, since a slot of the [table with locks](crate::store::MemoryStore#memory) would grow by a third if it were
/// aligned to 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(Rust, packed(8))]
pub struct GcraState {
    pub(crate) tat: u128,
}

/// A quota, as the three numbers that the arithmetic needs. Its results are in the units that the module's head
/// defines, unless their names or types say otherwise.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gcra {
    /// Units per nanosecond.
    limit: u64,
    /// Units per token.
    period: u64,
    /// Tokens in a full bucket.
    burst: u64,
}

/// The greatest debt that is carried over from another quota, in units: 256 times the largest possible bucket, and far
/// from an overflow.
pub(crate) const MOST_CARRIED: u128 = 1 << 120;

/// The content of a bucket's receipt: the TAT after the charge.
pub(crate) struct Tat(pub(crate) u128);

impl Tat {
    /// Reads the TAT from a receipt. Returns zero if the receipt is not from a bucket's charge: with that TAT, the
    /// charge counts as paid, and nothing is refunded.
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

    /// Decides on `cost` tokens at `now`. Returns the decision, and the new state if the request is charged.
    #[inline]
    pub(crate) fn decide(&self, state: Option<GcraState>, now: Timestamp, cost: u64) -> (Decision, Option<GcraState>) {
        let now = self.units(now);
        // `limit` tokens of `period` units each are restored in `period` nanoseconds: `limit` units per nanosecond,
        // which is one unit of debt per unit of time. So the debt at `now` is TAT − now, and a TAT in the past is paid.
        let debt = state.map_or(0, |state| state.tat.saturating_sub(now));
        let price = self.price(cost);
        let capacity = self.price(self.burst);

        if cost == 0 {
            let decision = self.answer(Decision::admit, debt);
            let beyond = (debt + self.price(1)).saturating_sub(capacity);
            let next = duration_from_nanos(self.nanos_ceil(beyond));
            (if beyond > 0 { decision.with_next_after(next) } else { decision }, None)
        } else if cost > self.burst {
            // Never fits: even without a debt, `price` is more than `capacity`.
            (self.answer(Decision::never, debt), None)
        } else if debt + price <= capacity {
            // The debt after the charge fits into the bucket. At one unit of debt per unit of time, it is paid at
            // `tat`.
            let tat = now + debt + price;
            let decision = self.answer(Decision::admit, debt + price).with_receipt(Receipt::from_proof(Tat(tat)));
            (decision, Some(GcraState { tat }))
        } else {
            // After a wait of w units, the debt is `debt` − w. The request fits if `debt` − w + `price` ≤ `capacity`,
            // so the shortest wait is `debt` + `price` − `capacity`. That is at most `debt`, since `price` ≤ `capacity`
            // (the cost is at most the burst). So the debt does not reach zero before the wait is over.
            let wait = duration_from_nanos(self.nanos_ceil(debt + price - capacity));
            (self.answer(|limit, remaining| Decision::reject(limit, remaining, Some(wait)), debt), None)
        }
    }

    /// Returns a decision for a key that owes `debt` after it. `outcome` makes the decision from the limit and the
    /// remaining tokens.
    #[inline(always)]
    fn answer(&self, outcome: impl FnOnce(u64, u64) -> Decision, debt: u128) -> Decision {
        let free = self.price(self.burst).saturating_sub(debt);
        // A request of n tokens fits if `debt` + n × `period` ≤ `burst` × `period`, so the greatest n is `free` /
        // `period`, rounded down. It is at most `burst`, since `free` is at most `burst` × `period`.
        let remaining = u64::try_from(div(free, self.period)).unwrap_or(self.burst);
        outcome(self.burst, remaining).with_reset_after(duration_from_nanos(self.nanos_ceil(debt)))
    }

    /// Returns the first whole nanosecond at which `state`'s debt is paid.
    pub(crate) fn expires_at(&self, state: &GcraState) -> Timestamp {
        u64::try_from(self.nanos_ceil(state.tat)).map_or(Timestamp::MAX, Timestamp::from_nanos)
    }

    /// Refunds the unpaid part of a charge. `charged` is the TAT after the charge, from its receipt.
    ///
    /// Time pays charges in the order in which they were made. So this charge is paid at `charged`, and at `now` at
    /// most `charged` − `now` of it is unpaid. A greater refund would give the key units that it would not have without
    /// the charge: then the bucket might have been full for a while, and a full bucket gains nothing by waiting.
    ///
    /// This is exact if charges are refunded the last one first, as a layer does. If an earlier charge is refunded
    /// before later ones, these are paid sooner than their receipts say, by that refund's amount. Each later refund may
    /// then be too large by up to that amount.
    pub(crate) fn refund(&self, state: GcraState, now: Timestamp, cost: u64, charged: u128) -> GcraState {
        let unpaid = charged.saturating_sub(self.units(now));
        GcraState { tat: state.tat.saturating_sub(unpaid.min(self.price(cost))) }
    }

    /// Converts a TAT from `from`'s units to this quota's, which replaces it at `now`. The number of tokens owed stays
    /// the same, rounded up by less than a unit. A debt above [`MOST_CARRIED`] is cut.
    pub(crate) fn carried(&self, tat: u128, from: &Self, now: Timestamp) -> u128 {
        let debt_before = tat.saturating_sub(from.units(now));
        let period_before = u128::from(from.period);
        let period = u128::from(self.period);
        // Whole tokens and the rest are converted separately, since `debt_before` × `period` could overflow.
        let tokens = debt_before / period_before;
        let rest = debt_before % period_before;
        let debt = tokens.saturating_mul(period).saturating_add((rest * period).div_ceil(period_before));
        if debt == 0 { 0 } else { self.units(now) + debt.min(MOST_CARRIED) }
    }

    /// Returns an instant, in units.
    pub(crate) fn units(&self, at: Timestamp) -> u128 {
        u128::from(at.as_nanos()) * u128::from(self.limit)
    }

    /// Returns the price of `cost` tokens, in units.
    pub(crate) fn price(&self, cost: u64) -> u128 {
        u128::from(cost) * u128::from(self.period)
    }

    /// Returns the price of any number of tokens, in units; `u128::MAX` if it does not fit.
    pub(crate) fn saturating_price(&self, tokens: u128) -> u128 {
        tokens.saturating_mul(self.period.into())
    }

    /// Returns `units` in nanoseconds, rounded up.
    pub(crate) fn nanos_ceil(&self, units: u128) -> u128 {
        div(units + u128::from(self.limit - 1), self.limit)
    }

    /// Returns `units` in nanoseconds, rounded down.
    pub(crate) fn nanos_floor(&self, units: u128) -> u128 {
        div(units, self.limit)
    }
}

/// Divides by the processor's 64-bit instruction if the dividend fits into 64 bits: a 128-bit division calls a library
/// function, which takes several times longer.
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
