//! A limiter's tables, before and after its first question.
//!
//! | | `made` | `in_use` | moved here by |
//! |---|---|---|---|
//! | not made | none | none | [`MemoryStore::table`]; a live change that cannot inherit |
//! | made | some | none | [`open`](crate::store::OpenStore::open), `take_quotas` |
//! | in use | none | some | the first question ([`tables`](MemoryTable::tables)); [`inherit`](MemoryTable::inherit) |
//!
//! Tables in use stay in use. Only tables that are not in use may inherit.
//!
//! [`SharedTable`] has all operations on a table except the decisions on requests. Since it knows no type of clock,
//! they are compiled once for an algorithm.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use super::MemoryTable;
use super::settings::{MemoryStore, Settings};
use super::tables::Tables;
use crate::algorithm::Algorithm;
use crate::util::lock::Lock;
use crate::values::time::Clock;

/// The part of a table that its clones share.
pub(crate) struct SharedTable<S> {
    pub(super) settings: Settings,
    pub(super) made: Lock<Option<Tables<S>>>,
    /// Shared with the `Origin` that heirs copy from.
    in_use: OnceLock<Arc<Tables<S>>>,
    /// Whether keys may have their own quotas.
    takes_quotas: AtomicBool,
}

impl<S> SharedTable<S> {
    /// Returns the tables in use, if there was a question.
    pub(super) fn in_use(&self) -> Option<&Arc<Tables<S>>> {
        self.in_use.get()
    }

    /// Puts tables into use, unless others are in use.
    pub(super) fn put_in_use(&self, tables: Arc<Tables<S>>) -> Result<(), Arc<Tables<S>>> {
        self.in_use.set(tables)
    }

    /// Returns a table with the same settings, with these tables in use.
    pub(super) fn beside(&self, in_use: Arc<Tables<S>>) -> Self {
        Self {
            settings: self.settings.clone(),
            made: Lock::new(None),
            in_use: OnceLock::from(in_use),
            takes_quotas: AtomicBool::new(self.takes_quotas()),
        }
    }

    pub(super) fn takes_quotas(&self) -> bool {
        // Relaxed, because it is set before the limiter is asked, or inherits; later, a question under a quota makes
        // the table.
        self.takes_quotas.load(Ordering::Relaxed)
    }

    pub(super) fn set_takes_quotas(&self) {
        self.takes_quotas.store(true, Ordering::Relaxed);
    }
}

impl<C: Clock> MemoryStore<C> {
    /// Makes a table that is filled by its first question. The steps of `engine/policy` pass it another algorithm each
    /// time.
    pub(crate) fn table<S: Copy + Send + 'static>(self) -> MemoryTable<S, C> {
        let shared = SharedTable {
            settings: self.settings(),
            made: Lock::new(None),
            in_use: OnceLock::new(),
            takes_quotas: AtomicBool::new(false),
        };
        MemoryTable::starting(self, shared)
    }
}

impl<S: Copy + Send + 'static, C> MemoryTable<S, C> {
    pub(super) fn starting(store: MemoryStore<C>, shared: SharedTable<S>) -> Self {
        Self { store, tables: OnceLock::new(), shared: Arc::new(shared) }
    }

    /// Returns the tables in use, for a question.
    #[inline]
    pub(super) fn tables<A: Algorithm<State = S>>(&self, algorithm: &A) -> &Arc<Tables<S>> {
        self.tables.get_or_init(|| Arc::clone(self.shared.tables(algorithm)))
    }
}

impl<S: Copy + Send + 'static> SharedTable<S> {
    /// Puts the made tables into use. From then on they cannot inherit.
    #[cold]
    #[inline(never)]
    pub(super) fn tables<A: Algorithm<State = S>>(&self, algorithm: &A) -> &Arc<Tables<S>> {
        self.in_use.get_or_init(|| {
            let made = self.made.lock().take();
            Arc::new(made.unwrap_or_else(|| Tables::deciding(algorithm, &self.settings, self.settings.capacity)))
        })
    }

    /// Puts the made tables into use, for more than decisions.
    pub(super) fn whole_tables<A: Algorithm<State = S>>(&self, algorithm: &A) -> &Arc<Tables<S>> {
        let tables = self.tables(algorithm);
        tables.complete(algorithm);
        tables
    }

    /// Returns the tables in use, for more than decisions.
    pub(super) fn whole_in_use<A: Algorithm<State = S>>(&self, algorithm: &A) -> Option<&Arc<Tables<S>>> {
        self.in_use().inspect(|tables| tables.complete(algorithm))
    }
}
