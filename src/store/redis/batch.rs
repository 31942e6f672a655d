//! The charges of several limiters in one call.

use std::any::Any;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;

use tokio::time::Instant;

use super::backend::{RedisBackend, failed};
use super::connection::{Fault, Redis};
use super::key::Key;
use super::script::{self, BadReply, Charge, Conversion, OwnQuota, ScriptReply, Scripted, Under};
use crate::store::remote::{Answered, KeyQuery, Observation, Standing};
use crate::values::time::{Clock, Monotonic, Timestamp};
use crate::values::{Answers, Claim, Decision, Quota};

/// The part of one request that concerns one of several limiters on the same Redis.
pub(super) struct RedisClaim {
    redis: Redis,
    key: Key,
    part: Box<dyn ClaimPart>,
}

impl RedisClaim {
    pub(super) fn new<A: Scripted>(query: KeyQuery<A, RedisBackend>, cost: u64) -> Self {
        let backend = &query.inner.backend;
        let (redis, key) = (backend.redis.clone(), backend.key::<A>(query.tag));
        Self { redis, key, part: Box::new(KeyClaim { query, cost, kept: None }) }
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

/// What a call does with its claims.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Intent {
    /// Charges all of them, or none.
    Charge,
    /// Only reports what is left.
    Report,
}

/// Decides on all claims in one call if one server has all keys. If not, makes one call after the other: when one is
/// rejected, those before it are refunded, and those after it only report what is left. All calls together have one
/// deadline.
async fn decide_all(claims: Vec<RedisClaim>) -> Answers {
    let deadline = claims[0].redis.deadline();
    let mut answers: Vec<Option<Answered>> = claims.iter().map(|_| None).collect();
    let mut intent = Intent::Charge;
    let mut groups: VecDeque<Vec<usize>> = groups(&claims).into();
    while let Some(group) = groups.pop_front() {
        let members: Vec<&RedisClaim> = group.iter().map(|index| &claims[*index]).collect();
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

/// Decides on claims that can share a call.
async fn call(claims: &[&RedisClaim], intent: Intent, deadline: Instant) -> Result<Vec<Decision>, Fault> {
    let mut asked = Monotonic.now();
    let mut conversions: Vec<Option<Conversion>> = claims.iter().map(|_| None).collect();
    // Claims under the quotas that their keys have, once their conversions were lost.
    let mut kept: Vec<Option<Box<dyn ClaimPart>>> = claims.iter().map(|_| None).collect();
    loop {
        let parts: Vec<&dyn ClaimPart> =
            claims.iter().zip(&kept).map(|(claim, kept)| kept.as_deref().unwrap_or(&*claim.part)).collect();
        let quotas: Vec<_> = parts.iter().map(|part| part.carried_quota()).collect();
        let are_sent: Vec<_> = conversions.iter().map(Option::is_some).collect();
        let owns = quotas.iter().zip(conversions).map(|(quota, conversion)| OwnQuota { quota: *quota, conversion });
        let charges = claims.iter().zip(&parts).map(|(claim, part)| part.charge(claim.key.clone(), intent, asked));
        let call = script::decide_all(charges.zip(owns).map(|(charge, own)| charge.under(own)));
        let sent = Monotonic.now();
        let value = claims[0].redis.call_by(&call, deadline, 1).await?;
        let answered = Monotonic.now();
        let mut answer = ScriptReply::read(value)?;
        let standings = (0..claims.len()).map(|index| answer.take_standing(index)).collect::<Result<Vec<_>, _>>()?;
        // As for one key.
        let mut others = Vec::with_capacity(claims.len());
        conversions = Vec::with_capacity(claims.len());
        for (index, (part, quota)) in parts.iter().zip(quotas).enumerate() {
            if standings[index].is_in_force(answer.now) {
                conversions.push(None);
                others.push(None);
                continue;
            }
            let is_lost = are_sent[index] || kept[index].is_some();
            let other = if is_lost { claims[index].part.other(&answer, index, quota)? } else { None };
            let conversion = if other.is_some() { None } else { part.convert(&mut answer, index, quota)? };
            if are_sent[index] {
                part.count_conversion(other.is_some() || conversion.is_some());
            }
            let is_another = other.is_some() || (conversion.is_some() && script::is_charge(&call, index));
            conversions.push(conversion.filter(|_| kept[index].is_none()));
            others.push(is_another.then_some(other));
        }
        if others.iter().any(Option::is_some) {
            answer.charged_nothing()?;
            let changed = kept.iter_mut().zip(others).filter_map(|(kept, other)| Some((kept, other?)));
            changed.for_each(|(kept, other)| *kept = other);
            continue;
        }
        let seen = Observation { server: answer.now, sent, answered };
        match conclude(&parts, intent, &answer, &standings, &conversions, seen) {
            // As for one key.
            Err(BadReply::Disagreement) if parts.iter().any(|part| part.is_uncovered(&answer, asked)) => {
                asked = answer.now;
            }
            concluded => return Ok(concluded?),
        }
    }
}

/// Computes the decisions. Records nothing before the whole reply was found to be sound.
fn conclude(
    claims: &[&dyn ClaimPart],
    intent: Intent,
    answer: &ScriptReply,
    standings: &[Standing],
    conversions: &[Option<Conversion>],
    seen: Observation,
) -> Result<Vec<Decision>, BadReply> {
    let reply = |(index, conversion): (usize, &Option<Conversion>)| KeyReply {
        answer,
        index,
        standing: standings[index],
        seen,
        is_converted: conversion.is_some(),
    };
    let replies = || conversions.iter().enumerate().map(reply);
    let alone = claims.iter().zip(replies()).map(|(part, reply)| part.decide(reply));
    let alone = alone.collect::<Result<Vec<_>, _>>()?;
    let are_charged = intent == Intent::Charge && answer.were_charged(&alone)?;
    let parts = claims.iter().zip(replies()).zip(alone);
    if are_charged {
        parts.map(|((part, reply), decision)| part.record_charge(reply, decision)).collect()
    } else {
        parts.map(|((part, reply), decision)| part.record_no_charge(reply, decision)).collect()
    }
}

/// What the server replied about one of the keys of a call.
#[derive(Clone, Copy)]
struct KeyReply<'a> {
    answer: &'a ScriptReply,
    index: usize,
    /// Was taken off what the key held.
    standing: Standing,
    seen: Observation,
    /// Whether the key stays under another quota, under which its state was read.
    is_converted: bool,
}

/// A [`RedisClaim`] without its algorithm in the type.
trait ClaimPart: Send + Sync {
    fn charge(&self, key: Key, intent: Intent, asked: Timestamp) -> Charge;

    /// See [`RedisBackend::carried_quota`].
    fn carried_quota(&self) -> Option<Quota>;

    /// See [`Under::convert`](script::Under::convert).
    fn convert(
        &self,
        answer: &mut ScriptReply,
        index: usize,
        asked: Option<Quota>,
    ) -> Result<Option<Conversion>, BadReply>;

    /// See [`RedisBackend::count_conversion`].
    fn count_conversion(&self, is_lost: bool);

    /// Returns this claim under the quota that its key has, if that is not the one that the call carried: see
    /// [`Under::other`](script::Under::other).
    fn other(
        &self,
        answer: &ScriptReply,
        index: usize,
        asked: Option<Quota>,
    ) -> Result<Option<Box<dyn ClaimPart>>, BadReply>;

    /// See [`ScriptReply::is_uncovered`].
    fn is_uncovered(&self, answer: &ScriptReply, asked: Timestamp) -> bool;

    /// Returns the decision of this limiter by itself.
    fn decide(&self, reply: KeyReply<'_>) -> Result<Decision, BadReply>;

    /// Records that all claims were charged. Returns the decision, with the receipt by which it can be refunded.
    fn record_charge(&self, reply: KeyReply<'_>, decision: Decision) -> Result<Decision, BadReply>;

    /// Records that no claim was charged. Returns the decision of this limiter without the charge.
    fn record_no_charge(&self, reply: KeyReply<'_>, decision: Decision) -> Result<Decision, BadReply>;

    /// Refunds what a decision has charged, if anything, in the background. Returns the decision without the charge.
    fn refund(&self, decision: Decision) -> Decision;
}

/// The claim of a limiter with this algorithm.
struct KeyClaim<A: Scripted> {
    query: KeyQuery<A, RedisBackend>,
    cost: u64,
    /// The quota behind the state of the key, and the algorithm under it, if the key is charged under that.
    kept: Option<(Option<Quota>, A)>,
}

/// The decision on a key whose standing is in force, and its state at the end of that.
type ByStanding<S> = Option<(Decision, Option<S>)>;

impl<A: Scripted> KeyClaim<A> {
    /// The algorithm by which the key is charged.
    fn algorithm(&self) -> &A {
        self.kept.as_ref().map_or(&self.query.algorithm, |(_, kept)| kept)
    }

    fn by_standing(
        &self,
        KeyReply { answer, index, standing, .. }: KeyReply<'_>,
        cost: u64,
    ) -> Result<ByStanding<A::State>, BadReply> {
        if !standing.is_in_force(answer.now) {
            return Ok(None);
        }
        let state = Under::of(&self.query.target()).state_at(answer, index, standing.until())?;
        let decision = standing.decide(&self.query.algorithm, state, answer.now, cost);
        Ok(decision.map(|decision| (decision, state)))
    }
}

impl<A: Scripted> ClaimPart for KeyClaim<A> {
    fn charge(&self, key: Key, intent: Intent, asked: Timestamp) -> Charge {
        let cost = match intent {
            Intent::Charge => self.cost,
            Intent::Report => 0,
        };
        Charge::new(self.algorithm(), key, cost, asked)
    }

    fn carried_quota(&self) -> Option<Quota> {
        let carried = || self.query.inner.backend.carried_quota(&self.query.target());
        self.kept.as_ref().map_or_else(carried, |(quota, _)| *quota)
    }

    fn convert(
        &self,
        answer: &mut ScriptReply,
        index: usize,
        asked: Option<Quota>,
    ) -> Result<Option<Conversion>, BadReply> {
        let under = Under::of(&self.query.target());
        let conversion = Under { algorithm: self.algorithm(), ..under }.convert(answer, index, asked)?;
        if conversion.is_some() {
            self.query.inner.backend.note_quotas();
        }
        Ok(conversion)
    }

    fn count_conversion(&self, is_lost: bool) {
        self.query.inner.backend.count_conversion(is_lost);
    }

    fn other(
        &self,
        answer: &ScriptReply,
        index: usize,
        asked: Option<Quota>,
    ) -> Result<Option<Box<dyn ClaimPart>>, BadReply> {
        let kept = Under::of(&self.query.target()).other(answer, index, asked, self.cost)?;
        let Some(kept) = kept else { return Ok(None) };
        Ok(Some(Box::new(Self { query: self.query.clone(), cost: self.cost, kept: Some(kept) })))
    }

    fn is_uncovered(&self, answer: &ScriptReply, asked: Timestamp) -> bool {
        answer.is_uncovered(self.algorithm(), asked)
    }

    fn decide(&self, reply: KeyReply<'_>) -> Result<Decision, BadReply> {
        match self.by_standing(reply, self.cost)? {
            Some((decision, _)) => Ok(decision),
            None => reply.answer.decision(self.algorithm(), reply.index, self.cost),
        }
    }

    fn record_charge(&self, reply: KeyReply<'_>, decision: Decision) -> Result<Decision, BadReply> {
        if let Some((_, state)) = self.by_standing(reply, self.cost)? {
            self.query.learn_standing(reply.standing, state, reply.seen);
            return Ok(decision);
        }
        let KeyReply { answer, index, seen, is_converted, .. } = reply;
        if let Some((_, kept)) = &self.kept {
            let decision = self.query.under_another(kept, decision);
            self.query.learn(&[decision], None, seen, self.cost);
            return Ok(decision);
        }
        let old = answer.state(&self.query.algorithm, index)?;
        let new = self.query.algorithm.decide(old, answer.now, self.cost).1;
        if !is_converted {
            self.query.learn(&[decision], new.or(old), seen, self.cost);
        }
        self.query.note_demand(decision, self.cost, seen.sent);
        Ok(decision)
    }

    fn record_no_charge(&self, reply: KeyReply<'_>, decision: Decision) -> Result<Decision, BadReply> {
        if let Some((unchanged, state)) = self.by_standing(reply, 0)? {
            self.query.learn_standing(reply.standing, state, reply.seen);
            return Ok(if decision.is_allowed() { unchanged } else { decision });
        }
        let KeyReply { answer, index, seen, is_converted, .. } = reply;
        let old = answer.state(self.algorithm(), index)?;
        if !is_converted && self.kept.is_none() {
            self.query.learn(&[], old, seen, self.cost);
        }
        if decision.is_allowed() { answer.decision(self.algorithm(), index, 0) } else { Ok(decision) }
    }

    fn refund(&self, decision: Decision) -> Decision {
        if decision.receipt().is_none() {
            return decision;
        }
        self.query.clone().refund_in_background(self.cost, decision.receipt());
        decision.recharged(self.cost, 0, Some(self.query.algorithm.terms()))
    }
}
