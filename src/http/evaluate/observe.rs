//! Counts and logs decisions.

use super::entry::PolicyEntry;
use crate::http::policy::{Fate, Policy};
use crate::values::{Decision, PartitionKey};

/// The fate of a request that passes a policy with this decision: only a shadow's can be a rejection.
#[inline]
pub(super) fn fate(decision: &Decision) -> Fate {
    match decision.is_allowed() {
        false => Fate::ShadowRejected,
        true if decision.delay().is_zero() => Fate::Allowed,
        true => Fate::Delayed,
    }
}

/// Records the decisions on a request that passes.
pub(super) fn committed(policies: &[Policy], entries: &[PolicyEntry]) {
    for (policy, key, decision) in decided(policies, entries) {
        policy.note(fate(decision), Some(key), Some(decision));
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
