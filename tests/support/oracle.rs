//! Naive models of the algorithms: slow, obvious, and written independently of the crate.

use tower_sluice::Quota;

pub trait Oracle {
    /// All admitted requests: the instant in nanoseconds, and the cost.
    fn log(&mut self) -> &mut Vec<(u64, u64)>;
    /// The units that would be admitted at `now`.
    fn remaining(&self, now: u64) -> u64;
    /// Charges `cost` at `now` if it fits.
    fn take(&mut self, now: u64, cost: u64) -> bool {
        let fits = cost <= self.remaining(now);
        self.log().extend(fits.then_some((now, cost)));
        fits
    }
}

/// A level that leaks `limit` per `period`, recomputed from the log of all admitted requests. Its unit is 1/period
/// request, so that it is an integer.
pub struct BucketOracle {
    quota: Quota,
    log: Vec<(u64, u64)>,
}

impl BucketOracle {
    pub fn new(quota: Quota) -> Self {
        Self { quota, log: Vec::new() }
    }

    fn level(&self, now: u64) -> u128 {
        let (mut level, mut last) = (0_u128, 0);
        for (at, cost) in self.log.iter().copied().chain([(now, 0)]) {
            level = level.saturating_sub(u128::from(at - last) * u128::from(self.quota.limit()));
            level += u128::from(cost) * self.quota.period().as_nanos();
            last = at;
        }
        level
    }
}

impl Oracle for BucketOracle {
    fn log(&mut self) -> &mut Vec<(u64, u64)> {
        &mut self.log
    }

    fn remaining(&self, now: u64) -> u64 {
        let period = self.quota.period().as_nanos();
        let free = u128::from(self.quota.max_burst()) * period - self.level(now);
        u64::try_from(free / period).unwrap()
    }
}

/// Counts the log entries in the current window.
pub struct FixedWindowOracle {
    quota: Quota,
    log: Vec<(u64, u64)>,
}

impl FixedWindowOracle {
    pub fn new(quota: Quota) -> Self {
        Self { quota, log: Vec::new() }
    }
}

impl Oracle for FixedWindowOracle {
    fn log(&mut self) -> &mut Vec<(u64, u64)> {
        &mut self.log
    }

    fn remaining(&self, now: u64) -> u64 {
        let window = |at: u64| u128::from(at) / self.quota.period().as_nanos();
        let used = self.log.iter().filter(|(at, _)| window(*at) == window(now)).map(|(_, cost)| *cost);
        self.quota.limit() - used.sum::<u64>()
    }
}

/// Counts the log entries in the current window, plus those in the previous one, weighted by the share of it that is
/// less than a period ago.
pub struct SlidingWindowOracle {
    quota: Quota,
    log: Vec<(u64, u64)>,
}

impl SlidingWindowOracle {
    pub fn new(quota: Quota) -> Self {
        Self { quota, log: Vec::new() }
    }
}

impl Oracle for SlidingWindowOracle {
    fn log(&mut self) -> &mut Vec<(u64, u64)> {
        &mut self.log
    }

    fn remaining(&self, now: u64) -> u64 {
        let period = self.quota.period().as_nanos();
        let window = |at: u64| u128::from(at) / period;
        let count = |wanted: Option<u128>| {
            self.log
                .iter()
                .filter(|(at, _)| Some(window(*at)) == wanted)
                .map(|(_, cost)| u128::from(*cost))
                .sum::<u128>()
        };
        let share = period - u128::from(now) % period;
        let weighted = count(window(now).checked_sub(1)) * share + count(Some(window(now))) * period;
        u64::try_from((u128::from(self.quota.limit()) * period - weighted) / period).unwrap()
    }
}
