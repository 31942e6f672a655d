//! Validates a policy before it can be enforced: each policy in force is a valid one.

use super::{Policy, PolicyError};

impl Policy {
    /// Returns the first mistake in the name, the [pairs](super::pairs) of options, the cost or the status of this
    /// policy.
    ///
    /// [`Enforceable`](crate::http::reload::Enforceable) checks what concerns all policies of a layer: that there is
    /// one, and that no two have the same name.
    pub(crate) fn validate(&self) -> Result<(), PolicyError> {
        let name = || self.name.to_string();
        validate_name(&self.name)?;
        self.check_pairs()?;
        if self.cost.fixed() == Some(0) {
            return Err(PolicyError::CostOfZero { name: name() });
        }
        if let (Some(cost), Some(burst)) = (self.cost.fixed(), self.description.max_cost()) {
            if cost > burst {
                return Err(PolicyError::CostAboveBurst { name: name(), cost, burst });
            }
        }
        if let Some(status) = self.status.filter(|status| !(status.is_client_error() || status.is_server_error())) {
            return Err(PolicyError::InvalidStatus { name: name(), status: status.as_u16() });
        }
        Ok(())
    }
}

/// Checks that a name can be a policy's, which fields and bodies have.
pub(crate) fn validate_name(name: &str) -> Result<(), PolicyError> {
    let is_valid = is_token(name) && name.len() <= MAX_NAME;
    if is_valid { Ok(()) } else { Err(PolicyError::InvalidName { name: name.to_owned() }) }
}

/// Whether a name is a token of RFC 9651, section 3.3.4: a letter or `*`, then letters, digits and some punctuation. It
/// needs no escaping in any field or log line.
fn is_token(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'*')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || PUNCTUATION.as_bytes().contains(&byte))
}

/// The longest name of a policy, in bytes. `RateLimit-Policy` and `RateLimit` repeat the names of all policies in each
/// response: those of 16 policies take 2 KiB at most, half of the response head that nginx accepts from a server (one
/// page of memory, unless `proxy_buffer_size` is set).
pub(super) const MAX_NAME: usize = 64;

/// The punctuation that a name may contain: that of a token.
pub(super) const PUNCTUATION: &str = "!#$%&'*+-.^_`|~:/";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_tokens() {
        let letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
        let firsts = format!("{letters}*");
        // `tchar` of RFC 9110, section 5.6.2, and the two that RFC 9651 adds.
        let others = format!("{letters}0123456789!#$%&'*+-.^_`|~:/");
        for character in (0..128).map(char::from) {
            assert_eq!(is_token(&format!("{character}")), firsts.contains(character), "{character:?} first");
            assert_eq!(is_token(&format!("n{character}")), others.contains(character), "{character:?} second");
        }
        assert!(!is_token("") && !is_token("é") && !is_token("né"));
    }
}
