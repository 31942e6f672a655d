//! `Attempt`: one arrival of a request that may be repeated.

use std::sync::Arc;
use std::time::Duration;

use super::records::Records;
use crate::limiter::Limiter;
use crate::values::{Ask, Check, PartitionKey, Quota, Receipt};

/// One arrival of a request with an idempotency key. The entry of the request holds it, and after that what waits for its
/// response. What follows when it is dropped depends on how far it has come.
pub(crate) struct Attempt {
    records: Arc<Records>,
    /// The request: the policy key, the idempotency key, and so on.
    key: PartitionKey,
    within: Duration,
    free_retries: u32,
    stage: Stage,
}

enum Stage {
    /// To be charged. If it is dropped, it was rejected or given up, and its retries are charged, too.
    ToCharge,
    /// Charged, and its response is awaited. If it is dropped, the response is over.
    Charged,
    /// To pass for free. If it is dropped, it was rejected or given up, and may be free the next time.
    ToPass(Grant),
    /// Nothing follows.
    Done,
}

/// What a free retry has taken of the budget.
struct Grant {
    budget: Arc<dyn Limiter>,
    policy_key: PartitionKey,
    cost: u32,
    quota: Option<Quota>,
    receipt: Receipt,
}

impl Attempt {
    /// An attempt that is to be charged.
    pub(super) fn charged(records: Arc<Records>, key: PartitionKey, within: Duration, free_retries: u32) -> Self {
        Self { records, key, within, free_retries, stage: Stage::ToCharge }
    }

    /// Makes it a free retry, if its request has one left and the budget of the policy key admits it.
    pub(super) fn or_free(mut self, budget: &Arc<dyn Limiter>, charge: &Ask<'_>) -> Self {
        if !self.records.take(&self.key) {
            return self;
        }
        match budget.decide(charge) {
            Check::Ready(Ok(decision)) if decision.is_allowed() => {
                let (budget, policy_key) = (Arc::clone(budget), charge.key().clone());
                let (cost, quota, receipt) = (charge.cost(), charge.quota(), decision.receipt());
                self.stage = Stage::ToPass(Grant { budget, policy_key, cost, quota, receipt });
            }
            _ => self.records.put_back(&self.key, self.free_retries),
        }
        self
    }

    /// Whether it is a free retry, so that its policy charges nothing.
    pub(crate) const fn is_free(&self) -> bool {
        matches!(self.stage, Stage::ToPass(_))
    }

    /// Records that the request passes; `is_charged` says whether the policy has charged it. Returns whether to keep the
    /// attempt until the response is over.
    pub(crate) fn admit(&mut self, is_charged: bool) -> bool {
        let is_awaited = matches!(self.stage, Stage::ToCharge) && is_charged;
        self.stage = if is_awaited { Stage::Charged } else { Stage::Done };
        is_awaited
    }

    /// Records that the charge was refunded, so that retries are charged.
    pub(crate) fn refunded(&mut self) {
        self.stage = Stage::Done;
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.stage, Stage::Done) {
            Stage::Charged => self.records.begin(&self.key, self.within, self.free_retries),
            Stage::ToPass(Grant { budget, policy_key, cost, quota, receipt }) => {
                self.records.put_back(&self.key, self.free_retries);
                match quota {
                    Some(quota) => budget.refund_under(quota, &policy_key, receipt, cost),
                    None => budget.refund(&policy_key, receipt, cost),
                }
            }
            Stage::ToCharge | Stage::Done => {}
        }
    }
}
