//! The order in which the policies of a layer are charged.

use super::Policy;

/// The place of a policy in the order in which policies are charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ChargeOrder {
    /// Decides at once, and can be peeked at.
    AtOnce,
    /// Calls a server, or cannot be peeked at. After the former: a rejection by one of those saves the call, and their
    /// charges are easier to refund.
    NotAtOnce,
    /// May delay the request. After all others that may reject it, so that no request waits in vain.
    Delaying,
    /// Charged for requests that all others admit.
    Shadow,
}

impl Policy {
    pub(crate) fn charge_order(&self) -> ChargeOrder {
        if self.shadow {
            ChargeOrder::Shadow
        } else if self.delays() {
            ChargeOrder::Delaying
        } else if self.answers_at_once() {
            ChargeOrder::AtOnce
        } else {
            ChargeOrder::NotAtOnce
        }
    }
}
