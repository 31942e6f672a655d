//! Random traces that continue until every case under test has occurred.

/// A random trace that continues until it has met enough of each thing that it is there to test.
///
/// The seed decides how often a fixed number of steps meets a thing. So a test does not assert such a count after the
/// trace. It passes the count to [`goes_on`](Self::goes_on) instead, and its assertions hold for every seed.
pub(crate) struct Trace {
    least: usize,
    steps: usize,
}

/// A trace gives up after this many times its least length.
const MOST_TIMES: usize = 20;

impl Trace {
    /// A trace with at least `least` steps.
    pub(crate) const fn of(least: usize) -> Self {
        Self { least, steps: 0 }
    }

    /// Begins the next step, unless the trace is long enough and all `needs` are met.
    ///
    /// # Panics
    ///
    /// If the trace has had twenty times its least length, and a need is still unmet. The message names it.
    pub(crate) fn goes_on<const N: usize>(&mut self, needs: [(&str, bool); N]) -> bool {
        let unmet = || needs.iter().filter(|(_, is_met)| !is_met).map(|(name, _)| *name).collect::<Vec<_>>();
        let is_over = self.steps >= self.least && needs.iter().all(|(_, is_met)| *is_met);
        assert!(
            is_over || self.steps < self.least.saturating_mul(MOST_TIMES),
            "the trace has had {} steps and too few of: {:?}",
            self.steps,
            unmet()
        );
        self.steps += 1;
        !is_over
    }

    /// The current step's seed.
    pub(crate) fn seed(&self) -> u64 {
        tower_sluice::testing::seed_of(self.step() as u64)
    }

    /// The current step's number, from 0.
    pub(crate) const fn step(&self) -> usize {
        self.steps - 1
    }
}
