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

use http::Response;

pub(crate) use self::annotations::Annotations;
use self::entry::{Entry, NoKey, Subject};
pub(crate) use self::reject::Rejected;
use self::transaction::{Progress, Transaction};
use crate::ask::{Ask, Now};
use crate::body::RejectionBody;
use crate::decision::Check;
use crate::head::RequestHead;
use crate::live::{InForce, Limits};
use crate::meter::Fate;
use crate::partition::PartitionKey;
use crate::policy::{Choices, Policy};

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
        &self.in_force.policies[entry.policy]
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
    match &*in_force.policies {
        [policy] if !policy.is_shadow() => scope.evaluate_one(policy, head),
        _ => scope.evaluate_all(head),
    }
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
    fn evaluate_one(self, policy: &Policy, head: &RequestHead<'_>) -> Evaluation {
        let key = match entry::key(policy, head, &mut Choices::default()) {
            Ok(key) => key,
            Err(NoKey::Skipped) => return Evaluation::Admitted(Annotations::default()),
            Err(NoKey::Rejected(rejection)) => return self.respond(Rejected::from(*rejection), head),
        };
        if policy.has_penalty() {
            return self.evaluate_unless_banned(Subject::of(policy, head, key), head);
        }
        let cost = policy.cost_of(head);
        match policy.limiter().decide(&Ask::charge(&key, cost).within(entry::patience(policy, head))) {
            Check::Ready(Ok(decision)) if decision.is_allowed() && !self.has_rare_wishes(policy) => {
                policy.report_health(None);
                observe::admitted(policy, &key, &decision);
                Evaluation::Admitted(self.annotate_one(&key, &decision))
            }
            check => {
                let is_shared = policy.has_shared_key() || key == PartitionKey::SHARED;
                let patience = entry::patience(policy, head);
                self.evaluate_rest(Subject { key, cost, patience, ban: None, is_shared }, check, head)
            }
        }
    }

    /// Whether more is asked for than fields.
    #[inline]
    fn has_rare_wishes(self, policy: &Policy) -> bool {
        policy.settles_later() || self.limits.settings.adds_verdict
    }

    /// By a policy that may have banned the key.
    #[inline(never)]
    fn evaluate_unless_banned(self, subject: Subject, head: &RequestHead<'_>) -> Evaluation {
        self.evaluate_transaction(Transaction::of(Entry::new(0, subject)), head)
    }

    /// Goes on with the answer to a charge.
    #[cold]
    #[inline(never)]
    fn evaluate_rest(self, subject: Subject, check: Check, head: &RequestHead<'_>) -> Evaluation {
        let mut transaction = Transaction::of(Entry::new(0, subject));
        let progress = transaction.resume(self, check, &Now::new());
        self.finish(&mut transaction, progress, head)
    }

    #[inline(never)]
    fn evaluate_all(self, head: &RequestHead<'_>) -> Evaluation {
        let (mut transaction, mut choices) = (Transaction::default(), Choices::default());
        for (index, policy) in self.in_force.policies.iter().enumerate() {
            match entry::key(policy, head, &mut choices) {
                Ok(key) => transaction.entries.push(Entry::new(index, Subject::of(policy, head, key))),
                Err(NoKey::Skipped) => {}
                Err(NoKey::Rejected(rejection)) => return self.respond(Rejected::from(*rejection), head),
            }
        }
        self.evaluate_transaction(transaction, head)
    }

    #[inline]
    fn evaluate_transaction(self, mut transaction: Transaction, head: &RequestHead<'_>) -> Evaluation {
        let now = Now::new();
        if transaction.would_be_rejected(self, &now) {
            transaction.foresee(self, &now);
            return self.respond(self.reject(&mut transaction.entries), head);
        }
        let progress = match transaction.reserve_at_once(self, &now) {
            None => transaction.reserve(self, &now),
            Some(check) => transaction.resume(self, check, &now),
        };
        self.finish(&mut transaction, progress, head)
    }

    #[inline]
    fn finish(self, transaction: &mut Transaction, progress: Progress, head: &RequestHead<'_>) -> Evaluation {
        match progress {
            Progress::Done(Ok(annotations)) => Evaluation::Admitted(annotations),
            Progress::Done(Err(rejected)) => self.respond(*rejected, head),
            progress => Evaluation::Pending(waiting::wait(std::mem::take(transaction), self, progress)),
        }
    }

    #[cold]
    fn respond(self, rejected: Rejected, head: &RequestHead<'_>) -> Evaluation {
        Evaluation::Rejected(rejected.respond(self.limits, head))
    }
}
