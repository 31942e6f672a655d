//! Random numbers in the distributions that the model needs.

use tower_sluice::testing::Random;

/// Returns a number above 0, and up to 1.
pub(crate) fn unit(random: &mut Random) -> f64 {
    ((random.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
}

/// Returns an exponentially distributed number with this mean, at least 1.
pub(crate) fn exponential(random: &mut Random, mean: f64) -> u64 {
    ((-unit(random).ln() * mean) as u64).max(1)
}
