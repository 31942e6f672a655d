//! Validates a policy before it can be enforced: each policy in force is a valid one.

use super::cost::Bill;
use super::{MissingKey, Policy, PolicyError, Retries};

impl Policy {
    /// Returns the first mistake in the name, the cost, the settlement, the penalty, the free retries or the status of this
    /// policy.
    ///
    /// [`Enforceable`](crate::http::reload::Enforceable) checks what concerns all policies of a layer: that there is
    /// one, and that no two have the same name.
    pub(crate) fn validate(&self) -> Result<(), PolicyError> {
        let name = || self.name.to_string();
        validate_name(&self.name)?;
        if self.cost.fixed() == Some(0) {
            return Err(PolicyError::CostOfZero { name: name() });
        }
        if let (Some(cost), Some(burst)) = (self.cost.fixed(), self.description.max_cost()) {
            if cost > burst {
                return Err(PolicyError::CostAboveBurst { name: name(), cost, burst });
            }
        }
        if self.has_quotas() && !(self.description.takes_quotas() && self.shape().is_some()) {
            return Err(PolicyError::QuotasNotTaken { name: name() });
        }
        if self.description.holds() && self.settles_later() {
            return Err(PolicyError::SettlementOfHeldUnits { name: name() });
        }
        if self.owes_shortfalls && (!self.settles_later() || self.is_all_or_nothing()) {
            return Err(PolicyError::NothingOwed { name: name() });
        }
        if self.penalty.is_some() && self.description.holds() {
            return Err(PolicyError::PenaltyWithoutWaits { name: name() });
        }
        if self.releases_at_head && !self.description.holds() {
            return Err(PolicyError::NothingHeld { name: name() });
        }
        if self.penalty.is_some() && (self.key.is_shared() || self.on_missing_key == MissingKey::Share) {
            return Err(PolicyError::PenaltyOnSharedKey { name: name() });
        }
        if let Some(problem) = self.retries.as_ref().and_then(|retries| self.against_charging_once(retries)) {
            return Err(PolicyError::ChargeOnce { name: name(), problem });
        }
        if let Some(status) = self.status.filter(|status| !(status.is_client_error() || status.is_server_error())) {
            return Err(PolicyError::InvalidStatus { name: name(), status: status.as_u16() });
        }
        Ok(())
    }

    /// Why retries of this policy cannot be free, and the cure.
    fn against_charging_once(&self, retries: &Retries) -> Option<&'static str> {
        if self.bill.as_ref().is_some_and(|bill| !matches!(bill, Bill::When(_))) {
            // A retry whose cost is known only afterwards could cost more than what it is a retry of.
            Some(
                "the cost of a retry must be known when it comes; remove what settles it later (only charge_when can stay)",
            )
        } else if self.delays() {
            Some("a free retry would overtake the requests that wait; use a limiter that does not delay, or charge all")
        } else if self.description.holds() {
            Some("a free retry is in flight like any request; remove charge_once, since nothing is charged for good")
        } else if self.description.terms().is_none() {
            Some("the quota bounds the free retries; let the limiter advertise one (Description::advertising)")
        } else if retries.bounds_records_elsewhere() {
            Some("its records are on Redis, where time alone bounds them; remove max_keys, or set a shorter `within`")
        } else {
            None
        }
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
