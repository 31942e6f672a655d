//! How property tests draw their cases.

use proptest::test_runner::{Config, FileFailurePersistence, RngSeed};

/// Where cases that have failed are kept, beside the folder of the sources.
const REGRESSIONS: &str =
    if is_unit_test(module_path!()) { "tests/proptest-regressions" } else { "proptest-regressions" };

/// Unit tests are compiled with the sources of the crate, and all others in `tests`.
const fn is_unit_test(module: &str) -> bool {
    matches!(module.as_bytes(), [b't', b'o', b'w', b'e', b'r', b'_', ..])
}

/// Draws this many cases from the seed of the run.
pub(crate) fn cases(count: usize) -> Config {
    Config {
        cases: u32::try_from(count).expect("a number of cases"),
        rng_seed: RngSeed::Fixed(tower_sluice::testing::seed()),
        failure_persistence: Some(Box::new(FileFailurePersistence::SourceParallel(REGRESSIONS))),
        ..Config::default()
    }
}
