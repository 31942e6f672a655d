//! Gradient2's rule in Netflix' concurrency-limits (commit 78a74b98), with its defaults. Compared with its source, from
//! which no code is taken.

use super::{Contender, Entrance, Permits, Rule, Sample, entrance};
use crate::server::Server;

/// Compares each latency with a long average, and shrinks if it is more than 1.5 times that.
#[derive(Clone, Copy, Debug)]
pub struct Gradient2;

impl Contender for Gradient2 {
    fn name(&self) -> &str {
        "rules of Gradient2"
    }

    fn protect(&self, server: Server) -> Entrance {
        entrance(Permits::new(server, Box::new(State::default()), None))
    }
}

const INITIAL: f64 = 20.0;
const LEAST: f64 = 20.0;
const MOST: f64 = 200.0;
const SMOOTHING: f64 = 0.2;
const QUEUE: f64 = 4.0;
const TOLERANCE: f64 = 1.5;
/// The long average is over this many samples.
const WINDOW: f64 = 600.0;
/// This many samples are averaged evenly at first.
const WARM_UP: u32 = 10;

pub(crate) struct State {
    limit: f64,
    average: f64,
    sum: f64,
    samples: u32,
}

impl Default for State {
    fn default() -> Self {
        Self { limit: INITIAL, average: 0.0, sum: 0.0, samples: 0 }
    }
}

impl Rule for State {
    fn limit(&self) -> usize {
        self.limit as usize
    }

    fn learn(&mut self, sample: Sample) {
        let latency = sample.latency.as_secs_f64();
        if self.samples < WARM_UP {
            self.samples += 1;
            self.sum += latency;
            self.average = self.sum / f64::from(self.samples);
        } else {
            let weight = 2.0 / (WINDOW + 1.0);
            self.average += (latency - self.average) * weight;
        }
        let average = self.average;
        if average > 2.0 * latency {
            self.average *= 0.95;
        }
        if (sample.in_flight as f64) < self.limit / 2.0 {
            return;
        }
        let gradient = (TOLERANCE * average / latency).clamp(0.5, 1.0);
        let target = self.limit * gradient + QUEUE;
        self.limit = (self.limit + (target - self.limit) * SMOOTHING).clamp(LEAST, MOST);
    }
}
