//! The key for a rule in another service's file.

use std::sync::Arc;

use tower_sluice::PartitionKey;
use tower_sluice::direct::On;
use tower_sluice::key::{KeyCharge, KeyError, KeyExtractor, Mark};

use super::asked::{Asked, Selection};
use super::key::missing;

/// Charges the descriptors that were selected for the policy with this name.
pub(crate) struct RuleKey(pub(crate) Arc<str>);

impl RuleKey {
    fn selected<'a>(&'a self, asked: &'a Asked) -> impl Iterator<Item = &'a Selection> {
        asked.selected.iter().filter(|selection| *selection.policy == *self.0)
    }
}

impl KeyExtractor<On<Asked>> for RuleKey {
    fn marks(&self) -> Vec<Mark> {
        vec![Mark::of(&*self.0)]
    }

    fn extract(&self, asked: &Asked) -> Result<PartitionKey, KeyError> {
        self.selected(asked).next().map(|selection| selection.key.clone()).ok_or_else(missing)
    }

    fn has_several(&self) -> bool {
        true
    }

    fn extract_all(&self, asked: &Asked) -> Result<Vec<KeyCharge>, KeyError> {
        let quota = |selection: &Selection| selection.brought.map(|brought| brought.quota);
        let selected = self.selected(asked).map(|it| (it.descriptor, it.key.clone(), quota(it)));
        Ok(asked.charges(selected))
    }
}
