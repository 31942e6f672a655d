//! Transactions that wait for a queue or a server.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use super::decide::Decide;
use super::entry::PolicyEntry;
use super::scope::Scope;
use super::transaction::{Transaction, TransactionProgress};
use crate::engine::outcome::Evaluated;
use crate::engine::policy::{Fate, Policy};
use crate::engine::reload::{InForce, LayerState};
use crate::values::{Answer, Decision, Now};

/// A request that waits for the answer to its next entry. If it is dropped meanwhile, even before the first poll, the
/// client has disconnected.
pub(super) struct WaitingRequest<D: Decide> {
    /// Dropped first, so that the request leaves its queue before its units are released.
    progress: TransactionProgress<D>,
    transaction: Transaction,
    layer: Arc<LayerState<D>>,
    in_force: Arc<InForce<D>>,
    /// The start of the current wait, if the request waits.
    since: Option<Instant>,
}

impl<D: Decide> Future for WaitingRequest<D> {
    type Output = Evaluated<D>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Evaluated<D>> {
        let waiting = self.get_mut();
        loop {
            let answer = match &mut waiting.progress {
                TransactionProgress::One(pending) => {
                    let answer = ready!(pending.as_mut().poll(context));
                    waiting.end_wait(answer.as_ref().ok());
                    Some(Answer::Ready(answer))
                }
                TransactionProgress::Several(pending) => {
                    let answers = ready!(pending.as_mut().poll(context));
                    waiting.end_wait(None);
                    waiting.transaction.set_answers(answers);
                    None
                }
                TransactionProgress::Members(members, pending) => {
                    let answers = ready!(pending.as_mut().poll(context));
                    let members = std::mem::take(members);
                    waiting.end_wait(None);
                    let scope = Scope { layer: &waiting.layer, in_force: &waiting.in_force };
                    waiting.transaction.set_member_answers(scope, &members, answers);
                    None
                }
                TransactionProgress::Done(_) => panic!("polled after it was ready"),
            };
            // Time has passed since the first reading.
            waiting.transaction.context.now = Now::new();
            let scope = Scope { layer: &waiting.layer, in_force: &waiting.in_force };
            match waiting.transaction.reserve(scope, answer) {
                TransactionProgress::Done(evaluated) => return Poll::Ready(evaluated),
                progress => waiting.progress = progress,
            }
            waiting.begin_wait();
        }
    }
}

impl<D: Decide> WaitingRequest<D> {
    pub(super) fn new(transaction: Transaction, progress: TransactionProgress<D>, scope: Scope<'_, D>) -> Self {
        let mut waiting = Self {
            progress,
            transaction,
            layer: Arc::clone(scope.layer),
            in_force: Arc::clone(scope.in_force),
            since: None,
        };
        waiting.begin_wait();
        waiting
    }

    fn begin_wait(&mut self) {
        self.since = Some(Instant::now());
        if let Some(policy) = self.queueing() {
            policy.lineage.meter.enter_queue();
        }
    }

    /// Ends the wait for an answer. `decision` is that answer, unless it was an error or a batch.
    fn end_wait(&mut self, decision: Option<&Decision>) {
        self.since = None;
        if let Some(policy) = self.queueing() {
            policy.lineage.meter.leave_queue();
            let delay = decision.filter(|decision| decision.is_allowed()).map_or(Duration::ZERO, Decision::delay);
            if !delay.is_zero() {
                policy.lineage.meter.waited(Fate::Delayed, delay);
            }
        }
    }

    fn entry(&self) -> &PolicyEntry {
        &self.transaction.entries[self.transaction.next]
    }

    fn policy(&self) -> &Policy<D> {
        self.entry().policy_of(&self.in_force.policies)
    }

    /// The policy in whose queue the request waits. Shadows do not delay requests.
    fn queueing(&self) -> Option<&Policy<D>> {
        Some(self.policy()).filter(|policy| policy.description.delays() && !policy.shadow)
    }
}

impl<D: Decide> Drop for WaitingRequest<D> {
    fn drop(&mut self) {
        let Some(since) = self.since else { return };
        if let Some(policy) = self.queueing() {
            policy.lineage.meter.leave_queue();
            policy.lineage.meter.waited(Fate::Cancelled, since.elapsed());
        }
        // A charge stays, unless it estimates a handler's work, since the handler was not called.
        let scope = Scope { layer: &self.layer, in_force: &self.in_force };
        scope.note_committed(&mut self.transaction.entries);
        for entry in self.transaction.entries.iter_mut().rev().filter(|entry| entry.admission().is_some()) {
            if scope.policy(entry).billing.is_charged_by_use() {
                entry.settle(scope, 0);
            }
        }
        self.policy().note(Fate::Cancelled, Some(&self.entry().key), None);
    }
}
