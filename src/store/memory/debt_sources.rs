//! What the copies of an heir are made from: its predecessor's table, read in pages and converted.

use std::any::{Any, TypeId};
use std::sync::Arc;

use super::debt_copies::{CopiedDebt, Geometry, KeptState, PackedDebt, Source};
use super::ledger::Ledger;
use super::locked::local_of;
use super::table::{Conversion, Counts, Rule, Tag, TickBucket, WindowRule};
use super::{Kept, Table, Terms};
use crate::algorithm::Algorithm;
use crate::values::Quota;
use crate::values::time::Timestamp;

/// Copies the debts of buckets.
pub(super) struct FromBuckets<S> {
    pub(super) predecessor: Arc<Kept<S>>,
    /// The heir's rule.
    pub(super) rule: TickBucket,
    /// The heir's stamp of nothing at the instant of the change.
    pub(super) base: u64,
    pub(super) at: Timestamp,
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
pub(super) struct States<A: Algorithm> {
    algorithm: Arc<A>,
    pub(super) predecessor: Arc<Kept<A::State>>,
    /// The predecessor's quota.
    from: Quota,
    pub(super) at: Timestamp,
}

impl<A: Algorithm> Clone for States<A> {
    fn clone(&self) -> Self {
        let (algorithm, predecessor) = (Arc::clone(&self.algorithm), Arc::clone(&self.predecessor));
        Self { algorithm, predecessor, from: self.from, at: self.at }
    }
}

impl<A: Algorithm> States<A> {
    /// Returns the states as of `at`, for an heir with the terms `to`; `None` if it cannot inherit them.
    pub(super) fn new(
        algorithm: &Arc<A>,
        predecessor: &Arc<Kept<A::State>>,
        at: Timestamp,
        to: &Terms,
    ) -> Option<Self> {
        let from = predecessor.terms;
        // If a key's phase changes, its windows begin at other instants, and its counts are of no window of the heir.
        let same_windows =
            from.staggered == to.staggered && (!to.staggered || from.quota.period_nanos() == to.quota.period_nanos());
        let can_inherit = from.algorithm == to.algorithm && same_windows && algorithm.can_inherit(&from.quota);
        let (algorithm, predecessor) = (Arc::clone(algorithm), Arc::clone(predecessor));
        can_inherit.then_some(Self { algorithm, predecessor, from: from.quota, at })
    }

    /// Lets a table of words begin with these states, if counts up to `greatest` fit, which is the greatest of any key,
    /// and those of overflow slots; returns `false` if not.
    pub(super) fn begin_in<W: Counts>(
        &self,
        own: &mut Ledger<WindowRule<W>>,
        staggered: bool,
        greatest: u32,
        geometries: &[Geometry],
    ) -> bool {
        if TypeId::of::<W>() != TypeId::of::<A::State>() {
            return false;
        }
        let mut overflow = Vec::new();
        self.each_overflow(|tag, state| overflow.extend(cast::<_, W>(state).map(|state| (tag, state))));
        // An overflow slot may have inherited more, and owe it for longer, than any key.
        let greatest = overflow.iter().flat_map(|(_, state)| state.counts()).fold(greatest, u32::max);
        let Some(rule) = WindowRule::<W>::holding(&self.algorithm.quota(), staggered, greatest) else { return false };
        let (number, now, states) = (self.predecessor.occupancy().number(), self.at, self.clone());
        own.inherit(rule, number, now, geometries, |base| Box::new(InWords { states, rule, base }));
        let stamps = overflow.into_iter().filter_map(|(tag, state)| Some((tag, stamp_of(&rule, tag, state, now)?)));
        own.inherit_overflow(now, stamps);
        true
    }

    /// Calls `act` with each key of a page that something counts against: its set and tag, and its state.
    fn each(&self, page: (Geometry, usize), mut act: impl FnMut(usize, Tag, A::State)) {
        let mut convert = |set, tag, state: Option<A::State>| {
            if let Some(state) = state.and_then(|state| self.converted(tag, state)) {
                act(set, tag, state);
            }
        };
        match &self.predecessor.table {
            Table::Fixed(ledger) => ledger.each_owed(page, self.at, |set, tag, state| convert(set, tag, cast(state))),
            Table::Sliding(ledger) => ledger.each_owed(page, self.at, |set, tag, state| convert(set, tag, cast(state))),
            Table::Locked(table) => table.each_kept(page, |set, tag, state| convert(set, tag, Some(state))),
            Table::Bucket(_) => {}
        }
    }

    /// Calls `act` with each overflow slot that something counts against: a tag of its keys, and its state.
    pub(super) fn each_overflow(&self, mut act: impl FnMut(Tag, A::State)) {
        let mut convert = |tag, state: Option<A::State>| {
            if let Some(state) = state.and_then(|state| self.converted(tag, state)) {
                act(tag, state);
            }
        };
        match &self.predecessor.table {
            Table::Fixed(ledger) => ledger.each_overflow(self.at, |tag, state| convert(tag, cast(state))),
            Table::Sliding(ledger) => ledger.each_overflow(self.at, |tag, state| convert(tag, cast(state))),
            Table::Locked(table) => table.each_overflow(|tag, state| convert(tag, Some(state))),
            Table::Bucket(_) => {}
        }
    }

    /// Returns a state as the heir counts it; `None` if nothing of it counts any more.
    fn converted(&self, tag: Tag, state: A::State) -> Option<A::State> {
        let now = local_of(&*self.algorithm, tag, self.at);
        let state = self.algorithm.inherit(state, &self.from, now);
        (self.algorithm.owed(&state, now) > 0).then_some(state)
    }
}

impl<A: Algorithm> Source<KeptState<A::State>> for States<A> {
    fn copy(&self, geometry: Geometry, page: usize, put: &mut dyn FnMut(usize, KeptState<A::State>, u64)) {
        self.each((geometry, page), |set, tag, state| {
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
        states.each((geometry, page), |set, tag, state| {
            if let Some(stamp) = stamp_of(rule, tag, state, states.at) {
                put(set, PackedDebt::new(tag, stamp.saturating_sub(*base)), rule.ends(stamp));
            }
        });
    }
}

/// Returns the stamp of as much of a state as a word can hold, if the state is one of this rule.
fn stamp_of<W: Counts>(rule: &WindowRule<W>, tag: Tag, state: impl Copy + 'static, at: Timestamp) -> Option<u64> {
    let own = rule.local(rule.read(at), tag);
    let state = rule.clipped(cast(state)?);
    Some(rule.stamp(rule.stamped(rule.stamp(state, own), own), own))
}

/// Returns the same state, if the types are the same.
fn cast<T: Copy + 'static, U: Copy + 'static>(state: T) -> Option<U> {
    (&state as &dyn Any).downcast_ref().copied()
}
