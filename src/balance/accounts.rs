//! [`Accounts`]: all keys' accounts, in memory.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard};

use super::{UnitsLeft, admitted, judged};
use crate::store::{TableStats, next_table_number};
use crate::util::keyed_hash::Secret;
use crate::util::lock::Shards;
use crate::util::references::References;
use crate::values::account::Account;
use crate::values::time::{Clock, Timestamp};
use crate::values::{Adjusted, Credit, Decision, LimiterError, Paid, PartitionKey, REFERENCE_KEPT, Shortfall, Unfit};

/// The keys' accounts, in maps with a lock each. A step on a key is done under its map's lock, so steps follow one
/// another, and there is no other order to explore.
pub(super) struct Accounts {
    shards: Shards<Shard>,
    secret: Secret,
    /// The number of accounts in all shards. Relaxed, because nothing is published through it.
    keys: AtomicUsize,
    max_keys: usize,
    credits: References,
    debits: References,
    clock: Arc<dyn Clock>,
    number: u64,
}

type Shard = HashMap<PartitionKey, Account>;

const SHARDS: usize = 64;

impl Accounts {
    pub(super) fn new(max_keys: usize, clock: Arc<dyn Clock>) -> Self {
        Self {
            shards: Shards::new(SHARDS, HashMap::new),
            secret: Secret::random(),
            keys: AtomicUsize::new(0),
            max_keys,
            credits: References::default(),
            debits: References::default(),
            clock,
            number: next_table_number(),
        }
    }

    pub(super) const fn max_keys(&self) -> usize {
        self.max_keys
    }

    /// Does a step on a key's account at an instant, if it has one, without expired lots. An account that is empty
    /// afterwards is removed.
    fn change<T>(&self, key: &PartitionKey, step: impl FnOnce(&mut Account, Timestamp) -> T) -> Option<T> {
        self.change_in(&mut self.shard(key), key, step)
    }

    /// Like [`change`](Self::change), except that an account begins if the key has none and it `may_begin`.
    fn begin<T>(
        &self,
        key: &PartitionKey,
        may_begin: impl FnOnce() -> bool,
        step: impl FnOnce(&mut Account, Timestamp) -> T,
    ) -> Option<T> {
        let mut shard = self.shard(key);
        if !shard.contains_key(key) {
            if !may_begin() {
                return None;
            }
            self.keys.fetch_add(1, Ordering::Relaxed);
            shard.insert(key.clone(), Account::default());
        }
        self.change_in(&mut shard, key, step)
    }

    fn shard(&self, key: &PartitionKey) -> MutexGuard<'_, Shard> {
        self.shards.lock(self.secret.hash(key.as_bytes()))
    }

    fn change_in<T>(
        &self,
        shard: &mut Shard,
        key: &PartitionKey,
        step: impl FnOnce(&mut Account, Timestamp) -> T,
    ) -> Option<T> {
        let account = shard.get_mut(key)?;
        // Read under the lock, so that a key's steps see instants in their order.
        let now = self.clock.now();
        account.expire(now);
        let result = step(account, now);
        if account.is_empty() {
            shard.remove(key);
            self.keys.fetch_sub(1, Ordering::Relaxed);
        }
        Some(result)
    }

    /// Does a step for an operator. The key may have no account yet.
    fn adjust(&self, key: &PartitionKey, step: impl Fn(&mut Account) -> Result<(), Unfit>) -> Result<(), LimiterError> {
        let has_room = || self.keys.load(Ordering::Relaxed) < self.max_keys;
        let done = self.begin(key, has_room, |account, _| step(account)).or_else(|| {
            self.sweep();
            self.begin(key, has_room, |account, _| step(account))
        });
        Ok(done.ok_or_else(|| self.full())??)
    }

    pub(super) fn charge(&self, key: &PartitionKey, cost: u64, shortfall: Shortfall) -> Decision {
        let step = |account: &mut Account, now| {
            let suffices_until = account.suffices_until(cost);
            let taken = account.take(cost, shortfall);
            let left = UnitsLeft::new(account.left(), suffices_until, now);
            match taken {
                Ok((taken, paid)) if taken == cost || taken > 0 => admitted(taken, left, paid),
                _ => judged(cost, left),
            }
        };
        self.change(key, step).unwrap_or_else(|| judged(cost, UnitsLeft::default()))
    }

    pub(super) fn peek(&self, key: &PartitionKey, cost: u64) -> Decision {
        let step = |account: &mut Account, now| {
            judged(cost, UnitsLeft::new(account.left(), account.suffices_until(cost), now))
        };
        self.change(key, step).unwrap_or_else(|| judged(cost, UnitsLeft::default()))
    }

    /// Gives back units, even if there are too many keys, because the units were there before the charge.
    pub(super) fn give_back(&self, key: &PartitionKey, units: u64, paid: Paid) {
        self.begin(key, || true, |account, now| account.give_back(units, paid, now));
    }

    pub(super) fn reset(&self, key: &PartitionKey) -> Decision {
        self.change(key, |account, _| account.forgive());
        self.peek(key, 0)
    }

    pub(super) fn credit(&self, key: &PartitionKey, credit: &Credit) -> Result<Adjusted, LimiterError> {
        credit.check()?;
        let now = self.clock.now();
        let expiry = credit.expiry.from(now);
        let until = credit.expiry.reference_until(now);
        let step = || self.adjust(key, |account| account.credit(credit.units, expiry, self.clock.now()));
        let done = self.credits.once(key, credit.reference.as_deref(), now, until, step)?;
        Ok(Adjusted { decision: self.peek(key, 0), is_repeated: done.is_none() })
    }

    /// Charges units by hand, even if the key doesn't have them.
    pub(super) fn debit(
        &self,
        key: &PartitionKey,
        units: u64,
        reference: Option<&str>,
    ) -> Result<Adjusted, LimiterError> {
        let now = self.clock.now();
        let step = || self.adjust(key, |account| account.take(units, Shortfall::Owed).map(drop));
        let done = self.debits.once(key, reference, now, now.saturating_add(REFERENCE_KEPT), step)?;
        Ok(Adjusted { decision: self.peek(key, 0), is_repeated: done.is_none() })
    }

    /// Removes the accounts of keys that sent no request since their lots have expired.
    #[cold]
    fn sweep(&self) {
        for mut shard in self.shards.iter() {
            let before = shard.len();
            let now = self.clock.now();
            shard.retain(|_, account| {
                account.expire(now);
                !account.is_empty()
            });
            self.keys.fetch_sub(before - shard.len(), Ordering::Relaxed);
        }
    }

    #[cold]
    fn full(&self) -> LimiterError {
        LimiterError::new(format!(
            "as many keys have a balance as this `Balance` has room for: {}; raise `max_keys`, or keep balances on a \
             server (`SharedBalance`)",
            self.max_keys
        ))
    }

    pub(super) fn stats(&self) -> TableStats {
        TableStats {
            capacity: self.max_keys as u64,
            live_keys: self.keys.load(Ordering::Relaxed) as u64,
            number: Some(self.number),
            ..TableStats::default()
        }
    }
}
