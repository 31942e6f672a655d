//! Random requests, ends, disconnects and limit changes on a `Concurrency`, against a naive model.

use std::collections::{BTreeMap, VecDeque};
use std::task::{Context, Poll, Waker};

use tower_sluice::limiter::{Answer, Ask, Pending, Receipt};
use tower_sluice::testing::{Random, seeds};
use tower_sluice::{Concurrency, Decision, Limiter, LimiterError, PartitionKey};

use crate::support::trace::Trace;

fn poll(pending: &mut Pending) -> Option<Result<Decision, LimiterError>> {
    match pending.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}

/// A naive limit for one key.
#[derive(Default)]
struct Model {
    in_flight: u64,
    waiting: VecDeque<(usize, u64)>,
}

#[derive(Debug, PartialEq)]
enum Outcome {
    Passes,
    Waits,
    Rejected,
}

impl Model {
    fn arrive(&mut self, request: usize, cost: u64, limit: u64, max_waiters: usize) -> Outcome {
        if cost > limit {
            Outcome::Rejected
        } else if self.waiting.is_empty() && self.in_flight + cost <= limit {
            self.in_flight += cost;
            Outcome::Passes
        } else if self.waiting.len() < max_waiters {
            self.waiting.push_back((request, cost));
            Outcome::Waits
        } else {
            Outcome::Rejected
        }
    }

    /// Returns the requests whose turn has come.
    fn serve(&mut self, limit: u64) -> Vec<usize> {
        let mut served = Vec::new();
        while let Some((request, cost)) = self.waiting.front().copied() {
            if self.in_flight + cost > limit.max(cost) {
                break;
            }
            self.in_flight += cost;
            self.waiting.pop_front();
            served.push(request);
        }
        served
    }
}

#[derive(Default)]
struct Requests {
    waiting: BTreeMap<usize, (PartitionKey, u64, Pending)>,
    passing: BTreeMap<usize, (PartitionKey, u64, Receipt)>,
}

#[tokio::test(start_paused = true)]
async fn many_random_steps_follow_the_model() {
    const KEYS: u64 = 5;
    const MAX_WAITERS: usize = 4;
    for seed in seeds(20) {
        let mut random = Random::new(seed);
        let mut limit = 3;
        let mut limiter = Concurrency::new(limit).max_keys(16).max_queue(MAX_WAITERS);
        let mut models: Vec<Model> = (0..KEYS).map(|_| Model::default()).collect();
        let (mut requests, mut seen) = (Requests::default(), [0_u32; 5]);
        let mut trace = Trace::of(5_000);
        while trace.goes_on([
            ("requests that pass", seen[0] > 50),
            ("requests that are rejected", seen[1] > 50),
            ("requests that wait", seen[2] > 50),
            ("requests that end", seen[3] > 50),
            ("waiters that leave", seen[4] > 50),
        ]) {
            let step = trace.step();
            let number = usize::try_from(random.below(KEYS)).unwrap();
            let (key, model) = (PartitionKey::from(number as u64), &mut models[number]);
            match random.below(10) {
                0..=3 => {
                    let cost = 1 + random.below(4);
                    let expected = model.arrive(step, cost, limit, MAX_WAITERS);
                    match (limiter.decide(&Ask::charge(&key, cost)), expected) {
                        (Answer::Ready(Ok(decision)), Outcome::Passes) if decision.is_allowed() => {
                            assert_eq!(decision.remaining(), limit - model.in_flight);
                            requests.passing.insert(step, (key, cost, decision.receipt()));
                            seen[0] += 1;
                        }
                        (Answer::Ready(Ok(decision)), Outcome::Rejected) if !decision.is_allowed() => seen[1] += 1,
                        (Answer::Pending(pending), Outcome::Waits) => {
                            requests.waiting.insert(step, (key, cost, pending));
                            seen[2] += 1;
                        }
                        (check, expected) => panic!("seed {seed}, step {step}: {check:?}, not {expected:?}"),
                    }
                }
                4..=7 => {
                    let of_key = |(_, (of, ..)): &(&usize, &(PartitionKey, u64, Receipt))| *of == key;
                    let Some(id) = requests.passing.iter().find(of_key).map(|(id, _)| *id) else { continue };
                    let (key, cost, receipt) = requests.passing.remove(&id).unwrap();
                    limiter.refund(&Ask::charge(&key, cost), receipt, cost);
                    model.in_flight -= cost;
                    seen[3] += 1;
                }
                8 => {
                    let of_key = |(_, (of, ..)): &(&usize, &(PartitionKey, u64, Pending))| *of == key;
                    let of_key: Vec<_> = requests.waiting.iter().filter(of_key).map(|(id, _)| *id).collect();
                    let Some(&id) = of_key.get(usize::try_from(random.below(MAX_WAITERS as u64)).unwrap()) else {
                        continue;
                    };
                    requests.waiting.remove(&id);
                    model.waiting.retain(|(waiting, _)| *waiting != id);
                    seen[4] += 1;
                }
                _ => {
                    limit = 2 + random.below(4);
                    let new = Concurrency::new(limit).max_queue(MAX_WAITERS);
                    new.inherit(&limiter).unwrap().finish();
                    limiter = new;
                }
            }
            for model in &mut models {
                for id in model.serve(limit) {
                    let (key, cost, mut pending) = requests.waiting.remove(&id).unwrap();
                    let decision = poll(&mut pending).expect("its turn has come").unwrap();
                    assert!(decision.is_allowed());
                    requests.passing.insert(id, (key, cost, decision.receipt()));
                }
            }
            assert!(requests.waiting.values_mut().all(|(.., pending)| poll(pending).is_none()), "out of turn");
            limiter.check_invariants();
            let in_flight: u64 = models.iter().map(|model| model.in_flight).sum();
            assert_eq!(limiter.stats().in_flight, Some(in_flight), "seed {seed}, step {step}");
        }
        requests.waiting.clear();
        for (key, cost, receipt) in requests.passing.into_values() {
            limiter.refund(&Ask::charge(&key, cost), receipt, cost);
        }
        assert_eq!(limiter.stats().in_flight, Some(0));
    }
}

/// Two concurrent changes finish in any order. If the older one finished last, its limit counted for waiting requests:
/// five were in flight although the limit was two.
#[tokio::test(start_paused = true)]
async fn the_later_of_two_changes_counts() {
    let key = PartitionKey::from("a");
    for is_in_order in [true, false] {
        let first = Concurrency::new(1).max_queue(10);
        let held = first.decide(&Ask::charge(&key, 1)).at_once().unwrap();
        assert!(held.is_allowed());
        let mut waiting: Vec<_> = (0..5)
            .map(|_| match first.decide(&Ask::charge(&key, 1)) {
                Answer::Pending(pending) => pending,
                Answer::Ready(result) => panic!("{result:?}, and one of one is in flight"),
            })
            .collect();
        let [second, third] = [5, 2].map(|limit| Concurrency::new(limit).max_queue(10));
        let earlier = second.inherit(&first).unwrap();
        let later = third.inherit(&second).unwrap();
        if is_in_order {
            earlier.finish();
            later.finish();
        } else {
            later.finish();
            earlier.finish();
        }
        let passed = waiting.iter_mut().filter_map(poll).count();
        // If they finish in order, the limit of five applies for a moment.
        assert_eq!(passed, if is_in_order { 4 } else { 1 });
        third.check_invariants();
    }
}
