//! [`Acquire`]: a permit's future.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::{Limiter, Permit};
use crate::values::{Answer, Ask, Decision, LimiterError, PartitionKey, Pending, Receipt};

/// A future that returns a [`Permit`], from [`LimiterExt::acquire`](crate::LimiterExt::acquire).
#[must_use = "the units are released when it is dropped"]
pub struct Acquire<L: Deref<Target: Limiter>> {
    /// `None` once it was ready.
    stage: Option<AcquireStage<L>>,
}

enum AcquireStage<L: Deref<Target: Limiter>> {
    /// An immediate admission is kept as a permit, so that a future which is never polled releases it.
    Decided(Result<Permit<L>, LimiterError>),
    Waiting {
        decision: Pending,
        limiter: L,
        key: PartitionKey,
        units: u64,
        terms: PermitTerms,
    },
}

/// The limiter's properties that turn its decision into a permit.
#[derive(Clone, Copy)]
struct PermitTerms {
    holds: bool,
    sheds: bool,
}

impl PermitTerms {
    fn permit<L: Deref<Target: Limiter>>(
        self,
        limiter: L,
        key: &PartitionKey,
        units: u64,
        decision: Decision,
    ) -> Permit<L> {
        let is_shed = self.sheds && !decision.is_allowed();
        // For `Rejection::unless_allowed`, which sees the decision alone.
        let decision = if is_shed { decision.with_receipt(Receipt::SHED) } else { decision };
        Permit::new(limiter, key, units, decision, self.holds)
    }
}

impl<L: Deref<Target: Limiter>> Acquire<L> {
    pub(super) fn new(limiter: L, key: &PartitionKey, units: u64) -> Self {
        let description = limiter.describe();
        let terms = PermitTerms { holds: description.holds(), sheds: description.sheds() };
        let stage = match limiter.decide(&Ask::charge(key, units)) {
            Answer::Ready(result) => {
                AcquireStage::Decided(result.map(|decision| terms.permit(limiter, key, units, decision)))
            }
            Answer::Pending(decision) => AcquireStage::Waiting { decision, limiter, key: key.clone(), units, terms },
        };
        Self { stage: Some(stage) }
    }
}

/// Nothing in it is pinned in place: a pending decision is in a box.
impl<L: Deref<Target: Limiter>> Unpin for Acquire<L> {}

impl<L: Deref<Target: Limiter>> Future for Acquire<L> {
    type Output = Result<Permit<L>, LimiterError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = match &mut self.stage {
            Some(AcquireStage::Waiting { decision, .. }) => Some(ready!(decision.as_mut().poll(cx))),
            Some(AcquireStage::Decided(_)) | None => None,
        };
        Poll::Ready(match (self.stage.take().expect("polled after it was ready"), answer) {
            (AcquireStage::Waiting { limiter, key, units, terms, .. }, Some(answer)) => {
                answer.map(|decision| terms.permit(limiter, &key, units, decision))
            }
            (AcquireStage::Decided(permit), _) => permit,
            (AcquireStage::Waiting { .. }, None) => unreachable!("it was polled"),
        })
    }
}

impl<L: Deref<Target: Limiter>> fmt::Debug for Acquire<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Acquire")
    }
}
