//! A request of Envoy's protocol on its way through the layer of its domain.

use std::sync::{Arc, Mutex, PoisonError};

use tower_sluice::key::KeyCharge;
use tower_sluice::{PartitionKey, Quota};

use crate::rules::Descriptor;

/// The descriptors of a request. The layer's policies find them in the request's extensions, and note here which of
/// them they are charged for.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) descriptors: Vec<Descriptor>,
    /// The hits of each descriptor.
    pub(crate) hits: Vec<Hits>,
    /// The rules for these descriptors, if the file of another service has the limits.
    pub(crate) selected: Vec<Selection>,
    /// Whether nothing is charged.
    only_looks: bool,
    matched: Mutex<Vec<Match>>,
}

/// What a descriptor costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hits {
    /// 0 only looks.
    pub(crate) count: u64,
    /// Whether they were spent already, so that they count in any case.
    pub(crate) is_report: bool,
}

/// A rule that limits a descriptor.
#[derive(Clone, Debug)]
pub(crate) struct Selection {
    pub(crate) descriptor: usize,
    /// The policy of the rule.
    pub(crate) policy: Arc<str>,
    pub(crate) key: PartitionKey,
    /// The limit that the request brings for the descriptor.
    pub(crate) quota: Option<Quota>,
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
    pub(crate) fn new(descriptors: Vec<Descriptor>, hits: Vec<Hits>, selected: Vec<Selection>) -> Self {
        Self { descriptors, hits, selected, only_looks: false, matched: Mutex::default() }
    }

    /// The same request, which charges nothing.
    pub(crate) fn to_look(&self) -> Self {
        let same = Self::new(self.descriptors.clone(), self.hits.clone(), self.selected.clone());
        Self { only_looks: true, ..same }
    }

    /// Notes that a policy is charged for these descriptors, each with its key and perhaps its own limit. Returns what
    /// the policy charges.
    ///
    /// Descriptors with the same key are one charge, of all their hits: two would each have to find room beside the
    /// other. If all of them only look, so does the charge. Hits that were spent already are a charge of their own.
    pub(crate) fn charge(
        &self,
        policy: &Arc<str>,
        matched: impl IntoIterator<Item = (usize, PartitionKey, Option<Quota>)>,
    ) -> Vec<KeyCharge> {
        let mut sums: Vec<(PartitionKey, Option<Quota>, Hits)> = Vec::new();
        let mut all = self.matched.lock().unwrap_or_else(PoisonError::into_inner);
        for (descriptor, key, quota) in matched {
            let hits = self.hits[descriptor];
            if hits.is_report && self.only_looks {
                // It rejects nothing.
                continue;
            }
            let is_same =
                |(other, _, sum): &&mut (PartitionKey, _, Hits)| *other == key && sum.is_report == hits.is_report;
            match sums.iter_mut().find(is_same) {
                Some((.., sum)) => sum.count = sum.count.saturating_add(hits.count),
                None => sums.push((key.clone(), quota, hits)),
            }
            all.push(Match { policy: Arc::clone(policy), key, descriptor });
        }
        sums.into_iter().map(|(key, quota, hits)| self.charge_of(key, quota, hits)).collect()
    }

    /// Takes the policies that each descriptor was charged to, once the request is decided on.
    pub(crate) fn take_matched(&self) -> Vec<Match> {
        std::mem::take(&mut self.matched.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn charge_of(&self, key: PartitionKey, quota: Option<Quota>, hits: Hits) -> KeyCharge {
        let charge = KeyCharge::new(key).cost(hits.count.max(1));
        let charge = match hits {
            Hits { count: 0, .. } => charge.peek(),
            _ if self.only_looks => charge.peek(),
            Hits { is_report: true, .. } => charge.up_to(),
            _ => charge,
        };
        match quota {
            Some(quota) => charge.quota(quota),
            None => charge,
        }
    }
}
