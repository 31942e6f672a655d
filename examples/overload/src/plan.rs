//! A run's plan: the server, its mishaps, and the load.

use tower_sluice::testing::Random;

use crate::draw::{exponential, unit};
use crate::job::Job;
use crate::time::{MILLISECOND, SECOND};

/// A run. Times are in nanoseconds.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) workers: u32,
    /// From this time on, the server has another number of workers.
    pub(crate) growth: Option<(u64, u32)>,
    /// The work takes longer by this factor between two times.
    pub(crate) slowdown: Option<(u64, u64, u64)>,
    /// Between two times, each request is answered with 504 a second after it was sent to the server.
    pub(crate) hang: Option<(u64, u64)>,
    pub(crate) abandoned: Abandoned,
    pub(crate) mix: Mix,
    /// The top class's share, in percent.
    pub(crate) top: u64,
    /// The end of each phase, and the offered load in it: in percent of the capacity at the start.
    pub(crate) phases: Vec<(u64, u64)>,
    /// A client gives up after this time, and drops its request.
    pub(crate) patience: u64,
    /// The requests per second at a load of 100, if not the capacity.
    pub(crate) rate: Option<f64>,
    /// This many requests come at once, instead of one after the other.
    pub(crate) at_once: u64,
    /// Earlier requests are left out.
    pub(crate) since: u64,
    /// Whether the tenants have weights, from 1 to 10 for a limiter that knows some.
    pub(crate) is_weighted: bool,
}

/// How a server treats a request whose client has given up. Work that has begun is finished in any case.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Abandoned {
    /// Drops it from its run queue, as hyper does.
    Skipped,
    /// Works on it all the same, like a thread pool that is not told.
    Done,
    /// Works on it, and holds its units until that is done: the handler has taken its permits along.
    Held,
}

/// The work that requests ask for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Mix {
    /// 5 ms each.
    Fixed,
    /// 5 ms on average.
    Exponential,
    /// Nine in ten take 2.5 ms, one takes 27.5 ms.
    Bimodal,
    /// Nine in ten take 5 ms, one waits for 100 ms without a worker.
    SlowRoute,
    /// Half take 5 ms, and half 0.1 ms.
    HealthChecks,
    /// 5 ms in ten parts: the head is sent after the first.
    LongBody,
    /// 50 ms each.
    Long,
    /// All take this many nanoseconds on a worker.
    Work(u64),
    /// All wait for this many nanoseconds, without a worker.
    Asleep(u64),
    /// The first tenant's requests wait for 10 s, and all others for 10 ms, without a worker. The first tenant sends 5
    /// in 95.
    SlowTenant,
    /// Work with a drawn length; `asleep` percent of the requests need no worker.
    Drawn { mean: u64, shape: Shape, asleep: u64 },
}

/// How request times vary about their mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Shape {
    Fixed,
    Exponential,
    /// Nine in ten take half the mean, and one takes 5.5 times the mean.
    Bimodal,
}

impl Shape {
    fn draw(self, random: &mut Random, mean: u64) -> u64 {
        match self {
            Self::Fixed => mean,
            Self::Exponential => exponential(random, mean as f64),
            Self::Bimodal => (if random.below(10) == 0 { 11 * mean } else { mean }) / 2,
        }
    }
}

const FIXED: u64 = 5 * MILLISECOND;

impl Plan {
    /// Two workers, 5 ms per request, 20 % in the top class, clients that wait for a second.
    pub(crate) fn new(phases: &[(u64, u64)]) -> Self {
        Self {
            workers: 2,
            growth: None,
            slowdown: None,
            hang: None,
            abandoned: Abandoned::Skipped,
            mix: Mix::Fixed,
            top: 20,
            phases: phases.iter().map(|(until, load)| (until * SECOND, *load)).collect(),
            patience: SECOND,
            rate: None,
            at_once: 1,
            since: 0,
            is_weighted: false,
        }
    }

    pub(crate) fn end(&self) -> u64 {
        self.phases.last().expect("a run has a phase").0
    }

    /// How many requests come, on average.
    #[cfg(test)]
    pub(crate) fn requests(&self) -> f64 {
        let rate = self.rate.unwrap_or_else(|| self.capacity());
        let ends = self.phases.iter().scan(0, |begin, (end, load)| Some((std::mem::replace(begin, *end), *end, *load)));
        ends.map(|(begin, end, load)| rate * load as f64 / 100.0 * (end - begin) as f64 / SECOND as f64).sum()
    }

    /// The requests per second that the server can answer, at the start.
    pub(crate) fn capacity(&self) -> f64 {
        f64::from(self.workers) * SECOND as f64 / self.mix.mean_worker_time()
    }

    pub(crate) fn workers_at(&self, at: u64) -> u32 {
        self.growth.filter(|(from, _)| at >= *from).map_or(self.workers, |(_, workers)| workers)
    }

    pub(crate) fn slowed(&self, work: u64, at: u64) -> u64 {
        let factor = self.slowdown.filter(|(from, until, _)| (*from..*until).contains(&at));
        factor.map_or(work, |(.., factor)| work * factor)
    }

    pub(crate) fn hangs(&self, at: u64) -> bool {
        self.hang.is_some_and(|(from, until)| (from..until).contains(&at))
    }
}

impl Mix {
    fn mean_worker_time(self) -> f64 {
        let fixed = FIXED as f64;
        match self {
            Self::Fixed | Self::Exponential | Self::Bimodal | Self::LongBody => fixed,
            Self::SlowRoute => 0.9 * fixed,
            Self::HealthChecks => 0.51 * fixed,
            Self::Long => 10.0 * fixed,
            Self::Work(work) => work as f64,
            Self::Asleep(_) | Self::SlowTenant => 0.0,
            Self::Drawn { mean, asleep, .. } => mean as f64 * (100 - asleep) as f64 / 100.0,
        }
    }

    /// Returns a request's work, and whether that is to wait.
    fn work(self, random: &mut Random) -> (u64, bool) {
        match self {
            Self::Fixed | Self::LongBody => (FIXED, false),
            Self::Exponential => (Shape::Exponential.draw(random, FIXED), false),
            Self::Bimodal => (Shape::Bimodal.draw(random, FIXED), false),
            Self::SlowRoute => {
                let is_slow = random.below(10) == 0;
                (if is_slow { 20 * FIXED } else { FIXED }, is_slow)
            }
            Self::HealthChecks => (if random.below(2) == 0 { FIXED / 50 } else { FIXED }, false),
            Self::Long => (10 * FIXED, false),
            Self::Work(work) => (work, false),
            Self::Asleep(time) => (time, true),
            Self::SlowTenant => (10 * MILLISECOND, true),
            Self::Drawn { mean, shape, asleep } => (shape.draw(random, mean), random.below(100) < asleep),
        }
    }
}

/// A run's arrivals: a Poisson process, which does not wait for answers.
#[derive(Debug)]
pub(crate) struct Arrivals {
    random: Random,
    at: u64,
    phase: usize,
    /// How many more come at this instant.
    left: u64,
}

impl Arrivals {
    pub(crate) const fn new(seed: u64) -> Self {
        Self { random: Random::new(seed), at: 0, phase: 0, left: 0 }
    }

    /// Returns the next arrival, or `None` after the last phase.
    pub(crate) fn next(&mut self, plan: &Plan) -> Option<(u64, Job)> {
        loop {
            let arrival = self.draw(plan)?;
            if arrival.0 >= plan.since {
                return Some(arrival);
            }
        }
    }

    fn draw(&mut self, plan: &Plan) -> Option<(u64, Job)> {
        loop {
            let (until, load) = *plan.phases.get(self.phase)?;
            if self.left > 0 {
                self.left -= 1;
                return Some((self.at, self.job(plan)));
            }
            let rate = plan.rate.unwrap_or_else(|| plan.capacity()) / plan.at_once as f64;
            let mean = SECOND as f64 * 100.0 / (rate * load as f64);
            // Requests in groups come at even intervals.
            let gap = if plan.at_once > 1 { mean as u64 } else { exponential(&mut self.random, mean) };
            if self.at + gap < until {
                self.at += gap;
                self.left = plan.at_once - 1;
                return Some((self.at, self.job(plan)));
            }
            // The process has no memory, so the rest of the gap is drawn again.
            self.at = until;
            self.phase += 1;
        }
    }

    fn job(&mut self, plan: &Plan) -> Job {
        let is_top = self.random.below(100) < plan.top;
        // One tenant has 60 % of the offers, and nine share the rest.
        let greedy = if plan.mix == Mix::SlowTenant { 5.0 / 95.0 } else { 0.6 };
        let tenant = if unit(&mut self.random) <= greedy { 0 } else { 1 + self.random.below(9) as u8 };
        let (mut work, is_io) = plan.mix.work(&mut self.random);
        if plan.mix == Mix::SlowTenant && tenant == 0 {
            work *= 1_000;
        }
        let parts = if plan.mix == Mix::LongBody { 10 } else { 1 };
        Job { work, is_io, parts, is_top, tenant }
    }
}
