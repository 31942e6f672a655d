//! Counts and logs decisions, and tracks rejected keys.

use super::entry::PolicyEntry;
use super::scope::Scope;
use crate::http::policy::{Fate, Policy};
use crate::values::{Decision, PartitionKey};

impl Scope<'_> {
    /// Records the decisions on a request that passes: only shadows have rejected it, and policies whose alternatives
    /// were charged, if any.
    pub(super) fn note_committed<'e>(self, entries: impl Iterator<Item = &'e PolicyEntry>) {
        for (policy, key, decision) in decided(&self.in_force.policies, entries) {
            if decision.is_allowed() {
                policy.note(Fate::from_admission(decision), Some(key), Some(decision));
            } else if policy.shadow {
                self.note_rejected(policy, Fate::ShadowRejected, key, decision);
            } else {
                policy.note(Fate::PassedOver, Some(key), Some(decision));
            }
        }
    }

    /// Records the decisions on a rejected request. Policies that would have admitted it were not charged, and are not
    /// counted.
    pub(super) fn note_all_rejected(self, entries: &[PolicyEntry]) {
        let rejected = entries.iter().filter(|entry| entry.is_rejected());
        for (policy, key, decision) in decided(&self.in_force.policies, rejected) {
            if !policy.shadow {
                self.note_rejected(policy, Fate::Rejected, key, decision);
            }
        }
    }

    /// Records the rejection by a policy.
    pub(super) fn note_rejected(self, policy: &Policy, fate: Fate, key: &PartitionKey, decision: &Decision) {
        policy.note(fate, Some(key), Some(decision));
        if let Some(scheduled) = policy.note_offender(key) {
            self.layer.publish_offenders(policy, scheduled);
        }
    }
}

fn decided<'p, 'e>(
    policies: &'p [Policy],
    entries: impl Iterator<Item = &'e PolicyEntry>,
) -> impl Iterator<Item = (&'p Policy, &'e PartitionKey, &'e Decision)> {
    entries.filter_map(|entry| Some((entry.policy_of(policies), &entry.key, entry.decision.as_ref()?)))
}
