//! What takes debts off keys: refunds and resets.

use super::{CompactTable, Homes, Owner, Past, mend, present};
use crate::store::memory::rule::Rule;
use crate::store::memory::slots::Slot;
use crate::store::memory::word::{Tag, Word};

impl CompactTable {
    /// Gives back what is still owed for a charge.
    pub(in crate::store::memory) fn give_back<R: Rule>(
        &self,
        rule: &R,
        hash: u64,
        cost: u32,
        charged: u64,
        now: R::Now,
    ) {
        self.forgive(rule, hash, now, |debt, now| rule.refunded(debt, cost, charged, now));
    }

    /// Lets a key owe nothing; also what it shares with others.
    pub(in crate::store::memory) fn reset<R: Rule>(&self, rule: &R, hash: u64, now: R::Now) {
        let tag = Tag::from_hash(hash);
        self.forgive(rule, hash, now, |_, now| rule.nothing(now));
        self.forgive_in(rule, self.shared(tag), Owner::shared(tag), now, |_, now| rule.nothing(now));
    }

    /// Has a key owe what `lessen` returns; in place of that what it inherits or shares, if it has none of its own.
    fn forgive<R: Rule>(&self, rule: &R, hash: u64, now: R::Now, lessen: impl Fn(R::Debt, R::Now) -> R::Debt) {
        let homes = self.homes(hash);
        let tag = homes.tag;
        self.freshen_homes(rule, &homes, now);
        match (self.find(&homes), &self.past) {
            (None, Some(past)) => self.forgive_inherited(rule, &**past, hash, &homes, now, lessen),
            (None, None) => self.forgive_in(rule, self.shared(tag), Owner::shared(tag), now, lessen),
            (found, _) => self.forgive_in(rule, found, Owner::own(tag), now, lessen),
        }
    }

    #[cold]
    fn forgive_inherited<R: Rule>(
        &self,
        rule: &R,
        past: &dyn Past,
        hash: u64,
        homes: &Homes,
        now: R::Now,
        lessen: impl Fn(R::Debt, R::Now) -> R::Debt,
    ) {
        let tag = homes.tag;
        // Or it could be inserted, and its inherited debt cleared, after it was looked for in the table.
        let _stripe = self.lock_stripe(tag);
        let found = self.find(homes);
        if found.is_some() {
            return self.forgive_in(rule, found, Owner::own(tag), now, lessen);
        }
        let own = rule.of_key(now, tag);
        let debt = rule.stamped(past.paid_at(hash, present(rule, now)), own);
        if rule.size(debt) == 0 {
            return self.forgive_in(rule, self.shared(tag), Owner::shared(tag), now, lessen);
        }
        let left = lessen(debt, own);
        past.set_paid_at(hash, if rule.size(left) == 0 { 0 } else { rule.stamp(left, own) });
    }

    fn forgive_in<R: Rule>(
        &self,
        rule: &R,
        found: Option<(usize, Slot<'_>)>,
        owner: Owner,
        now: R::Now,
        lessen: impl Fn(R::Debt, R::Now) -> R::Debt,
    ) {
        let Some((line, slot)) = found else { return };
        loop {
            let (word, epochs, at) = self.read(rule, line, slot, now);
            let at = rule.of_key(at, owner.key);
            let debt = rule.owed(word, at);
            let left = lessen(debt, at);
            if !word.is(owner.tag) || rule.size(left) == rule.size(debt) {
                return;
            }
            let stamp = rule.stamp(left, at);
            if slot.replace(word, Word::new(owner.tag, stamp)).is_ok() {
                mend(rule, slot, self.page(line), owner.tag, stamp, epochs);
                return;
            }
        }
    }
}
