//! The rule in failsafe-go's adaptive limiter (commit 5759a5e6), with its defaults. Compared with its source, from
//! which no code is taken. Quantiles are exact here, while failsafe-go takes them from a t-digest. Its priorities are
//! left out.

use std::collections::VecDeque;

use tokio::time::{Duration, Instant};

use super::{Contender, Entrance, Permits, Queue, Rule, Sample, entrance};
use crate::server::Server;

/// Compares the 90th percentile in a window with a long average, and correlates requests in flight with throughput and
/// latency.
#[derive(Clone, Copy, Debug)]
pub struct Failsafe {
    name: &'static str,
    queue: Option<Queue>,
}

impl Failsafe {
    /// Rejects requests above the limit.
    #[must_use]
    pub const fn rejecting() -> Self {
        Self { name: "rules of failsafe-go", queue: None }
    }

    /// Lets two to three times the limit wait.
    #[must_use]
    pub const fn queueing() -> Self {
        Self { name: "rules of failsafe-go, queueing", queue: Some(Queue(2, 3)) }
    }
}

impl Contender for Failsafe {
    fn name(&self) -> &str {
        self.name
    }

    fn protect(&self, server: Server) -> Entrance {
        entrance(Permits::new(server, Box::new(State::new()), self.queue))
    }
}

const MOST: f64 = 200.0;
/// The limit is at most this many times the requests in flight.
const FACTOR: f64 = 5.0;
const WINDOW: Duration = Duration::from_secs(1);
const LONGEST_WINDOW: Duration = Duration::from_secs(30);
const LEAST_SAMPLES: usize = 50;
const WARM_UP: usize = 10;

struct State {
    limit: f64,
    /// In the window: latencies in nanoseconds, and the most requests in flight.
    latencies: Vec<u64>,
    in_flight: usize,
    next: Instant,
    medians: VecDeque<f64>,
    recent: Average,
    baseline: Average,
    throughput: Correlation,
    latency: Correlation,
}

impl State {
    fn new() -> Self {
        Self {
            limit: 20.0,
            latencies: Vec::new(),
            in_flight: 0,
            next: Instant::now(),
            medians: VecDeque::new(),
            recent: Average::over(5.0),
            baseline: Average::over(10.0),
            throughput: Correlation::default(),
            latency: Correlation::default(),
        }
    }

    /// By how much a decision changes the limit: its logarithm to the base ten, at least 1.
    fn step(&self) -> f64 {
        self.limit.floor().log10().floor().max(1.0)
    }

    /// The median among the last five, once there are five.
    fn median(&mut self, value: f64) -> f64 {
        self.medians.push_back(value);
        if self.medians.len() < 5 {
            return value;
        }
        let mut sorted: Vec<f64> = self.medians.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        self.medians.pop_front();
        sorted[2]
    }

    fn adjust(&mut self, recent: f64, is_full: bool) {
        let baseline = self.baseline.add(recent);
        let queue = (self.limit * (1.0 - baseline / recent)).ceil();
        let in_flight = self.in_flight as f64;
        let (throughput, variation) = self.throughput.add(in_flight, in_flight / recent);
        let (latency, _) = self.latency.add(in_flight, recent);
        let step = self.step();
        let decreases = queue > 6.0 * step
            || is_full && (throughput < 0.0 || latency > 0.5 && (throughput < 0.3 || variation < 0.2));
        let limit = if decreases {
            self.limit - step
        } else if queue < 3.0 * step {
            self.limit + step
        } else {
            self.limit
        };
        let most = FACTOR * in_flight;
        let limit = match limit > most {
            // Towards the cap, in steps.
            true if self.limit > most => self.limit - step,
            true => most,
            false => limit,
        };
        self.limit = limit.clamp(1.0, MOST);
    }
}

impl Rule for State {
    fn limit(&self) -> usize {
        self.limit as usize
    }

    fn learn(&mut self, sample: Sample) {
        let latency = u64::try_from(sample.latency.as_nanos()).unwrap_or(u64::MAX);
        self.latencies.push(latency);
        self.in_flight = self.in_flight.max(sample.in_flight);
        if sample.now <= self.next || self.latencies.len() < LEAST_SAMPLES {
            return;
        }
        self.latencies.sort_unstable();
        let quantile = self.latencies[self.latencies.len() * 9 / 10] as f64 / 1e9;
        let shortest = Duration::from_nanos(self.latencies[0]);
        let median = self.median(quantile);
        let recent = self.recent.add(median);
        self.adjust(recent, sample.is_full);
        self.latencies.clear();
        self.in_flight = 0;
        self.next = sample.now + (shortest * 2).clamp(WINDOW, LONGEST_WINDOW);
    }
}

/// An average with exponential weights, and an even one at first.
struct Average {
    weight: f64,
    samples: usize,
    value: f64,
}

impl Average {
    const fn over(age: f64) -> Self {
        Self { weight: 2.0 / (age + 1.0), samples: 0, value: 0.0 }
    }

    fn add(&mut self, value: f64) -> f64 {
        let weight = if self.samples < WARM_UP {
            self.samples += 1;
            1.0 / self.samples as f64
        } else {
            self.weight
        };
        self.value += (value - self.value) * weight;
        self.value
    }
}

/// The correlation among the last 50 pairs.
#[derive(Default)]
struct Correlation {
    pairs: VecDeque<(f64, f64)>,
}

impl Correlation {
    /// Returns the correlation, and the second number's relative deviation. Both are 0 during the warm-up; the first is
    /// 0, too, if a number varies by less than one percent.
    fn add(&mut self, x: f64, y: f64) -> (f64, f64) {
        if self.pairs.len() == 50 {
            self.pairs.pop_front();
        }
        self.pairs.push_back((x, y));
        if self.pairs.len() < WARM_UP {
            return (0.0, 0.0);
        }
        let count = self.pairs.len() as f64;
        let mean_x = self.pairs.iter().map(|pair| pair.0).sum::<f64>() / count;
        let mean_y = self.pairs.iter().map(|pair| pair.1).sum::<f64>() / count;
        let (mut xx, mut yy, mut xy) = (0.0, 0.0, 0.0);
        for (x, y) in &self.pairs {
            xx += (x - mean_x) * (x - mean_x);
            yy += (y - mean_y) * (y - mean_y);
            xy += (x - mean_x) * (y - mean_y);
        }
        let variation = (yy / count).sqrt() / mean_y;
        if (xx / count).sqrt() / mean_x < 0.01 || variation < 0.01 {
            return (0.0, variation);
        }
        (xy / (xx * yy).sqrt(), variation)
    }
}
