//! A request of Envoy's protocol on its way through the layer of its domain.

use std::sync::{Arc, Mutex, PoisonError};

use tower_sluice::key::{KeyCharge, Mark, Marks};
use tower_sluice::{PartitionKey, Quota};

use super::brought::Brought;
use super::key::marks_of;
use crate::rules::Descriptor;

/// The descriptors of a request. The layer's policies find them in the request's extensions, and note here which of
/// them they are charged for.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) descriptors: Vec<Descriptor>,
    /// The hits of each descriptor.
    pub(crate) hits: Vec<u64>,
    /// The rules for these descriptors, if the file of another service has the limits.
    pub(crate) selected: Vec<Selection>,
    kind: Kind,
    matched: Mutex<Vec<Match>>,
}

/// What a request wants to know or to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Charges the hits if they fit. Descriptors without hits only look.
    Question,
    /// Looks whether the hits fit.
    Look,
    /// Charges hits that were spent already, as far as units are left.
    Report,
}

/// A rule that limits a descriptor.
#[derive(Clone, Debug)]
pub(crate) struct Selection {
    pub(crate) descriptor: usize,
    /// The policy of the rule.
    pub(crate) policy: Arc<str>,
    pub(crate) key: PartitionKey,
    /// Whether the rule rejects a request only together with all others of this kind.
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
        Self { descriptors, hits, selected, kind, matched: Mutex::default() }
    }

    /// The same request, which charges nothing.
    pub(crate) fn to_look(&self) -> Self {
        Self::new(Kind::Look, self.descriptors.clone(), self.hits.clone(), self.selected.clone())
    }

    /// Notes that a policy is charged for these descriptors, each with its key and perhaps its own limit. Returns what
    /// the policy charges.
    ///
    /// Descriptors with the same key are one charge, of all their hits: two would each have to find room beside the
    /// other. If all of them only look, so does the charge.
    pub(crate) fn charge(
        &self,
        policy: &Arc<str>,
        matched: impl IntoIterator<Item = (usize, PartitionKey, Option<Quota>)>,
    ) -> Vec<KeyCharge> {
        let mut sums: Vec<(PartitionKey, Option<Quota>, u64)> = Vec::new();
        let mut all = self.matched.lock().unwrap_or_else(PoisonError::into_inner);
        for (descriptor, key, quota) in matched {
            let hits = self.hits[descriptor];
            if self.kind == Kind::Report && hits == 0 {
                // There is nothing to charge, and a report rejects nothing.
                continue;
            }
            match sums.iter_mut().find(|(other, ..)| *other == key) {
                Some((.., sum)) => *sum = sum.saturating_add(hits),
                None => sums.push((key.clone(), quota, hits)),
            }
            all.push(Match { policy: Arc::clone(policy), key, descriptor });
        }
        sums.into_iter().map(|(key, quota, hits)| self.charge_of(key, quota, hits)).collect()
    }

    /// What the layer finds the policies by: their names, if the rules were selected, or else the entries.
    pub(crate) fn marks(&self) -> Marks {
        if !self.selected.is_empty() {
            return self.selected.iter().map(|selection| Mark::of(&*selection.policy)).collect();
        }
        let entries = self.descriptors.iter().flat_map(|descriptor| descriptor.entries.iter().enumerate());
        entries.flat_map(|(place, (key, value))| marks_of(place, key, value)).collect()
    }

    /// Returns the rule by which a policy is charged, if the file of another service has it.
    pub(crate) fn selection_of(&self, matched: &Match) -> Option<&Selection> {
        let is_same = |it: &&Selection| it.descriptor == matched.descriptor && it.policy == matched.policy;
        self.selected.iter().find(is_same)
    }

    /// How many units a descriptor looks for; `None` if it is charged.
    pub(crate) fn looked_for(&self, descriptor: usize) -> Option<u64> {
        let hits = self.hits[descriptor];
        match self.kind {
            Kind::Report => None,
            Kind::Question if hits > 0 => None,
            Kind::Question | Kind::Look => Some(hits.max(1)),
        }
    }

    /// Takes the policies that each descriptor was charged to, once the request is decided on.
    pub(crate) fn take_matched(&self) -> Vec<Match> {
        std::mem::take(&mut self.matched.lock().unwrap_or_else(PoisonError::into_inner))
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
