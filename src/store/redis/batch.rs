//! The charges of several limiters in one call.

#[cfg(test)]
mod tests;

use std::any::Any;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::backend::{RedisBackend, failed};
use super::connection::Fault;
use super::conversation::{ConversationPart, KeyPart, Quotas, Subject, converse};
use super::key::Key;
use super::script::{self, Alternatives, BadReply, ChosenKeys, Scripted};
use crate::store::remote::{Answered, CallLimits, KeyQuery, Observation, StoreInner, Target};
use crate::values::time::{Clock, Monotonic};
use crate::values::{Answers, Ask, Batching, Claim, Decision, Formula, MemberAnswers, MemberDecision, Room};

/// Charges together with other limiters, in one call.
pub(super) struct Batcher<A: Scripted> {
    pub(super) inner: Arc<StoreInner<A::State, RedisBackend>>,
    pub(super) algorithm: A,
}

impl<A: Scripted> Batching for Batcher<A> {
    /// Returns `None` if a lease pays, or if a call of the key's own would take one, since a call for several keys
    /// takes no lease. Also returns `None` for a suspended quota, which needs no call, and for a quota that Redis
    /// cannot keep, so that the key's own call reports the error.
    fn claim(&self, ask: &Ask<'_>) -> Option<Box<dyn Claim>> {
        if ask.is_suspended() {
            return None;
        }
        let query = KeyQuery::for_ask(&self.inner, &self.algorithm, ask).ok()?;
        if query.is_in_demand(ask.cost()) {
            return None;
        }
        let key = self.inner.backend.key::<A>(query.tag);
        Some(Box::new(RedisClaim(Box::new(KeyPart::charging(query, key, ask.cost())))))
    }
}

/// The part of a request for one of several limiters on the same Redis.
struct RedisClaim(Box<dyn ClaimPart>);

impl Claim for RedisClaim {
    fn store(&self) -> usize {
        self.0.backend().redis.id()
    }

    /// Makes one call if one server has all keys, and otherwise one call after the other: when one is rejected, the
    /// earlier ones are refunded, and the later ones only report the units left. All calls together have one deadline.
    fn decide_all(self: Box<Self>, others: Vec<Box<dyn Claim>>) -> Pin<Box<dyn Future<Output = Answers> + Send>> {
        let mut claims = self.with(others);
        Box::pin(async move {
            let deadline = claims[0].backend().redis.deadline();
            let mut answers: Vec<Option<Answered>> = claims.iter().map(|_| None).collect();
            // Until a call is rejected. From then on, calls only report the units left.
            let mut charges_any = true;
            let all = Alternatives::ALL;
            let mut groups: VecDeque<Vec<usize>> = groups(&claims).into();
            while let Some(group) = groups.pop_front() {
                let choose = |alone: &[Decision]| {
                    alone.iter().all(Decision::is_allowed).then(|| (0..alone.len()).collect::<ChosenKeys>())
                };
                let alternatives = charges_any.then_some(&all);
                match decide_group(&mut claims, &group, alternatives, choose, deadline).await {
                    Ok(decided) => {
                        if charges_any && !decided.iter().all(|member| member.decision.is_allowed()) {
                            charges_any = false;
                            roll_back(&claims, &mut answers);
                        }
                        let decisions = decided.iter().map(|member| member.decision);
                        group.iter().zip(decisions).for_each(|(index, decision)| answers[*index] = Some(Ok(decision)));
                    }
                    // The script was not run. While keys move between two nodes, one call may have keys on both.
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

    /// Makes one call, for the claims that can share one with the first: the others count as members with room. If they
    /// could be chosen from in more ways than a call lists, the last of them are left out.
    fn decide_by(
        self: Box<Self>,
        others: Vec<Box<dyn Claim>>,
        formula: Formula,
    ) -> Pin<Box<dyn Future<Output = MemberAnswers> + Send>> {
        let mut claims = self.with(others);
        Box::pin(async move {
            let deadline = claims[0].backend().redis.deadline();
            let mut group = groups(&claims).swap_remove(0);
            loop {
                let index = |member| group.iter().position(|other| *other == member);
                let Some(alternatives) = Alternatives::of(&formula, group.len(), &index) else {
                    group.pop();
                    continue;
                };
                let choose = |alone: &[Decision]| {
                    let lacks_room = |member| index(member).is_some_and(|index| !alone[index].is_allowed());
                    let room = |member| if lacks_room(member) { Room::None } else { Room::Some };
                    let mut chosen = Vec::new();
                    let room = formula.choose(&room, &mut chosen);
                    (room == Room::Some).then(|| chosen.into_iter().filter_map(index).collect())
                };
                let decided = decide_group(&mut claims, &group, Some(&alternatives), choose, deadline).await;
                let mut answers: MemberAnswers = claims.iter().map(|_| None).collect();
                match decided {
                    Ok(decided) => {
                        group.iter().zip(decided).for_each(|(index, member)| answers[*index] = Some(Ok(member)));
                    }
                    // As above: then the first claim is decided alone.
                    Err(fault) if group.len() > 1 && fault.wants_single_keys() => {
                        group.truncate(1);
                        continue;
                    }
                    Err(fault) => {
                        let error = failed(fault);
                        group.iter().for_each(|index| answers[*index] = Some(Err(error.clone())));
                    }
                }
                return answers;
            }
        })
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

impl RedisClaim {
    /// Returns this claim and others of the same store, in their order.
    fn with(self: Box<Self>, others: Vec<Box<dyn Claim>>) -> Vec<Box<dyn ClaimPart>> {
        let others = others.into_iter().map(|other| other.into_any().downcast::<Self>().expect("of the same store"));
        std::iter::once(self).chain(others).map(|claim| claim.0).collect()
    }
}

/// Decides on a group of claims in one call, which charges the first of the alternatives that has room, or only reads
/// if there are none. `choose` makes the same choice from the decision on each claim by itself, and returns the indexes
/// of the claims to charge, if there is room.
async fn decide_group(
    claims: &mut [Box<dyn ClaimPart>],
    group: &[usize],
    alternatives: Option<&Alternatives>,
    choose: impl Fn(&[Decision]) -> Option<ChosenKeys> + Send,
    deadline: Instant,
) -> Result<SmallVec<[MemberDecision; 4]>, Fault> {
    let scripts = claims[0].backend().scripts.clone();
    let send = |call| scripts.call(call, CallLimits { deadline, requests: 1 });
    let members = claims.iter_mut().enumerate().filter(|(index, _)| group.contains(index));
    let mut members: Vec<_> = members.map(|(_, claim)| &mut **claim).collect();
    let compose = |charges| script::decide_first(charges, alternatives);
    let (answer, seen) = converse(Monotonic.now(), &mut members, compose, send).await?;
    let alone: SmallVec<[Decision; 4]> = members.iter().map(|claim| claim.judge()).collect();
    let mut chosen = ChosenKeys::new();
    // Nothing is recorded before the whole reply was found to be sound.
    if let Some(alternatives) = alternatives {
        let choice = choose(&alone);
        let number = choice.as_ref().map_or(Some(0), |keys| alternatives.number_of(keys));
        answer.charged(number.ok_or(BadReply::Disagreement)?)?;
        chosen = choice.unwrap_or_default();
    }
    let decided = members.iter().zip(alone).enumerate().map(|(index, (claim, alone))| {
        let is_charged = chosen.contains(&index);
        Ok(MemberDecision { decision: claim.conclude(alone, is_charged, seen)?, is_charged })
    });
    decided.collect()
}

/// Refunds the charges, the last one first, see [`Receipt`](crate::values::Receipt).
fn roll_back(claims: &[Box<dyn ClaimPart>], answers: &mut [Option<Answered>]) {
    for (claim, answer) in claims.iter().zip(answers).rev() {
        if let Some(Ok(decision)) = answer {
            *decision = claim.refund(*decision);
        }
    }
}

/// Groups the claims that can share a call, in their order: their keys are on one node, and all different.
fn groups(claims: &[Box<dyn ClaimPart>]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (index, claim) in claims.iter().enumerate() {
        let fits = |group: &&mut Vec<usize>| {
            claim.backend().redis.share_a_node(claims[group[0]].key().slot(), claim.key().slot())
                && group.iter().all(|other| claims[*other].key() != claim.key())
        };
        match groups.iter_mut().find(fits) {
            Some(group) => group.push(index),
            None => groups.push(vec![index]),
        }
    }
    groups
}

/// The part of a claim, without its algorithm in the type.
trait ClaimPart: ConversationPart {
    fn backend(&self) -> &RedisBackend;

    fn key(&self) -> &Key;

    /// Returns the decision of this limiter by itself.
    fn judge(&self) -> Decision;

    /// Records the outcome. Returns the decision: with a receipt for its refund if this claim `is_charged`, and
    /// otherwise without a charge.
    fn conclude(&self, alone: Decision, is_charged: bool, seen: Observation) -> Result<Decision, BadReply>;

    /// Refunds the charge of a decision, if it has one, in the background. Returns the decision without the charge.
    fn refund(&self, decision: Decision) -> Decision;
}

impl<A: Scripted> Subject<A> for KeyQuery<A, RedisBackend> {
    fn target(&self) -> Target<'_, A> {
        self.target()
    }

    fn quotas(&self) -> &Quotas {
        &self.inner.backend.quotas
    }
}

impl<A: Scripted> ClaimPart for KeyPart<A, KeyQuery<A, RedisBackend>> {
    fn backend(&self) -> &RedisBackend {
        &self.subject.inner.backend
    }

    fn key(&self) -> &Key {
        &self.key
    }

    fn judge(&self) -> Decision {
        self.subject.judge(&self.found, self.cost)
    }

    fn conclude(&self, alone: Decision, is_charged: bool, seen: Observation) -> Result<Decision, BadReply> {
        let Self { subject: query, found, cost, .. } = self;
        if !is_charged || *cost == 0 {
            let unchanged = query.note_unchanged(found, self.is_foreign, seen, *cost);
            return Ok(if alone.is_allowed() { unchanged } else { alone });
        }
        let (decisions, is_own) = query.conclude(found, seen, *cost, 1).map_err(|_| BadReply::Disagreement)?;
        if is_own {
            query.hold_lease(*cost, 0, 0, decisions[0], seen.sent);
        }
        Ok(decisions[0])
    }

    fn refund(&self, decision: Decision) -> Decision {
        if decision.receipt().is_none() {
            return decision;
        }
        self.subject.clone().refund_in_background(self.cost, decision.receipt());
        decision.recharged(self.cost, 0, Some(self.subject.algorithm.terms()))
    }
}
