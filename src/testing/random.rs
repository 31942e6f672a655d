//! A seeded random number generator. Everything random in a test follows from one seed.

pub use crate::util::random::seeded::seed;

/// Returns a trial's seed: its number in a run with seed 1, and another one for each other run seed.
#[must_use]
pub fn seed_of(trial: u64) -> u64 {
    // No test has a million trials, so runs do not share seeds.
    seed().wrapping_sub(1).wrapping_mul(1_000_000).wrapping_add(trial)
}

/// Returns the seeds for `count` trials.
pub fn seeds(count: usize) -> impl Iterator<Item = u64> {
    let first = seed_of(0);
    (0..count as u64).map(move |trial| first.wrapping_add(trial))
}

/// A small generator of repeatable random numbers (SplitMix64, by G. Steele, D. Lea and C. Flood).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The random numbers that follow from this seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The random numbers for a trial in a test, see [`seed_of`].
    #[must_use]
    pub fn of_trial(number: u64) -> Self {
        Self(seed_of(number))
    }

    /// The next number.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// The next number, below `end` (0 if `end` is 0).
    pub const fn below(&mut self, end: u64) -> u64 {
        let number = self.next();
        if end == 0 { 0 } else { number % end }
    }

    /// Picks one of `choices`.
    ///
    /// # Panics
    ///
    /// If `choices` is empty.
    #[track_caller]
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        let index = usize::try_from(self.below(choices.len() as u64)).expect("below a usize");
        choices[index]
    }
}
