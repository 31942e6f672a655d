//! The hot path: a request of a layer whose policies are all [plain](Policy::is_plain), and which all admit it at once.
//! Every other outcome is left to the [transaction], which goes on with what was charged so far.
//!
//! A key and a decision are a cache line each, so they are made where they stay, and are borrowed from there.

use smallvec::SmallVec;

use super::Evaluation;
use super::annotations::Annotations;
use super::entry::{self, AskContext, NoKey, PolicyEntry};
use super::observe;
use super::rejected::Rejected;
use super::scope::Scope;
#[cfg(doc)]
use super::transaction;
use super::transaction::Transaction;
use crate::http::head::RequestHead;
use crate::http::policy::Policy;
use crate::values::{Answer, Ask, Decision, Mode, PartitionKey, Quota};

/// A plain policy's part of a request.
struct PlainEntry {
    key: PartitionKey,
    cost: u64,
    quota: Option<Quota>,
    /// The policy's index.
    policy: u32,
}

impl PlainEntry {
    fn ask<'a>(&'a self, context: &'a AskContext) -> Ask<'a> {
        Ask::charge(&self.key, self.cost).under(self.quota).at(&context.now)
    }
}

impl Scope<'_> {
    /// Evaluates a request of a layer with one policy. Its charge is all or none by itself.
    #[inline]
    pub(super) fn evaluate_one(self, policy: &Policy, head: &RequestHead<'_>) -> Evaluation {
        if !policy.applies_to(head) {
            return self.pass(policy);
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
                Err(NoKey::Skipped) => return Evaluation::Admitted(Annotations::default()),
                Err(NoKey::Rejected(rejection)) => return self.respond(Rejected::from(*rejection), head),
            },
        };
        policy.note_key(key);
        let (cost, quota, patience) = (policy.cost_of(head), policy.quota_of(head, key), self.patience(head));
        let answer = policy.limiter.decide(&Ask::charge(key, cost).under(quota).within(patience));
        if let Answer::Ready(Ok(decision)) = &answer {
            if decision.is_allowed() {
                note_admission(policy, key, decision);
                return Evaluation::Admitted(self.annotate_plain([(0, key, quota, decision)]));
            }
        }
        let mut transaction = Transaction::within(patience);
        transaction.entries.push(PolicyEntry::new(0, key.clone(), cost, quota));
        self.go_on(transaction, Some(answer), head)
    }

    /// Evaluates a request of a layer with several policies, which all decide at once.
    #[inline(never)]
    pub(super) fn evaluate_several(self, policies: &[Policy], head: &RequestHead<'_>) -> Evaluation {
        let mut entries = SmallVec::<[PlainEntry; 2]>::new();
        for (index, policy) in (0..).zip(policies) {
            match entry::key(policy, head) {
                Ok(key) => {
                    let (cost, quota) = (policy.cost_of(head), policy.quota_of(head, &key));
                    entries.push(PlainEntry { key, cost, quota, policy: index });
                }
                Err(NoKey::Skipped) => {}
                Err(NoKey::Rejected(rejection)) => return self.respond(Rejected::from(*rejection), head),
            }
        }
        let context = AskContext::default();
        let policy_of = |entry: &PlainEntry| &policies[entry.policy as usize];
        let is_rejected = |entry: &PlainEntry| {
            let peeked = policy_of(entry).limiter.decide(&entry.ask(&context).to(Mode::Peek));
            !matches!(&peeked, Answer::Ready(Ok(decision)) if decision.is_allowed())
        };
        // The first entry is not peeked at, since nothing has to be refunded if its charge is rejected.
        if entries.iter().skip(1).any(is_rejected) {
            return self.go_on(transaction_of(entries, &[], context), None, head);
        }
        let mut decisions = SmallVec::<[Decision; 2]>::new();
        for entry in &entries {
            match policy_of(entry).limiter.decide(&entry.ask(&context)) {
                Answer::Ready(Ok(decision)) if decision.is_allowed() => decisions.push(decision),
                answer => return self.go_on(transaction_of(entries, &decisions, context), Some(answer), head),
            }
        }
        for (entry, decision) in entries.iter().zip(&decisions) {
            note_admission(policy_of(entry), &entry.key, decision);
        }
        let decided = entries.iter().zip(&decisions);
        let readings = decided.map(|(entry, decision)| (entry.policy as usize, &entry.key, entry.quota, decision));
        Evaluation::Admitted(self.annotate_plain(readings))
    }

    /// Lets a request pass to which the only policy does not apply.
    #[cold]
    fn pass(self, policy: &Policy) -> Evaluation {
        let _ = entry::skip(policy);
        Evaluation::Admitted(Annotations::default())
    }
}

#[inline]
fn note_admission(policy: &Policy, key: &PartitionKey, decision: &Decision) {
    policy.report_health(None);
    policy.note(observe::fate(decision), Some(key), Some(decision));
}

/// The transaction of these entries, of which the first are charged, by these decisions.
#[cold]
fn transaction_of(entries: SmallVec<[PlainEntry; 2]>, charged: &[Decision], context: AskContext) -> Transaction {
    let mut decisions = charged.iter();
    let entries = entries.into_iter().map(|PlainEntry { key, cost, quota, policy }| PolicyEntry {
        decision: decisions.next().copied(),
        ..PolicyEntry::new(policy, key, cost, quota)
    });
    Transaction::from_charged(entries.collect(), charged.len(), context)
}
