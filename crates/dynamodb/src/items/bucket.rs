//! Buckets: one number, written by one of two conditional updates.
//!
//! An item has `t`, when the debt will be paid, in 1/limit nanoseconds, as in `tower_sluice`; `q`, the quota that
//! defines this unit; and `u`, the time of the last write, in nanoseconds.
//!
//! Expressions do not have `max`, and conditions do not have arithmetic, so the bucket's transition is two updates, and
//! exactly one applies: *idle*, if nothing is owed (`t <= :now`), and *busy*, if something is.
//! `verify/proofs/dynamodb.py` proves that together they are the bucket. The busy update compares with a bound and adds
//! to the present number. So simultaneous charges do not collide, as they would if each had to name the number that it
//! has read.

use tower_sluice::Quota;
use tower_sluice::algorithm::{Algorithm, GcraState, Portable, TokenBucket};
use tower_sluice::limiter::Receipt;
use tower_sluice::time::Timestamp;

use super::bytes::{self, BUCKET};
use super::sealed::Items;
use super::{BadItem, Charge, DIGITS, Moment, Plan, Unfit, at_most, fitting, quota_name};
use crate::hints::{ALWAYS_BUSY, Hint};
use crate::table::{Item, Write, number};

/// A bucket's greatest number: the clock is below 2^114, a full bucket below 2^112, and a debt from another quota is
/// cut at 2^120. A write adds charges below 2^112.
const MOST: u128 = (1 << 121) - 1;

const _: () = assert!(MOST + (1 << 112) < DIGITS);

const SET: &str = "SET t = :t, q = :q, u = :u, x = :x";

/// A quota in its buckets' units.
#[derive(Clone, Copy, Debug)]
struct Units {
    quota: Quota,
    limit: u128,
    period: u128,
}

impl Units {
    fn of(quota: Quota) -> Self {
        Self { quota, limit: quota.limit().into(), period: bytes::period_nanos(&quota).into() }
    }

    fn price(&self, cost: u64) -> u128 {
        u128::from(cost) * self.period
    }

    fn capacity(&self) -> u128 {
        self.price(self.quota.max_burst())
    }

    fn at(&self, at: Timestamp) -> u128 {
        u128::from(at.as_nanos()) * self.limit
    }

    /// Converts back, rounded up.
    fn timestamp(&self, units: u128) -> Timestamp {
        u64::try_from(units.div_ceil(self.limit)).map_or(Timestamp::MAX, Timestamp::from_nanos)
    }
}

/// An item's content.
struct Stored<'a> {
    tat: u128,
    quota: Quota,
    /// The quota's name in the item.
    name: &'a str,
    written: Timestamp,
}

impl<'a> Stored<'a> {
    fn read(item: &'a Item) -> Option<Self> {
        let name = item.get("q")?.as_s().ok()?;
        let tat = number(item, "t").filter(|tat| *tat <= MOST)?;
        let written = Timestamp::from_nanos(number(item, "u")?);
        Some(Self { tat, quota: quota_name::parse(name)?, name, written })
    }
}

/// The common part of the two buckets.
trait Bucket: Portable<State = GcraState> + Clone {
    fn units(&self) -> Units {
        Units::of(self.quota())
    }

    fn tat(&self, state: &GcraState) -> u128 {
        u128::from_be_bytes(bytes::numbers::<_, 16, 0>(self, state).0)
    }

    fn state(&self, tat: u128, under: &Quota, now: Timestamp) -> Result<GcraState, BadItem> {
        bytes::state(self, BUCKET, under, (&tat.to_be_bytes(), &[]), now)
    }

    /// How much of a charge is still owed.
    fn unpaid(&self, cost: u64, receipt: Receipt, at: Moment) -> u128 {
        // A refund subtracts from any number, so from the greatest it leaves the most.
        let most = self.state(MOST, &self.quota(), at.now).expect("in range");
        MOST - self.tat(&self.refund(most, at.now, cost, receipt))
    }

    /// Charges `count` requests to a key that owes nothing.
    fn idle(&self, count: u32, charge: Charge) -> Write {
        let units = self.units();
        let tat = units.at(charge.at.now) + u128::from(count) * units.price(charge.cost);
        let write = Write::new(SET, "attribute_not_exists(k) OR (q = :q AND (t <= :now OR u > :latest))");
        let write = write.number(":t", tat).number(":now", units.at(charge.at.now));
        self.signed(write.number(":latest", charge.at.latest().as_nanos()), tat, charge.at)
    }

    /// Charges `count` requests to a key that owes something, on the condition that there is room for them and, if one
    /// more request is waiting, that there is no room for it.
    fn busy(&self, count: u32, charge: Charge) -> Write {
        let (units, now) = (self.units(), self.units().at(charge.at.now));
        let (price, full) = (units.price(charge.cost), now + units.capacity());
        let all = u128::from(count) * price;
        let low = if count < charge.count { full.saturating_sub(all + price).max(now) } else { now };
        let write = Write::new("SET t = t + :c, u = :u, x = :x", "q = :q AND t > :low AND t <= :high");
        let write = write.number(":c", all).number(":low", low).number(":high", full.saturating_sub(all));
        self.signed(write, full, charge.at)
    }

    /// Writes a state in place of exactly this item.
    fn replace(&self, stored: &Stored<'_>, tat: u128, at: Moment) -> Write {
        let write = Write::new(SET, "t = :old AND q = :from").number(":old", stored.tat).text(":from", stored.name);
        self.signed(write.number(":t", tat), tat, at)
    }

    /// Adds the parts that all writes share: the quota, the time, and the item's expiry, when a debt of `most` is paid.
    fn signed(&self, write: Write, most: u128, at: Moment) -> Write {
        let write = write.text(":q", quota_name::of(&self.quota())).number(":u", at.now.as_nanos());
        write.number(":x", at.expiry(self.units().timestamp(most)))
    }
}

impl<B: Portable<State = GcraState> + Clone> Bucket for B {}

macro_rules! bucket {
    ($($bucket:ty),+) => {$(
        impl Items for $bucket {
            /// All quotas fit: see [`MOST`].
            fn check_fit(&self) -> Result<(), Unfit> {
                Ok(())
            }

            fn suffix(&self, _: Timestamp) -> String {
                "b".to_owned()
            }

            fn read(&self, item: Option<&Item>, at: Moment) -> Result<Option<GcraState>, BadItem> {
                let Some(item) = item else { return Ok(None) };
                let Stored { tat, quota, written, .. } = Stored::read(item).ok_or(BadItem)?;
                // A time in the future was written by a wrong clock.
                if written > at.latest() { Ok(None) } else { self.state(tat, &quota, at.now).map(Some) }
            }

            fn put(&self, state: Option<&GcraState>, at: Moment) -> Write {
                let tat = state.map_or(0, |state| self.tat(state));
                self.signed(Write::new(SET, "").number(":t", tat), tat.max(self.units().at(at.now)), at)
            }

            fn guess(&self, hint: Option<Hint>, charge: Charge) -> Plan {
                let (units, now) = (self.units(), self.units().at(charge.at.now));
                // More requests may wait than fit: with the greatest quotas, the product needs more than 128 bits then.
                let all = u128::from(charge.count).saturating_mul(units.price(charge.cost));
                match hint {
                    Some(Hint::Bucket { tat, .. }) if tat > now => {
                        let room = (now + units.capacity()).saturating_sub(tat) / units.price(charge.cost);
                        match at_most(u64::try_from(room).unwrap_or(u64::MAX), charge.count) {
                            // A read costs a fifth of a write that does nothing.
                            0 => Plan::Read,
                            count => Plan::Charge(self.busy(count, charge), count),
                        }
                    }
                    Some(Hint::Bucket { busy, .. }) if busy > ALWAYS_BUSY / 2 && all < units.capacity() => {
                        Plan::Charge(self.busy(charge.count, charge), charge.count)
                    }
                    _ => {
                        let count = at_most(self.quota().max_burst() / charge.cost, charge.count);
                        Plan::Charge(self.idle(count, charge), count)
                    }
                }
            }

            fn plan(&self, item: Option<&Item>, charge: Charge) -> Result<Plan, BadItem> {
                let state = self.read(item, charge.at)?;
                let (count, after) = fitting(self, state, charge);
                let stored = item.and_then(Stored::read);
                let another = stored.filter(|stored| stored.name != quota_name::of(&self.quota()));
                Ok(match (another, after) {
                    // The write is made even if nothing fits. Otherwise the debt would be paid at the old rate, and no
                    // advertised wait would be true.
                    (Some(another), Some(after)) => {
                        Plan::Charge(self.replace(&another, self.tat(&after), charge.at), count)
                    }
                    _ if count == 0 => Plan::Reject,
                    _ if state.is_some_and(|state| self.tat(&state) > self.units().at(charge.at.now)) => {
                        Plan::Charge(self.busy(count, charge), count)
                    }
                    _ => Plan::Charge(self.idle(count, charge), count),
                })
            }

            fn hint(
                &self,
                before: Option<Hint>,
                old: Option<&GcraState>,
                new: Option<&GcraState>,
                at: Moment,
            ) -> Option<Hint> {
                let now = self.units().at(at.now);
                let busy = match before {
                    // This process's own knowledge was enough, and shows nothing about the others.
                    Some(Hint::Bucket { tat, busy }) if tat > now => busy,
                    before => {
                        let busy = if let Some(Hint::Bucket { busy, .. }) = before { busy } else { 0 };
                        let was_busy = old.is_some_and(|old| self.tat(old) > now);
                        if was_busy { (busy + 1).min(ALWAYS_BUSY) } else { busy.saturating_sub(1) }
                    }
                };
                Some(Hint::Bucket { tat: new.map_or(0, |new| self.tat(new)), busy })
            }

            fn guess_refund(&self, cost: u64, receipt: Receipt, at: Moment) -> Option<Write> {
                let unpaid = self.unpaid(cost, receipt, at);
                let write = Write::new("SET t = t - :c", "q = :q AND t > :now AND t >= :c").number(":c", unpaid);
                let write = write.text(":q", quota_name::of(&self.quota())).number(":now", self.units().at(at.now));
                (unpaid > 0).then_some(write)
            }

            /// If the key's rate has changed, we do not know how much of the charge is still owed, so it stays charged,
            /// as in memory.
            fn plan_refund(
                &self,
                item: Option<&Item>,
                cost: u64,
                receipt: Receipt,
                at: Moment,
            ) -> Result<Option<Write>, BadItem> {
                let Some(item) = item else { return Ok(None) };
                let stored = Stored::read(item).ok_or(BadItem)?;
                let rate = |quota: &Quota| (quota.limit(), quota.period());
                let left = stored.tat.saturating_sub(self.unpaid(cost, receipt, at));
                let is_owed = stored.tat > self.units().at(at.now) && rate(&stored.quota) == rate(&self.quota());
                let write = Write::new("SET t = :t", "t = :old AND q = :from").number(":t", left);
                Ok((is_owed && left < stored.tat).then(|| write.number(":old", stored.tat).text(":from", stored.name)))
            }
        }
    )+};
}

bucket!(TokenBucket);
