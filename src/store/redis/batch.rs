//! The charges of several limiters in one call.

use std::any::Any;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::backend::{RedisBackend, failed};
use super::connection::{Fault, Redis};
use super::conversation::{ConversationPart, KeyPart, converse};
use super::key::Key;
use super::script::{self, BadReply, Scripted};
use crate::store::remote::{Answered, CallLimits, KeyQuery, Observation, StoreInner};
use crate::values::time::{Clock, Monotonic};
use crate::values::{Answers, Ask, Batching, Claim, Decision};

/// Charges together with other limiters, in one call.
pub(super) struct Batcher<A: Scripted> {
    pub(super) inner: Arc<StoreInner<A::State, RedisBackend>>,
    pub(super) algorithm: A,
}

impl<A: Scripted> Batching for Batcher<A> {
    /// Returns `None` if a lease pays, or if a call of the key's own would take one, which a call for several keys does
    /// not.
    /// Nor for a quota that Redis cannot keep, which is then reported as the error of a call of its own.
    fn claim(&self, ask: &Ask<'_>) -> Option<Box<dyn Claim>> {
        let (query, cost) = (KeyQuery::of(&self.inner, &self.algorithm, ask).ok()?, ask.cost());
        if query.is_in_demand(cost) {
            return None;
        }
        let key = self.inner.backend.key::<A>(query.tag);
        Some(Box::new(RedisClaim { key, part: Box::new(KeyClaim { query, cost }) }))
    }
}

/// The part of one request that concerns one of several limiters on the same Redis.
struct RedisClaim {
    key: Key,
    part: Box<dyn ClaimPart>,
}

impl RedisClaim {
    fn redis(&self) -> &Redis {
        &self.part.backend().redis
    }
}

impl Claim for RedisClaim {
    fn store(&self) -> usize {
        self.redis().id()
    }

    /// In one call if one server has all keys. If not, makes one call after the other: when one is rejected, those before it
    /// are refunded, and those after it only report what is left. All calls together have one deadline.
    fn decide_all(self: Box<Self>, others: Vec<Box<dyn Claim>>) -> Pin<Box<dyn Future<Output = Answers> + Send>> {
        let others = others.into_iter().map(|other| other.into_any().downcast::<Self>().expect("of the same store"));
        let claims: Vec<Self> = std::iter::once(self).chain(others).map(|claim| *claim).collect();
        Box::pin(async move {
            let deadline = claims[0].redis().deadline();
            let mut answers: Vec<Option<Answered>> = claims.iter().map(|_| None).collect();
            let mut intent = Intent::Charge;
            let mut groups: VecDeque<Vec<usize>> = groups(&claims).into();
            while let Some(group) = groups.pop_front() {
                let members: Vec<&Self> = group.iter().map(|index| &claims[*index]).collect();
                match call(&members, intent, deadline).await {
                    Ok(decisions) => {
                        if intent == Intent::Charge && !decisions.iter().all(Decision::is_allowed) {
                            intent = Intent::Report;
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
        })
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// What a call does with its claims.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Intent {
    /// Charges all of them, or none.
    Charge,
    /// Only reports what is left.
    Report,
}

/// Refunds what was charged, the last charge first, see [`Receipt`](crate::values::Receipt).
fn roll_back(claims: &[RedisClaim], answers: &mut [Option<Answered>]) {
    for (claim, answer) in claims.iter().zip(answers).rev() {
        if let Some(Ok(decision)) = answer {
            *decision = claim.part.refund(*decision);
        }
    }
}

/// Returns which claims can share a call: their keys are on one node, and no two are the same.
fn groups(claims: &[RedisClaim]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (index, claim) in claims.iter().enumerate() {
        let fits = |group: &&mut Vec<usize>| {
            let first = &claims[group[0]];
            claim.redis().share_a_node(first.key.slot(), claim.key.slot())
                && group.iter().all(|other| claims[*other].key != claim.key)
        };
        match groups.iter_mut().find(fits) {
            Some(group) => group.push(index),
            None => groups.push(vec![index]),
        }
    }
    groups
}

/// Decides on claims that can share a call.
async fn call(claims: &[&RedisClaim], intent: Intent, deadline: Instant) -> Result<Vec<Decision>, Fault> {
    let mut claimed: Vec<_> = claims.iter().map(|claim| claim.part.claim(claim.key.clone(), intent)).collect();
    let limits = CallLimits { deadline, requests: 1 };
    let (answer, seen) = {
        let mut parts: SmallVec<[_; 4]> = claimed.iter_mut().map(|claim| claim.part()).collect();
        converse(&claims[0].part.backend().bundles, Monotonic.now(), &mut parts, script::decide_all, limits).await?
    };
    let alone: Vec<_> = claimed.iter().map(|claim| claim.decide()).collect();
    // Nothing is recorded before the whole reply was found to be sound.
    let are_charged = intent == Intent::Charge && answer.were_charged(&alone)?;
    let decisions = claimed.iter().zip(alone).map(|(claim, alone)| claim.conclude(alone, are_charged, seen));
    Ok(decisions.collect::<Result<_, _>>()?)
}

/// A [`KeyClaim`] without its algorithm in the type.
trait ClaimPart: Send + Sync {
    fn backend(&self) -> &RedisBackend;

    /// Begins a conversation about the key of this claim.
    fn claim(&self, key: Key, intent: Intent) -> Box<dyn Claimed + '_>;

    /// Refunds what a decision has charged, if anything, in the background. Returns the decision without the charge.
    fn refund(&self, decision: Decision) -> Decision;
}

/// A [`KeyClaim`] in a conversation.
trait Claimed: Send {
    fn part(&mut self) -> &mut dyn ConversationPart;

    /// Returns the decision of this limiter by itself.
    fn decide(&self) -> Decision;

    /// Records the outcome. Returns the decision, with the receipt by which it can be refunded if all claims were charged, and
    /// without a charge if none was.
    fn conclude(&self, alone: Decision, are_charged: bool, seen: Observation) -> Result<Decision, BadReply>;
}

/// The claim of a limiter with this algorithm.
struct KeyClaim<A: Scripted> {
    query: KeyQuery<A, RedisBackend>,
    cost: u64,
}

impl<A: Scripted> ClaimPart for KeyClaim<A> {
    fn backend(&self) -> &RedisBackend {
        &self.query.inner.backend
    }

    fn claim(&self, key: Key, intent: Intent) -> Box<dyn Claimed + '_> {
        let cost = if intent == Intent::Charge { self.cost } else { 0 };
        let part = KeyPart::charging(self.query.target(), &self.backend().quotas, key, cost);
        Box::new(KeyClaimed { claim: self, part })
    }

    fn refund(&self, decision: Decision) -> Decision {
        if decision.receipt().is_none() {
            return decision;
        }
        self.query.clone().refund_in_background(self.cost, decision.receipt());
        decision.recharged(self.cost, 0, Some(self.query.algorithm.terms()))
    }
}

struct KeyClaimed<'a, A: Scripted> {
    claim: &'a KeyClaim<A>,
    part: KeyPart<'a, A>,
}

impl<A: Scripted> Claimed for KeyClaimed<'_, A> {
    fn part(&mut self) -> &mut dyn ConversationPart {
        &mut self.part
    }

    fn decide(&self) -> Decision {
        self.claim.query.judge(&self.part.found, self.claim.cost)
    }

    fn conclude(&self, alone: Decision, are_charged: bool, seen: Observation) -> Result<Decision, BadReply> {
        let (KeyClaim { query, cost }, found) = (self.claim, &self.part.found);
        if !are_charged || *cost == 0 {
            let unchanged = query.note_unchanged(found, self.part.is_foreign, seen, *cost);
            return Ok(if alone.is_allowed() { unchanged } else { alone });
        }
        let (decisions, is_own) = query.conclude(found, seen, *cost, 1).map_err(|_| BadReply::Disagreement)?;
        if is_own {
            query.note_demand(decisions[0], *cost, seen.sent);
        }
        Ok(decisions[0])
    }
}
