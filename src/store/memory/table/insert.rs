//! Inserts: a key that is not found gets a slot, under its striped lock. The choice of `when_full` applies here, too.

use super::SetAssociativeTable;
use super::charge::{Judged, Owner, validate};
use super::placement::InsertTarget;
use super::rule::{Rule, Ruling, stamp_of_nothing};
use super::search::CandidateSets;
use super::word::{Tag, Word};
use crate::store::memory::when_full::WhenFull;

impl SetAssociativeTable {
    /// Decides on a key that was not found, and inserts it.
    pub(super) fn insert<R: Rule>(
        &self,
        rule: &R,
        hash: u64,
        candidates: &CandidateSets,
        cost: u64,
        clock: &dyn Fn() -> R::Now,
    ) -> Judged<R> {
        let tag = candidates.tag;
        // Held to the end. Otherwise another thread could insert the key into another slot after this one has searched,
        // and both would be charged as if the key owed nothing.
        let _stripe = self.stripes.lock(tag.value());
        loop {
            // Another thread may have inserted the key before the lock was taken.
            let found = self.find(candidates);
            // Read after the search, because a key that is not there then owes nothing by this time. By an earlier
            // reading it may have owed something that was paid and cleared meanwhile.
            let now = clock();
            self.ensure_candidates_swept(rule, candidates, now);
            if let Some((set, _)) = found {
                let judged = self.charge(rule, Owner::from_tag(tag), cost, set, now, || self.find_in(set, tag));
                if let Some(judged) = judged {
                    return judged;
                }
                // Swept or evicted since it was found: search again.
                continue;
            }
            let own = rule.local(now, tag);
            // The key must not spend again the units that it has spent in its overflow slot. After a live change the
            // slot has an inherited debt as well. It counts against keys that had their own slots as well, because it
            // is not known which keys have spent its units.
            let mut owed = self.overflow_debt(rule, tag, now);
            let mut uncleared = None;
            if let Some(past) = &self.inherited {
                let inherited = rule.stamped(past.stamp_of(hash, stamp_of_nothing(rule, now)), own);
                if rule.size(inherited) > 0 {
                    owed = rule.sum(owed, inherited);
                    if self.insert_debt(rule, candidates, now, owed) {
                        // Insert it before it is cleared, and clear it after it was copied by the heirs that copy by
                        // now, because they may have copied the table before the insert. An heir that begins to copy
                        // later finds the debt in the table. In any other order an heir could miss it in both places.
                        past.clear_inserted(hash);
                        continue;
                    }
                    uncleared = Some((past, rule.stamp(inherited, own)));
                }
            }
            let ruling = rule.judge(owed, cost, own);
            let Ruling::Admit { .. } = ruling else { return Judged::new(ruling, own) };
            let target = self.choose_slot(rule, candidates, now);
            self.occupancy.note_arrival(hash, target.free);
            if target.free == 0 {
                match self.when_full {
                    WhenFull::EvictLeast => {}
                    WhenFull::Reject => {
                        return Judged::new(self.reject_full(rule, candidates, now), rule.local(target.at, tag));
                    }
                    WhenFull::Overflow => {
                        let judged = self.charge_overflow(rule, tag, now, cost);
                        return judged.with_debt_beside(rule, uncleared.map(|(_, stamp)| stamp));
                    }
                }
            }
            // The target may be at a later time, either because the clock was set back, or because this thread was
            // descheduled for more than an epoch, and another one has swept the page meanwhile. The debt is smaller
            // then.
            let at = rule.local(target.at, tag);
            let ruling = rule.judge(rule.stamped(rule.stamp(owed, own), at), cost, at);
            let Ruling::Admit { debt } = ruling else { return Judged::new(ruling, at) };
            if self.write_to(rule, &target, tag, rule.stamp(debt, at)) {
                // There was no room for the inherited debt, and another thread has made some since.
                if let Some((past, _)) = uncleared {
                    past.clear_inserted(hash);
                }
                return Judged::new(ruling, at);
            }
        }
    }

    /// Inserts a key with a debt. Returns `false` if there is no room for it.
    fn insert_debt<R: Rule>(&self, rule: &R, candidates: &CandidateSets, now: R::Now, debt: R::Debt) -> bool {
        let stamp = rule.stamp(debt, rule.local(now, candidates.tag));
        loop {
            let target = self.choose_slot(rule, candidates, now);
            if target.free == 0 && self.when_full != WhenFull::EvictLeast {
                return false;
            }
            let at = rule.local(target.at, candidates.tag);
            if self.write_to(rule, &target, candidates.tag, rule.stamp(rule.stamped(stamp, at), at)) {
                return true;
            }
        }
    }

    /// Writes a new key to the chosen slot. Returns `false` if the slot's word has changed since.
    #[inline(always)]
    fn write_to<R: Rule>(&self, rule: &R, target: &InsertTarget<'_, R::Now>, tag: Tag, stamp: u64) -> bool {
        // Replaces only the very word that was chosen. A thread that holds another stripe may have taken the slot
        // meanwhile, and a thread without a stripe may have charged its key, which then no longer owes least.
        let is_written = target.slot.replace(target.word, Word::new(tag, stamp)).is_ok();
        if is_written {
            if target.free == 0 {
                self.occupancy.note_evicted();
            }
            // As after a charge, a sweep may have passed this slot before the write.
            validate(rule, target.slot, self.page(target.set), tag, stamp, target.epochs);
        }
        is_written
    }

    /// Rejects a new key, since the table is full and must not forget a key, until the first slot is free.
    fn reject_full<R: Rule>(&self, rule: &R, candidates: &CandidateSets, now: R::Now) -> Ruling<R::Debt> {
        self.occupancy.note_turned_away();
        let slots = candidates.sets.into_iter().flat_map(|set| self.slots.in_set(set).map(move |slot| (set, slot)));
        let wait = slots.map(|(set, slot)| {
            let (word, _, at) = self.read(rule, set, slot, now);
            let at = rule.local(at, word.tag());
            rule.nanos_until_paid(rule.owed(word, at), at)
        });
        Ruling::Full { wait: wait.min().unwrap_or(0).max(1) }
    }
}
