//! Debts: request costs beyond the units that a key had left, stored as the instant at which they are paid.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::policy::expiring::{Ends, ExpiringTable, SavedValue};
use crate::values::snapshot::{Gap, Input, put_quota};
use crate::values::time::{Timestamp, duration_from_nanos};
use crate::values::{Decision, PartitionKey, Quota};

/// The debts that a policy's keys owe, for up to 65,536 keys (5 MiB from the first debt on). If there are more, the
/// debts that would be paid first are forgiven, which is counted.
///
/// A key that owes something has two accounts: the limiter's, which is used up when a debt begins, and its debt. The
/// debt is a GCRA account (ITU-T I.371) whose full bucket may be exceeded, and each charge to the limiter while the
/// debt lasts is added to the debt, too. So the debt is paid exactly as fast as the quota restores units, even if the
/// limiter restores more meanwhile.
pub(in crate::engine::policy) type Debts = ExpiringTable<Debt>;

/// A key's debt: the instant at which it is paid, at the rate of `quota`. A window's limit is its burst.
///
/// We advertise a client's wait by the quota that its request has. So a look at the debt under a quota with another
/// rate makes the key pay by that quota from then on: see [`Debts::spend`] and [`Debts::units_left`].
#[derive(Clone, Copy, Debug)]
pub(in crate::engine::policy) struct Debt {
    paid_at: Timestamp,
    quota: Quota,
}

const _: () = assert!(size_of::<Debt>() == 32, "two slots of 40 bytes for each of 65,536 keys take 5 MiB");

impl Ends for Debt {
    fn ends(&self) -> Timestamp {
        self.paid_at
    }
}

impl SavedValue for Debt {
    fn write(&self, then: Timestamp, bytes: &mut Vec<u8>) {
        self.paid_at.write(then, bytes);
        put_quota(bytes, &self.quota);
    }

    fn read(then: Timestamp, bytes: &mut Input<'_>) -> Option<Self> {
        Some(Self { paid_at: Timestamp::read(then, bytes)?, quota: bytes.quota()? })
    }

    fn moved(self, gap: Gap) -> Option<Self> {
        self.paid_at.moved(gap).map(|paid_at| Self { paid_at, ..self })
    }
}

impl Debt {
    /// The debt that is paid in the time `paid_in`.
    fn paid_after(paid_in: Duration, now: Timestamp, quota: Quota) -> Option<Self> {
        Some(Self { paid_at: now.saturating_add(paid_in), quota })
    }

    /// The time that it takes to pay the debt under `quota`. A debt that was made under another quota keeps its units
    /// and their fractions, and is rounded up by two nanoseconds at most, so that alternating quotas do not lengthen
    /// it.
    fn paid_in(self, now: Timestamp, quota: Quota) -> Duration {
        let left = self.paid_at.saturating_since(now);
        if self.quota.has_rate_of(&quota) {
            return left;
        }
        // We count in 1/`limit` nanoseconds, in which a whole unit is the quota's period. A time multiplied by a limit
        // is less than 2^114, and a fraction is less than the period, which is below 2^63.
        let [before, after] = [&self.quota, &quota].map(|quota| u128::from(quota.period_nanos()));
        let owed = left.as_nanos() * u128::from(self.quota.limit());
        let part = (owed % before * after).div_ceil(before);
        let nanos = (owed / before).saturating_mul(after).saturating_add(part).div_ceil(quota.limit().into());
        duration_from_nanos(nanos)
    }
}

impl Debts {
    /// Charges a request to its key's debt, if there is one. Returns whether there is one. If the key owes too much,
    /// returns the time that the request has to wait, and lets the key pay by `quota` from now on, so that this wait is
    /// true.
    fn spend(&self, key: &PartitionKey, quota: Quota, units: u64) -> Result<bool, Duration> {
        if self.is_over() {
            return Ok(false);
        }
        self.update(key, |debt, now| {
            let Some(owed) = debt.map(|debt| debt.paid_in(now, quota)) else { return Ok(false) };
            let after = owed.saturating_add(quota.time_to_restore(units));
            let full = time_of_burst(quota);
            let fits = after <= full;
            *debt = Debt::paid_after(if fits { after } else { owed }, now, quota);
            if fits { Ok(true) } else { Err(after - full) }
        })
    }

    /// Takes a charge back.
    pub(in crate::engine::policy) fn refund(&self, key: &PartitionKey, units: u64) {
        self.change(key, |owed, quota| owed.saturating_sub(quota.time_to_restore(units)));
    }

    /// Adds a request's cost beyond its charge: the units that the limiter was `charged`, and the units that it did not
    /// have left, which are `owed`. A key that does not owe anything yet pays by `quota`.
    pub(in crate::engine::policy) fn add(&self, key: &PartitionKey, quota: Quota, charged: u64, owed: u64) {
        if owed == 0 {
            return self.change(key, |before, quota| before.saturating_add(quota.time_to_restore(charged)));
        }
        self.update(key, |debt, now| {
            let paid_by = debt.map_or(quota, |debt| debt.quota);
            // The limiter has nothing left.
            let full = paid_by.time_to_restore(quota.max_burst());
            let charged = paid_by.time_to_restore(charged);
            let before = debt.map_or(full, |debt| debt.paid_in(now, paid_by).saturating_add(charged).max(full));
            *debt = Debt::paid_after(before.saturating_add(paid_by.time_to_restore(owed)), now, paid_by);
        });
    }

    /// Changes the time in which a key pays its debt, if it has one. The quota by which it pays stays, because a
    /// request that came under an earlier quota must not falsify the waits that were advertised since.
    fn change(&self, key: &PartitionKey, change: impl FnOnce(Duration, Quota) -> Duration) {
        if !self.is_over() {
            self.update(key, |debt, now| {
                *debt = debt.and_then(|debt| {
                    Debt::paid_after(change(debt.paid_in(now, debt.quota), debt.quota), now, debt.quota)
                });
            });
        }
    }

    /// The units that a key has left, and the time until its debt is paid, if it has one. With a `quota`, the key pays
    /// by it from now on. Without one, the quota of the key's last request applies.
    pub(in crate::engine::policy) fn units_left(&self, key: &PartitionKey, quota: Option<Quota>) -> Option<UnitsLeft> {
        let (mut debt, mut now) = self.get(key)?;
        if let Some(quota) = quota.filter(|quota| !debt.quota.has_rate_of(quota)) {
            (debt, now) = self.update(key, |owed, now| {
                *owed = owed.and_then(|debt| Debt::paid_after(debt.paid_in(now, quota), now, quota));
                owed.map(|debt| (debt, now))
            })?;
        }
        let quota = quota.unwrap_or(debt.quota);
        let paid_in = debt.paid_in(now, quota);
        let full = time_of_burst(quota);
        let free = full.saturating_sub(paid_in).as_nanos() * u128::from(quota.limit());
        let units = u64::try_from(free / u128::from(quota.period_nanos())).unwrap_or(u64::MAX);
        let next = paid_in.saturating_add(quota.time_to_restore(1)).saturating_sub(full);
        Some(UnitsLeft { units: units.min(quota.max_burst()), next, paid_in })
    }
}

/// The units that a key has left while it has a debt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine::policy) struct UnitsLeft {
    units: u64,
    /// The time until it has one unit.
    next: Duration,
    /// The time until it owes nothing.
    paid_in: Duration,
}

impl UnitsLeft {
    /// The limiter's decision, with the debt taken into account.
    pub(in crate::engine::policy) fn of(self, decision: Decision) -> Decision {
        decision.leaving_at_most(self.units, self.next, self.paid_in)
    }
}

fn time_of_burst(quota: Quota) -> Duration {
    quota.time_to_restore(quota.max_burst())
}

/// A request's charge to its key's debt. Unless it is [kept](Self::keep), dropping this takes it back.
pub(crate) struct DebtCharge {
    debts: Arc<Debts>,
    key: PartitionKey,
    units: u64,
    is_kept: bool,
}

impl DebtCharge {
    /// Charges a request to its key's debt, if there is one.
    ///
    /// # Errors
    ///
    /// If the debt is too large for the request to be admitted now: the time that it has to wait.
    pub(in crate::engine::policy) fn new(
        debts: &Arc<Debts>,
        key: &PartitionKey,
        quota: Quota,
        units: u64,
    ) -> Result<Option<Self>, Duration> {
        let is_in_debt = debts.spend(key, quota, units)?;
        Ok(is_in_debt.then(|| Self { debts: Arc::clone(debts), key: key.clone(), units, is_kept: false }))
    }

    /// Keeps the charge, because the request was admitted.
    pub(crate) const fn keep(&mut self) {
        self.is_kept = true;
    }

    /// Takes the charge back, because the request was rolled back.
    pub(crate) const fn take_back(&mut self) {
        self.is_kept = false;
    }
}

impl Drop for DebtCharge {
    fn drop(&mut self) {
        if !self.is_kept {
            self.debts.refund(&self.key, self.units);
        }
    }
}
