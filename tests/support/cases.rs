//! How property tests draw their cases.

use proptest::test_runner::{Config, FileFailurePersistence, RngSeed};

/// Where failed cases are kept, beside the folder with the sources.
const REGRESSIONS: &str =
    if is_unit_test(module_path!()) { "tests/proptest-regressions" } else { "proptest-regressions" };

/// Unit tests are compiled with the crate's sources, and all others in `tests`.
const fn is_unit_test(module: &str) -> bool {
    matches!(module.as_bytes(), [b't', b'o', b'w', b'e', b'r', b'_', ..])
}

/// Draws this many cases from the run's seed.
pub(crate) fn cases(count: usize) -> Config {
    Config {
        cases: u32::try_from(count).expect("a number of cases"),
        rng_seed: RngSeed::Fixed(tower_sluice::testing::seed()),
        failure_persistence: Some(Box::new(FileFailurePersistence::SourceParallel(REGRESSIONS))),
        ..Config::default()
    }
}
