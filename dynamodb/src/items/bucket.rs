//! Buckets: one number, written by one of two conditional updates.
//!
//! An item has `t`, when the debt will be paid, in units of 1/limit nanosecond, as in `tower_sluice`; and `q`, the quota
//! in whose units that is. Expressions have neither `max` nor arithmetic in conditions, so the transition of the bucket
//! is two updates, of which exactly one applies: *idle*, if nothing is owed (`t <= :now`), and *busy*, if something is.
//! `proofs/bucket.py` proves that together they are the bucket. The busy one compares with a bound and adds to whatever
//! is there: so simultaneous charges do not collide, as they would if each had to name the number that it has read.

use std::time::Duration;

use tower_sluice::algorithm::{Algorithm, GcraState, LeakyBucket, Portable, TokenBucket};
use tower_sluice::time::Timestamp;
use tower_sluice::{Quota, Receipt};

use super::bytes::{self, BUCKET};
use super::sealed::Items;
use super::{BadItem, Charge, Moment, Plan, Unfit, fitting};
use crate::hints::{ALWAYS_BUSY, Hint};
use crate::table::{Item, Write, number};

/// More than any debt of a bucket, in its units.
const MOST: u128 = 1 << 110;

const SET: &str = "SET t = :t, q = :q, x = :x";

/// A quota in the units of its buckets.
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

    fn price(&self, cost: u32) -> u128 {
        u128::from(cost) * self.period
    }

    fn capacity(&self) -> u128 {
        self.price(self.quota.max_burst())
    }

    fn at(&self, at: Timestamp) -> u128 {
        u128::from(at.as_nanos()) * self.limit
    }

    /// No right clock writes a greater number.
    fn far(&self, at: Moment) -> u128 {
        self.at(at.latest()) + self.capacity()
    }

    /// When all that can be owed now is paid.
    fn paid(&self, at: Moment) -> Timestamp {
        let nanos = (self.at(at.now) + self.capacity()).div_ceil(self.limit);
        u64::try_from(nanos).map_or(Timestamp::MAX, Timestamp::from_nanos)
    }

    /// The quota, as the attribute `q`.
    fn name(&self) -> String {
        format!("{}/{}/{}", self.quota.limit(), self.quota.max_burst(), self.period)
    }

    /// Reads the attribute `q`.
    fn parse(name: &str) -> Option<Self> {
        let mut numbers = name.split('/');
        let (limit, burst) = (numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?);
        let period = Duration::from_nanos(numbers.next()?.parse().ok()?);
        let quota = Quota::new(limit, period).ok()?.try_burst(burst).ok()?;
        numbers.next().is_none().then(|| Self::of(quota))
    }
}

/// An item as it is.
struct Stored<'a> {
    tat: u128,
    /// The name of the quota.
    quota: &'a str,
    units: Units,
}

impl<'a> Stored<'a> {
    fn read(item: &'a Item) -> Option<Self> {
        let quota = item.get("q")?.as_s().ok()?;
        let tat = number(item, "t").filter(|tat| *tat < MOST)?;
        Some(Self { tat, quota, units: Units::parse(quota)? })
    }
}

/// Two buckets, one engine.
trait Bucket: Portable<State = GcraState> + Clone {
    fn units(&self) -> Units {
        Units::of(self.quota())
    }

    fn tat(&self, state: &GcraState) -> u128 {
        u128::from_be_bytes(bytes::numbers(self, state))
    }

    fn state(&self, tat: u128, under: &Quota, now: Timestamp) -> Result<GcraState, BadItem> {
        bytes::state(self, BUCKET, under, &tat.to_be_bytes(), now)
    }

    /// How much of a charge is still owed for.
    fn unpaid(&self, cost: u32, receipt: Receipt, at: Moment) -> u128 {
        // A refund subtracts from the number, whatever it is: so of the greatest it leaves the most.
        let most = self.state(MOST, &self.quota(), at.now).expect("in range");
        MOST - self.tat(&self.refund(most, at.now, cost, receipt))
    }

    /// The write of `count` requests to a key that owes nothing.
    fn idle(&self, count: u32, charge: Charge) -> Write {
        let units = self.units();
        let tat = units.at(charge.at.now) + u128::from(count) * units.price(charge.cost);
        let write = Write::new(SET, "attribute_not_exists(k) OR (q = :q AND (t <= :now OR t > :far))");
        let write = write.number(":t", tat).text(":q", units.name()).number(":now", units.at(charge.at.now));
        write.number(":far", units.far(charge.at)).number(":x", charge.at.expiry(units.paid(charge.at)))
    }

    /// The write of `count` requests to a key that owes something: no more than leaves room for them, and so much that
    /// there is no room for one more, if one more is waiting.
    fn busy(&self, count: u32, charge: Charge) -> Write {
        let (units, now) = (self.units(), self.units().at(charge.at.now));
        let (price, full) = (units.price(charge.cost), now + units.capacity());
        let all = u128::from(count) * price;
        let low = if count < charge.count { full.saturating_sub(all + price).max(now) } else { now };
        let write = Write::new("SET t = t + :c, x = :x", "q = :q AND t > :low AND t <= :high");
        let write = write.number(":c", all).text(":q", units.name()).number(":low", low);
        write.number(":high", full.saturating_sub(all)).number(":x", charge.at.expiry(units.paid(charge.at)))
    }

    /// The write of a state in place of exactly this item.
    fn replace(&self, stored: &Stored<'_>, tat: u128, at: Moment) -> Write {
        let units = self.units();
        let write = Write::new(SET, "t = :old AND q = :from").number(":old", stored.tat).text(":from", stored.quota);
        write.number(":t", tat).text(":q", units.name()).number(":x", at.expiry(units.paid(at)))
    }
}

impl<B: Portable<State = GcraState> + Clone> Bucket for B {}

macro_rules! bucket {
    ($($bucket:ty),+) => {$(
        impl Items for $bucket {
            /// All numbers are below 2^111, and DynamoDB keeps 38 digits.
            fn check_fit(&self) -> Result<(), Unfit> {
                Ok(())
            }

            fn suffix(&self, _: Timestamp) -> String {
                "b".to_owned()
            }

            fn read(&self, item: Option<&Item>, at: Moment) -> Result<Option<GcraState>, BadItem> {
                let Some(item) = item else { return Ok(None) };
                let Stored { tat, units, .. } = Stored::read(item).ok_or(BadItem)?;
                if tat > units.far(at) {
                    // Written by a clock that was wrong.
                    return Ok(None);
                }
                self.state(tat, &units.quota, at.now).map(Some)
            }

            fn guess(&self, hint: Option<Hint>, charge: Charge) -> Plan {
                let (units, now) = (self.units(), self.units().at(charge.at.now));
                let all = u128::from(charge.count) * units.price(charge.cost);
                match hint {
                    Some(Hint::Bucket { tat, .. }) if tat > now && tat <= units.far(charge.at) => {
                        let room = (now + units.capacity()).saturating_sub(tat) / units.price(charge.cost);
                        match u32::try_from(room).unwrap_or(u32::MAX).min(charge.count) {
                            // A read costs a fifth of a write that does nothing.
                            0 => Plan::Read,
                            count => Plan::Charge(self.busy(count, charge), count),
                        }
                    }
                    Some(Hint::Bucket { busy, .. }) if busy > ALWAYS_BUSY / 2 && all < units.capacity() => {
                        Plan::Charge(self.busy(charge.count, charge), charge.count)
                    }
                    _ => {
                        let count = (self.quota().max_burst() / charge.cost).min(charge.count);
                        Plan::Charge(self.idle(count, charge), count)
                    }
                }
            }

            fn plan(&self, item: Option<&Item>, charge: Charge) -> Result<Plan, BadItem> {
                let state = self.read(item, charge.at)?;
                let (count, after) = fitting(self, state, charge);
                let Some(after) = after.filter(|_| count > 0) else { return Ok(Plan::Reject) };
                let units = self.units();
                let write = match item.and_then(Stored::read) {
                    Some(stored) if stored.quota != units.name() => self.replace(&stored, self.tat(&after), charge.at),
                    Some(_) if state.is_some_and(|state| self.tat(&state) > units.at(charge.at.now)) => {
                        self.busy(count, charge)
                    }
                    _ => self.idle(count, charge),
                };
                Ok(Plan::Charge(write, count))
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
                    // What this process knew was enough, and says nothing of the others.
                    Some(Hint::Bucket { tat, busy }) if tat > now => busy,
                    before => {
                        let busy = if let Some(Hint::Bucket { busy, .. }) = before { busy } else { 0 };
                        let was_busy = old.is_some_and(|old| self.tat(old) > now);
                        if was_busy { (busy + 1).min(ALWAYS_BUSY) } else { busy.saturating_sub(1) }
                    }
                };
                Some(Hint::Bucket { tat: new.map_or(0, |new| self.tat(new)), busy })
            }

            fn guess_refund(&self, cost: u32, receipt: Receipt, at: Moment) -> Option<Write> {
                let unpaid = self.unpaid(cost, receipt, at);
                let write = Write::new("SET t = t - :c", "q = :q AND t > :now AND t >= :c").number(":c", unpaid);
                let write = write.text(":q", self.units().name()).number(":now", self.units().at(at.now));
                (unpaid > 0).then_some(write)
            }

            fn plan_refund(
                &self,
                item: Option<&Item>,
                cost: u32,
                receipt: Receipt,
                at: Moment,
            ) -> Result<Option<Write>, BadItem> {
                let Some((state, stored)) = self.read(item, at)?.zip(item.and_then(Stored::read)) else {
                    return Ok(None);
                };
                let tat = self.tat(&self.refund(state, at.now, cost, receipt));
                let is_owed = self.tat(&state) > self.units().at(at.now) && tat < self.tat(&state);
                Ok(is_owed.then(|| self.replace(&stored, tat, at)))
            }
        }
    )+};
}

bucket!(TokenBucket, LeakyBucket);
