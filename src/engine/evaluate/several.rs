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

/// The policies' charges to an admitted request, in place of [`PolicyEntry`]s.
trait Charges {
    fn len(&self) -> usize;

    /// The index of a charge's policy.
    fn policy(&self, index: usize) -> usize;

    fn key(&self, index: usize) -> &PartitionKey;

    fn cost(&self, index: usize) -> u64;

    /// The quota of the key, if it has one of its own.
    fn quota(&self, index: usize) -> Option<Quota>;

    /// The question that makes the charge.
    #[inline]
    fn ask<'a>(&'a self, index: usize, context: &'a AskContext) -> Ask<'a> {
        Ask::charge(self.key(index), self.cost(index)).under(self.quota(index)).at(&context.now)
    }

    /// A transaction that goes on from these charges. The first ones are made already: `charged` has their decisions.
    #[cold]
    fn transaction(&self, charged: &[Decision], context: AskContext) -> Transaction {
        let entry = |index| {
            let (policy, key) = (u32::try_from(self.policy(index)), self.key(index).clone());
            let policy = policy.expect("an index of a policy fits, as in `OwnCharge`");
            let mut entry = PolicyEntry::new(policy, key, self.cost(index), self.quota(index));
            if let Some(decision) = charged.get(index) {
                entry.decision = Some(*decision);
                entry.progress = Progress::Charged;
            }
            entry
        };
        Transaction::from_charged((0..self.len()).map(entry).collect(), charged.len(), context)
    }
}

/// The charge of one policy, with a key, a cost and a quota of its own.
struct OwnCharge {
    key: PartitionKey,
    cost: u64,
    quota: Option<Quota>,
    /// The policy's index.
    policy: u32,
}

impl Charges for SmallVec<[OwnCharge; 2]> {
    #[inline]
    fn len(&self) -> usize {
        self.as_slice().len()
    }

    #[inline]
    fn policy(&self, index: usize) -> usize {
        self[index].policy as usize
    }

    #[inline]
    fn key(&self, index: usize) -> &PartitionKey {
        &self[index].key
    }

    #[inline]
    fn cost(&self, index: usize) -> u64 {
        self[index].cost
    }

    #[inline]
    fn quota(&self, index: usize) -> Option<Quota> {
        self[index].quota
    }
}

/// The charges of all policies of a layer that [share the key](crate::engine::reload::InForce::shared_key_costs).
struct SharedKey<'a> {
    key: PartitionKey,
    /// The policies' costs.
    costs: &'a [u64],
}

impl Charges for SharedKey<'_> {
    #[inline]
    fn len(&self) -> usize {
        self.costs.len()
    }

    #[inline]
    fn policy(&self, index: usize) -> usize {
        index
    }

    #[inline]
    fn key(&self, _: usize) -> &PartitionKey {
        &self.key
    }

    #[inline]
    fn cost(&self, index: usize) -> u64 {
        self.costs[index]
    }

    #[inline]
    fn quota(&self, _: usize) -> Option<Quota> {
        None
    }
}

impl<D: Decide> Scope<'_, D> {
    /// Evaluates a request by several policies, which all are plain and decide at once.
    pub(super) fn evaluate_several(self, policies: &[Policy<D>], head: &D::Subject<'_>) -> Evaluation<D> {
        if let Some(costs) = &self.in_force.shared_key_costs {
            // A request without a key is treated as each policy says.
            if let Ok(key) = policies[0].selector.key.extract(head) {
                policies.iter().for_each(|policy| policy.note_key(&key));
                return self.charge_all(&SharedKey { key, costs }, head);
            }
        }
        let mut charges = SmallVec::<[OwnCharge; 2]>::new();
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
            charges.push(OwnCharge { key, cost, quota, policy: index });
        }
        self.charge_all(&charges, head)
    }

    /// Makes all charges, or none.
    #[inline(always)]
    fn charge_all(self, charges: &impl Charges, head: &D::Subject<'_>) -> Evaluation<D> {
        let policy = |index| &self.in_force.policies[charges.policy(index)];

        // Precheck. The first charge is not peeked at, since nothing has to be refunded if it is rejected.
        let context = AskContext::default();
        for index in 1..charges.len() {
            let peeked = policy(index).limiter.decide(&charges.ask(index, &context).to(Mode::Peek)).at_once();
            if let Some(rejection) = peeked.filter(|peeked| !peeked.is_allowed()) {
                let mut transaction = charges.transaction(&[], context);
                transaction.entries[index].preview(rejection);
                return self.reject_prechecked(transaction);
            }
        }

        // Reserve.
        let mut decisions = SmallVec::<[Decision; 2]>::new();
        for index in 0..charges.len() {
            match policy(index).limiter.decide(&charges.ask(index, &context)) {
                Answer::Ready(Ok(decision)) if decision.is_allowed() => {
                    policy(index).report_health(None);
                    decisions.push(decision);
                }
                answer => {
                    let transaction = charges.transaction(&decisions, context);
                    return self.evaluate_transaction(transaction, Some(answer), head);
                }
            }
        }

        // Commit.
        for (index, decision) in decisions.iter().enumerate() {
            policy(index).note(Fate::from_admission(decision), Some(charges.key(index)), Some(decision));
        }
        self.admit_plain(decisions.iter().enumerate().map(|(index, decision)| Reading {
            policy: charges.policy(index),
            key: charges.key(index),
            quota: charges.quota(index),
            decision,
        }))
    }
}
