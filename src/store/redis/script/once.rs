//! What is replied about a request that may be a retry.

use super::{BadReply, ScriptReply, Scripted, whole};
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
        cost: u32,
    ) -> Result<Once<A::State>, BadReply> {
        let old = self.state(algorithm, 0)?;
        let free = if self.free_retries()? > 0 { Some(self.decision(budget, 1, cost)?) } else { None };
        let (charged, once) = match free.filter(Decision::is_allowed) {
            Some(free) => (BUDGET, Once::Free(algorithm.decide(old, self.now, 0).0, free.receipt(), old)),
            None => {
                let (decision, next) = algorithm.decide(old, self.now, cost);
                (if next.is_some() { STATE } else { 0 }, Once::AsEver(decision, next.or(old)))
            }
        };
        if charged == self.admitted { Ok(once) } else { Err(BadReply::Disagreement) }
    }

    /// How many free retries the record had.
    fn free_retries(&self) -> Result<u32, BadReply> {
        let Some(record) = self.old(2)? else { return Ok(0) };
        let free = record.strip_prefix(b"-").and_then(whole).and_then(|free| u32::try_from(free).ok());
        free.ok_or(BadReply::State)
    }
}
