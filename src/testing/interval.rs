//! Checks the bound on every interval in a history.

use crate::values::Quota;
use crate::values::time::Timestamp;

/// Checks that every interval in a history admitted at most `burst + rate × length`.
///
/// Takes constant time per event. Let S be the running total and E = S − rate × time. Among the intervals that end now,
/// the largest excess over the rate is E(now) minus the least E just before each event so far.
///
/// ```
/// use tower_sluice::testing::IntervalChecker;
/// use tower_sluice::time::Timestamp;
/// use tower_sluice::Quota;
///
/// let mut checker = IntervalChecker::new(Quota::per_second(1), 2);
/// checker.admit(Timestamp::from_nanos(0), 2);
/// checker.admit(Timestamp::from_nanos(1_000_000_000), 1);
/// ```
#[derive(Clone, Debug)]
pub struct IntervalChecker {
    quota: Quota,
    burst: u64,
    /// In units of 1/limit nanosecond, like `least_before`: one token is `period` of them.
    total: i128,
    least_before: Option<i128>,
    last: Timestamp,
}

impl IntervalChecker {
    /// A checker for the rate of `quota`, with a burst of `burst`.
    #[must_use]
    pub const fn new(quota: Quota, burst: u64) -> Self {
        Self { quota, burst, total: 0, least_before: None, last: Timestamp::ZERO }
    }

    /// Records that `cost` was admitted at `now`, which must not be earlier than the previous record.
    ///
    /// # Panics
    ///
    /// If an interval that ends at `now` admitted too much, or if `now` is earlier.
    #[track_caller]
    pub fn admit(&mut self, now: Timestamp, cost: u64) {
        assert!(now >= self.last, "events must be recorded in order of time");
        self.last = now;
        let period = i128::from(self.quota.period_nanos());
        let earned = i128::from(now.as_nanos()) * i128::from(self.quota.limit());
        let before = self.total - earned;
        let least = self.least_before.map_or(before, |least| least.min(before));
        self.least_before = Some(least);
        self.total += i128::from(cost) * period;

        let excess = self.total - earned - least;
        let bound = i128::from(self.burst) * period;
        assert!(
            excess <= bound,
            "an interval ending at {now:?} admitted {} units of 1/{period} above {} + rate * length",
            excess - bound,
            self.burst,
        );
    }
}
