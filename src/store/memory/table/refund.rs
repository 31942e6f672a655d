//! Lowering debts: refunds and resets.

use super::SetAssociativeTable;
use super::charge::{Owner, validate};
use super::rule::{Rule, stamp_of_nothing};
use super::search::CandidateSets;
use super::slots::Slot;
use super::word::{Tag, Word};

impl SetAssociativeTable {
    /// Refunds the part of a charge that is still owed, as [`Rule::refunded`] does.
    pub(in crate::store::memory) fn refund<R: Rule>(&self, rule: &R, hash: u64, cost: u64, charged: u64, now: R::Now) {
        self.lower(rule, hash, now, |debt, now| rule.refunded(debt, cost, charged, now));
    }

    /// Clears a key's debt, in its overflow slot as well.
    pub(in crate::store::memory) fn reset<R: Rule>(&self, rule: &R, hash: u64, now: R::Now) {
        // The overflow slot first, because in the other order, a thread that inserts the key in between would charge it
        // with the debt that the slot still holds.
        self.lower_overflow(rule, Tag::from_hash(hash), now, |_, now| rule.nothing(now));
        self.lower(rule, hash, now, |_, now| rule.nothing(now));
    }

    /// Replaces a key's debt by the debt that `lessen` returns. If the key is not in the table, this is its inherited
    /// debt, or the debt in its overflow slot.
    fn lower<R: Rule>(&self, rule: &R, hash: u64, now: R::Now, lessen: impl Fn(R::Debt, R::Now) -> R::Debt) {
        let candidates = self.candidates(hash);
        let tag = candidates.tag;
        self.ensure_candidates_swept(rule, &candidates, now);
        match self.find(&candidates) {
            Some(found) => self.lower_in(rule, found, Owner::from_tag(tag), now, lessen),
            None => self.lower_beside(rule, hash, &candidates, now, lessen),
        }
    }

    /// Lowers the debt that a key has if it was not found.
    #[cold]
    fn lower_beside<R: Rule>(
        &self,
        rule: &R,
        hash: u64,
        candidates: &CandidateSets,
        now: R::Now,
        lessen: impl Fn(R::Debt, R::Now) -> R::Debt,
    ) {
        let tag = candidates.tag;
        // Without the lock, another thread could insert the key after the search, with the debt that is lowered here.
        // The refund would then be lost, or bring an inherited debt back that the insert has cleared.
        let _stripe = self.stripes.lock(tag.value());
        if let Some(found) = self.find(candidates) {
            return self.lower_in(rule, found, Owner::from_tag(tag), now, lessen);
        }
        let own = rule.local(now, tag);
        if let Some(past) = &self.inherited {
            let debt = rule.stamped(past.stamp_of(hash, stamp_of_nothing(rule, now)), own);
            if rule.size(debt) > 0 {
                let left = lessen(debt, own);
                return past.set_stamp_of(hash, if rule.size(left) == 0 { 0 } else { rule.stamp(left, own) });
            }
        }
        self.lower_overflow(rule, tag, now, lessen);
    }

    pub(super) fn lower_in<R: Rule>(
        &self,
        rule: &R,
        (set, slot): (usize, Slot<'_>),
        owner: Owner,
        now: R::Now,
        lessen: impl Fn(R::Debt, R::Now) -> R::Debt,
    ) {
        loop {
            let (word, epochs, at) = self.read(rule, set, slot, now);
            let at = rule.local(at, owner.key_tag);
            let debt = rule.owed(word, at);
            let left = lessen(debt, at);
            // The word is another key's by now, so this key was evicted, or paid and cleared, since it was found, and
            // owes nothing.
            if !word.is(owner.word_tag) || rule.size(left) == rule.size(debt) {
                return;
            }
            let stamp = rule.stamp(left, at);
            // Replaces only the very word that was lowered, because otherwise a charge that another thread makes
            // meanwhile would be lost.
            if slot.replace(word, Word::new(owner.word_tag, stamp)).is_ok() {
                validate(rule, slot, self.page(set), owner.word_tag, stamp, epochs);
                return;
            }
        }
    }
}
