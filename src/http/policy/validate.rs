//! Validates a policy when a layer is built, so that a built layer is a valid one.

use super::{MissingKey, Policy, PolicyError};

impl Policy {
    /// Returns the first mistake in the name, the cost, the penalty or the status of this policy.
    ///
    /// `Enforceable` checks what concerns several policies: that there is one, and that no two have the same name.
    pub(crate) fn validate(&self) -> Result<(), PolicyError> {
        let name = || self.name.to_string();
        if !is_token(&self.name) || self.name.len() > MAX_NAME {
            return Err(PolicyError::InvalidName { name: name() });
        }
        if self.cost.fixed() == Some(0) {
            return Err(PolicyError::CostOfZero { name: name() });
        }
        let cost_and_max = self.cost.fixed().zip(self.description.max_cost());
        if let Some((cost, burst)) = cost_and_max.filter(|(cost, max)| cost > max) {
            return Err(PolicyError::CostAboveBurst { name: name(), cost, burst });
        }
        if self.penalty.is_some() && (self.key.is_shared() || self.on_missing_key == MissingKey::Share) {
            return Err(PolicyError::PenaltyOnSharedKey { name: name() });
        }
        if let Some(status) = self.status.filter(|status| !(status.is_client_error() || status.is_server_error())) {
            return Err(PolicyError::InvalidStatus { name: name(), status: status.as_u16() });
        }
        Ok(())
    }
}

/// Whether a name is a token of RFC 9651, section 3.3.4: a letter or `*`, then letters, digits and some punctuation. It
/// needs no escaping in any field or log line.
fn is_token(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'*')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || PUNCTUATION.as_bytes().contains(&byte))
}

/// The longest name of a policy, in bytes: it occurs in several fields of each response, and in a label of every
/// metric.
pub(super) const MAX_NAME: usize = 64;

/// The punctuation that a name may contain: that of a token.
pub(super) const PUNCTUATION: &str = "!#$%&'*+-.^_`|~:/";
