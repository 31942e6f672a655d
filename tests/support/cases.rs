//! How property tests draw their cases.

use proptest::test_runner::{Config, RngSeed};

/// Draws this many cases from the seed of the run.
pub(crate) fn cases(count: usize) -> Config {
    let cases = u32::try_from(count).expect("a number of cases");
    Config { cases, rng_seed: RngSeed::Fixed(tower_sluice::testing::seed()), ..Config::default() }
}
