//! Random numbers for pauses, for jitter and for choices between equals. Nothing that must stay secret depends on them.

use std::hash::{BuildHasher, RandomState};

/// Draws a number, all equally likely.
pub(crate) fn random() -> u64 {
    #[cfg(test)]
    if let Some(number) = seeded::next() {
        return number;
    }
    // A new state has new keys, so its hash of anything is a new number.
    RandomState::new().hash_one(0)
}

/// The numbers of a simulation, which follow from its seed.
#[cfg(test)]
pub(crate) mod seeded {
    use std::cell::Cell;

    use crate::util::keyed_hash::Secret;

    std::thread_local! {
        /// The seed of this thread, and how many numbers were drawn.
        static SEED: Cell<Option<(u64, u64)>> = const { Cell::new(None) };
    }

    /// Draws from this seed on this thread from now on; with `None`, without a seed.
    pub(crate) fn set(seed: Option<u64>) {
        SEED.set(seed.map(|seed| (seed, 0)));
    }

    pub(super) fn next() -> Option<u64> {
        let (seed, drawn) = SEED.get()?;
        SEED.set(Some((seed, drawn + 1)));
        Some(Secret::from_bytes([0; 16]).hash(&[seed.to_le_bytes(), drawn.to_le_bytes()].concat()))
    }
}
