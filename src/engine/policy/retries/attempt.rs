//! `Attempt`: one arrival of a request that may be repeated.

use std::sync::Arc;
use std::time::Duration;

use super::records::Records;
use crate::limiter::Limiter;
use crate::values::time::{Clock, Monotonic, Timestamp};
use crate::values::{Answer, Ask, ChargingOnce, PartitionKey, Quota, Receipt, Retry};

/// One arrival of a request with an idempotency key. The request's entry holds it until the response is over. The
/// effect of dropping it depends on its stage.
pub(crate) struct Attempt {
    keeper: Keeper,
    /// The quota of this key's retry budget, if the key has its own quota.
    quota: Option<Quota>,
    policy_key: PartitionKey,
    retry: Retry,
    stage: AttemptStage,
}

/// The keeper of request records and free retry budgets.
#[derive(Clone)]
pub(super) enum Keeper {
    /// This process's memory, which finds out whether a retry is free before the policy decides.
    Process { records: Arc<Records>, budget: Option<Arc<dyn Limiter>> },
    /// The limiter's store, which finds out when it decides.
    Limiter(Arc<dyn ChargingOnce>),
}

enum AttemptStage {
    /// To be charged. Dropped if the request was rejected or given up. Its retries are charged, too.
    ToCharge,
    /// Charged, and its response is awaited. Dropped when the response is over.
    Charged,
    /// To pass for free, with `cost` units taken from the budget. Dropped if the request was rejected or given up. It
    /// may be free the next time, `until` its record ends.
    ToPass { cost: u64, receipt: Receipt, until: Option<Timestamp> },
    /// Settled, so that dropping it has no effect.
    Done,
}

impl Attempt {
    /// An attempt that is to be charged, unless a record in this process makes it free.
    pub(super) fn new(keeper: Keeper, quota: Option<Quota>, charge: &Ask<'_>, retry: Retry) -> Self {
        let mut attempt =
            Self { keeper, quota, policy_key: charge.key().clone(), retry, stage: AttemptStage::ToCharge };
        if let Some((receipt, until)) = attempt.take(charge) {
            attempt.stage = AttemptStage::ToPass { cost: charge.cost(), receipt, until: Some(until) };
        }
        attempt
    }

    /// Takes a free retry, if this process has one left for the request, and the budget of the policy key admits it.
    /// Returns when its record ends, too.
    fn take(&self, charge: &Ask<'_>) -> Option<(Receipt, Timestamp)> {
        let Keeper::Process { records, budget: Some(budget) } = &self.keeper else { return None };
        let until = records.take(&self.retry.request)?;
        match budget.decide(&charge.under(self.quota)) {
            Answer::Ready(Ok(decision)) if decision.is_allowed() => Some((decision.receipt(), until)),
            _ => {
                records.put_back(&self.retry.request, self.retry.free_retries);
                None
            }
        }
    }

    /// Whether it is known to be a free retry, so that its policy does not charge it.
    pub(crate) const fn is_free(&self) -> bool {
        matches!(self.stage, AttemptStage::ToPass { .. })
    }

    /// The request's cost after a wait, if it is free now and its record will have ended by then.
    pub(crate) fn cost_after(&self, wait: Duration) -> Option<u64> {
        match (&self.stage, &self.keeper) {
            (AttemptStage::ToPass { cost, until: Some(until), .. }, Keeper::Process { records, .. }) => {
                records.ends_within(*until, wait).then_some(*cost)
            }
            (AttemptStage::ToPass { cost, until: Some(until), .. }, Keeper::Limiter(_)) => {
                (*until <= Monotonic.now().saturating_add(wait)).then_some(*cost)
            }
            _ => None,
        }
    }

    /// The request as a [`Retry`] for the limiter, if the limiter is to find out whether it is free.
    pub(crate) const fn for_limiter(&self) -> Option<&Retry> {
        match self.keeper {
            Keeper::Limiter(_) => Some(&self.retry),
            Keeper::Process { .. } => None,
        }
    }

    /// Records that the limiter has found it free, and has taken `cost` from the budget.
    pub(crate) fn found_free(&mut self, cost: u64, receipt: Receipt) {
        let until = self.retry.record_ends.as_ref().and_then(|ends| ends.get().copied());
        self.stage = AttemptStage::ToPass { cost, receipt, until };
    }

    /// Records that the request passes; `is_charged` says whether the policy has charged it. Returns whether to keep
    /// the attempt until the response is over.
    pub(crate) fn admit(&mut self, is_charged: bool) -> bool {
        let is_awaited = matches!(self.stage, AttemptStage::ToCharge) && is_charged;
        self.stage = if is_awaited { AttemptStage::Charged } else { AttemptStage::Done };
        is_awaited
    }

    /// Records that the charge was refunded, so that retries are charged.
    pub(crate) fn refunded(&mut self) {
        self.stage = AttemptStage::Done;
    }

    /// Records that the request is over, so that its retries are free.
    fn begin(&self) {
        let Retry { request, within, free_retries, .. } = &self.retry;
        match &self.keeper {
            Keeper::Process { records, .. } => records.begin(request, *within, *free_retries),
            Keeper::Limiter(limiter) => limiter.begin(&self.policy_key, &self.retry),
        }
    }

    /// Returns a free retry that was not used up.
    fn put_back(&self, cost: u64, receipt: Receipt) {
        match &self.keeper {
            Keeper::Process { records, budget } => {
                records.put_back(&self.retry.request, self.retry.free_retries);
                let ask = Ask::charge(&self.policy_key, cost).under(self.quota);
                budget.iter().for_each(|budget| budget.refund(&ask, receipt, cost));
            }
            Keeper::Limiter(limiter) => limiter.put_back(&self.policy_key, &self.retry, receipt, cost),
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.stage, AttemptStage::Done) {
            AttemptStage::Charged => self.begin(),
            AttemptStage::ToPass { cost, receipt, .. } => self.put_back(cost, receipt),
            AttemptStage::ToCharge | AttemptStage::Done => {}
        }
    }
}
