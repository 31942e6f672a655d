//! What takes debts off keys: refunds and resets.

use super::{CompactTable, Homes, Past, SHARED, mend};
use crate::store::memory::slots::Slot;
use crate::store::memory::ticks::{Tick, TickBucket};
use crate::store::memory::word::{Tag, Word};

impl CompactTable {
    /// Gives back what is still owed for a charge that is paid at a tick; see [`Gcra`](crate::algorithm::gcra::Gcra).
    pub(in crate::store::memory) fn give_back(
        &self,
        bucket: &TickBucket,
        hash: u64,
        cost: u32,
        paid_at: u64,
        now: Tick,
    ) {
        self.forgive(hash, now, |now| paid_at.saturating_sub(now).min(bucket.worth(cost)));
    }

    /// Lets a key owe nothing; also what it shares with others.
    pub(in crate::store::memory) fn reset(&self, hash: u64, now: Tick) {
        self.forgive(hash, now, |_| u64::MAX);
        self.forgive_in(self.shared(hash), SHARED, now, |_| u64::MAX);
    }

    /// Takes up to so much off a key's debt; off the one that it inherits or shares if it has none of its own.
    fn forgive(&self, hash: u64, now: Tick, most: impl Fn(u64) -> u64) {
        let homes = self.homes(hash);
        self.freshen_homes(&homes, now);
        match (self.find(&homes), &self.past) {
            (None, Some(past)) => self.forgive_inherited(&**past, hash, &homes, now, most),
            (None, None) => self.forgive_in(self.shared(hash), SHARED, now, most),
            (found, _) => self.forgive_in(found, homes.tag, now, most),
        }
    }

    #[cold]
    fn forgive_inherited(&self, past: &dyn Past, hash: u64, homes: &Homes, now: Tick, most: impl Fn(u64) -> u64) {
        // Or it could be inserted, and its inherited debt cleared, after it was looked for in the table.
        let _stripe = self.lock_stripe(homes.tag);
        let found = self.find(homes);
        if found.is_some() {
            return self.forgive_in(found, homes.tag, now, most);
        }
        match past.owed(hash, now) {
            None => self.forgive_in(self.shared(hash), SHARED, now, most),
            Some(debt) => {
                let left = debt - most(now.count).min(debt);
                past.set_owed(hash, now, Some(left).filter(|left| *left > 0));
            }
        }
    }

    fn forgive_in(&self, found: Option<(usize, Slot<'_>)>, tag: Tag, now: Tick, most: impl Fn(u64) -> u64) {
        let Some((line, slot)) = found else { return };
        loop {
            let (word, epochs, at) = self.read(line, slot, now);
            let debt = word.debt(at.count);
            let back = most(at.count).min(debt);
            if !word.is(tag) || back == 0 {
                return;
            }
            let tat = at.count + (debt - back);
            if slot.replace(word, Word::new(tag, tat)).is_ok() {
                mend(slot, self.page(line), tag, tat, epochs);
                return;
            }
        }
    }
}
