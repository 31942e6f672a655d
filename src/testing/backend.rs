//! The conformance suite for backends of remote stores.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::Random;
use super::limiter::{admitted_one_by_one, assert_same, frozen_clock};
use crate::algorithm::Algorithm;
use crate::limiter::{Limiter, RateLimiter};
use crate::store::NodeHealth;
use crate::store::remote::tag::Tags;
use crate::store::remote::{Applied, Backend, CallLimits, RemoteStore, RemoteTable, Standing, Target, Transition};
use crate::values::time::{Clock, ManualClock};
use crate::values::{Ask, Exception, Override, OverrideReason, PartitionKey};

/// Checks a backend: charges, reads, refunds, resets and, if it [keeps them](Backend::keeps_standing), bans, debts and
/// overrides match the algorithm over a plain map, and eight tasks that contend for one key of a store over it are
/// together admitted exactly the units that the algorithm admits at one instant. The nodes whose
/// [health](Backend::health) it reports, if any, have distinct names.
///
/// `make` builds a backend that decides by the given clock and whose keys are all new. The decisions may differ from
/// the algorithm's by the tolerance of a [limiter](super::check_limiter).
///
/// # Panics
///
/// At the first step that breaks the contract, or if a call fails. The message says how.
pub async fn check_backend<A, B>(algorithm: A, seed: u64, make: impl Fn(ManualClock) -> B)
where
    A: Algorithm + Clone,
    B: Backend<A>,
{
    check_trace(&algorithm, &mut Random::new(seed), &make).await;
    let attempts = (algorithm.quota().max_burst() * 2).clamp(64, 400).div_ceil(TASKS);
    let expected = admitted_one_by_one(&algorithm, attempts * TASKS);
    // With their own calls, and with calls that they share.
    for coalesces in [false, true] {
        let store = RemoteStore::new(make(frozen_clock()));
        let store = if coalesces { store } else { store.without_coalescing() };
        let admitted = admitted_by_tasks(&RateLimiter::new(algorithm.clone(), store), attempts).await;
        assert_eq!(admitted, expected, "{TASKS} tasks were admitted another number of units than one after the other");
    }
}

/// The tasks that contend for one key.
const TASKS: u64 = 8;

async fn admitted_by_tasks<A, B>(limiter: &RateLimiter<A, RemoteTable<A::State, B>>, attempts: u64) -> u64
where
    A: Algorithm + Clone,
    B: Backend<A>,
{
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                let (key, mut admitted) = (PartitionKey::from("contended"), 0);
                for _ in 0..attempts {
                    let check = limiter.decide(&Ask::charge(&key, 1));
                    admitted += u64::from(check.decided().await.expect("no call fails").is_allowed());
                }
                admitted
            })
        })
        .collect();
    let mut admitted = 0;
    for task in tasks {
        admitted += task.await.expect("no task panics");
    }
    admitted
}

/// The backend alone: the tables of a store extrapolate time, which a manual clock does not follow.
async fn check_trace<A, B>(algorithm: &A, random: &mut Random, make: impl Fn(ManualClock) -> B)
where
    A: Algorithm,
    B: Backend<A>,
{
    let clock = frozen_clock();
    let backend = make(clock.clone());
    let mut model: HashMap<u64, (Standing, Option<A::State>)> = HashMap::new();
    let quota = algorithm.quota();
    let full = quota.time_of(quota.max_burst());
    let tolerance = full / (1 << 30) + Duration::from_micros(1);
    for step in 0..2_000 {
        let (id, now) = (random.below(16), clock.now());
        let most = algorithm.max_cost();
        let some = 1 + random.below(most);
        let cost = random.pick(&[1, 1, some, 2.min(most), most]);
        let count = random.pick(&[1, 1, 2, 5]);
        let transition = match random.below(64) {
            0..2 => Transition::Reset,
            2..16 => Transition::Read,
            16 if backend.keeps_standing(algorithm) => {
                Transition::Ban { span: quota.period() / (1 + count * 4), growth: None }
            }
            17..19 if backend.keeps_standing(algorithm) => Transition::Owe { units: cost.saturating_mul(count.into()) },
            19..22 if backend.keeps_standing(algorithm) => Transition::Override(some_override(random, quota.period())),
            _ => Transition::Charge { cost, count },
        };
        let applied = apply(&backend, algorithm, id, transition).await;
        let context = format!("step {step}: {transition:?} at {now:?}");
        let (standing, state) = model.get(&id).copied().unwrap_or_default();
        let standing = if standing.is_in_force(now) { standing } else { Standing::default() };
        match transition {
            Transition::Reset => drop(model.remove(&id)),
            Transition::Ban { span, .. } => drop(model.insert(id, (standing.ban(now, span), state))),
            Transition::Override(by_hand) => drop(model.insert(id, (standing.overridden(now, by_hand), state))),
            Transition::Owe { units } => drop(model.insert(id, standing.charge(algorithm, state, now, units))),
            _ if standing.is_in_force(now) => {
                let cost = if matches!(transition, Transition::Charge { .. }) { cost } else { 0 };
                let [decision, expected] = [(applied.standing, applied.old), (standing, state)]
                    .map(|(standing, state)| standing.decide(algorithm, state, now, cost));
                let decision = decision.unwrap_or_else(|| panic!("{context}: the key has no standing in force"));
                let expected = expected.expect("it is in force");
                assert_same(&decision, &expected, tolerance, &context);
                let exceptions = [&decision, &expected].map(|decision| (decision.ban(), decision.allowance()));
                assert_same_exceptions(exceptions, tolerance, &context);
                assert_eq!(applied.charged, 0, "{context}");
            }
            Transition::Charge { .. } => {
                let (decisions, _) = applied.replay(algorithm, cost, count).unwrap_or_else(|_| {
                    panic!("{context}: {} were charged, which contradicts the state before", applied.charged)
                });
                let expected = Applied { old: state, now, ..applied };
                let (expected, next) = expected
                    .replay(algorithm, cost, count)
                    .unwrap_or_else(|_| panic!("{context}: {} were charged", applied.charged));
                for (decision, expected) in decisions.iter().zip(&expected) {
                    assert_same(decision, expected, tolerance, &context);
                }
                if let Some(next) = next {
                    model.insert(id, (standing, Some(next)));
                }
                let last = expected.last().zip(decisions.last()).filter(|(last, _)| last.is_allowed());
                if let Some((expected, decision)) = last.filter(|_| random.below(8) == 0) {
                    apply(&backend, algorithm, id, Transition::Refund { cost, receipt: decision.receipt() }).await;
                    if let Some((_, Some(state))) = model.get_mut(&id) {
                        *state = algorithm.refund(*state, now, cost, expected.receipt());
                    }
                }
            }
            _ => {
                let decide = |state| algorithm.decide(state, now, 0).0;
                assert_same(&decide(applied.old), &decide(state), tolerance, &context);
            }
        }
        let some = random.below(quota.period_nanos() / 8 + 1);
        clock.advance(Duration::from_nanos(random.pick(&[0, 0, 1, quota.period_nanos() / 1_000, some])));
    }
    // At the end: a backend may learn of its nodes by its calls.
    assert_distinct_names(&backend.health());
}

/// A ban or an allowance by hand, for up to three periods, or the end of either.
fn some_override(random: &mut Random, period: Duration) -> Override {
    let span = period * random.pick(&[1, 2, 3, 9]) / 3;
    let reason = random.pick(&["scrapes", "r\u{e9}sum\u{e9}: 100%, \"a\"!@{b}\\"]);
    let reason = OverrideReason::new(reason).expect("a line of text");
    random.pick(&[Override::Ban { span, reason }, Override::Allow { span, reason }, Override::Lift])
}

/// Compares the bans and the allowances that two decisions are due to: kind, reason and end must be the same.
fn assert_same_exceptions(
    [found, expected]: [(Option<Exception>, Option<Exception>); 2],
    tolerance: Duration,
    context: &str,
) {
    for (found, expected) in [(found.0, expected.0), (found.1, expected.1)] {
        let reasons = [found, expected].map(|exception| exception.map(|exception| exception.reason()));
        assert_eq!(reasons[0], reasons[1], "{context}");
        let left = |exception: Option<Exception>| exception.map_or(Duration::ZERO, |exception| exception.left());
        assert!(left(found).abs_diff(left(expected)) <= tolerance, "{context}: {found:?} instead of {expected:?}");
    }
}

/// Nodes with one name would share a metric series.
pub(super) fn assert_distinct_names(nodes: &[NodeHealth]) {
    let mut names = HashSet::new();
    for node in nodes {
        assert!(names.insert(node.name()), "two nodes of the backend are called {:?}", node.name());
    }
}

async fn apply<A, B>(backend: &B, algorithm: &A, key: u64, transition: Transition) -> Applied<A::State>
where
    A: Algorithm,
    B: Backend<A>,
{
    let limits = CallLimits::within(backend.timeout());
    let target = Target::new(algorithm, None, algorithm.quota(), Tags::new(b"").of(&PartitionKey::from(key)));
    let applied = backend.apply(&target, transition, limits).await;
    applied.unwrap_or_else(|error| panic!("{transition:?} of key {key} failed: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::BreakerState;

    #[test]
    #[should_panic(expected = "two nodes of the backend are called \"a\"")]
    fn equal_node_names_break_the_contract() {
        assert_distinct_names(&["a", "b", "a"].map(|name| NodeHealth::new(name, BreakerState::Closed)));
    }
}
