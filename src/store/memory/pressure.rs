use crate::store::stats::next_table_number;
use crate::util::log;
use crate::util::sync::{AtomicU32, AtomicU64, Ordering};

/// How full a table is, as far as arrivals of new keys show it.
///
/// On a cache line of its own: what is written here must not slow down decisions, which read the table's fields beside it.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Pressure {
    /// No other table's.
    number: u64,
    evicted: AtomicU64,
    turned_away: AtomicU64,
    /// The share of slots taken that sampled arrivals met, averaged, in parts of 2^16.
    load: AtomicU32,
    warned: AtomicU32,
}

const ONE: u32 = 1 << 16;

/// What arrivals meet when three fifths of all slots are taken: less, since they choose the emptier of two homes.
/// From two thirds on, large tables begin to lose keys.
const WORRYING: u32 = ONE / 20 * 11;

/// One arrival in so many is looked at.
const SAMPLE: u64 = 64;

/// An average over so many of those.
const WEIGHT: u32 = 32;

impl Pressure {
    pub(super) fn new() -> Self {
        Self {
            number: next_table_number(),
            evicted: AtomicU64::new(0),
            turned_away: AtomicU64::new(0),
            load: AtomicU32::new(0),
            warned: AtomicU32::new(0),
        }
    }

    /// Warns no more if its predecessor has.
    pub(super) fn go_on(&self, predecessor: &Self) {
        self.warned.store(predecessor.warned.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// A new key met a line with `free` of eight slots free, the emptier of two.
    pub(super) fn note_arrival(&self, hash: u64, free: usize) {
        // Any bits of the hash that did not choose the line would do.
        if (hash >> 5) % SAMPLE != 0 {
            return;
        }
        let free = u32::try_from(free.min(8)).unwrap_or(8);
        let met = ONE - free * (ONE / 8);
        // A lost update costs a sample.
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

    pub(super) fn note_turned_away(&self) {
        self.turned_away.fetch_add(1, Ordering::Relaxed);
        self.warn_once(log::table_filling_up);
    }

    pub(super) const fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    pub(super) fn turned_away(&self) -> u64 {
        self.turned_away.load(Ordering::Relaxed)
    }

    #[cfg(all(test, not(sluice_loom)))]
    pub(super) fn has_warned(&self) -> bool {
        self.warned.load(Ordering::Relaxed) > 0
    }

    fn warn_once(&self, warn: impl FnOnce()) {
        if self.warned.load(Ordering::Relaxed) == 0 && self.warned.swap(1, Ordering::Relaxed) == 0 {
            warn();
        }
    }
}
