//! The word that threads exchange without a lock.

/// The units in flight, the limit, and whether the queue has to be asked:
///
/// ```text
///   63           32  31  30                          0
///  ┌───────────────┬────┬─────────────────────────────┐
///  │ limit         │ Q  │ units in flight, 31 bits    │
///  └───────────────┴────┴─────────────────────────────┘
/// ```
///
/// While *Q* is set, requests wait, or the search for the limit counts. Only the thread that has the lock changes the
/// word then, and it alone sets and clears *Q*.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct GateWord(u64);

/// The most units that may be in flight.
pub(super) const MOST: u64 = (1 << 31) - 1;

const QUEUED: u64 = 1 << 31;

impl GateWord {
    /// Nothing is in flight. The limit is [`MOST`] at most.
    pub(super) const fn new(limit: u64) -> Self {
        Self(limit << 32)
    }

    pub(super) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    pub(super) const fn bits(self) -> u64 {
        self.0
    }

    pub(super) const fn units(self) -> u64 {
        self.0 & MOST
    }

    pub(super) const fn limit(self) -> u64 {
        self.0 >> 32
    }

    pub(super) const fn is_queued(self) -> bool {
        self.0 & QUEUED != 0
    }

    /// Whether `cost` more units fit. A request that costs more than the limit passes when it is alone.
    pub(super) const fn has_room(self, cost: u64) -> bool {
        let units = self.units();
        units.saturating_add(cost) <= self.limit() || units == 0 && cost <= MOST
    }

    #[must_use]
    pub(super) const fn with_units(self, units: u64) -> Self {
        Self(self.0 & !MOST | units & MOST)
    }

    #[must_use]
    pub(super) const fn with_limit(self, limit: u64) -> Self {
        Self(self.0 & (QUEUED | MOST) | limit << 32)
    }

    #[must_use]
    pub(super) const fn with_queue(self, is_queued: bool) -> Self {
        Self(if is_queued { self.0 | QUEUED } else { self.0 & !QUEUED })
    }
}

#[cfg(all(test, not(sluice_loom)))]
mod tests {
    use super::*;

    #[test]
    fn word_parts_do_not_overlap() {
        for limit in [1, 4, MOST] {
            for units in [0, 1, MOST] {
                let word = GateWord::new(limit).with_units(units);
                assert!(word.units() == units && word.limit() == limit && !word.is_queued());
                let queued = word.with_queue(true);
                assert!(queued.units() == units && queued.limit() == limit && queued.is_queued());
                assert_eq!(queued.with_queue(false), word);
                assert_eq!(queued.with_limit(3).with_units(7), GateWord::new(3).with_units(7).with_queue(true));
                assert_eq!(GateWord::from_bits(word.bits()), word);
            }
        }
    }

    #[test]
    fn costs_above_the_limit_pass_alone() {
        let word = GateWord::new(4);
        assert!(word.has_room(4) && word.has_room(9) && !word.has_room(MOST + 1));
        assert!(word.with_units(1).has_room(3) && !word.with_units(1).has_room(4));
    }
}
