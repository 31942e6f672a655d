//! Reading debts without charging: for a peek, for an heir, and for gauges.

use super::SetAssociativeTable;
use super::charge::{FoundWord, Miss};
use super::rule::{Rule, stamp_of_nothing};
use super::search::{CandidateSets, first_candidate, second_candidate};
use super::slots::{SETS_PER_PAGE, Slot};
use super::sweep::ALL_PAID;
use super::word::{Tag, Word};
use crate::store::memory::occupancy;
use crate::values::Decision;

impl SetAssociativeTable {
    /// Returns the decision that [`check`](Self::check) would make, if there is room for the key. A rejection that is
    /// [late](Rule::is_late) stands, while `check` would decide again, by a new clock reading.
    #[inline(always)]
    pub(in crate::store::memory) fn peek<R: Rule, T: From<Decision>>(
        &self,
        rule: &R,
        hash: u64,
        cost: u64,
        now: R::Now,
    ) -> T {
        let tag = Tag::from_hash(hash);
        let first = first_candidate(self.geometry.sets(), hash);
        let mut hit = self.hit(rule, tag, first, now);
        if let Err(Miss::Absent) = hit {
            hit = self.hit(rule, tag, second_candidate(self.geometry.sets(), first, tag), now);
        }
        let Ok((_, word)) = hit else { return T::from(self.peek_any(rule, hash, cost, now)) };
        let at = rule.local(now, tag);
        T::from(rule.decision(rule.judge(rule.owed(word, at), cost, at), cost, at))
    }

    /// Peeks at any key, in a page at any epoch, or not in the table.
    #[cold]
    #[inline(never)]
    fn peek_any<R: Rule>(&self, rule: &R, hash: u64, cost: u64, now: R::Now) -> Decision {
        let candidates = self.candidates(hash);
        let (debt, at) = match self.debt_of(rule, &candidates, now) {
            Some(found) => found,
            None => self.debt_beside(rule, hash, &candidates, now),
        };
        rule.decision(rule.judge(debt, cost, at), cost, at)
    }

    /// Returns the debt that a key has in the table, and the time of that reading.
    fn debt_of<R: Rule>(&self, rule: &R, candidates: &CandidateSets, now: R::Now) -> Option<(R::Debt, R::Now)> {
        candidates.sets.into_iter().find_map(|set| {
            let FoundWord { word, at, .. } = self.read_found(rule, set, now, &|| self.find_in(set, candidates.tag))?;
            let at = rule.local(at, candidates.tag);
            Some((rule.owed(word, at), at))
        })
    }

    /// Returns the debt that a key has if it is not in the table: an inherited debt, and the debt in its overflow slot.
    fn debt_beside<R: Rule>(&self, rule: &R, hash: u64, candidates: &CandidateSets, now: R::Now) -> (R::Debt, R::Now) {
        let at = rule.local(now, candidates.tag);
        let Some(past) = &self.inherited else { return (self.overflow_debt(rule, candidates.tag, now), at) };
        // Without the lock, another thread could insert the key, and clear its inherited debt, between the table search
        // and the look at that debt, and the key would seem to owe nothing.
        let _stripe = self.stripes.lock(candidates.tag.value());
        self.debt_of(rule, candidates, now).unwrap_or_else(|| {
            let inherited = rule.stamped(past.stamp_of(hash, stamp_of_nothing(rule, now)), at);
            (rule.sum(inherited, self.overflow_debt(rule, candidates.tag, now)), at)
        })
    }

    /// Calls `act` for each key in a page that owes something at `now`, with the set in the page, the tag and the debt.
    /// Writes nothing, except to finish a sweep that has begun.
    pub(in crate::store::memory) fn each_owed<R: Rule>(
        &self,
        rule: &R,
        page: usize,
        now: R::Now,
        mut act: impl FnMut(usize, Tag, R::Debt),
    ) {
        let epochs = self.pages[page].load();
        // The page was not touched for this time, or never, so all is paid, and the page's memory need not be read.
        if epochs.is_swept() && rule.epoch(now).saturating_sub(epochs.latest()) >= ALL_PAID {
            return;
        }
        let first = page * SETS_PER_PAGE;
        for set in first..first + self.geometry.sets_of(page) {
            for slot in self.slots.in_set(set) {
                let (word, at) = self.read_unswept(rule, page, slot, now);
                let debt = rule.owed(word, rule.local(at, word.tag()));
                if rule.size(debt) > 0 {
                    act(set - first, word.tag(), debt);
                }
            }
        }
    }

    /// Reads a word as [`read`](Self::read) does, without sweeping its page up to the present epoch. Each word in the
    /// page was owed when the page was last swept, or was charged since. That sweep was less than [`ALL_PAID`] epochs
    /// ago, or the word reads as empty: so debts can be distinguished from paid words.
    pub(super) fn read_unswept<R: Rule>(&self, rule: &R, page: usize, slot: Slot<'_>, now: R::Now) -> (Word, R::Now) {
        loop {
            let epochs = self.pages[page].load();
            // A sweep that has begun is finished first, because a word that it has not reached yet may look like a
            // debt.
            let epochs = if epochs.is_swept() { epochs } else { self.sweep(rule, page, 0) };
            let word = slot.load();
            // Unequal if a sweep began in between: then the word may be older than it looks.
            if self.pages[page].load() == epochs {
                let is_old = rule.epoch(now).saturating_sub(epochs.latest()) >= ALL_PAID;
                return (if is_old { Word::EMPTY } else { word }, rule.clamp(now, epochs.earliest()));
            }
        }
    }

    /// Returns how many keys owe something, estimated from some pages if there are many. Begins no sweep, and reads no
    /// page that was not touched for [`ALL_PAID`] epochs, so it costs next to nothing to observe an idle table.
    pub(in crate::store::memory) fn live<R: Rule>(&self, rule: &R, now: R::Now) -> u64 {
        let pages = self.geometry.pages();
        let sampled = pages.min(occupancy::SAMPLED_SETS / SETS_PER_PAGE);
        let (mut live, mut seen) = (0, 0);

        for index in 0..sampled {
            let page = index * pages / sampled;
            self.each_owed(rule, page, now, |_, _, _| live += 1);
            seen += self.geometry.sets_of(page);
        }
        occupancy::extrapolate(live, seen, self.geometry.sets())
    }
}
