//! Several decisions in one round trip.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::pin::Pin;

use crate::decision::{Decision, LimiterError};

/// What one request asks of one limiter, in a form in which the limiter's store can decide several at once. Only
/// stores of this crate make them.
pub struct Claim(Box<dyn Joint>);

/// The answers to several claims, in their order.
pub(crate) type Answers = Vec<Result<Decision, LimiterError>>;

/// What a store puts into its claims.
pub(crate) trait Joint: Any + Send {
    /// Equal for those that can be decided together.
    fn party(&self) -> usize;

    /// Decides on this claim and on others of the same [party](Self::party), in their order: all are charged or none
    /// is. Where one is refused, the others are answered as if they had asked for nothing.
    fn decide_all(self: Box<Self>, others: Vec<Box<dyn Any>>) -> Pin<Box<dyn Future<Output = Answers> + Send>>;
}

impl Claim {
    pub(crate) fn new(claim: impl Joint) -> Self {
        Self(Box::new(claim))
    }

    pub(crate) fn party(&self) -> usize {
        self.0.party()
    }

    /// See [`Joint::decide_all`].
    pub(crate) fn decide_all(self, others: Vec<Self>) -> Pin<Box<dyn Future<Output = Answers> + Send>> {
        self.0.decide_all(others.into_iter().map(|claim| claim.0 as Box<dyn Any>).collect())
    }
}

impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Claim").field(&self.party()).finish()
    }
}
