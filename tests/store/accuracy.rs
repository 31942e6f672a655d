//! How far the sliding window's estimate is from an exact log, for several traffic shapes. Prints the table for the
//! documentation of `SlidingWindow`:
//!
//!     cargo test --test store accuracy -- --nocapture

use std::collections::VecDeque;

use tower_sluice::Quota;
use tower_sluice::algorithm::{Algorithm, SlidingWindow};
use tower_sluice::testing::Random;
use tower_sluice::time::Timestamp;

const LIMIT: u64 = 100;
const PERIOD: u64 = 60_000_000_000;
const PERIODS: u64 = 2_000;

/// The documented figures: admitted, in parts per thousand of the log's admissions; admitted though the log for the
/// last period was full, in parts per thousand of all admitted; and the most that was ever admitted in one period.
const DOCUMENTED: [(&str, Measured); 5] = [
    ("at random, 0.9 × the limit", Measured { admitted: 1008, beyond: 54, most: 114 }),
    ("at random, 2 × the limit", Measured { admitted: 997, beyond: 76, most: 106 }),
    ("rising and falling, 0 to 4 × the limit", Measured { admitted: 998, beyond: 80, most: 121 }),
    ("bursts of 40 within a second", Measured { admitted: 1028, beyond: 201, most: 175 }),
    ("the limit just before each edge, and just after", Measured { admitted: 990, beyond: 0, most: 100 }),
];

#[test]
fn the_documented_accuracy_is_measured() {
    let shapes: [fn(&mut Random) -> Vec<u64>; 5] = [light, heavy, swelling, clumps, edges];
    for ((name, documented), shape) in DOCUMENTED.into_iter().zip(shapes) {
        let arrivals = shape(&mut Random::new(7));
        let measured = compare(&arrivals);
        let percent = |thousandths: u64| format!("{}.{} %", thousandths / 10, thousandths % 10);
        println!("/// | {name} | {} | {} | {} |", percent(measured.admitted), percent(measured.beyond), measured.most);
        assert_eq!(measured, documented, "{name}");
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Measured {
    admitted: u64,
    beyond: u64,
    most: usize,
}

fn compare(arrivals: &[u64]) -> Measured {
    let window = SlidingWindow::new(Quota::per_minute(LIMIT));
    let (mut state, mut admitted, mut beyond, mut most) = (None, Log::default(), 0, 0);
    let (mut exact, mut entitled) = (Log::default(), 0);
    for now in arrivals.iter().copied() {
        if exact.count(now) < usize::try_from(LIMIT).unwrap() {
            exact.0.push_back(now);
            entitled += 1;
        }
        let full = admitted.count(now) >= usize::try_from(LIMIT).unwrap();
        let (decision, next) = window.decide(state, Timestamp::from_nanos(now), 1);
        state = next.or(state);
        if decision.is_allowed() {
            admitted.0.push_back(now);
            beyond += u64::from(full);
            most = most.max(admitted.0.len());
        }
        admitted.1 += u64::from(decision.is_allowed());
    }
    let per_mille = |count: u64, of: u64| (count * 1_000 + of / 2) / of;
    Measured { admitted: per_mille(admitted.1, entitled), beyond: per_mille(beyond, admitted.1), most }
}

/// The requests admitted in the last period, and their total number.
#[derive(Default)]
struct Log(VecDeque<u64>, u64);

impl Log {
    fn count(&mut self, now: u64) -> usize {
        while self.0.front().is_some_and(|at| at + PERIOD <= now) {
            self.0.pop_front();
        }
        self.0.len()
    }
}

fn light(random: &mut Random) -> Vec<u64> {
    sorted((0..PERIODS * 90).map(|_| random.below(PERIODS * PERIOD)).collect())
}

fn heavy(random: &mut Random) -> Vec<u64> {
    sorted((0..PERIODS * 200).map(|_| random.below(PERIODS * PERIOD)).collect())
}

/// From nothing to four times the limit and back, over ten periods.
fn swelling(random: &mut Random) -> Vec<u64> {
    let wave = 10 * PERIOD;
    let draw = |random: &mut Random| {
        // The sum of two uniform numbers rises and falls in a straight line.
        let cycle = random.below(PERIODS / 10) * wave;
        cycle + random.below(wave / 2) + random.below(wave / 2)
    };
    sorted((0..PERIODS * 200).map(|_| draw(random)).collect())
}

/// At random times: twice the limit on average.
fn clumps(random: &mut Random) -> Vec<u64> {
    let mut arrivals = Vec::new();
    for _ in 0..PERIODS * 5 {
        let start = random.below(PERIODS * PERIOD);
        arrivals.extend((0..40).map(|_| start + random.below(1_000_000_000)));
    }
    sorted(arrivals)
}

/// The pattern that doubles a fixed window.
fn edges(_: &mut Random) -> Vec<u64> {
    let around = |edge: u64| {
        let before = (0..100).map(move |i| edge - 1_000_000_000 + i * 5_000_000);
        before.chain((0..100).map(move |i| edge + i * 5_000_000))
    };
    (1..PERIODS).flat_map(|window| around(window * PERIOD)).collect()
}

fn sorted(mut arrivals: Vec<u64>) -> Vec<u64> {
    arrivals.sort_unstable();
    arrivals
}
