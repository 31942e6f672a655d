//! A request of Envoy's protocol on its way through the layer of its domain.

use std::sync::{Arc, Mutex, PoisonError};

use tower_sluice::PartitionKey;
use tower_sluice::key::KeyCharge;

use crate::rules::Descriptor;

/// The descriptors of a request. The layer's policies find them in the request's extensions, and note here which of them
/// they are charged for.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) descriptors: Vec<Descriptor>,
    /// The hits of each descriptor. 0 only looks.
    hits: Vec<u64>,
    matched: Mutex<Vec<Match>>,
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
    pub(crate) fn new(descriptors: Vec<Descriptor>, hits: Vec<u64>) -> Self {
        Self { descriptors, hits, matched: Mutex::new(Vec::new()) }
    }

    /// Notes that a policy is charged for these descriptors, each with its key. Returns what the policy charges.
    ///
    /// Descriptors with the same key are one charge, of all their hits: two would each have to find room beside the
    /// other. If all of them only look, so does the charge.
    pub(crate) fn charge(
        &self,
        policy: &Arc<str>,
        matched: impl IntoIterator<Item = (usize, PartitionKey)>,
    ) -> Vec<KeyCharge> {
        let mut hits: Vec<(PartitionKey, u64)> = Vec::new();
        let mut all = self.matched.lock().unwrap_or_else(PoisonError::into_inner);
        for (descriptor, key) in matched {
            let own = self.hits[descriptor];
            match hits.iter_mut().find(|(other, _)| *other == key) {
                Some((_, sum)) => *sum = sum.saturating_add(own),
                None => hits.push((key.clone(), own)),
            }
            all.push(Match { policy: Arc::clone(policy), key, descriptor });
        }
        let to_charge = |(key, hits)| match hits {
            0 => KeyCharge::new(key).cost(1).peek(),
            hits => KeyCharge::new(key).cost(hits),
        };
        hits.into_iter().map(to_charge).collect()
    }

    /// The policies that each descriptor was charged to.
    pub(crate) fn matched(&self) -> Vec<Match> {
        self.matched.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
