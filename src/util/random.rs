//! Random numbers for pauses, for jitter, for choices between equals and for hash keys. This is the only module in the
//! crate that draws. In tests, the numbers follow from the run's seed (`testing::seed`).

use std::hash::{BuildHasher, RandomState};

/// Draws a number, all equally likely.
pub fn random() -> u64 {
    #[cfg(feature = "test-util")]
    if let Some(number) = seeded::next() {
        return number;
    }
    system_random()
}

/// Draws a number that tells processes apart, so that a seed which they share does not determine it.
pub(crate) fn identity() -> u64 {
    system_random()
}

fn system_random() -> u64 {
    // A new state has new keys, so its hash of anything is a new number. The standard library takes a thread's first
    // keys from the operating system.
    RandomState::new().hash_one(0)
}

/// Numbers that follow from a seed, either a simulation's, or this test run's.
#[cfg(feature = "test-util")]
pub(crate) mod seeded {
    use std::cell::Cell;
    use std::sync::OnceLock;
    use std::thread;

    use crate::util::keyed_hash::Secret;

    std::thread_local! {
        /// The seed for a simulation on this thread.
        static SEED: Cell<Option<u64>> = const { Cell::new(None) };
        /// How many numbers this thread has drawn since the seed was set.
        static DRAWN: Cell<u64> = const { Cell::new(0) };
    }

    /// Draws from this seed on this thread from now on, or from the run's seed with `None`.
    pub(crate) fn set(seed: Option<u64>) {
        SEED.set(seed);
        DRAWN.set(0);
    }

    /// Returns `None` in a program that has the feature `test-util` and was not given a seed, because its hash keys
    /// must stay secret.
    pub(super) fn next() -> Option<u64> {
        let seed = SEED.get().map(|seed| seed.to_le_bytes().to_vec()).or_else(seed_of_thread)?;
        let drawn = DRAWN.get();
        DRAWN.set(drawn + 1);
        Some(Secret::from_bytes([0; 16]).hash(&[&seed[..], &drawn.to_le_bytes()].concat()))
    }

    /// Returns this test run's seed: the environment variable `SLUICE_SEED`, or 1 if it is not set.
    ///
    /// With `SLUICE_DRAWS=FILE`, appends the calling test's name to that file, by which `scripts/stress` finds the
    /// tests whose cases depend on the seed.
    ///
    /// # Panics
    ///
    /// If `SLUICE_SEED` is not a number.
    #[must_use]
    #[track_caller]
    pub fn seed() -> u64 {
        if let Some(file) = std::env::var_os("SLUICE_DRAWS") {
            record_draw(&file);
        }
        seed_of_environment().unwrap_or(1)
    }

    /// Returns `SLUICE_SEED`, if it is set.
    fn seed_of_environment() -> Option<u64> {
        let text = std::env::var("SLUICE_SEED").ok()?;
        Some(text.parse().unwrap_or_else(|_| panic!("SLUICE_SEED is {text:?}, which is not a number of 64 bits")))
    }

    /// Appends a line in one write, so that several processes' lines do not mix.
    fn record_draw(file: &std::ffi::OsStr) {
        use std::io::Write as _;

        let line = format!("{}\n", std::thread::current().name().unwrap_or("?"));
        let file = std::fs::OpenOptions::new().create(true).append(true).open(file);
        file.and_then(|mut file| file.write_all(line.as_bytes()))
            .expect("SLUICE_DRAWS names a file that can be written");
    }

    /// Returns the run's seed, and the thread's name, because a test runs on a thread with its name, so the numbers
    /// that it draws do not depend on the tests that run beside it.
    fn seed_of_thread() -> Option<Vec<u8>> {
        static OF_RUN: OnceLock<Option<u64>> = OnceLock::new();
        let of_run = *OF_RUN.get_or_init(|| seed_of_environment().or(cfg!(test).then_some(1)));
        Some([&of_run?.to_le_bytes(), thread::current().name().unwrap_or_default().as_bytes()].concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_draws_the_same_numbers() {
        let drawn = || {
            let thread = std::thread::Builder::new().name("a test".into());
            thread.spawn(|| [random(), random()]).unwrap().join()
        };
        let [first, second] = drawn().unwrap();
        assert_ne!(first, second);
        assert_eq!(drawn().unwrap(), [first, second]);
    }
}
