//! The hot path for one policy whose requests hold units, and await nothing else from their responses. If the request
//! has to wait, or the limiter has failed, a transaction goes on from the answer.

use std::sync::Arc;

use super::decide::Decide;
use super::entry::{self, AskContext, Entries, NoKey, PolicyEntry};
use super::scope::Scope;
use super::transaction::Transaction;
use crate::engine::outcome::{Evaluation, Rejected};
use crate::engine::permits::Held;
use crate::engine::policy::{Fate, Policy, Precedence, has_decisions};
use crate::engine::shed_replies::{ForAnybody, ShedReplies};
use crate::engine::translate::Reading;
use crate::limiter::hold::Hold;
use crate::values::{Answer, Ask, Priority};

impl<D: Decide> Scope<'_, D> {
    /// Evaluates a request by the only policy, whose requests hold units.
    pub(super) fn evaluate_held(self, policy: &Policy<D>, head: &D::Subject<'_>) -> Evaluation<D> {
        if let Some(shed) = self.in_force.shed_replies.as_ref().and_then(ShedReplies::for_anybody) {
            match self.shed_anybody(shed, policy, head) {
                Anybody::Shed => return Evaluation::Replied(shed.reply()),
                Anybody::Skipped => return Evaluation::Admitted(self.annotate_undecided()),
                Anybody::Asks => {}
            }
        }
        let key = match entry::key(policy, head) {
            Ok(key) => key,
            Err(NoKey::Skipped) => return Evaluation::Admitted(self.annotate_undecided()),
            Err(NoKey::Rejected(rejection)) => return Evaluation::Rejected(Rejected::undecided(*rejection)),
        };
        let cost = policy.cost_of(head);
        let quota = policy.quota_of(head, &key);
        let precedence = policy.precedence_of(head);
        let context = AskContext { patience: self.patience(head), ..AskContext::default() };
        let ask = Ask::charge(&key, cost).under(quota).within(context.patience).at(&context.now);
        let answer = policy.limiter.decide(&match precedence {
            Some(precedence) => precedence.of(ask),
            None => ask,
        });
        match &answer {
            Answer::Ready(Ok(decision)) if decision.is_allowed() => {
                // Must come first, so that no panic loses the units.
                let hold = Hold::of_key(Arc::clone(&policy.limiter), key, decision, cost);
                policy.report_health(None);
                if policy.description.sheds() {
                    policy.note_not_shed();
                }
                policy.note(Fate::from_admission(decision), Some(hold.key()), Some(decision));
                let decided = Reading { policy: 0, key: hold.key(), quota, decision };
                let known = self.annotate_plain(std::iter::once(decided));
                Evaluation::Admitted(known.holding(D::hold(held(hold, policy))))
            }
            Answer::Ready(Ok(decision)) if decision.ban().is_none() => {
                policy.report_health(None);
                let decided = Reading { policy: 0, key: &key, quota, decision };
                self.respond_plain(policy, decided, head, Evaluation::Rejected)
            }
            _ => {
                let mut entries = Entries::new();
                entries.push(PolicyEntry::preceding(0, key, cost, quota, precedence));
                let transaction = Transaction::from_charged(entries, 0, context);
                self.evaluate_transaction(transaction, Some(answer), head)
            }
        }
    }
}

/// The fate of a request whose key is not extracted.
enum Anybody {
    Shed,
    /// The policy does not apply to it.
    Skipped,
    /// It has to ask the limiter.
    Asks,
}

impl<D: Decide> Scope<'_, D> {
    /// Finds out whether the only policy sheds a request from any client, and counts that. The key is not extracted,
    /// because that would take longer than all the rest.
    #[cold]
    #[inline(never)]
    fn shed_anybody(self, shed: &ForAnybody<D>, policy: &Policy<D>, head: &D::Subject<'_>) -> Anybody {
        let is_shed = shed.shedder.sheds_anybody(policy.cost_of(head));
        if !is_shed || has_decisions() || !D::is_usual(head) {
            return Anybody::Asks;
        }
        if !policy.applies_to(head) {
            entry::note_skipped(policy);
            return Anybody::Skipped;
        }
        let class = policy.precedence_of(head).map_or(Priority::default(), Precedence::priority);
        shed.shedder.count_shed(class);
        policy.note_anybody_shed();
        Anybody::Shed
    }
}

/// The units that a request to the only policy holds.
#[inline(always)]
fn held<D: Decide>(hold: Hold, policy: &Policy<D>) -> Held {
    let watcher = policy.description.watcher_of((*policy.limiter).as_any());
    Held::of_one(hold, watcher)
}
