//! What the copies of an heir are made from: its predecessor's table, read in pages and converted.

use std::any::{Any, TypeId};
use std::sync::{Arc, Weak};

use super::debt_copies::{Copying, Debtor, Geometry, Source};
use super::ledger::Ledger;
use super::locked::local_of;
use super::own_quota::{QuotaState, Under};
use super::table::{Conversion, Counts, Rule, Tag, TickBucket, WindowRule};
use super::{Kept, QuotaTable, Table, Terms};
use crate::algorithm::{Algorithm, GcraState};
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

impl<S: Copy + Send + 'static> Source<u64> for FromBuckets<S> {
    fn announce(&self, heir: &Weak<dyn Copying>) {
        self.predecessor.announce(heir);
    }

    fn copy(&self, geometry: Geometry, page: usize, put: &mut dyn FnMut(Debtor<u64>)) {
        let Table::Bucket(ledger) = &self.predecessor.table else { return };
        let conversion: Conversion = self.rule.conversion(ledger.rule(), ledger.rule().read(self.at));
        ledger.each_owed((geometry, page), self.at, |set, tag, debt| {
            let debt = conversion.debt(debt);
            if debt > 0 {
                put(Debtor { set, tag, debt, ends: self.base + debt });
            }
        });
    }

    fn size(&self, _: Tag, debt: &u64) -> u64 {
        *debt
    }
}

/// Copies the debts of buckets that are kept as states, with quotas of their own or not, for an heir that is asked without
/// quotas and keeps words.
pub(super) struct FromStates<S> {
    pub(super) predecessor: Arc<Kept<S>>,
    /// The heir's rule.
    pub(super) rule: TickBucket,
    /// The heir's stamp of nothing at the instant of the change.
    pub(super) base: u64,
    pub(super) at: Timestamp,
}

impl<S: Copy + Send + 'static> Source<u64> for FromStates<S> {
    fn announce(&self, heir: &Weak<dyn Copying>) {
        self.predecessor.announce(heir);
    }

    fn copy(&self, geometry: Geometry, page: usize, put: &mut dyn FnMut(Debtor<u64>)) {
        let mut copy = |set, tag, kept| {
            let debt = owed_by(kept, self.at).map_or(0, |(debt, period)| self.rule.ticks_of(debt, period));
            if debt > 0 {
                put(Debtor { set, tag, debt, ends: self.base + debt });
            }
        };
        match (self.predecessor.quotas.get(), &self.predecessor.table) {
            (Some(quotas), _) => quotas.each_kept((geometry, page), copy),
            (None, Table::Locked(table)) => table.each_kept((geometry, page), |set, tag, state| {
                copy(set, tag, self.predecessor.under_own_quota(state));
            }),
            (None, _) => {}
        }
    }

    fn size(&self, _: Tag, debt: &u64) -> u64 {
        *debt
    }
}

/// What a bucket with a quota of its own owes, and the price of a token in the same units.
pub(super) type Owed = (u128, u64);

/// Returns what a key owes, if it is a bucket.
pub(super) fn owed_by<S: Copy + 'static>(kept: QuotaState<S>, at: Timestamp) -> Option<Owed> {
    let GcraState { tat } = cast(kept.state)?;
    let paid = u128::from(at.as_nanos()) * u128::from(kept.quota.limit());
    Some((tat.saturating_sub(paid), kept.quota.period_nanos()))
}

/// Copies the states of keys, with the quotas under which they are kept, for an heir that keeps them so.
pub(super) struct WithQuotas<A: Algorithm> {
    /// The heir's.
    under: Under<A>,
    predecessor: Arc<Kept<A::State>>,
    /// Whether to read the predecessor's table of keys with quotas.
    has_quotas: bool,
    /// Whether windows begin at other instants than the predecessor's, although quotas may be equal: another time zone, say.
    is_rescheduled: bool,
    /// Whether all keys are converted to the heir's own quota.
    is_converted: bool,
    at: Timestamp,
}

impl<A: Algorithm> WithQuotas<A> {
    /// `keeps_quotas`: each key keeps its quota until it is asked about under another, and is converted then. `None` if the
    /// algorithm takes no quotas.
    pub(super) fn new(
        algorithm: &A,
        predecessor: &Arc<Kept<A::State>>,
        keeps_quotas: bool,
        at: Timestamp,
    ) -> Option<Self> {
        let (under, predecessor) = (Under::keeping(algorithm)?, Arc::clone(predecessor));
        let has_quotas = predecessor.quotas.get().is_some();
        let terms = predecessor.terms;
        let is_rescheduled = !terms.is_bucket && algorithm.schedule() != terms.schedule;
        Some(Self { under, predecessor, has_quotas, is_rescheduled, is_converted: !keeps_quotas, at })
    }

    /// Calls `act` with each state that something counts by.
    fn each(&self, page: (Geometry, usize), mut act: impl FnMut(usize, Tag, QuotaState<A::State>)) {
        let Self { under, predecessor, at, .. } = self;
        let mut owing = |set, tag, kept: Option<QuotaState<A::State>>| {
            let kept = kept.and_then(|kept| self.inherited(tag, kept));
            let counts = |kept: &QuotaState<A::State>| under.expires_at(kept) > local_of(under, tag, *at);
            if let Some(kept) = kept.filter(counts) {
                act(set, tag, kept);
            }
        };
        let quota = predecessor.terms.quota;
        let of_own = |state: Option<A::State>| Some(QuotaState { state: state?, quota });
        match (self.quotas(), &predecessor.table) {
            (Some(quotas), _) => quotas.each_kept(page, |set, tag, kept| owing(set, tag, Some(kept))),
            (None, Table::Bucket(ledger)) => {
                let rule = ledger.rule();
                ledger.each_owed(page, *at, |set, tag, debt| {
                    owing(set, tag, of_own(cast(rule.state(&quota, debt, *at))))
                });
            }
            (None, Table::Fixed(ledger)) => {
                ledger.each_owed(page, *at, |set, tag, debt| owing(set, tag, of_own(cast(debt.state()))));
            }
            (None, Table::Sliding(ledger)) => {
                ledger.each_owed(page, *at, |set, tag, debt| owing(set, tag, of_own(cast(debt.state()))));
            }
            (None, Table::Locked(table)) => {
                table.each_kept(page, |set, tag, state| owing(set, tag, of_own(Some(state))));
            }
        }
    }

    /// Calls `act` with each overflow slot that something counts by.
    pub(super) fn each_overflow(&self, mut act: impl FnMut(Tag, QuotaState<A::State>)) {
        let quota = self.predecessor.terms.quota;
        let mut act = |tag, kept| {
            if let Some(kept) = self.inherited(tag, kept) {
                act(tag, kept);
            }
        };
        let mut of_own = |tag, state: Option<A::State>| {
            if let Some(state) = state {
                act(tag, QuotaState { state, quota });
            }
        };
        match (self.quotas(), &self.predecessor.table) {
            (Some(quotas), _) => quotas.each_overflow(act),
            (None, Table::Bucket(ledger)) => {
                let rule = ledger.rule();
                ledger.each_overflow(self.at, |tag, debt| of_own(tag, cast(rule.state(&quota, debt, self.at))));
            }
            (None, Table::Fixed(ledger)) => ledger.each_overflow(self.at, |tag, debt| of_own(tag, cast(debt.state()))),
            (None, Table::Sliding(ledger)) => {
                ledger.each_overflow(self.at, |tag, debt| of_own(tag, cast(debt.state())))
            }
            (None, Table::Locked(table)) => table.each_overflow(|tag, state| of_own(tag, Some(state))),
        }
    }

    fn inherited(&self, tag: Tag, kept: QuotaState<A::State>) -> Option<QuotaState<A::State>> {
        let now = || local_of(&self.under, tag, self.at);
        if self.is_converted {
            self.under.taken_over(&kept, now())
        } else if self.is_rescheduled {
            Some(self.under.rescheduled(kept, now()))
        } else {
            Some(kept)
        }
    }

    fn quotas(&self) -> Option<&QuotaTable<A::State>> {
        self.predecessor.quotas.get().filter(|_| self.has_quotas)
    }
}

impl<A: Algorithm> Source<QuotaState<A::State>> for WithQuotas<A> {
    fn announce(&self, heir: &Weak<dyn Copying>) {
        match self.quotas() {
            Some(quotas) => quotas.inherited().into_iter().for_each(|past| past.announce(heir)),
            // The heir may be the table of quotas of the same store.
            None => self.predecessor.announce_in_table(heir),
        }
    }

    fn copy(&self, geometry: Geometry, page: usize, put: &mut dyn FnMut(Debtor<QuotaState<A::State>>)) {
        self.each((geometry, page), |set, tag, kept| {
            put(Debtor { set, tag, debt: kept, ends: self.under.expires_at(&kept).as_nanos() });
        });
    }

    fn size(&self, tag: Tag, kept: &QuotaState<A::State>) -> u64 {
        self.under.owed(kept, local_of(&self.under, tag, self.at))
    }
}

/// Copies the states of windows, of a user's algorithm, or of a bucket of too many units for words.
pub(super) struct States<A: Algorithm> {
    algorithm: Arc<A>,
    pub(super) predecessor: Arc<Kept<A::State>>,
    /// The predecessor's quota: that of keys without one of their own.
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
        let can_inherit = from.has_windows_of(to) && algorithm.can_inherit(&from.quota);
        let (algorithm, predecessor) = (Arc::clone(algorithm), Arc::clone(predecessor));
        can_inherit.then_some(Self { algorithm, predecessor, from: from.quota, at })
    }

    /// Lets a table of words begin with these states, if counts up to `greatest` fit, which is the greatest of any key,
    /// and those of overflow slots; returns `false` if not.
    pub(super) fn begin_in<W: Counts>(
        &self,
        own: &mut Ledger<WindowRule<W>>,
        staggered: bool,
        greatest: u64,
        geometries: &[Geometry],
    ) -> bool {
        if TypeId::of::<W::State>() != TypeId::of::<A::State>() {
            return false;
        }
        let mut overflow = Vec::new();
        self.each_overflow(|tag, state| overflow.extend(cast::<_, W::State>(state).map(|state| (tag, state))));
        // An overflow slot may have inherited more, and owe it for longer, than any key.
        let greatest = overflow.iter().flat_map(|(_, state)| W::parts_of(*state).1).fold(greatest, u64::max);
        let Some(rule) = WindowRule::<W>::holding(&self.algorithm.quota(), staggered, greatest) else { return false };
        let (number, now, states) = (self.predecessor.occupancy().number(), self.at, self.clone());
        own.inherit(rule, number, now, geometries, |base| Box::new(InWords { states, rule, base }));
        let stamps = overflow.into_iter().filter_map(|(tag, state)| Some((tag, stamp_of(&rule, tag, state, now)?)));
        own.inherit_overflow(now, stamps);
        true
    }

    /// Calls `act` with each key of a page that something counts against: its set and tag, and its state.
    fn each(&self, page: (Geometry, usize), mut act: impl FnMut(usize, Tag, A::State)) {
        let mut convert = |set, tag, state: Option<A::State>, from: &Quota| {
            if let Some(state) = state.and_then(|state| self.converted(tag, state, from)) {
                act(set, tag, state);
            }
        };
        let (from, at) = (&self.from, self.at);
        match (self.predecessor.quotas.get(), &self.predecessor.table) {
            (Some(quotas), _) => {
                quotas.each_kept(page, |set, tag, kept| convert(set, tag, Some(kept.state), &kept.quota));
            }
            (None, Table::Fixed(ledger)) => {
                ledger.each_owed(page, at, |set, tag, debt| convert(set, tag, cast(debt.state()), from));
            }
            (None, Table::Sliding(ledger)) => {
                ledger.each_owed(page, at, |set, tag, debt| convert(set, tag, cast(debt.state()), from));
            }
            (None, Table::Locked(table)) => {
                table.each_kept(page, |set, tag, state| convert(set, tag, Some(state), from));
            }
            (None, Table::Bucket(ledger)) => {
                let rule = ledger.rule();
                ledger.each_owed(page, at, |set, tag, debt| convert(set, tag, cast(rule.state(from, debt, at)), from));
            }
        }
    }

    /// Calls `act` with each overflow slot that something counts against: a tag of its keys, and its state.
    pub(super) fn each_overflow(&self, mut act: impl FnMut(Tag, A::State)) {
        let mut convert = |tag, state: Option<A::State>, from: &Quota| {
            if let Some(state) = state.and_then(|state| self.converted(tag, state, from)) {
                act(tag, state);
            }
        };
        let (from, at) = (&self.from, self.at);
        match (self.predecessor.quotas.get(), &self.predecessor.table) {
            (Some(quotas), _) => quotas.each_overflow(|tag, kept| convert(tag, Some(kept.state), &kept.quota)),
            (None, Table::Fixed(ledger)) => {
                ledger.each_overflow(at, |tag, debt| convert(tag, cast(debt.state()), from))
            }
            (None, Table::Sliding(ledger)) => {
                ledger.each_overflow(at, |tag, debt| convert(tag, cast(debt.state()), from))
            }
            (None, Table::Locked(table)) => table.each_overflow(|tag, state| convert(tag, Some(state), from)),
            (None, Table::Bucket(ledger)) => {
                let rule = ledger.rule();
                ledger.each_overflow(at, |tag, debt| convert(tag, cast(rule.state(from, debt, at)), from));
            }
        }
    }

    /// Returns a state from under a quota as the heir counts it; `None` if nothing of it counts any more.
    fn converted(&self, tag: Tag, state: A::State, from: &Quota) -> Option<A::State> {
        let now = local_of(&*self.algorithm, tag, self.at);
        let state = self.algorithm.inherit(state, from, now);
        (self.algorithm.owed(&state, now) > 0).then_some(state)
    }
}

impl<A: Algorithm> Source<A::State> for States<A> {
    fn announce(&self, heir: &Weak<dyn Copying>) {
        self.predecessor.announce(heir);
    }

    fn copy(&self, geometry: Geometry, page: usize, put: &mut dyn FnMut(Debtor<A::State>)) {
        self.each((geometry, page), |set, tag, state| {
            put(Debtor { set, tag, debt: state, ends: self.algorithm.expires_at(&state).as_nanos() });
        });
    }

    fn size(&self, tag: Tag, state: &A::State) -> u64 {
        self.algorithm.owed(state, local_of(&*self.algorithm, tag, self.at))
    }
}

/// Copies the states of windows in words, as stamps counted from `base`.
struct InWords<A: Algorithm, W> {
    states: States<A>,
    rule: WindowRule<W>,
    base: u64,
}

impl<A: Algorithm, W: Counts> Source<u64> for InWords<A, W> {
    fn announce(&self, heir: &Weak<dyn Copying>) {
        self.states.predecessor.announce(heir);
    }

    fn copy(&self, geometry: Geometry, page: usize, put: &mut dyn FnMut(Debtor<u64>)) {
        let Self { states, rule, base } = self;
        states.each((geometry, page), |set, tag, state| {
            if let Some(stamp) = stamp_of(rule, tag, state, states.at) {
                put(Debtor { set, tag, debt: stamp.saturating_sub(*base), ends: rule.ends(stamp) });
            }
        });
    }

    fn size(&self, tag: Tag, debt: &u64) -> u64 {
        let Self { states, rule, base } = self;
        rule.size(rule.stamped(base + debt, rule.local(rule.read(states.at), tag)))
    }
}

/// Returns the stamp of as much of a state as a word can hold, if the state is one of this rule.
fn stamp_of<W: Counts>(rule: &WindowRule<W>, tag: Tag, state: impl Copy + 'static, at: Timestamp) -> Option<u64> {
    let own = rule.local(rule.read(at), tag);
    let state = rule.clipped(cast(state)?);
    Some(rule.stamp(rule.stamped(rule.stamp(state, own), own), own))
}

/// Returns the same state, if the types are the same.
pub(super) fn cast<T: Copy + 'static, U: Copy + 'static>(state: T) -> Option<U> {
    (&state as &dyn Any).downcast_ref().copied()
}
