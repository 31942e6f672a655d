//! Counts and logs decisions, reports crossings, and tracks rejected keys.

use std::sync::Arc;

use super::decide::Decide;
use super::entry::{PolicyEntry, Progress};
use super::scope::Scope;
use crate::engine::policy::{Fate, Policy, Share};
use crate::engine::reload::{InForce, LayerState};
use crate::util::spawn;
use crate::values::{Decision, PartitionKey};

impl<D: Decide> Scope<'_, D> {
    /// Records the decisions on a request that passes. Only shadows, and policies whose alternatives were charged, have
    /// rejected it.
    pub(super) fn note_committed(self, entries: &mut [PolicyEntry]) {
        let is_decided = |entry: &PolicyEntry| matches!(entry.progress, Progress::Charged | Progress::PassedOver);
        for entry in entries.iter_mut().filter(|entry| is_decided(entry) && self.policy(entry).watches_shares()) {
            if let Some(decision) = entry.admission() {
                let charge = ChargeOf { policy: entry.policy, key: &entry.key, fell_back: entry.fell_back };
                entry.crossed = note_crossings(self.in_force, charge, decision, entry.cost);
            }
        }
        let entries = entries.iter().filter(|entry| is_decided(entry));
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

    /// Records the decisions on a rejected request. Policies that would have admitted it were not charged, so they are
    /// not counted.
    pub(super) fn note_all_rejected(self, entries: &[PolicyEntry]) {
        let rejected = entries.iter().filter(|entry| entry.is_rejected());
        for (policy, key, decision) in decided(&self.in_force.policies, rejected) {
            if !policy.shadow {
                self.note_rejected(policy, Fate::Rejected, key, decision);
            }
        }
    }

    /// Records that a policy has rejected a request.
    pub(super) fn note_rejected(self, policy: &Policy<D>, fate: Fate, key: &PartitionKey, decision: &Decision) {
        policy.note(fate, Some(key), Some(decision));
        if policy.lineage.offenders.is_some() {
            (self.layer.longer_path().note_offender)(self.layer, policy, key);
        }
    }
}

/// Notes a rejected request's key, and publishes this process's offenders, if a server collects them from all
/// processes.
pub(super) fn note_offender<D: Decide>(layer: &Arc<LayerState<D>>, policy: &Policy<D>, key: &PartitionKey) {
    if let Some(scheduled) = policy.note_offender(key) {
        layer.publish_offenders(policy, scheduled);
    }
}

/// A charge by a policy that reports crossings.
#[derive(Clone, Copy)]
pub(super) struct ChargeOf<'a> {
    /// The policy's index.
    pub(super) policy: u32,
    pub(super) key: &'a PartitionKey,
    /// Whether the local fallback was charged.
    pub(super) fell_back: bool,
}

impl ChargeOf<'_> {
    pub(super) fn policy_of<D: Decide>(self, in_force: &InForce<D>) -> &Policy<D> {
        &in_force.policies[self.policy as usize]
    }
}

/// Reports the shares that charging `units` has crossed, unless they were reported before. Returns the greatest.
///
/// If a server decides which process reports a share, it is asked in the background.
#[cold]
pub(super) fn note_crossings<D: Decide>(
    in_force: &Arc<InForce<D>>,
    charge: ChargeOf<'_>,
    decision: &Decision,
    units: u64,
) -> Option<Share> {
    let ChargeOf { policy: index, key, fell_back } = charge;
    let policy = charge.policy_of(in_force);
    let mut greatest = None;
    for share in policy.crossed_by(decision, units) {
        greatest = Some(share);
        let span = decision.reset_after();
        if !policy.begin_crossing(key, share, span) {
            continue;
        }
        let Some(server) = policy.description.shares_reports().filter(|_| !fell_back) else {
            policy.report_crossing(key, share, decision);
            continue;
        };
        let claim = server.claim(key, share.millionths(), span);
        let (in_force, key, decision) = (Arc::clone(in_force), key.clone(), *decision);
        spawn(async move {
            // If the server fails, this process reports the crossing, because twice is better than never.
            if claim.await.unwrap_or(true) {
                in_force.policies[index as usize].report_crossing(&key, share, &decision);
            }
        });
    }
    greatest
}

fn decided<'p, 'e, D: Decide>(
    policies: &'p [Policy<D>],
    entries: impl Iterator<Item = &'e PolicyEntry>,
) -> impl Iterator<Item = (&'p Policy<D>, &'e PartitionKey, &'e Decision)> {
    entries.filter_map(|entry| Some((entry.policy_of(policies), &entry.key, entry.decision.as_ref()?)))
}
