//! Replies about requests that may be retries.

use std::time::Duration;

use tower_sluice::limiter::Receipt;

use super::{BadReply, ScriptReply, Scripted, whole};

/// The value of `admitted` in a reply if the budget was charged.
const BUDGET: u32 = 2;

impl ScriptReply {
    /// Whether a [`decide_once`](super::decide_once) has charged the budget, and not the key.
    pub(crate) const fn is_free_retry(&self) -> bool {
        self.admitted == BUDGET
    }

    /// Returns the budget's receipt if the request is a free retry: the record had a free retry left, and the budget
    /// has admitted it. Free retries do not depend on the key's debt, so they pass, unless the key `is_banned`.
    pub(crate) fn free_retry<B: Scripted>(
        &self,
        budget: &B,
        cost: u64,
        is_banned: bool,
    ) -> Result<Option<Receipt>, BadReply> {
        let mut receipt = None;
        if !is_banned && self.free_retries()? > 0 {
            let decision = budget.decide(self.state(budget, 1)?, self.now, cost).0;
            receipt = decision.is_allowed().then(|| decision.receipt());
        }
        if receipt.is_some() == self.is_free_retry() { Ok(receipt) } else { Err(BadReply::Disagreement) }
    }

    /// Returns the record's remaining lifetime, if the request is a free retry.
    pub(crate) fn record_left(&self) -> Option<Duration> {
        whole(self.old(3).ok()??).map(Duration::from_millis)
    }

    /// Returns the number of free retries that the record had.
    fn free_retries(&self) -> Result<u32, BadReply> {
        let Some(record) = self.old(2)? else { return Ok(0) };
        let free = record.strip_prefix(b"-").and_then(whole).and_then(|free| u32::try_from(free).ok());
        free.ok_or(BadReply::State)
    }
}
