//! Random numbers in the distributions that the model needs.

use tower_sluice::testing::Random;

/// Distributions.
pub(crate) trait Draw {
    /// Above 0, and up to 1.
    fn unit(&mut self) -> f64;
    /// How many independent events occur if `mean` are expected.
    fn poisson(&mut self, mean: f64) -> u64;
}

impl Draw for Random {
    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// By counting; a large mean is hardly exceeded, and is taken for the number.
    fn poisson(&mut self, mean: f64) -> u64 {
        if mean > 200.0 {
            return mean.round() as u64;
        }
        let (end, mut product) = ((-mean).exp(), self.unit());
        let mut count = 0;
        while product > end {
            (product, count) = (product * self.unit(), count + 1);
        }
        count
    }
}
