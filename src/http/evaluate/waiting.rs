//! Transactions that wait for a queue or a server.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::entry::PolicyEntry;
use super::observe;
use super::scope::Scope;
use super::transaction::{Evaluated, Transaction, TransactionProgress};
use crate::http::policy::{Fate, Policy};
use crate::http::reload::{InForce, LayerState};
use crate::values::{Answer, Decision, Now};

/// The future of a transaction that waits.
pub(crate) type WaitingTransaction = Pin<Box<dyn Future<Output = Evaluated> + Send>>;

pub(super) fn wait(
    transaction: Transaction,
    scope: Scope<'_>,
    mut progress: TransactionProgress,
) -> WaitingTransaction {
    // Made now and not at the first poll, so that a request whose future is dropped unpolled is counted as cancelled.
    let mut waiter = WaitingRequest::new(transaction, scope);
    Box::pin(async move {
        loop {
            match progress {
                TransactionProgress::Done(evaluated) => return evaluated,
                TransactionProgress::One(pending) => {
                    let answer = pending.await;
                    waiter.end_wait(answer.as_ref().ok());
                    progress = waiter.resume(Some(Answer::Ready(answer)));
                }
                TransactionProgress::Several(pending) => {
                    let answers = pending.await;
                    waiter.end_wait(None);
                    waiter.transaction.set_answers(answers);
                    progress = waiter.resume(None);
                }
            }
        }
    })
}

/// A request that waits for the answer to its next entry. If it is dropped meanwhile, the client has disconnected.
struct WaitingRequest {
    transaction: Transaction,
    layer: Arc<LayerState>,
    in_force: Arc<InForce>,
    /// `None` while it does not wait.
    since: Option<Instant>,
}

impl WaitingRequest {
    fn new(transaction: Transaction, scope: Scope<'_>) -> Self {
        let (layer, in_force) = (Arc::clone(scope.layer), Arc::clone(scope.in_force));
        let mut waiter = Self { transaction, layer, in_force, since: None };
        waiter.begin_wait();
        waiter
    }

    fn begin_wait(&mut self) {
        self.since = Some(Instant::now());
        if let Some(policy) = self.queueing() {
            policy.heritage.meter.enter_queue();
        }
    }

    /// Ends the wait for an answer, which was `decision` unless it was an error or a batch.
    fn end_wait(&mut self, decision: Option<&Decision>) {
        self.since = None;
        if let Some(policy) = self.queueing() {
            policy.heritage.meter.leave_queue();
            let delay = decision.filter(|decision| decision.is_allowed()).map_or(Duration::ZERO, Decision::delay);
            if !delay.is_zero() {
                policy.heritage.meter.waited(Fate::Delayed, delay);
            }
        }
    }

    fn resume(&mut self, answer: Option<Answer>) -> TransactionProgress {
        let scope = Scope { layer: &self.layer, in_force: &self.in_force };
        // Time has passed since the first reading.
        self.transaction.context.now = Now::new();
        let progress = self.transaction.reserve(scope, answer);
        if !matches!(progress, TransactionProgress::Done(_)) {
            self.begin_wait();
        }
        progress
    }

    fn entry(&self) -> &PolicyEntry {
        &self.transaction.entries[self.transaction.next]
    }

    fn policy(&self) -> &Policy {
        self.entry().policy_of(&self.in_force.policies)
    }

    /// The policy in whose queue the request waits. Shadows delay no request.
    fn queueing(&self) -> Option<&Policy> {
        Some(self.policy()).filter(|policy| policy.description.delays() && !policy.shadow)
    }
}

impl Drop for WaitingRequest {
    fn drop(&mut self) {
        let Some(since) = self.since else { return };
        if let Some(policy) = self.queueing() {
            policy.heritage.meter.leave_queue();
            policy.heritage.meter.waited(Fate::Cancelled, since.elapsed());
        }
        // Entries before this one stay charged.
        observe::committed(&self.in_force.policies, &self.transaction.entries[..self.transaction.next]);
        self.policy().note(Fate::Cancelled, Some(&self.entry().key), None);
    }
}
