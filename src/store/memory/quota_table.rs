//! The table for keys with their own quotas: when it is made, and how it decides. [`heir`] makes it from the keys'
//! debts in the table without such quotas.

use std::sync::Arc;

use super::heir::{self, Origin};
use super::ledger::{DebtOrigin, TableChange};
use super::locked::LockedTable;
use super::own_quota::UnderQuota;
use super::read_states::AnyTable;
use super::start::SharedTable;
use super::tables::{QuotaTable, Tables};
use super::{charge_locked, resets};
use crate::algorithm::Algorithm;
use crate::values::time::Timestamp;
use crate::values::{Ask, Decision};

impl<S: Copy + Send + 'static> SharedTable<S> {
    /// Makes the table for keys with quotas, if the algorithm takes any. If the limiter is in use, returns once all
    /// keys are copied.
    pub(crate) fn take_quotas<A: Algorithm<State = S>>(&self, algorithm: &A) {
        if UnderQuota::without_conversion(algorithm).is_none() {
            // The table would have no keys, yet resets, counts and heirs would use it.
            return;
        }
        self.set_takes_quotas();
        let mut made = self.made.lock();
        if let Some(tables) = self.whole_in_use(algorithm) {
            drop(made);
            if let Some(past) = self.quota_table(algorithm, tables).inherited() {
                past.copy_all();
            }
            return;
        }
        let tables = made.get_or_insert_with(|| Tables::new(algorithm, &self.settings, self.settings.capacity));
        tables.quota_table.get_or_init(|| LockedTable::new(tables.capacity, self.settings.when_full));
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
        tables.complete(algorithm);
        let mut is_made = false;
        let quota_table = tables.quota_table.get_or_init(|| {
            is_made = true;
            let origin: Arc<dyn DebtOrigin> = Origin::new(tables, self.settings.time(algorithm));
            heir::quota_table(algorithm, &origin, TableChange::None, (tables.capacity, self.settings.when_full))
        });
        if let Some(past) = quota_table.inherited().filter(|_| is_made) {
            // Not on this thread, which answers a request, and not page by page as requests need them, because the
            // copies keep the limiter's tables alive until all pages are copied.
            let shared = Arc::clone(&past);
            let thread = std::thread::Builder::new().name("tower-sluice-copy".to_owned());
            if thread.spawn(move || shared.copy_all()).is_err() {
                past.copy_all();
            }
        }
        quota_table
    }

    /// Decides in the rare case that keys have their own quotas, or that a key was reset.
    #[cold]
    #[inline(never)]
    pub(super) fn charge_seldom<A: Algorithm<State = S>>(
        &self,
        algorithm: &A,
        tables: &Arc<Tables<S>>,
        ask: &Ask<'_>,
    ) -> Decision {
        if ask.is_suspended() {
            return Decision::suspended();
        }
        let hash = tables.hash(ask.key());
        // Read it before the charge, because a reset in between must count as later than the charge (see
        // `Resets::count`).
        let resets = tables.resets.count(hash);
        let has_quotas = ask.quota().is_some() | tables.quota_table.get().is_some();
        let under = if has_quotas { UnderQuota::for_ask(algorithm, ask) } else { None };
        let decision = match under {
            Some(under) => charge_locked(self.quota_table(algorithm, tables), &under, ask, hash, &*self.settings.clock),
            None => self.charge_own(algorithm, tables, ask, hash),
        };
        if resets == 0 { decision } else { resets::with_count(decision, resets) }
    }

    /// Peeks at a key in the rare case that keys have their own quotas, if the algorithm takes any.
    #[cold]
    #[inline(never)]
    pub(super) fn peek_under<A: Algorithm<State = S>>(
        &self,
        algorithm: &A,
        tables: &Arc<Tables<S>>,
        ask: &Ask<'_>,
        (hash, now): (u64, Timestamp),
    ) -> Option<Decision> {
        let under = UnderQuota::for_ask(algorithm, ask)?;
        if ask.is_suspended() {
            return Some(Decision::suspended());
        }
        Some(self.quota_table(algorithm, tables).peek(&under, hash, ask.cost(), now))
    }
}
