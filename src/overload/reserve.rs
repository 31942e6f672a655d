//! [`Reserve`]: the limit's last quarter, where no key has more than half while others use it.
//!
//! A fair order among waiting requests is not enough: a key with slow requests holds units while others come and go,
//! until it holds all. We share time on the server, and units in flight are this time, by the second. So the first
//! three quarters of the limit go to the first to come, and in the last quarter, a key may hold half if another key has
//! used it within a second. With smaller parts, units would stay free that no key may use.

use std::collections::HashMap;

use super::word::GateWord;
use crate::values::PartitionKey;

/// The reserve's units in flight, by key.
#[derive(Debug, Default)]
pub(super) struct Reserve {
    keys: HashMap<PartitionKey, Held>,
    /// All keys' units.
    units: u64,
    /// When keys were last forgotten.
    swept: u64,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    units: u64,
    /// When the key took a unit last.
    seen: u64,
}

/// After this time without units, in nanoseconds, a key has no share.
const LONGEST: u64 = 1_000_000_000;

/// Whether `cost` more units reach into the reserve.
pub(super) const fn is_needed(word: GateWord, cost: u64) -> bool {
    word.units() > 0 && word.units() + cost > open_to_all(word)
}

const fn open_to_all(word: GateWord) -> u64 {
    word.limit() - word.limit() / 4
}

impl Reserve {
    /// Whether the key may hold `cost` more units in the reserve.
    pub(super) fn has_room(&self, word: GateWord, key: &PartitionKey, cost: u64) -> bool {
        let held = self.keys.get(key);
        let reserve = word.limit() / 4;
        let is_alone = self.keys.len() == usize::from(held.is_some());
        let share = if is_alone { reserve } else { reserve / 2 };
        // When units end that were open to all, units from the reserve take their place.
        let taken = word.units().saturating_sub(open_to_all(word)).min(self.units);
        let part = held.map_or(0, |held| (held.units * taken).div_ceil(self.units.max(1)));
        // A key without units in the reserve may have one request in it.
        part + cost <= share.max(cost)
    }

    pub(super) fn take(&mut self, now: u64, key: &PartitionKey, cost: u64) {
        if now.saturating_sub(self.swept) >= LONGEST {
            self.swept = now;
            self.keys.retain(|_, held| held.units > 0 || now.saturating_sub(held.seen) < LONGEST);
        }
        let held = self.keys.entry(key.clone()).or_insert(Held { units: 0, seen: now });
        held.units += cost;
        held.seen = now;
        self.units += cost;
    }

    pub(super) fn release(&mut self, key: &PartitionKey, cost: u64) {
        if let Some(held) = self.keys.get_mut(key) {
            held.units = held.units.saturating_sub(cost);
            self.units = self.units.saturating_sub(cost);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Alone, a key may have all of it.
    #[test]
    fn others_halve_a_keys_reserve() {
        let at = |units| GateWord::new(20).with_units(units);
        let [slow, other] = ["slow", "other"].map(PartitionKey::from);
        let mut reserve = Reserve::default();
        assert!(is_needed(at(15), 1) && !is_needed(at(14), 1));
        for units in 15..20 {
            assert!(reserve.has_room(at(units), &slow, 1));
            reserve.take(0, &slow, 1);
        }
        reserve.release(&slow, 2);
        reserve.take(5, &other, 1);
        // Three and one, out of five.
        assert!(!reserve.has_room(at(19), &slow, 1) && reserve.has_room(at(19), &other, 1));
        // Another second, and the other key is gone.
        reserve.release(&other, 1);
        reserve.take(LONGEST + 5, &slow, 1);
        assert!(reserve.has_room(at(19), &slow, 1));
    }

    /// Reserved units stay in flight while others end.
    #[test]
    fn one_key_has_the_whole_limit() {
        let at = |units| GateWord::new(8).with_units(units);
        let (mut reserve, key) = (Reserve::default(), PartitionKey::from("a"));
        (6..8).for_each(|_| reserve.take(0, &key, 1));
        for units in 0..8 {
            assert!(reserve.has_room(at(units), &key, 1), "{units}");
        }
    }

    #[test]
    fn each_key_has_room_for_one() {
        let (mut reserve, word) = (Reserve::default(), GateWord::new(4).with_units(3));
        for key in 0..3_u64 {
            assert!(reserve.has_room(word, &key.into(), 1));
            reserve.take(0, &key.into(), 1);
        }
    }
}
