//! Figures from a list of departures.

use std::fmt::{self, Write};
use std::time::{Duration, Instant};

/// A request that left, and its position in the order of arrival.
#[derive(Clone, Copy)]
pub struct Departure {
    pub number: usize,
    pub at: Instant,
}

/// In microseconds, unless stated otherwise.
#[derive(Debug)]
pub struct Figures {
    /// Per cent; negative if too slow.
    rate_error: f64,
    gap_error: [f64; 2],
    late: [f64; 2],
    /// Requests that a later request overtook.
    passed: usize,
    most_in_ten: usize,
}

impl Figures {
    /// The ideal schedule begins with the first departure, and has one more in every interval.
    pub fn of(departures: &[Departure], interval: Duration) -> Option<Self> {
        let first = departures.first().filter(|_| departures.len() > 1)?.at;
        let slot = interval.as_secs_f64() * 1e6;
        let times: Vec<_> = departures.iter().map(|one| one.at.duration_since(first).as_secs_f64() * 1e6).collect();
        let late = times.iter().enumerate().map(|(index, time)| time - index as f64 * slot).collect();
        let gaps = times.windows(2).map(|pair| (pair[1] - pair[0] - slot).abs()).collect();
        let mut latest = 0;
        let passed = departures.iter().filter(|one| {
            let is_passed = one.number < latest;
            latest = latest.max(one.number);
            is_passed
        });
        let within_ten = |(index, time): (usize, &f64)| {
            times[index..].iter().take_while(|other| *other - time < 10.0 * slot).count()
        };
        Some(Self {
            rate_error: 100.0 * (slot / mean_gap(departures) - 1.0),
            gap_error: percentiles(gaps),
            late: percentiles(late),
            passed: passed.count(),
            most_in_ten: times.iter().enumerate().map(within_ten).max().unwrap_or(0),
        })
    }

    /// Writes whether the project's targets are reached: 99 in a hundred are at most `most_late` microseconds late.
    pub fn targets(&self, out: &mut impl Write, name: &str, rate: u32, most_late: u32) -> fmt::Result {
        let verdict = |reached: bool| if reached { "reached" } else { "**not reached**" };
        let (error, late) = (self.rate_error.abs(), self.late[1]);
        let what = format!("{name}, {rate} per second");
        writeln!(out, "| {what}, mean rate error, % | ≤ 0.1 | {error:.3} | {} |", verdict(error <= 0.1))?;
        writeln!(out, "| {what}, late p99, µs | ≤ {most_late} | {late:.0} | {} |", verdict(late <= most_late.into()))
    }
}

/// As cells in a row.
impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ([gap50, gap99], [late50, late99]) = (self.gap_error, self.late);
        write!(f, "{:+.3} | {gap50:.0} / {gap99:.0} | {late50:.0} / {late99:.0} ", self.rate_error)?;
        write!(f, "| {} | {}", self.passed, self.most_in_ten)
    }
}

/// Microseconds; not a number if there are less than two.
pub fn mean_gap(departures: &[Departure]) -> f64 {
    let (Some(first), Some(last)) = (departures.first(), departures.last()) else { return f64::NAN };
    last.at.duration_since(first.at).as_secs_f64() * 1e6 / (departures.len() as f64 - 1.0)
}

/// The median and the 99th percentile.
fn percentiles(mut all: Vec<f64>) -> [f64; 2] {
    all.sort_by(f64::total_cmp);
    [50, 99].map(|percent| all[(all.len() * percent / 100).min(all.len() - 1)])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn departures(of: &[(usize, u64)]) -> Vec<Departure> {
        let zero = Instant::now();
        of.iter()
            .map(|(number, micros)| Departure { number: *number, at: zero + Duration::from_micros(*micros) })
            .collect()
    }

    #[test]
    fn late_early_passed_and_bunched_are_counted() {
        let slot = Duration::from_micros(100);
        // Number 1 is passed by 2, which comes with it; the last is 50 µs late.
        let figures = Figures::of(&departures(&[(0, 0), (2, 100), (1, 100), (3, 300), (4, 450)]), slot).unwrap();
        assert_eq!((figures.passed, figures.most_in_ten), (1, 5));
        assert!((figures.rate_error - 100.0 * (400.0 / 450.0 - 1.0)).abs() < 1e-6, "{figures:?}");
        assert_eq!(figures.late.map(f64::round), [0.0, 50.0]);
        assert_eq!(figures.gap_error.map(f64::round), [100.0, 100.0]);

        let even: Vec<_> = (0..50).map(|number| (number, 100 * number as u64)).collect();
        let figures = Figures::of(&departures(&even), slot).unwrap();
        assert_eq!((figures.passed, figures.most_in_ten), (0, 10));
        assert!(figures.rate_error.abs() < 1e-6, "{figures:?}");
    }
}
