//! Makes the heir of a limiter in memory, at a live change. All that can fail is done here, before the change is in
//! force; [`debt_copies`](super::debt_copies) then copies what is owed.

use std::any::{Any, TypeId};
use std::sync::{Arc, Mutex, OnceLock};

use super::debt_copies::{CopiedDebt, DebtCopies, Geometry, KeptState, MOST_COPIES, PackedDebt, Source};
use super::ledger::Ledger;
use super::locked::{LockedTable, local_of};
use super::table::{Conversion, Counts, Rule, Tag, TickBucket, WindowRule};
use super::{Kept, MemoryStore, Table, any_table};
use crate::algorithm::{Algorithm, Kind};
use crate::values::time::{Clock, Timestamp};
use crate::values::{Finish, Inheritance, Quota};

/// Makes `store` inherit, if it was not used yet; else another store that is like it.
pub(super) fn inherit<A: Algorithm, C: Clock>(
    store: &MemoryStore<A::State, C>,
    algorithm: &Arc<A>,
    predecessor: &Arc<Kept<A::State>>,
) -> Option<Inheritance<MemoryStore<A::State, C>>> {
    if let Some(own) = store.kept.get() {
        if Arc::ptr_eq(own, predecessor) {
            return Some(Inheritance::in_place());
        }
        // Another layer was first. To inherit once more would forget what was used since.
        if own.inherits_from(predecessor) {
            return Some(Inheritance::in_place().and_then(own.finish()));
        }
    }
    let heir = make_heir(store, algorithm, predecessor)?;
    let keeps_capacity = heir.capacity != store.capacity;
    let finish = heir.finish();
    let rejected = match store.kept.get() {
        None => store.kept.set(Arc::new(heir)).err(),
        Some(_) => Some(Arc::new(heir)),
    };
    let inheritance = match rejected {
        None => Inheritance::in_place(),
        // The store has debts of its own.
        Some(kept) => Inheritance::by(MemoryStore {
            capacity: store.capacity,
            when_full: store.when_full,
            clock: Arc::clone(&store.clock),
            made: Mutex::new(None),
            kept: OnceLock::from(kept),
        }),
    };
    Some(inheritance.keeping_capacity(keeps_capacity).and_then(finish))
}

fn make_heir<A: Algorithm, C: Clock>(
    store: &MemoryStore<A::State, C>,
    algorithm: &Arc<A>,
    predecessor: &Arc<Kept<A::State>>,
) -> Option<Kept<A::State>> {
    let made = store.made().take();
    let mut heir = made.unwrap_or_else(|| store.make(&**algorithm, store.capacity));
    if heir.terms.clock != predecessor.terms.clock {
        return None;
    }
    // One instant for all of it, read once.
    let now = store.clock.now();
    let geometries = predecessor.geometries(now);
    if geometries.len() >= MOST_COPIES && !geometries.contains(&heir.geometry()) {
        // The heir of this heir would inherit from tables of one capacity too many.
        heir = store.make(&**algorithm, predecessor.capacity);
    }
    heir.secret = predecessor.secret;
    heir.resets = predecessor.resets.inherited();
    heir.occupancy().inherit_warning(predecessor.occupancy());
    match (&mut heir.table, &predecessor.table) {
        (Table::Bucket(own), Table::Bucket(ledger)) => {
            let Kind::Bucket { quota } = algorithm.kind() else { return None };
            own.inherit_from(ledger, &quota, now, &geometries, |rule, base| {
                Box::new(FromBuckets { predecessor: Arc::clone(predecessor), rule, base, at: now })
            })?;
        }
        (Table::Bucket(_), _) | (_, Table::Bucket(_)) => return None,
        _ => {
            let states = States::new(algorithm, predecessor, now, &heir)?;
            if heir.terms.quota.period_nanos() != predecessor.terms.quota.period_nanos() {
                // Receipts name windows by number. After another change of the period, that may be the number of
                // another window.
                heir.resets = predecessor.resets.all_reset();
            }
            let greatest = predecessor.greatest(now);
            let when_full = store.when_full;
            let (terms, capacity) = (heir.terms, heir.capacity);
            let fits = match &mut heir.table {
                Table::Fixed(own) => states.clone().begin_in(own, terms.staggered, greatest, &geometries),
                Table::Sliding(own) => states.clone().begin_in(own, terms.staggered, greatest, &geometries),
                Table::Locked(_) | Table::Bucket(_) => false,
            };
            if !fits {
                // Counts that do not fit into the words of this limit are kept behind locks.
                if !matches!(heir.table, Table::Locked(_)) {
                    heir.table = Table::Locked(LockedTable::new(capacity, when_full));
                }
                if let Table::Locked(own) = &mut heir.table {
                    let number = states.predecessor.occupancy().number();
                    own.inherit(Arc::new(DebtCopies::new(number, &geometries, Box::new(states))), greatest);
                }
            }
        }
    }
    Some(heir)
}

impl<S: Copy + Send + 'static> Kept<S> {
    fn inherits_from(&self, predecessor: &Self) -> bool {
        let number = any_table!(&self.table, table => table.inherited().map(|past| past.predecessor()));
        number == Some(predecessor.occupancy().number())
    }

    /// Returns what is to be done once the change is in force.
    fn finish(&self) -> Option<Finish> {
        any_table!(&self.table, table => table.inherited().map(finish))
    }

    fn geometry(&self) -> Geometry {
        any_table!(&self.table, table => table.geometry())
    }

    fn geometries(&self, now: Timestamp) -> Vec<Geometry> {
        any_table!(&self.table, table => table.geometries(now))
    }

    /// Returns the greatest count that any key of a window may have.
    fn greatest(&self, now: Timestamp) -> u32 {
        fn of<W: Counts>(ledger: &Ledger<WindowRule<W>>, now: Timestamp) -> u32 {
            if ledger.has_past(now) { ledger.rule().greatest() } else { ledger.rule().limit() }
        }
        match &self.table {
            Table::Fixed(ledger) => of(ledger, now),
            Table::Sliding(ledger) => of(ledger, now),
            Table::Locked(table) => table.greatest(now).max(self.terms.quota.limit()),
            Table::Bucket(_) => self.terms.quota.limit(),
        }
    }
}

fn finish<E: CopiedDebt + 'static>(past: &Arc<DebtCopies<E>>) -> Finish {
    let past = Arc::clone(past);
    Box::new(move || past.copy_all())
}

/// Copies the debts of buckets.
struct FromBuckets<S> {
    predecessor: Arc<Kept<S>>,
    rule: TickBucket,
    base: u64,
    at: Timestamp,
}

impl<S: Copy + Send + 'static> Source<PackedDebt> for FromBuckets<S> {
    fn copy(&self, geometry: Geometry, page: usize, put: &mut dyn FnMut(usize, PackedDebt, u64)) {
        let Table::Bucket(ledger) = &self.predecessor.table else { return };
        let conversion: Conversion = self.rule.conversion(ledger.rule(), ledger.rule().read(self.at));
        ledger.each_owed((geometry, page), self.at, |set, tag, debt| {
            let debt = conversion.debt(debt);
            put(set, PackedDebt::new(tag, debt), self.base + debt);
        });
    }
}

/// Copies the states of windows, or of a user's algorithm.
struct States<A: Algorithm> {
    algorithm: Arc<A>,
    predecessor: Arc<Kept<A::State>>,
    from: Quota,
    at: Timestamp,
}

impl<A: Algorithm> Clone for States<A> {
    fn clone(&self) -> Self {
        let (algorithm, predecessor) = (Arc::clone(&self.algorithm), Arc::clone(&self.predecessor));
        Self { algorithm, predecessor, from: self.from, at: self.at }
    }
}

impl<A: Algorithm> States<A> {
    fn new(
        algorithm: &Arc<A>,
        predecessor: &Arc<Kept<A::State>>,
        at: Timestamp,
        heir: &Kept<A::State>,
    ) -> Option<Self> {
        let (from, to) = (predecessor.terms, heir.terms);
        // Else the windows begin at other instants, for each key by as much as its phase changes.
        let same_windows =
            from.staggered == to.staggered && (!to.staggered || from.quota.period_nanos() == to.quota.period_nanos());
        let can_inherit = from.algorithm == to.algorithm && same_windows && algorithm.can_inherit(&from.quota);
        let (algorithm, predecessor) = (Arc::clone(algorithm), Arc::clone(predecessor));
        can_inherit.then_some(Self { algorithm, predecessor, from: from.quota, at })
    }

    /// Lets a table of words begin with these states, if their counts fit.
    fn begin_in<W: Counts>(
        self,
        own: &mut Ledger<WindowRule<W>>,
        staggered: bool,
        greatest: u32,
        geometries: &[Geometry],
    ) -> bool {
        let Some(rule) = WindowRule::<W>::holding(&self.algorithm.quota(), staggered, greatest) else { return false };
        if TypeId::of::<W>() != TypeId::of::<A::State>() {
            return false;
        }
        let (number, now) = (self.predecessor.occupancy().number(), self.at);
        own.inherit(rule, number, now, geometries, |base| Box::new(InWords { states: self, rule, base }));
        true
    }

    /// Calls `act` with each key of a page that something counts against: its set and tag, its state, and the time by
    /// which it is judged.
    fn each(&self, page: (Geometry, usize), mut act: impl FnMut(usize, Tag, A::State, Timestamp)) {
        let mut convert = |set, tag: Tag, state: A::State| {
            let now = local_of(&*self.algorithm, tag, self.at);
            let state = self.algorithm.inherit(state, &self.from, now);
            if self.algorithm.owed(&state, now) > 0 {
                act(set, tag, state, now);
            }
        };
        match &self.predecessor.table {
            Table::Fixed(ledger) => ledger.each_owed(page, self.at, |set, tag, state| {
                cast(state).into_iter().for_each(|state| convert(set, tag, state));
            }),
            Table::Sliding(ledger) => ledger.each_owed(page, self.at, |set, tag, state| {
                cast(state).into_iter().for_each(|state| convert(set, tag, state));
            }),
            Table::Locked(table) => table.each_kept(page, convert),
            Table::Bucket(_) => {}
        }
    }
}

impl<A: Algorithm> Source<KeptState<A::State>> for States<A> {
    fn copy(&self, geometry: Geometry, page: usize, put: &mut dyn FnMut(usize, KeptState<A::State>, u64)) {
        self.each((geometry, page), |set, tag, state, _| {
            put(set, KeptState::new(tag, state), self.algorithm.expires_at(&state).as_nanos());
        });
    }
}

/// Copies the states of windows in words, as stamps counted from `base`.
struct InWords<A: Algorithm, W> {
    states: States<A>,
    rule: WindowRule<W>,
    base: u64,
}

impl<A: Algorithm, W: Counts> Source<PackedDebt> for InWords<A, W> {
    fn copy(&self, geometry: Geometry, page: usize, put: &mut dyn FnMut(usize, PackedDebt, u64)) {
        let Self { states, rule, base } = self;
        let now = rule.read(states.at);
        states.each((geometry, page), |set, tag, state, _| {
            let Some(state) = cast(state) else { return };
            let own = rule.local(now, tag);
            // As much as a word can hold.
            let state = rule.stamped(rule.stamp(rule.clipped(state), own), own);
            let stamp = rule.stamp(state, own);
            put(set, PackedDebt::new(tag, stamp.saturating_sub(*base)), rule.ends(stamp));
        });
    }
}

/// Returns the same state, if the types are the same.
fn cast<T: Copy + 'static, U: Copy + 'static>(state: T) -> Option<U> {
    (&state as &dyn Any).downcast_ref().copied()
}
