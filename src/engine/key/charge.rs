//! `KeyCharge`: a key that a request has for a policy, with its cost.

use crate::values::{Mode, PartitionKey, Quota};

/// A key from [a request's keys](super::KeyExtractor::extract_all), and the cost to charge it.
///
/// ```
/// use tower_sluice::PartitionKey;
/// use tower_sluice::key::KeyCharge;
///
/// // A message to two recipients, a third one who only has to have units left, and a fourth one who got it already.
/// let charges = [
///     KeyCharge::new(PartitionKey::from("ada")),
///     KeyCharge::new(PartitionKey::from("bob")).cost(3),
///     KeyCharge::new(PartitionKey::from("eve")).peek(),
///     KeyCharge::new(PartitionKey::from("joe")).up_to(),
/// ];
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct KeyCharge {
    pub(crate) key: PartitionKey,
    pub(crate) cost: Option<u64>,
    pub(crate) quota: Option<Quota>,
    /// `Charge`, `Peek` or `UpTo`.
    pub(crate) mode: Mode,
}

impl KeyCharge {
    /// Charges the key the policy's [cost](crate::Policy::cost).
    pub const fn new(key: PartitionKey) -> Self {
        Self { key, cost: None, quota: None, mode: Mode::Charge }
    }

    /// Charges this cost instead.
    pub fn cost(self, cost: u64) -> Self {
        Self { cost: Some(cost), ..self }
    }

    /// Gives the key this quota, in place of the one that the policy's [`quota_fn`](crate::Policy::quota_fn) returns.
    /// Without that option, keys do not have their own quotas, and this has no effect.
    pub fn quota(self, quota: Quota) -> Self {
        Self { quota: Some(quota), ..self }
    }

    /// Only checks the key, without charging it: if the cost does not fit, the request is rejected. A limiter that
    /// cannot be peeked at, such as a [`SharedQueue`](crate::SharedQueue), fails instead. While a limiter on a server
    /// fails, its local fallback lets such a request pass.
    pub fn peek(self) -> Self {
        Self { mode: Mode::Peek, ..self }
    }

    /// Charges the cost as far as units are left, and never rejects the request. Use this for a cost that was spent
    /// already, such as an answer's tokens. The rest is forgiven, as with [`Mode::UpTo`], and it is never refunded. A
    /// ban that this process keeps does not count. If another key has no room for the request, this one may be charged
    /// or not, so send such costs in a separate request.
    pub fn up_to(self) -> Self {
        Self { mode: Mode::UpTo, ..self }
    }
}

impl From<PartitionKey> for KeyCharge {
    fn from(key: PartitionKey) -> Self {
        Self::new(key)
    }
}
