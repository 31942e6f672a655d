//! Counts and logs decisions.

use super::entry::PolicyEntry;
use crate::http::policy::{Fate, Policy};
use crate::values::{Decision, PartitionKey};

/// Records the decisions on a request that passes: only shadows have rejected it, if any.
pub(super) fn committed(policies: &[Policy], entries: &[PolicyEntry]) {
    for (policy, key, decision) in decided(policies, entries) {
        let fate = if decision.is_allowed() { Fate::from_admission(decision) } else { Fate::ShadowRejected };
        policy.note(fate, Some(key), Some(decision));
    }
}

/// Records the decisions on a rejected request. Policies that would have admitted it were not charged, and are not
/// counted.
pub(super) fn rejected(policies: &[Policy], entries: &[PolicyEntry]) {
    for (policy, key, decision) in decided(policies, entries) {
        if !decision.is_allowed() && !policy.shadow {
            policy.note(Fate::Rejected, Some(key), Some(decision));
        }
    }
}

fn decided<'a>(
    policies: &'a [Policy],
    entries: &'a [PolicyEntry],
) -> impl Iterator<Item = (&'a Policy, &'a PartitionKey, &'a Decision)> {
    entries.iter().filter_map(|entry| Some((entry.policy_of(policies), &entry.key, entry.decision.as_ref()?)))
}
