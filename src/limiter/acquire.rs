//! [`Acquire`]: the future of a permit.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::{Limiter, Permit};
use crate::values::{Answer, Ask, LimiterError, PartitionKey, Pending};

/// The future of a [`Permit`], from [`LimiterExt::acquire`](crate::LimiterExt::acquire).
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
        holds: bool,
    },
}

impl<L: Deref<Target: Limiter>> Acquire<L> {
    pub(super) fn new(limiter: L, key: &PartitionKey, units: u64) -> Self {
        let holds = limiter.describe().holds();
        let stage = match limiter.decide(&Ask::charge(key, units)) {
            Answer::Ready(result) => {
                AcquireStage::Decided(result.map(|decision| Permit::new(limiter, key, units, decision, holds)))
            }
            Answer::Pending(decision) => AcquireStage::Waiting { decision, limiter, key: key.clone(), units, holds },
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
            (AcquireStage::Waiting { limiter, key, units, holds, .. }, Some(answer)) => {
                answer.map(|decision| Permit::new(limiter, &key, units, decision, holds))
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
