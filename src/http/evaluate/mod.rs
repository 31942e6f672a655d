//! Evaluates a request: a transaction charges either all policies of a layer or no policy. Policies that admit the
//! request at once take a shorter path: one policy here, several in [`several`].
//!
//! 1. **Prepare**: each policy that applies makes an [entry](entry::PolicyEntry): a key, a cost, and the ban of the
//!    key, if any.
//! 2. **Precheck**: every enforced entry except for the first is peeked at, if its limiter can be. If an entry would
//!    be rejected, nothing is charged: the others are peeked at as well, and the request is [rejected] with the
//!    [longest wait](crate::http::reject::Rejection::limit_exceeded).
//! 3. **Reserve**: the entries are charged in turn, those that are hard to refund last. First memory; then servers,
//!    which decide on all of their entries in one call each, except for possible free retries; then queues, so that
//!    no request waits only to be rejected; then shadows, which see the admitted requests only.
//! 4. **Commit**, or **roll back**: a concurrent request may have used up the units that the precheck saw. Then the
//!    charges made so far are refunded, the last one first.
//!
//! All entries see [one instant](crate::values::Now), and a later one after each wait. Decisions are
//! [counted](observe) in one place, and become [annotations] of the response in another. Both ask no limiter again.
//! Only the settlement of [open requests](open_request), whose charges depend on the response, calls limiters.
//!
//! A failure of a limiter is not a rejection. The policy's failure mode then decides on the request.

mod annotations;
mod entry;
mod observe;
mod open_request;
mod rejected;
mod scope;
mod several;
#[cfg(test)]
mod tests;
mod transaction;
mod waiting;

use std::sync::Arc;
use std::time::Duration;

use http::Response;

pub(crate) use self::annotations::Annotations;
use self::annotations::PlainDecision;
use self::entry::{Entries, NoKey, PolicyEntry};
pub(crate) use self::open_request::OpenRequest;
pub(crate) use self::rejected::Rejected;
use self::scope::Scope;
use self::transaction::{Transaction, TransactionProgress};
pub(crate) use self::waiting::WaitingRequest;
use crate::http::body::RejectionBody;
use crate::http::grpc;
use crate::http::head::RequestHead;
use crate::http::policy::{Fate, Policy};
use crate::http::reject::Rejection;
use crate::http::reload::{InForce, LayerState};
use crate::values::{Answer, Ask};

/// The result of an evaluation.
pub(crate) enum Evaluation {
    Admitted(Annotations),
    Rejected(Response<RejectionBody>),
    /// The request waits for its turn in a queue, or for a server.
    Pending(Box<WaitingRequest>),
}

/// Evaluates a request. `has_no_body` returns whether the request certainly has no body.
#[inline]
pub(crate) fn evaluate(
    layer: &Arc<LayerState>,
    in_force: &Arc<InForce>,
    head: &RequestHead<'_>,
    has_no_body: impl FnOnce() -> bool,
) -> Evaluation {
    let scope = Scope { layer, in_force };
    if let Some(exemption) = &layer.settings.exemption {
        if exemption.try_exempt(&in_force.policies, head, has_no_body) {
            return scope.exempt();
        }
    }
    let policy = match &*in_force.policies {
        [policy] if in_force.is_plain => policy,
        policies if in_force.is_plain => return scope.evaluate_several(policies, head),
        _ => return scope.evaluate_transaction(Transaction::with_patience(scope.patience(head)), None, head),
    };
    // A single plain policy, as most layers have: its charge needs no transaction. This is the hot path. The key and
    // the decision are borrowed, not moved: each is a cache line.
    if !policy.applies_to(head) {
        return scope.skip(policy);
    }
    let extracted = policy.who.key.extract(head);
    let shared;
    let key = match &extracted {
        Ok(key) => key,
        Err(error) => match entry::without_key(policy, error) {
            Ok(key) => {
                shared = key;
                &shared
            }
            Err(NoKey::Skipped) => return Evaluation::Admitted(scope.annotate_undecided()),
            Err(NoKey::Rejected(rejection)) => return scope.respond(Rejected::from(*rejection), head),
        },
    };
    policy.note_key(key);
    let cost = policy.cost_of(head);
    let quota = policy.quota_of(head, key);
    let patience = scope.patience(head);
    let answer = policy.limiter.decide(&Ask::charge(key, cost).under(quota).within(patience));
    if let Answer::Ready(Ok(decision)) = &answer {
        let decided = PlainDecision { policy: 0, key, quota, decision };
        if decision.is_allowed() {
            policy.report_health(None);
            policy.note(Fate::from_admission(decision), Some(key), Some(decision));
            return Evaluation::Admitted(scope.annotate_plain(std::iter::once(decided)));
        }
        // A ban of a server, a wait or a failure takes the path of several policies.
        if decision.ban().is_none() {
            policy.report_health(None);
            return scope.respond(scope.reject_plain(policy, decided), head);
        }
    }
    let mut transaction = Transaction::with_patience(patience);
    transaction.entries.push(PolicyEntry::new(0, key.clone(), cost, quota));
    scope.evaluate_transaction(transaction, Some(answer), head)
}

impl Scope<'_> {
    #[cold]
    fn exempt(self) -> Evaluation {
        self.in_force.policies.iter().for_each(|policy| policy.note(Fate::Skipped, None, None));
        Evaluation::Admitted(self.annotate_undecided())
    }

    /// Admits a request to which the only policy does not apply.
    #[cold]
    fn skip(self, policy: &Policy) -> Evaluation {
        let _ = entry::skip(policy);
        Evaluation::Admitted(self.annotate_undecided())
    }

    /// Evaluates a transaction. If it has no entries yet, it starts with preparing them; if there is an `answer`,
    /// with the answer to the next entry.
    #[inline(never)]
    fn evaluate_transaction(
        self,
        mut transaction: Transaction,
        answer: Option<Answer>,
        head: &RequestHead<'_>,
    ) -> Evaluation {
        if transaction.entries.is_empty() {
            if let Err(rejection) = self.prepare(&mut transaction.entries, head) {
                return self.respond(Rejected::from(*rejection), head);
            }
        }
        if answer.is_none() && !transaction.precheck(self) {
            return self.reject_prechecked(transaction, head);
        }
        match transaction.reserve(self, answer) {
            TransactionProgress::Done(Ok(annotations)) => Evaluation::Admitted(annotations),
            TransactionProgress::Done(Err(rejected)) => self.respond(*rejected, head),
            progress => Evaluation::Pending(Box::new(WaitingRequest::new(transaction, progress, self))),
        }
    }

    /// Rejects a request that a policy would reject, before anything was charged.
    #[cold]
    fn reject_prechecked(self, mut transaction: Transaction, head: &RequestHead<'_>) -> Evaluation {
        transaction.peek_undecided(self);
        self.respond(self.reject(&mut transaction.entries), head)
    }

    /// Makes the entries of all policies that apply.
    #[inline]
    fn prepare(self, entries: &mut Entries, head: &RequestHead<'_>) -> Result<(), Box<Rejection>> {
        for (index, policy) in (0..).zip(&self.in_force.policies) {
            match entry::key(policy, head) {
                Ok(key) => {
                    let ban = policy.ban_before_limiter(&key);
                    // Pushed in either case, so that the common entry is built where it stays.
                    if self.in_force.is_open_ended {
                        let entry = PolicyEntry::open_ended(index, policy, key, head);
                        entries.push(PolicyEntry { ban, ..entry });
                    } else {
                        let cost = policy.cost_of(head);
                        let quota = policy.quota_of(head, &key);
                        entries.push(PolicyEntry { ban, ..PolicyEntry::new(index, key, cost, quota) });
                    }
                }
                Err(NoKey::Skipped) => {}
                Err(NoKey::Rejected(rejection)) => return Err(rejection),
            }
        }
        Ok(())
    }

    /// The time that the client is willing to wait, if it sends one and a policy may delay the request.
    #[inline]
    fn patience(self, head: &RequestHead<'_>) -> Option<Duration> {
        if self.in_force.delays { grpc::timeout(head) } else { None }
    }

    #[cold]
    fn respond(self, rejected: Rejected, head: &RequestHead<'_>) -> Evaluation {
        Evaluation::Rejected(rejected.respond(self.layer, head))
    }
}
