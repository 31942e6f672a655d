//! Several decisions in one round trip.

use std::any::Any;
use std::future::Future;
use std::pin::Pin;

use crate::values::{Decision, LimiterError, PartitionKey};

/// The answers to several claims, in their order.
pub(crate) type Answers = Vec<Result<Decision, LimiterError>>;

/// A limiter whose store can decide for several limiters at once.
pub(crate) trait Batching: Send + Sync + 'static {
    /// A charge that is still to be made, in one call with others. `None` if this one needs no call.
    fn claim(&self, key: &PartitionKey, cost: u32) -> Option<Box<dyn Claim>>;
}

/// What one request asks of one limiter, in a form in which the limiter's store can decide several at once.
pub(crate) trait Claim: Send {
    /// Equal for those that can be decided together.
    fn store(&self) -> usize;

    /// Decides on this claim and on others of the same [store](Self::store), in their order: all are charged or none
    /// is. Where one is rejected, the others are answered as if they had asked for nothing.
    fn decide_all(self: Box<Self>, others: Vec<Box<dyn Claim>>) -> Pin<Box<dyn Future<Output = Answers> + Send>>;

    /// For a store to find its own claims again.
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
}
