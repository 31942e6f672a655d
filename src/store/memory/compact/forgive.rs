//! What takes debts off keys: refunds and resets.

use super::{CompactTable, SHARED, mend};
use crate::decision::Receipt;
use crate::store::memory::slots::Slot;
use crate::store::memory::ticks::{Outdated, Tick, TickBucket};
use crate::store::memory::word::{Tag, Word};

impl CompactTable {
    /// Gives back what is still owed for a charge; see [`Gcra`](crate::algorithm::gcra::Gcra).
    pub(in crate::store::memory) fn give_back(
        &self,
        bucket: &TickBucket,
        hash: u64,
        cost: u32,
        receipt: Receipt,
        now: Tick,
    ) -> Result<(), Outdated> {
        let paid_at = bucket.paid_at(receipt);
        self.forgive(bucket, hash, now, |now| paid_at.saturating_sub(now).min(bucket.worth(cost)))
    }

    /// Lets a key owe nothing; also what it shares with others.
    pub(in crate::store::memory) fn reset(&self, bucket: &TickBucket, hash: u64, now: Tick) -> Result<(), Outdated> {
        self.forgive(bucket, hash, now, |_| u64::MAX)?;
        self.forgive_in(bucket, self.shared(hash), SHARED, now, |_| u64::MAX)
    }

    /// Takes up to so much off a key's debt; off the one that it shares if it has none of its own.
    fn forgive(&self, bucket: &TickBucket, hash: u64, now: Tick, most: impl Fn(u64) -> u64) -> Result<(), Outdated> {
        if self.is_outdated(bucket) {
            return Err(Outdated);
        }
        let homes = self.homes(hash);
        self.freshen_homes(&homes, now);
        match self.find(&homes) {
            Some(found) => self.forgive_in(bucket, Some(found), homes.tag, now, most),
            None => self.forgive_in(bucket, self.shared(hash), SHARED, now, most),
        }
    }

    fn forgive_in(
        &self,
        bucket: &TickBucket,
        found: Option<(usize, Slot<'_>)>,
        tag: Tag,
        now: Tick,
        most: impl Fn(u64) -> u64,
    ) -> Result<(), Outdated> {
        loop {
            let read = found.map(|(line, slot)| (line, slot, self.read(line, slot, now)));
            if self.is_outdated(bucket) {
                return Err(Outdated);
            }
            let Some((line, slot, (word, epochs, at))) = read else { return Ok(()) };
            if !word.is(tag) {
                return Ok(());
            }
            let debt = word.debt(at.count);
            let back = most(at.count).min(debt);
            if back == 0 {
                return Ok(());
            }
            let tat = at.count + (debt - back);
            if slot.replace(word, Word::new(tag, tat)).is_ok() {
                mend(slot, self.page(line), tag, tat, epochs);
                return Ok(());
            }
        }
    }
}
