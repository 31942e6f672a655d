//! Several limiters' decisions in one round trip.

use std::any::Any;
use std::future::Future;
use std::pin::Pin;

use crate::values::{Ask, Decision, Formula, LimiterError};

/// The decisions on several claims, in their order.
pub(crate) type Answers = Vec<Result<Decision, LimiterError>>;

/// The decisions on a formula's members, in their order; `None` for a member without a decision.
pub(crate) type MemberAnswers = Vec<Option<Result<MemberDecision, LimiterError>>>;

/// The decision on one member in a formula.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::exhaustive_structs, reason = "it is internal")]
pub struct MemberDecision {
    /// The member's own decision.
    pub decision: Decision,
    /// Whether it was charged. Otherwise, the decision is a peek.
    pub is_charged: bool,
}

/// A limiter whose store can decide for several limiters in one call.
pub trait Batching: Send + Sync + 'static {
    /// Makes a claim from a question's key, cost and quota, to charge it in one call with others. `None` if this
    /// decision needs no call.
    fn claim(&self, ask: &Ask<'_>) -> Option<Box<dyn Claim>>;
}

/// One request's charge to one limiter, in the form that the limiter's store batches.
pub trait Claim: Send {
    /// Identifies the store: claims with equal ids can be decided in one call.
    fn store(&self) -> usize;

    /// Decides on this claim and on others with the same [store](Self::store), in their order. Either all are charged,
    /// or nothing is: if one is rejected, the others are answered like peeks.
    fn decide_all(self: Box<Self>, others: Vec<Box<dyn Claim>>) -> Pin<Box<dyn Future<Output = Answers> + Send>>;

    /// Decides on this claim and on others with the same [store](Self::store), which are members 0, 1, … in `formula`.
    /// The members that it [chooses](Formula::choose) are charged, in one call if one server has all keys. Otherwise,
    /// the store decides on some members, at least on the first, and returns only charges that the formula chooses if
    /// the other members have room.
    fn decide_by(
        self: Box<Self>,
        others: Vec<Box<dyn Claim>>,
        formula: Formula,
    ) -> Pin<Box<dyn Future<Output = MemberAnswers> + Send>>;

    /// Lets a store downcast its own claims.
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
}
