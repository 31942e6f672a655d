//! Decisions on several limiters' keys in one call, for servers that can make them.
//!
//! A transaction has a [`Claim`] for each of a request's limiters, and gives the claims on one server to
//! [`JointClaim`]. It groups those that can share a call, and lets the server charge the first set of keys that all
//! have room. Then each [`Member`] computes its decision from the state that was read, as for a call about its key
//! alone.

use std::any::Any;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::alternatives::{Alternatives, ChosenKeys};
use super::backend::{Applied, Backend, CallLimits, GaveUp, Target};
use super::negative_cache::Observation;
use super::query::{Answered, KeyQuery, StoreInner};
use crate::algorithm::Algorithm;
use crate::store::remote::Standing;
use crate::values::time::{Clock, Monotonic, Timestamp};
use crate::values::{
    Answers, Ask, Batching, Claim, Decision, Description, Formula, LimiterError, MemberAnswers, MemberDecision, Room,
};

/// A server that decides on several keys in one call, for limiters with any algorithms. If several policies in a layer
/// have limiters on one such server, a request then takes one call for them together.
///
/// It is first a [`Backend`]. A limiter makes a [part](JointCharge::part) of a call for each key, and reads the answer
/// in it; the parts of several limiters, which do not know each other's algorithms, are [decided](Self::decide)
/// together.
///
/// # Contract
///
/// - [`decide`](Self::decide) is one atomic step: either each key is charged as [`Transition::Charge`] would charge it
///   for one request, or no key is.
/// - A set of keys has room if each of its keys, by itself, would be charged at that time. A key that is banned, owes
///   something or is used up does not have room. A key that an operator allows has room.
/// - The first alternative that has room is charged, and nothing else is written. The limiters compute the choice again
///   from the states in the parts, and a different choice is [an error](GaveUp::Disagreement).
/// - As with a [`Backend`], no call is made twice, and every call ends before its deadline.
///
/// `testing::check_joint_backend` (feature `test-util`) tests yours.
///
/// [`Transition::Charge`]: super::Transition::Charge
pub trait JointBackend: Sized + Send + Sync + 'static {
    /// The arguments for a call about one key, under any algorithm, and the answer.
    type Part: Send;

    /// The connection to the server, without the parts of a single limiter.
    type Caller: Send + Sync;

    /// Returns a number that no other server has in this process, such as the connection's address, because only keys
    /// on one server can be in one call.
    fn server(&self) -> usize;

    /// Returns when a call that begins now must have returned.
    fn deadline(&self) -> Instant;

    /// Returns the connection.
    fn caller(&self) -> Self::Caller;

    /// Returns whether one call can be about both keys, that is, whether they are different, and on one node.
    fn can_share_a_call(&self, one: &Self::Part, other: &Self::Part) -> bool;

    /// Charges one request to the first alternative whose keys all have room, or to no key. Without alternatives, it
    /// only reads. The parts have the answer then.
    ///
    /// # Errors
    ///
    /// Like [`Backend::apply`].
    fn decide(
        caller: &Self::Caller,
        parts: &mut [&mut Self::Part],
        alternatives: Option<&Alternatives>,
        limits: CallLimits,
    ) -> impl Future<Output = Result<JointAnswer, LimiterError>> + Send;

    /// Returns whether the server did not carry out the call that failed with this error, because it does not have all
    /// the keys. Then each key is decided in its own call. Returns `false` by default.
    fn wants_single_keys(error: &LimiterError) -> bool {
        let _ = error;
        false
    }
}

/// The outcome of a call about several keys.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::exhaustive_structs, reason = "a backend writes all of it")]
pub struct JointAnswer {
    /// The number of the alternative that was charged, from 1 on; 0 if none was charged.
    pub charged: u32,
    /// The server's time.
    pub now: Timestamp,
    /// When the call was sent, by [`Monotonic`].
    pub sent: Timestamp,
}

/// A [`JointBackend`] for limiters with this algorithm. [`Parts::joint`](super::Parts::joint) announces it to the
/// store.
pub trait JointCharge<A: Algorithm>: Backend<A> + JointBackend {
    /// Begins a call's part that charges a key.
    fn part(&self, target: &Target<'_, A>, cost: u64) -> Self::Part;

    /// Reads the answer in a part: the state before, as for [`Transition::Charge`](super::Transition::Charge) on one
    /// request.
    ///
    /// # Errors
    ///
    /// If the answer is inconclusive.
    fn read_part(&self, target: &Target<'_, A>, part: &Self::Part) -> Result<Applied<A::State>, LimiterError>;

    /// Whether the key in a part was only read, and stays under another quota than the target's. Then its state, which
    /// was converted, pays at another rate than it seems to, and this process learns nothing from it. By default false.
    fn is_foreign(&self, part: &Self::Part) -> bool {
        let _ = part;
        false
    }
}

/// Lets a limiter decide together with others on its server.
pub(super) fn describe<A: Algorithm + Clone, B: JointCharge<A>>(
    limiter: &Arc<StoreInner<A::State, B>>,
    algorithm: &A,
    description: Description,
) -> Description {
    description.batching(Joiner { inner: Arc::clone(limiter), algorithm: algorithm.clone() })
}

/// Charges together with other limiters, in one call.
struct Joiner<A: Algorithm, B> {
    inner: Arc<StoreInner<A::State, B>>,
    algorithm: A,
}

impl<A: Algorithm + Clone, B: JointCharge<A>> Batching for Joiner<A, B> {
    /// Returns `None` if a lease pays, or if the key's own call would take one, since a call for several keys takes no
    /// lease. Also returns `None` for a suspended quota, which needs no call, and for a quota that the server cannot
    /// keep, so that the key's own call reports the error.
    fn claim(&self, ask: &Ask<'_>) -> Option<Box<dyn Claim>> {
        if ask.is_suspended() {
            return None;
        }
        let query = KeyQuery::for_ask(&self.inner, &self.algorithm, ask).ok()?;
        if query.is_in_demand(ask.cost()) {
            return None;
        }
        let cost = ask.cost();
        let part = query.inner.backend.part(&query.target(), cost);
        let now = Timestamp::ZERO;
        let found = Applied { now, old: None, standing: Standing::NONE, kept: None, charged: 0 };
        Some(Box::new(JointClaim(Box::new(KeyMember { query, cost, part, found }))))
    }
}

/// One limiter's part of a request, for limiters on the same server.
struct JointClaim<B: JointBackend>(Box<dyn Member<B>>);

impl<B: JointBackend> Claim for JointClaim<B> {
    fn store(&self) -> usize {
        self.0.backend().server()
    }

    /// Makes one call if one of the server's nodes has all keys, and otherwise one call after the other: when one is
    /// rejected, the earlier ones are refunded, and the later ones only report the units left. All calls together have
    /// one deadline.
    fn decide_all(self: Box<Self>, others: Vec<Box<dyn Claim>>) -> Pin<Box<dyn Future<Output = Answers> + Send>> {
        let mut members = self.with(others);
        Box::pin(async move {
            let deadline = members[0].backend().deadline();
            let mut answers: Vec<Option<Answered>> = members.iter().map(|_| None).collect();
            // Until a call is rejected. From then on, calls only report the units left.
            let mut charges_any = true;
            let all = Alternatives::ALL;
            let mut groups: VecDeque<Vec<usize>> = groups(&members).into();
            while let Some(group) = groups.pop_front() {
                let choose = |alone: &[Decision]| {
                    alone.iter().all(Decision::is_allowed).then(|| (0..alone.len()).collect::<ChosenKeys>())
                };
                let alternatives = charges_any.then_some(&all);
                match decide_group(&mut members, &group, alternatives, choose, deadline).await {
                    Ok(decided) => {
                        if charges_any && !decided.iter().all(|member| member.decision.is_allowed()) {
                            charges_any = false;
                            roll_back(&members, &mut answers);
                        }
                        let decisions = decided.iter().map(|member| member.decision);
                        group.iter().zip(decisions).for_each(|(index, decision)| answers[*index] = Some(Ok(decision)));
                    }
                    // While keys move between two nodes, one call may have keys on both.
                    Err(error) if group.len() > 1 && B::wants_single_keys(&error) => {
                        group.iter().rev().for_each(|index| groups.push_front(vec![*index]));
                    }
                    Err(error) => group.iter().for_each(|index| answers[*index] = Some(Err(error.clone()))),
                }
            }
            answers.into_iter().map(|answer| answer.expect("each claim is in a group")).collect()
        })
    }

    /// Makes one call, for the claims that can share one with the first. The others count as members with room. If
    /// there are more ways to choose from them than a call lists, the last claims are left out.
    fn decide_by(
        self: Box<Self>,
        others: Vec<Box<dyn Claim>>,
        formula: Formula,
    ) -> Pin<Box<dyn Future<Output = MemberAnswers> + Send>> {
        let mut members = self.with(others);
        Box::pin(async move {
            let deadline = members[0].backend().deadline();
            let mut group = groups(&members).swap_remove(0);
            loop {
                let index = |member| group.iter().position(|other| *other == member);
                let Some(alternatives) = Alternatives::of(&formula, group.len(), &index) else {
                    group.pop();
                    continue;
                };
                let choose = |alone: &[Decision]| {
                    let lacks_room = |member| index(member).is_some_and(|index| !alone[index].is_allowed());
                    let room = |member| if lacks_room(member) { Room::Lacking } else { Room::Enough };
                    let mut chosen = Vec::new();
                    let room = formula.choose(&room, &mut chosen);
                    (room == Room::Enough).then(|| chosen.into_iter().filter_map(index).collect())
                };
                let decided = decide_group(&mut members, &group, Some(&alternatives), choose, deadline).await;
                let mut answers: MemberAnswers = members.iter().map(|_| None).collect();
                match decided {
                    Ok(decided) => {
                        group.iter().zip(decided).for_each(|(index, member)| answers[*index] = Some(Ok(member)));
                    }
                    // As in `decide_all`, except that then the first claim is decided alone.
                    Err(error) if group.len() > 1 && B::wants_single_keys(&error) => {
                        group.truncate(1);
                        continue;
                    }
                    Err(error) => group.iter().for_each(|index| answers[*index] = Some(Err(error.clone()))),
                }
                return answers;
            }
        })
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

impl<B: JointBackend> JointClaim<B> {
    /// Returns this claim's member and those from other claims on the same store, in their order.
    fn with(self: Box<Self>, others: Vec<Box<dyn Claim>>) -> Vec<Box<dyn Member<B>>> {
        let others = others.into_iter().map(|other| other.into_any().downcast::<Self>().expect("of the same store"));
        std::iter::once(self).chain(others).map(|claim| claim.0).collect()
    }
}

/// Decides on a group of members in one call, which charges the first alternative that has room, or only reads if there
/// are no alternatives. `choose` makes the same choice from the decision on each member by itself, and returns the
/// indexes of the members to charge, if there is room.
async fn decide_group<B: JointBackend>(
    members: &mut [Box<dyn Member<B>>],
    group: &[usize],
    alternatives: Option<&Alternatives>,
    choose: impl Fn(&[Decision]) -> Option<ChosenKeys> + Send,
    deadline: Instant,
) -> Result<SmallVec<[MemberDecision; 4]>, LimiterError> {
    let caller = members[group[0]].backend().caller();
    let mut members: SmallVec<[_; 4]> =
        members.iter_mut().enumerate().filter(|(index, _)| group.contains(index)).map(|(_, member)| member).collect();
    let mut parts: SmallVec<[&mut B::Part; 4]> = members.iter_mut().map(|member| member.part_mut()).collect();
    let answer = B::decide(&caller, &mut parts, alternatives, CallLimits { deadline, requests: 1 }).await?;
    let seen = Observation { server: answer.now, sent: answer.sent, answered: Monotonic.now() };
    drop(parts);
    for member in &mut members {
        member.read_part()?;
    }
    let alone: SmallVec<[Decision; 4]> = members.iter().map(|member| member.decision()).collect();
    let disagreement = || members[0].gave_up(GaveUp::Disagreement);
    let mut chosen = ChosenKeys::new();
    // Nothing is recorded before the whole answer was found to be sound.
    if let Some(alternatives) = alternatives {
        let choice = choose(&alone);
        let number = choice.as_ref().map_or(Some(0), |keys| alternatives.number_of(keys));
        if number != Some(answer.charged) {
            return Err(disagreement());
        }
        chosen = choice.unwrap_or_default();
    }
    let decided = members.iter().zip(alone).enumerate().map(|(index, (member, alone))| {
        let is_charged = chosen.contains(&index);
        let decision = member.record(alone, is_charged, seen).map_err(|_| disagreement())?;
        Ok(MemberDecision { decision, is_charged })
    });
    decided.collect()
}

/// Refunds the charges in reverse order, see [`Receipt`](crate::values::Receipt).
fn roll_back<B: JointBackend>(members: &[Box<dyn Member<B>>], answers: &mut [Option<Answered>]) {
    for (member, answer) in members.iter().zip(answers).rev() {
        if let Some(Ok(decision)) = answer {
            *decision = member.refund(*decision);
        }
    }
}

/// Groups the members that can share a call, in their order.
fn groups<B: JointBackend>(members: &[Box<dyn Member<B>>]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (index, member) in members.iter().enumerate() {
        let can_share = |other: &usize| member.backend().can_share_a_call(members[*other].part(), member.part());
        match groups.iter_mut().find(|group| group.iter().all(can_share)) {
            Some(group) => group.push(index),
            None => groups.push(vec![index]),
        }
    }
    groups
}

/// One limiter's part of a request, without its algorithm in the type.
trait Member<B: JointBackend>: Send {
    /// Its store's backend.
    fn backend(&self) -> &B;

    /// Its part of a call.
    fn part(&self) -> &B::Part;

    /// Its part, into which the answer is written.
    fn part_mut(&mut self) -> &mut B::Part;

    /// Reads the answer in the part.
    fn read_part(&mut self) -> Result<(), LimiterError>;

    /// Returns this limiter's decision by itself.
    fn decision(&self) -> Decision;

    /// Records the outcome. Returns the decision: with a receipt for its refund if this member `is_charged`, and
    /// otherwise without a charge.
    fn record(&self, alone: Decision, is_charged: bool, seen: Observation) -> Result<Decision, GaveUp>;

    /// Refunds a decision's charge, if it has one, in the background. Returns the decision without the charge.
    fn refund(&self, decision: Decision) -> Decision;

    /// Returns the error for a request that this process gave up.
    fn gave_up(&self, reason: GaveUp) -> LimiterError;
}

/// A [`JointCharge`]'s member.
struct KeyMember<A: Algorithm, B: JointCharge<A>> {
    query: KeyQuery<A, B>,
    cost: u64,
    part: B::Part,
    /// The outcome that the last call has read.
    found: Applied<A::State>,
}

impl<A: Algorithm + Clone, B: JointCharge<A>> Member<B> for KeyMember<A, B> {
    fn backend(&self) -> &B {
        &self.query.inner.backend
    }

    fn part(&self) -> &B::Part {
        &self.part
    }

    fn part_mut(&mut self) -> &mut B::Part {
        &mut self.part
    }

    fn read_part(&mut self) -> Result<(), LimiterError> {
        self.found = self.backend().read_part(&self.query.target(), &self.part)?;
        Ok(())
    }

    fn decision(&self) -> Decision {
        self.query.decision_after(&self.found, self.cost)
    }

    fn record(&self, alone: Decision, is_charged: bool, seen: Observation) -> Result<Decision, GaveUp> {
        let Self { query, cost, part, found } = self;
        if !is_charged || *cost == 0 {
            let unchanged = query.record_unchanged(found, self.backend().is_foreign(part), seen, *cost);
            return Ok(if alone.is_allowed() { unchanged } else { alone });
        }
        let (decisions, is_own) = query.record_charge(found, seen, *cost, 1)?;
        if is_own {
            query.hold_lease(*cost, 0, 0, decisions[0], seen.sent);
        }
        Ok(decisions[0])
    }

    fn refund(&self, decision: Decision) -> Decision {
        if decision.receipt().is_none() {
            return decision;
        }
        self.query.clone().refund_in_background(self.cost, decision.receipt());
        decision.recharged(self.cost, 0, Some(self.query.algorithm.terms()))
    }

    fn gave_up(&self, reason: GaveUp) -> LimiterError {
        self.backend().gave_up(reason)
    }
}
