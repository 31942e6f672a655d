//! What is replied about a request that may be a retry.

use std::time::Duration;

use super::{BadReply, ScriptReply, Scripted, whole};
use crate::store::remote::Standing;
use crate::values::{Decision, Receipt};

/// What the server has done with a request that may be a retry.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Once<S> {
    /// It is a free retry: the key's numbers without a charge, the receipt of the budget, and the state of the key.
    Free(Decision, Receipt, Option<S>),
    /// It was charged or rejected as ever: the decision, and the state of the key after it.
    AsEver(Decision, Option<S>),
}

/// The keys of a call, as the script counts them.
const STATE: u32 = 1;
const BUDGET: u32 = 2;

impl ScriptReply {
    /// Returns what a [`decide_once`](super::decide_once) with the same algorithms and cost has done.
    pub(crate) fn once<A: Scripted>(
        &self,
        algorithm: &A,
        budget: &A::Budget,
        cost: u64,
    ) -> Result<Once<A::State>, BadReply> {
        let old = self.state(algorithm, 0)?;
        let (charged, once) = match self.free(budget, cost)? {
            Some(free) => (BUDGET, Once::Free(algorithm.decide(old, self.now, 0).0, free.receipt(), old)),
            None => {
                let (decision, next) = algorithm.decide(old, self.now, cost);
                (if next.is_some() { STATE } else { 0 }, Once::AsEver(decision, next.or(old)))
            }
        };
        if charged == self.admitted { Ok(once) } else { Err(BadReply::Disagreement) }
    }

    /// Returns what a [`decide_once`](super::decide_once) has done about a key whose standing is in force, with the state at its
    /// end. What is owed is no debt of free retries, so these pass.
    pub(crate) fn once_in_force<A: Scripted>(
        &self,
        algorithm: &A,
        budget: &A::Budget,
        cost: u64,
        (standing, state): (Standing, Option<A::State>),
    ) -> Result<Once<A::State>, BadReply> {
        let is_banned = standing.banned_until > self.now;
        let free = if is_banned { None } else { self.free(budget, cost)? };
        let (charged, cost) = if free.is_some() { (BUDGET, 0) } else { (0, cost) };
        let decision = standing.decide(algorithm, state, self.now, cost).ok_or(BadReply::Disagreement)?;
        let once = match free {
            Some(free) => Once::Free(decision, free.receipt(), state),
            None => Once::AsEver(decision, state),
        };
        if charged == self.admitted { Ok(once) } else { Err(BadReply::Disagreement) }
    }

    /// The decision on a free retry, if the record had one and the budget has admitted it.
    fn free<B: Scripted>(&self, budget: &B, cost: u64) -> Result<Option<Decision>, BadReply> {
        let free = if self.free_retries()? > 0 { Some(self.decision(budget, 1, cost)?) } else { None };
        Ok(free.filter(Decision::is_allowed))
    }

    /// For how long the record lives, if the request is a free retry.
    pub(crate) fn record_left(&self) -> Option<Duration> {
        whole(self.old(3).ok()??).map(Duration::from_millis)
    }

    /// How many free retries the record had.
    fn free_retries(&self) -> Result<u32, BadReply> {
        let Some(record) = self.old(2)? else { return Ok(0) };
        let free = record.strip_prefix(b"-").and_then(whole).and_then(|free| u32::try_from(free).ok());
        free.ok_or(BadReply::State)
    }
}
