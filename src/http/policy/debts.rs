//! Debts: what requests have cost beyond what they were charged, for the next request of the key to pay.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Policy;
use super::record::Record;
use crate::values::{Decision, PartitionKey, Quota, Terms};

/// The debts of a policy's keys, in units. Bounded: what further keys owe is not kept.
#[derive(Default)]
pub(super) struct Debts {
    shards: [Mutex<HashMap<PartitionKey, u32>>; SHARDS],
    hasher: RandomState,
}

/// Two requests of different keys take the same lock in one of so many cases. It is held for one look-up.
const SHARDS: usize = 16;

/// The most keys of a shard that owe something, 65,536 in all: some 8 MiB.
const KEYS_PER_SHARD: usize = 4_096;

impl Debts {
    fn shard(&self, key: &PartitionKey) -> MutexGuard<'_, HashMap<PartitionKey, u32>> {
        let index = usize::try_from(self.hasher.hash_one(key) % SHARDS as u64).expect("less than `SHARDS`");
        // A panic under the lock leaves no entry half written, so a poisoned lock is safe to use.
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds to what a key owes. Returns `false` if there is no room for its debt.
    fn add(&self, key: &PartitionKey, units: u32) -> bool {
        let mut shard = self.shard(key);
        if shard.len() >= KEYS_PER_SHARD && !shard.contains_key(key) {
            return false;
        }
        let owed = shard.entry(key.clone()).or_insert(0);
        *owed = owed.saturating_add(units);
        true
    }

    /// Returns what a key owes.
    fn owed(&self, key: &PartitionKey) -> u32 {
        self.shard(key).get(key).copied().unwrap_or(0)
    }

    /// Takes up to `most` units of what a key owes off its debt.
    fn take(&self, key: &PartitionKey, most: u32) -> u32 {
        let mut shard = self.shard(key);
        let Some(owed) = shard.get_mut(key) else { return 0 };
        let taken = most.min(*owed);
        *owed -= taken;
        if *owed == 0 {
            shard.remove(key);
        }
        taken
    }
}

/// The part of a key's debt that a request pays with its charge. Unless it is [paid](Self::set_paid), the key owes it
/// again when this is dropped.
pub(crate) struct DebtPart {
    record: Arc<Record>,
    key: PartitionKey,
    units: u32,
    is_paid: bool,
}

impl DebtPart {
    pub(crate) const fn units(&self) -> u32 {
        self.units
    }

    /// Sets whether it is part of a charge that stays.
    pub(crate) const fn set_paid(&mut self, is_paid: bool) {
        self.is_paid = is_paid;
    }
}

impl Drop for DebtPart {
    fn drop(&mut self) {
        if !self.is_paid {
            self.record.debts().add(&self.key, self.units);
        }
    }
}

impl Policy {
    /// Adds a shortfall to what a key owes. Returns `false` if shortfalls are not owed, or if there is no room for more
    /// debts: then it is to be charged as far as units are left.
    pub(crate) fn owe(&self, key: &PartitionKey, units: u32) -> bool {
        self.owes_shortfalls && self.record.debts().add(key, units)
    }

    /// The decision on a request of cost 0, as it would be if the key had paid what it owes.
    /// Without the terms of the key, its reset is earlier than after that.
    pub(crate) fn after_debt(&self, key: &PartitionKey, terms: Option<Terms>, decision: Decision) -> Decision {
        let owed = if self.owes_shortfalls { self.record.debts().owed(key) } else { 0 };
        if owed == 0 { decision } else { decision.recharged(0, owed, terms) }
    }

    /// Forgives what a key owes.
    pub(super) fn forgive(&self, key: &PartitionKey) {
        if self.owes_shortfalls {
            self.record.debts().take(key, u32::MAX);
        }
    }

    /// Takes from the debt of a key what its next request has to pay, beside its own cost: as much as is ever admitted at
    /// once under its quota. `None` if it owes nothing.
    pub(crate) fn debt_part(&self, key: &PartitionKey, cost: u32, quota: Option<Quota>) -> Option<DebtPart> {
        if !self.owes_shortfalls || cost == 0 {
            return None;
        }
        let most = quota.map(|quota| quota.max_burst()).or(self.description.max_cost());
        let most = most.map_or(u32::MAX, |most| most.saturating_sub(cost));
        let units = self.record.debts().take(key, most.min(u32::MAX - cost));
        let part = || DebtPart { record: Arc::clone(&self.record), key: key.clone(), units, is_paid: false };
        (units > 0).then(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::TokenBucket;

    #[test]
    fn the_next_request_pays_what_fits_beside_its_own_cost() {
        let bucket = TokenBucket::new(Quota::per_second(10));
        let policy = Policy::new("p", bucket).settled_by_handler().owe_shortfalls();
        let (key, other) = (PartitionKey::from("a"), PartitionKey::from("b"));
        assert!(policy.debt_part(&key, 1, None).is_none());
        assert!(policy.owe(&key, 12) && policy.owe(&key, 3));
        assert!(policy.debt_part(&other, 1, None).is_none());
        let mut paid = policy.debt_part(&key, 4, None).unwrap();
        assert_eq!(paid.units(), 6);
        paid.set_paid(true);
        drop(paid);
        drop(policy.debt_part(&key, 1, None).unwrap());
        assert_eq!(policy.debt_part(&key, 1, None).unwrap().units(), 9, "what is not paid is owed again");
        assert!(policy.debt_part(&key, 10, None).is_none(), "there is no room beside its own cost");
        assert!(!Policy::new("p", bucket).settled_by_handler().owe(&key, 1));
    }

    #[test]
    fn debts_are_bounded() {
        let debts = Debts::default();
        let kept = (0..200_000_u64).filter(|number| debts.add(&PartitionKey::from(*number), 1)).count();
        assert_eq!(kept, SHARDS * KEYS_PER_SHARD);
    }
}
