//! [`KeyOf`]: the ways in which an operator names a policy's key.

use crate::engine::domain::{Domain, Http};
use crate::engine::policy::Policy;
use crate::values::{LimiterError, PartitionKey, Quota};

/// A policy's key, as an operator names it to a [`LimitsHandle`](crate::LimitsHandle).
///
/// | | the key |
/// |---|---|
/// | `&PartitionKey` | this key, unchecked |
/// | [`RequestHead`](crate::RequestHead), `&Parts`, `&Request` | the key that the policy makes of this request: an IPv6 address becomes its network, and the value of a header is trimmed |
/// | `&str`, `&String` | the key that [is written so](crate::key::KeyExtractor::read_text): `203.0.113.7`, `alice`, `alice + 203.0.113.7`, or `(shared)` for the key that all requests share |
///
/// Each key can be written, even if its bytes are not text. A name in quotation marks may have `\xff` for a byte,
/// `(0x00ff)` is the key with these bytes, and `(sha256:…)` is a key for which only this SHA-256 [is
/// kept](PartitionKey#cost). These two are taken for any policy, unchecked, as a `PartitionKey` is.
///
/// Implemented for these types only.
pub trait KeyOf<D: Domain = Http>: sealed::Find<D> {}

pub(crate) mod sealed {
    use super::{Domain, LimiterError, Policy, Target};

    pub trait Find<D: Domain> {
        fn find(self, policy: &Policy<D>) -> Result<Target, LimiterError>;
    }
}

/// A key, and its quota if the policy has one for each request.
#[derive(Debug)]
pub struct Target {
    pub(crate) key: PartitionKey,
    pub(crate) quota: Option<Quota>,
}

impl Target {
    /// No request provides the key's quota, but the limiter may know it from the last request.
    const fn without_quota(key: PartitionKey) -> Self {
        Self { key, quota: None }
    }

    /// The key that a policy makes from a subject.
    pub(crate) fn of_subject<D: Domain>(policy: &Policy<D>, subject: &D::Subject<'_>) -> Result<Self, LimiterError> {
        let key = policy.selector.key.extract(subject).or_else(|error| {
            let no_key = || LimiterError::no_key(policy.name(), &format!("the request has no key: {error}"));
            policy.selector.key_without(&error).ok_or_else(no_key)
        })?;
        let quota = policy.quota_of(subject, &key);
        Ok(Self { key, quota })
    }
}

impl<D: Domain> KeyOf<D> for &PartitionKey {}

impl<D: Domain> sealed::Find<D> for &PartitionKey {
    fn find(self, _: &Policy<D>) -> Result<Target, LimiterError> {
        Ok(Target::without_quota(self.clone()))
    }
}

impl<D: Domain> KeyOf<D> for &str {}

impl<D: Domain> sealed::Find<D> for &str {
    fn find(self, policy: &Policy<D>) -> Result<Target, LimiterError> {
        let key = policy.selector.key_of_text(self);
        key.map(Target::without_quota).map_err(|error| LimiterError::no_key(policy.name(), &error))
    }
}

impl<D: Domain> KeyOf<D> for &String {}

impl<D: Domain> sealed::Find<D> for &String {
    fn find(self, policy: &Policy<D>) -> Result<Target, LimiterError> {
        sealed::Find::find(self.as_str(), policy)
    }
}
