//! How a limiter in memory inherits from another: everything that can fail is done here, before the change is in force.

use std::sync::{Arc, Mutex, OnceLock};

use super::ledger::Copying;
use super::past::{Geometry, Inherited, KeptState, MOST_LAYERS, PackedDebt, Source};
use super::{Kept, MemoryStore, Table};
use crate::algorithm::Algorithm;
use crate::inheritance::{Finish, Inheritance};
use crate::quota::Quota;
use crate::time::{self, Clock, Timestamp};

/// In place, if `store` was not asked for anything yet; else by another one that is like it.
pub(super) fn inherit<A: Algorithm, C: Clock>(
    store: &MemoryStore<A::State, C>,
    algorithm: &Arc<A>,
    predecessor: &Arc<Kept<A::State>>,
) -> Option<Inheritance<MemoryStore<A::State, C>>> {
    if let Some(own) = store.kept.get() {
        if Arc::ptr_eq(own, predecessor) {
            return Some(Inheritance::in_place());
        }
        // Another layer was first: to inherit once more would be to forget what was used since.
        if own.inherits_from(predecessor) {
            return Some(done(Inheritance::in_place(), own.finish()));
        }
    }
    let heir = Heir::new(store, algorithm, predecessor)?;
    let keeps_capacity = heir.kept.capacity != store.capacity;
    let finish = heir.kept.finish();
    let kept = match store.kept.get() {
        None => store.kept.set(Arc::new(heir.kept)).err(),
        Some(_) => Some(Arc::new(heir.kept)),
    };
    let inheritance = match kept {
        None => Inheritance::in_place(),
        // It has debts of its own.
        Some(kept) => Inheritance::by(MemoryStore {
            capacity: store.capacity,
            when_full: store.when_full,
            clock: Arc::clone(&store.clock),
            made: Mutex::new(None),
            kept: OnceLock::from(kept),
        }),
    };
    Some(done(inheritance.keeping_capacity(keeps_capacity), finish))
}

fn done<H>(inheritance: Inheritance<H>, finish: Option<Finish>) -> Inheritance<H> {
    match finish {
        Some(finish) => inheritance.then(finish),
        None => inheritance,
    }
}

impl<S: Copy + Send + 'static> Kept<S> {
    fn inherits_from(&self, predecessor: &Self) -> bool {
        let number = match &self.table {
            Table::Compact(ledger) => ledger.inherited().map(|past| past.predecessor()),
            Table::Wide(table) => table.inherited().map(|past| past.predecessor()),
        };
        number == Some(predecessor.pressure().number())
    }

    /// What is to be done once it is in force.
    fn finish(&self) -> Option<Finish> {
        match &self.table {
            Table::Compact(ledger) => {
                let past = Arc::clone(ledger.inherited()?);
                Some(Box::new(move || past.copy_all()))
            }
            Table::Wide(table) => {
                let past = Arc::clone(table.inherited()?);
                Some(Box::new(move || past.copy_all()))
            }
        }
    }

    fn geometry(&self) -> Geometry {
        match &self.table {
            Table::Compact(ledger) => ledger.table().geometry(),
            Table::Wide(table) => table.geometry(),
        }
    }

    fn geometries(&self, now: Timestamp) -> Vec<Geometry> {
        match &self.table {
            Table::Compact(ledger) => ledger.geometries(now),
            Table::Wide(table) => table.geometries(now),
        }
    }
}

struct Heir<S> {
    kept: Kept<S>,
}

impl<S: Copy + Send + 'static> Heir<S> {
    fn new<A: Algorithm<State = S>, C: Clock>(
        store: &MemoryStore<S, C>,
        algorithm: &Arc<A>,
        predecessor: &Arc<Kept<S>>,
    ) -> Option<Self> {
        let made = store.made().take();
        let mut kept = made.unwrap_or_else(|| store.make(&**algorithm, store.capacity));
        if kept.terms.clock != predecessor.terms.clock {
            return None;
        }
        // One instant for all of it, read once.
        time::let_go();
        let now = store.clock.now();
        let geometries = predecessor.geometries(now);
        if geometries.len() >= MOST_LAYERS && !geometries.contains(&kept.geometry()) {
            // Its own heir would inherit from one table too many.
            kept = store.make(&**algorithm, predecessor.capacity);
        }
        kept.secret = predecessor.secret;
        kept.resets = predecessor.resets.inherited();
        let (from, to) = (predecessor.terms, kept.terms);
        match (&mut kept.table, &predecessor.table) {
            (Table::Compact(own), Table::Compact(ledger)) => {
                let quota = algorithm.as_bucket()?;
                own.inherit(&quota, ledger, now, &geometries, |copying| {
                    Arc::new(FromLedger { predecessor: Arc::clone(predecessor), copying })
                })?;
            }
            (Table::Wide(own), Table::Wide(table)) => {
                let same_windows = from.staggered == to.staggered
                    && (!to.staggered || from.quota.period_nanos() == to.quota.period_nanos());
                if from.algorithm != to.algorithm || !same_windows || !algorithm.can_adopt(&from.quota) {
                    return None;
                }
                let (algorithm, predecessor) = (Arc::clone(algorithm), Arc::clone(predecessor));
                let number = predecessor.pressure().number();
                let source = FromWide { algorithm, predecessor, from: from.quota, at: now };
                own.inherit(Arc::new(Inherited::new(number, &geometries, Arc::new(source))), table);
            }
            _ => return None,
        }
        Some(Self { kept })
    }
}

/// The debts of buckets.
struct FromLedger<S> {
    predecessor: Arc<Kept<S>>,
    copying: Copying,
}

impl<S: Copy + Send + 'static> Source<PackedDebt> for FromLedger<S> {
    fn copy(&self, geometry: Geometry, page: usize, put: &mut dyn FnMut(usize, PackedDebt, u64)) {
        if let Table::Compact(ledger) = &self.predecessor.table {
            ledger.copy(&self.copying, geometry, page, put);
        }
    }
}

/// The states of an algorithm.
struct FromWide<A: Algorithm> {
    algorithm: Arc<A>,
    predecessor: Arc<Kept<A::State>>,
    from: Quota,
    at: Timestamp,
}

impl<A: Algorithm> Source<KeptState<A::State>> for FromWide<A> {
    fn copy(&self, geometry: Geometry, page: usize, put: &mut dyn FnMut(usize, KeptState<A::State>, u64)) {
        if let Table::Wide(table) = &self.predecessor.table {
            table.copy(&*self.algorithm, &self.from, self.at, (geometry, page), put);
        }
    }
}
