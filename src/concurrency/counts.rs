//! [`Counts`]: how many units each key has in flight, in a set-associative table.
//!
//! # Concurrency
//!
//! A key is in one slot of its two candidate sets at most:
//!
//! - Only [`insert`](Counts::insert) writes a tag, with the key's stripe locked, and only after it has searched both
//!   sets under that lock. No other thread can write the same tag meanwhile.
//! - A count that falls to zero leaves the tag where it is. Another key may then take the slot, which removes the tag.
//!
//! Other threads change a found word only by one compare-and-swap. It fails if another key has taken the slot in
//! between, since the tag differs; the thread then searches the key again. If the slot was taken and came back to the
//! same key, the word has the units in flight now, and the swap is as good as a later one.
//!
//! Nothing is evicted: a slot with units in flight is free when they are released, and not before.

use super::log;
use super::slots::{CountSlots, SLOTS_PER_SET, SlotPlace};
use super::wait_lists::WaitLists;
use super::word::CountWord;
use crate::store::next_table_number;
use crate::util::keyed_hash::Secret;
use crate::util::stripes::Stripes;
use crate::util::sync::{AtomicU64, Ordering};
use crate::values::PartitionKey;

/// How many units each key has in flight. Shared by a limiter, its heirs and its permits.
pub(super) struct Counts {
    secret: Secret,
    pub(super) slots: CountSlots,
    stripes: Stripes,
    keys: usize,
    turned_away: AtomicU64,
    number: u64,
    pub(super) wait_lists: WaitLists,
}

/// The result of a request for units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AcquireResult {
    /// They are in flight now, in this slot; with them, the key has `units`.
    Taken { slot: usize, units: u64 },
    /// They do not fit, or others wait before: the key has `units` in flight, in this slot.
    Full { slot: usize, units: u64 },
    /// The key has no units in flight, and both its sets are full of keys that have some.
    NoSlot,
}

impl Counts {
    /// Makes counts for `keys` keys that have units in flight at once.
    pub(super) fn new(keys: usize) -> Self {
        Self::hashed_by(Secret::random(), keys)
    }

    pub(super) fn hashed_by(secret: Secret, keys: usize) -> Self {
        let slots = CountSlots::new(keys);
        Self {
            secret,
            stripes: Stripes::new(slots.sets()),
            slots,
            keys,
            turned_away: AtomicU64::new(0),
            number: next_table_number(),
            wait_lists: WaitLists::default(),
        }
    }

    /// The number of keys for which it was made.
    pub(super) const fn keys(&self) -> usize {
        self.keys
    }

    #[inline(always)]
    pub(super) fn place(&self, key: &PartitionKey) -> SlotPlace {
        self.slots.place(self.secret.hash(key.as_bytes()))
    }

    /// Takes `cost` units, if at most `limit` are in flight afterwards. The cost is at most the limit, and not zero.
    #[inline(always)]
    pub(super) fn acquire(&self, place: &SlotPlace, cost: u64, limit: u64) -> AcquireResult {
        debug_assert!(0 < cost && cost <= limit, "{cost} of {limit}");
        let Some((slot, mut word)) = self.find(place) else { return self.insert(place, cost, limit) };
        loop {
            match self.take(slot, word, cost, limit) {
                Ok(attempt) => return attempt,
                Err(now) if now.is(place.tag) => word = now,
                Err(_) => return self.insert(place, cost, limit),
            }
        }
    }

    /// Takes `cost` units from a slot in which the key was found. Returns the word that was found instead, if another
    /// thread was faster.
    #[inline(always)]
    fn take(&self, slot: usize, word: CountWord, cost: u64, limit: u64) -> Result<AcquireResult, CountWord> {
        let units = word.units();
        match units.checked_add(cost).filter(|total| *total <= limit && !word.has_waiters()) {
            None => Ok(AcquireResult::Full { slot, units }),
            Some(units) => {
                let taken = self.slots.get(slot).replace(word, word.with_units(units));
                taken.map(|()| AcquireResult::Taken { slot, units })
            }
        }
    }

    /// Takes `cost` units of a key that was not found, under its stripe's lock.
    #[cold]
    #[inline(never)]
    fn insert(&self, place: &SlotPlace, cost: u64, limit: u64) -> AcquireResult {
        let _stripe = self.stripes.lock(place.tag.value().into());
        loop {
            // Another thread may have inserted the key before the lock was taken. From here on, no thread can.
            while let Some((slot, word)) = self.find(place) {
                if let Ok(attempt) = self.take(slot, word, cost, limit) {
                    return attempt;
                }
            }
            let Some((slot, word)) = self.choose(place) else {
                if self.turned_away.fetch_add(1, Ordering::Relaxed) == 0 {
                    log::counts_are_full(self.keys);
                }
                return AcquireResult::NoSlot;
            };
            // Fails if another key was faster, and then another slot may be free.
            if self.slots.get(slot).replace(word, CountWord::new(place.tag, cost)).is_ok() {
                return AcquireResult::Taken { slot, units: cost };
            }
        }
    }

    /// Searches both candidate sets.
    #[inline(always)]
    pub(super) fn find(&self, place: &SlotPlace) -> Option<(usize, CountWord)> {
        place.sets.into_iter().find_map(|set| self.slots.in_set(set).find(|(_, word)| word.is(place.tag)))
    }

    /// Chooses a free slot: in the first candidate set while half of it is free, and then in the emptier one. A set
    /// that is half full is far from turning a key away, and a key in its first set is found in one cache line.
    fn choose(&self, place: &SlotPlace) -> Option<(usize, CountWord)> {
        let [a, b] = place.sets.map(|set| {
            let mut free = self.slots.in_set(set).filter(|(_, word)| word.is_free());
            let first = free.next();
            (first, usize::from(first.is_some()) + free.count())
        });
        if a.1 < SLOTS_PER_SET / 2 && b.1 > a.1 { b.0 } else { a.0 }
    }

    /// Releases `cost` units of the key in this slot, which has them in flight, and hands them to its next waiters.
    #[inline]
    pub(super) fn release(&self, slot: usize, cost: u64) {
        let place = self.slots.get(slot);
        let mut word = place.load();
        loop {
            if word.has_waiters() {
                return self.wait_lists.release(&self.slots, slot, cost);
            }
            debug_assert!(word.units() >= cost, "{cost} units are released, and {} are in flight", word.units());
            match place.replace(word, word.with_units(word.units().saturating_sub(cost))) {
                Ok(()) => return,
                Err(now) => word = now,
            }
        }
    }

    /// A key's units in flight, and whether others wait for them.
    pub(super) fn peek(&self, place: &SlotPlace) -> (u64, bool) {
        self.find(place).map_or((0, false), |(_, word)| (word.units(), word.has_waiters()))
    }

    /// The number of keys with units in flight, and the number of these units. Reads the whole table.
    pub(super) fn totals(&self) -> (u64, u64) {
        let words = (0..self.slots.len()).map(|slot| self.slots.get(slot).load()).filter(|word| !word.is_free());
        words.fold((0, 0), |(keys, units), word| (keys + 1, units + word.units()))
    }

    pub(super) fn turned_away(&self) -> u64 {
        self.turned_away.load(Ordering::Relaxed)
    }

    /// A number that no other table in this process has.
    pub(super) const fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn size_in_bytes(&self) -> usize {
        self.slots.size_in_bytes() + self.stripes.size_in_bytes()
    }
}
