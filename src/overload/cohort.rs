//! [`Cohort`]: requests that were admitted one after the other while the limit was full, and what became of them.
//!
//! Under a full limit, throughput is the limit divided by the mean time of a request (Little's law). So a few requests,
//! each followed to its end, tell the throughput of a limit: also between the idle times of a server that gets bursts,
//! and also of one that serves four requests in a second. All requests of a cohort are followed, since those that end
//! first are the short ones.

/// Marks a request of a cohort. Travels in its receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Followed {
    /// Not zero.
    pub(super) cohort: u64,
    /// When it was admitted, in nanoseconds.
    pub(super) since: u64,
}

/// Times in microseconds, so that no sum of squares overflows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cohort {
    admitted: u64,
    ended: u64,
    served: u64,
    /// The time of all that have ended, and the sum of the squares.
    occupied: u128,
    squares: u128,
    /// The sum of the admission times of those that have not ended.
    began: u128,
}

/// One, in fractions.
const ONE: u128 = 1 << 20;

/// The least relative variance of a time, in fractions: requests of one length are no proof for the next one.
const LEAST_VARIANCE: u128 = ONE / 50;

impl Cohort {
    pub(super) fn admit(&mut self, now: u64) {
        self.admitted += 1;
        self.began += micros(now);
    }

    /// A request is over.
    pub(super) fn end(&mut self, since: u64, now: u64, is_served: bool) {
        let time = micros(now.saturating_sub(since));
        self.forget(since);
        self.admitted += 1;
        self.ended += 1;
        self.served += u64::from(is_served);
        self.occupied += time;
        self.squares += time * time;
    }

    /// A request was withdrawn before it began.
    pub(super) fn forget(&mut self, since: u64) {
        self.admitted = self.admitted.saturating_sub(1);
        self.began = self.began.saturating_sub(micros(since));
    }

    pub(super) const fn admitted(&self) -> u64 {
        self.admitted
    }

    pub(super) const fn ended(&self) -> u64 {
        self.ended
    }

    /// The mean time of those that have ended, in nanoseconds.
    pub(super) fn mean(&self) -> u64 {
        let mean = self.occupied.checked_div(u128::from(self.ended)).unwrap_or(0);
        u64::try_from(mean * 1_000).unwrap_or(u64::MAX)
    }

    /// Returns the cohort as it is now. What has not ended counts with the time that it has taken so far.
    pub(super) fn closed(mut self, now: u64) -> Self {
        let open = u128::from(self.admitted - self.ended);
        self.occupied += (micros(now) * open).saturating_sub(self.began);
        (self.admitted, self.began) = (self.ended, 0);
        self
    }

    /// Adds another closed cohort.
    pub(super) fn add(&mut self, other: &Self) {
        self.admitted += other.admitted;
        self.ended += other.ended;
        self.served += other.served;
        self.occupied += other.occupied;
        self.squares += other.squares;
    }

    /// The square of the relative error of the time per served request, in fractions.
    pub(super) fn error(&self) -> u128 {
        let (ended, served) = (u128::from(self.ended.max(1)), u128::from(self.served));
        let square = (self.occupied * self.occupied).max(1);
        let variance = (self.squares * ended * ONE / square).saturating_sub(ONE);
        let unserved = (ended - served) * ONE / ended;
        // None served counts as half of one.
        (variance + LEAST_VARIANCE) / ended + if served > 0 { unserved / served } else { 2 * unserved }
    }

    /// The time per served request, in fractions of that of another cohort.
    pub(super) fn time_relative_to(&self, other: &Self) -> u128 {
        let halves = |served: u64| if served > 0 { 2 * u128::from(served) } else { 1 };
        let (own, others) = (self.occupied * halves(other.served), other.occupied * halves(self.served));
        own * ONE / others.max(1)
    }
}

fn micros(nanos: u64) -> u128 {
    u128::from(nanos / 1_000)
}

/// Whether the time per request grows from one limit to its double in proportion to it (`Some(true)`), or stays
/// (`Some(false)`): by twice the standard error. `None` if neither is certain, unless so many have ended in both.
pub(super) fn grows(low: &Cohort, high: &Cohort, enough: u64) -> Option<bool> {
    let ratio = high.time_relative_to(low).min(ONE << 24);
    // The middle of one and two.
    const MIDDLE: u128 = ONE * 1_414 / 1_000;
    let away = ratio.abs_diff(MIDDLE);
    // Both sides times ONE.
    let is_certain = away * away >= 4 * (ratio * ratio / ONE) * (low.error() + high.error());
    let is_enough = low.ended.min(high.ended) >= enough;
    (is_certain || is_enough).then_some(ratio > MIDDLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn cohort(times: &[u64], served: usize) -> Cohort {
        let mut cohort = Cohort::default();
        for (index, time) in times.iter().enumerate() {
            cohort.admit(MS);
            cohort.end(MS, MS + time, index < served);
        }
        cohort
    }

    #[test]
    fn a_few_equal_times_are_certain() {
        let [low, same, double] = [5, 5, 10].map(|time| cohort(&[time * MS; 8], 8));
        assert_eq!(grows(&low, &same, 100), Some(false));
        assert_eq!(grows(&low, &double, 100), Some(true));
    }

    #[test]
    fn a_few_scattered_times_are_not() {
        let scattered = |scale: u64| cohort(&[1, 1, 1, 1, 1, 1, 1, 20].map(|time| time * scale * MS), 8);
        assert_eq!(grows(&scattered(1), &scattered(2), 100), None);
        assert_eq!(grows(&scattered(1), &scattered(2), 8), Some(true));
        assert_eq!(grows(&scattered(1), &scattered(1), 8), Some(false));
    }

    /// Clients that give up after a time make all times equal: what counts is the time per answer.
    #[test]
    fn requests_that_were_not_served_count_with_their_time() {
        let (low, high) = (cohort(&[1_000 * MS; 32], 32), cohort(&[1_000 * MS; 32], 8));
        assert_eq!(grows(&low, &high, 100), Some(true));
        let none = cohort(&[3_000 * MS; 32], 0);
        assert_eq!(grows(&low, &none, 32), Some(true));
    }

    #[test]
    fn what_has_not_ended_counts_with_its_age() {
        let mut cohort = cohort(&[10 * MS; 3], 3);
        cohort.admit(2 * MS);
        let closed = cohort.closed(32 * MS);
        assert_eq!((closed.admitted(), closed.ended()), (3, 3));
        assert_eq!(closed.mean(), 20 * MS);
        cohort.forget(2 * MS);
        assert_eq!(cohort.closed(32 * MS).mean(), 10 * MS);
    }
}
