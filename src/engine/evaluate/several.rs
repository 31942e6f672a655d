//! The hot path of several policies: all are [plain](Policy::is_plain), and all admit the request at once. It takes the
//! same steps as a [transaction], with smaller entries. Every other outcome is left to a transaction, which goes on
//! from the charges made so far.

use smallvec::SmallVec;

use super::decide::Decide;
use super::entry::{self, AskContext, NoKey, PolicyEntry, Progress};
use super::scope::Scope;
#[cfg(doc)]
use super::transaction;
use super::transaction::Transaction;
use crate::engine::outcome::{Evaluation, Rejected};
use crate::engine::policy::{Fate, Policy};
use crate::engine::translate::Reading;
use crate::values::{Answer, Ask, Decision, Mode, PartitionKey, Quota};

/// A plain policy's part of a request, in place of a [`PolicyEntry`].
struct PlainEntry {
    key: PartitionKey,
    cost: u64,
    quota: Option<Quota>,
    /// The policy's index.
    policy: u32,
}

impl PlainEntry {
    fn policy_of<'a, D: Decide>(&self, policies: &'a [Policy<D>]) -> &'a Policy<D> {
        &policies[self.policy as usize]
    }

    /// The question that charges the entry.
    fn ask<'a>(&'a self, context: &'a AskContext) -> Ask<'a> {
        Ask::charge(&self.key, self.cost).under(self.quota).at(&context.now)
    }
}

impl<D: Decide> Scope<'_, D> {
    /// Evaluates a request by several policies, which all are plain and decide at once.
    pub(super) fn evaluate_several(self, policies: &[Policy<D>], head: &D::Subject<'_>) -> Evaluation<D> {
        // Prepare.
        let mut entries = SmallVec::<[PlainEntry; 2]>::new();
        for (index, policy) in (0..).zip(policies) {
            // As `entry::key` does, written out: a function between would move the key once more.
            if !policy.applies_to(head) {
                entry::note_skipped(policy);
                continue;
            }
            let key = match policy.selector.key.extract(head) {
                Ok(key) => {
                    policy.note_key(&key);
                    key
                }
                Err(error) => match entry::without_key(policy, &error) {
                    Ok(key) => key,
                    Err(NoKey::Skipped) => continue,
                    Err(NoKey::Rejected(rejection)) => return Evaluation::Rejected(Rejected::undecided(*rejection)),
                },
            };
            let cost = policy.cost_of(head);
            let quota = policy.quota_of(head, &key);
            entries.push(PlainEntry { key, cost, quota, policy: index });
        }

        // Precheck. The first entry is not peeked at, since nothing has to be refunded if its charge is rejected.
        let context = AskContext::default();
        for index in 1..entries.len() {
            let entry = &entries[index];
            let peeked = entry.policy_of(policies).limiter.decide(&entry.ask(&context).to(Mode::Peek)).at_once();
            if let Some(rejection) = peeked.filter(|peeked| !peeked.is_allowed()) {
                let mut transaction = transaction_of(entries, &[], context);
                transaction.entries[index].preview(rejection);
                return self.reject_prechecked(transaction);
            }
        }

        // Reserve.
        let mut decisions = SmallVec::<[Decision; 2]>::new();
        for entry in &entries {
            let policy = entry.policy_of(policies);
            match policy.limiter.decide(&entry.ask(&context)) {
                Answer::Ready(Ok(decision)) if decision.is_allowed() => {
                    policy.report_health(None);
                    decisions.push(decision);
                }
                answer => {
                    let transaction = transaction_of(entries, &decisions, context);
                    return self.evaluate_transaction(transaction, Some(answer), head);
                }
            }
        }

        // Commit.
        for (entry, decision) in entries.iter().zip(&decisions) {
            entry.policy_of(policies).note(Fate::from_admission(decision), Some(&entry.key), Some(decision));
        }
        let decided = entries.iter().zip(&decisions).map(|(entry, decision)| {
            let PlainEntry { key, quota, policy, .. } = entry;
            Reading { policy: *policy as usize, key, quota: *quota, decision }
        });
        self.admit_plain(decided)
    }
}

/// Makes a transaction of these entries. The first ones are charged already: `charged` has their decisions.
#[cold]
fn transaction_of(entries: SmallVec<[PlainEntry; 2]>, charged: &[Decision], context: AskContext) -> Transaction {
    let mut decisions = charged.iter();
    let entries = entries.into_iter().map(|PlainEntry { key, cost, quota, policy }| {
        let mut entry = PolicyEntry::new(policy, key, cost, quota);
        if let Some(decision) = decisions.next() {
            entry.decision = Some(*decision);
            entry.progress = Progress::Charged;
        }
        entry
    });
    Transaction::from_charged(entries.collect(), charged.len(), context)
}
