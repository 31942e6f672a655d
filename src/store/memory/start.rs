//! The tables of a limiter, before and after its first question.
//!
//! | | `made` | `in_use` | moved here by |
//! |---|---|---|---|
//! | not made | none | none | [`MemoryStore::table`]; a live change that cannot inherit |
//! | made | some | none | [`open`](crate::store::OpenStore::open), [`take_quotas`](MemoryTable::take_quotas) |
//! | in use | none | some | the first question ([`tables`](MemoryTable::tables)); [`inherit`](MemoryTable::inherit) |
//!
//! Tables in use stay in use. Only tables that are not in use may inherit.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use super::MemoryTable;
use super::settings::MemoryStore;
use super::tables::Tables;
use crate::algorithm::Algorithm;
use crate::util::lock::Lock;
use crate::values::time::Clock;

pub(super) struct TableStart<S> {
    pub(super) made: Lock<Option<Tables<S>>>,
    /// Shared with the `Predecessor` that heirs copy from.
    pub(super) in_use: OnceLock<Arc<Tables<S>>>,
    /// Whether keys may have quotas of their own.
    takes_quotas: AtomicBool,
}

impl<S> TableStart<S> {
    pub(super) const fn new(in_use: OnceLock<Arc<Tables<S>>>, takes_quotas: bool) -> Self {
        Self { made: Lock::new(None), in_use, takes_quotas: AtomicBool::new(takes_quotas) }
    }

    pub(super) fn takes_quotas(&self) -> bool {
        // Relaxed: it is set before the limiter is asked, or inherits; later, a question under a quota makes the table.
        self.takes_quotas.load(Ordering::Relaxed)
    }

    pub(super) fn set_takes_quotas(&self) {
        self.takes_quotas.store(true, Ordering::Relaxed);
    }
}

impl<C: Clock> MemoryStore<C> {
    /// Makes a table that is filled by its first question. The steps of `http/policy` pass it another algorithm each
    /// time.
    pub(crate) fn table<S: Copy + Send + 'static>(self) -> MemoryTable<S, C> {
        MemoryTable::starting(self, TableStart::new(OnceLock::new(), false))
    }
}

impl<S: Copy + Send + 'static, C> MemoryTable<S, C> {
    pub(super) fn starting(store: MemoryStore<C>, start: TableStart<S>) -> Self {
        Self { store, tables: OnceLock::new(), start: Arc::new(start) }
    }

    /// Returns the tables in use, if there was a question.
    pub(super) fn in_use(&self) -> Option<&Arc<Tables<S>>> {
        self.start.in_use.get()
    }
}

impl<S: Copy + Send + 'static, C: Clock> MemoryTable<S, C> {
    /// Returns the tables in use, for a question.
    #[inline]
    pub(super) fn tables<A: Algorithm<State = S>>(&self, algorithm: &A) -> &Arc<Tables<S>> {
        self.tables.get_or_init(|| Arc::clone(self.begin(algorithm)))
    }

    /// Puts the made tables into use. From then on they cannot inherit.
    #[cold]
    #[inline(never)]
    fn begin<A: Algorithm<State = S>>(&self, algorithm: &A) -> &Arc<Tables<S>> {
        self.start.in_use.get_or_init(|| {
            let made = self.start.made.lock().take();
            Arc::new(made.unwrap_or_else(|| Tables::new(algorithm, &self.store, self.store.capacity)))
        })
    }
}
