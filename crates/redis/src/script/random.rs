//! Random numbers for tests, from a seed that a failed run prints.

use tower_sluice::testing::seed;

use super::variant;

/// A random number generator: xorshift (Marsaglia), multiplied so that its low bits are random, too (Vigna).
pub(crate) struct Xorshift(u64);

impl Xorshift {
    /// Seeds the generator with the run's or the variant's seed, and prints it.
    pub(crate) fn seeded() -> Self {
        let seed = variant::seed().unwrap_or_else(seed);
        println!("SLUICE_SEED={seed}");
        Self::from_seed(seed)
    }

    /// Returns the generator with this seed.
    pub(crate) const fn from_seed(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    pub(crate) fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[usize::try_from(self.below(items.len() as u64)).unwrap()]
    }
}
