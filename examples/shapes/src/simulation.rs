//! Runs the traffic through each algorithm.

use std::time::Duration;

use tower_sluice::algorithm::{Algorithm, FixedWindow, LeakyBucket, SlidingWindow, TokenBucket};
use tower_sluice::limiter::Ask;
use tower_sluice::time::Timestamp;
use tower_sluice::{LeakyQueue, Limiter, PartitionKey, Quota};

use crate::traffic::{END, Traffic};

/// Ten per second. Buckets hold ten, too, and in the queue up to ten wait.
pub(crate) const QUOTA: Quota = Quota::per_second(10);

/// The state is sampled at this interval, in milliseconds.
pub(crate) const SAMPLE: u64 = 50;

/// One algorithm's decisions on the traffic.
pub(crate) struct Run {
    pub(crate) name: &'static str,
    /// The quantity in [`level`](Self::level), in words.
    pub(crate) remembers: &'static str,
    pub(crate) is_queue: bool,
    pub(crate) fates: Vec<Fate>,
    /// The state at the end of each [`SAMPLE`].
    pub(crate) level: Vec<u64>,
}

/// The milliseconds at which a request arrived and departed; `None` if it was rejected.
pub(crate) struct Fate {
    pub(crate) arrived: u64,
    pub(crate) left: Option<u64>,
}

impl Run {
    pub(crate) fn admitted(&self) -> usize {
        self.fates.iter().filter(|fate| fate.left.is_some()).count()
    }

    pub(crate) fn rejected(&self) -> usize {
        self.fates.len() - self.admitted()
    }

    /// In milliseconds.
    pub(crate) fn longest_wait(&self) -> u64 {
        self.fates.iter().filter_map(|fate| Some(fate.left? - fate.arrived)).max().unwrap_or(0)
    }
}

pub(crate) fn run_all(traffic: &Traffic) -> [Run; 5] {
    let left = |remaining: u64| remaining;
    let used = |remaining: u64| QUOTA.limit() - remaining;
    [
        decide("Token bucket", "tokens left", &TokenBucket::new(QUOTA), left, traffic),
        decide("Leaky bucket", "level", &LeakyBucket::new(QUOTA), used, traffic),
        decide("Fixed window", "count", &FixedWindow::new(QUOTA), used, traffic),
        decide("Sliding window", "estimate", &SlidingWindow::new(QUOTA), used, traffic),
        queue(traffic),
    ]
}

/// Decides on each request when it arrives, and samples the rest in between, at cost 0.
fn decide<A: Algorithm>(
    name: &'static str,
    remembers: &'static str,
    algorithm: &A,
    level_of: impl Fn(u64) -> u64,
    traffic: &Traffic,
) -> Run {
    let at = |millis: u64| Timestamp::from_nanos(millis * 1_000_000);
    let (mut state, mut fates, mut level) = (None, Vec::new(), Vec::new());
    let mut arrivals = traffic.arrivals.iter().copied().peekable();
    for sample in (SAMPLE..=END).step_by(usize::try_from(SAMPLE).expect("it is small")) {
        while let Some(arrived) = arrivals.next_if(|arrived| *arrived < sample) {
            let (decision, next) = algorithm.decide(state, at(arrived), 1);
            state = next.or(state);
            fates.push(Fate { arrived, left: decision.is_allowed().then_some(arrived) });
        }
        let (decision, _) = algorithm.decide(state, at(sample - 1), 0);
        level.push(level_of(decision.remaining()));
    }
    Run { name, remembers, is_queue: false, fates, level }
}

/// Lets the requests wait in a real queue, on tokio's paused clock, which advances only while all tasks are idle.
fn queue(traffic: &Traffic) -> Run {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let fates = runtime.expect("a runtime needs nothing but memory").block_on(async {
        let queue = LeakyQueue::new(QUOTA).max_queue(10);
        let (mut now, mut waiters) = (0, Vec::new());
        for arrived in traffic.arrivals.iter().copied() {
            tokio::time::sleep(Duration::from_millis(arrived - now)).await;
            now = arrived;
            waiters.push((arrived, queue.decide(&Ask::charge(&PartitionKey::SHARED, 1))));
        }
        let mut fates = Vec::new();
        for (arrived, waiter) in waiters {
            let decision = waiter.decided().await.expect("the queue is open, and this is a runtime");
            let waited = decision.delay().as_nanos().div_ceil(1_000_000);
            let left = arrived + u64::try_from(waited).expect("waits are short");
            fates.push(Fate { arrived, left: decision.is_allowed().then_some(left) });
        }
        fates
    });
    let waiting = |now: u64| {
        let waits = |fate: &&Fate| fate.arrived <= now && fate.left.is_some_and(|left| now < left);
        fates.iter().filter(waits).count() as u64
    };
    let level =
        (SAMPLE..=END).step_by(usize::try_from(SAMPLE).expect("it is small")).map(|end| waiting(end - 1)).collect();
    Run { name: "Leaky queue", remembers: "waiters", is_queue: true, fates, level }
}
