//! The conformance suite for backends that decide on several keys in one call.

use std::collections::HashMap;
use std::sync::Arc;

use super::Random;
use super::limiter::frozen_clock;
use crate::algorithm::Algorithm;
use crate::store::remote::tag::Tags;
use crate::store::remote::{Alternatives, CallLimits, JointAnswer, JointCharge, Target, Transition};
use crate::values::time::{Clock, ManualClock};
use crate::values::{Decision, PartitionKey};

/// Checks a backend that decides on several keys in one call: over random charges to one to four keys, and random sets
/// to choose from, the charged set and the states match a plain map; a call without sets only reads; and eight tasks
/// that each charge two keys at once, in either order, are together admitted exactly one key's units.
///
/// `make` builds a backend that decides by the given clock and whose keys are all new.
///
/// # Panics
///
/// At the first step that breaks the contract, or if a call fails. The message says how.
pub async fn check_joint_backend<A, B>(algorithm: A, seed: u64, make: impl Fn(ManualClock) -> B)
where
    A: Algorithm + Clone,
    B: JointCharge<A>,
{
    check_trace(&algorithm, &mut Random::new(seed), &make).await;
    check_tasks(&algorithm, make(frozen_clock())).await;
}

/// The key with this number.
fn target<A: Algorithm>(algorithm: &A, key: u64) -> Target<'_, A> {
    Target::new(algorithm, None, algorithm.quota(), Tags::new(b"").of(&PartitionKey::from(key)))
}

/// Charges keys in one call. Returns the answer, and each key's state before.
async fn decide<A: Algorithm, B: JointCharge<A>>(
    backend: &B,
    algorithm: &A,
    charges: &[(u64, u64)],
    alternatives: Option<&Alternatives>,
) -> (JointAnswer, Vec<Option<A::State>>) {
    let targets: Vec<_> = charges.iter().map(|(key, _)| target(algorithm, *key)).collect();
    let mut parts: Vec<_> =
        targets.iter().zip(charges).map(|(target, (_, cost))| backend.part(target, *cost)).collect();
    let mut borrowed: Vec<_> = parts.iter_mut().collect();
    let limits = CallLimits::within(backend.timeout());
    let answer = B::decide(&backend.caller(), &mut borrowed, alternatives, limits).await.expect("no call fails");
    let read = |(target, part): (&Target<'_, A>, &B::Part)| {
        backend.read_part(target, part).expect("the answer can be read").old
    };
    (answer, targets.iter().zip(&parts).map(read).collect())
}

async fn check_trace<A, B>(algorithm: &A, random: &mut Random, make: &impl Fn(ManualClock) -> B)
where
    A: Algorithm,
    B: JointCharge<A>,
{
    let clock = frozen_clock();
    let backend = make(clock.clone());
    let mut model: HashMap<u64, A::State> = HashMap::new();
    let most = algorithm.max_cost();
    for step in 0..600 {
        let now = clock.now();
        let mut keys: Vec<u64> = (0..6).collect();
        let count = 1 + usize::try_from(random.below(4)).expect("few");
        let charges: Vec<(u64, u64)> = (0..count)
            .map(|_| {
                let at = usize::try_from(random.below(keys.len() as u64)).expect("few");
                (keys.swap_remove(at), random.pick(&[1, 1, 2.min(most), 1 + most / 3]))
            })
            .collect();
        let sets = some_sets(random, count);
        let alternatives = Alternatives::new(sets.iter().cloned());
        let is_read = random.below(8) == 0;
        let (answer, states) = decide(&backend, algorithm, &charges, (!is_read).then_some(&alternatives)).await;
        let context = format!("step {step}: {charges:?}, sets {sets:?}, at {now:?}");
        let alone: Vec<(Decision, Option<A::State>)> =
            charges.iter().map(|(key, cost)| algorithm.decide(model.get(key).copied(), now, *cost)).collect();
        // The states that were read decide like the model's.
        for (((key, cost), state), (expected, _)) in charges.iter().zip(&states).zip(&alone) {
            let (found, _) = algorithm.decide(*state, now, *cost);
            assert_eq!(found.is_allowed(), expected.is_allowed(), "{context}: key {key} was read as another state");
            assert_eq!(found.remaining(), expected.remaining(), "{context}: key {key} was read as another state");
        }
        let all: Vec<usize> = (0..count).collect();
        let listed = if sets.is_empty() { vec![all] } else { sets };
        let chosen = listed.iter().position(|set| set.iter().all(|index| alone[*index].0.is_allowed()));
        let expected = chosen.filter(|_| !is_read).map_or(0, |index| index + 1);
        assert_eq!(answer.charged as usize, expected, "{context}: another set was charged");
        for index in chosen.filter(|_| !is_read).map_or(&[][..], |index| &listed[index]) {
            if let (Some(state), (key, _)) = (alone[*index].1, charges[*index]) {
                model.insert(key, state);
            }
        }
        clock.advance(algorithm.quota().period() / random.pick(&[1, 3, 10, 1_000, u32::MAX]));
    }
}

/// Up to three sets of these keys, each with one at least. An empty list stands for all keys.
fn some_sets(random: &mut Random, keys: usize) -> Vec<Vec<usize>> {
    (0..random.below(4))
        .map(|_| {
            let some: Vec<usize> = (0..keys).filter(|_| random.below(2) == 0).collect();
            if some.is_empty() { vec![keys - 1] } else { some }
        })
        .collect()
}

async fn check_tasks<A, B>(algorithm: &A, backend: B)
where
    A: Algorithm + Clone,
    B: JointCharge<A>,
{
    const TASKS: u64 = 8;
    let backend = Arc::new(backend);
    let attempts = (algorithm.quota().max_burst() * 2).clamp(64, 400).div_ceil(TASKS);
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (backend, algorithm) = (Arc::clone(&backend), algorithm.clone());
            tokio::spawn(async move {
                let keys = if task % 2 == 0 { [(7, 1), (8, 1)] } else { [(8, 1), (7, 1)] };
                let mut admitted = 0;
                for _ in 0..attempts {
                    admitted +=
                        u64::from(decide(&*backend, &algorithm, &keys, Some(&Alternatives::ALL)).await.0.charged);
                }
                admitted
            })
        })
        .collect();
    let mut admitted = 0;
    for task in tasks {
        admitted += task.await.expect("no task panics");
    }
    let expected = super::limiter::admitted_one_by_one(algorithm, attempts * TASKS);
    assert_eq!(admitted, expected, "{TASKS} tasks with two keys were admitted another number of units");
    // Both keys were charged the same.
    let now = frozen_clock().now();
    let mut left = Vec::new();
    for key in [7, 8] {
        let (target, limits) = (target(algorithm, key), CallLimits::within(backend.timeout()));
        let read = backend.apply(&target, Transition::Read, limits).await.expect("no call fails");
        left.push(algorithm.decide(read.old, now, 0).0.remaining());
    }
    assert_eq!(left[0], left[1], "one of two keys was charged without the other");
}
