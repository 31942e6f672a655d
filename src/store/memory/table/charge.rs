//! Charges: the decision on a request, and the write of its charge. The docs at the head of `table/mod.rs` explain
//! sets, pages and epochs, and why each step is needed.
//!
//! A charge takes four steps:
//!
//! 1. **Find** the key's word in one of its two candidate sets, between two equal readings of the page's epochs.
//! 2. **Judge** the debt in the word.
//! 3. **Swap** the word for a word with the debt after the charge, by one compare-and-swap. The word keeps the debt as
//!    a [stamp](Rule::stamp), which means the same at all times.
//! 4. **Validate** the new word, and take it back if a page sweep may have missed it.
//!
//! The hot path ([`check`](SetAssociativeTable::check), with `charge_hit` and `hit`) takes these steps for a key that
//! is found in a page swept up to the clock's epoch. All other requests take the cold path, `check_any`, which sweeps
//! the page first, inserts a key that is not found, and decides again if the clock reading was too old.

use super::SetAssociativeTable;
use super::epoch::{Epochs, Page};
use super::overflow::OVERFLOW;
use super::rule::{Rule, Ruling};
use super::search::{first_candidate, second_candidate};
use super::slots::Slot;
use super::word::{Tag, Word};
use crate::util::sync::in_order;
use crate::values::Decision;

/// A ruling on the debt in a slot, with everything that the decision is made from.
pub(super) struct Judged<R: Rule> {
    pub(super) ruling: Ruling<R::Debt>,
    /// The [key's own time](Rule::local) by which it was made.
    pub(super) at: R::Now,
    /// A debt that the key has in addition to the debt in the slot, because it was inherited at a live change, and the
    /// table has no room for it.
    debt_beside: Option<R::Debt>,
}

impl<R: Rule> Judged<R> {
    pub(super) const fn new(ruling: Ruling<R::Debt>, at: R::Now) -> Self {
        Self { ruling, at, debt_beside: None }
    }

    /// Adds the debt beside the slot, if there is one, by its stamp.
    pub(super) fn with_debt_beside(self, rule: &R, stamp: Option<u64>) -> Self {
        Self { debt_beside: stamp.map(|stamp| rule.stamped(stamp, self.at)), ..self }
    }

    /// Returns the decision. Each arm builds it in its caller's return slot, so that it is not copied.
    #[inline(always)]
    fn decision(self, rule: &R, cost: u64) -> Decision {
        match (self.ruling, self.debt_beside) {
            (Ruling::Admit { debt }, Some(beside)) => self.decision_on_total(rule, cost, rule.sum(debt, beside)),
            (ruling, _) => rule.decision(ruling, cost, self.at),
        }
    }

    /// Returns the decision for a key that owes `total` after the charge, in the slot and beside it. Its numbers show
    /// the total, while its receipt is for the charge, which is in the slot only.
    #[cold]
    #[inline(never)]
    fn decision_on_total(&self, rule: &R, cost: u64, total: R::Debt) -> Decision {
        let charge_receipt = rule.decision(self.ruling, cost, self.at).receipt();
        rule.decision(Ruling::Admit { debt: total }, cost, self.at).with_receipt(charge_receipt)
    }
}

/// The key whose debt a word holds, by its tags. The two are equal, except in an overflow slot, which keys share.
#[derive(Clone, Copy)]
pub(super) struct Owner {
    /// The tag in the word.
    pub(super) word_tag: Tag,
    /// The key's own tag, which chooses the time by which the key is judged ([`Rule::local`]).
    pub(super) key_tag: Tag,
}

impl Owner {
    pub(super) const fn from_tag(tag: Tag) -> Self {
        Self { word_tag: tag, key_tag: tag }
    }

    pub(super) const fn overflow(key_tag: Tag) -> Self {
        Self { word_tag: OVERFLOW, key_tag }
    }
}

/// A key's word, as [`read_found`](SetAssociativeTable::read_found) reads it.
pub(super) struct FoundWord<'a, N> {
    pub(super) slot: Slot<'a>,
    pub(super) word: Word,
    /// The epochs of its page, before and after the word was read.
    pub(super) epochs: Epochs,
    /// The clock reading by which to judge the word, no earlier than `epochs` allow ([`Rule::clamp`]).
    pub(super) at: N,
}

/// Why the hot path cannot decide in a set.
#[derive(Clone, Copy)]
pub(super) enum Miss {
    /// The set does not have the key.
    Absent,
    /// The page was last swept in another epoch than the clock reading's, or is being swept.
    OtherEpoch,
}

impl SetAssociativeTable {
    /// Decides on a request of `cost` units at `now`, and charges it if it is admitted. `clock` reads the time again,
    /// for a key that is not found, and for a reading that was too old.
    ///
    /// The hot path never changes `now`, so that all values stay in registers. All other cases are decided out of line,
    /// from the beginning.
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
        // The search in both sets is written out, here and in `peek`, because with a helper that takes a closure, a
        // decision takes a seventh more instructions.
        let mut hit = self.charge_hit(rule, tag, cost, first, now);
        if let Err(Miss::Absent) = hit {
            hit = self.charge_hit(rule, tag, cost, second_candidate(self.geometry.sets(), first, tag), now);
        }
        match hit {
            Ok(Ok(debt)) => T::from(rule.decision(Ruling::Admit { debt }, cost, at)),
            // Not charged. A late ruling is not given, because its clock reading was too old, see `check_any`.
            Ok(Err(ruling)) if !rule.is_late(&ruling, at) => T::from(rule.decision(ruling, cost, at)),
            Ok(Err(_)) | Err(Miss::OtherEpoch) => T::from(self.check_any(rule, hash, cost, now, &{ clock }, false)),
            Err(Miss::Absent) => T::from(self.check_any(rule, hash, cost, now, &{ clock }, true)),
        }
    }

    /// Finds a key in a set whose page has been swept up to the epoch of `now`.
    #[inline(always)]
    pub(super) fn hit<R: Rule>(&self, rule: &R, tag: Tag, set: usize, now: R::Now) -> Result<(Slot<'_>, Word), Miss> {
        let (page, epochs) = (self.page(set), Epochs::swept(rule.epoch(now)));
        if page.load() != epochs {
            return Err(Miss::OtherEpoch);
        }
        let found = self.find_in(set, tag).ok_or(Miss::Absent)?;
        // A sweep that began since may have changed the word's meaning, as `read_found` explains.
        if page.load() == epochs { Ok(found) } else { Err(Miss::OtherEpoch) }
    }

    /// Charges a key that [`hit`](Self::hit) finds. Returns its debt after the charge, or, as the inner error, the
    /// ruling by which it was not charged.
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
            // The comments are in `charge`, which takes the same steps.
            let stamp = rule.stamp(debt, at);
            if slot.replace(word, Word::new(tag, stamp)).is_ok() {
                validate(rule, slot, self.page(set), tag, stamp, Epochs::swept(rule.epoch(now)));
                return Ok(Ok(debt));
            }
        }
    }

    /// The cold path for [`check`](Self::check): decides on any key, in a page at any epoch. `is_absent` is whether the
    /// hot path has searched both sets in vain. The clock's type is erased, so that this is compiled once for a rule.
    #[cold]
    #[inline(never)]
    pub(in crate::store::memory) fn check_any<R: Rule>(
        &self,
        rule: &R,
        hash: u64,
        cost: u64,
        now: R::Now,
        clock: &dyn Fn() -> R::Now,
        is_absent: bool,
    ) -> Decision {
        let mut judged = if is_absent {
            self.insert(rule, hash, &self.candidates(hash), cost, clock)
        } else {
            self.find_and_charge(rule, hash, cost, now, clock)
        };
        // Rejected, because the clock reading was too old. So we decide once more, by a new reading. Either this thread
        // was descheduled since the old one, and the debts that it saw are paid by now, or the clock was set back, and
        // the new reading is no later. Only rejected requests are decided again, so no request is charged twice.
        if rule.is_late(&judged.ruling, judged.at) {
            judged = self.find_and_charge(rule, hash, cost, clock(), clock);
        }
        judged.decision(rule, cost)
    }

    /// Searches both sets for the key, decides, and charges an admitted request. A key that is not found is inserted.
    fn find_and_charge<R: Rule>(
        &self,
        rule: &R,
        hash: u64,
        cost: u64,
        now: R::Now,
        clock: &dyn Fn() -> R::Now,
    ) -> Judged<R> {
        let candidates = self.candidates(hash);
        let tag = candidates.tag;
        for set in candidates.sets {
            if let Some(judged) = self.charge(rule, Owner::from_tag(tag), cost, set, now, || self.find_in(set, tag)) {
                return judged;
            }
        }
        // Another thread may have inserted the key since its set was searched. `insert` searches again, under the lock.
        self.insert(rule, hash, &candidates, cost, clock)
    }

    /// Decides on the key in the slot that `find` returns, which is in `set`, and charges an admitted request. Returns
    /// `None` if `find` does.
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
            let at = rule.local(at, owner.key_tag);
            let ruling = rule.judge(rule.owed(word, at), cost, at);
            let Ruling::Admit { debt } = ruling else { return Some(Judged::new(ruling, at)) };
            let stamp = rule.stamp(debt, at);
            // Replaces only the very word that was judged. Otherwise, if two threads judge one word, the second write
            // would erase the first charge; and if another thread has given the slot to another key meanwhile, the
            // write would erase that key.
            if slot.replace(word, Word::new(owner.word_tag, stamp)).is_ok() {
                // A sweep may have begun since the page's epochs were read, and have passed this slot before the write.
                validate(rule, slot, self.page(set), owner.word_tag, stamp, epochs);
                return Some(Judged::new(ruling, at));
            }
        }
    }

    /// Calls `find` between two equal readings of the page's epochs, and sweeps the page first if it must be swept.
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
            // Unequal if a sweep began meanwhile. Then the word may have been written in a later epoch, by whose time
            // `at` is too early to read it; or it may be a paid word that is not cleared yet, and look like a debt.
            if page.load() == epochs {
                return Some(FoundWord { slot, word, epochs, at });
            }
            (epochs, at) = self.catch_up(rule, set, now);
        }
    }

    /// Reads the word in a slot, after sweeping its page if that is due. Returns the word, the page's epochs when it
    /// was read, and the time by which to judge it.
    pub(super) fn read<R: Rule>(&self, rule: &R, set: usize, slot: Slot<'_>, now: R::Now) -> (Word, Epochs, R::Now) {
        loop {
            let epochs = self.ensure_swept(rule, set, now);
            let word = slot.load();
            // Unequal if a sweep began meanwhile, as in `read_found`.
            if self.page(set).load() == epochs {
                return (word, epochs, rule.clamp(now, epochs.earliest()));
            }
        }
    }

    /// Sweeps the set's page, if it was not swept in the epoch of `now` or later. Returns its epochs, and the time by
    /// which to judge its words.
    #[cold]
    fn catch_up<R: Rule>(&self, rule: &R, set: usize, now: R::Now) -> (Epochs, R::Now) {
        let epochs = self.ensure_swept(rule, set, now);
        (epochs, rule.clamp(now, epochs.earliest()))
    }
}

/// Takes back a word that was written too late for a sweep to clear it. `judged_in` are the page's epochs by which the
/// word was judged. If they have changed, a sweep has begun since, and may have passed the slot before the write. If
/// the debt is paid by that sweep's epoch, the sweep should have cleared the word, so it is cleared here.
#[inline(always)]
pub(super) fn validate<R: Rule>(rule: &R, slot: Slot<'_>, page: &Page, tag: Tag, stamp: u64, judged_in: Epochs) {
    // The epochs are read after the write, and in one order with it (both are `SeqCst`; the fence is for loom). If they
    // were read before it, a sweep could begin and pass the slot in between, and the two threads would miss each other.
    in_order();
    let epochs = page.load();
    if epochs != judged_in && rule.is_paid_by(stamp, epochs.latest()) {
        // Only that very word is cleared, because if the key has been charged again since, its word is new, and was
        // validated as well.
        let _ = slot.replace(Word::new(tag, stamp), Word::EMPTY);
    }
}
