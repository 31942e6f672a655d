//! [`Asked`]: a caller's question.

use std::sync::Arc;

use tower_sluice::key::{KeyCharge, Mark, Marks};
use tower_sluice::{PartitionKey, Quota};

use super::brought::Brought;
use super::key::marks_of;
use crate::rules::Descriptor;

/// A request's descriptors, on which the policies in its domain decide.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) descriptors: Vec<Descriptor>,
    /// The hits for each descriptor.
    pub(crate) hits: Vec<u64>,
    /// The rules for these descriptors, if another service's file has the limits.
    pub(crate) selected: Vec<Selection>,
    /// The marks by which its policies are found: their names if rules were selected, otherwise the entries.
    pub(crate) marks: Marks,
    kind: Kind,
}

/// The kind of question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Charges the hits if they fit. Descriptors without hits only look.
    Question,
    /// Checks whether the hits fit.
    Look,
    /// Charges hits that were spent already, up to the units that are left.
    Report,
}

/// A rule that limits a descriptor.
#[derive(Clone, Debug)]
pub(crate) struct Selection {
    pub(crate) descriptor: usize,
    /// The rule's policy.
    pub(crate) policy: Arc<str>,
    pub(crate) key: PartitionKey,
    /// Whether the rule rejects a request only if all rules with this flag do.
    pub(crate) is_quota: bool,
    pub(crate) is_fixed_window: bool,
    /// The limit that the request brings for the descriptor.
    pub(crate) brought: Option<Brought>,
}

/// A descriptor that is charged to a key of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Match {
    pub(crate) policy: Arc<str>,
    pub(crate) key: PartitionKey,
    pub(crate) descriptor: usize,
}

impl Asked {
    /// `hits` has a number for each descriptor.
    pub(crate) fn new(kind: Kind, descriptors: Vec<Descriptor>, hits: Vec<u64>, selected: Vec<Selection>) -> Self {
        let marks = if selected.is_empty() {
            let entries = descriptors.iter().flat_map(|descriptor| descriptor.entries.iter().enumerate());
            entries.flat_map(|(place, (key, value))| marks_of(place, key, value)).collect()
        } else {
            selected.iter().map(|selection| Mark::of(&*selection.policy)).collect()
        };
        Self { descriptors, hits, selected, marks, kind }
    }

    /// Returns the same request as a look, which charges nothing.
    pub(crate) fn to_look(&self) -> Self {
        Self::new(Kind::Look, self.descriptors.clone(), self.hits.clone(), self.selected.clone())
    }

    /// Returns a policy's charges for these descriptors, each with its key and perhaps its own limit.
    ///
    /// Descriptors with the same key become one charge for all their hits, because each of two charges would have to
    /// find room beside the other. If all of them only look, so does the charge.
    pub(super) fn charges(
        &self,
        matched: impl IntoIterator<Item = (usize, PartitionKey, Option<Quota>)>,
    ) -> Vec<KeyCharge> {
        let mut sums: Vec<(PartitionKey, Option<Quota>, u64)> = Vec::new();
        for (descriptor, key, quota) in matched.into_iter().filter(|(descriptor, ..)| self.is_charged(*descriptor)) {
            let hits = self.hits[descriptor];
            match sums.iter_mut().find(|(other, ..)| *other == key) {
                Some((.., sum)) => *sum = sum.saturating_add(hits),
                None => sums.push((key, quota, hits)),
            }
        }
        sums.into_iter().map(|(key, quota, hits)| self.charge_of(key, quota, hits)).collect()
    }

    /// Whether a policy that limits the descriptor decides on it. A report without hits charges nothing and rejects
    /// nothing.
    pub(crate) fn is_charged(&self, descriptor: usize) -> bool {
        self.kind != Kind::Report || self.hits[descriptor] > 0
    }

    /// The policies that each descriptor is charged to, if the rules were selected.
    pub(crate) fn selected_matches(&self) -> Vec<Match> {
        let selected = self.selected.iter().filter(|selection| self.is_charged(selection.descriptor));
        let to_match = |Selection { descriptor, policy, key, .. }: &Selection| Match {
            policy: Arc::clone(policy),
            key: key.clone(),
            descriptor: *descriptor,
        };
        selected.map(to_match).collect()
    }

    /// Returns the rule by which a policy is charged, if another service's file has it.
    pub(crate) fn selection_of(&self, matched: &Match) -> Option<&Selection> {
        let is_same = |it: &&Selection| it.descriptor == matched.descriptor && it.policy == matched.policy;
        self.selected.iter().find(is_same)
    }

    /// Returns the units that a descriptor looks for, or `None` if it is charged.
    pub(crate) fn looked_for(&self, descriptor: usize) -> Option<u64> {
        let hits = self.hits[descriptor];
        match self.kind {
            Kind::Report => None,
            Kind::Question if hits > 0 => None,
            Kind::Question | Kind::Look => Some(hits.max(1)),
        }
    }

    fn charge_of(&self, key: PartitionKey, quota: Option<Quota>, hits: u64) -> KeyCharge {
        let charge = KeyCharge::new(key).cost(hits.max(1));
        let charge = match self.kind {
            Kind::Report => charge.up_to(),
            Kind::Question if hits > 0 => charge,
            Kind::Question | Kind::Look => charge.peek(),
        };
        match quota {
            Some(quota) => charge.quota(quota),
            None => charge,
        }
    }
}
