//! Validates a policy when a layer is built, so that a built layer is a valid one.

use super::{Cost, MissingKey, Policy, PolicyError};

/// The longest name of a policy, in bytes: it occurs in several fields of each response, and in a label of each series.
pub(super) const MAX_NAME: usize = 64;

/// Returns whether a name is a token of RFC 9651, section 3.3.4: a letter or `*`, then letters, digits and some
/// punctuation. It needs no escaping in any field or log line.
fn is_token(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'*')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&byte))
}

impl Policy {
    /// Returns the error of [`RateLimitLayer::try_new`](crate::RateLimitLayer::try_new), if there is one.
    pub(crate) fn validate(&self) -> Result<(), PolicyError> {
        let name = || self.name.to_string();
        if !is_token(&self.name) || self.name.len() > MAX_NAME {
            return Err(PolicyError::InvalidName { name: name() });
        }
        if matches!(self.cost, Cost::Fixed(0)) {
            return Err(PolicyError::CostOfZero { name: name() });
        }
        match (&self.cost, self.description.max_cost()) {
            (Cost::Fixed(cost), Some(max)) if *cost > max => {
                return Err(PolicyError::CostAboveBurst { name: name(), cost: *cost, burst: max });
            }
            _ => {}
        }
        if self.penalty.is_some() && (self.key.is_shared() || self.on_missing_key == MissingKey::Share) {
            return Err(PolicyError::PenaltyOnSharedKey { name: name() });
        }
        match self.status {
            Some(status) if !(status.is_client_error() || status.is_server_error()) => {
                Err(PolicyError::InvalidStatus { name: name(), status: status.as_u16() })
            }
            _ => Ok(()),
        }
    }
}
