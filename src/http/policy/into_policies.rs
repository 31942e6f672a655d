//! `IntoPolicies`: what a layer is made of.

use super::Policy;

/// One policy, or several.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a policy, and no array or `Vec` of policies",
    note = "a quota, an algorithm or a limiter becomes a policy by a name, and mostly a key: \
            `Policy::new(\"per-client\", limiter).key(PeerIp::new())`, or in short `RateLimitLayer::per_client(limiter)`"
)]
pub trait IntoPolicies {
    /// The policies. They are charged and reported in this order, but those in memory first, those that delay after
    /// those that reject, and shadows last.
    fn into_policies(self) -> Vec<Policy>;
}

impl IntoPolicies for Policy {
    fn into_policies(self) -> Vec<Policy> {
        vec![self]
    }
}

impl<const N: usize> IntoPolicies for [Policy; N] {
    fn into_policies(self) -> Vec<Policy> {
        self.into()
    }
}

impl IntoPolicies for Vec<Policy> {
    fn into_policies(self) -> Vec<Policy> {
        self
    }
}
