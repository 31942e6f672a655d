//! The demand of a key, and the limit under which it would never be rejected.

use tower_sluice::Quota;
use tower_sluice::limiter::{Shape, Terms};

/// How to measure the demand of a policy's keys.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Measure {
    /// By a bucket with this quota.
    Bucket { period: u64, limit: u64 },
    /// By windows that begin at multiples of the period.
    FixedWindow { period: u64 },
    /// By the weighted count of two such windows.
    SlidingWindow { period: u64 },
    /// Not measured: the policy has no limit over time, or calendar windows.
    None,
}

impl Measure {
    pub(crate) fn of(terms: Option<Terms>) -> Self {
        let Some((quota, shape)) = terms.and_then(|terms| terms.quota().zip(terms.shape())) else { return Self::None };
        let period = u64::try_from(Quota::period(&quota).as_nanos()).unwrap_or(u64::MAX);
        match shape {
            Shape::Bucket => Self::Bucket { period, limit: quota.limit() },
            Shape::FixedWindow => Self::FixedWindow { period },
            Shape::SlidingWindow => Self::SlidingWindow { period },
            _ => Self::None,
        }
    }
}

/// One key's demand since its first request, as if no request was rejected.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Demand {
    /// Bucket: the time of the last request. Windows: the number of the last window.
    last: u64,
    /// Bucket: the debt at the policy's rate, in nanoseconds × limit.
    debt: u128,
    /// The greatest debt, in units, rounded up.
    burst: u64,
    /// The debt, in nanoseconds, in a bucket whose burst is its limit, at the least limit that has sufficed so far.
    steady: u128,
    /// Bucket: this limit. Windows: the greatest count in a window.
    limit: u64,
    /// Windows: the counts in the last window and in the one before.
    current: u64,
    previous: u64,
}

impl Demand {
    /// Notes a request of `cost` units.
    pub(crate) fn note(&mut self, measure: Measure, now: u64, cost: u64) {
        match measure {
            Measure::Bucket { period, limit } => self.note_bucket(now, cost, period, limit),
            Measure::FixedWindow { period } => {
                self.roll(now / period.max(1));
                self.current = self.current.saturating_add(cost);
                self.limit = self.limit.max(self.current);
            }
            Measure::SlidingWindow { period } => {
                let period = period.max(1);
                self.roll(now / period);
                self.current = self.current.saturating_add(cost);
                let left = period - now % period;
                // Below 2^128: counts of a log are below 2^64.
                let weighted = (u128::from(self.previous) * u128::from(left)).div_ceil(u128::from(period));
                let weighted = u64::try_from(weighted).unwrap_or(u64::MAX).saturating_add(self.current);
                self.limit = self.limit.max(weighted);
            }
            Measure::None => {}
        }
    }

    fn note_bucket(&mut self, now: u64, cost: u64, period: u64, limit: u64) {
        // Products of two numbers below 2^64 do not overflow.
        let product = |one: u64, other: u64| u128::from(one) * u128::from(other);
        let elapsed = now.saturating_sub(self.last);
        self.last = self.last.max(now);

        // A unit is `period` nanoseconds × limit.
        let paid = product(elapsed, limit);
        self.debt = self.debt.saturating_sub(paid).saturating_add(product(period, cost));
        // A division takes longer than the rest of this function, and is rarely needed.
        if self.debt > product(self.burst, period) {
            self.burst = u64::try_from(self.debt.div_ceil(period.max(1).into())).unwrap_or(u64::MAX);
        }

        // The debt was paid at smaller limits' rates, so it isn't underestimated.
        let paid = product(elapsed, self.limit);
        self.steady = self.steady.saturating_sub(paid).saturating_add(product(period, cost));
        if self.steady > product(self.limit, period) {
            self.limit = u64::try_from(self.steady.div_ceil(period.max(1).into())).unwrap_or(u64::MAX);
        }
    }

    fn roll(&mut self, window: u64) {
        if window == self.last {
            return;
        }
        self.previous = if window == self.last.saturating_add(1) { self.current } else { 0 };
        self.current = 0;
        self.last = window;
    }

    /// Returns the least burst, at the policy's limit, under which the key is never rejected (buckets only).
    pub(crate) const fn burst(&self) -> u64 {
        self.burst
    }

    /// Returns a limit, which is also the burst, under which the key is never rejected. For windows, it is the least
    /// one.
    pub(crate) const fn limit(&self) -> u64 {
        self.limit
    }
}

/// Returns the least of `numbers` that is at least as great as `per_100_000` out of 100,000 of them.
pub(crate) fn quantile(mut numbers: Vec<u64>, per_100_000: u64) -> Option<u64> {
    let count = numbers.len() as u64;
    let rank = (u128::from(count) * u128::from(per_100_000)).div_ceil(100_000);
    let index = usize::try_from(rank.saturating_sub(1)).ok()?;
    if index >= numbers.len() {
        return None;
    }
    let (_, number, _) = numbers.select_nth_unstable(index);
    Some(*number)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn demand(measure: Measure, times: impl IntoIterator<Item = u64>) -> Demand {
        let mut demand = Demand::default();
        times.into_iter().for_each(|time| demand.note(measure, time, 1));
        demand
    }

    #[test]
    fn a_burst_is_the_greatest_debt() {
        let measure = Measure::Bucket { period: SECOND, limit: 2 };
        // Five at once, and three more a second later, when two are paid.
        let times = [10, 10, 10, 10, 10, 11, 11, 11].map(|second| second * SECOND);
        assert_eq!(demand(measure, times).burst(), 6);
        assert_eq!(demand(measure, times).limit(), 5);
    }

    #[test]
    fn a_steady_rate_is_its_limit() {
        let measure = Measure::Bucket { period: SECOND, limit: 2 };
        let demand = demand(measure, (0..1_000).map(|number| number * SECOND / 5));
        assert_eq!(demand.limit(), 5);
    }

    #[test]
    fn windows_need_their_greatest_counts() {
        let times = [1, 5, 9, 11, 19, 20].map(|second| second * SECOND);
        assert_eq!(demand(Measure::FixedWindow { period: 10 * SECOND }, times).limit(), 3);
        // At 11, nine tenths of three weigh 2.7.
        assert_eq!(demand(Measure::SlidingWindow { period: 10 * SECOND }, times).limit(), 4);
    }

    #[test]
    fn a_quantile_is_one_of_the_numbers() {
        let numbers: Vec<_> = (1..=1_000).collect();
        assert_eq!(quantile(numbers.clone(), 99_900), Some(999));
        assert_eq!(quantile(numbers.clone(), 100_000), Some(1_000));
        assert_eq!(quantile(numbers, 1), Some(1));
        assert_eq!(quantile(Vec::new(), 50_000), None);
    }
}
