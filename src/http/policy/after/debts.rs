//! Debts: the cost of requests beyond the units that their keys had left, as the instant at which it is paid.

use std::sync::Arc;
use std::time::Duration;

use crate::http::policy::expiring::{Ends, ExpiringTable, SavedValue};
use crate::values::snapshot::{Gap, Input, put_quota};
use crate::values::time::{Timestamp, duration_from_nanos};
use crate::values::{PartitionKey, Quota};

/// The debts of a policy's keys, for up to 65,536 of them (5 MiB from the first debt on). If there are more, the
/// debts that would be paid first are forgiven, which is counted.
///
/// A key that owes something has two accounts: the limiter's, which is used up when a debt begins, and its debt. The
/// debt is an account by GCRA (ITU-T I.371) whose full bucket may be exceeded: each charge to the limiter while the
/// debt lasts is added to the debt, too. So the debt is paid exactly as fast as the quota restores units, even if the
/// limiter restores more meanwhile.
pub(in crate::http::policy) type Debts = ExpiringTable<Debt>;

/// The debt of a key: the instant at which it is paid, at the rate of the key's quota. A window's limit is its burst.
#[derive(Clone, Copy, Debug)]
pub(in crate::http::policy) struct Debt {
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

    /// The time that it takes to pay the debt under `quota`. A debt that was made under another quota keeps its
    /// units.
    fn paid_in(self, now: Timestamp, quota: Quota) -> Duration {
        let left = self.paid_at.saturating_since(now);
        if self.quota.has_rate_of(&quota) {
            return left;
        }
        // The product of a time and a limit is less than 2^114.
        let units = (left.as_nanos() * u128::from(self.quota.limit())).div_ceil(self.quota.period_nanos().into());
        let nanos = units.checked_mul(quota.period_nanos().into());
        duration_from_nanos(nanos.map_or(u128::MAX, |nanos| nanos.div_ceil(quota.limit().into())))
    }
}

impl Debts {
    /// Charges a request to the debt of its key, if there is one. Returns whether there is one. If the key owes too
    /// much, returns the time that the request has to wait.
    fn spend(&self, key: &PartitionKey, quota: Quota, units: u64) -> Result<bool, Duration> {
        if self.is_over() {
            return Ok(false);
        }
        self.update(key, |debt, now| {
            let Some(owed) = debt.map(|debt| debt.paid_in(now, quota)) else { return Ok(false) };
            let after = owed.saturating_add(quota.time_to_restore(units));
            let full = time_of_burst(quota);
            if after > full {
                return Err(after - full);
            }
            *debt = Debt::paid_after(after, now, quota);
            Ok(true)
        })
    }

    /// Takes a charge back.
    pub(in crate::http::policy) fn refund(&self, key: &PartitionKey, quota: Quota, units: u64) {
        self.change(key, quota, |owed| owed.saturating_sub(quota.time_to_restore(units)));
    }

    /// Adds the cost of a request beyond its charge: the units that its limiter was `charged` for it, and the units
    /// that the limiter had not left, which are `owed`.
    pub(in crate::http::policy) fn add(&self, key: &PartitionKey, quota: Quota, charged: u64, owed: u64) {
        let charged = quota.time_to_restore(charged);
        if owed == 0 {
            return self.change(key, quota, |before| before.saturating_add(charged));
        }
        self.update(key, |debt, now| {
            // Its limiter has nothing left.
            let full = time_of_burst(quota);
            let before = debt.map_or(full, |debt| debt.paid_in(now, quota).saturating_add(charged).max(full));
            *debt = Debt::paid_after(before.saturating_add(quota.time_to_restore(owed)), now, quota);
        });
    }

    /// Changes the time in which a key pays its debt, if it has one.
    fn change(&self, key: &PartitionKey, quota: Quota, change: impl FnOnce(Duration) -> Duration) {
        if !self.is_over() {
            self.update(key, |debt, now| {
                *debt = debt.and_then(|debt| Debt::paid_after(change(debt.paid_in(now, quota)), now, quota));
            });
        }
    }

    /// The units that a key has left, and the time until its debt is paid, if it has one. Without a `quota`, by the
    /// quota of the key's last request.
    pub(in crate::http::policy) fn units_left(
        &self,
        key: &PartitionKey,
        quota: Option<Quota>,
    ) -> Option<(u64, Duration)> {
        let (debt, now) = self.get(key)?;
        let quota = quota.unwrap_or(debt.quota);
        let owed = debt.paid_in(now, quota);
        let free = time_of_burst(quota).saturating_sub(owed).as_nanos() * u128::from(quota.limit());
        let left = u64::try_from(free / u128::from(quota.period_nanos())).unwrap_or(u64::MAX);
        Some((left.min(quota.max_burst()), owed))
    }
}

fn time_of_burst(quota: Quota) -> Duration {
    quota.time_to_restore(quota.max_burst())
}

/// The charge of a request to the debt of its key. Unless it is [kept](Self::keep), it is taken back when this is
/// dropped.
pub(crate) struct DebtCharge {
    debts: Arc<Debts>,
    key: PartitionKey,
    quota: Quota,
    units: u64,
    is_kept: bool,
}

impl DebtCharge {
    /// Charges a request to the debt of its key, if there is one.
    ///
    /// # Errors
    ///
    /// If the debt is too large for the request to be admitted now: the time that it has to wait.
    pub(in crate::http::policy) fn new(
        debts: &Arc<Debts>,
        key: &PartitionKey,
        quota: Quota,
        units: u64,
    ) -> Result<Option<Self>, Duration> {
        let is_in_debt = debts.spend(key, quota, units)?;
        Ok(is_in_debt.then(|| Self { debts: Arc::clone(debts), key: key.clone(), quota, units, is_kept: false }))
    }

    /// Keeps it: the request was admitted.
    pub(crate) const fn keep(&mut self) {
        self.is_kept = true;
    }

    /// Takes it back: the request was rolled back.
    pub(crate) const fn take_back(&mut self) {
        self.is_kept = false;
    }
}

impl Drop for DebtCharge {
    fn drop(&mut self) {
        if !self.is_kept {
            self.debts.refund(&self.key, self.quota, self.units);
        }
    }
}
