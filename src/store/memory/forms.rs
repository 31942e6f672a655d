//! The forms in which an heir keeps what its keys owe: words, states, and states with their quotas. And what its copies are
//! made from: the table of its predecessor, read in pages as states, and converted.

use std::sync::{Arc, Weak};

use super::debt_copies::{Copying, DebtSource, Debtor};
use super::keeps::{KeepsAs, TablePart};
use super::kept::{Kept, KeptTable};
use super::ledger::{Ledger, base_of};
use super::locked::local_of;
use super::own_quota::UnderQuota;
use super::quota_state::QuotaState;
use super::table::{Codec, Geometry, Tag, TickBucket};
use crate::algorithm::Algorithm;
use crate::store::quota_change;
use crate::values::time::Timestamp;

/// How an heir keeps what a key owes at the instant of the change.
pub(super) trait Form: Send + Sync + 'static {
    /// The state as which the predecessor's table is read.
    type State: Copy + 'static;

    type Debt: Copy + 'static;

    /// Returns a state as the heir keeps it; `None` if nothing of it counts any more.
    fn debt(&self, tag: Tag, kept: QuotaState<Self::State>) -> Option<Self::Debt>;

    /// Returns until when a debt is owed, by the heir's clock.
    fn ends(&self, debt: &Self::Debt) -> u64;

    /// See [`DebtSource::size`].
    fn size(&self, tag: Tag, debt: &Self::Debt) -> u64;
}

/// Stamps of a rule, counted from that of nothing; made of states of type `T`.
pub(super) struct WordForm<R, T> {
    rule: R,
    base: u64,
    at: Timestamp,
    stamp_of: Box<StampOf<T>>,
}

type StampOf<T> = dyn Fn(Tag, QuotaState<T>) -> Option<u64> + Send + Sync;

impl<R: Codec, T> WordForm<R, T> {
    /// `stamp_of` returns what of a key's state is owed, as the rule stamps it.
    pub(super) fn new(rule: R, at: Timestamp, stamp_of: Box<StampOf<T>>) -> Self {
        Self { rule, base: base_of(&rule, at), at, stamp_of }
    }
}

impl<R: Codec, T: Copy + 'static> Form for WordForm<R, T> {
    type State = T;
    type Debt = u64;

    fn debt(&self, tag: Tag, kept: QuotaState<T>) -> Option<u64> {
        let stamp = (self.stamp_of)(tag, kept)?;
        Some(stamp.saturating_sub(self.base)).filter(|debt| *debt > 0)
    }

    fn ends(&self, debt: &u64) -> u64 {
        self.rule.ends(self.base + debt)
    }

    fn size(&self, tag: Tag, debt: &u64) -> u64 {
        let rule = &self.rule;
        rule.size(rule.stamped(self.base + debt, rule.local(rule.read(self.at), tag)))
    }
}

/// States alone, under the heir's own quota.
pub(super) struct States<A> {
    pub(super) algorithm: Arc<A>,
    pub(super) at: Timestamp,
}

impl<A: Algorithm> Form for States<A> {
    type State = A::State;
    type Debt = A::State;

    fn debt(&self, tag: Tag, kept: QuotaState<A::State>) -> Option<A::State> {
        let now = local_of(&*self.algorithm, tag, self.at);
        let state = quota_change::converted(&*self.algorithm, kept.state, &kept.quota, now)?;
        (self.algorithm.owed(&state, now) > 0).then_some(state)
    }

    fn ends(&self, state: &A::State) -> u64 {
        self.algorithm.expires_at(state).as_nanos()
    }

    fn size(&self, tag: Tag, state: &A::State) -> u64 {
        self.algorithm.owed(state, local_of(&*self.algorithm, tag, self.at))
    }
}

/// States with quotas.
pub(super) struct WithQuotas<A> {
    pub(super) under: UnderQuota<A>,
    pub(super) change: TableChange,
    pub(super) at: Timestamp,
}

/// What a change does to a state with its quota.
#[derive(Clone, Copy)]
pub(super) enum TableChange {
    /// Each key keeps its quota until it is asked about under another, and is converted then.
    None,
    /// The same, but windows begin at other instants than the predecessor's, although quotas may be equal: in another time
    /// zone, say.
    Schedule,
    /// All keys are converted to the heir's own quota.
    Quota,
}

impl<A: Algorithm> Form for WithQuotas<A> {
    type State = A::State;
    type Debt = QuotaState<A::State>;

    fn debt(&self, tag: Tag, kept: QuotaState<A::State>) -> Option<QuotaState<A::State>> {
        let now = local_of(&self.under, tag, self.at);
        let kept = match self.change {
            TableChange::None => kept,
            TableChange::Schedule => self.under.rescheduled(kept, now),
            TableChange::Quota => self.under.taken_over(&kept, now)?,
        };
        (self.under.expires_at(&kept) > now).then_some(kept)
    }

    fn ends(&self, kept: &QuotaState<A::State>) -> u64 {
        self.under.expires_at(kept).as_nanos()
    }

    fn size(&self, tag: Tag, kept: &QuotaState<A::State>) -> u64 {
        self.under.owed(kept, local_of(&self.under, tag, self.at))
    }
}

/// The table of a predecessor that has the keys at the instant of a change.
#[derive(Clone)]
pub(super) struct Predecessor<S> {
    pub(super) predecessor: Arc<Kept<S>>,
    /// Whether it is that of keys with quotas. Looked at once: a question may make that table meanwhile, and the heir may
    /// be that table.
    pub(super) has_quotas: bool,
    pub(super) at: Timestamp,
}

impl<S: Copy + Send + 'static> Predecessor<S> {
    pub(super) fn new(predecessor: &Arc<Kept<S>>, at: Timestamp) -> Self {
        Self { predecessor: Arc::clone(predecessor), has_quotas: predecessor.quotas.get().is_some(), at }
    }

    /// Returns the table, to be read as states of type `T`.
    pub(super) fn table<T: Copy + 'static>(&self) -> &dyn KeepsAs<T> {
        if self.has_quotas { self.predecessor.keeps_as() } else { self.predecessor.without_quotas() }
    }

    /// Returns the table if it is that of words of a bucket.
    pub(super) fn bucket(&self) -> Option<&Ledger<TickBucket>> {
        match &self.predecessor.table {
            KeptTable::Bucket(ledger) if !self.has_quotas => Some(ledger),
            _ => None,
        }
    }

    pub(super) fn each<T: Copy + 'static>(&self, part: TablePart, act: &mut dyn FnMut(usize, Tag, QuotaState<T>)) {
        self.table().each(part, &self.predecessor.terms.quota, self.at, act);
    }

    pub(super) fn geometries(&self) -> Vec<Geometry> {
        self.table::<S>().geometries(self.at)
    }

    pub(super) fn number(&self) -> u64 {
        self.table::<S>().occupancy().number()
    }
}

/// Copies what keys owe in a predecessor's table, in the form of the heir.
pub(super) struct FromTable<S, F> {
    pub(super) origin: Predecessor<S>,
    pub(super) form: F,
}

impl<S: Copy + Send + 'static, F: Form> FromTable<S, F> {
    fn each(&self, part: TablePart, mut act: impl FnMut(usize, Tag, F::Debt)) {
        self.origin.each(part, &mut |set, tag, kept| {
            if let Some(debt) = self.form.debt(tag, kept) {
                act(set, tag, debt);
            }
        });
    }

    /// Returns what keys share that something is owed of, each with a tag of the keys.
    pub(super) fn overflow(&self) -> Vec<(Tag, F::Debt)> {
        let mut overflow = Vec::new();
        self.each(TablePart::Overflow, |_, tag, debt| overflow.push((tag, debt)));
        overflow
    }
}

impl<S: Copy + Send + 'static, F: Form> DebtSource<F::Debt> for FromTable<S, F> {
    fn announce(&self, heir: &Weak<dyn Copying>) {
        if let Some(past) = self.origin.table::<S>().inherited() {
            past.announce(heir);
        }
    }

    fn copy(&self, geometry: Geometry, page: usize, put: &mut dyn FnMut(Debtor<F::Debt>)) {
        self.each(TablePart::Page(geometry, page), |set, tag, debt| {
            put(Debtor { set, tag, debt, ends: self.form.ends(&debt) });
        });
    }

    fn size(&self, tag: Tag, debt: &F::Debt) -> u64 {
        self.form.size(tag, debt)
    }
}
