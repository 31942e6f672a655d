//! [`Cohort`]: requests that were admitted one after the other while the limit was full, and how they ended.
//!
//! Under a full limit, throughput is the limit divided by the mean request time (Little's law). So a few requests, each
//! followed to its end, show a limit's throughput, even between a bursty server's idle times, and even if the server
//! serves four requests in a second. All requests in a cohort are followed, because the short ones end first.

use crate::values::RequestEnd;

/// A request in a cohort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Followed {
    /// Not zero, and below 2^63.
    pub(super) cohort: u64,
    /// When it was admitted, in nanoseconds.
    pub(super) since: u64,
}

/// In a shorter time, no server makes a client impatient: it resets streams, or only looks whether the server answers.
const HASTY: u64 = 20_000_000;

impl Followed {
    /// Whether the request was given up so soon that this says nothing about the server.
    pub(super) fn is_hasty(self, now: u64, end: RequestEnd) -> bool {
        end == RequestEnd::Abandoned && now.saturating_sub(self.since) < HASTY
    }
}

/// Times count by their logarithm, so that a few slow requests do not hide the others: if a server takes twice the time
/// for nine in ten, the mean of the times may hardly change.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cohort {
    admitted: u64,
    ended: u64,
    served: u64,
    /// The sums of the [logarithms](log2) of ended requests' times, and of the logarithms' squares.
    logs: u64,
    squares: u64,
    /// The sum of the open requests' admission times, in nanoseconds.
    began: u128,
}

/// One, in logarithms to the base 2.
const ONE: u64 = 1 << 10;

/// A logarithm's least variance, because requests with one length do not prove the next one's.
const LEAST_VARIANCE: u64 = ONE * ONE / 24;

impl Cohort {
    pub(super) fn admit(&mut self, now: u64) {
        self.admitted += 1;
        self.began += u128::from(now);
    }

    /// A request is over.
    pub(super) fn end(&mut self, since: u64, now: u64, end: RequestEnd) {
        self.began = self.began.saturating_sub(since.into());
        self.note(now.saturating_sub(since), 1);
        self.served += u64::from(end == RequestEnd::Served);
    }

    fn note(&mut self, time: u64, requests: u64) {
        let log = log2(time);
        self.ended += requests;
        self.logs += log * requests;
        self.squares += log * log * requests;
    }

    /// A request was withdrawn before it began.
    pub(super) fn forget(&mut self, since: u64) {
        self.admitted = self.admitted.saturating_sub(1);
        self.began = self.began.saturating_sub(since.into());
    }

    pub(super) const fn admitted(&self) -> u64 {
        self.admitted
    }

    pub(super) const fn ended(&self) -> u64 {
        self.ended
    }

    /// The usual time of a request, in nanoseconds: the geometric mean over ended requests.
    pub(super) fn usual_time(&self) -> u64 {
        self.logs.checked_div(self.ended).map_or(0, exp2)
    }

    /// Returns the cohort as it is now. Requests that have not ended count with the time that they have taken so far,
    /// as served.
    pub(super) fn closed(mut self, now: u64) -> Self {
        let open = self.admitted.saturating_sub(self.ended);
        let ages = (u128::from(now) * u128::from(open)).saturating_sub(self.began);
        if let Some(age) = ages.checked_div(open.into()) {
            self.note(u64::try_from(age).unwrap_or(u64::MAX), open);
            self.served += open;
        }
        (self.admitted, self.began) = (self.ended, 0);
        self
    }

    /// Adds another closed cohort.
    pub(super) const fn add(&mut self, other: &Self) {
        self.admitted += other.admitted;
        self.ended += other.ended;
        self.served += other.served;
        self.logs += other.logs;
        self.squares += other.squares;
    }

    /// The square of the standard error of [`time`](Self::time).
    pub(super) fn error(&self) -> u64 {
        let ended = self.ended.max(1);
        let mean = self.logs / ended;
        let variance = (self.squares / ended).saturating_sub(mean * mean).max(LEAST_VARIANCE);
        // The error of a share is in natural logarithms. In logarithms to the base 2, its square is twice as large.
        let unserved = 2 * ONE * ONE * (ended - self.served) / ended;
        // Zero served requests count as half a request.
        variance / ended + unserved.checked_div(self.served).unwrap_or(2 * unserved)
    }

    /// The logarithm of the time per served request.
    fn time(&self) -> u64 {
        let ended = self.ended.max(1);
        let share = (ended * ONE).checked_div(self.served).unwrap_or(2 * ended * ONE);
        (self.logs / ended + log2(share)).saturating_sub(log2(ONE))
    }
}

/// The logarithm to the base 2, scaled by [`ONE`]. It uses the leading bit and the next ten, so it is too small by at
/// most 0.09, and exact for the ratio between a number and its double.
fn log2(number: u64) -> u64 {
    let number = number.max(1);
    let bit = u64::from(number.ilog2());
    let rest = (u128::from(number) * u128::from(ONE)) >> bit;
    bit * ONE + (u64::try_from(rest).unwrap_or(ONE) - ONE)
}

/// The number with this logarithm.
fn exp2(log: u64) -> u64 {
    let (bit, rest) = (log / ONE, log % ONE);
    u64::try_from((u128::from(ONE + rest) << bit.min(63)) / u128::from(ONE)).unwrap_or(u64::MAX)
}

/// Whether the time per request grows from one limit to its double in proportion to it (`Some(true)`), or stays
/// (`Some(false)`), by twice the standard error. `None` if both are uncertain.
pub(super) fn grows(low: &Cohort, high: &Cohort) -> Option<bool> {
    // The middle between the logarithms of one and two.
    let middle = low.time() + ONE / 2;
    let away = high.time().abs_diff(middle);
    let is_certain = away * away >= 4 * (low.error() + high.error());
    is_certain.then_some(high.time() > middle)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn cohort(times: &[u64], served: usize) -> Cohort {
        let mut cohort = Cohort::default();
        for (index, time) in times.iter().enumerate() {
            cohort.admit(MS);
            cohort.end(MS, MS + time, if index < served { RequestEnd::Served } else { RequestEnd::Failed });
        }
        cohort
    }

    #[test]
    fn a_few_equal_times_are_certain() {
        let [low, same, double] = [5, 5, 10].map(|time| cohort(&[time * MS; 8], 8));
        assert_eq!(grows(&low, &same), Some(false));
        assert_eq!(grows(&low, &double), Some(true));
    }

    #[test]
    fn logarithms_know_doubles() {
        for number in [1, 2, 3, 5, 1_000, 1_000_000_007, u64::MAX / 4] {
            assert_eq!(log2(2 * number), log2(number) + ONE);
            assert!(exp2(log2(number)).abs_diff(number) <= number / 500, "{number}");
        }
    }

    /// One in ten waits for another server, however many there are.
    #[test]
    fn slow_requests_do_not_hide_others() {
        let mixed = |time: u64| cohort(&[[time * MS; 9].as_slice(), &[1_000 * MS]].concat().repeat(64), 640);
        assert_eq!(grows(&mixed(5), &mixed(10)), Some(true));
        assert_eq!(grows(&mixed(5), &mixed(5)), Some(false));
    }

    #[test]
    fn a_few_scattered_times_are_uncertain() {
        let scattered = |scale: u64| cohort(&[1, 1, 1, 1, 1, 1, 1, 20].map(|time| time * scale * MS), 8);
        assert_eq!(grows(&scattered(1), &scattered(2)), None);
    }

    /// If clients give up after a time, all times are equal, so the time per answer counts.
    #[test]
    fn unserved_requests_count_with_their_time() {
        let (low, high) = (cohort(&[1_000 * MS; 32], 32), cohort(&[1_000 * MS; 32], 8));
        assert_eq!(grows(&low, &high), Some(true));
        let none = cohort(&[3_000 * MS; 32], 0);
        assert_eq!(grows(&low, &none), Some(true));
    }

    #[test]
    fn open_requests_count_with_their_age() {
        let mut cohort = cohort(&[10 * MS; 3], 3);
        cohort.admit(2 * MS);
        let near = |time: u64, expected: u64| assert!(time.abs_diff(expected) < expected / 50, "{time}");
        let closed = cohort.closed(162 * MS);
        assert_eq!((closed.admitted(), closed.ended()), (4, 4));
        // 10 ms, doubled once by 160 ms: one in four takes sixteen times the time.
        near(closed.usual_time(), 20 * MS);
        cohort.forget(2 * MS);
        near(cohort.closed(162 * MS).usual_time(), 10 * MS);
    }
}
