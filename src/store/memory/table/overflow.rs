//! A table's overflow slots: a page with words that new keys share when the table is full and must not forget a key
//! ([`WhenFull::Overflow`]).

use super::SetAssociativeTable;
use super::charge::{Judged, Owner};
use super::epoch::Epochs;
use super::rule::Rule;
use super::slots::{SETS_PER_PAGE, SLOTS_PER_PAGE, SLOTS_PER_SET, Slot};
use super::word::{GROUPS, Tag, Word};
use crate::store::memory::when_full::WhenFull;

/// The tag for all keys in the overflow slots.
pub(super) const OVERFLOW: Tag = Tag::from_hash(0);

/// Each group of keys has an overflow slot to itself, so all keys in a slot have windows that begin at the same
/// instants.
const _: () = assert!(cfg!(sluice_loom) || SLOTS_PER_PAGE as u64 == GROUPS);

impl SetAssociativeTable {
    /// Returns the page with the overflow slots, if there is one.
    pub(super) fn overflow_page(&self) -> Option<usize> {
        (self.when_full == WhenFull::Overflow).then(|| self.pages.len() - 1)
    }

    /// Returns a key's overflow slot, and its set, if the table has such slots. When the table is full, new keys share
    /// it.
    pub(super) fn overflow_slot(&self, tag: Tag) -> Option<(usize, Slot<'_>)> {
        let page = self.overflow_page()?;
        let index = usize::try_from(tag.group() % SLOTS_PER_PAGE as u64).expect("below a page");
        let slot = self.slots.in_page(page).nth(index)?;
        Some((page * SETS_PER_PAGE + index / SLOTS_PER_SET, slot))
    }

    /// Sets the debt in a tag's overflow slot, by its stamp, if there are such slots. If a tag has several debts, the
    /// greatest stays. The table must be unused.
    pub(in crate::store::memory) fn inherit_overflow<R: Rule>(&self, rule: &R, now: R::Now, tag: Tag, stamp: u64) {
        let Some((set, slot)) = self.overflow_slot(tag) else { return };
        // The page counts as swept now. If it counted as last swept in an earlier epoch, it would be swept first, and
        // its words taken for old.
        let _ = self.page(set).replace(Epochs::swept(0), Epochs::swept(rule.epoch(now)));
        let own = rule.local(now, tag);
        let word = slot.load();
        if rule.size(rule.stamped(stamp, own)) > rule.size(rule.owed(word, own)) {
            let _ = slot.replace(word, Word::new(OVERFLOW, stamp));
        }
    }

    /// Charges a new key's overflow slot, since the table is full and must not forget a key.
    pub(super) fn charge_overflow<R: Rule>(&self, rule: &R, tag: Tag, now: R::Now, cost: u64) -> Judged<R> {
        self.occupancy.note_turned_away();
        let (set, slot) = self.overflow_slot(tag).expect("it is made with the table");
        loop {
            let epochs = self.ensure_swept(rule, set, now);
            // If the slot is empty, its last debt may have been cleared since `now` was read. Then it was paid when the
            // page's epoch began, but we don't know how long before that.
            let now = rule.clamp(now, epochs.latest());
            let judged = self.charge(rule, Owner::overflow(tag), cost, set, now, || {
                // Not found if a sweep began after `now` was clamped, because then it must be clamped again.
                (self.page(set).load() == epochs).then(|| (slot, slot.load()))
            });
            if let Some(judged) = judged {
                return judged;
            }
        }
    }

    /// Returns the debt in a key's overflow slot.
    pub(super) fn overflow_debt<R: Rule>(&self, rule: &R, tag: Tag, now: R::Now) -> R::Debt {
        let own = rule.local(now, tag);
        let Some((set, slot)) = self.overflow_slot(tag) else { return rule.nothing(own) };
        let (word, _, at) = self.read(rule, set, slot, now);
        // The word may be from a later time, either because the clock was set back, or because this thread was
        // descheduled for more than an epoch, and another one has swept the page meanwhile.
        let at = rule.local(at, tag);
        rule.stamped(rule.stamp(rule.owed(word, at), at), own)
    }

    /// Returns the debt in each overflow slot, with a tag that the sharing keys have.
    pub(in crate::store::memory) fn overflow_debts<R: Rule>(
        &self,
        rule: &R,
        now: R::Now,
    ) -> impl Iterator<Item = (Tag, R::Debt)> + '_ {
        let rule = *rule;
        self.overflow_page().into_iter().flat_map(move |page| {
            (0..).map(Tag::of_group).zip(self.slots.in_page(page)).map(move |(tag, slot)| {
                let (word, at) = self.read_unswept(&rule, page, slot, now);
                (tag, rule.owed(word, rule.local(at, tag)))
            })
        })
    }

    /// Lowers the debt in a key's overflow slot, if the table has such slots.
    pub(super) fn lower_overflow<R: Rule>(
        &self,
        rule: &R,
        tag: Tag,
        now: R::Now,
        lessen: impl Fn(R::Debt, R::Now) -> R::Debt,
    ) {
        if let Some(found) = self.overflow_slot(tag) {
            self.lower_in(rule, found, Owner::overflow(tag), now, lessen);
        }
    }
}
