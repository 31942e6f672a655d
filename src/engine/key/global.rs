//! [`Global`]: one key for all.

use super::{KeyError, KeyExtractor, KeyTextError, identity_of, read_shared, write_shared};
use crate::engine::domain::Domain;
use crate::values::PartitionKey;

/// One key for all requests: all clients share one budget.
#[derive(Clone, Copy, Debug, Default)]
#[doc(alias = "GlobalKeyExtractor")]
pub struct Global;

impl<D: Domain> KeyExtractor<D> for Global {
    fn extract(&self, _: &D::Subject<'_>) -> Result<PartitionKey, KeyError> {
        Ok(PartitionKey::SHARED)
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn identity(&self) -> Option<String> {
        identity_of(self)
    }

    fn read_text(&self, text: &str) -> Result<PartitionKey, KeyTextError> {
        read_shared(text)
    }

    fn write_text(&self, key: &PartitionKey) -> Option<String> {
        write_shared(key)
    }
}
