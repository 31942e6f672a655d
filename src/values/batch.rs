//! Decisions of several limiters in one round trip.

use std::any::Any;
use std::future::Future;
use std::pin::Pin;

use crate::values::{Ask, Decision, Formula, LimiterError};

/// The decisions on several claims, in their order.
pub(crate) type Answers = Vec<Result<Decision, LimiterError>>;

/// The decisions on the members of a formula, in their order; `None` for a member that was not decided on.
pub(crate) type MemberAnswers = Vec<Option<Result<MemberDecision, LimiterError>>>;

/// The decision on a member of a formula.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::exhaustive_structs, reason = "it is internal")]
pub struct MemberDecision {
    /// The decision of this member alone.
    pub decision: Decision,
    /// Whether it was charged. Otherwise, the decision is a peek.
    pub is_charged: bool,
}

/// A limiter whose store can decide for several limiters in one call.
pub trait Batching: Send + Sync + 'static {
    /// Makes a claim for the key, the cost and the quota of a question, to be charged in one call with others. `None`
    /// if this decision needs no call.
    fn claim(&self, ask: &Ask<'_>) -> Option<Box<dyn Claim>>;
}

/// A charge of one request to one limiter, in the form that the limiter's store batches.
pub trait Claim: Send {
    /// Identifies the store: claims with equal ids can be decided in one call.
    fn store(&self) -> usize;

    /// Decides on this claim and on others of the same [store](Self::store), in their order: all of them are charged,
    /// or nothing is. If one is rejected, the others are answered like peeks.
    fn decide_all(self: Box<Self>, others: Vec<Box<dyn Claim>>) -> Pin<Box<dyn Future<Output = Answers> + Send>>;

    /// Decides on this claim and on others of the same [store](Self::store), which are the members 0, 1, … of
    /// `formula`: those that it [chooses](Formula::choose) are charged, in one call if one server has all keys.
    /// Otherwise, it decides on some of them, the first one at least, such that only charges come back that the formula
    /// chooses if the others have room.
    fn decide_by(
        self: Box<Self>,
        others: Vec<Box<dyn Claim>>,
        formula: Formula,
    ) -> Pin<Box<dyn Future<Output = MemberAnswers> + Send>>;

    /// Lets a store downcast its own claims.
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
}
