//! A deterministic simulation of the link to Redis: processes, a network that fails, and servers that fail, in one
//! thread and in simulated time. A seed determines the whole run.
//!
//! - `plan` draws the faults and their times from the seed.
//! - `network` carries bytes between the real client (the `redis` crate and our code) and the servers.
//! - `server` keeps values and has a clock; `lua` runs our unchanged scripts for it.
//! - `callers` make requests, and check each answer; `account` checks the servers' admissions; `run` checks the rest.
//!
//! A seed that fails is printed with the command that runs it again. `SIM_LOG=1` prints its events, and
//! `SIM_SEEDS=10000` runs 10,000 seeds.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "small numbers"
)]

mod account;
mod callers;
mod lua;
mod network;
mod plan;
mod run;
mod server;

use std::sync::atomic::{AtomicU64, Ordering};

use tower_sluice::testing;

use self::run::{RunOutcome, run};
use crate::support::effort::rounds;

/// Seeds that have found a bug.
const REGRESSIONS: &[u64] = &[];

fn number(name: &str) -> Option<u64> {
    Some(std::env::var(name).ok()?.parse().expect(name))
}

#[test]
fn whatever_fails_the_documentation_holds() {
    let seeds: Vec<u64> = match number("SIM_SEED") {
        Some(seed) => vec![seed],
        None => {
            let count = number("SIM_SEEDS").map_or_else(|| rounds(16, 200), |count| count as usize);
            REGRESSIONS.iter().copied().chain(testing::seeds(count)).collect()
        }
    };
    let is_logged = number("SIM_LOG").is_some();
    let next = AtomicU64::new(0);
    let worker = || {
        let mut failed = Vec::new();
        while let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
            let outcome = run(*seed, is_logged);
            if is_logged {
                println!("{}", outcome.log.join("\n"));
            }
            if !outcome.problems.is_empty() {
                failed.push((*seed, outcome));
            }
            // Further seeds would fail for the same reason.
            if failed.len() == 3 {
                break;
            }
        }
        failed
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(4);
    let mut failed: Vec<(u64, RunOutcome)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("a run panicked")).collect()
    });
    failed.sort_by_key(|(seed, _)| *seed);
    for (seed, outcome) in &failed {
        let shown = outcome.problems.len().min(3);
        println!("seed {seed}: {:?}\n  {}", outcome.plan, outcome.problems[..shown].join("\n  "));
    }
    if let Some((seed, outcome)) = failed.first() {
        panic!(
            "{} of up to {} seeds failed; the first: {}\nrun it again: SIM_SEED={seed} SIM_LOG=1 cargo test \
             -p tower-sluice-redis --all-features --lib simulation::whatever -- --nocapture",
            failed.len(),
            seeds.len(),
            outcome.problems[0],
        );
    }
}

/// Otherwise a seed would not reproduce its failure.
#[test]
fn a_seed_always_makes_the_same_run() {
    for seed in testing::seeds(rounds(2, 12)) {
        let one = run(seed, true).log;
        let other = run(seed, true).log;
        assert!(one.len() > 100, "seed {seed} does next to nothing");
        let differs = one.iter().zip(&other).position(|(one, other)| one != other);
        if let Some(at) = differs {
            panic!("seed {seed}, event {at}: {} | {}", one[at], other[at]);
        }
        assert_eq!(one.len(), other.len(), "seed {seed}");
    }
}
