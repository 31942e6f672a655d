//! The charges of several limiters in one call.

use std::any::Any;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;

use tokio::time::Instant;

use super::connection::{Fault, Redis};
use super::key::Key;
use super::negative_cache::Observation;
use super::query::{KeyQuery, failed};
use super::script::{self, BadReply, Charge, ScriptReply, Scripted};
use crate::values::time::{Clock, Monotonic};
use crate::values::{Answers, Claim, Decision, LimiterError, Receipt};

/// The part of one request that concerns one of several limiters on the same Redis.
pub(super) struct RedisClaim {
    redis: Redis,
    key: Key,
    part: Box<dyn ClaimPart>,
}

impl RedisClaim {
    pub(super) fn new<A: Scripted>(query: KeyQuery<A>, cost: u32) -> Self {
        let key = query.name();
        Self { redis: query.inner.redis.clone(), key, part: Box::new(KeyClaim { query, cost }) }
    }
}

impl Claim for RedisClaim {
    fn store(&self) -> usize {
        self.redis.id()
    }

    fn decide_all(self: Box<Self>, others: Vec<Box<dyn Claim>>) -> Pin<Box<dyn Future<Output = Answers> + Send>> {
        let others = others.into_iter().map(|other| other.into_any().downcast::<Self>().expect("of the same store"));
        let claims: Vec<Self> = std::iter::once(self).chain(others).map(|claim| *claim).collect();
        Box::pin(decide_all(claims))
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// Decides on all claims in one call if one server has all keys. If not, makes one call after the other: when one is
/// rejected, those before it are refunded, and those after it only report what is left. All calls together have one
/// deadline.
async fn decide_all(claims: Vec<RedisClaim>) -> Answers {
    let deadline = claims[0].redis.deadline();
    let mut answers: Vec<Option<Result<Decision, LimiterError>>> = claims.iter().map(|_| None).collect();
    let mut is_rejected = false;
    let mut groups: VecDeque<Vec<usize>> = groups(&claims).into();
    while let Some(group) = groups.pop_front() {
        let parts: Vec<&RedisClaim> = group.iter().map(|index| &claims[*index]).collect();
        match call(&parts, !is_rejected, deadline).await {
            Ok(decisions) => {
                let rejects = decisions.iter().any(|decision| !decision.is_allowed());
                if rejects && !is_rejected {
                    is_rejected = true;
                    roll_back(&claims, &mut answers);
                }
                group.iter().zip(decisions).for_each(|(index, decision)| answers[*index] = Some(Ok(decision)));
            }
            // The script was not run. While keys move between nodes, those of one call may be on both.
            Err(fault) if group.len() > 1 && fault.wants_single_keys() => {
                group.iter().rev().for_each(|index| groups.push_front(vec![*index]));
            }
            Err(fault) => {
                let error = failed(fault);
                group.iter().for_each(|index| answers[*index] = Some(Err(error.clone())));
            }
        }
    }
    answers.into_iter().map(|answer| answer.expect("each claim is in a group")).collect()
}

/// Refunds what was charged, the last charge first, see [`Receipt`].
fn roll_back(claims: &[RedisClaim], answers: &mut [Option<Result<Decision, LimiterError>>]) {
    for (claim, answer) in claims.iter().zip(answers).rev() {
        if let Some(Ok(decision)) = answer {
            claim.part.refund(decision.receipt());
            *decision = claim.part.uncharged(*decision);
        }
    }
}

/// Returns which claims can share a call: their keys are on one node, and no two are the same.
fn groups(claims: &[RedisClaim]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (index, claim) in claims.iter().enumerate() {
        let fits = |group: &&mut Vec<usize>| {
            let first = &claims[group[0]];
            claim.redis.share_a_node(first.key.slot(), claim.key.slot())
                && group.iter().all(|other| claims[*other].key != claim.key)
        };
        match groups.iter_mut().find(fits) {
            Some(group) => group.push(index),
            None => groups.push(vec![index]),
        }
    }
    groups
}

async fn call(claims: &[&RedisClaim], is_charge: bool, deadline: Instant) -> Result<Vec<Decision>, Fault> {
    let call = script::decide_all(claims.iter().map(|claim| claim.part.charge(claim.key.clone(), is_charge)));
    let sent = Monotonic.now();
    let value = claims[0].redis.call_by(&call, deadline, 1).await?;
    let answered = Monotonic.now();
    let read = || -> Result<Vec<Decision>, BadReply> {
        let answer = ScriptReply::read(value)?;
        let seen = Observation { server: answer.now, sent, answered };
        let indexed = || claims.iter().enumerate();
        let asked: Result<Vec<_>, _> = indexed().map(|(index, claim)| claim.part.decision(&answer, index)).collect();
        let asked = asked?;
        let are_charged = is_charge && answer.were_charged(&asked)?;
        indexed()
            .zip(asked)
            .map(|((index, claim), decision)| claim.part.settle(&answer, index, seen, decision, are_charged))
            .collect()
    };
    Ok(read()?)
}

/// A [`RedisClaim`] without its algorithm in the type.
trait ClaimPart: Send + Sync {
    fn charge(&self, key: Key, is_charge: bool) -> Charge;

    /// Returns the decision of this limiter alone.
    fn decision(&self, answer: &ScriptReply, index: usize) -> Result<Decision, BadReply>;

    /// Returns the decision with the other limiters taken into account, and records the state.
    fn settle(
        &self,
        answer: &ScriptReply,
        index: usize,
        seen: Observation,
        decision: Decision,
        are_charged: bool,
    ) -> Result<Decision, BadReply>;

    /// Returns the decision as it reads after a refund of its charge.
    fn uncharged(&self, decision: Decision) -> Decision;

    fn refund(&self, receipt: Receipt);
}

/// The claim of a limiter with this algorithm.
struct KeyClaim<A: Scripted> {
    query: KeyQuery<A>,
    cost: u32,
}

impl<A: Scripted> ClaimPart for KeyClaim<A> {
    fn charge(&self, key: Key, is_charge: bool) -> Charge {
        Charge::new(&self.query.algorithm, key, if is_charge { self.cost } else { 0 })
    }

    fn decision(&self, answer: &ScriptReply, index: usize) -> Result<Decision, BadReply> {
        answer.decision(&self.query.algorithm, index, self.cost)
    }

    fn settle(
        &self,
        answer: &ScriptReply,
        index: usize,
        seen: Observation,
        decision: Decision,
        are_charged: bool,
    ) -> Result<Decision, BadReply> {
        let KeyQuery { algorithm, .. } = &self.query;
        let old = answer.state(algorithm, index)?;
        if are_charged {
            let state = algorithm.decide(old, answer.now, self.cost).1.or(old);
            self.query.learn(&[decision], state, seen, self.cost);
            Ok(decision)
        } else {
            self.query.learn(&[], old, seen, self.cost);
            if decision.is_allowed() { answer.decision(algorithm, index, 0) } else { Ok(decision) }
        }
    }

    fn uncharged(&self, decision: Decision) -> Decision {
        if decision.receipt().is_none() {
            return decision;
        }
        decision.recharged(self.cost, 0, Some(self.query.algorithm.terms()))
    }

    fn refund(&self, receipt: Receipt) {
        if !receipt.is_none() {
            self.query.clone().refund_in_background(self.cost, receipt);
        }
    }
}
