//! One request before all policies of a layer: a transaction that charges all of them, or none.
//!
//! 1. **Prepare**: each policy that applies makes an [entry](entry::Entry): a key, a cost, and whether the key is banned.
//! 2. **Precheck**: all entries that will be charged after another are peeked at. If one would be rejected, nothing is charged:
//!    the others are peeked at as well, and the request is [rejected](reject) with the longest wait.
//! 3. **Reserve**: each entry is charged in turn, those that are hard to undo last: a server decides on all of its own at once,
//!    then come queues, where nobody should wait in vain, and shadows see what is really served.
//! 4. **Commit**, or **roll back**: another request may have come in between and taken what the precheck saw. Then what was
//!    reserved so far is refunded, the last charge first.
//!
//! All entries see [one instant](crate::Now). What was decided is [counted](observe) in one place, and made into
//! [annotations] of the response in another; neither asks a limiter again.
//!
//! A limiter that fails is no rejection. Its policy says who decides then.

mod annotations;
mod entry;
mod observe;
mod reject;
mod settlement;
#[cfg(test)]
mod tests;
mod transaction;
mod waiting;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::Response;

pub(crate) use self::annotations::Annotations;
use self::entry::{Entry, NoKey};
pub(crate) use self::reject::Rejected;
use self::transaction::{Progress, Transaction};
use crate::http::body::RejectionBody;
use crate::http::grpc;
use crate::http::head::RequestHead;
use crate::http::policy::Fate;
use crate::http::policy::{Choices, Policy};
use crate::http::reload::{InForce, Limits};
use crate::values::{Ask, Check};

/// What becomes of a request.
pub(crate) enum Evaluation {
    Admitted(Annotations),
    Rejected(Response<RejectionBody>),
    /// It waits for a turn, or for a server.
    Pending(Pin<Box<dyn Future<Output = Evaluated> + Send>>),
}

/// A request on which all policies have decided.
pub(crate) type Evaluated = Result<Annotations, Box<Rejected>>;

/// A layer, and the policies by which it evaluates one request, whatever is put in force meanwhile.
#[derive(Clone, Copy)]
struct Scope<'a> {
    limits: &'a Arc<Limits>,
    in_force: &'a Arc<InForce>,
}

impl<'a> Scope<'a> {
    #[inline]
    fn policy(self, entry: &Entry) -> &'a Policy {
        entry.policy_of(&self.in_force.policies)
    }
}

/// Evaluates a request. `has_no_body` says whether that is certain.
#[inline]
pub(crate) fn evaluate(
    limits: &Arc<Limits>,
    in_force: &Arc<InForce>,
    head: &RequestHead<'_>,
    has_no_body: impl FnOnce() -> bool,
) -> Evaluation {
    let scope = Scope { limits, in_force };
    if let Some(exemption) = &limits.settings.exemption
        && exemption.exempts(&in_force.policies, head, has_no_body)
    {
        return scope.exempt();
    }
    if in_force.is_plain { scope.evaluate_plain(head) } else { scope.evaluate_all(head) }
}

impl Scope<'_> {
    #[cold]
    fn exempt(self) -> Evaluation {
        self.in_force.policies.iter().for_each(|policy| policy.note(Fate::Skipped, None, None));
        Evaluation::Admitted(Annotations::default())
    }

    /// The only policy, as in most layers, charges all or nothing by itself. What is admitted at once, by far the most, takes
    /// no more than it needs; whatever else happens goes the way of several policies.
    #[inline]
    fn evaluate_plain(self, head: &RequestHead<'_>) -> Evaluation {
        let policy = &self.in_force.policies[0];
        let key = match entry::key(policy, head, &mut Choices::default()) {
            Ok(key) => key,
            Err(NoKey::Skipped) => return Evaluation::Admitted(Annotations::default()),
            Err(NoKey::Rejected(rejection)) => return self.respond(Rejected::from(*rejection), head),
        };
        let (cost, patience) = (policy.cost_of(head), self.patience(head));
        match policy.limiter().decide(&Ask::charge(&key, cost).within(patience)) {
            Check::Ready(Ok(decision)) if decision.is_allowed() => {
                policy.report_health(None);
                observe::admitted(policy, &key, &decision);
                Evaluation::Admitted(self.annotate_plain(&key, &decision))
            }
            check => self.evaluate_rest(Entry::new(0, key, cost), patience, check, head),
        }
    }

    /// Goes on with the answer to a charge.
    #[cold]
    #[inline(never)]
    fn evaluate_rest(
        self,
        entry: Entry,
        patience: Option<Duration>,
        check: Check,
        head: &RequestHead<'_>,
    ) -> Evaluation {
        let mut transaction = Transaction::within(patience);
        transaction.entries.push(entry);
        self.evaluate_transaction(&mut transaction, Some(check), head)
    }

    #[inline(never)]
    fn evaluate_all(self, head: &RequestHead<'_>) -> Evaluation {
        let (mut transaction, mut choices) = (Transaction::within(self.patience(head)), Choices::default());
        for (index, policy) in (0..).zip(&self.in_force.policies) {
            match entry::key(policy, head, &mut choices) {
                Ok(key) => {
                    let ban = policy.penalty_for(&key).and_then(|penalty| penalty.banned_for(&key));
                    transaction.entries.push(Entry { ban, ..Entry::new(index, key, policy.cost_of(head)) });
                }
                Err(NoKey::Skipped) => {}
                Err(NoKey::Rejected(rejection)) => return self.respond(Rejected::from(*rejection), head),
            }
        }
        if transaction.would_be_rejected(self) {
            transaction.foresee(self);
            return self.respond(self.reject(&mut transaction.entries), head);
        }
        self.evaluate_transaction(&mut transaction, None, head)
    }

    #[inline]
    fn evaluate_transaction(
        self,
        transaction: &mut Transaction,
        answer: Option<Check>,
        head: &RequestHead<'_>,
    ) -> Evaluation {
        match transaction.reserve(self, answer) {
            Progress::Done(Ok(annotations)) => Evaluation::Admitted(annotations),
            Progress::Done(Err(rejected)) => self.respond(*rejected, head),
            progress => Evaluation::Pending(waiting::wait(std::mem::take(transaction), self, progress)),
        }
    }

    /// How long the client waits, if it says so and may have to.
    #[inline]
    fn patience(self, head: &RequestHead<'_>) -> Option<Duration> {
        if self.in_force.delays { grpc::deadline(head) } else { None }
    }

    #[cold]
    fn respond(self, rejected: Rejected, head: &RequestHead<'_>) -> Evaluation {
        Evaluation::Rejected(rejected.respond(self.limits, head))
    }
}
