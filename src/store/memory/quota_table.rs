//! The table of keys with quotas of their own: when it is made, and how it decides. [`heir`] makes it from the keys'
//! debts in the table without such quotas.

use std::sync::Arc;

use super::heir::{self, Predecessor, TableChange};
use super::locked::LockedTable;
use super::own_quota::UnderQuota;
use super::read_states::AnyTable;
use super::tables::{QuotaTable, Tables};
use super::{MemoryTable, resets};
use crate::algorithm::Algorithm;
use crate::values::time::{Clock, Timestamp};
use crate::values::{Ask, Decision};

impl<S: Copy + Send + 'static, C: Clock> MemoryTable<S, C> {
    /// Makes the table of keys with quotas, if the algorithm takes any. If the limiter is in use, returns once all keys
    /// are copied.
    pub(crate) fn take_quotas<A: Algorithm<State = S>>(&self, algorithm: &A) {
        if UnderQuota::without_conversion(algorithm).is_none() {
            // The table would have no keys, yet resets, counts and heirs would use it.
            return;
        }
        self.start.set_takes_quotas();
        let mut made = self.start.made.lock();
        if let Some(tables) = self.in_use() {
            drop(made);
            if let Some(past) = self.quota_table(algorithm, tables).inherited() {
                past.copy_all();
            }
            return;
        }
        let tables = made.get_or_insert_with(|| Tables::new(algorithm, &self.store, self.store.capacity));
        tables.quota_table.get_or_init(|| LockedTable::new(tables.capacity, self.store.when_full));
    }

    /// Returns the table, and makes it if it does not exist yet. If the limiter was asked without quotas before, the
    /// keys begin with their debts in the first table.
    #[inline]
    fn quota_table<'a, A: Algorithm<State = S>>(&self, algorithm: &A, tables: &'a Arc<Tables<S>>) -> &'a QuotaTable<S> {
        tables.quota_table.get().unwrap_or_else(|| self.make_quota_table(algorithm, tables))
    }

    #[cold]
    #[inline(never)]
    fn make_quota_table<'a, A: Algorithm<State = S>>(
        &self,
        algorithm: &A,
        tables: &'a Arc<Tables<S>>,
    ) -> &'a QuotaTable<S> {
        let mut is_made = false;
        let quota_table = tables.quota_table.get_or_init(|| {
            is_made = true;
            let origin = Predecessor::new(tables, self.time(algorithm));
            heir::quota_table(algorithm, &origin, TableChange::None, (tables.capacity, self.store.when_full))
        });
        if let Some(past) = quota_table.inherited().filter(|_| is_made) {
            // Not on this thread, which answers a request. And not page by page as requests need them: the copies keep
            // the limiter's tables alive until all pages are copied.
            let shared = Arc::clone(&past);
            let thread = std::thread::Builder::new().name("tower-sluice-copy".to_owned());
            if thread.spawn(move || shared.copy_all()).is_err() {
                past.copy_all();
            }
        }
        quota_table
    }

    /// Decides in the rare case that keys have quotas of their own, or that a key was reset.
    #[cold]
    #[inline(never)]
    pub(super) fn charge_seldom<A: Algorithm<State = S>>(&self, algorithm: &A, ask: &Ask<'_>, hash: u64) -> Decision {
        if ask.is_suspended() {
            return Decision::suspended();
        }
        let tables = self.tables(algorithm);
        // Before the charge: a reset in between must count as later than the charge (see `Resets::count`).
        let resets = tables.resets.count(hash);
        let decision = match tables.judge_under_quota(algorithm, ask) {
            Some(under) => {
                let (now, fresh) = (|| self.time_of(algorithm, ask), || self.time(algorithm));
                self.quota_table(algorithm, tables).check(&under, hash, ask.cost(), now, fresh)
            }
            None => self.charge_own(algorithm, tables, ask, hash),
        };
        if resets == 0 { decision } else { resets::with_count(decision, resets) }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn peek_under<A: Algorithm<State = S>>(
        &self,
        under: &UnderQuota<A>,
        algorithm: &A,
        ask: &Ask<'_>,
        (hash, now): (u64, Timestamp),
    ) -> Decision {
        if ask.is_suspended() {
            return Decision::suspended();
        }
        self.quota_table(algorithm, self.tables(algorithm)).peek(under, hash, ask.cost(), now)
    }
}
