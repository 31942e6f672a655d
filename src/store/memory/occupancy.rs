//! How full a table is: counts of lost keys, a warning before keys are lost, and an estimate of the live keys.

#[cfg(feature = "test-util")]
use super::when_full::WhenFull;
use crate::store::stats::{TableStats, next_table_number};
use crate::util::log;
use crate::util::sync::{AtomicU32, AtomicU64, Ordering};

/// How full a table is, judged by the arrivals of new keys.
///
/// Has its own cache line, because writes to it must not slow down decisions, which read the table's fields beside it.
/// All accesses are relaxed, because nothing else depends on these counts.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Occupancy {
    /// A number that no other table has.
    number: u64,
    evicted: AtomicU64,
    turned_away: AtomicU64,
    /// The keys that a live change forgot when it copied their debts.
    forgotten: AtomicU64,
    /// The predecessors' counts: evicted keys, and requests turned away.
    evicted_before: AtomicU64,
    turned_away_before: AtomicU64,
    /// The share of slots that were taken when sampled arrivals came, averaged, in parts of 2^16.
    load: AtomicU32,
    /// One, once the warning was logged.
    warned: AtomicU32,
}

const ONE: u32 = 1 << 16;

/// The load that arrivals meet when three fifths of all slots are taken. It is less than three fifths, since arrivals
/// choose the emptier candidate set. From two thirds on, large tables begin to lose keys.
const WORRYING: u32 = ONE / 20 * 11;

/// One arrival in `SAMPLE` is sampled, so that threads rarely write to the same cache line.
const SAMPLE: u64 = 64;

/// The average is over `WEIGHT` samples, some two thousand arrivals, so a few arrivals that meet full sets cause no
/// warning.
const WEIGHT: u32 = 32;

/// The slots in a set, in either kind of table.
const SLOTS: u32 = 8;

impl Occupancy {
    pub(super) fn new() -> Self {
        Self {
            number: next_table_number(),
            evicted: AtomicU64::new(0),
            turned_away: AtomicU64::new(0),
            forgotten: AtomicU64::new(0),
            evicted_before: AtomicU64::new(0),
            turned_away_before: AtomicU64::new(0),
            load: AtomicU32::new(0),
            warned: AtomicU32::new(0),
        }
    }

    /// Begins with a table's counts in a snapshot.
    pub(super) fn continuing(evicted: u64, turned_away: u64) -> Self {
        let occupancy = Self::new();
        occupancy.evicted_before.store(evicted, Ordering::Relaxed);
        occupancy.turned_away_before.store(turned_away, Ordering::Relaxed);
        occupancy
    }

    /// Continues the predecessor's counts, and suppresses the warning if the predecessor has logged it.
    pub(super) fn inherit(&self, predecessor: &Self) {
        self.evicted_before.store(predecessor.evicted(), Ordering::Relaxed);
        self.turned_away_before.store(predecessor.turned_away(), Ordering::Relaxed);
        self.warned.store(predecessor.warned.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Notes that a new key's emptier candidate set has `free` free slots.
    pub(super) fn note_arrival(&self, hash: u64, free: usize) {
        // Any bits would do that did not choose the set.
        if (hash >> 5) % SAMPLE != 0 {
            return;
        }
        let free = u32::try_from(free).map_or(SLOTS, |free| free.min(SLOTS));
        let met = ONE - free * (ONE / SLOTS);
        // Not one atomic step, because if two threads meet here, only one sample is lost.
        let load = self.load.load(Ordering::Relaxed);
        let load = load - load / WEIGHT + met / WEIGHT;
        self.load.store(load, Ordering::Relaxed);
        if load > WORRYING {
            self.warn_once(log::table_filling_up);
        }
    }

    pub(super) fn note_evicted(&self) {
        self.evicted.fetch_add(1, Ordering::Relaxed);
        self.warn_once(log::table_filling_up);
    }

    /// Notes that a live change had to forget this number of keys.
    pub(super) fn note_forgotten(&self, keys: u64) {
        if keys > 0 {
            self.forgotten.fetch_add(keys, Ordering::Relaxed);
            self.warn_once(log::table_filling_up);
        }
    }

    pub(super) fn note_turned_away(&self) {
        self.turned_away.fetch_add(1, Ordering::Relaxed);
        self.warn_once(log::table_filling_up);
    }

    pub(super) const fn number(&self) -> u64 {
        self.number
    }

    /// Returns how many keys were evicted, including the predecessors' counts.
    pub(super) fn evicted(&self) -> u64 {
        [&self.evicted, &self.forgotten, &self.evicted_before].map(|count| count.load(Ordering::Relaxed)).iter().sum()
    }

    /// Returns how many requests were turned away, including the predecessors' counts.
    pub(super) fn turned_away(&self) -> u64 {
        [&self.turned_away, &self.turned_away_before].map(|count| count.load(Ordering::Relaxed)).iter().sum()
    }

    /// Returns both counts, and the predecessors' part in each.
    pub(super) fn counts(&self) -> TableStats {
        let inherited = [&self.evicted_before, &self.turned_away_before].map(|count| count.load(Ordering::Relaxed));
        TableStats {
            evicted_live: self.evicted(),
            turned_away: self.turned_away(),
            inherited: inherited.into(),
            number: Some(self.number),
            ..TableStats::default()
        }
    }

    #[cfg(all(test, not(sluice_loom)))]
    pub(super) fn has_warned(&self) -> bool {
        self.warned.load(Ordering::Relaxed) > 0
    }

    /// Panics if the table has evicted keys, or turned requests away, although `when_full` forbids it.
    #[cfg(feature = "test-util")]
    pub(super) fn check_invariants(&self, when_full: WhenFull) {
        let [evicted, turned_away] = [&self.evicted, &self.turned_away].map(|count| count.load(Ordering::Relaxed));
        let unwanted = if when_full == WhenFull::EvictLeast { turned_away } else { evicted };
        assert_eq!(unwanted, 0, "{when_full:?}, and {evicted} keys were evicted, {turned_away} turned away");
    }

    fn warn_once(&self, warn: impl FnOnce()) {
        // The load spares the cache line a write per arrival; the swap lets only one thread warn.
        if self.warned.load(Ordering::Relaxed) == 0 && self.warned.swap(1, Ordering::Relaxed) == 0 {
            warn();
        }
    }
}

#[cold]
pub(super) fn no_memory(keys: usize, bytes: usize) -> ! {
    panic!("a store for {keys} keys takes {bytes} bytes, which cannot be allocated; choose a smaller capacity");
}

/// The number of sets in which live keys are counted, if a table has more, because keys are spread evenly over all
/// sets.
pub(super) const SAMPLED_SETS: usize = 512;

/// Estimates how many keys are live in `total` sets, if `live` keys are in the `seen` sets. Rounded up, so that it is
/// zero only if no live key was seen.
pub(super) fn extrapolate(live: usize, seen: usize, total: usize) -> u64 {
    let live = (live as u128 * total as u128).div_ceil(seen.max(1) as u128);
    u64::try_from(live).unwrap_or(u64::MAX)
}
