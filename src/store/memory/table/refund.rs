//! Lowering debts: refunds and resets.

use super::charge::{Owner, validate};
use super::placement::CandidateSets;
use super::rule::{Rule, stamp_of_nothing};
use super::slots::Slot;
use super::word::{Tag, Word};
use super::{InheritedDebts, SetAssociativeTable};

impl SetAssociativeTable {
    /// Refunds what is still owed for a charge: see [`Rule::refunded`].
    pub(in crate::store::memory) fn refund<R: Rule>(&self, rule: &R, hash: u64, cost: u32, charged: u64, now: R::Now) {
        self.lower(rule, hash, now, |debt, now| rule.refunded(debt, cost, charged, now));
    }

    /// Clears what a key owes, in its overflow slot as well.
    pub(in crate::store::memory) fn reset<R: Rule>(&self, rule: &R, hash: u64, now: R::Now) {
        let tag = Tag::from_hash(hash);
        self.lower(rule, hash, now, |_, now| rule.nothing(now));
        self.lower_in(rule, self.overflow_slot(tag), Owner::overflow(tag), now, |_, now| rule.nothing(now));
    }

    /// Replaces what a key owes by what `lessen` returns; if the key is not in the table, the debt that it inherits, or
    /// that of its overflow slot.
    fn lower<R: Rule>(&self, rule: &R, hash: u64, now: R::Now, lessen: impl Fn(R::Debt, R::Now) -> R::Debt) {
        let candidates = self.candidates(hash);
        let tag = candidates.tag;
        self.ensure_candidates_swept(rule, &candidates, now);
        match (self.find(&candidates), &self.inherited) {
            (None, Some(past)) => self.lower_inherited(rule, &**past, hash, &candidates, now, lessen),
            (None, None) => self.lower_in(rule, self.overflow_slot(tag), Owner::overflow(tag), now, lessen),
            (found, _) => self.lower_in(rule, found, Owner::own(tag), now, lessen),
        }
    }

    #[cold]
    fn lower_inherited<R: Rule>(
        &self,
        rule: &R,
        past: &dyn InheritedDebts,
        hash: u64,
        candidates: &CandidateSets,
        now: R::Now,
        lessen: impl Fn(R::Debt, R::Now) -> R::Debt,
    ) {
        let tag = candidates.tag;
        // Without the lock, another thread could insert the key with its inherited debt after the search. The refund
        // would then be lost, or bring the debt back that the insert has cleared.
        let _stripe = self.stripes.lock(tag);
        let found = self.find(candidates);
        if found.is_some() {
            return self.lower_in(rule, found, Owner::own(tag), now, lessen);
        }
        let own = rule.local(now, tag);
        let debt = rule.stamped(past.stamp_of(hash, stamp_of_nothing(rule, now)), own);
        if rule.size(debt) == 0 {
            return self.lower_in(rule, self.overflow_slot(tag), Owner::overflow(tag), now, lessen);
        }
        let left = lessen(debt, own);
        past.set_stamp_of(hash, if rule.size(left) == 0 { 0 } else { rule.stamp(left, own) });
    }

    fn lower_in<R: Rule>(
        &self,
        rule: &R,
        found: Option<(usize, Slot<'_>)>,
        owner: Owner,
        now: R::Now,
        lessen: impl Fn(R::Debt, R::Now) -> R::Debt,
    ) {
        let Some((set, slot)) = found else { return };
        loop {
            let (word, epochs, at) = self.read(rule, set, slot, now);
            let at = rule.local(at, owner.key);
            let debt = rule.owed(word, at);
            let left = lessen(debt, at);
            // Another key's by now: this one was evicted, or paid and cleared, since it was found, and owes nothing.
            if !word.is(owner.tag) || rule.size(left) == rule.size(debt) {
                return;
            }
            let stamp = rule.stamp(left, at);
            // From the very word that was lowered: else a charge that another thread makes meanwhile would be lost.
            if slot.replace(word, Word::new(owner.tag, stamp)).is_ok() {
                validate(rule, slot, self.page(set), owner.tag, stamp, epochs);
                return;
            }
        }
    }
}
