//! The hot path: a key is searched, judged and charged by one compare-and-swap, which is then validated. And the same
//! for keys in pages of other epochs, and for keys that are not found.

use super::SetAssociativeTable;
use super::epoch::{Epochs, Page};
use super::overflow::OVERFLOW;
use super::rule::{Rule, Ruling};
use super::search::{first_candidate, second_candidate};
use super::slots::Slot;
use super::word::{Tag, Word};
use crate::util::sync::in_order;
use crate::values::Decision;

/// A ruling on the debt in a slot.
pub(super) struct Judged<R: Rule> {
    pub(super) ruling: Ruling<R::Debt>,
    /// The time by which it was made.
    pub(super) at: R::Now,
    /// The key's debt beside the slot: an inherited debt for which the table has no room.
    beside: Option<R::Debt>,
}

impl<R: Rule> Judged<R> {
    pub(super) const fn new(ruling: Ruling<R::Debt>, at: R::Now) -> Self {
        Self { ruling, at, beside: None }
    }

    /// Adds the key's debt beside the slot, if there is one, by its stamp.
    pub(super) fn with_debt_beside(self, rule: &R, stamp: Option<u64>) -> Self {
        Self { beside: stamp.map(|stamp| rule.stamped(stamp, self.at)), ..self }
    }

    /// Returns the decision: on all that the key owes, with a receipt for the slot. Each arm makes it in place.
    #[inline(always)]
    fn decision(self, rule: &R, cost: u64) -> Decision {
        match (self.ruling, self.beside) {
            (Ruling::Admit { debt }, Some(beside)) => self.decision_beside(rule, cost, rule.sum(debt, beside)),
            (ruling, _) => rule.decision(ruling, cost, self.at),
        }
    }

    #[cold]
    #[inline(never)]
    fn decision_beside(&self, rule: &R, cost: u64, debt: R::Debt) -> Decision {
        let charged = rule.decision(self.ruling, cost, self.at).receipt();
        rule.decision(Ruling::Admit { debt }, cost, self.at).with_receipt(charged)
    }
}

/// The key whose debt a word holds.
#[derive(Clone, Copy)]
pub(super) struct Owner {
    /// The tag in the word.
    pub(super) tag: Tag,
    /// The key's own tag, which chooses the time by which it is judged. Differs from `tag` in an overflow slot.
    pub(super) key: Tag,
}

impl Owner {
    pub(super) const fn from_tag(tag: Tag) -> Self {
        Self { tag, key: tag }
    }

    pub(super) const fn overflow(key: Tag) -> Self {
        Self { tag: OVERFLOW, key }
    }
}

/// A key's word, and the time by which it is judged.
pub(super) struct FoundWord<'a, N> {
    pub(super) slot: Slot<'a>,
    pub(super) word: Word,
    pub(super) epochs: Epochs,
    pub(super) at: N,
}

/// Why the hot path has no answer from a set.
#[derive(Clone, Copy)]
pub(super) enum Miss {
    /// The set does not have the key.
    Absent,
    /// The page is of another epoch than the reading of the clock.
    OtherEpoch,
}

impl SetAssociativeTable {
    /// Decides, and charges an admitted request. `clock` reads the time again, for a key that is not found.
    ///
    /// The hot path is for a key that is found in a page of the epoch of `now`. It never changes `now`, so that all
    /// stays in registers. Everything else is decided out of line, from the beginning.
    #[inline(always)]
    pub(in crate::store::memory) fn check<R: Rule, T: From<Decision>>(
        &self,
        rule: &R,
        hash: u64,
        cost: u64,
        now: R::Now,
        clock: impl Fn() -> R::Now,
    ) -> T {
        let tag = Tag::from_hash(hash);
        let at = rule.local(now, tag);
        let first = first_candidate(self.geometry.sets(), hash);
        // Written out, here and in `peek`: by a helper that takes a closure, a decision takes a seventh more
        // instructions.
        let mut hit = self.charge_hit(rule, tag, cost, first, now);
        if let Err(Miss::Absent) = hit {
            hit = self.charge_hit(rule, tag, cost, second_candidate(self.geometry.sets(), first, tag), now);
        }
        match hit {
            Ok(Ok(debt)) => T::from(rule.decision(Ruling::Admit { debt }, cost, at)),
            Ok(Err(ruling)) if !rule.is_late(&ruling, at) => T::from(rule.decision(ruling, cost, at)),
            Ok(Err(_)) | Err(Miss::OtherEpoch) => T::from(self.check_any(rule, hash, cost, now, &clock, false)),
            Err(Miss::Absent) => T::from(self.check_any(rule, hash, cost, now, &clock, true)),
        }
    }

    /// Finds a key in a set, if its page is of the epoch of `now`.
    #[inline(always)]
    pub(super) fn hit<R: Rule>(&self, rule: &R, tag: Tag, set: usize, now: R::Now) -> Result<(Slot<'_>, Word), Miss> {
        let (page, epochs) = (self.page(set), Epochs::swept(rule.epoch(now)));
        if page.load() != epochs {
            return Err(Miss::OtherEpoch);
        }
        let found = self.find_in(set, tag).ok_or(Miss::Absent)?;
        // As in `read_found`.
        if page.load() == epochs { Ok(found) } else { Err(Miss::OtherEpoch) }
    }

    /// Charges a key that [`hit`](Self::hit) finds. Returns its debt after the charge, or the ruling by which it was
    /// not charged.
    #[inline(always)]
    fn charge_hit<R: Rule>(
        &self,
        rule: &R,
        tag: Tag,
        cost: u64,
        set: usize,
        now: R::Now,
    ) -> Result<Result<R::Debt, Ruling<R::Debt>>, Miss> {
        let at = rule.local(now, tag);
        loop {
            let (slot, word) = self.hit(rule, tag, set, now)?;
            let ruling = rule.judge(rule.owed(word, at), cost, at);
            let Ruling::Admit { debt } = ruling else { return Ok(Err(ruling)) };
            // As in `charge`.
            let stamp = rule.stamp(debt, at);
            if slot.replace(word, Word::new(tag, stamp)).is_ok() {
                validate(rule, slot, self.page(set), tag, stamp, Epochs::swept(rule.epoch(now)));
                return Ok(Ok(debt));
            }
        }
    }

    /// Decides on any key, in a page of any epoch, or on a key that was not found.
    #[cold]
    #[inline(never)]
    fn check_any<R: Rule>(
        &self,
        rule: &R,
        hash: u64,
        cost: u64,
        now: R::Now,
        clock: &impl Fn() -> R::Now,
        is_absent: bool,
    ) -> Decision {
        let mut judged = if is_absent {
            self.insert(rule, hash, &self.candidates(hash), cost, clock)
        } else {
            self.find_and_charge(rule, hash, cost, now, clock)
        };
        // The reading of the clock was too old. Either this thread was descheduled since, and the debts that it saw are
        // paid by now; or the clock was set back, and shows the same again. Only rejected requests are decided anew, so
        // no request is charged twice.
        if rule.is_late(&judged.ruling, judged.at) {
            judged = self.find_and_charge(rule, hash, cost, clock(), clock);
        }
        judged.decision(rule, cost)
    }

    /// Searches the key, decides, and charges an admitted request. A key that is not found is inserted.
    fn find_and_charge<R: Rule>(
        &self,
        rule: &R,
        hash: u64,
        cost: u64,
        now: R::Now,
        clock: &impl Fn() -> R::Now,
    ) -> Judged<R> {
        let candidates = self.candidates(hash);
        let tag = candidates.tag;
        for set in candidates.sets {
            if let Some(judged) = self.charge(rule, Owner::from_tag(tag), cost, set, now, || self.find_in(set, tag)) {
                return judged;
            }
        }
        // Another thread may have inserted the key meanwhile, also into the first set: `insert` searches again, under
        // the lock.
        self.insert(rule, hash, &candidates, cost, clock)
    }

    /// Decides on a key in the slot that `find` returns, a slot of `set`, and charges an admitted request. `None` if
    /// `find` returns `None`.
    pub(super) fn charge<'a, R: Rule>(
        &'a self,
        rule: &R,
        owner: Owner,
        cost: u64,
        set: usize,
        now: R::Now,
        find: impl Fn() -> Option<(Slot<'a>, Word)>,
    ) -> Option<Judged<R>> {
        loop {
            let FoundWord { slot, word, epochs, at } = self.read_found(rule, set, now, &find)?;
            let at = rule.local(at, owner.key);
            let ruling = rule.judge(rule.owed(word, at), cost, at);
            let Ruling::Admit { debt } = ruling else { return Some(Judged::new(ruling, at)) };
            let stamp = rule.stamp(debt, at);
            // From the very word that was judged. Otherwise two threads that judge one word could both write, and one
            // charge be lost; or another thread could have given the slot to another key meanwhile.
            if slot.replace(word, Word::new(owner.tag, stamp)).is_ok() {
                // A sweep may have begun since the page's epoch was read, and have passed this slot before the write.
                validate(rule, slot, self.page(set), owner.tag, stamp, epochs);
                return Some(Judged::new(ruling, at));
            }
        }
    }

    /// Reads the word that `find` returns, searched for between two equal readings of its page's epochs.
    #[inline(always)]
    pub(super) fn read_found<'a, R: Rule>(
        &'a self,
        rule: &R,
        set: usize,
        now: R::Now,
        find: &impl Fn() -> Option<(Slot<'a>, Word)>,
    ) -> Option<FoundWord<'a, R::Now>> {
        let page = self.page(set);
        let (mut epochs, mut at) = (page.load(), now);
        if epochs != Epochs::swept(rule.epoch(now)) {
            (epochs, at) = self.catch_up(rule, set, now);
        }
        loop {
            let (slot, word) = find()?;
            // Unequal if a sweep began meanwhile: the word may be from an epoch by whose time it must not be read, or
            // may not have been cleared yet, and look like a debt.
            if page.load() == epochs {
                return Some(FoundWord { slot, word, epochs, at });
            }
            (epochs, at) = self.catch_up(rule, set, now);
        }
    }

    /// Reads a word, the epochs of its page at that moment, and the time by which to judge it.
    pub(super) fn read<R: Rule>(&self, rule: &R, set: usize, slot: Slot<'_>, now: R::Now) -> (Word, Epochs, R::Now) {
        loop {
            let epochs = self.ensure_swept(rule, set, now);
            let word = slot.load();
            // As in `read_found`.
            if self.page(set).load() == epochs {
                return (word, epochs, rule.clamp(now, epochs.earliest()));
            }
        }
    }

    #[cold]
    fn catch_up<R: Rule>(&self, rule: &R, set: usize, now: R::Now) -> (Epochs, R::Now) {
        let epochs = self.ensure_swept(rule, set, now);
        (epochs, rule.clamp(now, epochs.earliest()))
    }
}

/// Takes back a word that was written too late. If a sweep of the page has begun since `read`, by which the word was
/// judged, and the debt was paid before the new epoch, the sweeper may have passed the slot before the write.
#[inline(always)]
pub(super) fn validate<R: Rule>(rule: &R, slot: Slot<'_>, page: &Page, tag: Tag, stamp: u64, read: Epochs) {
    // After the write, and in one order with it (both are `SeqCst`; the fence is for loom). If the epoch were read
    // before the write, a sweep could begin and pass the slot in between, and the two threads would miss each other.
    in_order();
    let epochs = page.load();
    if epochs != read && rule.is_paid_by(stamp, epochs.latest()) {
        // Only that very word: if the key has been charged again since, its time is new.
        let _ = slot.replace(Word::new(tag, stamp), Word::EMPTY);
    }
}
