//! Page sweeps: words that were paid before an epoch are cleared at its beginning, before stored times repeat.

use super::SetAssociativeTable;
use super::epoch::Epochs;
use super::rule::Rule;
use super::search::CandidateSets;
use super::slots::SETS_PER_PAGE;
use super::word::Word;

/// After this many epochs without a touch, no key in a page can owe anything, because its words were written in the
/// page's epoch at the latest, and a debt is at most four epochs long.
pub(super) const ALL_PAID: u32 = 5;

impl SetAssociativeTable {
    pub(super) fn ensure_candidates_swept<R: Rule>(&self, rule: &R, candidates: &CandidateSets, now: R::Now) {
        for set in candidates.sets {
            self.ensure_swept(rule, set, now);
        }
    }

    /// Makes sure that a set's page has been swept in the epoch of `now`, or in a later one, which is returned.
    ///
    /// No word in a page may be judged or charged during a sweep, because a paid word that the sweeper has not cleared
    /// yet may look like a debt, and the sweeper may clear a charge that is made meanwhile.
    #[inline]
    pub(super) fn ensure_swept<R: Rule>(&self, rule: &R, set: usize, now: R::Now) -> Epochs {
        let epochs = self.page(set).load();
        let present = rule.epoch(now);
        let is_fresh = epochs.is_swept() && epochs.latest() >= present;
        if is_fresh { epochs } else { self.sweep(rule, set / SETS_PER_PAGE, present) }
    }

    /// Clears the words that were paid before the present epoch. Returns once the page is swept.
    ///
    /// Any number of threads may sweep a page at once, and each can finish for the others (helping), because the words
    /// to clear follow from the two epochs that the first sweeper has written, not from any thread's clock.
    #[cold]
    #[inline(never)]
    pub(super) fn sweep<R: Rule>(&self, rule: &R, index: usize, present: u32) -> Epochs {
        let page = &self.pages[index];
        loop {
            let epochs = page.load();
            if epochs.is_swept() && epochs.latest() >= present {
                return epochs;
            }
            if epochs.is_swept() {
                // Marks the page before the scan. Otherwise a thread could write a word behind the scan, and find the
                // page's epoch unchanged when it validates.
                let begun = Epochs::sweeping(epochs.latest(), present);
                // If it fails, another thread has begun a sweep, so the next turn reads and helps it.
                let _ = page.replace(epochs, begun);
                continue;
            }
            let all_paid = epochs.latest() - epochs.before() >= ALL_PAID;
            let begins = rule.epoch_start(epochs.latest());
            let mut is_overtaken = false;
            let first = index * SETS_PER_PAGE;
            'page: for set in first..first + SETS_PER_PAGE {
                // Most sets are empty, and they take a third of the time if they are read at once.
                if self.slots.is_empty(set) {
                    continue;
                }
                for slot in self.slots.in_set(set) {
                    // In one order with the epochs, so that a writer that misses the mark has written before this load.
                    let word = slot.load_in_order();
                    if word.is_empty() || (!all_paid && rule.size(rule.owed(word, begins)) > 0) {
                        continue;
                    }
                    // Checked after the word is read. A thread writes a new debt only once it has seen the page swept,
                    // so a word that was read before this check is an old one. Otherwise a sweeper that was descheduled
                    // could clear charges that were made after the others had finished.
                    if page.load() != epochs {
                        is_overtaken = true;
                        break 'page;
                    }
                    // Clears only that very word. If it fails, a late writer or another sweeper has replaced it: the
                    // writer validates, and the sweeper has cleared it.
                    let _ = slot.replace(word, Word::EMPTY);
                }
            }
            if !is_overtaken {
                // If it fails, another sweeper has finished first.
                let _ = page.replace(epochs, Epochs::swept(epochs.latest()));
            }
        }
    }
}
